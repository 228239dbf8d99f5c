//! Reads everything and fills the report.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::report::{
    BlobsReport, CheckpointReport, CutReport, FileReport, JournalReport, LifetimeReport,
    ManifestReport, OriginReport, Report, SegmentReport, SegmentsReport, SnapshotReport,
    StreamReport, User,
};
use crate::{
    base::limits::{Durability, SEGMENT_FILES_OPEN_MAX},
    protocol::{
        expiry::Lifetime,
        incarnation::{Allocator, Incarnation},
        snapshot::hex,
    },
    server::verify::{BadBlock, STREAMS_AT_ONCE, Verifier},
    shard::{
        checkpoint::Restore,
        recovery,
        stream::{Blob, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{self, BlobId, BlobStore, Graveyard},
        checkpoint::{self, Current, Identity, find_whole, read_checkpoint, salvage_checkpoint},
        data_dir::{self, Look},
        disk::ReadOnlyDisk,
        journal::{RecoveryReport, read_journal},
        segment::{self, BlockReader, Segment, SegmentGraveyard, SegmentId},
    },
};

/// Inspects the data directory at `path`.
pub async fn gather(path: &Path) -> Report {
    let mut report = Report {
        directory: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
        ..Report::default()
    };
    let path = report.directory.clone();
    match data_dir::look(&path) {
        Ok(look) => {
            note_user(&mut report);
            gather_layout(&mut report, look).await;
            // One may have started meanwhile.
            note_user(&mut report);
        }
        Err(error) => report.problem("manifest", error),
    }
    report.streams.sort_by(|a, b| a.key.cmp(&b.key));
    report.verified = report.problems.is_empty();
    report
}

fn note_user(report: &mut Report) {
    if report.in_use_by.is_some() {
        return;
    }
    match data_dir::holder(&report.directory) {
        Ok(holder) => report.in_use_by = holder.map(|holder| User { pid: holder.pid }),
        Err(error) => report.problem("lock", error),
    }
}

async fn gather_layout(report: &mut Report, look: Look) {
    let manifest = &look.manifest;
    report.manifest = Some(ManifestReport {
        format_version: manifest.format_version,
        layout: manifest.layout,
        shards: manifest.shards,
        epoch: manifest.boot_epoch,
    });
    let mut shards = Vec::new();
    let mut known = HashMap::new();
    for shard in 0..look.layout.shards {
        let (journal, tables) = gather_shard(report, &look, shard, &mut known).await;
        report.journals.push(journal);
        shards.push(tables);
    }
    check_forks(report, &shards);
    let verifier = verifier(&report.directory, manifest.segment_seed());
    gather_segments(report, &verifier, &shards).await;
    gather_streams(report, &verifier, &shards).await;
    gather_blobs(report, &verifier.blobs, &shards).await;
    add_up(report);
    report.unknown.extend(look.unknown);
    report.other_layouts = look.other_layouts;
    report.quarantine = look.quarantine;
    let fenced = shards.iter().flat_map(Tables::fenced_buckets);
    report.fenced_buckets = fenced.map(String::from).collect();
    report.fenced_buckets.sort_unstable();
    report.fenced_buckets.dedup();
}

/// Reads a shard: its checkpoint, as much of it as verifies, and the journal behind it.
async fn gather_shard(
    report: &mut Report,
    look: &Look,
    shard: u32,
    known: &mut HashMap<SegmentId, Arc<Segment>>,
) -> (JournalReport, Tables) {
    let (disk, manifest) = (ReadOnlyDisk, &look.manifest);
    let dir = look.layout.journal_dir(shard);
    let identity = Identity::of(
        &look.layout,
        shard,
        manifest.journal_id(manifest.layout, shard),
    );
    let place = format!("shard {shard}");
    let current = match Current::load(&disk, &identity).await {
        Ok(current) => current,
        Err(error) => {
            report.problem(&place, error);
            // To show what it has; a start does not take it.
            find_whole(&disk, &identity).await.ok().flatten()
        }
    };
    let empty = || Tables::new(Allocator::new(manifest.secret, 0), Graveyard::default());
    let graveyard = SegmentGraveyard::default();
    let mut intern = |id| segment::intern(known, id, &graveyard);
    let mut restore = Restore::new(empty(), &mut intern);
    if let Some(current) = &current {
        let read = read_checkpoint(&disk, &identity, current, |entry| {
            restore.entry(entry).map_err(Into::into)
        });
        if let Err(error) = read.await {
            report.problem(&place, error);
            restore = Restore::new(empty(), &mut intern);
            // What cannot be read of it was said.
            let _ = salvage_checkpoint(&disk, &identity, current, |entry| {
                restore.entry(entry).map_err(Into::into)
            })
            .await;
        }
    }
    let from = recovery::replay_from(current.as_ref());
    let read = read_journal(&disk, &dir, from, |position, record| {
        restore.record(position, record).map_err(Into::into)
    })
    .await;
    let journal = match read {
        Ok(read) => {
            if read.batches == 0 && manifest.started {
                report.problem(&place, "its journal holds nothing");
            } else if let Err(error) =
                recovery::check_reach(&dir, &read, current.as_ref(), &restore)
            {
                report.problem(&place, error);
            }
            let home = (identity.journal_id, shard);
            if let Err(error) = read.check_home(home, manifest.boot_epoch) {
                report.problem(&place, error);
            }
            report.unknown.extend(read.unknown.iter().cloned());
            journal(dir, &read)
        }
        Err(error) => {
            report.problem(&place, error);
            unread_journal(dir)
        }
    };
    let tables = restore.finish();
    report.unknown.extend(unknown_beside(&identity.dir));
    let journal = JournalReport {
        shard,
        streams: tables.all_streams().count(),
        live_bytes: live_bytes(&tables),
        segment_live_bytes: segment_live_bytes(&tables),
        segments: tables.segment_ends().len(),
        records_behind: journal
            .next_position
            .map(|next| next.saturating_sub(from.0)),
        checkpoint: current.map(|current| CheckpointReport {
            number: current.number,
            file: identity.path(current.number),
            entries: current.entries,
            bytes: current.bytes,
            replay_from: current.replay_from.0,
        }),
        ..journal
    };
    (journal, tables)
}

/// Names in a shard's directory that are not ours.
fn unknown_beside(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_ours = |name: &str| name == "journal" || checkpoint::is_ours(name);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| !is_ours(name))
        .map(|name| dir.join(name))
        .collect()
}

