//! Checkpoints: round trips, every kind of damage, and what crashes and failures leave. On the
//! simulated disk, and once on a real one.

mod crash;
mod real_disk;

use std::path::Path;

use futures_lite::future::block_on;

use super::format::{CHUNK_BYTES, ChunkHeader, Entries, HEADER_BYTES};
use super::*;
use crate::storage::disk::{Fault, FaultPlan, Operation, SimulatedDisk};
use crate::storage::error::ApplyError;
use crate::storage::journal::Position;

const DIR: &str = "/shard-3";

fn identity() -> Identity {
    Identity {
        dir: PathBuf::from(DIR),
        journal_id: 0x1122_3344_5566,
        shard: 3,
    }
}

fn disk(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed, 64 << 20);
    block_on(disk.create_dir(Path::new(DIR))).expect("a directory");
    disk
}

async fn write<D: Disk>(
    disk: &D,
    identity: &Identity,
    number: u64,
    entries: &[Vec<u8>],
) -> Result<Current, StorageError> {
    let mut writer = CheckpointWriter::create(disk.clone(), identity.clone(), number).await?;
    for entry in entries {
        writer.append(entry).await?;
    }
    writer.finish(Position(number * 100)).await
}

async fn read<D: Disk>(
    disk: &D,
    identity: &Identity,
    current: &Current,
) -> Result<Vec<Vec<u8>>, StorageError> {
    let mut entries = Vec::new();
    let keep = |entry: &[u8]| {
        entries.push(entry.to_vec());
        Ok(())
    };
    read_checkpoint(disk, identity, current, keep).await?;
    Ok(entries)
}

fn salvage(disk: &SimulatedDisk, current: &Current) -> (Vec<Vec<u8>>, Damage) {
    let mut entries = Vec::new();
    let keep = |entry: &[u8]| {
        entries.push(entry.to_vec());
        Ok(())
    };
    let damage = block_on(salvage_checkpoint(disk, &identity(), current, keep));
    (entries, damage.expect("a salvage"))
}

/// Entries of many sizes, `count` of them, about `count * 2` KiB; they differ.
fn many(count: u32) -> Vec<Vec<u8>> {
    let bytes = |n: u32| n.to_le_bytes().repeat((n as usize * 31) % 1024);
    (0..count).map(bytes).collect()
}

/// One entry of `bytes` in which every 512 differ.
fn large(bytes: usize) -> Vec<u8> {
    let mut entry = vec![0x5a; bytes];
    for (index, sector) in entry.chunks_exact_mut(512).enumerate() {
        sector[..8].copy_from_slice(&index.to_le_bytes());
    }
    entry
}

/// The chunks of a checkpoint's file: where each lies, and its entries.
fn chunks(bytes: &[u8], number: u64) -> Vec<(std::ops::Range<usize>, Vec<Vec<u8>>)> {
    let (mut chunks, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let header = ChunkHeader::decode(&bytes[at..], &identity(), number, at as u64);
        let header = header.expect("a header");
        let payload = &bytes[at + HEADER_BYTES..][..header.payload_bytes as usize];
        let entries = match header.last {
            true => Vec::new(),
            false => Entries::checked(&header, payload)
                .expect("entries")
                .map(|entry| entry.expect("an entry").to_vec())
                .collect(),
        };
        let end = at + header.chunk_bytes() as usize;
        chunks.push((at..end, entries));
        at = end;
    }
    chunks
}

#[test]
fn what_was_appended_comes_back() {
    let exact = CHUNK_BYTES - HEADER_BYTES - 4;
    let cases = [
        vec![],
        vec![vec![]],
        many(2000),
        vec![large(8 << 20)],
        vec![b"before".to_vec(), large(8 << 20), b"after".to_vec()],
        vec![vec![1; exact], vec![2; exact + 1], vec![3; exact - 1]],
        vec![vec![]; 100_000],
    ];
    let disk = disk(1);
    for (number, entries) in cases.iter().enumerate() {
        let number = number as u64;
        let current = block_on(write(&disk, &identity(), number, entries)).expect("a checkpoint");
        let file = disk.contents(&identity().path(number)).expect("a file");
        assert_eq!(current.number, number);
        assert_eq!(current.replay_from, Position(number * 100));
        assert_eq!(current.entries, entries.len() as u64);
        assert_eq!(current.bytes, file.len() as u64);
        let found = block_on(read(&disk, &identity(), &current)).expect("a whole checkpoint");
        assert!(found == *entries, "case {number}");
        assert_eq!(salvage(&disk, &current), (found, Damage::default()));
        disk.plan(FaultPlan {
            lasting: vec![(Operation::Read, 1, Fault::Short)],
            ..FaultPlan::default()
        });
        let found = block_on(read(&disk, &identity(), &current)).expect("short reads are read on");
        assert!(found == *entries, "case {number}, short reads");
        disk.plan(FaultPlan::default());
        disk.unlink(&identity().path(number));
    }
}

