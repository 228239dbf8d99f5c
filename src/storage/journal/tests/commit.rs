//! Staging, group commit, failure, space.

use std::time::Duration;

use super::*;
use crate::storage::disk::{Fault, Operation};

#[test]
fn records_come_back_in_order_over_files_and_starts() {
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; usize::from(n) * 50]).collect();
    let mut rolls = 0;
    for (life, chunk) in records.chunks(20).enumerate() {
        let chunk: Vec<&[u8]> = chunk.iter().map(Vec::as_slice).collect();
        let crash = if life % 2 == 0 {
            Crash::Process
        } else {
            Crash::Power
        };
        let opened = rig.live(&chunk, crash);
        assert_eq!(opened.records, records[..life * 20]);
        assert_eq!(opened.report.next_position, Position(life as u64 * 20));
        rolls += opened.journal.stats().rolls;
    }
    assert!(rolls >= 2, "{rolls}");
    assert_eq!(rig.open().records, records);
}

#[test]
fn while_a_batch_is_on_its_way_the_next_one_fills() {
    let mut rig = Rig::new();
    rig.options.in_flight_max = 1;
    let opened = rig.open();
    let journal = &opened.journal;
    let acknowledged = RefCell::new(Vec::new());
    block_on(or(
        journal.run(
            |number| acknowledged.borrow_mut().push(number),
            |error| panic!("{error}"),
        ),
        async {
            let first = journal.stage(&[b"a"]).expect("room");
            yield_now().await;
            let rest: Vec<_> = (0..10).map(|_| journal.stage(&[b"b", b"c"])).collect();
            assert!(
                rest.iter()
                    .all(|number| *number == Ok(BatchNumber(first.0 + 1))),
                "{rest:?}"
            );
            assert_eq!(journal.next_position(), Position(11));
            journal.close().await;
            assert_eq!(journal.stage(&[b"d"]), Err(StageError::Latched));
        },
    ));
    assert_eq!(*acknowledged.borrow(), [BatchNumber(2), BatchNumber(3)]);
    let stats = journal.stats();
    assert_eq!((stats.batches, stats.records, stats.syncs), (2, 11, 2));
}

#[test]
fn a_record_larger_than_a_write_is_one_batch() {
    let mut rig = Rig::new();
    rig.options.file_bytes = 4 << 20;
    rig.options.record_bytes_max = 3 << 20;
    rig.options.batch_bytes_max = 1 << 20;
    let record: Vec<u8> = (0..3u32 << 20)
        .map(|n| n.to_le_bytes()[1] ^ n as u8)
        .collect();
    let opened = rig.live(&[&record, b"after"], Crash::Power);
    let stats = opened.journal.stats();
    assert_eq!((stats.batches, stats.writes, stats.syncs), (2, 5, 2));
    assert_eq!(
        opened.journal.stage(&[&record, b"x"]),
        Err(StageError::TooLarge)
    );
    assert_eq!(rig.open().records, [record, b"after".to_vec()]);
}

#[test]
fn a_file_must_hold_the_largest_record() {
    let mut rig = Rig::new();
    rig.options.record_bytes_max = rig.options.file_bytes as usize - 4096 - 84;
    assert!(rig.try_open().is_ok());
    rig.options.record_bytes_max += 1;
    let error = rig.try_open().err();
    assert!(
        matches!(error, Some(StorageError::FileTooSmall { .. })),
        "{error:?}"
    );
}

/// Runs a journal into a fault: stages records until it latches. How many were acknowledged, and
/// what the failure was.
fn run_into(rig: &Rig, opened: &Opened, plan: FaultPlan) -> (u64, String) {
    let journal = &opened.journal;
    rig.disk.plan(plan);
    let before = journal.durable().0;
    let failure = RefCell::new(Vec::new());
    let counts = || [Operation::Write, Operation::Sync].map(|kind| rig.disk.count(kind));
    let at_failure = Cell::new([0; 2]);
    block_on(async {
        let script = async {
            while journal.health() != Health::Failed {
                let _ = journal.stage(&[b"record"]);
                yield_now().await;
            }
            std::future::pending::<()>().await;
        };
        or(
            journal.run(
                |_| assert!(failure.borrow().is_empty(), "acknowledged after a failure"),
                |error| {
                    failure.borrow_mut().push(error.to_string());
                    at_failure.set(counts());
                },
            ),
            script,
        )
        .await;
    });
    assert_eq!(journal.health(), Health::Failed);
    assert_eq!(journal.stage(&[b"more"]), Err(StageError::Latched));
    let failures = failure.into_inner();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(counts(), at_failure.get(), "something was tried again");
    (journal.durable().0 - before, failures.concat())
}

