//! `Range` on snapshot reads: one byte range, or the whole (extensions 2.5;
//! source 1, Read a snapshot; RFC 9110 14).

use crate::protocol::offset::decimal;

/// A single range as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// `first-last`, both included.
    Between(u64, u64),
    /// `first-`.
    From(u64),
    /// `-length`.
    Last(u64),
}

/// Reads a `Range` value. `None` (which answers the whole snapshot) for other units, several
/// ranges, and ranges that do not parse or run backwards.
#[must_use]
pub fn parse(value: &[u8]) -> Option<ByteRange> {
    let (unit, spec) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let spec = spec.trim_ascii();
    let dash = memchr::memchr(b'-', spec)?;
    let (first, rest) = spec.split_at(dash);
    let last = rest.get(1..)?;
    match (first, last) {
        (b"", _) => position(last).map(ByteRange::Last),
        (_, b"") => position(first).map(ByteRange::From),
        _ => match (position(first)?, position(last)?) {
            (first, last) if first <= last => Some(ByteRange::Between(first, last)),
            _ => None,
        },
    }
}

/// A position of any length: what a u64 does not hold is past the end of every body all the same.
fn position(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| decimal(digits).unwrap_or(u64::MAX))
}

impl ByteRange {
    /// The bytes it means in a body of `len` bytes, as start and end (excluded); `None` when it
    /// starts at or past the end (416).
    #[must_use]
    pub fn resolve(self, len: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Self::Between(first, last) => (first, last.saturating_add(1).min(len)),
            Self::From(first) => (first, len),
            Self::Last(count) => (len.saturating_sub(count), len),
        };
        (start < end).then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_in_bytes_or_the_whole() {
        assert_eq!(parse(b"bytes=0-3"), Some(ByteRange::Between(0, 3)));
        assert_eq!(parse(b"bytes=9-"), Some(ByteRange::From(9)));
        assert_eq!(parse(b"bytes=-4"), Some(ByteRange::Last(4)));
        for whole in [
            &b"bytes="[..],
            b"bytes=5-2",
            b"bytes=0-1,3-4",
            b"items=0-1",
            b"bytes=a-b",
            b"bytes=--1",
            b"bytes",
            b"",
            b"bytes=+1-",
        ] {
            assert_eq!(parse(whole), None, "{whole:?}");
        }
        // RFC 9110 14.1.2: a last position may be past the end, by any number of digits.
        let huge = b"bytes=0-18446744073709551616";
        assert_eq!(parse(huge), Some(ByteRange::Between(0, u64::MAX)));
        let past = b"bytes=99999999999999999999-";
        assert_eq!(parse(past), Some(ByteRange::From(u64::MAX)));
        let all = b"bytes=-99999999999999999999";
        assert_eq!(parse(all), Some(ByteRange::Last(u64::MAX)));
    }

    #[test]
    fn ranges_are_cut_to_the_body_or_unsatisfiable() {
        assert_eq!(ByteRange::Between(0, 999).resolve(24), Some((0, 24)));
        assert_eq!(ByteRange::Between(0, u64::MAX).resolve(24), Some((0, 24)));
        assert_eq!(ByteRange::Last(99).resolve(24), Some((0, 24)));
        assert_eq!(ByteRange::Last(4).resolve(24), Some((20, 24)));
        for none in [
            ByteRange::Last(0),
            ByteRange::From(24),
            ByteRange::Between(99, 100),
        ] {
            assert_eq!(none.resolve(24), None, "{none:?}");
        }
        assert_eq!(ByteRange::From(0).resolve(0), None);
    }
}
