//! However much there is of something, one turn does a bounded part of it. What
//! is counted is the work, not the time.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

use super::{Bench, Blob, ContentType, Incarnation, Lifetime, Reply, Request};
use super::{append, bench_with, create, tables, target};
use crate::{
    base::limits::{BLOCK_BYTES_MAX, MIB},
    protocol::snapshot::SnapshotMeta,
    shard::{
        compaction::KnownBlobs,
        flush::Flush,
        history::into_blocks,
        slice::{SLICE_PLACES, SliceStart},
        stream::{StoredSnapshot, blob_key},
    },
    storage::segment::{Place, Segment, SegmentGraveyard, SegmentId},
};

fn bench() -> Bench {
    bench_with(1 << 30, tables())
}

impl Bench {
    fn slot(&self, name: &str) -> usize {
        let tables = self.shard.tables.borrow();
        tables.slot_of_key(&super::key(name)).unwrap()
    }

    /// The keeper has written what `flush` is of to blocks in `segment`.
    fn written(&self, flush: &Flush, segment: &Arc<Segment>, end: &mut u32) {
        let blocks = into_blocks(flush.incarnation, flush.start, flush.pieces.clone());
        let placed: Vec<(Arc<Segment>, Place)> = blocks
            .iter()
            .map(|block| {
                let place = Place {
                    segment: segment.id,
                    offset: *end,
                    len: block.pieces.iter().map(Bytes::len).sum::<usize>() as u32,
                };
                *end = place.end() as u32;
                (segment.clone(), place)
            })
            .collect();
        self.shard.end_flush(flush, &placed);
    }
}

const MUCH: &[u8] = &[7; 9 * MIB + 5];

#[test]
fn a_checkpoint_takes_as_many_slices_for_a_stream_as_it_has_much_in_memory() {
    let bench = bench();
    let segment = Segment::open(SegmentId(1), &SegmentGraveyard::default());
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    let _ = bench.shard.append(&append("demo/a", MUCH));
    bench.commit();
    let slot = bench.slot("demo/a");
    let (mut next, mut slices, mut end) = (Some(SliceStart::default()), 0, 4096);
    while let Some(from) = next {
        let slice = bench.shard.begin_slice(from);
        let bytes: u64 = slice.flushes.iter().map(Flush::len).sum();
        assert!(bytes <= 2 * MIB as u64, "{bytes} in one slice");
        for flush in &slice.flushes {
            bench.written(flush, &segment, &mut end);
        }
        slices += 1;
        // What comes meanwhile keeps it from no end.
        let _ = bench.shard.append(&append("demo/a", &MUCH[..2 * MIB]));
        bench.commit();
        if slice.flushes.is_empty() {
            continue;
        }
        next = slice.next;
        let is_done = slice.end > slot;
        assert_eq!(is_done, slices == 5, "slice {slices}");
        if is_done {
            break;
        }
    }
    let tables = bench.shard.tables.borrow();
    let history = &tables.streams.get(slot).unwrap().history;
    assert!(history.flushed_end() >= MUCH.len() as u64);
    let whole = BLOCK_BYTES_MAX as u64;
    let blocks = history.blocks();
    let short = blocks
        .iter()
        .filter(|block| block.end() - block.start < whole);
    assert!(short.count() <= 1);
}

#[test]
fn the_blocks_of_a_large_stream_are_released_in_turns() {
    for retained in [false, true] {
        let bench = bench();
        let segment = Segment::open(SegmentId(1), &SegmentGraveyard::default());
        for name in ["demo/a", "demo/b"] {
            bench.done(create(name, Lifetime::Unlimited)).unwrap();
        }
        let mut end = 4096;
        for name in ["demo/a", "demo/b", "demo/a", "demo/a", "demo/a", "demo/a"] {
            let _ = bench.shard.append(&append(name, MUCH));
            bench.commit();
            while let Some(flush) = bench.shard.begin_flush(bench.slot(name), false) {
                bench.written(&flush, &segment, &mut end);
            }
        }
        let live = || bench.shard.held().segment_live_bytes;
        let kept = {
            let tables = bench.shard.tables.borrow();
            let stream = tables.streams.get(bench.slot("demo/b")).unwrap();
            stream.places().map(Place::bytes).sum::<u64>()
        };
        let block = (BLOCK_BYTES_MAX + 48) as u64;
        let turn_bytes_max = SLICE_PLACES as u64 * block;
        let mut before = live();
        assert!(before - kept > 2 * turn_bytes_max);
        if retained {
            let slot = bench.slot("demo/a");
            let mut tables = bench.shard.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).unwrap();
            stream.staged.retained = stream.staged.tail;
            stream.visible.retained = stream.visible.tail;
            tables.release_history(slot);
        } else {
            let deleted = bench.done(Request::Delete(target("demo/a")));
            assert!(matches!(deleted, Ok(Reply::Done(_))));
        }
        let mut turns = 1;
        loop {
            let now = live();
            assert!(before - now <= turn_bytes_max, "turn {turns}");
            before = now;
            turns += 1;
            if !bench.shard.release_leftover() {
                break;
            }
        }
        assert!(turns >= 3);
        // What was written again with what followed it waits for a checkpoint.
        assert_eq!(live(), kept + bench.shard.moved_bytes());
    }
}

