//! What the scanner needs of one instruction set, and 64 bytes in its registers.

#![expect(
    clippy::indexing_slicing,
    reason = "registers are counted up to N, which is not 0"
)]

use crate::json::grammar::{BLOCK_BYTES, Bytes};

/// One register of bytes.
///
/// A value of such a type exists only where the CPU has the instructions that
/// its methods use: [`load`](Self::load) is the one way to make one out of
/// nothing, and its caller vouches for that. So the other methods are safe.
/// All must be inlined into a function that has the features enabled.
pub(super) trait Vector: Copy {
    /// The outcome of a comparison of each byte.
    type Mask: Copy;
    /// Bytes per register; divides 64.
    const BYTES: usize;

    /// # Safety
    ///
    /// The CPU has this instruction set, and `BYTES` bytes may be read at `from`.
    unsafe fn load(from: *const u8) -> Self;
    /// One bit per byte of the registers of a block, the first byte lowest.
    fn gather<const N: usize>(masks: [Self::Mask; N]) -> u64;

    /// Bytes equal to `byte`.
    fn eq(self, byte: u8) -> Self::Mask;
    /// Bytes below `bound`, which is at least 1.
    fn below(self, bound: u8) -> Self::Mask;
    /// Bytes with bit 5 set.
    fn bit5(self) -> Self::Mask;
    /// Bytes with bit 7 set.
    fn bit7(self) -> Self::Mask;
    /// Bytes that are not zero.
    fn nonzero(self) -> Self::Mask;
    /// Bytes equal to the entry of `table` for their low four bits; false for bytes from 0x80,
    /// where `table` holds bytes below that.
    fn in_table(self, table: &[u8; 16]) -> Self::Mask;

    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// `and` with the same byte everywhere.
    fn and_byte(self, byte: u8) -> Self;
    /// `or` with the same byte everywhere.
    fn or_byte(self, byte: u8) -> Self;
    /// Less `byte`, wrapping.
    fn less(self, byte: u8) -> Self;
    /// Less `byte`, but no less than zero.
    fn less_or_zero(self, byte: u8) -> Self;
    /// The entries of `table` for the low four bits of each byte.
    fn low_lookup(self, table: &[u8; 16]) -> Self;
    /// The entries of `table` for the high four bits of each byte.
    fn high_lookup(self, table: &[u8; 16]) -> Self;
    /// The last `COUNT` (1 to 3) bytes of `before`, then all but the last `COUNT` of these.
    fn behind<const COUNT: usize>(self, before: Self) -> Self;

    /// Bit `i` of the result is the parity of bits 0 to `i` of `bits`.
    #[inline(always)]
    fn prefix_xor(self, mut bits: u64) -> u64 {
        bits ^= bits << 1;
        bits ^= bits << 2;
        bits ^= bits << 4;
        bits ^= bits << 8;
        bits ^= bits << 16;
        bits ^ (bits << 32)
    }

    /// Writes the bytes of `block` that `keep` names next to each other, as LF those that
    /// `line_feeds` names. Returns how many; what else is overwritten is unspecified.
    ///
    /// # Safety
    ///
    /// 64 bytes may be written at `to`, and `block` was loaded from `source`.
    unsafe fn compress<const N: usize>(
        block: Block<Self, N>,
        source: &[u8; BLOCK_BYTES],
        keep: u64,
        line_feeds: u64,
        to: *mut u8,
    ) -> usize;
}

/// 64 bytes in `N` registers.
#[derive(Clone, Copy)]
pub(super) struct Block<V, const N: usize>(pub [V; N]);

/// The mask of `$block` that `$of` gives of each of its registers. Written out as a loop, since
/// closures would not reliably be inlined, and with them the instructions.
macro_rules! mask {
    ($block:ident, $register:ident => $of:expr) => {{
        let $register = $block.0[0];
        let mut masks = [$of; N];
        let mut index = 1;
        while index < N {
            let $register = $block.0[index];
            masks[index] = $of;
            index += 1;
        }
        V::gather(masks)
    }};
}

impl<V: Vector, const N: usize> Block<V, N> {
    /// # Safety
    ///
    /// The CPU has the instruction set of `V`.
    #[inline(always)]
    pub unsafe fn load(from: &[u8; BLOCK_BYTES]) -> Self {
        const { assert!(N * V::BYTES == BLOCK_BYTES) };
        let from = from.as_ptr();
        // SAFETY: the caller vouches for the CPU; the first register is within the 64 bytes.
        let mut registers = [unsafe { V::load(from) }; N];
        let mut index = 1;
        while index < N {
            // SAFETY: as above; register `index < N` ends within the 64 bytes.
            registers[index] = unsafe { V::load(from.add(index * V::BYTES)) };
            index += 1;
        }
        Self(registers)
    }

    /// Bytes that are not ASCII.
    #[inline(always)]
    pub fn non_ascii(self) -> u64 {
        mask!(self, v => v.bit7())
    }
}

impl<V: Vector, const N: usize> Bytes for Block<V, N> {
    #[inline(always)]
    fn eq(self, byte: u8) -> u64 {
        mask!(self, v => v.eq(byte))
    }

    #[inline(always)]
    fn eq_folded(self, byte: u8) -> u64 {
        mask!(self, v => v.or_byte(0x20).eq(byte))
    }

    #[inline(always)]
    fn below(self, bound: u8) -> u64 {
        mask!(self, v => v.below(bound))
    }

    #[inline(always)]
    fn digits(self) -> u64 {
        mask!(self, v => v.less(b'0').below(10))
    }

    #[inline(always)]
    fn bit5(self) -> u64 {
        mask!(self, v => v.bit5())
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> u64 {
        mask!(self, v => v.in_table(table))
    }

    #[inline(always)]
    fn in_class(self, low: &[u8; 16], high: &[u8; 16]) -> u64 {
        mask!(self, v => v.low_lookup(low).and(v.high_lookup(high)).nonzero())
    }

    #[inline(always)]
    fn prefix_xor(self, bits: u64) -> u64 {
        self.0[0].prefix_xor(bits)
    }
}
