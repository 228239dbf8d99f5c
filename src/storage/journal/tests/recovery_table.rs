//! The recovery table of the design, a test per row, and what else may lie on a disk.

use super::*;
use crate::storage::disk::Operation;
use crate::storage::journal::{Tail, read_journal, repair};

/// Offset of the `n`-th batch, from 0, of a file of batches of one block each.
fn block(n: u64) -> usize {
    ((1 + n) * BLOCK) as usize
}

fn refusal(rig: &mut Rig) -> StorageError {
    rig.try_open().err().expect("a refusal")
}

#[test]
fn torn_last_batch_is_cut_and_the_next_record_follows_the_last_whole_one() {
    // The batch of `[7; 9000]` takes three blocks; block 0 holds the opening of the epoch.
    let long = [7u8; 9000];
    for torn_block in 0..3 {
        let mut rig = Rig::new();
        rig.live(&[b"one", &long], Crash::Process);
        let from = block(2 + torn_block);
        rig.edit(1, |bytes| bytes[from..from + 512].fill(0));
        let opened = rig.live(&[b"two"], Crash::Power);
        assert_eq!(opened.records, [b"one"]);
        let cut = opened.report.cut.expect("a cut");
        assert_eq!((cut.path, cut.offset), (Rig::path(1), block(2) as u64));
        assert_eq!(
            cut.tail,
            if torn_block == 0 {
                Tail::Stale
            } else {
                Tail::Torn(3)
            }
        );
        assert_eq!(rig.open().records, [b"one", b"two"]);
    }
}

#[test]
fn zeros_end_the_log() {
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    let opened = rig.open();
    assert_eq!((opened.records.len(), opened.report.cut), (1, None));
}

#[test]
fn stale_bytes_behind_a_cut_never_return() {
    let mut rig = Rig::new();
    rig.live(&[b"one", b"two", b"three", b"four"], Crash::Process);
    // "two" is torn; "three" and "four" are whole and said to have been issued before "two" was
    // durable: the machine stopped with three batches in flight.
    let whole = rig.contents(1);
    rig.edit(1, |bytes| {
        bytes[block(2)] ^= 1;
        for n in 3..5 {
            let at = block(n);
            reissue(&mut bytes[at..at + BLOCK as usize], 2);
        }
    });
    assert_eq!(rig.open().records, [b"one"]);
    // The opening of an epoch now lies over "two". Each new batch ends where an old one begins.
    rig.disk.crash(Crash::Process);
    assert_eq!(rig.live(&[b"TWO"], Crash::Process).records, [b"one"]);
    assert_eq!(rig.open().records, [&b"one"[..], b"TWO"]);
    // Even if a disk brought back the whole old block.
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    rig.live(&[], Crash::Process);
    rig.edit(1, |bytes| {
        bytes[block(3)..block(4)].copy_from_slice(&whole[block(3)..block(4)])
    });
    assert_eq!(rig.open().records, [b"one"]);
}

/// A whole batch with a flag that nobody knows is not taken for a torn one: what it holds was
/// acknowledged.
#[test]
fn a_batch_with_an_unknown_flag_is_refused_and_not_cut() {
    for n in [0, 1, 2] {
        for bit in 2..32 {
            let mut rig = Rig::new();
            rig.live(&[b"one", b"two"], Crash::Process);
            let flags = u32::from(n == 0) | 1 << bit;
            rig.edit(1, |bytes| flag(&mut bytes[block(n)..block(n + 1)], flags));
            let error = refusal(&mut rig);
            let batch = match error {
                StorageError::MalformedBatch { batch, .. } => batch,
                error => panic!("batch {n}, bit {bit}: {error}"),
            };
            assert_eq!(batch, n + 1);
        }
    }
}

/// Changes the flags of the batch at the head of `batch`.
fn flag(batch: &mut [u8], flags: u32) {
    batch[12..16].copy_from_slice(&flags.to_le_bytes());
    seal(batch);
}

/// Changes the durable mark of the batch at the head of `batch`.
fn reissue(batch: &mut [u8], durable: u64) {
    batch[40..48].copy_from_slice(&durable.to_le_bytes());
    seal(batch);
}

