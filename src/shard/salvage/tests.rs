//! Each row of the table in the module's head: records with a hole in, streams out, and a
//! checkpoint of those that reads back.

use super::*;
use crate::{
    protocol::{
        content_type::ContentType, expiry::Lifetime, fork::ForkOrigin, incarnation::Allocator,
        producer::ProducerWrite,
    },
    shard::{
        checkpoint::{Restore, encode_stream},
        record::BlobRecord,
    },
    storage::{
        blob::{BlobId, Graveyard},
        journal::Position,
    },
};

fn tables() -> Tables {
    Tables::new(Allocator::new([7; 16], 0), Graveyard::default())
}

fn bytes(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = record.encode(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn create(incarnation: u64, key: &str) -> Vec<u8> {
    fork(incarnation, key, None)
}

fn fork(incarnation: u64, key: &str, origin: Option<ForkOrigin>) -> Vec<u8> {
    bytes(&Record::Create {
        incarnation: Incarnation(incarnation),
        at_ms: 1_000,
        key: StreamKey::restored(key),
        content_type: ContentType::octet_stream(),
        lifetime: Lifetime::Unlimited,
        closed: false,
        origin,
        body: b"",
    })
}

fn append(incarnation: u64, start: u64, body: &[u8]) -> Vec<u8> {
    bytes(&Record::Append {
        incarnation: Incarnation(incarnation),
        at_ms: 2_000,
        start,
        close: false,
        producer: Some(ProducerWrite {
            id: "p".into(),
            epoch: 0,
            seq: start,
            digest: None,
        }),
        seq: None,
        body,
    })
}

fn retain(incarnation: u64, offset: u64) -> Vec<u8> {
    bytes(&Record::Retain {
        incarnation: Incarnation(incarnation),
        at_ms: 3_000,
        offset,
    })
}

fn publish(incarnation: u64, offset: u64, body: BlobRecord<'_>) -> Vec<u8> {
    bytes(&Record::Publish {
        incarnation: Incarnation(incarnation),
        at_ms: 3_000,
        offset,
        digest: [offset as u8; 32],
        content_type: ContentType::octet_stream(),
        body,
    })
}

fn part(incarnation: u64, id: &str, body: BlobRecord<'_>) -> Vec<u8> {
    bytes(&Record::StagePart {
        incarnation: Incarnation(incarnation),
        at_ms: 3_000,
        id: id.into(),
        body,
    })
}

fn commit(incarnation: u64, offset: u64, ids: &[&str]) -> Vec<u8> {
    bytes(&Record::CommitParts {
        incarnation: Incarnation(incarnation),
        at_ms: 3_000,
        offset,
        digest: [9; 32],
        content_type: ContentType::octet_stream(),
        ids: ids.iter().map(|id| (*id).into()).collect(),
    })
}

fn delete(incarnation: u64) -> Vec<u8> {
    bytes(&Record::Delete {
        incarnation: Incarnation(incarnation),
        soft: false,
    })
}

fn refer(source: u64, fork: u64, start: u64) -> Vec<u8> {
    bytes(&Record::Refer {
        incarnation: Incarnation(source),
        fork: Incarnation(fork),
        fork_key: StreamKey::restored("b/fork"),
        start,
    })
}

fn origin(source: u64, start: u64, offset: u64) -> Option<ForkOrigin> {
    Some(ForkOrigin {
        source: StreamKey::restored("b/source"),
        incarnation: Incarnation(source),
        start,
        offset,
        requested: None,
        sub_offset: 0,
    })
}

fn file(id: u8) -> BlobRecord<'static> {
    BlobRecord::File {
        id: BlobId([id; 16]),
        len: 10,
    }
}

/// Salvages the records of each shard, and reads what comes out as a checkpoint gives it back.
fn salvage(shards: &[&[Vec<u8>]], lost: &[BlobRecord<'_>]) -> (Vec<Tables>, Vec<Loss>) {
    let mut salvages = Vec::new();
    for records in shards {
        let mut salvage = Salvage::new(tables(), Included::default());
        for (position, record) in (0..).map(Position).zip(*records) {
            salvage.apply(position, record).expect("applied");
        }
        salvages.push(salvage);
    }
    let lost = lost.iter().filter_map(|blob| match blob {
        BlobRecord::File { id, .. } => Some(*id),
        BlobRecord::Inline(_) | BlobRecord::Block(_) => None,
    });
    let lost = Lost {
        files: lost.collect(),
        ..Lost::default()
    };
    settle(&mut salvages, &lost).expect("settled");
    let mut all = Vec::new();
    let mut losses = Vec::new();
    for salvage in salvages {
        let (tables, changed, lost) = salvage.finish();
        assert!(changed || lost.is_empty(), "{lost:?}");
        all.push(through_a_checkpoint(&tables));
        losses.extend(lost);
    }
    (all, losses)
}

fn through_a_checkpoint(written: &Tables) -> Tables {
    let mut segment = |_| panic!("nothing is in segments");
    let mut restore = Restore::new(tables(), &mut segment);
    let mut entry = Vec::new();
    for stream in written.all_streams() {
        entry.clear();
        encode_stream(stream, Position(0), &mut entry);
        restore.entry(&entry).expect("an entry");
    }
    restore.finish()
}

fn one(records: &[Vec<u8>]) -> (Tables, Vec<Loss>) {
    let (mut tables, losses) = salvage(&[records], &[]);
    (tables.remove(0), losses)
}

fn stream(tables: &Tables, incarnation: u64) -> &crate::shard::stream::Stream {
    tables
        .stream(Incarnation(incarnation))
        .expect("it is there")
}

#[test]
fn without_a_loss_nothing_changes() {
    let records = [
        create(1, "b/s"),
        append(1, 0, b"abc"),
        publish(1, 3, BlobRecord::Inline(b"x")),
        retain(1, 2),
        create(2, "b/gone"),
        delete(2),
        append(2, 0, b"on its way when it was deleted"),
        create(3, "b/gone"),
    ];
    let (tables, losses) = one(&records);
    assert_eq!(losses, []);
    assert_eq!(stream(&tables, 1).staged.tail, 3);
}

#[test]
fn a_gap_closes_the_stream_where_its_bytes_end() {
    let records = [
        create(1, "b/s"),
        append(1, 0, b"abc"),
        // 3 to 5 is lost.
        append(1, 5, b"f"),
        publish(1, 6, BlobRecord::Inline(b"of the lost")),
        // Fits by chance, and must not fill the hole.
        append(1, 3, b"xyz"),
        publish(1, 2, BlobRecord::Inline(b"of the kept")),
    ];
    let (tables, losses) = one(&records);
    let state = &stream(&tables, 1).staged;
    assert_eq!((state.tail, state.closed), (3, true));
    assert_eq!(state.snapshot().map(|snapshot| snapshot.offset), Some(2));
    assert_eq!(state.producer("p").map(|producer| producer.seq), Some(0));
    let [
        Loss::Bytes {
            tail,
            reached,
            records,
            ..
        },
    ] = &losses[..]
    else {
        panic!("{losses:?}");
    };
    assert_eq!((*tail, *reached, *records), (3, 6, 3));
}

#[test]
fn a_retention_beyond_the_tail_proves_a_gap() {
    let (tables, losses) = one(&[create(1, "b/s"), append(1, 0, b"abc"), retain(1, 4)]);
    let state = &stream(&tables, 1).staged;
    assert_eq!((state.tail, state.retained, state.closed), (3, 0, true));
    assert_eq!(losses.len(), 1);
}

#[test]
fn a_broken_stream_that_was_deleted_is_missed_by_nobody() {
    let (tables, losses) = one(&[create(1, "b/s"), append(1, 5, b"f"), delete(1)]);
    assert!(tables.stream(Incarnation(1)).is_none());
    assert_eq!(losses, []);
}

#[test]
fn records_of_a_stream_without_a_beginning_are_left_out() {
    let records = [append(1, 0, b"a"), retain(1, 1), create(2, "b/other")];
    let (tables, losses) = one(&records);
    assert_eq!(tables.all_streams().count(), 1);
    let incarnation = Incarnation(1);
    assert_eq!(
        losses,
        [Loss::Stream {
            incarnation,
            records: 2
        }]
    );
}

#[test]
fn a_lost_deletion_is_known_from_the_next_stream_of_that_name() {
    let records = [create(1, "b/s"), append(1, 0, b"old"), create(2, "b/s")];
    let (tables, losses) = one(&records);
    assert!(tables.stream(Incarnation(1)).is_none());
    assert_eq!(stream(&tables, 2).staged.tail, 0);
    assert!(matches!(losses[..], [Loss::Deletion { .. }]), "{losses:?}");
    assert!(tables.stream_named(&StreamKey::restored("b/s")).is_some());
}

#[test]
fn a_snapshot_without_its_bytes_is_dropped_with_the_older_ones() {
    let records = [
        create(1, "b/s"),
        append(1, 0, b"abcdef"),
        publish(1, 1, BlobRecord::Inline(b"older")),
        part(1, "a", file(1)),
        part(1, "b", file(2)),
        part(1, "c", file(3)),
        commit(1, 4, &["a", "b"]),
    ];
    let (tables, losses) = salvage(&[&records], &[file(2), file(3)]);
    let stream = stream(&tables[0], 1);
    assert!(stream.snapshot().is_none() && stream.staged.snapshot().is_none());
    assert_eq!(stream.all_blobs().count(), 0, "{stream:?}");
    assert!(tables[0].blob_files().is_empty());
    let key = StreamKey::restored("b/s");
    let parts = Loss::Parts {
        key: key.clone(),
        ids: vec!["c".into()],
    };
    assert_eq!(losses, [Loss::Snapshot { key, offset: 4 }, parts]);
}

#[test]
fn a_commit_of_lost_parts_is_no_snapshot() {
    let records = [
        create(1, "b/s"),
        append(1, 0, b"abcdef"),
        part(1, "a", BlobRecord::Inline(b"a")),
        commit(1, 4, &["a", "lost"]),
    ];
    let (tables, losses) = one(&records);
    assert!(stream(&tables, 1).snapshot().is_none());
    assert!(matches!(losses[..], [Loss::Snapshot { offset: 4, .. }]));
}

#[test]
fn an_older_snapshot_below_the_retained_offset_is_dropped() {
    let records = [
        create(1, "b/s"),
        append(1, 0, b"abcdef"),
        publish(1, 1, BlobRecord::Inline(b"older")),
        // The snapshot at 5 that allowed this is lost.
        retain(1, 5),
    ];
    let (tables, losses) = one(&records);
    let stream = stream(&tables, 1);
    assert_eq!(stream.staged.retained, 5);
    assert!(stream.snapshot().is_none());
    assert_eq!(losses.len(), 1);
}

#[test]
fn forks_of_a_lost_source_begin_where_their_own_bytes_do() {
    let source = [append(1, 0, b"creation lost")];
    let forks = [
        fork(2, "b/fork", origin(1, 0, 4)),
        append(2, 4, b"own"),
        retain(2, 1),
        // A fork of the fork inherits bytes of both.
        refer(2, 3, 1),
        fork(3, "b/fork-of-fork", origin(2, 1, 6)),
        // And one that inherits only what is left.
        refer(2, 4, 4),
        fork(4, "b/lucky", origin(2, 4, 6)),
    ];
    let (tables, losses) = salvage(&[&source, &forks], &[]);
    let extent = |incarnation| {
        let state = &stream(&tables[1], incarnation).staged;
        (state.retained, state.tail)
    };
    assert_eq!(extent(2), (4, 7));
    assert_eq!(extent(3), (6, 6));
    assert_eq!(extent(4), (4, 6));
    let inherited = losses
        .iter()
        .filter(|loss| matches!(loss, Loss::Inherited { .. }));
    assert_eq!(inherited.count(), 2, "{losses:?}");
}

#[test]
fn a_lost_reference_is_written_again() {
    let source = [create(1, "b/source"), append(1, 0, b"abcdef")];
    let forks = [fork(2, "b/fork", origin(1, 0, 4))];
    let (tables, losses) = salvage(&[&source, &forks], &[]);
    assert_eq!(losses, []);
    assert_eq!(tables[0].references(), [(Incarnation(1), Incarnation(2))]);
    assert_eq!(stream(&tables[1], 2).staged.retained, 0);
}

#[test]
fn what_no_loss_explains_is_refused() {
    let mut salvage = Salvage::new(tables(), Included::default());
    let mut apply = |record: &[u8]| salvage.apply(Position(7), record);
    apply(&create(1, "b/s")).expect("applied");
    assert!(apply(&create(1, "b/s")).is_err());
    assert!(apply(&[99]).is_err());
    assert!(apply(&[]).is_err());
}

/// A salvage of what the checkpoint `before` gives back and `records` behind it, from position
/// `from` on; the entries include what lies before `included`.
fn behind(before: &Tables, included: u64, from: u64, records: &[Vec<u8>]) -> Salvage {
    let mut segment = |_| panic!("nothing is in segments");
    let mut restore = Restore::new(tables(), &mut segment);
    let mut entry = Vec::new();
    for stream in before.all_streams() {
        entry.clear();
        encode_stream(stream, Position(included), &mut entry);
        restore.entry(&entry).expect("an entry");
    }
    let (tables, included) = restore.into_parts();
    let mut salvage = Salvage::new(tables, included);
    for (position, record) in (from..).map(Position).zip(records) {
        salvage.apply(position, record).expect("applied");
    }
    salvage
}

#[test]
fn what_a_checkpoint_has_passed_is_no_loss() {
    let (before, _) = one(&[create(2, "b/s"), append(2, 0, b"abc")]);
    let records = [
        // A stream of that name that was gone when the checkpoint came to its successor.
        create(1, "b/s"),
        append(1, 0, b"old"),
        delete(1),
        // In the entry already.
        create(2, "b/s"),
        append(2, 0, b"abc"),
        // Gone when its turn came; its creation lies before the journal.
        append(3, 7, b"x"),
        delete(3),
        append(2, 3, b"def"),
    ];
    let mut salvages = [behind(&before, 10, 3, &records)];
    settle(&mut salvages, &Lost::default()).expect("settled");
    let [mut salvage] = salvages;
    assert_eq!(salvage.take_left_out().len(), 0);
    let (tables, changed, losses) = salvage.finish();
    assert!(!changed && losses.is_empty(), "{losses:?}");
    assert_eq!(stream(&tables, 2).staged.tail, 6);
    assert!(tables.stream_named(&StreamKey::restored("b/s")).is_some());
}

#[test]
fn later_records_of_a_lost_entry_are_left_out_unless_nothing_was_lost() {
    let (before, _) = one(&[create(2, "b/s")]);
    let records = [append(1, 5, b"of a lost entry")];
    for complete in [false, true] {
        let mut salvage = behind(&before, 1, 1, &records);
        if complete {
            salvage.is_complete();
        }
        let mut salvages = [salvage];
        settle(&mut salvages, &Lost::default()).expect("settled");
        let [mut salvage] = salvages;
        let expected = usize::from(!complete);
        assert_eq!(salvage.take_left_out().len(), expected);
        let (_, changed, losses) = salvage.finish();
        assert_eq!((changed, losses.len()), (!complete, expected));
    }
}
