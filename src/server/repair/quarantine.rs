//! What a repair sets aside: durable before what it was taken from is changed.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    shard::salvage::LeftOut,
    storage::{
        StorageError,
        blob::{self, BlobId, BlobStore},
        disk::GlommioDisk,
        manifest::sync_dir,
        segment,
    },
};

/// Where the repair of one start puts what it sets aside; it need not exist.
#[derive(Clone)]
pub(super) struct Quarantine(pub(super) PathBuf);

impl Quarantine {
    /// Makes it and the directories of `shards` shards, durable: what is set aside there later
    /// survives if its own directory is synced.
    pub(super) fn prepare(&self, shards: u32) -> Result<(), StorageError> {
        for shard in 0..shards {
            let dir = self.shard(shard);
            fs::create_dir_all(&dir).map_err(StorageError::io("create", &dir))?;
        }
        // Its own names, its name, and that of the quarantine of all starts.
        for dir in self.0.ancestors().take(3) {
            sync_dir(dir)?;
        }
        Ok(())
    }

    /// Where a shard's files are copied to.
    pub(super) fn shard(&self, shard: u32) -> PathBuf {
        self.0.join(format!("shard-{shard}"))
    }

    /// Where segments are copied to.
    pub(super) fn segments(&self) -> PathBuf {
        self.0.join(segment::DIR_NAME)
    }

    /// Where the report is.
    pub(super) fn report_path(&self) -> PathBuf {
        self.0.join("report.txt")
    }

    /// Keeps records of a shard that are left out, as they lay.
    pub(super) fn set_records_aside(
        &self,
        shard: u32,
        records: &[LeftOut],
    ) -> Result<(), StorageError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for LeftOut {
            position,
            bytes: record,
            ..
        } in records
        {
            bytes.extend_from_slice(&position.0.to_le_bytes());
            // A record fits a batch, whose length is 32 bits.
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(record);
        }
        let path = self.0.join(format!("shard-{shard}.records"));
        write_durably(&path, &bytes)
    }

    /// Moves blobs that nothing names to the quarantine: the next start would remove them.
    pub(super) async fn set_blobs_aside(
        &self,
        store: &BlobStore<GlommioDisk>,
        blob_dir: &Path,
        named: &HashMap<BlobId, u64>,
    ) -> Result<(), StorageError> {
        let (blobs, _) = store.list().await?;
        let aside = self.0.join(blob::DIR_NAME);
        for id in blobs.into_iter().filter(|id| !named.contains_key(id)) {
            let (from, to) = (store.path(id), aside.join(id.name()));
            create_in(&self.0, &aside)?;
            fs::rename(&from, &to).map_err(StorageError::io("rename", &from))?;
        }
        if aside.exists() {
            sync_dir(&aside)?;
            sync_dir(blob_dir)?;
        }
        Ok(())
    }

    /// Says what was found and lost, a line each.
    pub(super) fn write_report(&self, lines: &[String]) -> Result<(), StorageError> {
        let mut text = lines.join("\n");
        text.push('\n');
        let path = self.report_path();
        write_durably(&path, text.as_bytes())
    }

    /// Removes what of the quarantine was made in advance and not used.
    pub(super) fn remove_empty(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else {
            return;
        };
        // Fails where something is in it, and then it stays.
        for entry in entries.flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(&self.0);
        if let Some(parent) = self.0.parent() {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Copies a file into the directory `aside`, durable, once. False if there is no such file.
pub(super) fn copy_aside(path: &Path, aside: &Path) -> Result<bool, StorageError> {
    let Some(name) = path.file_name().filter(|_| path.exists()) else {
        return Ok(false);
    };
    let to = aside.join(name);
    if to.exists() {
        return Ok(true);
    }
    create_in(aside.parent().unwrap_or(aside), aside)?;
    let copy = || -> io::Result<()> {
        let mut to = File::create(&to)?;
        // What a failing disk does not give is not worth giving up for.
        if let Err(error) = io::copy(&mut File::open(path)?, &mut to) {
            tracing::warn!("the copy of {} is not whole: {error}", path.display());
        }
        to.sync_all()
    };
    copy().map_err(StorageError::io("copy to", &to))?;
    sync_dir(aside)?;
    Ok(true)
}

/// Makes the directory `dir` in `parent`, durable, if it is not there.
fn create_in(parent: &Path, dir: &Path) -> Result<(), StorageError> {
    fs::create_dir_all(dir).map_err(StorageError::io("create", dir))?;
    sync_dir(parent)
}

/// Writes a file that is not there yet; file and name are durable when it returns.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(StorageError::io("write", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}
