//! Offsets: byte positions in a stream's stored text (decisions, Tokens).
//!
//! On the wire an offset is 20 decimal digits, zero-padded, so that byte-wise
//! order is numeric order and every `u64` fits. On input leading zeros may be
//! missing; `-1` and `now` are sentinels and never a stream's own offset.

use crate::protocol::error::Refusal;

/// Digits of an offset on the wire: those of `u64::MAX`.
pub const OFFSET_DIGITS: usize = 20;

/// Where a read asks to start (base protocol 8, Sentinel Values).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOffset {
    /// `-1` or absent: the stream's first byte.
    Beginning,
    /// `now`: the tail, whatever it is when the read is served.
    Now,
    /// A position that an earlier answer named.
    At(u64),
}

/// Reads an `offset` query value.
///
/// # Errors
/// [`Refusal::InvalidOffset`] for anything but a sentinel or a decimal `u64`.
pub fn parse_start(text: &[u8]) -> Result<StartOffset, Refusal> {
    match text {
        b"-1" => Ok(StartOffset::Beginning),
        b"now" => Ok(StartOffset::Now),
        _ => parse(text).map(StartOffset::At),
    }
}

/// Reads an offset without sentinels, as snapshot and retention paths carry it.
///
/// # Errors
/// [`Refusal::InvalidOffset`] for anything but 1 to 20 decimal digits within `u64`.
pub fn parse(text: &[u8]) -> Result<u64, Refusal> {
    if text.is_empty() || text.len() > OFFSET_DIGITS {
        return Err(Refusal::InvalidOffset);
    }
    decimal(text).ok_or(Refusal::InvalidOffset)
}

/// Reads unsigned decimal digits; `None` for an empty text, a sign, any other byte, or a value
/// past `u64`.
#[must_use]
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The wire form: 20 digits.
#[must_use]
pub fn digits(offset: u64) -> [u8; OFFSET_DIGITS] {
    let mut text = [b'0'; OFFSET_DIGITS];
    let mut rest = offset;
    for place in text.iter_mut().rev() {
        // `rest % 10` is below 10, so the cast is exact and the sum a digit.
        *place = b'0'.wrapping_add((rest % 10) as u8);
        rest /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form_is_twenty_digits_and_orders_like_numbers() {
        assert_eq!(&digits(0), b"00000000000000000000");
        assert_eq!(&digits(u64::MAX), b"18446744073709551615");
        assert!(digits(9) < digits(10));
    }

    #[test]
    fn input_may_miss_leading_zeros_but_nothing_else() {
        assert_eq!(parse_start(b"4"), Ok(StartOffset::At(4)));
        assert_eq!(parse_start(b"00000000000000000004"), Ok(StartOffset::At(4)));
        assert_eq!(parse_start(b"-1"), Ok(StartOffset::Beginning));
        assert_eq!(parse_start(b"now"), Ok(StartOffset::Now));
        assert_eq!(
            parse_start(b"18446744073709551615"),
            Ok(StartOffset::At(u64::MAX))
        );
        for bad in [
            &b""[..],
            b"abc",
            b"-2",
            b"+1",
            b" 1",
            b"1_0",
            b"99999999999999999999",
            b"000000000000000000001",
            b"NOW",
            b"1,2",
        ] {
            assert_eq!(parse_start(bad), Err(Refusal::InvalidOffset), "{bad:?}");
        }
    }
}
