//! What is fuzzed. Nothing here knows which engine feeds it.

mod answer;
mod body;
mod checkpoint;
mod decay;
mod fields;
mod head;
mod journal;
mod json;
mod manifest;
#[path = "../../common/multipart.rs"]
#[allow(dead_code, reason = "one reader for the black-box tests and here")]
mod mixed;
mod multipart;
mod pipeline;
mod range;
mod record;
mod segment;
mod sse;
mod target;

use std::hash::{DefaultHasher, Hash, Hasher};

use thalweg::base::rng::Rng;

pub use answer::ANSWER;
pub use body::BODY;
pub use checkpoint::CHECKPOINT;
pub use fields::FIELDS;
pub use head::HEAD;
pub use journal::JOURNAL;
pub use json::JSON;
pub use manifest::MANIFEST;
pub use multipart::MULTIPART;
pub use range::RANGE;
pub use record::RECORD;
pub use segment::SEGMENT;
pub use sse::SSE;
pub use target::TARGET;

/// Something that reads bytes, and what must hold whatever they are.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Judges one input: panics where something is wrong, else says of what kind it is.
    pub check: fn(&[u8]) -> u64,
    /// Inputs to begin with, and those that once failed.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the grammar.
    pub words: &'static [&'static [u8]],
}

/// Every target.
#[allow(dead_code, reason = "for the engine that picks one by name")]
pub const ALL: [&Target; 14] = [
    &HEAD,
    &BODY,
    &TARGET,
    &FIELDS,
    &JSON,
    &JOURNAL,
    &CHECKPOINT,
    &SEGMENT,
    &MANIFEST,
    &RECORD,
    &MULTIPART,
    &RANGE,
    &SSE,
    &ANSWER,
];

/// A number for a kind of input.
fn kind(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Chance that depends on the input alone, so that an input alone repeats a failure.
fn chance(data: &[u8]) -> Rng {
    Rng::from_seed(kind(data))
}

/// Up to seven places to cut `length` bytes, in order, ending with `length`.
fn cuts(rng: &mut Rng, length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = match rng.below(8) {
        0 => (0..length).collect(),
        _ => (0..rng.below(7))
            .map(|_| rng.below(length as u64 + 1) as usize)
            .collect(),
    };
    cuts.push(length);
    cuts.sort_unstable();
    cuts
}

/// A logarithm, for kinds that a size belongs to.
fn magnitude(count: usize) -> u32 {
    usize::BITS - count.leading_zeros()
}

fn to_vecs(texts: &[&[u8]]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.to_vec()).collect()
}