fn journal(directory: PathBuf, read: &RecoveryReport) -> JournalReport {
    let files = read.journal_files.iter().map(|file| FileReport {
        name: file_name(&file.path),
        bytes: file.bytes,
        batches: Some(file.batches),
        records: Some(file.records),
    });
    JournalReport {
        directory,
        files: files.collect(),
        batches: read.batches,
        records: read.records,
        lost_records: read.lost_records,
        log_bytes: read.bytes,
        next_position: Some(read.next_position.0),
        cut: read.cut.as_ref().map(|cut| CutReport {
            file: cut.path.clone(),
            offset: cut.offset,
            what: cut.to_string(),
        }),
        ..JournalReport::default()
    }
}

/// A journal that does not verify: its files as the directory lists them.
fn unread_journal(directory: PathBuf) -> JournalReport {
    let mut files: Vec<FileReport> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "journal"))
        .map(|entry| FileReport {
            name: entry.file_name().to_string_lossy().into_owned(),
            bytes: entry.metadata().map_or(0, |metadata| metadata.len()),
            batches: None,
            records: None,
        })
        .collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    JournalReport {
        directory,
        files,
        ..JournalReport::default()
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Bytes in the journal, and in the checkpoint's entries, that clients could still read.
fn live_bytes(tables: &Tables) -> u64 {
    let streams = tables.all_streams();
    streams
        .map(|stream| {
            let inline = stream.all_blobs().map(Blob::memory_bytes);
            inline.fold(stream.history.unflushed(), u64::saturating_add)
        })
        .fold(0, u64::saturating_add)
}

/// Bytes in segments that clients could still read.
fn segment_live_bytes(tables: &Tables) -> u64 {
    let places = tables.all_streams().flat_map(Stream::places);
    places.map(|place| u64::from(place.len)).sum()
}

fn check_forks(report: &mut Report, shards: &[Tables]) {
    let streams = || shards.iter().flat_map(Tables::all_streams);
    let sources: HashMap<Incarnation, &Stream> = streams()
        .map(|stream| (stream.staged.incarnation, stream))
        .collect();
    for fork in streams() {
        let Some(origin) = fork.staged.origin() else {
            continue;
        };
        let source = sources.get(&origin.incarnation);
        let whole = source.is_some_and(|source| {
            let state = &source.staged;
            state.kept_from() <= origin.start && state.tail >= origin.offset
        });
        if !whole && origin.start < origin.offset {
            report.problem(
                format!("stream {}", fork.staged.key.as_str()),
                format!(
                    "it inherits bytes {} to {} of {} (incarnation {}), which are not there; \
                     start with --repair to go on without them",
                    origin.start,
                    origin.offset,
                    origin.source.as_str(),
                    origin.incarnation.0
                ),
            );
        }
    }
}

/// The files of segments: whether each that streams name is there, and reaches as far as they need
/// it; what is in it; those that nothing names.
async fn gather_segments(
    report: &mut Report,
    verifier: &Verifier<ReadOnlyDisk>,
    shards: &[Tables],
) {
    let mut named: BTreeMap<SegmentId, (u64, u64)> = BTreeMap::new();
    let places = shards.iter().flat_map(Tables::all_streams);
    for place in places.flat_map(Stream::places) {
        let (end, live) = named.entry(place.segment).or_default();
        *end = place.end().max(*end);
        *live = live.saturating_add(place.bytes());
    }
    let mut segments = SegmentsReport::default();
    for (id, (end, live_bytes)) in &named {
        if let Err(error) = verifier.blocks.check(*id, *end).await {
            report.problem(format!("segment {}", id.name()), error);
        }
        let (bytes, disk_bytes) = sizes(&verifier.blocks.path(*id));
        segments.files.push(SegmentReport {
            name: id.name(),
            bytes,
            disk_bytes,
            live_bytes: *live_bytes,
            dead_bytes: disk_bytes.saturating_sub(*live_bytes),
        });
    }
    let dir = report.directory.join(segment::DIR_NAME);
    if dir.exists() {
        match segment::list(&ReadOnlyDisk, &dir).await {
            Ok((present, unknown)) => {
                for id in present.into_iter().filter(|id| !named.contains_key(id)) {
                    let path = verifier.blocks.path(id);
                    let taken = &mut report.bytes.segment_files;
                    *taken = taken.saturating_add(sizes(&path).1);
                    segments.unnamed.push(path);
                }
                report.unknown.extend(unknown);
            }
            Err(error) => report.problem("segments", error),
        }
    }
    let files = &segments.files;
    segments.disk_bytes = files.iter().map(|file| file.disk_bytes).sum();
    segments.live_bytes = files.iter().map(|file| file.live_bytes).sum();
    segments.dead_bytes = files.iter().map(|file| file.dead_bytes).sum();
    let taken = &mut report.bytes.segment_files;
    *taken = taken.saturating_add(segments.disk_bytes);
    report.segments = segments;
}

/// Length of a file, and what it takes on disk; zeros if it is not there.
fn sizes(path: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).map_or((0, 0), |file| {
        (file.len(), file.blocks().saturating_mul(512))
    })
}

