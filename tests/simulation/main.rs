//! The real storage code on a simulated disk, against plain models.
//!
//! - [`journal`]: the journal alone, against a list of records;
//! - [`shard`]: one whole shard (journal, segments, checkpoints, keeper,
//!   recovery), against streams as vectors of bytes.
//!
//! `THALWEG_HISTORIES` sets how many histories of each kind run,
//! `THALWEG_SEED` the first seed. A failure names its seed;
//! `THALWEG_SEED=<it> THALWEG_HISTORIES=1` runs that history alone.

mod journal;
mod shard;

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect("a number"))
}