#[test]
fn a_failed_sync_latches_and_is_not_tried_again() {
    let mut rig = Rig::new();
    let opened = rig.open();
    // The first sync is that of the file made ahead.
    let lasting = vec![(Operation::Sync, 4, Fault::Error(libc::EIO))];
    let plan = FaultPlan {
        lasting,
        delay_turns_max: 2,
        ..FaultPlan::default()
    };
    let (acknowledged, failure) = run_into(&rig, &opened, plan);
    assert!(acknowledged <= 3);
    assert!(
        failure.starts_with("sync at byte ") && failure.contains("journal"),
        "{failure}"
    );
    // The next start reads what is there.
    rig.disk.crash(Crash::Process);
    assert!(rig.open().records.len() as u64 >= acknowledged);
}

#[test]
fn a_full_disk_under_a_submitted_write_latches() {
    for fault in [
        Fault::Error(libc::ENOSPC),
        Fault::Error(libc::EIO),
        Fault::Short,
    ] {
        let mut rig = Rig::new();
        let opened = rig.open();
        // The first write is that of the file made ahead.
        let lasting = vec![(Operation::Write, 5, fault)];
        let plan = FaultPlan {
            lasting,
            ..FaultPlan::default()
        };
        let (acknowledged, failure) = run_into(&rig, &opened, plan);
        assert!(acknowledged <= 4);
        assert!(failure.contains("write at byte"), "{failure}");
        rig.disk.crash(Crash::Power);
        assert!(rig.open().records.len() as u64 >= acknowledged);
    }
}

#[test]
fn a_full_disk_is_noticed_before_staging_and_clears() {
    let mut rig = Rig::new();
    let opened = rig.open();
    let journal = &opened.journal;
    let second = Duration::from_secs(1);
    run(journal, async {
        commit(journal, b"before").await;
        rig.disk.set_capacity(0);
        rig.disk.advance(second);
        // What is prepared is used up, then staging is refused and nothing is applied.
        let mut taken = 1;
        while journal.stage(&[&[7; 4000]]).is_ok() {
            taken += 1;
            yield_now().await;
        }
        assert!(
            (15..=30).contains(&taken),
            "{taken} in two files of 15 blocks"
        );
        for _ in 0..50 {
            yield_now().await;
        }
        assert_eq!(journal.health(), Health::DiskPressure);
        assert_eq!(journal.stage(&[b"no"]), Err(StageError::DiskPressure));
        assert_eq!(journal.next_position(), Position(taken));
        rig.disk.set_capacity(64 << 20);
        rig.disk.advance(second);
        for _ in 0..50 {
            yield_now().await;
        }
        assert_eq!(journal.health(), Health::Ok);
        commit(journal, b"after").await;
        assert_eq!(journal.next_position(), Position(taken + 1));
    });
    rig.disk.crash(Crash::Power);
    let records = rig.open().records;
    assert_eq!(records.first().map(Vec::as_slice), Some(&b"before"[..]));
    assert_eq!(records.last().map(Vec::as_slice), Some(&b"after"[..]));
}

#[test]
fn free_space_below_the_reserve_is_pressure() {
    let mut rig = Rig::new();
    rig.options.reserve_bytes = 1 << 20;
    let opened = rig.open();
    let journal = &opened.journal;
    run(journal, async {
        commit(journal, b"before").await;
        rig.disk.set_capacity((1 << 20) + 16 * BLOCK);
        rig.disk.advance(Duration::from_secs(1));
        for _ in 0..20 {
            yield_now().await;
        }
        assert_eq!(journal.health(), Health::DiskPressure);
        assert_eq!(journal.stage(&[b"no"]), Err(StageError::DiskPressure));
        // What only frees is taken, in what is prepared and then in what the reserve has room for.
        for _ in 0..60 {
            let freeing = journal.stage_for(Purpose::Free, &[&[7; 4000]]);
            let batch = freeing.expect("the reserve is for it");
            durable(journal, batch).await;
        }
        assert_eq!(journal.health(), Health::DiskPressure);
    });
}

