//! One whole shard on a simulated disk, against a plain model.
//!
//! A history is a series of lives: recover, work, meet faults, crash. While a
//! shard lives, every read returns the bytes of the durable model, whatever
//! the keeper moves meanwhile. After every crash, whatever its moment
//! (recovery included) and its kind,
//! - what is there are the first records that were staged, as many as were
//!   acknowledged or more, and nothing else: bytes, closure, retained offset,
//!   producers, snapshots, parts, forks, fences, tokens;
//! - what an earlier recovery showed is still there;
//! - recovery refuses nothing, and leaves no segment that nobody names.
//!
//! In quiet moments segments take at most 1.3 times what is live in them, and
//! a constant for each.

mod copy;
mod life;
mod model;
mod script;

use super::setting;
use life::{History, Totals};

/// Histories per run, unless `THALWEG_HISTORIES` says otherwise.
const HISTORIES: u64 = 250;

#[test]
fn a_shard_keeps_what_it_acknowledged() {
    let first = setting("THALWEG_SEED", 1);
    let mut totals = Totals::default();
    for seed in first..first + setting("THALWEG_HISTORIES", HISTORIES) {
        let run = std::panic::catch_unwind(|| History::new(seed).run());
        match run {
            Ok(history) => totals.add(&history),
            Err(cause) => {
                eprintln!("THALWEG_SEED={seed} THALWEG_HISTORIES=1 repeats this (a shard)");
                std::panic::resume_unwind(cause);
            }
        }
    }
    println!("{totals:?}");
    // The simulation is worth little if it does not get to the rare places.
    if totals.histories >= HISTORIES {
        assert!(totals.lives > 3 * totals.histories, "{totals:?}");
        assert!(totals.halted_recoveries > 50, "{totals:?}");
        assert!(totals.failed_recoveries > 10, "{totals:?}");
        assert!(totals.latched > 10, "{totals:?}");
        assert!(totals.refused_for_space > 100, "{totals:?}");
        assert!(totals.refused_for_memory > 50, "{totals:?}");
        assert!(totals.cut_unacknowledged > 100, "{totals:?}");
        assert!(totals.kept_unacknowledged > 20, "{totals:?}");
        // What is read from blocks has left memory.
        assert!(totals.cold_reads > 1_000, "{totals:?}");
        assert!(totals.inherited_reads > 100, "{totals:?}");
        assert!(totals.cold_decisions > 100, "{totals:?}");
        assert!(totals.cold_snapshots > 100, "{totals:?}");
        assert!(totals.failed_reads > 0, "{totals:?}");
        assert!(totals.commits > 20, "{totals:?}");
        assert!(totals.retains > 50, "{totals:?}");
        assert!(totals.forks > 50, "{totals:?}");
        assert!(totals.repeats > 100, "{totals:?}");
        assert!(totals.expiries > 10, "{totals:?}");
        assert!(totals.purges > 50, "{totals:?}");
        assert!(totals.checkpoints > 1_000, "{totals:?}");
        assert!(totals.compacted_bytes > 1 << 20, "{totals:?}");
        assert!(totals.punched_bytes > 1 << 19, "{totals:?}");
        assert!(totals.quiet_moments > 50, "{totals:?}");
        assert!(totals.recovered_blocks > 1_000, "{totals:?}");
        assert!(totals.read_only > 50, "{totals:?}");
        assert!(totals.copies > 100, "{totals:?}");
        assert!(totals.broken_copies > 0, "{totals:?}");
    }
}

#[test]
fn a_seed_repeats_its_shards_history() {
    for seed in 1..4 {
        let (one, two) = (History::new(seed).run(), History::new(seed).run());
        assert_eq!(one, two, "seed {seed}");
    }
}