#[test]
fn chunks_fill_before_they_are_written() {
    let disk = disk(1);
    let entries = many(1000);
    let current = block_on(write(&disk, &identity(), 1, &entries)).expect("a checkpoint");
    let payload: usize = entries.iter().map(|entry| entry.len() + 4).sum();
    let fewest = payload.div_ceil(CHUNK_BYTES) as u64;
    let most = (fewest + 1) * CHUNK_BYTES as u64 + 8192;
    assert!(fewest > 4 && current.bytes < most, "{current:?}, {fewest}");
}

#[test]
fn a_flipped_bit_is_refused_and_costs_its_chunk_only() {
    let disk = disk(1);
    let mut entries = many(700);
    entries.push(large(1 << 20));
    entries.extend(many(300));
    let current = block_on(write(&disk, &identity(), 7, &entries)).expect("a checkpoint");
    let path = identity().path(7);
    let file = disk.contents(&path).expect("a file");
    let chunks = chunks(&file, 7);
    assert!(chunks.len() > 7, "{}", chunks.len());
    for (hit, (range, lost)) in chunks.iter().enumerate() {
        let header = (0..HEADER_BYTES * 8).step_by(if hit < 2 { 1 } else { 37 });
        let body = (HEADER_BYTES * 8..range.len() * 8).step_by(range.len() * 8 / 7);
        for bit in header.chain(body).chain([range.len() * 8 - 1]) {
            let mut damaged = file.clone();
            damaged[range.start + bit / 8] ^= 1 << (bit % 8);
            disk.set_contents(&path, damaged);
            let refused = block_on(read(&disk, &identity(), &current)).expect_err("damage");
            let known = matches!(
                refused,
                StorageError::DamagedCheckpoint { .. } | StorageError::UnsupportedFormat { .. }
            );
            assert!(known, "chunk {hit}, bit {bit}: {refused}");
            let kept = chunks.iter().enumerate().filter(|(index, _)| *index != hit);
            let kept: Vec<_> = kept.flat_map(|(_, (_, entries))| entries.clone()).collect();
            let (found, damage) = salvage(&disk, &current);
            assert!(found == kept, "chunk {hit}, bit {bit}");
            let expected = Damage {
                chunks: 1,
                bytes: range.len() as u64,
                entries: lost.len() as u64,
            };
            assert_eq!(damage, expected, "chunk {hit}, bit {bit}");
        }
    }
}

#[test]
fn a_chunk_of_a_number_that_cannot_be_is_refused_and_salvaged() {
    let disk = disk(1);
    let current = block_on(write(&disk, &identity(), 7, &many(700))).expect("a checkpoint");
    let path = identity().path(7);
    let mut file = disk.contents(&path).expect("a file");
    let first = &chunks(&file, 7)[0].1;
    let header = ChunkHeader::decode(&file, &identity(), 7, 0).expect("a header");
    let forged = ChunkHeader {
        index: u64::MAX,
        ..header
    };
    forged.encode(&mut file);
    disk.set_contents(&path, file.clone());
    let refused = block_on(read(&disk, &identity(), &current));
    assert!(matches!(
        refused,
        Err(StorageError::DamagedCheckpoint { .. })
    ));
    let (found, damage) = salvage(&disk, &current);
    assert!(
        found == *first && damage.chunks == u64::MAX - 1,
        "{damage:?}"
    );
}

