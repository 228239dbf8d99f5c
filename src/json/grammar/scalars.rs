//! Numbers and the literals `false`, `null`, `true`: RFC 8259, sections 3
//! and 6.
//!
//! A scalar is a run of bytes outside of strings that are neither structural
//! nor whitespace. One that starts with a digit or a minus must be a number,
//! which masks decide; of any other the letters are compared. Numbers are only
//! ever looked at as text: `1e400` is as good as `1`.
#![forbid(unsafe_code)]

use super::{BLOCK_BYTES, Bytes};

/// The literals with their lengths, by bits 3 and 4 of the first letter.
const LITERALS: [(u64, u32); 4] = [
    (u64::from_le_bytes(*b"false\0\0\0"), 5),
    (u64::from_le_bytes(*b"null\0\0\0\0"), 4),
    (u64::from_le_bytes(*b"true\0\0\0\0"), 4),
    (0, 1), // no literal: differs from every byte with these bits
];

/// The state between two blocks. All zero unless the last byte was of a scalar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalars {
    /// 1 if the last byte was of a scalar.
    open: u64,
    /// 1 if the last byte ended a literal.
    literal_ended: u64,
    /// Rest of a literal, first byte lowest, and its length in bytes.
    literal_rest: (u64, u32),
    /// 1 if the last byte was the minus that starts a number.
    leading_minus: u64,
    /// 1 if the last byte was a zero that starts an integer part.
    leading_zero: u64,
    /// 1 if the last byte was a sign or a decimal point.
    digit_due: u64,
    /// 1 if the last byte was the E of an exponent.
    exponent: u64,
    /// 1 if the last byte was a digit of the integer part.
    in_integer: u64,
    /// 1 if the last byte was the decimal point behind an integer part.
    point: u64,
    /// 1 if the last byte was a digit of the fraction.
    in_fraction: u64,
}

impl Scalars {
    pub const fn new() -> Self {
        Self {
            open: 0,
            literal_ended: 0,
            literal_rest: (0, 0),
            leading_minus: 0,
            leading_zero: 0,
            digit_due: 0,
            exponent: 0,
            in_integer: 0,
            point: 0,
            in_fraction: 0,
        }
    }

    /// Judges the scalars of the next block. Returns their first bytes, and the bytes at fault.
    #[inline(always)]
    pub fn step<B: Bytes>(
        &mut self,
        bytes: B,
        block: &[u8; BLOCK_BYTES],
        scalar: u64,
    ) -> (u64, u64) {
        if (scalar | self.open) == 0 {
            return (0, 0);
        }
        let starts = scalar & !((scalar << 1) | self.open);
        self.open = scalar >> 63;
        let digits = bytes.digits() & scalar;
        let minus = bytes.eq(b'-') & scalar;

        let (literal, mut faults) = self.literals(block, starts & !(digits | minus));
        let number = scalar & !literal;
        faults |= number & ((literal << 1) | self.literal_ended);
        self.literal_ended = literal >> 63;
        faults |= self.numbers(
            bytes,
            number,
            starts & number,
            digits & number,
            minus & number,
        );
        (starts, faults)
    }

    /// The bytes of the literals that start at `starts` or go on from the last block, and those
    /// that differ from what they should be.
    #[inline(always)]
    fn literals(&mut self, block: &[u8; BLOCK_BYTES], mut starts: u64) -> (u64, u64) {
        let (mut span, mut faults) = (0, 0);
        if self.literal_rest.1 != 0 {
            let (expected, length) = self.literal_rest;
            self.literal_rest = (0, 0);
            span = low_bits(length);
            faults = difference(word_at(block, 0), expected, length);
        }
        while starts != 0 {
            let at = starts.trailing_zeros();
            starts &= starts - 1;
            let found = word_at(block, at);
            let (expected, length) = LITERALS[(found >> 3 & 3) as usize];
            let here = length.min(BLOCK_BYTES as u32 - at);
            span |= low_bits(here) << at;
            faults |= difference(found, expected, here) << at;
            if here < length {
                self.literal_rest = (expected >> (8 * here), length - here);
            }
        }
        (span, faults)
    }

    /// Faults in the numbers that `number` consists of, which start at `starts`.
    #[inline(always)]
    fn numbers<B: Bytes>(
        &mut self,
        bytes: B,
        number: u64,
        starts: u64,
        digits: u64,
        minus: u64,
    ) -> u64 {
        let points = bytes.eq(b'.') & number;
        let exponents = bytes.eq_folded(b'e') & number;
        let signs = minus | (bytes.eq(b'+') & number);
        let zeros = bytes.eq(b'0');

        // Each byte by what stands before it.
        let leading_minus = minus & starts;
        let behind_minus = carry(leading_minus, &mut self.leading_minus);
        let behind_exponent = carry(exponents, &mut self.exponent);
        let digit_due = carry(signs | points, &mut self.digit_due);
        let mut faults = number & !(digits | signs | points | exponents);
        faults |= signs & !(leading_minus | behind_exponent);
        faults |= digit_due & !digits;
        faults |= behind_exponent & !(digits | signs);

        // A zero in front is the whole integer part.
        let first = digits & (starts | behind_minus);
        faults |= carry(first & zeros, &mut self.leading_zero) & digits;

        // A point only ends an integer part, an E only that or a fraction.
        let integer_ends = run_ends(first, digits, &mut self.in_integer);
        faults |= points & !integer_ends;
        let fractions = carry(points & integer_ends, &mut self.point);
        let fraction_ends = run_ends(fractions, digits, &mut self.in_fraction);
        faults | (exponents & !(integer_ends | fraction_ends))
    }
}

/// `bits` moved up by one byte, across blocks.
#[inline(always)]
const fn carry(bits: u64, last: &mut u64) -> u64 {
    let moved = (bits << 1) | *last;
    *last = bits >> 63;
    moved
}

/// First bytes behind the runs of `digits` that start at `first` or go on from the last block.
#[inline(always)]
const fn run_ends(first: u64, digits: u64, last: &mut u64) -> u64 {
    // Added to the bottom of a run of ones, a bit comes out above its top.
    let (sum, overflow) = digits.overflowing_add(first | *last);
    *last = overflow as u64;
    sum & !digits
}

/// The lowest `count` bits, of at most 63.
#[inline(always)]
const fn low_bits(count: u32) -> u64 {
    (1 << count) - 1
}

/// The first of the lowest `length` bytes in which the two words differ, as a bit per byte.
#[inline(always)]
const fn difference(found: u64, expected: u64, length: u32) -> u64 {
    let differing = (found ^ expected) & low_bits(8 * length);
    if differing == 0 {
        0
    } else {
        1 << (differing.trailing_zeros() / 8)
    }
}

/// The eight bytes at `at`, the first lowest; zeros behind the block.
#[inline(always)]
fn word_at(block: &[u8; BLOCK_BYTES], at: u32) -> u64 {
    let start = (at as usize).min(BLOCK_BYTES - 8);
    let beyond = at as usize - start;
    match block[start..].first_chunk() {
        Some(word) => u64::from_le_bytes(*word) >> (8 * beyond),
        None => 0,
    }
}
