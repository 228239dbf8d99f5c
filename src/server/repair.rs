//! `--repair`: a damaged data directory becomes one that starts, and says what
//! it cost.
//!
//! Before any journal is opened, in this order:
//! 1. of every checkpoint, what verifies is read ([`salvage_checkpoint`]); where
//!    `current` cannot be read, the newest checkpoint that is whole stands in;
//! 2. every journal is mended ([`journal::repair`]): what does not verify is
//!    copied to the quarantine and overwritten;
//! 3. every record that is left is read, and every segment, block, blob and
//!    snapshot that streams name; what can no longer be told to clients without
//!    telling them anything untrue is found ([`salvage`]);
//! 4. the records left out, copies of damaged files, the blobs that nothing
//!    names any more and a report go to the quarantine, durable;
//! 5. if anything has to change, the streams that are left are written into a
//!    new layout, as for another number of shards, and one rename of the
//!    manifest decides.
//!
//! | damage                             | a start           | `--repair`                     |
//! |------------------------------------|-------------------|--------------------------------|
//! | `current` damaged, or missing and  | refuses           | the newest whole checkpoint,   |
//! | something rests on it              |                   | which loses nothing            |
//! | a chunk of the checkpoint, or all  | refuses           | what verifies; the streams of  |
//! | of it                              |                   | other entries are lost         |
//! | the journal ends before what the   | refuses           | the checkpoint's streams       |
//! | checkpoint contains                |                   |                                |
//! | a segment missing or short         | refuses           | as its blocks                  |
//! | a segment's first block            | reads of it fail  | written again                  |
//! | a block of a stream                | reads of it fail  | the stream is closed there     |
//! | a block or file of a snapshot      | reads of it fail; | the snapshot is dropped        |
//! |                                    | refuses a file    |                                |
//! |                                    | missing or short  |                                |
//! | a batch of the journal, a file     | refuses           | see `journal::repair` and      |
//! |                                    |                   | `salvage`                      |
//!
//! So the outcome is an ordinary directory: the next start needs no `--repair`
//! and tolerates no gap. A crash at any step leaves a directory that refuses to
//! start, or starts, as before; `--repair` may be given again. On a directory
//! without damage it changes nothing.
//!
//! ```text
//! quarantine/<epoch>/report.txt         what was lost, a line each
//!                    shard-<k>/…        bytes as they lay, see `journal::repair`; copies of
//!                                       `current` and of the checkpoint
//!                    segments/…         copies of those with damage
//!                    shard-<k>.records  position u64 | len u32 | record, little-endian, again
//!                                       and again: whole, but what they follow is lost
//!                    blobs/…            bodies that nothing names any more
//! ```

mod found;
mod quarantine;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::PathBuf,
    sync::Arc,
};

use self::{
    found::Found,
    quarantine::{Quarantine, copy_aside},
};

