//! Numbers and bytes in lower-case hexadecimal.

/// The two digits of `byte`.
#[must_use]
pub fn digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [byte >> 4, byte & 0xf].map(|nibble| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0'))
}

/// Appends `value` without leading zeros.
pub fn push(out: &mut Vec<u8>, value: u64) {
    let digits = value.to_be_bytes().into_iter().flat_map(digits);
    let mut significant = digits.skip_while(|digit| *digit == b'0').peekable();
    if significant.peek().is_none() {
        out.push(b'0');
    }
    out.extend(significant);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_leading_zeros() {
        for value in [0, 1, 0xf, 0x10, 0xa0b, u64::MAX >> 4, u64::MAX] {
            let mut text = Vec::new();
            push(&mut text, value);
            assert_eq!(text, format!("{value:x}").into_bytes());
        }
    }
}
