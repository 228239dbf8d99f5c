//! The same data in a new layout: under another number of shards, or mended.
//!
//! Every shard of the layout that rules is read, checkpoint and journal; its
//! streams go, each to the shard that owns it now, into the checkpoints of a
//! new layout beside it. Blocks and blobs stay where they are: entries name
//! them. The old layout rules until the new one is whole and durable; then one
//! rename of the manifest decides. A crash at any moment before leaves the old
//! layout in force and the new one to be removed by the next start.

use std::{collections::HashMap, future::Future, path::Path, sync::Arc};

use glommio::{LocalExecutorBuilder, Placement as CorePlacement};

use crate::{
    protocol::incarnation::Allocator,
    server::{config::Config, error::StartError, executor},
    shard::{
        checkpoint::{Restore, encode_fence, encode_stream},
        placement::Placement,
        recovery,
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::Graveyard,
        checkpoint::{CheckpointWriter, FIRST_WRITTEN, Identity},
        data_dir::{DataDir, Layout},
        disk::GlommioDisk,
        journal::{Journal, Options, Position},
        segment::{self, Segment, SegmentGraveyard, SegmentId},
    },
};

/// Brings the layout that rules to `shards` shards.
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
    let manifest = data_dir.manifest().clone();
    let tables = on_executor(config, move || async move {
        let mut known = HashMap::new();
        let graveyard = SegmentGraveyard::default();
        let mut all = Vec::new();
        for shard in 0..old.shards {
            let identity = Identity::of(&old, shard, manifest.journal_id(old.number, shard));
            let mut intern = |id| segment::intern(&mut known, id, &graveyard);
            all.push(read_tables(&old, &identity, &mut intern).await?);
        }
        Ok::<_, StorageError>(all)
    })?;
    rewrite(data_dir, config, shards, tables)
}

async fn read_tables(
    layout: &Layout,
    identity: &Identity,
    segment: &mut dyn FnMut(SegmentId) -> Arc<Segment>,
) -> Result<Tables, StorageError> {
    let dir = layout.journal_dir(identity.shard);
    // No stream comes to be here, so no incarnation is taken from this.
    let tables = Tables::new(Allocator::new([0; 16], 0), Graveyard::default());
    let mut restore = Restore::new(tables, segment);
    recovery::read(&disk(&dir).await?, &dir, identity, &mut restore).await?;
    Ok(restore.finish())
}

/// Writes what `tables` hold into a new layout of `shards` shards, and lets it rule.
///
/// # Errors
/// [`StartError`]; the old layout still rules then.
pub fn rewrite(
    data_dir: &mut DataDir,
    config: &Config,
    shards: u32,
    tables: Vec<Tables>,
) -> Result<(), StartError> {
    let new = data_dir.begin_layout(shards)?;
    let options: Vec<Options> = (0..shards)
        .map(|shard| Options::new(&config.limits, data_dir.manifest(), &new, shard))
        .collect();
    let placement = Placement::new(data_dir.manifest().secret, shards as usize);
    let to = new.clone();
    on_executor(config, move || async move {
        write(&to, options, placement, &tables).await
    })?;
    data_dir.switch_layout(&new)?;
    // The copy has written in this epoch; what is served from now on is another.
    let epoch = data_dir.manifest().boot_epoch.saturating_add(1);
    data_dir.update(|manifest| manifest.boot_epoch = epoch)?;
    Ok(())
}

/// Writes, for each shard of a new layout, an empty journal and a checkpoint that rules.
async fn write(
    layout: &Layout,
    options: Vec<Options>,
    placement: Placement,
    tables: &[Tables],
) -> Result<(), StorageError> {
    let mut writers = Vec::new();
    for (shard, options) in (0u32..).zip(options) {
        let dir = layout.journal_dir(shard);
        let identity = Identity::of(layout, shard, options.journal_id);
        let disk = disk(&dir).await?;
        // It makes the first file and opens the epoch; there is nothing to commit.
        drop(Journal::open(disk, &dir, shard, options, |_, _| Ok(())).await?);
        let writer = CheckpointWriter::create(disk, identity.clone(), FIRST_WRITTEN).await?;
        writers.push((writer, disk, identity));
    }
    let mut entry = Vec::new();
    for tables in tables {
        for bucket in tables.fenced_buckets() {
            entry.clear();
            encode_fence(bucket, &mut entry);
            // A fence is every shard's.
            for (writer, ..) in &mut writers {
                writer.append(&entry).await?;
            }
        }
        for stream in tables.all_streams() {
            entry.clear();
            encode_stream(stream, Position(0), &mut entry);
            let owner = placement.owner(&stream.staged.key);
            if let Some((writer, ..)) = writers.get_mut(owner) {
                writer.append(&entry).await?;
            }
        }
    }
    for (writer, disk, identity) in writers {
        let current = writer.finish(Position(0)).await?;
        current.store(&disk, &identity).await?;
    }
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

pub(super) async fn disk(dir: &Path) -> Result<GlommioDisk, StorageError> {
    GlommioDisk::new(dir)
        .await
        .map_err(StorageError::io("probe", dir))
}
