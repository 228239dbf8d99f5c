//! The same data under another number of shards.
//!
//! The records of every journal of the layout that rules are written, each to
//! the shard that owns its stream now, into the journals of a new layout
//! beside it. The old one rules until the new one is whole and durable; then
//! one rename of the manifest decides. A crash at any moment before leaves the
//! old layout in force and the new one to be removed by the next start.

use std::{collections::HashMap, path::Path};

use glommio::{LocalExecutorBuilder, Placement as CorePlacement};

use crate::{
    protocol::incarnation::Incarnation,
    server::{config::Config, error::StartError},
    shard::{placement::Placement, record::Record},
    storage::{
        StorageError,
        data_dir::{DataDir, Layout},
        disk::GlommioDisk,
        journal::{Journal, Options, Position, Stage as _, StageError, read_journal},
    },
};

/// Bytes of records staged before the copy waits for them to be durable.
const STAGED_BYTES_MAX: usize = 16 << 20;

/// Rewrites the layout that rules for `shards` shards.
///
/// # Errors
/// [`StartError`]; the old layout still rules then.
pub fn reshard(data_dir: &mut DataDir, config: &Config, shards: u32) -> Result<(), StartError> {
    let old = data_dir.layout();
    tracing::info!(
        from = old.shards,
        to = shards,
        "changing the number of shards"
    );
    let new = data_dir.begin_layout(shards)?;
    let options: Vec<Options> = (0..shards)
        .map(|shard| Options::new(&config.limits, data_dir.manifest(), &new, shard))
        .collect();
    let placement = Placement::new(data_dir.manifest().secret, config.shards);
    let copied = {
        let (old, new) = (old, new.clone());
        let executor = LocalExecutorBuilder::new(CorePlacement::Unbound)
            .io_memory(config.io_memory_bytes)
            .ring_depth(config.ring_depth)
            .spawn(move || async move { copy(&old, &new, options, placement).await });
        let failed = |reason: String| StartError::Executor { shard: 0, reason };
        executor
            .map_err(|error| failed(error.to_string()))?
            .join()
            .map_err(|error| failed(error.to_string()))?
    };
    copied?;
    data_dir.switch_layout(&new)?;
    // The copy has written in this epoch; what is served from now on is another.
    data_dir.update(|manifest| manifest.boot_epoch += 1)?;
    Ok(())
}

async fn copy(
    old: &Layout,
    new: &Layout,
    options: Vec<Options>,
    placement: Placement,
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
    for shard in 0..old.shards {
        let dir = old.journal_dir(shard);
        // Records are gathered a journal at a time: the reader cannot wait in between.
        let mut records: Vec<(Option<usize>, Vec<u8>)> = Vec::new();
        read_journal(&disk(&dir).await?, &dir, Position(0), |_, bytes| {
            let owner = router.owner(bytes)?;
            records.push((owner, bytes.to_vec()));
            Ok(())
        })
        .await?;
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

async fn disk(dir: &Path) -> Result<GlommioDisk, StorageError> {
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
    loop {
        match journal.stage(&[bytes]) {
            Ok(batch) => {
                let stats = journal.stats();
                let ahead = stats.record_bytes.saturating_sub(stats.batch_bytes);
                if ahead as usize > STAGED_BYTES_MAX {
                    while journal.durable() < batch
                        && journal.health() != crate::storage::journal::Health::Failed
                    {
                        glommio::timer::Timer::new(std::time::Duration::from_millis(1)).await;
                    }
                }
                return Ok(());
            }
            // The next file is still being made.
            Err(StageError::DiskPressure) => {
                glommio::timer::Timer::new(std::time::Duration::from_millis(5)).await;
            }
            Err(error) => {
                return Err(StorageError::io("write", Path::new("the new layout"))(
                    std::io::Error::other(format!("{error:?}")),
                ));
            }
        }
    }
}

/// Knows which shard each stream goes to.
struct Router {
    placement: Placement,
    owners: HashMap<Incarnation, usize>,
}

impl Router {
    /// The owner of a record; `None` for one that goes to all.
    fn owner(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<usize>, Box<dyn std::error::Error + Send + Sync>> {
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
