//! Randomness as a parameter.
//!
//! Who needs chance is handed an [`Rng`]; nobody reaches for a global one, so
//! a test that passes [`Rng::from_seed`] sees the same draws on every run.
//!
//! Two strengths, never to be mixed up:
//! - [`Rng::next_u64`], [`Rng::below`] and [`Rng::bytes`] are fast (wyrand) and
//!   **guessable** by whoever sees some output: jitter, sampling, hash seeds.
//! - [`Rng::unguessable`] is for what a stranger must not guess: part ids,
//!   multipart boundaries, incarnations. On an `Rng` from the operating system
//!   its bytes come from the kernel, each handed out once and erased here.

use std::fmt;

/// Kernel entropy fetched at a time, in bytes: one system call serves 32 ids of 16 bytes.
const POOL_BYTES: usize = 512;

/// A generator of one owner; cheap to create, not shared between threads.
#[derive(Debug)]
pub struct Rng {
    fast: fastrand::Rng,
    secret: Secret,
}

/// Where unguessable bytes come from.
enum Secret {
    /// From the fast generator: repeatable, for tests and simulation only.
    Seeded,
    /// From the kernel, through a buffer of which `used` bytes are spent.
    Kernel {
        pool: Box<[u8; POOL_BYTES]>,
        used: usize,
    },
}

impl Rng {
    /// A generator that draws the same on every run, unguessable bytes included: for tests,
    /// simulation and load generation, never for serving.
    pub fn from_seed(seed: u64) -> Self {
        Self {
            fast: fastrand::Rng::with_seed(seed),
            secret: Secret::Seeded,
        }
    }

    /// A generator seeded by the kernel, whose unguessable bytes are the kernel's.
    ///
    /// # Errors
    /// When `getrandom(2)` fails: a seccomp filter forbids it, or the kernel predates it.
    pub fn from_os() -> Result<Self, getrandom::Error> {
        let mut pool = Box::new([0; POOL_BYTES]);
        getrandom::fill(&mut pool[..])?;
        let mut rng = Self {
            fast: fastrand::Rng::with_seed(0),
            secret: Secret::Kernel { pool, used: 0 },
        };
        let seed = u64::from_le_bytes(rng.unguessable());
        rng.fast.seed(seed);
        Ok(rng)
    }

    /// 64 guessable bits.
    pub fn next_u64(&mut self) -> u64 {
        self.fast.u64(..)
    }

    /// A guessable number below `bound`, each equally likely.
    ///
    /// # Panics
    /// When `bound` is 0: there is no such number.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "Rng::below(0): no number is below zero");
        self.fast.u64(..bound)
    }

    /// `N` guessable bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        self.fast.fill(&mut out);
        out
    }

    /// `N` bytes that nobody outside can predict or has seen before (on an `Rng`
    /// [from the operating system](Rng::from_os)); at most 64 a call.
    ///
    /// # Panics
    /// When the kernel, which gave entropy at [`Rng::from_os`], refuses it now: handing out an
    /// id that can be guessed would be worse.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "`used` stays within the pool; an id that can be guessed would be worse than no server"
    )]
    pub fn unguessable<const N: usize>(&mut self) -> [u8; N] {
        const { assert!(N <= 64) };
        match &mut self.secret {
            Secret::Seeded => self.bytes(),
            Secret::Kernel { pool, used } => {
                if POOL_BYTES - *used < N {
                    getrandom::fill(&mut pool[..]).expect("the kernel gave entropy at start");
                    *used = 0;
                }
                let mut out = [0; N];
                let spent = &mut pool[*used..*used + N];
                out.copy_from_slice(spent);
                spent.fill(0);
                *used += N;
                out
            }
        }
    }
}

/// Says which kind it is; never shows the pool.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seeded => "Seeded",
            Self::Kernel { .. } => "Kernel",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_repeats_everything() {
        let draw = |seed| {
            let mut rng = Rng::from_seed(seed);
            (
                rng.next_u64(),
                rng.below(1000),
                rng.bytes::<7>(),
                rng.unguessable::<16>(),
            )
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut rng = Rng::from_seed(1);
        assert!((0..100).all(|_| rng.below(1) == 0));
        let seen: HashSet<u64> = (0..1000).map(|_| rng.below(6)).collect();
        assert_eq!(seen, HashSet::from([0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn kernel_bytes_are_used_once_and_erased() {
        let mut rng = Rng::from_os().unwrap();
        // More than one pool, in a size that does not divide it: refills must lose no freshness.
        let ids: HashSet<[u8; 48]> = (0..100).map(|_| rng.unguessable()).collect();
        assert_eq!(ids.len(), 100);
        let Secret::Kernel { pool, used } = &rng.secret else {
            panic!("from_os is not seeded")
        };
        assert!(
            pool[..*used].iter().all(|&b| b == 0),
            "spent bytes stayed in memory"
        );
    }

    #[test]
    fn debug_does_not_leak_the_pool() {
        let shown = format!("{:?}", Rng::from_os().unwrap().secret);
        assert_eq!(shown, "Kernel");
    }
}
