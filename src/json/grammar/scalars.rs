//! Numbers and the literals `false`, `null`, `true`: RFC 8259, sections 3
//! and 6.
//!
//! A scalar is a run of bytes outside of strings that are neither structural
//! nor whitespace. One that starts with a digit or a minus must be a number,
//! which masks decide; of any other the letters are compared. Numbers are only
//! ever looked at as text: `1e400` is as good as `1`.
#![forbid(unsafe_code)]

use super::{BLOCK_BYTES, Bytes, add};

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
    /// Behind a byte of a scalar.
    scalar: Behind,
    /// Behind a byte of a literal.
    literal: Behind,
    /// Rest of a literal, first byte lowest, and its length in bytes.
    literal_rest: (u64, u32),
    /// Behind the minus of a number.
    minus: Behind,
    /// Behind a zero that starts an integer part.
    zero: Behind,
    /// Behind a decimal point.
    point: Behind,
    /// Behind the E of an exponent.
    exponent: Behind,
    /// Behind the sign of an exponent.
    sign: Behind,
    /// Integer parts.
    integer: Run,
    /// Fractions.
    fraction: Run,
}

impl Scalars {
    pub const fn new() -> Self {
        Self {
            scalar: Behind::NOTHING,
            literal: Behind::NOTHING,
            literal_rest: (0, 0),
            minus: Behind::NOTHING,
            zero: Behind::NOTHING,
            point: Behind::NOTHING,
            exponent: Behind::NOTHING,
            sign: Behind::NOTHING,
            integer: Run::NONE,
            fraction: Run::NONE,
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
        if (scalar | self.scalar.last) == 0 {
            return (0, 0);
        }
        let starts = scalar & !self.scalar.step(scalar);
        let digits = bytes.digits() & scalar;
        let minus = bytes.eq(b'-') & scalar;

        let (literal, mut faults) = self.literals(block, starts & !(digits | minus));
        let number = scalar & !literal;
        faults |= number & self.literal.step(literal);
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
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "two bits, four literals; `here` is at most `length`, of at most 5; `starts` is not 0"
    )]
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
            let here = length.min((BLOCK_BYTES as u32).wrapping_sub(at));
            span |= low_bits(here).wrapping_shl(at);
            faults |= difference(found, expected, here).wrapping_shl(at);
            if here < length {
                self.literal_rest = (expected.wrapping_shr(8 * here), length - here);
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
        let others = number & !(digits | minus | points);
        // Exponents, or what is no part of numbers; neither is common.
        let exponents = if (others | self.exponent.last) != 0 {
            self.exponents(bytes, others, digits, minus)
        } else {
            Exponents::default()
        };
        let mut faults = exponents.faults;

        // A minus, or a sign of an exponent, is in its place and has a digit behind it.
        faults |= minus & !(starts | exponents.signs);
        let behind_minus = self.minus.step(minus & starts);
        let behind_point = self.point.step(points);
        let behind_sign = self.sign.step(exponents.signs);
        faults |= (behind_minus | behind_point | behind_sign) & !digits;

        // A zero in front is the whole integer part.
        let first = digits & (starts | behind_minus);
        faults |= self.zero.step(first & bytes.eq(b'0')) & digits;

        // A point only ends an integer part, an E only that or a fraction.
        let integer_ends = self.integer.ends(first, digits);
        let fraction_ends = self.fraction.ends(behind_point & digits, digits);
        faults |= points & !integer_ends;
        faults | (exponents.letters & !(integer_ends | fraction_ends))
    }

    /// Finds exponents among `others`, the bytes that are of no number without.
    #[inline(always)]
    fn exponents<B: Bytes>(&mut self, bytes: B, others: u64, digits: u64, minus: u64) -> Exponents {
        let letters = bytes.eq_folded(b'e') & others;
        let plus = bytes.eq(b'+') & others;
        let behind = self.exponent.step(letters);
        let signs = (plus | minus) & behind;
        Exponents {
            letters,
            signs,
            faults: (others & !(letters | signs)) | (behind & !(digits | signs)),
        }
    }
}

/// What a block holds of exponents.
#[derive(Clone, Copy, Debug, Default)]
struct Exponents {
    /// Each E or e.
    letters: u64,
    /// The signs behind them.
    signs: u64,
    faults: u64,
}

/// Moves bits up by one byte, across blocks.
#[derive(Clone, Copy, Debug)]
struct Behind {
    /// 1 if the last byte of the block before was set.
    last: u64,
}

impl Behind {
    const NOTHING: Self = Self { last: 0 };

    #[inline(always)]
    fn step(&mut self, bits: u64) -> u64 {
        let moved = (bits << 1) | self.last;
        self.last = bits >> 63;
        moved
    }
}

/// Follows runs of digits to their ends, across blocks.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// 1 if the last byte of the block before was of such a run.
    open: u64,
}

impl Run {
    const NONE: Self = Self { open: 0 };

    /// First bytes behind the runs of `digits` that start at `first` or go on from the last block.
    #[inline(always)]
    fn ends(&mut self, first: u64, digits: u64) -> u64 {
        // Added to the bottom of a run of ones, a bit comes out above its top.
        let (sum, carry) = add(digits, first | self.open);
        self.open = carry;
        sum & !digits
    }
}

/// The lowest `count` bits, of at most 63.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "a bit is set")]
const fn low_bits(count: u32) -> u64 {
    1_u64.wrapping_shl(count) - 1
}

/// The first of the lowest `length` bytes in which the two words differ, as a bit per byte.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "`length` is at most 8")]
const fn difference(found: u64, expected: u64, length: u32) -> u64 {
    let differing = (found ^ expected) & low_bits(8 * length);
    if differing == 0 {
        0
    } else {
        1_u64.wrapping_shl(differing.trailing_zeros() / 8)
    }
}

/// The eight bytes at `at`, the first lowest; zeros behind the block.
#[inline(always)]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`start` is at most `at`, and at least eight bytes before the end"
)]
fn word_at(block: &[u8; BLOCK_BYTES], at: u32) -> u64 {
    let start = at.min(BLOCK_BYTES as u32 - 8);
    let beyond = at - start;
    match block[start as usize..].first_chunk() {
        Some(word) => u64::from_le_bytes(*word).wrapping_shr(8 * beyond),
        None => 0,
    }
}
