//! One pass over a body with the widest vectors this CPU has.
//!
//! The algorithm is written once: [`pass`] drives it, [`utf8`] checks the
//! encoding and [`compress`] packs what is kept; all of it is generic over
//! [`vector::Vector`], which one thin file per instruction set implements. Each
//! instance is compiled with its instruction set enabled and everything
//! inlined. Which one runs is decided once per process, from what the CPU
//! reports:
//!
//! | kernel | registers | CPUs |
//! |---|---|---|
//! | `avx512` | one of 64 bytes, mask registers, byte compress | x86-64 with VBMI2 (Ice Lake, Zen 4) |
//! | `avx2` | two of 32 bytes | x86-64 since 2013 |
//! | `sse42` | four of 16 bytes | x86-64 since 2010 |
//! | `neon` | four of 16 bytes | aarch64 |
//! | `portable` | eight words of 8 bytes | all others, and Miri |
//!
//! The only `unsafe` code of the JSON layer is here. It rests on two facts: a
//! kernel is handed out only after its CPU features were seen, and every pass
//! reserves room for what it may write before it starts.

mod compress;
mod pass;
mod portable;
mod utf8;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod sse42;

use std::sync::OnceLock;

use crate::json::grammar::{BLOCK_BYTES, End, Fault, Grammar};

/// The state between two passes over pieces of one body.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    grammar: Grammar,
    /// The last bytes seen, which a UTF-8 sequence may start in.
    tail: utf8::Tail,
}

impl State {
    /// The state at the start of a body.
    pub const fn new() -> Self {
        Self {
            grammar: Grammar::new(),
            tail: utf8::TAIL_NONE,
        }
    }
}

/// Why a pass stopped. Offsets count from the start of the pass's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// A byte that cannot stand at this offset.
    Syntax(usize, &'static str),
    /// Nested too deeply by the bracket at this offset.
    Depth(usize),
    /// A sequence that is not UTF-8 starts here: negative, in the bytes of the pass before.
    Utf8(isize),
}

impl Stop {
    fn grammar(fault: Fault, block_at: usize) -> Self {
        match fault {
            Fault::Syntax(at, what) => Self::Syntax(block_at + at as usize, what),
            Fault::Depth(at) => Self::Depth(block_at + at as usize),
        }
    }
}

/// Runs over whole blocks: appends what they add to the stored text.
type Run =
    unsafe fn(Option<&mut State>, [&[[u8; BLOCK_BYTES]]; 2], &mut Vec<u8>) -> Result<End, Stop>;

/// The scanner for one instruction set, which this CPU is known to have.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    name: &'static str,
    run: Run,
}

impl Kernel {
    /// The fastest one for this CPU; the same for the life of the process.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next().unwrap_or(Self::PORTABLE))
    }

    /// All that this CPU can run, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [avx512::kernel(), avx2::kernel(), sse42::kernel()];
        #[cfg(target_arch = "aarch64")]
        let wide = [neon::kernel()];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let wide = [];
        wide.into_iter().flatten().chain([Self::PORTABLE])
    }

    const PORTABLE: Self = Self {
        name: "portable",
        run: portable::run,
    };

    /// The instruction set's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Judges the blocks of both parts and appends what they add to the stored text to `out`, which
    /// holds some of it after a stop. Returns where the body would stand if it ended there.
    ///
    /// Goes on from `state` and leaves the new one there; without one the blocks are a whole body,
    /// and for a short one the time it takes to load and keep a state is saved. Two parts, since to
    /// enter a pass costs about as much as a block: what waited and what came go together.
    ///
    /// Reserves the size of the blocks and one more.
    #[inline]
    pub(super) fn run(
        &self,
        state: Option<&mut State>,
        parts: [&[[u8; BLOCK_BYTES]]; 2],
        out: &mut Vec<u8>,
    ) -> Result<End, Stop> {
        // SAFETY: kernels are made by `available` alone, which the functions that test the CPU
        // for the features of `run` feed.
        unsafe { (self.run)(state, parts, out) }
    }
}