async fn gather_streams(report: &mut Report, verifier: &Verifier<ReadOnlyDisk>, shards: &[Tables]) {
    for (shard, tables) in (0..).zip(shards) {
        let streams: Vec<&Stream> = tables.all_streams().collect();
        for streams in streams.chunks(STREAMS_AT_ONCE) {
            let mut bad = verifier.bad_blocks(streams).await;
            for stream in streams {
                let blocks = stream.places().count();
                report.blocks_total = report.blocks_total.saturating_add(blocks);
                let bad = bad.remove(&stream.staged.incarnation);
                tell_bad_blocks(report, stream, bad.unwrap_or_default());
                let snapshot = match stream.snapshot() {
                    None => None,
                    Some(snapshot) => {
                        Some(check_snapshot(report, verifier, stream, snapshot).await)
                    }
                };
                report.streams.push(describe(shard, stream, snapshot));
            }
        }
    }
    report.streams_total = report.streams.len();
}

/// Which blocks of a stream do not verify. What is wrong with a whole file is said once for each
/// stream.
fn tell_bad_blocks(report: &mut Report, stream: &Stream, bad: Vec<BadBlock>) {
    let mut said = HashSet::new();
    for bad in bad {
        let of_file = !matches!(bad.what, StorageError::DamagedBlock { .. });
        if of_file && !said.insert(bad.place.segment) {
            continue;
        }
        let place = format!("stream {}", stream.staged.key.as_str());
        report.problem(place, bad.describe());
    }
}

fn describe(shard: u32, stream: &Stream, snapshot: Option<SnapshotReport>) -> StreamReport {
    let state = &stream.staged;
    let rare = state.rare.as_deref();
    StreamReport {
        key: state.key.as_str().to_owned(),
        incarnation: state.incarnation.0,
        shard,
        content_type: state.content_type.as_str().to_owned(),
        retained: state.retained,
        tail: state.tail,
        bytes: stream.own_bytes(),
        blocks: stream.history.blocks().len(),
        block_bytes: stream
            .history
            .flushed_end()
            .saturating_sub(stream.history.start()),
        closed: state.closed,
        soft_deleted: state.soft_deleted,
        lifetime: match state.lifetime {
            Lifetime::Unlimited => LifetimeReport::Unlimited,
            Lifetime::ExpiresAt { unix_ms } => LifetimeReport::ExpiresAt { ends_ms: unix_ms },
            Lifetime::Ttl { seconds } => LifetimeReport::Ttl {
                seconds,
                ends_ms: state.lifetime.expires_ms(state.renewed_ms).unwrap_or(0),
            },
        },
        snapshot,
        staged_parts: stream.blobs().map_or(0, |blobs| blobs.parts.len()),
        forked_from: state.origin().map(|origin| OriginReport {
            key: origin.source.as_str().to_owned(),
            incarnation: origin.incarnation.0,
            start: origin.start,
            offset: origin.offset,
        }),
        forks: rare.map_or_else(Vec::new, |rare| {
            let forks = rare.forks.iter();
            forks
                .map(|(_, fork)| fork.key.as_str().to_owned())
                .collect()
        }),
        producers: rare.map_or(0, |rare| rare.producers.len()),
    }
}

