//! Bootstrap: a snapshot and the updates after it in one answer (extensions
//! 3). Complete when the updates fit the cap, else an honest prefix.

use crate::{
    base::limits::RESPONSE_BYTES_MAX,
    protocol::{incarnation::Incarnation, stream_key::StreamKey},
};

/// A GET of a stream's bootstrap.
#[derive(Clone, Debug)]
pub struct BootstrapRequest {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
}

/// Where the update parts end: at the tail when they fit the 8 MiB cap, else at the cap; for a
/// JSON stream at the last message boundary within it, and past it when the first message alone
/// exceeds it (extensions 3.2).
///
/// `boundary_at_or_before` and `boundary_after` find message boundaries of a JSON stream; they
/// are asked only when the cap cuts.
pub fn updates_end(
    start: u64,
    tail: u64,
    is_json: bool,
    boundary_at_or_before: impl FnOnce(u64) -> Option<u64>,
    boundary_after: impl FnOnce(u64) -> Option<u64>,
) -> u64 {
    let cap = start.saturating_add(RESPONSE_BYTES_MAX);
    if cap >= tail {
        return tail;
    }
    if !is_json {
        return cap;
    }
    boundary_at_or_before(cap)
        .filter(|end| *end > start)
        .or_else(|| boundary_after(cap))
        .unwrap_or(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: u64 = RESPONSE_BYTES_MAX;

    #[test]
    fn the_cap_cuts_between_messages_but_returns_at_least_one() {
        let end = |tail, json, before: u64, after: u64| {
            updates_end(10, tail, json, |_| Some(before), |_| Some(after))
        };
        assert_eq!(end(10 + CAP, true, 0, 0), 10 + CAP);
        assert_eq!(end(11 + CAP, false, 0, 0), 10 + CAP);
        assert_eq!(end(11 + CAP, true, 500, 0), 500);
        assert_eq!(end(90 + CAP, true, 10, 50 + CAP), 50 + CAP);
    }
}
