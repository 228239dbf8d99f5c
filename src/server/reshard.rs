//! The same data in a new layout: under another number of shards, or mended.
//!
//! The records of every journal of the layout that rules are written, each to
//! the shard that owns its stream now, into the journals of a new layout
//! beside it. The old one rules until the new one is whole and durable; then
//! one rename of the manifest decides. A repair's [`Edits`] are applied on the
//! way. A crash at any moment before leaves the
//! old layout in force and the new one to be removed by the next start.

use std::{
    collections::HashMap,
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use glommio::{LocalExecutorBuilder, Placement as CorePlacement};

use crate::{
    protocol::incarnation::Incarnation,
    server::{config::Config, error::StartError, executor},
    shard::{placement::Placement, record::Record, salvage::Edits},
    storage::{
        ApplyError, StorageError,
        data_dir::{DataDir, Layout},
        disk::GlommioDisk,
        journal::{Journal, Options, Position, Stage as _, StageError, read_journal},
    },
};

/// Bytes of records staged before the copy waits for them to be durable.
const STAGED_BYTES_MAX: usize = 16 << 20;
/// A new journal that takes no record for this long lacks space.
const PATIENCE: Duration = Duration::from_secs(10);

/// Brings the layout that rules to `shards` shards.
///
/// # Errors
/// [`StartError`]; the old layout still rules then.
pub fn reshard(data_dir: &mut DataDir, config: &Config, shards: u32) -> Result<(), StartError> {
    tracing::info!(
        from = data_dir.layout().shards,
        to = shards,
        "changing the number of shards"
    );
    rewrite(data_dir, config, shards, Vec::new())
}

/// Writes the layout that rules anew, for `shards` shards, with `edits` to the records of each of
/// its shards; none where there is no entry.
///
/// # Errors
/// [`StartError`]; the old layout still rules then.
pub fn rewrite(
    data_dir: &mut DataDir,
    config: &Config,
    shards: u32,
    edits: Vec<Edits>,
) -> Result<(), StartError> {
    let old = data_dir.layout();
    let new = data_dir.begin_layout(shards)?;
    let options: Vec<Options> = (0..shards)
        .map(|shard| Options::new(&config.limits, data_dir.manifest(), &new, shard))
        .collect();
    let placement = Placement::new(data_dir.manifest().secret, shards as usize);
    let to = new.clone();
    on_executor(config, move || async move {
        copy(&old, &to, options, placement, &edits).await
    })?;
    data_dir.switch_layout(&new)?;
    // The copy has written in this epoch; what is served from now on is another.
    data_dir.update(|manifest| manifest.boot_epoch += 1)?;
    Ok(())
}

/// Runs work that comes before the shards, on an executor of its own.
///
/// # Errors
/// [`StartError`] of the work, or of the executor.
pub(super) fn on_executor<T, E, F>(
    config: &Config,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, StartError>
where
    T: Send + 'static,
    E: Into<StartError> + Send + 'static,
    F: Future<Output = Result<T, E>> + 'static,
{
    let builder = LocalExecutorBuilder::new(CorePlacement::Unbound)
        .io_memory(config.io_memory_bytes)
        .ring_depth(config.ring_depth);
    let work = move || async move { work().await.map_err(Into::into) };
    executor::spawn(0, builder, work)?.join()
}

async fn copy(
    old: &Layout,
    new: &Layout,
    options: Vec<Options>,
    placement: Placement,
    edits: &[Edits],
) -> Result<(), StorageError> {
    let mut journals = Vec::new();
    for (shard, options) in (0u32..).zip(options) {
        let dir = new.journal_dir(shard);
        let disk = disk(&dir).await?;
        let (journal, _) = Journal::open(disk, &dir, shard, options, |_, _| Ok(())).await?;
        let running = journal.clone();
        glommio::spawn_local(async move {
            running
                .run(|_| {}, |error| tracing::error!("{error}"))
                .await;
        })
        .detach();
        journals.push(journal);
    }
    let mut router = Router {
        placement,
        owners: HashMap::new(),
    };
    let unchanged = Edits::default();
    for shard in 0..old.shards {
        let dir = old.journal_dir(shard);
        let edits = edits.get(shard as usize).unwrap_or(&unchanged);
        // Records are gathered a journal at a time: the reader cannot wait in between.
        let mut records: Vec<(Option<usize>, Vec<u8>)> = Vec::new();
        read_journal(&disk(&dir).await?, &dir, Position(0), |position, bytes| {
            if edits.left_out.contains(&position) {
                return Ok(());
            }
            let bytes = edits.replaced.get(&position).map_or(bytes, Vec::as_slice);
            records.push((router.owner(bytes)?, bytes.to_vec()));
            Ok(())
        })
        .await?;
        for bytes in &edits.added {
            let owner = router
                .owner(bytes)
                .map_err(|error| unreadable(&dir, error))?;
            records.push((owner, bytes.clone()));
        }
        for (owner, bytes) in records {
            match owner {
                Some(owner) => stage(&journals, owner, &bytes).await?,
                // A fence is every shard's.
                None => {
                    for owner in 0..journals.len() {
                        stage(&journals, owner, &bytes).await?;
                    }
                }
            }
        }
    }
    for journal in &journals {
        journal.close().await;
        if journal.health() == crate::storage::journal::Health::Failed {
            return Err(StorageError::io(
                "write the new layout below",
                Path::new("layout"),
            )(std::io::Error::other(
                "a write or sync failed",
            )));
        }
    }
    Ok(())
}

pub(super) async fn disk(dir: &Path) -> Result<GlommioDisk, StorageError> {
    GlommioDisk::new(dir)
        .await
        .map_err(StorageError::io("probe", dir))
}

async fn stage(
    journals: &[Journal<GlommioDisk>],
    owner: usize,
    bytes: &[u8],
) -> Result<(), StorageError> {
    let Some(journal) = journals.get(owner) else {
        return Ok(());
    };
    let asked = Instant::now();
    loop {
        match journal.stage(&[bytes]) {
            Ok(batch) => {
                let stats = journal.stats();
                let ahead = stats.record_bytes.saturating_sub(stats.batch_bytes);
                if ahead as usize > STAGED_BYTES_MAX {
                    while journal.durable() < batch
                        && journal.health() != crate::storage::journal::Health::Failed
                    {
                        glommio::timer::Timer::new(Duration::from_millis(1)).await;
                    }
                }
                return Ok(());
            }
            // The next file is still being made, or there is no space for it.
            Err(StageError::DiskPressure) if asked.elapsed() < PATIENCE => {
                glommio::timer::Timer::new(Duration::from_millis(5)).await;
            }
            Err(StageError::DiskPressure) => {
                let no_space = std::io::Error::from_raw_os_error(libc::ENOSPC);
                return Err(StorageError::io("write", Path::new("the new layout"))(
                    no_space,
                ));
            }
            Err(error) => {
                return Err(StorageError::io("write", Path::new("the new layout"))(
                    std::io::Error::other(format!("{error:?}")),
                ));
            }
        }
    }
}

fn unreadable(dir: &Path, error: ApplyError) -> StorageError {
    StorageError::io("rewrite", dir)(std::io::Error::other(error))
}

/// Knows which shard each stream goes to.
struct Router {
    placement: Placement,
    owners: HashMap<Incarnation, usize>,
}

impl Router {
    /// The owner of a record; `None` for one that goes to all.
    fn owner(&mut self, bytes: &[u8]) -> Result<Option<usize>, ApplyError> {
        let record = Record::decode(bytes)?;
        Ok(match &record {
            Record::Fence { .. } => None,
            Record::Create {
                incarnation, key, ..
            } => {
                let owner = self.placement.owner(key);
                self.owners.insert(*incarnation, owner);
                Some(owner)
            }
            other => Some(self.owners.get(&other.incarnation()).copied().unwrap_or(0)),
        })
    }
}
