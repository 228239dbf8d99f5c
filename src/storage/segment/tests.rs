//! Writer and reader on a simulated disk.

use std::path::Path;

use bytes::Bytes;
use futures_lite::future::block_on;

use super::*;
use crate::base::limits::{BLOCK_BYTES_MAX, DISK_IO_BYTES_MAX};
use crate::base::rng::Rng;
use crate::storage::disk::{Crash, Disk, Fault, FaultPlan, Operation, SimulatedDisk};
use crate::storage::error::StorageError;

const DIR: &str = "/segments";
const SEED: u64 = 77;

fn disk(seed: u64) -> SimulatedDisk {
    let disk = SimulatedDisk::new(seed, 64 << 20);
    block_on(disk.create_dir(Path::new(DIR))).expect("a directory");
    disk
}

fn writer(disk: &SimulatedDisk, epoch: u64) -> SegmentWriter<SimulatedDisk> {
    let options = WriterOptions {
        epoch,
        shard: 0,
        seed: SEED,
        segment_bytes: 256 << 10,
        reserve_bytes: 0,
    };
    SegmentWriter::new(
        disk.clone(),
        DIR.into(),
        options,
        SegmentGraveyard::default(),
    )
}

fn reader(disk: &SimulatedDisk) -> BlockReader<SimulatedDisk> {
    BlockReader::new(disk.clone(), DIR.into(), SEED, 2)
}

fn blocks(rng: &mut Rng, count: u64) -> Vec<(NewBlock, Vec<u8>)> {
    (0..count)
        .map(|index| {
            let max = if rng.below(4) == 0 {
                BLOCK_BYTES_MAX as u64
            } else {
                900
            };
            let len = 1 + rng.below(max) as usize;
            let fill = rng.next_u64().to_le_bytes();
            let bytes: Vec<u8> = fill.iter().copied().cycle().take(len).collect();
            let key = BlockKey {
                kind: [BlockKind::Data, BlockKind::Blob][rng.below(2) as usize],
                owner: rng.next_u64(),
                start: index,
            };
            let cut = rng.below(len as u64 + 1) as usize;
            let whole = Bytes::from(bytes.clone());
            let pieces = vec![whole.slice(..cut), whole.slice(cut..)];
            (NewBlock { key, pieces }, bytes)
        })
        .collect()
}

#[test]
fn what_is_written_is_read_back_over_rolls_and_crashes() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let disk = disk(seed);
        let writer = writer(&disk, 1);
        let mut all = Vec::new();
        for _ in 0..1 + rng.below(8) {
            let count = 1 + rng.below(30);
            let new = blocks(&mut rng, count);
            let request: Vec<NewBlock> = new.iter().map(|(block, _)| block.clone()).collect();
            let placed = block_on(writer.write(&request)).expect("written");
            assert_eq!(placed.len(), new.len());
            for ((_, place), (block, bytes)) in placed.iter().zip(new) {
                all.push((*place, block.key, bytes));
            }
        }
        block_on(writer.sync()).expect("synced");
        disk.crash(if rng.below(2) == 0 {
            Crash::Power
        } else {
            Crash::Process
        });
        let reader = reader(&disk);
        for (place, key, bytes) in &all {
            let read = block_on(reader.read(&[(*place, *key)])).expect("read");
            assert_eq!(&read[0][..], &bytes[..], "seed {seed}");
            let other = BlockKey {
                owner: key.owner ^ 1,
                ..*key
            };
            let refused = block_on(reader.read(&[(*place, other)]));
            assert!(matches!(refused, Err(StorageError::DamagedBlock { .. })));
        }
        // All of them, in the order in which they lie and in another, in as few reads as can be.
        let mut mixed = all.clone();
        for at in (1..mixed.len()).rev() {
            mixed.swap(at, rng.below(at as u64 + 1) as usize);
        }
        for order in [&all, &mixed] {
            let mut count = 0;
            for group in reads(order, DISK_IO_BYTES_MAX, |(place, ..)| *place) {
                let wanted: Vec<_> = group.iter().map(|(place, key, _)| (*place, *key)).collect();
                let read = block_on(reader.read(&wanted)).expect("read");
                assert_eq!(read.len(), group.len());
                for (bytes, (_, _, expected)) in read.iter().zip(group) {
                    assert_eq!(&bytes[..], &expected[..]);
                }
                count += group.len();
            }
            assert_eq!(count, order.len());
        }
        let (ids, _) = block_on(list(&disk, Path::new(DIR))).expect("listed");
        let mut scanned = Vec::new();
        for id in ids {
            let report = block_on(reader.scan(id, |place, key, bytes| {
                scanned.push((place, key, bytes.to_vec()));
            }));
            assert_eq!(report.expect("scanned").skipped_bytes, 0);
        }
        assert!(scanned == all, "seed {seed}");
    }
}