#[test]
fn what_a_checkpoint_lets_go_of_goes_in_turns() {
    let bench = bench();
    let segment = Segment::open(SegmentId(1), &SegmentGraveyard::default());
    let names: Vec<String> = (0..1000).map(|number| format!("demo/{number}")).collect();
    let mut end = 4096;
    for _ in 0..2 {
        for name in &names {
            let _ = bench.done(create(name, Lifetime::Unlimited));
            let _ = bench.shard.append(&append(name, b"some"));
            bench.commit();
            let flush = bench.shard.begin_flush(bench.slot(name), false);
            bench.written(&flush.unwrap(), &segment, &mut end);
        }
    }
    let place = |len| Place {
        segment: segment.id,
        offset: 4096,
        len,
    };
    assert_eq!(bench.shard.moved_bytes(), 1000 * place(4).bytes());
    let mut moved = bench.shard.begin_checkpoint();
    assert_eq!(bench.shard.moved_bytes(), 0);
    let mut turns = 1;
    while bench.shard.release_moved(&mut moved) {
        turns += 1;
    }
    assert_eq!(turns, 1000_usize.div_ceil(SLICE_PLACES));
    let held = bench.shard.held();
    assert_eq!(held.segment_live_bytes, 1000 * place(8).bytes());
}

/// A snapshot of `pieces` pieces in memory.
fn with_snapshot(bench: &Bench, name: &str, pieces: usize) {
    bench.done(create(name, Lifetime::Unlimited)).unwrap();
    let body = vec![Blob::Memory(Bytes::from_static(&MUCH[..600])); pieces];
    let meta = SnapshotMeta {
        offset: 0,
        digest: [0; 32],
        content_type: ContentType::octet_stream(),
        len: Blob::len_of(&body),
    };
    let slot = bench.slot(name);
    let mut tables = bench.shard.tables.borrow_mut();
    let stream = tables.streams.get_mut(slot).unwrap();
    let snapshot = Arc::new(StoredSnapshot { meta, body });
    stream.blobs_or_new().snapshot = Some(snapshot);
}

fn snapshot(bench: &Bench, name: &str) -> Arc<StoredSnapshot> {
    let tables = bench.shard.tables.borrow();
    let stream = tables.streams.get(bench.slot(name)).unwrap();
    stream.snapshot().unwrap().clone()
}

#[test]
fn the_pieces_of_a_snapshot_are_written_and_moved_in_turns_and_its_list_copied_once_in_each() {
    const PIECES: usize = 4 * SLICE_PLACES + 1;
    let bench = bench();
    let segment = Segment::open(SegmentId(1), &SegmentGraveyard::default());
    with_snapshot(&bench, "demo/a", PIECES);
    let address = || Arc::as_ptr(&snapshot(&bench, "demo/a"));
    let (mut next, mut slices, mut end) = (Some(SliceStart::default()), 0, 4096);
    let mut place_of = |segment: &Arc<Segment>, len: u64| {
        let place = Place {
            segment: segment.id,
            offset: end,
            len: len as u32,
        };
        end = place.end() as u32;
        (segment.clone(), place)
    };
    while let Some(from) = next {
        let slice = bench.shard.begin_slice(from);
        assert!(slice.blobs.len() <= SLICE_PLACES);
        let mut copies = HashSet::from([address()]);
        for flush in &slice.blobs {
            let placed = place_of(&segment, flush.bytes.len() as u64);
            bench.shard.end_blob_flush(flush, &placed);
            copies.insert(address());
        }
        assert!(copies.len() <= 2, "copied {} times", copies.len() - 1);
        slices += 1;
        next = slice.next;
    }
    assert!(slices >= 5);
    let places = |bench: &Bench| -> Vec<Place> {
        let snapshot = snapshot(bench, "demo/a");
        snapshot.body.iter().filter_map(Blob::place).collect()
    };
    let old = places(&bench);
    assert_eq!(old.len(), PIECES);
    // A segment is emptied: of one list of them all it is known which are there.
    let key = blob_key(snapshot_owner(&bench, "demo/a"));
    let mut known = KnownBlobs::default();
    let is_there = |place: &Place, known: &mut _| bench.shard.has_block(*place, key, known);
    assert!(old.iter().all(|place| is_there(place, &mut known)));
    let gone = place_of(&segment, 600).1;
    assert!(!is_there(&gone, &mut known));
    let other = Segment::open(SegmentId(2), &SegmentGraveyard::default());
    let from: Vec<_> = old
        .iter()
        .chain([&gone])
        .map(|place| (*place, key))
        .collect();
    let to: Vec<_> = from.iter().map(|_| place_of(&other, 600)).collect();
    let live = bench.shard.held().segment_live_bytes;
    bench.shard.move_blocks(&from, &to);
    let new: Vec<Place> = to.iter().take(PIECES).map(|(_, place)| *place).collect();
    assert_eq!(places(&bench), new);
    let moved = bench.shard.moved_bytes();
    assert_eq!(moved, PIECES as u64 * gone.bytes());
    assert_eq!(bench.shard.held().segment_live_bytes, live + moved);
}

fn snapshot_owner(bench: &Bench, name: &str) -> Incarnation {
    let tables = bench.shard.tables.borrow();
    tables
        .streams
        .get(bench.slot(name))
        .unwrap()
        .staged
        .incarnation
}
