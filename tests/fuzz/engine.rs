//! Mutates a corpus from a seed. An input of a kind not met before joins the corpus: each target
//! says what its inputs turned out to be, which guides the search where no coverage is measured.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use thalweg::base::rng::Rng;

use crate::targets::Target;

/// Seconds of its thread's CPU for each target, unless `THALWEG_FUZZ_S` says otherwise: enough for
/// a smoke.
const SECONDS: u64 = 2;
/// Inputs are cut to this, in bytes.
const INPUT_BYTES_MAX: usize = 4096;
/// Kinds of input that are kept, beside the seeds.
const CORPUS_MAX: usize = 4096;
/// So often the CPU spent is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect("a number"))
}

/// CPU that this thread has had.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux /proc");
    let first = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(first.expect("nanoseconds"))
}

/// Judges the seeds, then mutations of them until the CPU is spent.
pub fn fuzz(target: &Target) {
    if let Some(path) = std::env::var_os("THALWEG_FUZZ_INPUT") {
        (target.check)(&std::fs::read(path).expect("an input file"));
        return;
    }
    let seed = setting("THALWEG_SEED", 1);
    let seconds = setting("THALWEG_FUZZ_S", SECONDS);
    println!("{}: seed {seed}, {seconds} s", target.name);
    let mut rng = Rng::from_seed(seed);
    let mut corpus = (target.seeds)();
    let mut kinds: HashSet<u64> = corpus
        .iter()
        .map(|input| judge(target, seed, input))
        .collect();
    let mut executions = corpus.len() as u64;
    let end = cpu() + Duration::from_secs(seconds);
    let mut looked = Instant::now();
    loop {
        if looked.elapsed() >= LOOK_EVERY {
            if cpu() >= end {
                break;
            }
            looked = Instant::now();
        }
        let mut input = corpus[below(&mut rng, corpus.len())].clone();
        for _ in 0..1 + rng.below(4) {
            mutate(&mut rng, target, &corpus, &mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        if kinds.insert(judge(target, seed, &input)) && kinds.len() < CORPUS_MAX {
            corpus.push(input);
        }
        executions += 1;
    }
    let kinds = kinds.len();
    println!(
        "{}: {executions} executions, {kinds} kinds of input",
        target.name
    );
}

/// What kind of input it is; a failure is shown with what repeats it.
fn judge(target: &Target, seed: u64, input: &[u8]) -> u64 {
    catch_unwind(AssertUnwindSafe(|| (target.check)(input))).unwrap_or_else(|cause| {
        let path = std::env::temp_dir().join(format!("thalweg-fuzz-{}", target.name));
        let kept = std::fs::write(&path, input).map(|()| path);
        eprintln!(
            "{}: seed {seed}: b\"{}\"\nTHALWEG_FUZZ_INPUT repeats it: {kept:?}",
            target.name,
            input.escape_ascii()
        );
        resume_unwind(cause)
    })
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    rng.below(bound.max(1) as u64) as usize
}

fn mutate(rng: &mut Rng, target: &Target, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    let at = below(rng, input.len() + 1);
    let rest = input.len() - at;
    let span = at..at + below(rng, rest.min(32) + 1);
    match rng.below(10) {
        0 if rest > 0 => input[at] ^= 1 << rng.below(8),
        1 if rest > 0 => input[at] = rng.next_u64() as u8,
        2 if rest > 0 => input[at] = input[at].wrapping_add(rng.below(9) as u8).wrapping_sub(4),
        3 => drop(input.drain(span)),
        4 => {
            let copy = input[span].to_vec();
            let to = below(rng, input.len() + 1);
            input.splice(to..to, copy.repeat(1 + below(rng, 4)));
        }
        5 => input.truncate(at),
        6 => {
            let other = &corpus[below(rng, corpus.len())];
            let from = below(rng, other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        7 => input.insert(at, rng.next_u64() as u8),
        // A word of the grammar, beside or over what is there.
        8 => drop(input.splice(span, word(rng, target))),
        _ => drop(input.splice(at..at, word(rng, target))),
    }
}

fn word(rng: &mut Rng, target: &Target) -> Vec<u8> {
    target.words[below(rng, target.words.len())].to_vec()
}
