//! libFuzzer on one of the targets.
//!
//! From this directory, with a C++ compiler:
//!
//! ```sh
//! cargo build --release
//! export THALWEG_FUZZ_TARGET=json ASAN_OPTIONS=detect_leaks=0
//! mkdir -p /tmp/corpus/json
//! target/*/release/thalweg-fuzz -max_total_time=1800 -max_len=4096 /tmp/corpus/json
//! ```
//!
//! The target's seeds go into the corpus, its words into a dictionary beside it. An input that
//! fails is written to `crash-…`: make it a seed of its target, and mend what it found.

#![no_main]

#[path = "../../targets/mod.rs"]
mod targets;

use std::sync::OnceLock;

use targets::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("THALWEG_FUZZ_TARGET").expect("THALWEG_FUZZ_TARGET");
        let all = &targets::ALL;
        let target = all.iter().find(|target| target.name == name).expect("a target");
        TARGET.get_or_init(|| target);
        // libFuzzer has read its arguments by now, not yet the corpus.
        for corpus in std::env::args().skip(1).filter(|word| !word.starts_with('-')).take(1) {
            for (index, seed) in (target.seeds)().iter().enumerate() {
                let path = format!("{corpus}/seed-{index:03}");
                std::fs::write(path, seed).expect("a corpus directory");
            }
        }
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.check)(data);
        }
    }
);