fn verifier(directory: &Path, segment_seed: u64) -> Verifier<ReadOnlyDisk> {
    let (segments, blobs) = (
        directory.join(segment::DIR_NAME),
        directory.join(blob::DIR_NAME),
    );
    let graveyard = Graveyard::default();
    Verifier {
        blocks: BlockReader::new(ReadOnlyDisk, segments, segment_seed, SEGMENT_FILES_OPEN_MAX),
        blobs: BlobStore::new(ReadOnlyDisk, blobs, Durability::Sync, graveyard),
    }
}

/// Computes a snapshot's digest from its body.
async fn check_snapshot(
    report: &mut Report,
    verifier: &Verifier<ReadOnlyDisk>,
    stream: &Stream,
    snapshot: &StoredSnapshot,
) -> SnapshotReport {
    let meta = &snapshot.meta;
    let given = verifier
        .gives_digest(stream.staged.incarnation, snapshot)
        .await;
    let verified = matches!(given, Ok(true));
    if !verified {
        let why = match given {
            Ok(_) => String::from(
                "its body does not give its digest: restore it from a copy, or start with \
                 --repair to go on without it",
            ),
            Err(error) => error.to_string(),
        };
        let (key, offset) = (stream.staged.key.as_str(), meta.offset);
        report.problem(format!("snapshot of stream {key} at {offset}"), why);
    }
    SnapshotReport {
        offset: meta.offset,
        bytes: meta.len,
        content_type: meta.content_type.as_str().to_owned(),
        digest: String::from_utf8_lossy(&hex(&meta.digest)).into_owned(),
        verified,
    }
}

/// Checks the file of every blob that a record names, and finds those that none names.
async fn gather_blobs(report: &mut Report, store: &BlobStore<ReadOnlyDisk>, shards: &[Tables]) {
    let mut named: HashMap<BlobId, u64> = HashMap::new();
    for (id, len) in shards.iter().flat_map(Tables::blob_files) {
        named.insert(id, len);
        if let Err(error) = store.check(id, len).await {
            report.problem(format!("blob {}", id.name()), error);
        }
    }
    report.blobs = BlobsReport {
        files: named.len(),
        bytes: named.values().copied().fold(0, u64::saturating_add),
        unnamed: Vec::new(),
    };
    report.bytes.blob_files = report.blobs.bytes;
    if !report.directory.join(blob::DIR_NAME).exists() {
        return;
    }
    match store.list().await {
        Ok((present, unknown)) => {
            for id in present.into_iter().filter(|id| !named.contains_key(id)) {
                let path = store.path(id);
                let len = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                let files = &mut report.bytes.blob_files;
                *files = files.saturating_add(len);
                report.blobs.unnamed.push(path);
            }
            report.unknown.extend(unknown);
        }
        Err(error) => report.problem("blobs", error),
    }
}

fn add_up(report: &mut Report) {
    let journals = &report.journals;
    let sum = |of: fn(&JournalReport) -> u64| journals.iter().map(of).sum::<u64>();
    let files = sum(|journal| journal.files.iter().map(|file| file.bytes).sum());
    let log = sum(|journal| journal.log_bytes);
    let inline = sum(|journal| journal.live_bytes);
    let in_blocks = sum(|journal| journal.segment_live_bytes);
    let checkpoints = journals
        .iter()
        .filter_map(|journal| journal.checkpoint.as_ref());
    let checkpoints = checkpoints
        .map(|checkpoint| checkpoint.bytes)
        .fold(0, u64::saturating_add);
    let bytes = &mut report.bytes;
    bytes.journal_files = files;
    bytes.checkpoints = checkpoints;
    bytes.live = inline
        .saturating_add(in_blocks)
        .saturating_add(report.blobs.bytes);
    bytes.dead = log
        .saturating_sub(inline)
        .saturating_add(bytes.segment_files.saturating_sub(in_blocks))
        .saturating_add(bytes.blob_files.saturating_sub(report.blobs.bytes));
    bytes.unused = files.saturating_sub(log);
}