use crate::{
    base::limits::SEGMENT_FILES_OPEN_MAX,
    protocol::incarnation::Allocator,
    server::{
        config::Config,
        error::StartError,
        reshard::{self, disk, on_executor},
        verify::{STREAMS_AT_ONCE, Verifier},
    },
    shard::{
        checkpoint::Restore,
        recovery,
        salvage::{self, Lost, Salvage},
        stream::Stream,
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{self, BlobId, BlobStore, Graveyard},
        checkpoint::{Current, Damage, Identity, find_newest, find_whole, salvage_checkpoint},
        data_dir::{DataDir, Layout},
        disk::GlommioDisk,
        journal::{self, Options, RecoveryReport, read_journal},
        segment::{self, BlockReader, Segment, SegmentGraveyard, SegmentId},
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
        segment_seed: manifest.segment_seed(),
        segments_dir: segment::prepare_dir(data_dir.path())?,
        blob_dir: blob::prepare_dir(data_dir.path())?,
        quarantine: Quarantine(data_dir.quarantine()),
        data_dir: data_dir.path().to_owned(),
        config: config.clone(),
        layout,
    };
    let quarantine = ground.quarantine.clone();
    let (shards, tables) = on_executor(config, move || async move { ground.work().await })?;
    let lines: Vec<String> = shards.iter().flat_map(Found::lines).collect();
    if lines.is_empty() && tables.is_none() {
        quarantine.remove_empty();
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
        quarantine.report_path().display()
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
    segment_seed: u64,
    blob_dir: PathBuf,
    segments_dir: PathBuf,
    quarantine: Quarantine,
    config: Config,
}

impl Ground {
    /// Steps 1 to 4: what was found in each shard, and the streams that are left if they are other
    /// than what is there.
    async fn work(self) -> Result<(Vec<Found>, Option<Vec<Tables>>), StartError> {
        self.quarantine.prepare(self.layout.shards)?;
        let mut shards = Vec::new();
        let mut salvages = Vec::new();
        let mut known = HashMap::new();
        for (shard, options) in (0..self.layout.shards).zip(&self.options) {
            let (found, salvage) = self.read(shard, options, &mut known).await?;
            shards.push(found);
            salvages.push(salvage);
        }
        if shards.iter().all(|found| found.empty && found.entries == 0) {
            return Err(StartError::NothingLeft {
                data_dir: self.data_dir,
            });
        }
        let verifier = self.verifier().await?;
        self.mend_segments(&verifier, &mut shards, &salvages)
            .await?;
        let lost = self.lost(&verifier, &mut shards, &salvages).await?;
        salvage::settle(&mut salvages, &lost).map_err(|error| StartError::Repair {
            reason: error.to_string(),
        })?;
        let named: HashMap<BlobId, u64> = salvages
            .iter()
            .flat_map(|salvage| salvage.tables().blob_files())
            .collect();
        let mut left = Vec::new();
        let mut rewrite = false;
        for (found, mut salvage) in shards.iter_mut().zip(salvages) {
            let left_out = salvage.take_left_out();
            self.quarantine.set_records_aside(found.shard, &left_out)?;
            found.set_aside = left_out.len();
            let (tables, changed, losses) = salvage.finish();
            found.losses = losses;
            rewrite |= changed || found.empty || found.rewrite;
            left.push(tables);
        }
        let lines: Vec<String> = shards.iter().flat_map(Found::lines).collect();
        if !lines.is_empty() {
            self.quarantine
                .set_blobs_aside(&verifier.blobs, &self.blob_dir, &named)
                .await?;
            self.quarantine.write_report(&lines)?;
        }
        Ok((shards, rewrite.then_some(left)))
    }

    /// Reads what verifies of one shard's checkpoint, mends its journal, and reads what that holds.
    async fn read(
        &self,
        shard: u32,
        options: &Options,
        known: &mut HashMap<SegmentId, Arc<Segment>>,
    ) -> Result<(Found, Salvage), StartError> {
        let dir = self.layout.journal_dir(shard);
        fs::create_dir_all(&dir).map_err(StorageError::io("create", &dir))?;
        let disk = disk(&dir).await?;
        let identity = Identity::of(&self.layout, shard, options.journal_id);
        let mut found = Found {
            shard,
            ..Found::default()
        };
        let graveyard = SegmentGraveyard::default();
        let mut intern = |id| segment::intern(known, id, &graveyard);
        let tables = Tables::new(Allocator::new(self.secret, 0), Graveyard::default());
        let mut restore = Restore::new(tables, &mut intern);
        let current = self.current(&disk, &identity, &mut found).await?;
        let mut is_complete = !found.rewrite;
        if let Some(current) = &current {
            let damage = self
                .read_checkpoint(&disk, &identity, current, &mut restore, &mut found)
                .await?;
            is_complete = !damage.is_any();
        }
        let from = recovery::replay_from(current.as_ref());
        let options = Options {
            replay_from: from,
            ..options.clone()
        };
        let aside = self.quarantine.shard(shard);
        found.mended = journal::repair(&disk, &dir, shard, &aside, &options).await?;
        let included = restore.reach().max(from);
        let (tables, entries) = restore.into_parts();
        let mut salvage = Salvage::new(tables, entries);
        let read = read_journal(&disk, &dir, from, |position, bytes| {
            salvage.apply(position, bytes).map_err(Into::into)
        })
        .await;
        let read = match read {
            // Only files are left that were made ahead, and took no record yet.
            Err(StorageError::MissingRecords { oldest: None, .. }) => RecoveryReport::default(),
            read => read?,
        };
        found.empty = read.batches == 0;
        if read.next_position < included {
            is_complete = false;
            found.rewrite = true;
            if !found.empty {
                found.files.push(format!(
                    "shard {shard}: the journal ends at record {}, before what the checkpoint \
                     contains of it (record {}): its last batches are lost",
                    read.next_position.0, included.0
                ));
            }
        }
        let mended = &found.mended;
        is_complete &= read.lost_records == 0
            && mended.lost.is_empty()
            && mended.made.is_empty()
            && mended.lengthened.is_empty();
        if is_complete {
            salvage.is_complete();
        }
        Ok((found, salvage))
    }

    /// Which checkpoint to start from: what `current` says, or the newest that reads whole, or the
    /// newest.
    async fn current(
        &self,
        disk: &GlommioDisk,
        identity: &Identity,
        found: &mut Found,
    ) -> Result<Option<Current>, StartError> {
        let shard = identity.shard;
        let path = identity.current_path();
        let is_damaged = match Current::load(disk, identity).await {
            Ok(Some(current)) => return Ok(Some(current)),
            // There was none yet, or the journal has all that was in one.
            Ok(None) if journal::begins(&self.layout.journal_dir(shard)) => return Ok(None),
            Ok(None) | Err(StorageError::MissingFile { .. }) => false,
            Err(StorageError::DamagedCurrent { .. }) => true,
            Err(error) => return Err(error.into()),
        };
        let whole = find_whole(disk, identity).await?;
        let is_whole = whole.is_some();
        let taken = match whole {
            Some(whole) => Some(whole),
            None => find_newest(disk, identity).await?,
        };
        if is_damaged {
            copy_aside(&path, &self.quarantine.shard(shard))?;
        }
        let state = if is_damaged { "damaged" } else { "missing" };
        let what = match &taken {
            None if !is_damaged => return Ok(None),
            None => "there is no checkpoint either".to_owned(),
            Some(current) => {
                let checkpoint = identity.path(current.number);
                let verdict = if is_whole {
                    "which is whole, is taken"
                } else {
                    "of which not everything verifies, is taken"
                };
                format!("the newest checkpoint {}, {verdict}", checkpoint.display())
            }
        };
        let path = path.display();
        found
            .files
            .push(format!("shard {shard}: {path} is {state}: {what}"));
        found.rewrite = true;
        Ok(taken)
    }

    async fn read_checkpoint(
        &self,
        disk: &GlommioDisk,
        identity: &Identity,
        current: &Current,
        restore: &mut Restore<'_>,
        found: &mut Found,
    ) -> Result<Damage, StartError> {
        let mut entries = 0u64;
        let damage = salvage_checkpoint(disk, identity, current, |entry| {
            entries = entries.saturating_add(1);
            restore.entry(entry).map_err(Into::into)
        })
        .await?;
        found.entries = entries;
        if !damage.is_any() {
            return Ok(damage);
        }
        let (shard, path) = (identity.shard, identity.path(current.number));
        let state = if copy_aside(&path, &self.quarantine.shard(shard))? {
            format!("{} bytes do not verify", damage.bytes)
        } else {
            "it is missing".to_owned()
        };
        found.files.push(format!(
            "shard {shard}: the checkpoint {}: {state}; {entries} entries are read, {} of {} are \
             lost, a stream each: gone, if no record names it; set aside, if one does",
            path.display(),
            damage.entries,
            current.entries
        ));
        found.rewrite = true;
        Ok(damage)
    }

    async fn verifier(&self) -> Result<Verifier<GlommioDisk>, StartError> {
        let disk = disk(&self.segments_dir).await?;
        let dir = self.segments_dir.clone();
        Ok(Verifier {
            blocks: BlockReader::new(disk, dir, self.segment_seed, SEGMENT_FILES_OPEN_MAX),
            blobs: self.blobs().await?,
        })
    }

    /// Gives every segment that is named a first block that verifies, and the length that a start
    /// asks for. Its blocks are another matter.
    async fn mend_segments(
        &self,
        verifier: &Verifier<GlommioDisk>,
        shards: &mut [Found],
        salvages: &[Salvage],
    ) -> Result<(), StartError> {
        let mut ends = HashMap::new();
        for salvage in salvages {
            salvage.tables().note_segment_ends(&mut ends);
        }
        // What is found is told in the order of their numbers.
        let ends: BTreeMap<SegmentId, u64> = ends.into_iter().collect();
        let disk = disk(&self.segments_dir).await?;
        let mut lines = Vec::new();
        for (id, end) in ends {
            let path = verifier.blocks.path(id);
            let shown = path.display();
            let line = match verifier.blocks.check(id, end).await {
                Ok(_) => continue,
                Err(StorageError::MissingFile { .. }) => {
                    lines.push(format!("{shown} is missing"));
                    continue;
                }
                Err(StorageError::DamagedFileHeader { .. }) => {
                    format!("the first block of {shown} was damaged: written again")
                }
                Err(StorageError::WrongLength {
                    found, expected, ..
                }) => format!("{shown} has {found} of {expected} bytes"),
                Err(error) => return Err(error.into()),
            };
            copy_aside(&path, &self.quarantine.segments())?;
            segment::mend(&disk, &self.segments_dir, id, self.segment_seed, end).await?;
            verifier.blocks.forget(id);
            lines.push(line);
        }
        if let Some(first) = shards.first_mut() {
            first.files.extend(lines);
        }
        Ok(())
    }

    /// Reads everything that streams name; what is not there, or not whole, with a copy of the file
    /// it should be in.
    async fn lost(
        &self,
        verifier: &Verifier<GlommioDisk>,
        shards: &mut [Found],
        salvages: &[Salvage],
    ) -> Result<Lost, StartError> {
        let mut lost = Lost {
            files: lost_files(&verifier.blobs, shards, salvages).await?,
            ..Lost::default()
        };
        let aside = self.quarantine.segments();
        for (found, salvage) in shards.iter_mut().zip(salvages) {
            let streams: Vec<&Stream> = salvage.tables().all_streams().collect();
            let mut bad_blocks = HashMap::new();
            for (number, stream) in streams.iter().enumerate() {
                if number.is_multiple_of(STREAMS_AT_ONCE) {
                    let next = streams.iter().skip(number).take(STREAMS_AT_ONCE);
                    let next: Vec<&Stream> = next.copied().collect();
                    bad_blocks = verifier.bad_blocks(&next).await;
                }
                let key = stream.staged.key.as_str();
                let bad = bad_blocks.remove(&stream.staged.incarnation);
                for bad in bad.into_iter().flatten() {
                    let path = verifier.blocks.path(bad.place.segment);
                    match &bad.what {
                        StorageError::MissingFile { .. } => {}
                        StorageError::DamagedBlock { .. } | StorageError::Io { .. }
                            if is_lost(&bad.what) =>
                        {
                            copy_aside(&path, &aside)?;
                        }
                        _ => return Err(bad.what.into()),
                    }
                    if lost.blocks.insert(bad.place) && path.exists() {
                        found.files.push(format!(
                            "{}: the block at byte {} does not verify: bytes of {key} from {} on, \
                             or a snapshot of it",
                            path.display(),
                            bad.place.offset,
                            bad.key.start
                        ));
                    }
                }
                let Some(snapshot) = stream.snapshot() else {
                    continue;
                };
                let incarnation = stream.staged.incarnation;
                match verifier.gives_digest(incarnation, snapshot).await {
                    Ok(true) => continue,
                    Ok(false) => {
                        let offset = snapshot.meta.offset;
                        found.files.push(format!(
                            "the body of the snapshot of {key} at {offset} does not give its digest"
                        ));
                    }
                    // Known already, by its file or block.
                    Err(_) => {}
                }
                lost.snapshots.insert(incarnation);
            }
        }
        Ok(lost)
    }

    async fn blobs(&self) -> Result<BlobStore<GlommioDisk>, StartError> {
        let disk = disk(&self.blob_dir).await?;
        let (dir, durability) = (self.blob_dir.clone(), self.config.durability);
        Ok(BlobStore::new(disk, dir, durability, Graveyard::default()))
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

/// Whether reading failed for what is on the medium.
fn is_lost(error: &StorageError) -> bool {
    match error {
        StorageError::DamagedBlock { .. } => true,
        StorageError::Io {
            operation, source, ..
        } => *operation == "read" && source.raw_os_error() == Some(libc::EIO),
        _ => false,
    }
}
