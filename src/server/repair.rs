//! `--repair`: a damaged data directory becomes one that starts, and says what
//! it cost.
//!
//! Before any journal is opened, in this order:
//! 1. every journal is mended ([`journal::repair`]): what does not verify is
//!    copied to the quarantine and overwritten;
//! 2. every record that is left is read, and what can no longer be told to
//!    clients without telling them anything untrue is found ([`salvage`]),
//!    blobs without their files included;
//! 3. the records left out, the blobs that nothing names any more and a report
//!    go to the quarantine, durable;
//! 4. if anything has to change, the streams that are left are written into a
//!    new layout, as for another number of shards, and one rename of the
//!    manifest decides.
//!
//! So the outcome is an ordinary directory: the next start needs no `--repair`
//! and tolerates no gap. A crash at any step leaves a directory that refuses to
//! start, or starts, as before; `--repair` may be given again. On a directory
//! without damage it changes nothing.
//!
//! ```text
//! quarantine/<epoch>/report.txt         what was lost, a line each
//!                    shard-<k>/…        bytes as they lay, see `journal::repair`
//!                    shard-<k>.records  position u64 | len u32 | record, little-endian, again
//!                                       and again: whole, but what they follow is lost
//!                    blobs/…            bodies that nothing names any more
//! ```

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    protocol::incarnation::Allocator,
    server::{
        config::Config,
        error::StartError,
        reshard::{self, disk, on_executor},
    },
    shard::{
        salvage::{self, Loss, Salvage},
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{self, BlobId, BlobStore, Graveyard},
        data_dir::{DataDir, Layout},
        disk::GlommioDisk,
        journal::{self, Options, Position, RepairReport, read_journal},
    },
};

/// Losses named in the log; all of them are in the report.
const LOGGED_LOSSES_MAX: usize = 100;

/// Mends the layout that rules.
///
/// # Errors
/// [`StartError`]; what was set aside stays, and repair may be tried again.
pub fn repair(data_dir: &mut DataDir, config: &Config) -> Result<(), StartError> {
    if !data_dir.manifest().started {
        tracing::info!("repair: nothing was ever acknowledged here, so nothing can be lost");
        return Ok(());
    }
    let (manifest, layout) = (data_dir.manifest(), data_dir.layout());
    let ground = Ground {
        options: (0..layout.shards)
            .map(|shard| Options::new(&config.limits, manifest, &layout, shard))
            .collect(),
        secret: manifest.secret,
        blob_dir: blob::prepare_dir(data_dir.path())?,
        quarantine: data_dir.quarantine(),
        data_dir: data_dir.path().to_owned(),
        config: config.clone(),
        layout,
    };
    let quarantine = ground.quarantine.clone();
    let (shards, tables) = on_executor(config, move || async move { ground.work().await })?;
    let lines: Vec<String> = shards.iter().flat_map(Found::lines).collect();
    if lines.is_empty() && tables.is_none() {
        remove_empty(&quarantine);
        tracing::info!("repair: everything verifies; nothing was changed");
        return Ok(());
    }
    for line in lines.iter().take(LOGGED_LOSSES_MAX) {
        tracing::warn!("repair: {line}");
    }
    tracing::warn!(
        "repair: {} findings, all of them in {}; a stream whose last appends, closure or deletion \
         were in what is lost cannot be told from one that never had them. Nothing there is ever \
         read or removed by the server: keep it until you need it no more",
        lines.len(),
        quarantine.join("report.txt").display()
    );
    if let Some(tables) = tables {
        let shards = data_dir.layout().shards;
        reshard::rewrite(data_dir, config, shards, tables)?;
    }
    Ok(())
}

/// What there is to work on.
struct Ground {
    data_dir: PathBuf,
    layout: Layout,
    options: Vec<Options>,
    secret: [u8; 16],
    blob_dir: PathBuf,
    quarantine: PathBuf,
    config: Config,
}

/// What was found in one shard.
#[derive(Default)]
struct Found {
    shard: u32,
    mended: RepairReport,
    /// There is nothing left of its journal.
    empty: bool,
    set_aside: usize,
    losses: Vec<Loss>,
    files: Vec<String>,
}

impl Ground {
    /// Steps 1 to 3: what was found in each shard, and the streams that are left if they are other
    /// than what is there.
    async fn work(self) -> Result<(Vec<Found>, Option<Vec<Tables>>), StartError> {
        let mut shards = Vec::new();
        let mut salvages = Vec::new();
        for (shard, options) in (0..self.layout.shards).zip(&self.options) {
            let (found, salvage) = self.read(shard, options).await?;
            shards.push(found);
            salvages.push(salvage);
        }
        if shards.iter().all(|found| found.empty) {
            return Err(StartError::NothingLeft {
                data_dir: self.data_dir,
            });
        }
        let store = self.blobs().await?;
        let lost = lost_files(&store, &mut shards, &salvages).await?;
        salvage::settle(&mut salvages, &lost).map_err(|error| StartError::Repair {
            reason: error.to_string(),
        })?;
        let named: HashMap<BlobId, u64> = salvages
            .iter()
            .flat_map(|salvage| salvage.tables().blob_files())
            .collect();
        let mut left = Vec::new();
        let mut changes = false;
        for (found, salvage) in shards.iter_mut().zip(salvages) {
            let (tables, changed, losses) = salvage.finish();
            found.losses = losses;
            changes |= changed;
            left.push(tables);
        }
        let lines: Vec<String> = shards.iter().flat_map(Found::lines).collect();
        if !lines.is_empty() {
            self.set_blobs_aside(&store, &named).await?;
            self.write_report(&lines)?;
        }
        let rewrite = changes || shards.iter().any(|found| found.empty);
        Ok((shards, rewrite.then_some(left)))
    }

