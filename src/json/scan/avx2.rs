//! x86-64 with AVX2: two registers of 32 bytes.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_alignr_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_slli_epi16, _mm256_srli_epi16, _mm256_sub_epi8, _mm256_subs_epu8, _mm256_xor_si256,
};

use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{Kernel, State, Stop, compress, pass, sse42};

/// The kernel, if this CPU can run it.
pub(super) fn kernel() -> Option<Kernel> {
    let able = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("pclmulqdq");
    able.then_some(Kernel { name: "avx2", run })
}

/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,pclmulqdq")]
unsafe fn run(
    state: Option<&mut State>,
    parts: [&[[u8; BLOCK_BYTES]]; 2],
    out: &mut Vec<u8>,
) -> Result<End, Stop> {
    // SAFETY: the caller vouches for the features, which are enabled here.
    unsafe { pass::run::<Register, 2>(state, parts, out) }
}

/// Calls instructions that touch nothing but registers.
macro_rules! on_registers {
    ($call:expr) => {{
        // SAFETY: a `Register` exists only where the CPU has the features (`Vector::load`), and
        // every use of this macro is in a method that has one.
        unsafe { $call }
    }};
}

/// 32 bytes.
#[derive(Clone, Copy)]
struct Register(__m256i);

impl Vector for Register {
    /// Only bit 7 of each byte counts.
    type Mask = __m256i;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU and the bytes; the load needs no alignment.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    fn gather<const N: usize>(masks: [__m256i; N]) -> u64 {
        masks.iter().rev().fold(0, |bits, mask| {
            let part = on_registers!(_mm256_movemask_epi8(*mask)) as u32;
            (bits << 32) | u64::from(part)
        })
    }

    #[inline(always)]
    fn eq(self, byte: u8) -> __m256i {
        on_registers!(_mm256_cmpeq_epi8(self.0, _mm256_set1_epi8(byte as i8)))
    }

    #[inline(always)]
    fn below(self, bound: u8) -> __m256i {
        let most = on_registers!(_mm256_set1_epi8((bound - 1) as i8));
        on_registers!(_mm256_cmpeq_epi8(_mm256_min_epu8(self.0, most), self.0))
    }

    #[inline(always)]
    fn bit5(self) -> __m256i {
        on_registers!(_mm256_slli_epi16::<2>(self.0))
    }

    #[inline(always)]
    fn bit7(self) -> __m256i {
        self.0
    }

    #[inline(always)]
    fn nonzero(self) -> __m256i {
        // The complement of "zero".
        on_registers!({
            let zero = _mm256_cmpeq_epi8(self.0, _mm256_setzero_si256());
            _mm256_xor_si256(zero, _mm256_set1_epi8(-1))
        })
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> __m256i {
        // The shuffle gives zero for bytes from 0x80, which they do not equal.
        on_registers!(_mm256_cmpeq_epi8(
            _mm256_shuffle_epi8(spread(table), self.0),
            self.0
        ))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(on_registers!(_mm256_and_si256(self.0, other.0)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(on_registers!(_mm256_or_si256(self.0, other.0)))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(on_registers!(_mm256_xor_si256(self.0, other.0)))
    }

    #[inline(always)]
    fn and_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm256_and_si256(
            self.0,
            _mm256_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn or_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm256_or_si256(
            self.0,
            _mm256_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less(self, byte: u8) -> Self {
        Self(on_registers!(_mm256_sub_epi8(
            self.0,
            _mm256_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less_or_zero(self, byte: u8) -> Self {
        Self(on_registers!(_mm256_subs_epu8(
            self.0,
            _mm256_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn low_lookup(self, table: &[u8; 16]) -> Self {
        let low = self.and_byte(0x0F);
        Self(on_registers!(_mm256_shuffle_epi8(spread(table), low.0)))
    }

    #[inline(always)]
    fn high_lookup(self, table: &[u8; 16]) -> Self {
        let high = Self(on_registers!(_mm256_srli_epi16::<4>(self.0))).and_byte(0x0F);
        Self(on_registers!(_mm256_shuffle_epi8(spread(table), high.0)))
    }

    #[inline(always)]
    fn behind<const COUNT: usize>(self, before: Self) -> Self {
        Self(on_registers!({
            // The upper half of `before`, then the lower half of these.
            let across = _mm256_permute2x128_si256::<0x21>(before.0, self.0);
            match COUNT {
                1 => _mm256_alignr_epi8::<15>(self.0, across),
                2 => _mm256_alignr_epi8::<14>(self.0, across),
                _ => _mm256_alignr_epi8::<13>(self.0, across),
            }
        }))
    }

    #[inline(always)]
    fn prefix_xor(self, bits: u64) -> u64 {
        on_registers!(sse42::prefix_xor(bits))
    }

    #[inline(always)]
    unsafe fn compress<const N: usize>(
        _block: Block<Self, N>,
        source: &[u8; BLOCK_BYTES],
        keep: u64,
        line_feeds: u64,
        to: *mut u8,
    ) -> usize {
        // SAFETY: the caller vouches for 64 bytes, and has a `Block`, so the CPU has SSSE3.
        unsafe {
            compress::by_eights(source, keep, line_feeds, to, |from, indices, to| {
                sse42::pack(from, indices, to)
            })
        }
    }
}

/// `table` in both halves of a register, as shuffles look up.
///
/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[inline(always)]
unsafe fn spread(table: &[u8; 16]) -> __m256i {
    // SAFETY: the caller vouches for the CPU; 16 bytes are read, unaligned, from as many.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) }
}
