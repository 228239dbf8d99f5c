//! Repair: afterwards the journal opens, and only what was damaged is gone.

use super::*;
use crate::storage::journal::format::{BatchHeader, FILE_HEADER_BYTES, FileHeader};
use crate::storage::journal::{LostBatches, RepairReport, repair};

const QUARANTINE: &str = "/shard-0/quarantine";

fn mend(rig: &Rig) -> RepairReport {
    let (dir, quarantine) = (Path::new(DIR), Path::new(QUARANTINE));
    block_on(repair(&rig.disk, dir, SHARD, quarantine, &rig.options)).expect("a repair")
}

/// 40 records of one block each, over three files. Record `n` is batch `n + 2`, all bytes `n + 1`.
fn rig() -> (Rig, Vec<Vec<u8>>) {
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (1..=40u8).map(|n| vec![n; 4000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    rig.live(&slices, Crash::Process);
    (rig, records)
}

/// Positions handed out when opening.
fn positions(rig: &mut Rig) -> Vec<u64> {
    rig.options.epoch += 1;
    let mut positions = Vec::new();
    let keep = |position: Position, record: &[u8]| {
        assert_eq!(u64::from(record[0]), position.0 + 1);
        positions.push(position.0);
        Ok(())
    };
    let (disk, options) = (rig.disk.clone(), rig.options.clone());
    block_on(Journal::open(disk, Path::new(DIR), SHARD, options, keep)).expect("a journal");
    rig.disk.crash(Crash::Power);
    positions
}

#[test]
fn a_whole_journal_is_left_alone() {
    let (mut rig, _) = rig();
    let before = rig.contents(1);
    assert_eq!(mend(&rig), RepairReport::default());
    assert_eq!(rig.contents(1), before);
    assert_eq!(positions(&mut rig).len(), 40);
}

#[test]
fn a_damaged_batch_costs_only_itself() {
    for lost in [0, 5, 13, 14, 20, 38] {
        let (mut rig, records) = rig();
        for number in 1..=3 {
            rig.edit(number, |bytes| {
                let marker = &records[lost as usize][..];
                if let Some(at) = bytes.windows(4000).position(|window| window == marker) {
                    bytes[at] ^= 0x80;
                }
            });
        }
        assert!(rig.try_open().is_err(), "record {lost}");
        let report = mend(&rig);
        let batch = lost + 2;
        assert_eq!(
            report.lost,
            [LostBatches {
                first: batch,
                last: batch,
                records: 1
            }]
        );
        let [copy] = &report.quarantined[..] else {
            panic!("{report:?}")
        };
        assert!(
            rig.disk
                .contents(copy)
                .is_some_and(|bytes| bytes.len() as u64 == BLOCK)
        );
        assert_eq!(mend(&rig), RepairReport::default(), "once is enough");
        let expected: Vec<u64> = (0..40).filter(|position| *position != lost).collect();
        for _ in 0..2 {
            assert_eq!(positions(&mut rig), expected, "record {lost}");
        }
        // It is a journal like any other.
        rig.live(&[&[41]], Crash::Power);
        assert_eq!(positions(&mut rig).last(), Some(&40));
    }
}

#[test]
fn a_missing_file_costs_what_it_held() {
    for missing in 1..=2 {
        let (mut rig, _) = rig();
        let held = rig.contents(missing);
        let kept = |position: &u64| {
            let record = [*position as u8 + 1; 4000];
            !held.windows(4000).any(|window| window == record)
        };
        let expected: Vec<u64> = (0..40).filter(kept).collect();
        assert!(expected.len() < 30);
        rig.disk.unlink(&Rig::path(missing));
        let report = mend(&rig);
        assert_eq!(report.made, [Rig::path(missing)]);
        for _ in 0..2 {
            assert_eq!(positions(&mut rig), expected);
        }
    }
}

#[test]
fn a_damaged_first_block_costs_nothing() {
    for number in 1..=4 {
        let (mut rig, _) = rig();
        rig.edit(number, |bytes| bytes[20] ^= 1);
        assert!(rig.try_open().is_err());
        assert_eq!(mend(&rig).headers, [Rig::path(number)]);
        assert_eq!(positions(&mut rig).len(), 40);
    }
}

/// Four records in one file, record `n` in batch `n + 2`, and the header of one of those batches
/// written again, so that it verifies, as `change` says.
fn forged(batch: u64, change: impl FnOnce(&mut BatchHeader)) -> Rig {
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (1..=4u8).map(|n| vec![n; 4000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    rig.live(&slices, Crash::Process);
    rig.edit(1, |bytes| {
        let (first, _) = bytes.split_at(FILE_HEADER_BYTES as usize);
        let file = FileHeader::decode(first).expect("a file's header");
        let at = (batch * BLOCK) as usize;
        let header = BatchHeader::decode(&bytes[at..], &file, at as u64);
        let mut header = header.expect("a batch's header");
        assert_eq!(header.number, batch);
        change(&mut header);
        header.encode(&mut bytes[at..]);
    });
    rig
}

#[test]
fn numbers_that_cannot_be_are_no_proof_and_no_sum() {
    let damaged = |change: fn(&mut BatchHeader)| {
        let rig = forged(5, change);
        for batch in [3, 4] {
            rig.edit(1, |bytes| bytes[(batch * BLOCK) as usize + 100] ^= 1);
        }
        rig
    };
    let changes: [fn(&mut BatchHeader); 4] = [
        |header| (header.number, header.durable) = (0, 4),
        |header| (header.number, header.durable) = (u64::MAX, u64::MAX - 1),
        |header| header.durable = u64::MAX,
        |header| header.first_record = u64::MAX,
    ];
    for change in changes {
        let mut rig = damaged(change);
        assert_eq!(mend(&rig), RepairReport::default());
        assert_eq!(positions(&mut rig), [0]);
    }
    // As it was written it is one.
    let mut rig = damaged(|_| {});
    assert_eq!(mend(&rig).lost.len(), 1);
    assert_eq!(positions(&mut rig), [0, 3]);
}

#[test]
fn what_no_filler_can_stand_for_is_refused() {
    // Batch 3 says that it is the ninth, where there is no room for those between.
    let jumped = forged(3, |header| (header.number, header.durable) = (9, 8));
    // More records than one batch can have are missing before batch 4.
    let many = forged(4, |header| header.first_record = 1 << 40);
    many.edit(1, |bytes| bytes[3 * BLOCK as usize + 100] ^= 1);
    for rig in [jumped, many] {
        let (dir, quarantine) = (Path::new(DIR), Path::new(QUARANTINE));
        let before = rig.contents(1);
        let refused = block_on(repair(&rig.disk, dir, SHARD, quarantine, &rig.options));
        assert!(
            matches!(refused, Err(StorageError::DamagedBatch { batch: 3, .. })),
            "{refused:?}"
        );
        assert_eq!(rig.contents(1), before);
    }
}

#[test]
fn a_number_far_away_does_not_fill_the_disk() {
    let (rig, _) = rig();
    let far = 1 << 40;
    rig.disk.set_contents(&Rig::path(far), rig.contents(3));
    let (dir, quarantine) = (Path::new(DIR), Path::new(QUARANTINE));
    let refused = block_on(repair(&rig.disk, dir, SHARD, quarantine, &rig.options));
    assert!(
        matches!(refused, Err(StorageError::DiskFull { .. })),
        "{refused:?}"
    );
    assert!(
        rig.disk.contents(&Rig::path(5)).is_none(),
        "nothing was made"
    );
    // A number that no journal reaches is not one: the file is somebody else's.
    rig.disk.unlink(&Rig::path(far));
    rig.disk.set_contents(&Rig::path(u64::MAX), vec![1]);
    assert_eq!(mend(&rig), RepairReport::default());
    assert_eq!(rig.disk.contents(&Rig::path(u64::MAX)), Some(vec![1]));
}

#[test]
fn damage_in_several_places_and_a_kill_at_any_moment() {
    let damaged = || {
        let (rig, _) = rig();
        rig.edit(1, |bytes| bytes[5 * BLOCK as usize + 30] ^= 1);
        rig.edit(1, |bytes| bytes[15 * BLOCK as usize + 30] ^= 1);
        rig.edit(2, |bytes| {
            bytes[BLOCK as usize..9 * BLOCK as usize].fill(0xff)
        });
        rig
    };
    let mut whole = damaged();
    whole.disk.plan(FaultPlan::default());
    assert_eq!(mend(&whole).lost.len(), 2);
    let operations = whole.disk.operations();
    let expected = positions(&mut whole);
    assert_eq!(expected.len(), 40 - 1 - 1 - 8);
    for halt_after in 0..operations {
        for crash in [Crash::Process, Crash::Power] {
            let mut rig = damaged();
            rig.disk.plan(FaultPlan::halt_after(halt_after));
            block_on(or(
                async {
                    mend_until_halt(&rig).await;
                },
                rig.disk.halted(),
            ));
            rig.disk.crash(crash);
            mend(&rig);
            assert_eq!(positions(&mut rig), expected, "{halt_after} {crash:?}");
        }
    }
}

async fn mend_until_halt(rig: &Rig) {
    let (dir, quarantine) = (Path::new(DIR), Path::new(QUARANTINE));
    let report = repair(&rig.disk, dir, SHARD, quarantine, &rig.options).await;
    panic!("halted before: {report:?}");
}
