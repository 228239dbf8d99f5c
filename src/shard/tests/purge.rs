//! A purge goes over the table once, in bounded slices.

use super::{Bench, Lifetime, Reply, Request, bench_with, create, tables};
use crate::shard::purge::Purged;

/// Goes over the table and returns what each slice came to.
pub(super) fn purge(bench: &Bench, bucket: Option<&str>) -> Vec<Purged> {
    let mut slices = Vec::new();
    let mut from = Some(0);
    while let Some(slot) = from {
        let slice = Request::PurgeSlice {
            bucket: bucket.map(Into::into),
            from: slot,
        };
        match bench.done(slice) {
            Ok(Reply::Purged(slice)) => {
                assert!(slice.next.is_none_or(|next| next > slot), "no progress");
                from = slice.next;
                slices.push(slice);
            }
            other => panic!("not a slice: {other:?}"),
        }
    }
    slices
}

/// A slice begins where the one before ended: when each began at the start, a purge took nine times
/// as long for three times the streams.
#[test]
fn a_purge_looks_at_each_slot_once() {
    const STREAMS: usize = 20_000;
    let bench = bench_with(1 << 30, tables());
    for number in 0..STREAMS {
        // One of four.
        let bucket = if number % 4 == 0 { "doomed" } else { "spared" };
        let name = format!("{bucket}/{number}");
        bench.done(create(&name, Lifetime::Unlimited)).unwrap();
    }
    bench.done(Request::Fence("doomed".into())).unwrap();
    let slices = purge(&bench, Some("doomed"));
    assert_eq!(bench.shard.streams(), STREAMS - STREAMS / 4);
    let gone: Vec<u64> = slices.iter().map(|slice| slice.streams).collect();
    assert_eq!(gone.iter().sum::<u64>(), (STREAMS / 4) as u64);
    assert!(gone.iter().all(|gone| *gone <= 256), "{gone:?}");
    let mut before = 0;
    for next in slices.iter().filter_map(|slice| slice.next) {
        assert!(next - before <= 4096, "{before} to {next}");
        before = next;
    }
    // Nothing is left for the next.
    assert!(purge(&bench, None).iter().all(|slice| slice.streams == 0));
}

/// After a restart one pass finishes all purges, however many buckets are fenced.
#[test]
fn one_pass_finishes_every_purge() {
    const BUCKETS: usize = 1000;
    let bench = bench_with(1 << 30, tables());
    for number in 0..BUCKETS {
        let name = format!("bucket{number}/a");
        bench.done(create(&name, Lifetime::Unlimited)).unwrap();
        let bucket = format!("bucket{number}");
        bench.done(Request::Fence(bucket.into())).unwrap();
    }
    bench.done(create("spared/a", Lifetime::Unlimited)).unwrap();
    let slices = purge(&bench, None);
    assert!(slices.len() <= BUCKETS / 256 + 1, "{slices:?}");
    assert_eq!(bench.shard.streams(), 1);
}
