//! How fast are message boundaries found, and stored text turned into an array?
//!
//! One core, for messages of 20, 200 and 2,000 bytes. `array_view` is compared
//! with the other way to make it, a copy that is patched at each LF that memchr
//! finds: as fast for long messages, far behind for short ones. A boundary is
//! looked for where a response is cut, from the end of a piece: so its time is
//! that of less than one message.
//!
//! Run: `cargo bench --bench lf_scan`; the harness is divan, as in the other
//! benches. Fastest of 100 on 30 November 2026, 2 shared cores of a virtual
//! machine with AVX-512, rustc 1.95 without `target-cpu`:
//!
//! | | 20 B | 200 B | 2,000 B |
//! |---|---|---|---|
//! | `array_view` | 35 GB/s | 35 GB/s | 35 GB/s |
//! | `array_view_by_memchr` | 3 GB/s | 15 GB/s | 31 GB/s |
//! | `boundary` | 3.6 ns | 5.9 ns | 20 ns |

use std::env;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use memchr::memchr_iter;
use thalweg::json::{ArrayView, array_view_len, last_boundary};

/// Bytes per message, with its LF.
const MESSAGE_BYTES: [usize; 3] = [20, 200, 2_000];

fn main() {
    divan::main();
}

/// About 256 KiB of messages. Under `cargo test`, where there is no `--bench`, 4 KiB.
fn stored(message_bytes: usize) -> Vec<u8> {
    let full = env::args().any(|arg| arg == "--bench");
    let bytes = if full { 256 << 10 } else { 4 << 10 };
    let message = format!("\"{}\"\n", "x".repeat(message_bytes - 3));
    message.repeat(bytes / message_bytes).into_bytes()
}

#[divan::bench(args = MESSAGE_BYTES)]
fn array_view(bencher: Bencher<'_, '_>, message_bytes: usize) {
    let stored = stored(message_bytes);
    let stored_len = stored.len() as u64;
    let mut out = Vec::new();
    let mut view_stored = || {
        out.clear();
        let mut view = ArrayView::new(stored_len);
        view.push(black_box(&stored), &mut out);
        view.finish(&mut out);
        assert_eq!(out.len() as u64, array_view_len(stored_len));
    };
    bencher
        .counter(BytesCount::new(stored_len))
        .bench_local(&mut view_stored);
    let mut patched = Vec::new();
    patch(&stored, &mut patched);
    assert!(out == patched, "both ways agree");
}

#[divan::bench(args = MESSAGE_BYTES)]
fn array_view_by_memchr(bencher: Bencher<'_, '_>, message_bytes: usize) {
    let stored = stored(message_bytes);
    let mut out = Vec::new();
    bencher
        .counter(BytesCount::new(stored.len()))
        .bench_local(|| patch(black_box(&stored), &mut out));
}

#[divan::bench(args = MESSAGE_BYTES)]
fn boundary(bencher: Bencher<'_, '_>, message_bytes: usize) {
    let stored = stored(message_bytes);
    let cut = &stored[..stored.len() - 1];
    let expected = stored.len() - message_bytes;
    bencher.bench_local(|| assert_eq!(last_boundary(black_box(cut)), Some(expected)));
}

/// The view of `stored`, copied and then patched.
fn patch(stored: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(b'[');
    out.extend_from_slice(stored);
    for at in memchr_iter(b'\n', stored) {
        out[at + 1] = b',';
    }
    if let Some(last) = out.last_mut() {
        *last = b']';
    }
}
