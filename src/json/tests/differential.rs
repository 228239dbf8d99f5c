//! Random bodies, valid and broken, against the oracles.

use super::generate::{self, Random, Space};
use super::{for_every_kernel, oracle, show, stored};
use crate::json::Kernel;

for_every_kernel!(
    valid_texts_are_stored_as_the_slow_way_does,
    broken_texts_are_judged_as_the_oracle_does,
    short_texts_are_judged_as_the_oracle_does,
);

/// Agrees with every oracle on `body`.
fn check(kernel: Kernel, seed: u64, body: &[u8]) {
    let result = stored(kernel, body);
    assert_eq!(
        result.is_ok(),
        oracle::accepts(body),
        "seed {seed}: {result:?} for {}",
        show(body)
    );
    match result {
        Ok((text, _)) => {
            assert_eq!(text, oracle::stored(body), "seed {seed}: {}", show(body));
        }
        Err(error) => {
            assert!(
                !oracle::simd_json_accepts(body),
                "seed {seed}: {error} for {}",
                show(body)
            );
        }
    }
}

fn valid_texts_are_stored_as_the_slow_way_does(kernel: Kernel) {
    let mut random = Random::from_environment();
    for round in 0..2_000 {
        let space = *random.one_of(&[Space::None, Space::Random]);
        let body = generate::text(&mut random, 1 + round % 60, space);
        assert!(oracle::accepts(&body), "generated: {}", show(&body));
        check(kernel, random.seed, &body);
    }
}

fn broken_texts_are_judged_as_the_oracle_does(kernel: Kernel) {
    let mut random = Random::from_environment();
    for round in 0..10_000 {
        let space = *random.one_of(&[Space::None, Space::Random]);
        let mut body = generate::text(&mut random, 1 + round % 20, space);
        generate::mutate(&mut random, &mut body);
        check(kernel, random.seed, &body);
    }
}

/// Short texts from the bytes that matter: most are broken, and each in its own way.
fn short_texts_are_judged_as_the_oracle_does(kernel: Kernel) {
    const PARTS: &[&str] = &[
        "[", "]", "{", "}", ",", ":", "\"", "\"a\"", "\"a\":", "1", "0", "-", "+", ".", "e", "E",
        "true", "null", "false", " ", "\n", "\\", "\\u", "\\\"", "t", "\u{1}", "\u{e9}",
    ];
    let mut random = Random::from_environment();
    for _ in 0..30_000 {
        let offset = *random.one_of(&[0, 0, 58, 61, 63]);
        let mut body = vec![b' '; offset];
        for _ in 0..1 + random.below(8) {
            body.extend_from_slice(random.one_of(PARTS).as_bytes());
        }
        check(kernel, random.seed, &body);
    }
}
