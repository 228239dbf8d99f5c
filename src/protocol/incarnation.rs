//! Incarnation tokens: which life of a URL a request means (extensions 2.4).
//!
//! A token is a canonical decimal from 1 to 2^53-1. [`Allocator`] guarantees
//! that no two streams of one data directory ever get the same one (so it is
//! never reused for a URL, and stream identity on disk needs nothing else),
//! and that a token says nothing of time or of other streams: numbers from
//! blocks that the data directory's manifest hands out once are sent through
//! a keyed permutation of the 53-bit integers.

use crate::{base::limits::JS_INTEGER_MAX, protocol::error::Refusal, protocol::offset::decimal};

/// Tokens in one block of an [`Allocator`]; 2^21 blocks fit in 53 bits.
pub const BLOCK_TOKENS: u64 = 1 << 32;
/// Blocks a data directory can hand out before it is used up.
pub const BLOCKS_MAX: u64 = 1 << 21;

/// One life of a stream's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Reads a `Stream-Incarnation` request header.
    ///
    /// # Errors
    /// [`Refusal::InvalidHeader`] for a value that no server could have issued: empty, not
    /// canonical decimal, zero, or past 2^53-1.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let canonical = text.first().is_some_and(|first| *first != b'0');
        decimal(text)
            .filter(|value| canonical && *value <= JS_INTEGER_MAX)
            .map(Self)
            .ok_or(Refusal::InvalidHeader(
                "Stream-Incarnation must be one token that an answer of this stream carried: a \
                 decimal from 1 to 9007199254740991 without leading zeros"
                    .into(),
            ))
    }
}

/// Hands out tokens from one block; each shard has its own.
#[derive(Debug)]
pub struct Allocator {
    permutation: Permutation,
    next: u64,
    end: u64,
}

impl Allocator {
    /// An allocator over block `block` (below [`BLOCKS_MAX`]), permuted with the data
    /// directory's `secret`.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the blocks together are the 53 bits of a token"
    )]
    pub fn new(secret: [u8; 16], block: u64) -> Self {
        let start = (block % BLOCKS_MAX) * BLOCK_TOKENS;
        Self {
            permutation: Permutation::new(secret),
            next: start,
            end: start + BLOCK_TOKENS,
        }
    }

    /// The next token, or `None` once the block is used up (2^32 streams in one run of one
    /// shard).
    pub fn allocate(&mut self) -> Option<Incarnation> {
        while self.next < self.end {
            let token = self.permutation.apply(self.next);
            self.next = self.next.saturating_add(1);
            if token != 0 {
                return Some(Incarnation(token));
            }
        }
        None
    }
}

/// A bijection on the integers below 2^53: four Feistel rounds over 26 and 27 bits, keyed by
/// BLAKE3. Unpredictability is wanted, not secrecy.
#[derive(Debug)]
struct Permutation {
    key: [u8; 32],
}

const LOW_BITS: u32 = 26;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
const HIGH_MASK: u64 = (1 << 27) - 1;

impl Permutation {
    fn new(secret: [u8; 16]) -> Self {
        Self {
            key: blake3::derive_key("thalweg 2026-11-30 incarnation permutation", &secret),
        }
    }

    fn apply(&self, value: u64) -> u64 {
        let mut low = value & LOW_MASK;
        let mut high = (value >> LOW_BITS) & HIGH_MASK;
        for round in 0..4u8 {
            if round % 2 == 0 {
                low ^= self.round(round, high) & LOW_MASK;
            } else {
                high ^= self.round(round, low) & HIGH_MASK;
            }
        }
        (high << LOW_BITS) | low
    }

    fn round(&self, round: u8, half: u64) -> u64 {
        let mut input = [0u8; 9];
        input[..8].copy_from_slice(&half.to_le_bytes());
        input[8] = round;
        let hash = blake3::keyed_hash(&self.key, &input);
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn malformed_tokens_are_refused() {
        assert_eq!(Incarnation::parse(b"1"), Ok(Incarnation(1)));
        assert_eq!(
            Incarnation::parse(b"9007199254740991"),
            Ok(Incarnation(JS_INTEGER_MAX))
        );
        for bad in [
            &b""[..],
            b"0",
            b"01",
            b"abc",
            b"-1",
            b"+1",
            b"1, 2",
            b"9007199254740992",
            b"18446744073709551616",
        ] {
            assert!(Incarnation::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tokens_are_distinct_across_blocks_and_in_range() {
        let mut seen = HashSet::new();
        for block in [0, 1, 2, BLOCKS_MAX - 1] {
            let mut allocator = Allocator::new([7; 16], block);
            for _ in 0..5_000 {
                let token = allocator.allocate().expect("block is not used up").0;
                assert!((1..=JS_INTEGER_MAX).contains(&token));
                assert!(seen.insert(token));
            }
        }
    }

    #[test]
    fn tokens_depend_on_the_secret_and_do_not_count_up() {
        let mut one = Allocator::new([1; 16], 5);
        let mut other = Allocator::new([2; 16], 5);
        let first = one.allocate().unwrap().0;
        assert_ne!(first, other.allocate().unwrap().0);
        let second = one.allocate().unwrap().0;
        assert!(first.abs_diff(second) > 1);
    }
}
