//! How fast are message boundaries found, and stored text turned into an array?
//!
//! One core, bytes of stored text per second, for messages of 20, 200 and 2,000
//! bytes. The array view is compared with the other way to make it, a copy that
//! is patched at each LF that memchr finds: ahead for long messages, far behind
//! for short ones. A boundary is looked for where a response is cut: from the
//! end of a piece.

use std::env;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use memchr::memchr_iter;
use thalweg::json::{ArrayView, array_view_len, last_boundary};

criterion_group!(benches, lf_scan);
criterion_main!(benches);

fn lf_scan(criterion: &mut Criterion) {
    // Under `cargo test` there is no `--bench`: then each runs once, on little text.
    let full = env::args().any(|arg| arg == "--bench");
    let stored_bytes = if full { 1 << 18 } else { 1 << 12 };
    for message_bytes in [20, 200, 2_000] {
        let message = format!("\"{}\"\n", "x".repeat(message_bytes - 3));
        let stored = message.repeat(stored_bytes / message_bytes).into_bytes();
        let length = array_view_len(stored.len() as u64);

        let mut group = criterion.benchmark_group(format!("{message_bytes} B messages"));
        group.throughput(Throughput::Bytes(stored.len() as u64));
        let mut out = Vec::new();
        group.bench_function("array view", |bencher| {
            bencher.iter(|| {
                out.clear();
                let mut view = ArrayView::new(stored.len() as u64);
                view.push(black_box(&stored), &mut out);
                view.finish(&mut out);
                assert_eq!(out.len() as u64, length);
            });
        });
        let mut patched = Vec::new();
        group.bench_function("array view by memchr", |bencher| {
            bencher.iter(|| patched_view(black_box(&stored), &mut patched));
        });
        assert!(out == patched && out.ends_with(b"\"]"), "both ways agree");
        group.finish();

        // The text up to a cut within the last message: found after less than one message.
        let cut = &stored[..stored.len() - 1];
        let expected = stored.len() - message.len();
        criterion.bench_function(
            &format!("last boundary, {message_bytes} B messages"),
            |bencher| {
                bencher.iter(|| assert_eq!(last_boundary(black_box(cut)), Some(expected)));
            },
        );
    }
}

/// The view of `stored`, copied and then patched.
fn patched_view(stored: &[u8], out: &mut Vec<u8>) {
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
