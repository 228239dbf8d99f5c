//! How fast is the digest of a snapshot?
//!
//! One core, BLAKE3 over content type and body, for bodies of 1 KiB to 8 MiB.
//! `whole` takes the body at once, `in_pieces` as it comes from a socket, 16 KiB
//! at a time: the hash works on several KiB side by side, so small pieces cost
//! some of its speed.
//!
//! Run: `cargo bench --bench digest`; results are checked against the hash of the
//! same bytes laid out by hand.
//!
//! Fastest of 100 in GB/s, 30 November 2026, 2 shared cores of a virtual
//! machine with AVX-512, rustc 1.95 without `target-cpu`:
//!
//! | | 1 KiB | 64 KiB | 1 MiB | 8 MiB |
//! |---|---|---|---|---|
//! | `whole` | 1.17 | 5.9 | 8.3 | 7.7 |
//! | `in_pieces` | 1.17 | 3.5 | 3.5 | 3.4 |

use std::env;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use thalweg::protocol::content_type::ContentType;
use thalweg::protocol::snapshot::Digester;

const BYTES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 8 << 20];
/// What a connection reads at a time.
const PIECE_BYTES: usize = 16 << 10;
const CONTENT_TYPE: &str = "application/json";

fn main() {
    divan::main();
}

/// A body. Under `cargo test`, where there is no `--bench`, 64 KiB at most.
fn body(count: usize) -> Vec<u8> {
    let full = env::args().any(|arg| arg == "--bench");
    let count = if full { count } else { count.min(64 << 10) };
    (0..count).map(|at| (at % 251) as u8).collect()
}

fn content_type() -> ContentType {
    ContentType::parse(CONTENT_TYPE.as_bytes()).expect("a content type")
}

fn digest(content_type: &ContentType, body: &[u8], piece_bytes: usize) -> [u8; 32] {
    let mut digester = Digester::new(content_type);
    for piece in body.chunks(piece_bytes) {
        digester.update(piece);
    }
    digester.finish()
}

/// What the digest is of, in one piece.
fn expected(body: &[u8]) -> [u8; 32] {
    let mut laid_out = (CONTENT_TYPE.len() as u64).to_le_bytes().to_vec();
    laid_out.extend_from_slice(CONTENT_TYPE.as_bytes());
    laid_out.extend_from_slice(body);
    *blake3::hash(&laid_out).as_bytes()
}

#[divan::bench(args = BYTES)]
fn whole(bencher: Bencher<'_, '_>, count: usize) {
    let (content_type, body) = (content_type(), body(count));
    bencher
        .counter(BytesCount::new(body.len()))
        .bench_local(|| digest(&content_type, black_box(&body), usize::MAX));
    assert_eq!(digest(&content_type, &body, usize::MAX), expected(&body));
}

#[divan::bench(args = BYTES)]
fn in_pieces(bencher: Bencher<'_, '_>, count: usize) {
    let (content_type, body) = (content_type(), body(count));
    bencher
        .counter(BytesCount::new(body.len()))
        .bench_local(|| digest(&content_type, black_box(&body), PIECE_BYTES));
    assert_eq!(digest(&content_type, &body, PIECE_BYTES), expected(&body));
}
