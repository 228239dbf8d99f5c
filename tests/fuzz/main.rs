//! Seeded fuzzers for everything that reads what a stranger, or a disk, hands us.
//!
//! Each file below `targets` holds one function that judges one input against an oracle written
//! for it here, and in pieces against whole; that nothing panics is the least of it. Two engines
//! feed them: `engine` here, seeded and quick, under `cargo test`, and libFuzzer in `coverage`,
//! which says how it is run. What either finds becomes a seed of its target, and seeds go first.
//!
//! `THALWEG_FUZZ_S` sets the seconds of CPU for each target, `THALWEG_SEED` the seed. A failure names
//! the seed and shows the input; `THALWEG_FUZZ_INPUT=<file>` judges that file alone.

mod engine;
mod targets;

use engine::fuzz;

#[test]
fn head() {
    fuzz(&targets::HEAD);
}

#[test]
fn body() {
    fuzz(&targets::BODY);
}

#[test]
fn target() {
    fuzz(&targets::TARGET);
}

#[test]
fn json() {
    fuzz(&targets::JSON);
}

#[test]
fn journal() {
    fuzz(&targets::JOURNAL);
}

#[test]
fn checkpoint() {
    fuzz(&targets::CHECKPOINT);
}

#[test]
fn segment() {
    fuzz(&targets::SEGMENT);
}

#[test]
fn manifest() {
    fuzz(&targets::MANIFEST);
}

#[test]
fn multipart() {
    fuzz(&targets::MULTIPART);
}

#[test]
fn range() {
    fuzz(&targets::RANGE);
}

#[test]
fn fields() {
    fuzz(&targets::FIELDS);
}

#[test]
fn record() {
    fuzz(&targets::RECORD);
}

#[test]
fn sse() {
    fuzz(&targets::SSE);
}

#[test]
fn answer() {
    fuzz(&targets::ANSWER);
}