#[test]
fn what_only_frees_has_prepared_space_of_its_own() {
    let mut rig = Rig::new();
    rig.options.freeing_bytes = 4 * BLOCK;
    let opened = rig.open();
    let journal = &opened.journal;
    run(journal, async {
        rig.disk.set_capacity(0);
        // All in one turn: nobody sees the disk fill up.
        let record = [7; 3000];
        while journal.stage(&[&record]).is_ok() {}
        let mut freed = 0;
        while journal.stage_for(Purpose::Free, &[&record]).is_ok() {
            freed += 1;
        }
        assert!((4..=8).contains(&freed), "{freed} in four blocks and a bit");
        durable(journal, journal.staged()).await;
        rig.disk.advance(Duration::from_secs(1));
        for _ in 0..50 {
            yield_now().await;
        }
        assert_eq!(journal.health(), Health::DiskPressure);
    });
}

#[test]
fn a_file_system_that_reserves_nothing_will_do() {
    let mut rig = Rig::new();
    let plan = FaultPlan {
        lasting: vec![(Operation::Allocate, 1, Fault::Error(libc::EOPNOTSUPP))],
        ..FaultPlan::default()
    };
    rig.disk.plan(plan);
    let records: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 4000]).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    rig.live(&slices, Crash::Power);
    assert_eq!(rig.open().records, records);
}

#[test]
fn without_syncs_a_process_crash_loses_nothing_and_a_power_cut_is_no_damage() {
    for crash in [Crash::Process, Crash::Power] {
        let mut rig = Rig::new();
        rig.options.durability = Durability::Os;
        let records: Vec<Vec<u8>> = (0..30u8).map(|n| vec![n; 4000]).collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let opened = rig.live(&slices, crash);
        assert_eq!(opened.journal.stats().syncs, 0);
        let found = rig.open().records;
        assert!(records.starts_with(&found));
        assert!(crash == Crash::Power || found.len() == records.len());
    }
}

#[test]
fn an_acknowledgement_may_stage() {
    let mut rig = Rig::new();
    let opened = rig.open();
    let journal = &opened.journal;
    let staged = Cell::new(0);
    block_on(or(
        journal.run(
            |_| {
                if staged.get() < 5 {
                    staged.set(staged.get() + 1);
                    journal.stage(&[b"again"]).expect("room");
                }
            },
            |error| panic!("{error}"),
        ),
        async {
            journal.stage(&[b"first"]).expect("room");
            while journal.durable().0 < 7 {
                yield_now().await;
            }
        },
    ));
    rig.disk.crash(Crash::Power);
    assert_eq!(rig.open().records.len(), 6);
}

/// What a copy needs is said to the byte, and stays while it is kept.
#[test]
fn the_extent_ends_behind_what_is_durable_and_kept_files_stay() {
    let mut rig = Rig::new();
    let opened = rig.open();
    let journal = &opened.journal;
    run(journal, async {
        for number in 0..40u8 {
            commit(journal, &vec![number; 4000]).await;
        }
        let files = |from| {
            let extent = journal.extent(Position(from));
            (extent.first_file, extent.last_file)
        };
        // File 1 holds the opening of the epoch and 14 records, file 2 the next 15.
        assert_eq!(
            [
                files(0),
                files(13),
                files(14),
                files(28),
                files(29),
                files(40)
            ],
            [(1, 3), (1, 3), (2, 3), (2, 3), (3, 3), (3, 3)]
        );
        let end = journal.extent(Position(0)).end as usize;
        let last = rig.disk.contents(&Rig::path(3)).expect("it is there");
        assert!(last[end..].iter().all(|byte| *byte == 0));
        assert!(last[end - 4096..end].iter().any(|byte| *byte != 0));
        journal.keep_files(Some(2));
        assert_eq!(journal.release_before(Position(40)).await.ok(), Some(1));
        journal.keep_files(None);
        assert_eq!(journal.release_before(Position(40)).await.ok(), Some(1));
    });
}

#[test]
fn released_files_are_gone_and_what_follows_stays() {
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 4000]).collect();
    let opened = rig.open();
    let journal = &opened.journal;
    run(journal, async {
        for record in &records {
            commit(journal, record).await;
        }
        // File 1 holds the opening of the epoch and 14 records.
        assert_eq!(journal.release_before(Position(13)).await.ok(), Some(0));
        assert_eq!(journal.release_before(Position(14)).await.ok(), Some(1));
        assert_eq!(journal.release_before(Position(40)).await.ok(), Some(1));
    });
    assert!(rig.disk.contents(&Rig::path(2)).is_none());
    rig.disk.crash(Crash::Power);
    let error = rig.try_open().err();
    assert!(
        matches!(
            error,
            Some(StorageError::MissingRecords {
                oldest: Some(29),
                ..
            })
        ),
        "{error:?}"
    );
    rig.options.replay_from = Position(35);
    assert_eq!(rig.open().records, records[35..]);
}
