//! What every answer with stream bytes promises, whoever asked for it: a size below the cap, an offset where its bytes end, and no
//! claim to be up to date before it is.

use super::World;
use crate::histogram::Tally;
use crate::verify::{Fault, StreamVerifier};

/// An offset token longer than this is not followed.
const OFFSET_BYTES_MAX: usize = 1024;

/// One answer, as far as its promises go.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The offset it was asked for; `-1` is the start.
    pub start: &'a [u8],
    /// The offset it gave to go on from.
    pub next: &'a [u8],
    /// Its body, in bytes.
    pub body_bytes: u64,
    /// Messages seen before it.
    pub messages_before: u64,
    /// Stored bytes of those.
    pub stored_before: u64,
}

/// Checks size and offsets of an answer that the verifier has seen to its end; false if no reader can go on from it.
pub fn extent(
    world: &World,
    verifier: &StreamVerifier,
    extent: Extent<'_>,
    tally: &mut Tally,
) -> bool {
    let target = &world.target;
    let messages = verifier.messages() - extent.messages_before;
    let whole_messages = target.cuts_between_messages(world.form);
    // Stored bytes of an array of messages are known only to those who look at them.
    let stored = match (whole_messages, world.check_content) {
        (true, true) => Some(verifier.stored_bytes() - extent.stored_before),
        (true, false) => None,
        (false, _) => Some(extent.body_bytes),
    };
    if let (Some(cap), Some(stored)) = (target.response_bytes_max(), stored)
        && stored > cap
        && !(whole_messages && messages == 1)
    {
        tally.fault(Fault::Oversize);
    }
    if whole_messages && verifier.inside_message() {
        tally.fault(Fault::Corrupt);
    }
    if extent.next.is_empty() || extent.next.len() > OFFSET_BYTES_MAX {
        tally.fault(Fault::WrongOffset);
        return false;
    }
    if let Some(stored) = stored.filter(|_| target.offsets_count_bytes())
        && decimal(extent.next) != end(extent.start, stored)
    {
        tally.fault(Fault::WrongOffset);
    }
    true
}

/// Where so many stored bytes from an offset on end, if offsets count bytes.
pub fn end(start: &[u8], stored: u64) -> Option<u64> {
    let start = if start == b"-1" {
        Some(0)
    } else {
        decimal(start)
    };
    start.and_then(|start| start.checked_add(stored))
}

/// A decimal number of at most 20 digits, zero-padded or not.
pub fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::end;

    #[test]
    fn offsets_add_up() {
        assert_eq!(end(b"-1", 7), Some(7));
        assert_eq!(end(b"00000000000000000256", 256), Some(512));
        assert_eq!(end(b"now", 1), None);
    }
}
