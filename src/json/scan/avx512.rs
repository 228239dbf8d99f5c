//! x86-64 with AVX-512 VBMI2: one register of 64 bytes, comparisons into mask
//! registers, and an instruction that packs kept bytes.
//!
//! It pays: a mask costs two instructions instead of six, and stripping three
//! instead of fifty (benches/json_text.rs). The CPUs that have VBMI2 no longer
//! lower their clock for it.

use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_alignr_epi8, _mm512_alignr_epi64, _mm512_and_si512,
    _mm512_broadcast_i32x4, _mm512_cmpeq_epi8_mask, _mm512_cmplt_epu8_mask, _mm512_loadu_si512,
    _mm512_mask_mov_epi8, _mm512_maskz_compress_epi8, _mm512_movepi8_mask, _mm512_or_si512,
    _mm512_set1_epi8, _mm512_shuffle_epi8, _mm512_srli_epi16, _mm512_storeu_si512, _mm512_sub_epi8,
    _mm512_subs_epu8, _mm512_test_epi8_mask, _mm512_xor_si512,
};

use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{Kernel, State, Stop, pass, sse42};

/// The kernel, if this CPU can run it.
pub(super) fn kernel() -> Option<Kernel> {
    let able = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("pclmulqdq");
    able.then_some(Kernel {
        name: "avx512",
        run,
    })
}

/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi1,bmi2,lzcnt,popcnt,pclmulqdq")]
unsafe fn run(
    state: Option<&mut State>,
    parts: [&[[u8; BLOCK_BYTES]]; 2],
    out: &mut Vec<u8>,
) -> Result<End, Stop> {
    // SAFETY: the caller vouches for the features, which are enabled here.
    unsafe { pass::run::<Register, 1>(state, parts, out) }
}

/// Calls instructions that touch nothing but registers.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: a `Register` exists only where the CPU has the features (`Vector::load`), and
        // every use of this macro is in a method that has one.
        unsafe { $call }
    }};
}

/// 64 bytes.
#[derive(Clone, Copy)]
struct Register(__m512i);

impl Vector for Register {
    type Mask = u64;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU and the bytes; the load needs no alignment.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    fn gather<const N: usize>(masks: [u64; N]) -> u64 {
        masks.iter().fold(0, |bits, mask| bits | mask)
    }

    #[inline(always)]
    fn eq(self, byte: u8) -> u64 {
        on_registers!(_mm512_cmpeq_epi8_mask(self.0, _mm512_set1_epi8(byte as i8)))
    }

    #[inline(always)]
    fn below(self, bound: u8) -> u64 {
        on_registers!(_mm512_cmplt_epu8_mask(
            self.0,
            _mm512_set1_epi8(bound as i8)
        ))
    }

    #[inline(always)]
    fn bit5(self) -> u64 {
        on_registers!(_mm512_test_epi8_mask(self.0, _mm512_set1_epi8(0x20)))
    }

    #[inline(always)]
    fn bit7(self) -> u64 {
        on_registers!(_mm512_movepi8_mask(self.0))
    }

    #[inline(always)]
    fn nonzero(self) -> u64 {
        on_registers!(_mm512_test_epi8_mask(self.0, self.0))
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> u64 {
        // The shuffle gives zero for bytes from 0x80, which they do not equal.
        on_registers!(_mm512_cmpeq_epi8_mask(
            _mm512_shuffle_epi8(spread(table), self.0),
            self.0
        ))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(on_registers!(_mm512_and_si512(self.0, other.0)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(on_registers!(_mm512_or_si512(self.0, other.0)))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(on_registers!(_mm512_xor_si512(self.0, other.0)))
    }

    #[inline(always)]
    fn and_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm512_and_si512(
            self.0,
            _mm512_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn or_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm512_or_si512(
            self.0,
            _mm512_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less(self, byte: u8) -> Self {
        Self(on_registers!(_mm512_sub_epi8(
            self.0,
            _mm512_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less_or_zero(self, byte: u8) -> Self {
        Self(on_registers!(_mm512_subs_epu8(
            self.0,
            _mm512_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn low_lookup(self, table: &[u8; 16]) -> Self {
        let low = self.and_byte(0x0F);
        Self(on_registers!(_mm512_shuffle_epi8(spread(table), low.0)))
    }

    #[inline(always)]
    fn high_lookup(self, table: &[u8; 16]) -> Self {
        let high = Self(on_registers!(_mm512_srli_epi16::<4>(self.0))).and_byte(0x0F);
        Self(on_registers!(_mm512_shuffle_epi8(spread(table), high.0)))
    }

    #[inline(always)]
    fn behind<const COUNT: usize>(self, before: Self) -> Self {
        Self(on_registers!({
            // The last quarter of `before`, then all but the last quarter of these.
            let across = _mm512_alignr_epi64::<6>(self.0, before.0);
            match COUNT {
                1 => _mm512_alignr_epi8::<15>(self.0, across),
                2 => _mm512_alignr_epi8::<14>(self.0, across),
                _ => _mm512_alignr_epi8::<13>(self.0, across),
            }
        }))
    }

    #[inline(always)]
    fn prefix_xor(self, bits: u64) -> u64 {
        on_registers!(sse42::prefix_xor(bits))
    }

    #[inline(always)]
    unsafe fn compress<const N: usize>(
        block: Block<Self, N>,
        _source: &[u8; BLOCK_BYTES],
        keep: u64,
        line_feeds: u64,
        to: *mut u8,
    ) -> usize {
        // SAFETY: the caller vouches for 64 bytes at `to`, unaligned, and has a `Block`, so the CPU
        // has VBMI2. Packed in a register first: straight to memory is slow on AMD's CPUs.
        unsafe {
            let replaced =
                _mm512_mask_mov_epi8(block.0[0].0, line_feeds, _mm512_set1_epi8(b'\n' as i8));
            _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi8(keep, replaced));
        }
        keep.count_ones() as usize
    }
}

/// `table` in all quarters of a register, as shuffles look up.
///
/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[inline(always)]
unsafe fn spread(table: &[u8; 16]) -> __m512i {
    // SAFETY: the caller vouches for the CPU; 16 bytes are read, unaligned, from as many.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) }
}
