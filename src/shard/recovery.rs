//! What a shard had: from its checkpoint, and the journal behind it.

use std::{path::Path, sync::Arc};

use crate::{
    shard::{checkpoint::Restore, tables::Tables},
    storage::{
        StorageError,
        checkpoint::{Current, Identity, read_checkpoint, remove_others},
        disk::Disk,
        journal::{Journal, Options, Position, RecoveryReport, read_journal},
        segment::{Segment, SegmentId},
    },
};

/// A recovered shard.
pub struct Recovery<D: Disk> {
    /// Its journal, open behind its last record.
    pub journal: Journal<D>,
    /// What opening it found and did.
    pub report: RecoveryReport,
    /// Its streams.
    pub tables: Tables,
    /// The checkpoint that rules.
    pub current: Option<Current>,
}

/// Recovers the shard whose journal is in `journal_dir`. `segment` finds the segment of an id for
/// all shards that refer to it.
///
/// # Errors
/// [`StorageError`]: what the checkpoint or the journal should have is not there whole. Nothing
/// older is fallen back to.
pub async fn recover<D: Disk>(
    disk: &D,
    journal_dir: &Path,
    identity: &Identity,
    options: Options,
    tables: Tables,
    segment: &mut dyn FnMut(SegmentId) -> Arc<Segment>,
) -> Result<Recovery<D>, StorageError> {
    let mut restore = Restore::new(tables, segment);
    let current = load(disk, identity, &mut restore).await?;
    // The rename that made it rule may not be durable: before anything goes that the one before it
    // names, it must be.
    let dir = &identity.dir;
    let synced = disk.sync_dir(dir).await;
    synced.map_err(StorageError::io("sync", dir))?;
    let options = Options {
        replay_from: replay_from(current.as_ref()),
        ..options
    };
    let shard = identity.shard;
    let (journal, report) = Journal::open(
        disk.clone(),
        journal_dir,
        shard,
        options,
        |position, record| restore.record(position, record).map_err(Into::into),
    )
    .await?;
    check_reach(journal_dir, &report, current.as_ref(), &restore)?;
    // Of a checkpoint that a crash interrupted, nothing is needed.
    let number: Vec<u64> = current.iter().map(|current| current.number).collect();
    for path in remove_others(disk, identity, &number).await? {
        tracing::warn!(path = %path.display(), "not ours: left alone");
    }
    Ok(Recovery {
        journal,
        report,
        tables: restore.finish(),
        current,
    })
}

/// The same for those who only read: changes nothing.
///
/// # Errors
/// [`StorageError`], as [`recover`].
pub async fn read<D: Disk>(
    disk: &D,
    journal_dir: &Path,
    identity: &Identity,
    restore: &mut Restore<'_>,
) -> Result<(RecoveryReport, Option<Current>), StorageError> {
    let current = load(disk, identity, restore).await?;
    let from = replay_from(current.as_ref());
    let report = read_journal(disk, journal_dir, from, |position, record| {
        restore.record(position, record).map_err(Into::into)
    })
    .await?;
    check_reach(journal_dir, &report, current.as_ref(), restore)?;
    Ok((report, current))
}

async fn load<D: Disk>(
    disk: &D,
    identity: &Identity,
    restore: &mut Restore<'_>,
) -> Result<Option<Current>, StorageError> {
    let current = Current::load(disk, identity).await?;
    if let Some(current) = &current {
        // An entry is longer than this: no more room is made than the file, whose length has been
        // checked when its first entry comes, can ask for.
        const ENTRY_BYTES_MIN: u64 = 32;
        let mut expected = Some(current.entries.min(current.bytes / ENTRY_BYTES_MIN) as usize);
        read_checkpoint(disk, identity, current, |entry| {
            if let Some(streams) = expected.take() {
                restore.reserve(streams);
            }
            restore.entry(entry).map_err(Into::into)
        })
        .await?;
    }
    Ok(current)
}

/// The first record that is not in the checkpoint.
#[must_use]
pub fn replay_from(current: Option<&Current>) -> Position {
    current.map_or(Position(0), |current| current.replay_from)
}

/// Refuses a journal that ends before what the checkpoint has of it: what looks like a torn tail
/// was durable, and new records would take the positions of lost ones.
///
/// # Errors
/// [`StorageError::ShortJournal`].
pub fn check_reach(
    journal_dir: &Path,
    report: &RecoveryReport,
    current: Option<&Current>,
    restore: &Restore<'_>,
) -> Result<(), StorageError> {
    let included = replay_from(current).max(restore.reach());
    if report.next_position >= included {
        return Ok(());
    }
    Err(StorageError::ShortJournal {
        dir: journal_dir.to_owned(),
        end: report.next_position.0,
        included: included.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::incarnation::Allocator, storage::blob::Graveyard};

    #[test]
    fn a_journal_that_ends_before_its_checkpoint_is_refused() {
        let tables = Tables::new(Allocator::new([0; 16], 0), Graveyard::default());
        let mut segment = |_| panic!("nothing is in segments");
        let restore = Restore::new(tables, &mut segment);
        let current = Current {
            number: 1,
            replay_from: Position(7),
            entries: 0,
            bytes: 0,
        };
        let check = |end, current| {
            let report = RecoveryReport {
                next_position: Position(end),
                ..RecoveryReport::default()
            };
            check_reach(Path::new("journal"), &report, current, &restore)
        };
        assert!(check(0, None).is_ok());
        assert!(check(7, Some(&current)).is_ok());
        let short = check(6, Some(&current));
        let (end, included) = match short {
            Err(StorageError::ShortJournal { end, included, .. }) => (end, included),
            other => panic!("{other:?}"),
        };
        assert_eq!((end, included), (6, 7));
    }
}