#[test]
fn cut_lengthened_rearranged_and_missing_files_are_refused() {
    let disk = disk(1);
    let current = block_on(write(&disk, &identity(), 7, &many(1000))).expect("a checkpoint");
    let path = identity().path(7);
    let file = disk.contents(&path).expect("a file");
    let chunks = chunks(&file, 7);
    let whole: Vec<_> = chunks
        .iter()
        .flat_map(|(_, entries)| entries.clone())
        .collect();
    let refused = |bytes: &[u8], current: &Current| {
        disk.set_contents(&path, bytes.to_vec());
        let error = block_on(read(&disk, &identity(), current)).expect_err("damage");
        assert!(error.to_string().contains("--repair"), "{error}");
        salvage(&disk, current)
    };

    // Cut at every chunk and beside it.
    for (index, (range, _)) in chunks.iter().enumerate() {
        let kept = |count: usize| -> Vec<Vec<u8>> {
            let kept = chunks.iter().take(count);
            kept.flat_map(|(_, entries)| entries.clone()).collect()
        };
        for cut in [
            range.start,
            range.start + 1,
            range.end - 1,
            range.end - 4096,
        ] {
            let (found, damage) = refused(&file[..cut], &current);
            assert!(found == kept(index), "cut at {cut}");
            assert_eq!(damage.bytes, (file.len() - range.start) as u64);
            assert_eq!(damage.entries, (whole.len() - found.len()) as u64);
            assert_eq!(damage.chunks, 1);
        }
    }
    // Lengthened.
    for more in [1, 4096, 1 << 20] {
        let (found, damage) = refused(&[&file[..], &vec![0; more]].concat(), &current);
        assert!(found == whole);
        let bytes = more as u64;
        assert_eq!((damage.chunks, damage.bytes, damage.entries), (0, bytes, 0));
    }
    // A chunk over another of the same length.
    let (from, to) = (chunks[1].0.clone(), chunks[2].0.clone());
    assert_eq!(from.len(), to.len());
    let mut moved = file.clone();
    moved.copy_within(from, to.start);
    disk.set_contents(&path, moved);
    let error = block_on(read(&disk, &identity(), &current)).expect_err("a chunk moved");
    assert!(matches!(error, StorageError::ForeignFile { .. }), "{error}");
    assert_eq!(salvage(&disk, &current).1.chunks, 1);
    // What `current` says differs from the file, one by one.
    for other in [
        Current {
            replay_from: Position(1),
            ..current.clone()
        },
        Current {
            entries: current.entries + 1,
            ..current.clone()
        },
        Current {
            bytes: current.bytes + 4096,
            ..current.clone()
        },
        Current {
            bytes: 0,
            ..current.clone()
        },
    ] {
        assert!(refused(&file, &other).0 == whole);
    }
    // Gone.
    disk.unlink(&path);
    let error = block_on(read(&disk, &identity(), &current)).expect_err("no file");
    assert!(matches!(&error, StorageError::MissingFile { path: at } if *at == path));
    let (found, damage) = salvage(&disk, &current);
    assert!(found.is_empty() && damage.is_any());
    assert_eq!(
        (damage.bytes, damage.entries),
        (current.bytes, current.entries)
    );
}

#[test]
fn a_file_of_another_number_shard_or_journal_is_refused() {
    let disk = disk(1);
    let current = block_on(write(&disk, &identity(), 7, &many(500))).expect("a checkpoint");
    block_on(current.store(&disk, &identity())).expect("a current");
    let file = disk.contents(&identity().path(7)).expect("a file");
    disk.set_contents(&identity().path(8), file);
    let renumbered = Current {
        number: 8,
        ..current.clone()
    };
    let others = [
        (identity(), &renumbered),
        (
            Identity {
                shard: 4,
                ..identity()
            },
            &current,
        ),
        (
            Identity {
                journal_id: 5,
                ..identity()
            },
            &current,
        ),
    ];
    for (index, (identity, current)) in others.into_iter().enumerate() {
        let error = block_on(read(&disk, &identity, current)).expect_err("another's");
        assert!(matches!(error, StorageError::ForeignFile { .. }), "{error}");
        let keep = |_: &[u8]| -> Result<(), ApplyError> { panic!("another's entry") };
        let damage = block_on(salvage_checkpoint(&disk, &identity, current, keep));
        assert_eq!(damage.expect("a salvage").entries, current.entries);
        if index > 0 {
            let error = block_on(Current::load(&disk, &identity)).expect_err("another's");
            assert!(matches!(error, StorageError::ForeignFile { .. }), "{error}");
        }
    }
}

#[test]
fn current_is_absent_or_whole_or_refused() {
    let disk = disk(1);
    assert_eq!(block_on(Current::load(&disk, &identity())).ok(), Some(None));
    let current = Current {
        number: 9,
        replay_from: Position(u64::MAX),
        entries: 3,
        bytes: 8192,
    };
    block_on(current.store(&disk, &identity())).expect("stored");
    let loaded = block_on(Current::load(&disk, &identity()));
    assert_eq!(loaded.ok(), Some(Some(current)));
    let path = identity().current_path();
    let block = disk.contents(&path).expect("a file");
    for bit in (0..64 * 8).chain([4095 * 8 + 7]) {
        let mut flipped = block.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        disk.set_contents(&path, flipped);
        assert!(
            block_on(Current::load(&disk, &identity())).is_err(),
            "bit {bit}"
        );
    }
    for len in [0, 1, 60, 4095, 4097, 8192] {
        let mut bytes = block.clone();
        bytes.resize(len, 0);
        disk.set_contents(&path, bytes);
        let error = block_on(Current::load(&disk, &identity())).expect_err("a length");
        assert!(
            matches!(error, StorageError::DamagedCurrent { .. }),
            "{len}: {error}"
        );
        assert!(error.to_string().contains("restore it"), "{error}");
    }
}

