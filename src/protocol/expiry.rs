//! Lifetimes: `Stream-TTL`, `Stream-Expires-At`, and when a stream is over
//! (base protocol 5.1; decisions, Live reads, lifetimes, browsers).
//!
//! A TTL is a sliding window: every read and write but HEAD restarts it. An
//! expired stream behaves as if it had been deleted at that moment.

use crate::{
    base::limits::JS_INTEGER_MAX,
    protocol::{error::Refusal, offset::decimal},
};

/// Longest TTL, in seconds: past it milliseconds since 1970 would leave the range in which a
/// JavaScript client computes exactly (142,000 years).
pub const TTL_S_MAX: u64 = (JS_INTEGER_MAX / 1000) / 2;

/// How long a stream lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until it is deleted.
    Unlimited,
    /// Until nobody has read or written it for this many seconds.
    Ttl {
        /// Length of the sliding window, in seconds, at most [`TTL_S_MAX`].
        seconds: u64,
    },
    /// Until this moment.
    ExpiresAt {
        /// Unix time in milliseconds.
        unix_ms: u64,
    },
}

impl Lifetime {
    /// When a stream that was last renewed at `renewed_ms` is over, in Unix milliseconds.
    #[must_use]
    pub fn expires_ms(self, renewed_ms: u64) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Ttl { seconds } => Some(renewed_ms.saturating_add(seconds.saturating_mul(1000))),
            Self::ExpiresAt { unix_ms } => Some(unix_ms),
        }
    }

    /// Whether a stream that was last renewed at `renewed_ms` is over at `now_ms`.
    #[must_use]
    pub fn is_over(self, renewed_ms: u64, now_ms: u64) -> bool {
        self.expires_ms(renewed_ms).is_some_and(|end| end <= now_ms)
    }

    /// What a fork gets: what it asks for, else what its source has (base protocol 4.2, table).
    #[must_use]
    pub fn for_fork(self, source: Self) -> Self {
        match self {
            Self::Unlimited => source,
            asked => asked,
        }
    }
}

/// Reads `Stream-TTL`: decimal seconds without sign, point, exponent or leading zeros.
///
/// # Errors
/// [`Refusal::InvalidHeader`], saying which rule is broken.
pub fn parse_ttl(text: &[u8]) -> Result<u64, Refusal> {
    let invalid = |what: &str| Err(Refusal::InvalidHeader(what.to_owned()));
    if text.len() > 1 && text.first() == Some(&b'0') {
        return invalid("Stream-TTL must not have leading zeros");
    }
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return invalid("Stream-TTL must be a non-negative decimal integer of seconds");
    }
    match decimal(text) {
        Some(seconds) if seconds <= TTL_S_MAX => Ok(seconds),
        _ => Err(Refusal::InvalidHeader(format!(
            "Stream-TTL is too large: at most {TTL_S_MAX} seconds"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_strict_decimal() {
        assert_eq!(parse_ttl(b"0"), Ok(0));
        assert_eq!(parse_ttl(b"3600"), Ok(3600));
        for bad in [
            &b""[..],
            b"060",
            b"00",
            b"+60",
            b"-1",
            b"60.0",
            b"6e1",
            b" 60",
            b"abc",
            b"18446744073709551615",
            b"18446744073709551616",
        ] {
            assert!(parse_ttl(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_window_slides_and_a_deadline_does_not() {
        let ttl = Lifetime::Ttl { seconds: 2 };
        assert!(!ttl.is_over(1_000, 2_999));
        assert!(ttl.is_over(1_000, 3_000));
        let at = Lifetime::ExpiresAt { unix_ms: 5_000 };
        assert!(!at.is_over(4_999, 4_999));
        assert!(at.is_over(4_999, 5_000));
        assert!(!Lifetime::Unlimited.is_over(0, u64::MAX));
    }

    #[test]
    fn a_fork_inherits_only_what_it_does_not_ask_for() {
        let source = Lifetime::Ttl { seconds: 9 };
        assert_eq!(Lifetime::Unlimited.for_fork(source), source);
        let asked = Lifetime::ExpiresAt { unix_ms: 1 };
        assert_eq!(asked.for_fork(source), asked);
    }
}
