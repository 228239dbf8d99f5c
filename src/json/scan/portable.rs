//! Any CPU: eight bytes in a machine word. This is what Miri runs, and what the
//! others are compared with.

#![expect(
    clippy::indexing_slicing,
    reason = "four bits pick one of 16 bytes, three one of 8"
)]

use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{State, Stop, compress, pass};

/// Bit 7 of every byte.
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Every bit but those.
const LOW: u64 = !HIGH;

/// Runs over whole blocks.
///
/// # Safety
///
/// None needed; unsafe for the sake of the type that the others share.
pub(super) unsafe fn run(
    state: Option<&mut State>,
    parts: [&[[u8; BLOCK_BYTES]]; 2],
    out: &mut Vec<u8>,
) -> Result<End, Stop> {
    // SAFETY: no instructions beyond the target's own are used.
    unsafe { pass::run::<Word, 8>(state, parts, out) }
}

/// `byte` eight times.
#[inline(always)]
const fn every(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Eight bytes, the first lowest.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    #[inline(always)]
    fn map(self, of: impl Fn(u8) -> u8) -> Self {
        Self(u64::from_le_bytes(self.0.to_le_bytes().map(of)))
    }
}

impl Vector for Word {
    /// Only bit 7 of each byte counts.
    type Mask = u64;
    const BYTES: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for 8 bytes; an array of bytes needs no alignment.
        Self(u64::from_le_bytes(unsafe { from.cast::<[u8; 8]>().read() }))
    }

    #[inline(always)]
    fn gather<const N: usize>(masks: [u64; N]) -> u64 {
        masks.iter().rev().fold(0, |bits, mask| {
            // The product moves bit 8i to bit 56 + i; no two meet.
            let eight = ((mask & HIGH) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            (bits << 8) | eight
        })
    }

    #[inline(always)]
    fn eq(self, byte: u8) -> u64 {
        let differing = self.0 ^ every(byte);
        !(((differing & LOW) + LOW) | differing)
    }

    #[inline(always)]
    fn below(self, bound: u8) -> u64 {
        // Bit 7 of the sum is set where the low bits reach the bound, which is at most 0x80.
        debug_assert!((1..=0x80).contains(&bound));
        !(((self.0 & LOW) + every(0x80 - bound)) | self.0)
    }

    #[inline(always)]
    fn bit5(self) -> u64 {
        self.0 << 2
    }

    #[inline(always)]
    fn bit7(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn nonzero(self) -> u64 {
        ((self.0 & LOW) + LOW) | self.0
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> u64 {
        self.xor(self.low_lookup(table)).eq(0)
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    #[inline(always)]
    fn and_byte(self, byte: u8) -> Self {
        Self(self.0 & every(byte))
    }

    #[inline(always)]
    fn or_byte(self, byte: u8) -> Self {
        Self(self.0 | every(byte))
    }

    #[inline(always)]
    fn less(self, byte: u8) -> Self {
        self.map(|b| b.wrapping_sub(byte))
    }

    #[inline(always)]
    fn less_or_zero(self, byte: u8) -> Self {
        self.map(|b| b.saturating_sub(byte))
    }

    #[inline(always)]
    fn low_lookup(self, table: &[u8; 16]) -> Self {
        self.map(|b| table[usize::from(b & 0xF)])
    }

    #[inline(always)]
    fn high_lookup(self, table: &[u8; 16]) -> Self {
        self.map(|b| table[usize::from(b >> 4)])
    }

    #[inline(always)]
    fn behind<const COUNT: usize>(self, before: Self) -> Self {
        Self(self.0 << (8 * COUNT) | before.0 >> (64 - 8 * COUNT))
    }

    #[inline(always)]
    unsafe fn compress<const N: usize>(
        _block: Block<Self, N>,
        source: &[u8; BLOCK_BYTES],
        keep: u64,
        line_feeds: u64,
        to: *mut u8,
    ) -> usize {
        let pack = |from: &[u8; 16], indices: [&[u8; 8]; 2], to: [*mut [u8; 8]; 2]| {
            let (halves, _) = from.as_chunks::<8>();
            for (half, (indices, to)) in halves.iter().zip(indices.iter().zip(to)) {
                let packed = indices.map(|index| half[usize::from(index & 7)]);
                // SAFETY: `by_eights` gives places for 8 bytes within the caller's 64.
                unsafe { to.write(packed) };
            }
        };
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { compress::by_eights(source, keep, line_feeds, to, pack) }
    }
}
