//! What crashes, failures and second thoughts leave: the old checkpoint or the new one, whole.

use futures_lite::future::or;

use super::*;
use crate::storage::disk::Crash;

/// The entries of checkpoint `number` in these tests.
fn entries(number: u64) -> Vec<Vec<u8>> {
    let mut entries = many(150 + number as u32 * 10);
    entries.push(large(1_100_000));
    entries.extend(many(40));
    entries
}

/// A disk on which checkpoint 1 rules, durably.
fn ruled_by_one(seed: u64) -> SimulatedDisk {
    let disk = disk(seed);
    block_on(replace(&disk, 1)).expect("the first checkpoint");
    disk
}

/// All that a shard does to move on to checkpoint `number`.
async fn replace(disk: &SimulatedDisk, number: u64) -> Result<(), StorageError> {
    let current = write(disk, &identity(), number, &entries(number)).await?;
    current.store(disk, &identity()).await?;
    remove_others(disk, &identity(), &[number]).await?;
    Ok(())
}

/// The number that rules; what it names is whole.
fn ruling(disk: &SimulatedDisk, context: &str) -> u64 {
    let current = block_on(Current::load(disk, &identity()));
    let current = current.unwrap_or_else(|error| panic!("{context}: {error}"));
    let current = current.unwrap_or_else(|| panic!("{context}: no current"));
    let found = block_on(read(disk, &identity(), &current));
    let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(found == entries(current.number), "{context}");
    assert_eq!(current.replay_from, Position(current.number * 100));
    current.number
}

/// Checkpoint files and `current.new` in the directory.
fn files(disk: &SimulatedDisk) -> Vec<String> {
    let names = block_on(disk.list_dir(Path::new(DIR))).expect("a directory");
    names.into_iter().filter(|name| name != CURRENT).collect()
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new_checkpoint() {
    let (mut old, mut new) = (0, 0);
    for crash in [Crash::Process, Crash::Power] {
        for seed in 0..6 {
            for halt_after in 0.. {
                let context = format!("{crash:?}, seed {seed}, halt after {halt_after}");
                let disk = ruled_by_one(seed);
                disk.plan(FaultPlan::halt_after(halt_after));
                let ended = block_on(or(
                    async {
                        replace(&disk, 2).await.expect("nothing fails");
                        true
                    },
                    async {
                        disk.halted().await;
                        false
                    },
                ));
                disk.crash(crash);
                let number = ruling(&disk, &context);
                assert!(
                    number == 2 || (number == 1 && !ended),
                    "{context}: {number}"
                );
                match number {
                    1 => old += 1,
                    _ => new += 1,
                }
                // The next start tidies up and moves on, under the number that was unfinished.
                let next = number + 1;
                block_on(remove_others(&disk, &identity(), &[number])).expect("tidy");
                assert_eq!(ruling(&disk, &context), number);
                assert_eq!(files(&disk).len(), 1, "{context}");
                block_on(replace(&disk, next)).expect("the next checkpoint");
                disk.crash(Crash::Power);
                assert_eq!(ruling(&disk, &context), next, "{context}");
                if ended {
                    assert!(halt_after > 10, "{context}");
                    break;
                }
            }
        }
    }
    assert!(old > 50 && new > 20, "{old} old, {new} new");
}

#[test]
fn a_failure_at_any_step_leaves_the_old_or_the_new_checkpoint() {
    let kinds = [
        (Operation::Open, 2),
        (Operation::Write, 5),
        (Operation::Sync, 2),
        (Operation::SyncDir, 2),
        (Operation::Rename, 1),
    ];
    for (operation, count) in kinds {
        for nth in 1..=count {
            for fault in [Fault::Error(libc::ENOSPC), Fault::Short] {
                let context = format!("{operation:?} {nth}, {fault:?}");
                let disk = ruled_by_one(nth);
                disk.plan(FaultPlan::fault(operation, nth, fault));
                block_on(replace(&disk, 2)).expect_err(&context);
                let unsure = (operation, nth) == (Operation::SyncDir, 2);
                let number = ruling(&disk, &context);
                assert!(number == 1 || unsure, "{context}: {number}");
                disk.crash(Crash::Power);
                let number = ruling(&disk, &context);
                assert!(number == 1 || unsure, "{context}: {number}");
            }
        }
    }
}

#[test]
fn after_a_failure_a_writer_stops_and_leaves_nothing() {
    let disk = ruled_by_one(1);
    for dropped in [false, true] {
        let start = CheckpointWriter::create(disk.clone(), identity(), 2);
        let mut writer = block_on(start).expect("a writer");
        block_on(writer.append(b"first")).expect("room");
        let entry = large(2 << 20);
        if dropped {
            disk.plan(FaultPlan {
                delay_turns_max: 1000,
                ..FaultPlan::default()
            });
            let nothing = or(async { Some(writer.append(&entry).await) }, async { None });
            assert!(block_on(nothing).is_none());
            disk.plan(FaultPlan::default());
        } else {
            let fault = Fault::Error(libc::EIO);
            disk.plan(FaultPlan::fault(Operation::Write, 2, fault));
            let error = block_on(writer.append(&entry)).expect_err("a failed write");
            assert!(matches!(error, StorageError::Io { .. }), "{error}");
        }
        let error = block_on(writer.append(b"more")).expect_err("stopped");
        assert!(
            matches!(error, StorageError::CheckpointStopped { .. }),
            "{error}"
        );
        assert_eq!(files(&disk).len(), 2);
        let error = block_on(writer.finish(Position(0))).expect_err("stopped");
        assert!(
            matches!(error, StorageError::CheckpointStopped { .. }),
            "{error}"
        );
        assert_eq!(files(&disk).len(), 1, "the unfinished file is removed");
    }
    assert_eq!(ruling(&disk, "afterwards"), 1);
}

#[test]
fn an_abandoned_checkpoint_is_removed_and_an_unfinished_one_replaced() {
    let disk = ruled_by_one(1);
    let start = || block_on(CheckpointWriter::create(disk.clone(), identity(), 2));
    let mut writer = start().expect("a writer");
    block_on(writer.append(&large(8 << 20))).expect("room");
    assert_eq!(files(&disk).len(), 2);
    block_on(writer.abandon());
    assert_eq!(files(&disk).len(), 1);

    let mut writer = start().expect("a writer");
    block_on(writer.append(&large(8 << 20))).expect("room");
    drop(writer);
    // Shorter than what was left behind.
    block_on(replace(&disk, 2)).expect("a checkpoint");
    assert_eq!(ruling(&disk, "replaced"), 2);
}
