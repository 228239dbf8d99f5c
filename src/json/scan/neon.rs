//! aarch64 with NEON: four registers of 16 bytes.

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vceqq_u8, vcltq_u8, vdupq_n_u8, veorq_u8, vextq_u8, vgetq_lane_u64,
    vld1_u8, vld1q_u8, vorrq_u8, vpaddq_u8, vqsubq_u8, vqtbl1_u8, vqtbl1q_u8, vreinterpretq_u64_u8,
    vshrq_n_u8, vst1_u8, vsubq_u8, vtstq_u8,
};
use std::arch::is_aarch64_feature_detected;

use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{Kernel, State, Stop, compress, pass};

/// The kernel, if this CPU can run it.
pub(super) fn kernel() -> Option<Kernel> {
    is_aarch64_feature_detected!("neon").then_some(Kernel { name: "neon", run })
}

/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[target_feature(enable = "neon")]
unsafe fn run(
    state: Option<&mut State>,
    parts: [&[[u8; BLOCK_BYTES]]; 2],
    out: &mut Vec<u8>,
) -> Result<End, Stop> {
    // SAFETY: the caller vouches for the features, which are enabled here.
    unsafe { pass::run::<Register, 4>(state, parts, out) }
}

/// Calls instructions that touch nothing but registers.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: a `Register` exists only where the CPU has the features (`Vector::load`), and
        // every use of this macro is in a method that has one or masks made of one.
        unsafe { $call }
    }};
}

/// One bit for each of eight bytes, twice.
const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// 16 bytes.
#[derive(Clone, Copy)]
struct Register(uint8x16_t);

impl Vector for Register {
    /// All ones or zero per byte.
    type Mask = uint8x16_t;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU and the bytes; the load needs no alignment.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    fn gather<const N: usize>(masks: [uint8x16_t; N]) -> u64 {
        on_registers!({
            // There is no movemask. Each byte keeps the bit of its place in eight; adding
            // neighbours three times over brings eight bytes into one.
            let bits = spread(&BITS);
            let zero = vdupq_n_u8(0);
            let part = |index: usize| match masks.get(index) {
                Some(mask) => vandq_u8(*mask, bits),
                None => zero,
            };
            let low = vpaddq_u8(part(0), part(1));
            let high = vpaddq_u8(part(2), part(3));
            let sums = vpaddq_u8(vpaddq_u8(low, high), zero);
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(sums))
        })
    }

    #[inline(always)]
    fn eq(self, byte: u8) -> uint8x16_t {
        on_registers!(vceqq_u8(self.0, vdupq_n_u8(byte)))
    }

    #[inline(always)]
    fn below(self, bound: u8) -> uint8x16_t {
        on_registers!(vcltq_u8(self.0, vdupq_n_u8(bound)))
    }

    #[inline(always)]
    fn bit5(self) -> uint8x16_t {
        on_registers!(vtstq_u8(self.0, vdupq_n_u8(0x20)))
    }

    #[inline(always)]
    fn bit7(self) -> uint8x16_t {
        on_registers!(vtstq_u8(self.0, vdupq_n_u8(0x80)))
    }

    #[inline(always)]
    fn nonzero(self) -> uint8x16_t {
        on_registers!(vtstq_u8(self.0, self.0))
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> uint8x16_t {
        on_registers!(vceqq_u8(self.low_lookup(table).0, self.0))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(on_registers!(vandq_u8(self.0, other.0)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(on_registers!(vorrq_u8(self.0, other.0)))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(on_registers!(veorq_u8(self.0, other.0)))
    }

    #[inline(always)]
    fn and_byte(self, byte: u8) -> Self {
        Self(on_registers!(vandq_u8(self.0, vdupq_n_u8(byte))))
    }

    #[inline(always)]
    fn or_byte(self, byte: u8) -> Self {
        Self(on_registers!(vorrq_u8(self.0, vdupq_n_u8(byte))))
    }

    #[inline(always)]
    fn less(self, byte: u8) -> Self {
        Self(on_registers!(vsubq_u8(self.0, vdupq_n_u8(byte))))
    }

    #[inline(always)]
    fn less_or_zero(self, byte: u8) -> Self {
        Self(on_registers!(vqsubq_u8(self.0, vdupq_n_u8(byte))))
    }

    #[inline(always)]
    fn low_lookup(self, table: &[u8; 16]) -> Self {
        let low = self.and_byte(0x0F);
        Self(on_registers!(vqtbl1q_u8(spread(table), low.0)))
    }

    #[inline(always)]
    fn high_lookup(self, table: &[u8; 16]) -> Self {
        Self(on_registers!({
            let high = vshrq_n_u8::<4>(self.0);
            vqtbl1q_u8(spread(table), high)
        }))
    }

    #[inline(always)]
    fn behind<const COUNT: usize>(self, before: Self) -> Self {
        Self(on_registers!(match COUNT {
            1 => vextq_u8::<15>(before.0, self.0),
            2 => vextq_u8::<14>(before.0, self.0),
            _ => vextq_u8::<13>(before.0, self.0),
        }))
    }

    #[inline(always)]
    unsafe fn compress<const N: usize>(
        _block: Block<Self, N>,
        source: &[u8; BLOCK_BYTES],
        keep: u64,
        line_feeds: u64,
        to: *mut u8,
    ) -> usize {
        // SAFETY: the caller vouches for 64 bytes, and has a `Block`, so the CPU has NEON.
        unsafe {
            compress::by_eights(source, keep, line_feeds, to, |from, indices, to| {
                pack(from, indices, to);
            })
        }
    }
}

/// `table` in a register.
///
/// # Safety
///
/// The CPU has NEON.
#[inline(always)]
unsafe fn spread(table: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the caller vouches for the CPU; 16 bytes are read from as many.
    unsafe { vld1q_u8(table.as_ptr()) }
}

/// Writes, from each half of `from`, the bytes at the indices given for it: to a place each.
///
/// # Safety
///
/// The CPU has NEON, and 8 bytes may be written at each place.
#[inline(always)]
unsafe fn pack(from: &[u8; 16], indices: [&[u8; 8]; 2], to: [*mut [u8; 8]; 2]) {
    // SAFETY: the caller vouches for the CPU and for `to`; 16 bytes are read from `from` and 8
    // from each array of indices, and as many are written, none of it aligned.
    unsafe {
        let bytes = vld1q_u8(from.as_ptr());
        let low = vqtbl1_u8(bytes, vld1_u8(indices[0].as_ptr()));
        let upper = vextq_u8::<8>(bytes, bytes);
        let high = vqtbl1_u8(upper, vld1_u8(indices[1].as_ptr()));
        vst1_u8(to[0].cast(), low);
        vst1_u8(to[1].cast(), high);
    }
}