#[test]
fn a_write_that_fails_hands_out_nothing_and_the_next_one_works() {
    let mut rng = Rng::from_seed(5);
    for (operation, fault) in [
        (Operation::Write, Fault::Error(libc::EIO)),
        (Operation::Write, Fault::Short),
        (Operation::Allocate, Fault::Error(libc::ENOSPC)),
        (Operation::Open, Fault::Error(libc::EMFILE)),
    ] {
        let disk = disk(1);
        let writer = writer(&disk, 1);
        let new = blocks(&mut rng, 40);
        let request: Vec<NewBlock> = new.iter().map(|(block, _)| block.clone()).collect();
        disk.plan(FaultPlan {
            faults: vec![(operation, 1, fault)],
            ..FaultPlan::default()
        });
        assert!(block_on(writer.write(&request)).is_err());
        let placed = block_on(writer.write(&request)).expect("written again");
        block_on(writer.sync()).expect("synced");
        let reader = reader(&disk);
        for ((_, place), (block, bytes)) in placed.iter().zip(new) {
            let read = block_on(reader.read(&[(*place, block.key)])).expect("read");
            assert_eq!(&read[0][..], &bytes[..]);
        }
    }
}

#[test]
fn a_full_disk_is_said_before_a_file_is_made() {
    let disk = disk(1);
    disk.set_capacity(0);
    let new = blocks(&mut Rng::from_seed(1), 1);
    let refused = block_on(writer(&disk, 1).write(&[new[0].0.clone()]));
    assert!(matches!(refused, Err(StorageError::DiskFull { .. })));
}

#[test]
fn a_start_keeps_what_is_named_and_nothing_else() {
    let mut rng = Rng::from_seed(3);
    let disk = disk(3);
    let writer = writer(&disk, 1);
    let mut placed = Vec::new();
    for (block, _) in blocks(&mut rng, 200) {
        placed.extend(block_on(writer.write(&[block])).expect("written"));
    }
    block_on(writer.sync()).expect("synced");
    let (ids, _) = block_on(list(&disk, Path::new(DIR))).expect("listed");
    assert!(ids.len() > 3);
    let (kept, end) = (ids[1], 9000);
    let graveyard = SegmentGraveyard::default();
    let mut known = std::collections::HashMap::new();
    let segment = intern(&mut known, kept, &graveyard);
    let named = [(kept, end)].into();
    block_on(reconcile(&disk, Path::new(DIR), &named, &known)).expect("whole");
    assert_eq!(segment.taken_bytes(), 12288);
    let (left, _) = block_on(list(&disk, Path::new(DIR))).expect("listed");
    assert_eq!(left, [kept]);
    let longer = [(kept, 20_000)].into();
    let refused = block_on(reconcile(&disk, Path::new(DIR), &longer, &known));
    assert!(matches!(refused, Err(StorageError::WrongLength { .. })));
    let missing = [(kept, end), (ids[0], 9000)].into();
    let refused = block_on(reconcile(&disk, Path::new(DIR), &missing, &known));
    assert!(matches!(refused, Err(StorageError::MissingFile { .. })));
}

#[test]
fn a_first_block_and_a_length_are_mended_and_blocks_left_alone() {
    let disk = disk(5);
    let mut rng = Rng::from_seed(5);
    let all = blocks(&mut rng, 3);
    let new: Vec<NewBlock> = all.iter().map(|(block, _)| block.clone()).collect();
    let placed = block_on(writer(&disk, 1).write(&new)).expect("written");
    let (_, last) = placed.last().expect("some").clone();
    let path = Path::new(DIR).join(last.segment.name());
    let check = |end| block_on(reader(&disk).check(last.segment, end));
    assert!(check(last.end()).is_ok());
    let longer = (1 << 30) - 1;
    assert!(matches!(
        check(longer),
        Err(StorageError::WrongLength { .. })
    ));
    let mut flipped = disk.contents(&path).expect("a file");
    flipped[20] ^= 1;
    disk.set_contents(&path, flipped);
    let damaged = check(last.end());
    assert!(matches!(
        damaged,
        Err(StorageError::DamagedFileHeader { .. })
    ));
    let mended = mend(&disk, Path::new(DIR), last.segment, SEED, last.end());
    block_on(mended).expect("mended");
    assert!(check(last.end()).is_ok());
    for ((_, place), (block, bytes)) in placed.iter().zip(&all) {
        let read = block_on(reader(&disk).read(&[(*place, block.key)])).expect("whole");
        assert_eq!(&read[0][..], &bytes[..]);
    }
    let other = SegmentId(last.segment.0 + 1);
    let missing = block_on(reader(&disk).check(other, 0));
    assert!(matches!(missing, Err(StorageError::MissingFile { .. })));
}
