//! UTF-8 by three table lookups per byte pair.
//!
//! The method of Keiser and Lemire, "Validating UTF-8 in less than one
//! instruction per byte" (2020), as in simdutf8, here within the pass so that
//! the bytes are loaded once. Refuses overlong forms, surrogates and what is
//! above U+10FFFF (RFC 3629, section 4).

use crate::json::grammar::BLOCK_BYTES;
use crate::json::scan::vector::{Block, Vector};

/// The last three bytes before a block: a sequence that goes on in it starts in these.
pub(super) type Tail = [u8; 3];

/// The tail before the first block.
pub(super) const TAIL_NONE: Tail = [0; 3];

/// The tail behind `blocks`, which follow `tail`.
#[inline]
pub(super) fn tail_of(blocks: &[[u8; BLOCK_BYTES]], tail: Tail) -> Tail {
    match blocks.last() {
        Some([.., a, b, c]) => [*a, *b, *c],
        None => tail,
    }
}

/// Those bits of a block's mask that stand for its tail.
#[inline(always)]
pub(super) const fn last_bits(mask: u64) -> u64 {
    mask >> (BLOCK_BYTES - 3)
}

/// A block that ends in `tail`.
#[inline(always)]
pub(super) fn block_ending_in(tail: Tail) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    if let Some(last) = block.last_chunk_mut() {
        *last = tail;
    }
    block
}

/// Whether `block`, behind `before`, holds a byte that no UTF-8 has there. A sequence that ends
/// too early is a fault of the block with the byte behind it.
#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "below N, which is not 0")]
pub(super) fn fault<V: Vector, const N: usize>(block: Block<V, N>, before: Block<V, N>) -> bool {
    let mut bad = bad_bytes(block.0[0], before.0[N - 1]);
    let mut index = 1;
    while index < N {
        bad = bad.or(bad_bytes(block.0[index], block.0[index - 1]));
        index += 1;
    }
    V::gather([bad.nonzero()]) != 0
}

// Ways for a byte pair to be wrong.
/// A lead byte with no continuation behind it.
const TOO_SHORT: u8 = 1 << 0;
/// ASCII with a continuation behind it.
const TOO_LONG: u8 = 1 << 1;
/// Three bytes for less than U+0800.
const OVERLONG_3: u8 = 1 << 2;
/// Above U+10FFFF, by the second byte.
const TOO_LARGE: u8 = 1 << 3;
/// U+D800 to U+DFFF.
const SURROGATE: u8 = 1 << 4;
/// Two bytes for less than U+0080.
const OVERLONG_2: u8 = 1 << 5;
/// Above U+10FFFF with a second byte 8_, or four bytes for less than U+10000.
const TOO_LARGE_1000_OR_OVERLONG_4: u8 = 1 << 6;
/// Two continuations: right or wrong by what stands before them.
const TWO_CONTINUATIONS: u8 = 1 << 7;
/// Those that the low bits of the first byte do not decide.
const CARRY: u8 = TOO_SHORT | TOO_LONG | TWO_CONTINUATIONS;

/// By the high four bits of the first byte.
const FIRST_HIGH: [u8; 16] = [
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TOO_LONG,
    TWO_CONTINUATIONS,
    TWO_CONTINUATIONS,
    TWO_CONTINUATIONS,
    TWO_CONTINUATIONS,
    TOO_SHORT | OVERLONG_2,
    TOO_SHORT,
    TOO_SHORT | OVERLONG_3 | SURROGATE,
    TOO_SHORT | TOO_LARGE | TOO_LARGE_1000_OR_OVERLONG_4,
];

/// By the low four bits of the first byte.
const FIRST_LOW: [u8; 16] = {
    let beyond = CARRY | TOO_LARGE | TOO_LARGE_1000_OR_OVERLONG_4;
    let mut low = [beyond; 16];
    low[0x0] = CARRY | OVERLONG_3 | OVERLONG_2 | TOO_LARGE_1000_OR_OVERLONG_4;
    low[0x1] = CARRY | OVERLONG_2;
    low[0x2] = CARRY;
    low[0x3] = CARRY;
    low[0x4] = CARRY | TOO_LARGE;
    low[0xD] = beyond | SURROGATE;
    low
};

/// By the high four bits of the second byte.
const SECOND_HIGH: [u8; 16] = {
    let continuation = TOO_LONG | OVERLONG_2 | TWO_CONTINUATIONS;
    let mut high = [TOO_SHORT; 16];
    high[0x8] = continuation | OVERLONG_3 | TOO_LARGE_1000_OR_OVERLONG_4;
    high[0x9] = continuation | OVERLONG_3 | TOO_LARGE;
    high[0xA] = continuation | SURROGATE | TOO_LARGE;
    high[0xB] = continuation | SURROGATE | TOO_LARGE;
    high
};

/// Nonzero at bytes that are wrong behind those before them.
#[inline(always)]
fn bad_bytes<V: Vector>(vector: V, before: V) -> V {
    let first = vector.behind::<1>(before);
    let pairs = first
        .high_lookup(&FIRST_HIGH)
        .and(first.low_lookup(&FIRST_LOW))
        .and(vector.high_lookup(&SECOND_HIGH));
    // Bit 7 where the second byte before is E0 or above, or the third is F0 or above: there, and
    // only there, a continuation must be behind a continuation.
    let third = vector.behind::<2>(before).less_or_zero(0xE0 - 0x80);
    let fourth = vector.behind::<3>(before).less_or_zero(0xF0 - 0x80);
    third.or(fourth).and_byte(0x80).xor(pairs)
}

/// Where the first ill-formed sequence of `block` behind `tail` starts, relative to the block.
/// There is one.
#[cold]
#[expect(clippy::indexing_slicing, reason = "`start` is at most 3")]
pub(super) fn locate(tail: Tail, block: &[u8; BLOCK_BYTES]) -> isize {
    let mut bytes = [0; 3 + BLOCK_BYTES];
    bytes[..3].copy_from_slice(&tail);
    bytes[3..].copy_from_slice(block);
    // All before the block is well formed, save that its last sequence may not be whole: the tail
    // can only be misread as the end of a sequence that starts before it.
    let start = bytes
        .iter()
        .take(3)
        .take_while(|b| **b & 0xC0 == 0x80)
        .count();
    let valid = match std::str::from_utf8(&bytes[start..]) {
        Err(bad) => bad.valid_up_to(),
        Ok(text) => text.len(),
    };
    (start + valid) as isize - 3
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, locate};

    #[test]
    fn a_fault_is_placed_where_its_sequence_starts() {
        let mut block = [b' '; BLOCK_BYTES];
        assert_eq!(locate([b'a', b'b', 0xC3], &block), -1);
        block[10] = 0xFF;
        assert_eq!(locate([0x9F, 0x98, 0x80], &block), 10);
        block[0] = 0x80;
        assert_eq!(locate([0xF0, 0x9F, 0x98], &block), 10);
        assert_eq!(locate([0x80, 0xE2, 0x82], &block), 10);
        assert_eq!(locate([0x9F, 0x98, 0x80], &block), 0);
        block[0] = b' ';
        assert_eq!(locate([0x80, 0xE2, 0x82], &block), -2);
    }
}
