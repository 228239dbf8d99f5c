//! x86-64 with SSE4.2: four registers of 16 bytes. Also what the wider kernels
//! of x86-64 share.

use std::arch::x86_64::{
    __m128i, _mm_alignr_epi8, _mm_and_si128, _mm_castsi128_pd, _mm_clmulepi64_si128,
    _mm_cmpeq_epi8, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_loadl_epi64, _mm_loadu_si128,
    _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi8, _mm_slli_epi16, _mm_srli_epi16, _mm_storeh_pd, _mm_storel_epi64,
    _mm_sub_epi8, _mm_subs_epu8, _mm_unpacklo_epi64, _mm_xor_si128,
};

use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::vector::{Block, Vector};
use crate::json::scan::{Kernel, State, Stop, compress, pass};

/// The kernel, if this CPU can run it.
pub(super) fn kernel() -> Option<Kernel> {
    let able = is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("pclmulqdq");
    able.then_some(Kernel { name: "sse42", run })
}

/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[target_feature(enable = "sse4.2,ssse3,popcnt,pclmulqdq")]
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
        // every use of this macro is in a method that has one.
        unsafe { $call }
    }};
}

/// 16 bytes.
#[derive(Clone, Copy)]
struct Register(__m128i);

impl Vector for Register {
    /// Only bit 7 of each byte counts.
    type Mask = __m128i;
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the CPU and the bytes; the load needs no alignment.
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }

    #[inline(always)]
    fn gather<const N: usize>(masks: [__m128i; N]) -> u64 {
        masks.iter().rev().fold(0, |bits, mask| {
            let part = on_registers!(_mm_movemask_epi8(*mask)) as u32;
            (bits << 16) | u64::from(part)
        })
    }

    #[inline(always)]
    fn eq(self, byte: u8) -> __m128i {
        on_registers!(_mm_cmpeq_epi8(self.0, _mm_set1_epi8(byte as i8)))
    }

    #[inline(always)]
    fn below(self, bound: u8) -> __m128i {
        let most = on_registers!(_mm_set1_epi8((bound - 1) as i8));
        on_registers!(_mm_cmpeq_epi8(_mm_min_epu8(self.0, most), self.0))
    }

    #[inline(always)]
    fn bit5(self) -> __m128i {
        on_registers!(_mm_slli_epi16::<2>(self.0))
    }

    #[inline(always)]
    fn bit7(self) -> __m128i {
        self.0
    }

    #[inline(always)]
    fn nonzero(self) -> __m128i {
        // The complement of "zero".
        on_registers!({
            let zero = _mm_cmpeq_epi8(self.0, _mm_setzero_si128());
            _mm_xor_si128(zero, _mm_set1_epi8(-1))
        })
    }

    #[inline(always)]
    fn in_table(self, table: &[u8; 16]) -> __m128i {
        // The shuffle gives zero for bytes from 0x80, which they do not equal.
        on_registers!(_mm_cmpeq_epi8(
            _mm_shuffle_epi8(spread(table), self.0),
            self.0
        ))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(on_registers!(_mm_and_si128(self.0, other.0)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(on_registers!(_mm_or_si128(self.0, other.0)))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(on_registers!(_mm_xor_si128(self.0, other.0)))
    }

    #[inline(always)]
    fn and_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm_and_si128(
            self.0,
            _mm_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn or_byte(self, byte: u8) -> Self {
        Self(on_registers!(_mm_or_si128(
            self.0,
            _mm_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less(self, byte: u8) -> Self {
        Self(on_registers!(_mm_sub_epi8(
            self.0,
            _mm_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn less_or_zero(self, byte: u8) -> Self {
        Self(on_registers!(_mm_subs_epu8(
            self.0,
            _mm_set1_epi8(byte as i8)
        )))
    }

    #[inline(always)]
    fn low_lookup(self, table: &[u8; 16]) -> Self {
        let low = self.and_byte(0x0F);
        Self(on_registers!(_mm_shuffle_epi8(spread(table), low.0)))
    }

    #[inline(always)]
    fn high_lookup(self, table: &[u8; 16]) -> Self {
        let high = Self(on_registers!(_mm_srli_epi16::<4>(self.0))).and_byte(0x0F);
        Self(on_registers!(_mm_shuffle_epi8(spread(table), high.0)))
    }

    #[inline(always)]
    fn behind<const COUNT: usize>(self, before: Self) -> Self {
        Self(on_registers!(match COUNT {
            1 => _mm_alignr_epi8::<15>(self.0, before.0),
            2 => _mm_alignr_epi8::<14>(self.0, before.0),
            _ => _mm_alignr_epi8::<13>(self.0, before.0),
        }))
    }

    #[inline(always)]
    fn prefix_xor(self, bits: u64) -> u64 {
        on_registers!(prefix_xor(bits))
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
                pack(from, indices, to)
            })
        }
    }
}

/// `table` in a register.
///
/// # Safety
///
/// The CPU has the features that [`kernel`] looks for.
#[inline(always)]
unsafe fn spread(table: &[u8; 16]) -> __m128i {
    // SAFETY: the caller vouches for the CPU; 16 bytes are read, unaligned, from as many.
    unsafe { _mm_loadu_si128(table.as_ptr().cast()) }
}

/// Bit `i` of the result is the parity of bits 0 to `i` of `bits`: a product without carries.
///
/// # Safety
///
/// The CPU has PCLMULQDQ.
#[inline(always)]
pub(super) unsafe fn prefix_xor(bits: u64) -> u64 {
    // SAFETY: the caller vouches for the CPU; only registers are touched.
    unsafe {
        let product = _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), _mm_set1_epi8(-1));
        _mm_cvtsi128_si64(product) as u64
    }
}

/// Writes, from each half of `from`, the bytes at the indices given for it: to a place each.
///
/// # Safety
///
/// The CPU has SSSE3, and 8 bytes may be written at each place.
#[inline(always)]
pub(super) unsafe fn pack(from: &[u8; 16], indices: [&[u8; 8]; 2], to: [*mut [u8; 8]; 2]) {
    // SAFETY: the caller vouches for the CPU and for `to`; 16 bytes are read from `from` and 8
    // from each array of indices, and as many are written, none of it aligned.
    unsafe {
        let low = _mm_loadl_epi64(indices[0].as_ptr().cast());
        let high = _mm_loadl_epi64(indices[1].as_ptr().cast());
        let both = _mm_unpacklo_epi64(low, _mm_or_si128(high, _mm_set1_epi8(8)));
        let packed = _mm_shuffle_epi8(_mm_loadu_si128(from.as_ptr().cast()), both);
        _mm_storel_epi64(to[0].cast(), packed);
        _mm_storeh_pd(to[1].cast(), _mm_castsi128_pd(packed));
    }
}