    /// Mends one journal and reads what it holds.
    async fn read(&self, shard: u32, options: &Options) -> Result<(Found, Salvage), StartError> {
        let dir = self.layout.journal_dir(shard);
        fs::create_dir_all(&dir).map_err(StorageError::io("create", &dir))?;
        let disk = disk(&dir).await?;
        let aside = self.quarantine.join(format!("shard-{shard}"));
        let mended = journal::repair(&disk, &dir, shard, &aside, options).await?;
        let tables = Tables::new(Allocator::new(self.secret, 0), Graveyard::default());
        let mut salvage = Salvage::new(tables);
        let mut left_out = Vec::new();
        let read = read_journal(&disk, &dir, Position(0), |position, bytes| {
            if !salvage.apply(bytes)? {
                left_out.push((position, bytes.to_vec()));
            }
            Ok(())
        })
        .await?;
        self.set_records_aside(shard, &left_out)?;
        let found = Found {
            shard,
            mended,
            empty: read.batches == 0,
            set_aside: left_out.len(),
            ..Found::default()
        };
        Ok((found, salvage))
    }

    async fn blobs(&self) -> Result<BlobStore<GlommioDisk>, StartError> {
        let disk = disk(&self.blob_dir).await?;
        let (dir, durability) = (self.blob_dir.clone(), self.config.durability);
        Ok(BlobStore::new(disk, dir, durability, Graveyard::default()))
    }

    fn set_records_aside(
        &self,
        shard: u32,
        records: &[(Position, Vec<u8>)],
    ) -> Result<(), StartError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for (position, record) in records {
            bytes.extend_from_slice(&position.0.to_le_bytes());
            // A record fits a batch, whose length is 32 bits.
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(record);
        }
        let path = self.quarantine.join(format!("shard-{shard}.records"));
        Ok(write_durably(&path, &bytes)?)
    }

    /// Moves blobs that nothing names to the quarantine: the next start would remove them.
    async fn set_blobs_aside(
        &self,
        store: &BlobStore<GlommioDisk>,
        named: &HashMap<BlobId, u64>,
    ) -> Result<(), StartError> {
        let (blobs, _) = store.list().await?;
        let aside = self.quarantine.join(blob::DIR_NAME);
        for id in blobs.into_iter().filter(|id| !named.contains_key(id)) {
            let (from, to) = (store.path(id), aside.join(id.name()));
            fs::create_dir_all(&aside).map_err(StorageError::io("create", &aside))?;
            fs::rename(&from, &to).map_err(StorageError::io("rename", &from))?;
        }
        if aside.exists() {
            sync_dir(&aside)?;
            sync_dir(&self.blob_dir)?;
        }
        Ok(())
    }

    fn write_report(&self, lines: &[String]) -> Result<(), StartError> {
        let mut text = lines.join("\n");
        text.push('\n');
        let path = self.quarantine.join("report.txt");
        Ok(write_durably(&path, text.as_bytes())?)
    }
}

/// Blobs that records name and whose files are not there, or not whole.
async fn lost_files(
    store: &BlobStore<GlommioDisk>,
    shards: &mut [Found],
    salvages: &[Salvage],
) -> Result<HashSet<BlobId>, StartError> {
    let mut lost = HashSet::new();
    for (found, salvage) in shards.iter_mut().zip(salvages) {
        for (id, len) in salvage.tables().blob_files() {
            let path = store.path(id);
            let what = match store.check(id, len).await {
                Ok(()) => continue,
                Err(StorageError::MissingFile { .. }) => format!("{} is missing", path.display()),
                Err(StorageError::WrongLength {
                    found, expected, ..
                }) => format!("{} has {found} of {expected} bytes", path.display()),
                Err(error) => return Err(error.into()),
            };
            found.files.push(what);
            lost.insert(id);
        }
    }
    Ok(lost)
}

impl Found {
    /// What was found and lost, a line each.
    fn lines(&self) -> Vec<String> {
        let shard = self.shard;
        let mut lines = Vec::new();
        if self.empty {
            lines.push(format!(
                "shard {shard}: nothing is left of its journal, and so of its streams"
            ));
        }
        for path in &self.mended.made {
            let path = path.display();
            lines.push(format!("shard {shard}: {path} was missing: made anew"));
        }
        for path in &self.mended.headers {
            let path = path.display();
            lines.push(format!(
                "shard {shard}: the first block of {path} was damaged: written again"
            ));
        }
        for lost in &self.mended.lost {
            lines.push(format!(
                "shard {shard}: batches {} to {} do not verify; records lost: {}",
                lost.first, lost.last, lost.records
            ));
        }
        for copy in &self.mended.quarantined {
            let copy = copy.display();
            lines.push(format!(
                "shard {shard}: what was overwritten is kept in {copy}"
            ));
        }
        lines.extend(self.files.iter().cloned());
        lines.extend(self.losses.iter().map(Loss::to_string));
        if self.set_aside > 0 {
            lines.push(format!(
                "shard {shard}: {} whole records that follow what is lost are kept in \
                 shard-{shard}.records of the quarantine",
                self.set_aside
            ));
        }
        lines
    }
}

/// Writes a file that is not there yet; file and name are durable when it returns.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(StorageError::io("create", dir))?;
    }
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(StorageError::io("write", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(StorageError::io("sync", dir))
}

/// Removes what of the quarantine was made in advance and not used.
fn remove_empty(quarantine: &Path) {
    let Ok(entries) = fs::read_dir(quarantine) else {
        return;
    };
    // Fails where something is in it, and then it stays.
    for entry in entries.flatten() {
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(quarantine);
    if let Some(parent) = quarantine.parent() {
        let _ = fs::remove_dir(parent);
    }
}
