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

mod life;
mod model;
mod script;

use super::setting;
use life::{History, Totals};

/// Histories per run, unless `THALWEG_HISTORIES` says otherwise.
const HISTORIES: u64 = 400;

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
}

#[test]
fn a_seed_repeats_its_shards_history() {
    for seed in 1..4 {
        let (one, two) = (History::new(seed).run(), History::new(seed).run());
        assert_eq!(one, two, "seed {seed}");
    }
}
