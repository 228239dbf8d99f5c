//! The JSON layer against everything that knows the rule.
//!
//! Every test runs once per scanner kernel that this CPU has, from one text: a
//! kernel that is absent says so and passes. Random tests print what they fail
//! on and the seed; `THALWEG_SEED` sets it.

mod differential;
mod generate;
mod json_test_suite;
mod oracle;
mod rule;
mod splits;

use crate::json::{JsonError, Kernel, Normaliser, normalise_on};

/// One module of tests per kernel, of functions that take a kernel.
macro_rules! for_every_kernel {
    ($($test:ident),+ $(,)?) => {
        $crate::json::tests::for_every_kernel!(@ avx512 $($test)+);
        $crate::json::tests::for_every_kernel!(@ avx2 $($test)+);
        $crate::json::tests::for_every_kernel!(@ sse42 $($test)+);
        $crate::json::tests::for_every_kernel!(@ neon $($test)+);
        $crate::json::tests::for_every_kernel!(@ portable $($test)+);
    };
    (@ $kernel:ident $($test:ident)+) => {
        mod $kernel {
            $(#[test]
            fn $test() {
                if let Some(kernel) = $crate::json::tests::kernel(stringify!($kernel)) {
                    super::$test(kernel);
                }
            })+
        }
    };
}
use for_every_kernel;

fn kernel(name: &str) -> Option<Kernel> {
    let kernel = Kernel::available().find(|kernel| kernel.name() == name);
    if kernel.is_none() {
        println!("skipped: this CPU has no {name}");
    }
    kernel
}

/// The stored text of `body` and its number of messages, in one go.
fn stored(kernel: Kernel, body: &[u8]) -> Result<(Vec<u8>, u64), JsonError> {
    appended(|out| normalise_on(kernel, body, out))
}

/// The same for a body in pieces.
fn stored_from_pieces(kernel: Kernel, pieces: &[&[u8]]) -> Result<(Vec<u8>, u64), JsonError> {
    appended(|out| {
        let mut normaliser = Normaliser::with_kernel(kernel);
        for piece in pieces {
            normaliser.feed(piece, out)?;
        }
        normaliser.finish(out)
    })
}

fn appended(
    append: impl FnOnce(&mut Vec<u8>) -> Result<u64, JsonError>,
) -> Result<(Vec<u8>, u64), JsonError> {
    let before = b"before\n";
    let mut out = before.to_vec();
    let result = append(&mut out);
    assert!(out.starts_with(before), "what was there before is kept");
    let messages = result?;
    let text = out.split_off(before.len());
    let lines = text.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines as u64, messages, "one LF per message");
    Ok((text, messages))
}

/// A body for a failure's message.
fn show(body: &[u8]) -> String {
    body.escape_ascii().to_string()
}