fn seal(batch: &mut [u8]) {
    use crate::base::checksum::Checksum;
    let epoch = u64::from_le_bytes(batch[24..32].try_into().expect("8 bytes"));
    let checksum = Checksum::seeded(epoch).with(&batch[8..80]).value();
    batch[4..8].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn a_batch_that_a_later_one_proves_durable_is_not_cut() {
    let mut rig = Rig::new();
    rig.live(&[b"one", b"two", b"three"], Crash::Process);
    let before = rig.contents(1);
    for (at, n) in [(block(0), 1), (block(1) + 85, 2), (block(2), 3)] {
        rig.edit(1, |bytes| bytes[at] ^= 0x10);
        let error = refusal(&mut rig);
        match &error {
            StorageError::DamagedBatch {
                path,
                offset,
                batch,
                ..
            } => {
                let expected = (&Rig::path(1), block(n - 1) as u64, n);
                assert_eq!((path, *offset, *batch), expected, "{error}");
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains("--repair"), "{error}");
        rig.edit(1, |bytes| *bytes = before.clone());
    }
    assert_eq!(rig.open().records.len(), 3);
}

#[test]
fn damage_to_the_last_batch_looks_like_a_torn_write_until_a_start_has_seen_it() {
    let mut rig = Rig::new();
    rig.live(&[b"one", b"two"], Crash::Process);
    let last = block(2) + 85;
    let whole = rig.contents(1);
    rig.edit(1, |bytes| bytes[last] ^= 1);
    assert_eq!(rig.open().records, [b"one"]);

    // Had a start handed it out, the epoch it opened would prove it.
    rig.disk.crash(Crash::Process);
    rig.edit(1, |bytes| *bytes = whole);
    assert_eq!(rig.open().records.len(), 2);
    rig.disk.crash(Crash::Process);
    rig.edit(1, |bytes| bytes[last] ^= 1);
    assert!(matches!(
        refusal(&mut rig),
        StorageError::DamagedBatch { batch: 3, .. }
    ));
}

#[test]
fn damage_is_found_across_files() {
    let mut rig = Rig::new();
    let records: Vec<[u8; 9000]> = (0..12).map(|n| [n; 9000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
    rig.live(&slices, Crash::Process);
    // Three blocks each: the last of file 1 ends one block before its end.
    let files = 3;
    for number in 1..=files {
        let before = rig.contents(number);
        for at in (block(0)..before.len()).step_by(BLOCK as usize) {
            if before[at..at + 4] == *b"TWBA" {
                rig.edit(number, |bytes| bytes[at + 30] ^= 4);
                let last = number == files && before[at + 4096..].iter().all(|byte| *byte == 0);
                assert!(!last, "the last batch is in another test");
                match rig.try_open() {
                    Err(StorageError::DamagedBatch { .. }) => {}
                    Err(other) => panic!("file {number} byte {at}: {other}"),
                    Ok(opened) => {
                        // Only the last batch is without proof.
                        assert_eq!(opened.records.len(), 11, "file {number} byte {at}");
                        return;
                    }
                }
                rig.edit(number, |bytes| *bytes = before.clone());
            }
        }
    }
    panic!("the last batch was never met");
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let records: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 4000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    for missing in 1..=3 {
        let mut rig = Rig::new();
        rig.live(&slices, Crash::Process);
        rig.disk.unlink(&Rig::path(missing));
        let error = refusal(&mut rig);
        let named = match &error {
            StorageError::MissingFile { path } => *path == Rig::path(missing),
            StorageError::MissingRecords {
                needed: 0, oldest, ..
            } => missing == 1 && *oldest > Some(0),
            _ => false,
        };
        assert!(named, "{missing}: {error}");
    }
    // All of them: an empty directory is a new journal only if the caller says so.
    let mut rig = Rig::new();
    rig.live(&slices, Crash::Process);
    for number in 1..=5 {
        rig.disk.unlink(&Rig::path(number));
    }
    assert!(matches!(
        refusal(&mut rig),
        StorageError::MissingFile { .. }
    ));
}

#[test]
fn a_kill_at_any_moment_of_recovery_changes_nothing() {
    let prepare = || {
        let mut rig = Rig::new();
        let records: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 4000]).collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        rig.live(&slices, Crash::Process);
        // A torn batch, an unfinished file and one that someone lengthened.
        rig.edit(2, |bytes| {
            let torn = bytes
                .iter()
                .rposition(|byte| *byte == 19)
                .expect("the last record");
            bytes[torn] = 0;
            bytes.extend_from_slice(b"12345678");
        });
        let preparing = Path::new(DIR).join("00000000000000000009.preparing");
        rig.disk.set_contents(&preparing, vec![1; 100]);
        (rig, records)
    };
    let (mut rig, mut records) = prepare();
    records.pop();
    rig.disk.plan(FaultPlan::default());
    assert_eq!(rig.open().records, records);
    let operations = rig.disk.operations();
    assert!(operations > 10, "{operations}");
    for halt_after in 0..operations {
        for crash in [Crash::Process, Crash::Power] {
            let (mut rig, _) = prepare();
            rig.disk.plan(FaultPlan::halt_after(halt_after));
            rig.options.epoch += 1;
            let (disk, options) = (rig.disk.clone(), rig.options.clone());
            let halted = block_on(or(
                async {
                    let opened =
                        Journal::open(disk, Path::new(DIR), SHARD, options, |_, _| Ok(())).await;
                    opened.is_err()
                },
                async {
                    rig.disk.halted().await;
                    true
                },
            ));
            assert!(halted, "halted after {halt_after} of {operations}");
            rig.disk.crash(crash);
            assert_eq!(
                rig.live(&[b"next"], crash).records,
                records,
                "{halt_after} {crash:?}"
            );
            let found = rig.open().records;
            assert_eq!((found.len(), found.last()), (20, Some(&b"next".to_vec())));
        }
    }
}

#[test]
fn bytes_behind_the_end_of_a_file_are_cut_and_reported() {
    for newest in [1, 2] {
        let mut rig = Rig::new();
        rig.live(&[b"one"], Crash::Process);
        assert!(
            rig.disk.contents(&Rig::path(2)).is_some(),
            "a file is ready"
        );
        rig.edit(newest, |bytes| bytes.extend_from_slice(&[0x5a; 8]));
        let opened = rig.live(&[b"two"], Crash::Power);
        assert_eq!(opened.records, [b"one"]);
        assert_eq!(opened.report.trimmed, [(Rig::path(newest), 8)]);
        let opened = rig.open();
        assert_eq!(opened.records, [b"one", b"two"]);
        assert!(opened.report.trimmed.is_empty());
    }
}

#[test]
fn zeros_behind_the_end_of_a_file_end_the_log() {
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    for number in [1, 2] {
        rig.edit(number, |bytes| bytes.extend_from_slice(&[0; 4096]));
    }
    assert_eq!(rig.live(&[b"two"], Crash::Power).records, [b"one"]);
    assert_eq!(rig.open().records, [b"one", b"two"]);
}

#[test]
fn a_file_that_was_cut_short_is_refused_and_repair_lengthens_it() {
    // The one in use, even where nothing was written, and one that was made ahead.
    for (number, len) in [(1, block(2) + 50), (1, block(9)), (2, block(1))] {
        let mut rig = Rig::new();
        rig.live(&[b"one", b"two"], Crash::Process);
        rig.edit(number, |bytes| bytes.truncate(len));
        let refused = rig.try_open().map(|_| ());
        assert!(
            matches!(
                &refused,
                Err(StorageError::WrongLength { path, found, expected })
                    if *path == Rig::path(number)
                        && (*found, *expected) == (len as u64, rig.options.file_bytes)
            ),
            "{refused:?}"
        );
        let report = block_on(repair(
            &rig.disk,
            Path::new(DIR),
            SHARD,
            Path::new("/quarantine"),
            &rig.options,
        ));
        let report = report.expect("it can be mended");
        assert_eq!(report.lengthened, [(Rig::path(number), len as u64)]);
        let left: &[&[u8]] = if len < block(3) && number == 1 {
            &[b"one"]
        } else {
            &[b"one", b"two"]
        };
        assert_eq!(rig.live(&[b"three"], Crash::Power).records, left);
        assert_eq!(rig.contents(number).len() as u64, rig.options.file_bytes);
        assert_eq!(rig.open().records, [left, &[b"three"]].concat());
    }
}

#[test]
fn unknown_names_are_left_alone() {
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    let unknown = Path::new(DIR).join("notes.txt");
    rig.disk.set_contents(&unknown, b"mine".to_vec());
    let opened = rig.open();
    assert_eq!(opened.records, [b"one"]);
    assert_eq!(opened.report.unknown, std::slice::from_ref(&unknown));
    assert_eq!(rig.disk.contents(&unknown), Some(b"mine".to_vec()));
}

#[test]
fn files_of_another_size_are_read_and_used_up() {
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 4000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    rig.live(&slices, Crash::Power);
    for file_bytes in [32 * BLOCK, 12 * BLOCK] {
        rig.options.file_bytes = file_bytes;
        let opened = rig.live(&slices, Crash::Power);
        assert_eq!(opened.records[..20], records);
    }
    assert_eq!(rig.open().records.len(), 60);
}

#[test]
fn what_does_not_belong_here_is_refused() {
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    let header = rig.contents(1);

    rig.edit(1, |bytes| bytes[17] ^= 1);
    assert!(matches!(
        refusal(&mut rig),
        StorageError::DamagedFileHeader { .. }
    ));
    rig.edit(1, |bytes| {
        *bytes = header.clone();
        bytes[8] = 2;
    });
    assert!(matches!(
        refusal(&mut rig),
        StorageError::UnsupportedFormat { found: 2, .. }
    ));

    // File 2 under the name of file 1; another journal's file; an older manifest.
    let second = rig.contents(2);
    rig.edit(1, |bytes| *bytes = second);
    assert!(matches!(
        refusal(&mut rig),
        StorageError::ForeignFile { .. }
    ));
    rig.edit(1, |bytes| *bytes = header.clone());
    rig.options.journal_id += 1;
    assert!(matches!(
        refusal(&mut rig),
        StorageError::ForeignFile { .. }
    ));
    rig.options.journal_id -= 1;
    rig.options.epoch = 0;
    let error = refusal(&mut rig);
    assert!(
        matches!(
            error,
            StorageError::EpochAhead {
                found: 1,
                current: 1,
                ..
            }
        ),
        "{error}"
    );
    rig.options.epoch = 10;
    assert_eq!(rig.open().records, [b"one"]);
}

#[test]
fn a_record_that_cannot_be_applied_refuses_the_start() {
    let mut rig = Rig::new();
    rig.live(&[b"one", b"two"], Crash::Process);
    rig.options.epoch += 1;
    let apply = |position: Position, _: &[u8]| match position {
        Position(1) => Err("no such stream".into()),
        _ => Ok(()),
    };
    let (disk, options) = (rig.disk.clone(), rig.options.clone());
    let error = block_on(Journal::open(disk, Path::new(DIR), SHARD, options, apply)).err();
    assert!(
        matches!(error, Some(StorageError::Apply { position: 1, .. })),
        "{error:?}"
    );
}

#[test]
fn reading_alone_changes_nothing() {
    let mut rig = Rig::new();
    rig.live(&[b"one", b"two"], Crash::Process);
    rig.edit(1, |bytes| bytes[block(2) + 85] ^= 1);
    let before = rig.contents(1);
    rig.disk.plan(FaultPlan::default());
    let mut records = Vec::new();
    let keep = |_: Position, record: &[u8]| {
        records.push(record.to_vec());
        Ok(())
    };
    let report = block_on(read_journal(&rig.disk, Path::new(DIR), Position(0), keep));
    assert_eq!(report.expect("a journal").records, 1);
    assert_eq!(records, [b"one"]);
    assert_eq!(rig.contents(1), before);
    let writes = [
        Operation::Write,
        Operation::Sync,
        Operation::Rename,
        Operation::Remove,
    ];
    assert!(
        writes
            .iter()
            .all(|operation| rig.disk.count(*operation) == 0)
    );
}

#[test]
fn an_unreadable_disk_refuses_the_start_and_names_the_place() {
    use crate::storage::disk::Fault;
    let mut rig = Rig::new();
    rig.live(&[b"one"], Crash::Process);
    rig.disk.plan(FaultPlan::fault(
        Operation::Read,
        4,
        Fault::Error(libc::EIO),
    ));
    let error = refusal(&mut rig).to_string();
    assert!(
        error.contains("read at byte") && error.contains("check the disk"),
        "{error}"
    );
    // Reads that stop halfway are continued.
    rig.disk.crash(Crash::Process);
    let lasting = vec![(Operation::Read, 3, Fault::Short)];
    rig.disk.plan(FaultPlan {
        lasting,
        ..FaultPlan::default()
    });
    assert_eq!(rig.open().records, [b"one"]);
}