#[test]
fn others_are_removed_the_named_one_stays() {
    let disk = disk(1);
    let entries = many(10);
    for number in [3, 4, 5] {
        block_on(write(&disk, &identity(), number, &entries)).expect("a checkpoint");
    }
    let current = block_on(write(&disk, &identity(), 4, &entries)).expect("written again");
    block_on(current.store(&disk, &identity())).expect("a current");
    let strangers = ["checkpoint-4", "checkpoint-+0000000000000000004", "notes"];
    for name in strangers.iter().chain(&["current.new", "journal"]) {
        disk.set_contents(&identity().dir.join(name), vec![1]);
    }
    let unknown = block_on(remove_others(&disk, &identity(), &[4])).expect("a directory");
    let mut expected: Vec<_> = strangers
        .iter()
        .map(|name| identity().dir.join(name))
        .collect();
    expected.sort();
    assert_eq!(unknown, expected);
    let left = block_on(disk.list_dir(Path::new(DIR))).expect("a directory");
    let left: Vec<_> = left.iter().filter(|name| is_ours(name)).collect();
    assert_eq!(left, ["checkpoint-00000000000000000004", "current"]);
    let found = block_on(read(&disk, &identity(), &current)).expect("the named one");
    assert_eq!(found, entries);
    block_on(remove_others(&disk, &identity(), &[])).expect("a directory");
    assert_eq!(disk.contents(&identity().path(4)), None);
}

#[test]
fn what_the_layer_above_refuses_is_named() {
    let disk = disk(1);
    let entries = [b"a".to_vec(), large(300_000), b"c".to_vec()];
    let current = block_on(write(&disk, &identity(), 1, &entries)).expect("a checkpoint");
    let refuse = |entry: &[u8]| match entry {
        b"c" => Err(ApplyError::from("no such thing")),
        _ => Ok(()),
    };
    let error = block_on(read_checkpoint(&disk, &identity(), &current, refuse));
    let error = error.expect_err("a refusal");
    assert!(
        matches!(error, StorageError::ApplyEntry { entry: 2, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("no such thing"), "{error}");
}

#[test]
fn without_current_the_newest_whole_checkpoint_is_found() {
    let (disk, identity) = (disk(3), identity());
    assert_eq!(block_on(find_whole(&disk, &identity)).ok(), Some(None));
    assert_eq!(block_on(find_newest(&disk, &identity)).ok(), Some(None));
    let first = block_on(write(&disk, &identity, 4, &many(50))).expect("a checkpoint");
    let second = block_on(write(&disk, &identity, 5, &many(60))).expect("a checkpoint");
    let found = || block_on(find_whole(&disk, &identity)).expect("readable");
    assert_eq!(found(), Some(second.clone()));
    let path = identity.path(5);
    let whole = disk.contents(&path).expect("a file");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    disk.set_contents(&path, flipped);
    assert_eq!(found(), Some(first));
    let newest = block_on(find_newest(&disk, &identity)).expect("readable");
    let newest = newest.expect("a checkpoint");
    assert_eq!((newest.number, newest.bytes), (5, second.bytes));
    let (entries, damage) = salvage(&disk, &newest);
    assert!(damage.is_any() && entries.len() < 60);
}

#[test]
fn a_lost_current_of_a_written_layout_refuses() {
    for (number, refuses) in [(1, false), (FIRST_WRITTEN, true), (FIRST_WRITTEN + 3, true)] {
        let (disk, identity) = (disk(3), identity());
        block_on(write(&disk, &identity, number, &many(5))).expect("a checkpoint");
        match block_on(Current::load(&disk, &identity)) {
            Ok(None) => assert!(!refuses, "{number}"),
            Err(StorageError::MissingFile { path }) => {
                assert!(refuses && path == identity.current_path(), "{number}");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
}

#[test]
fn a_chunk_with_an_unknown_flag_is_damage() {
    let whole = ChunkHeader {
        body_checksum: 7,
        last: false,
        journal_id: identity().journal_id,
        number: 1,
        offset: 0,
        index: 0,
        payload_bytes: 100,
        entry_count: 2,
        shard: identity().shard,
    };
    for bit in 0..32 {
        let mut bytes = [0; HEADER_BYTES];
        whole.encode(&mut bytes);
        bytes[20..24].copy_from_slice(&(1_u32 << bit).to_le_bytes());
        let checksum = ChunkHeader::checksum(whole.journal_id, whole.number);
        let checksum = checksum.with(&bytes[16..]).value();
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        let taken = ChunkHeader::decode(&bytes, &identity(), 1, 0);
        let end = ChunkHeader {
            last: true,
            ..whole
        };
        assert_eq!(taken.ok(), (bit == 0).then_some(end), "bit {bit}");
    }
}
