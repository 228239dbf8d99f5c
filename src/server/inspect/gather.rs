//! Reads everything and fills the report.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use super::report::{
    BlobsReport, CutReport, FileReport, JournalReport, LifetimeReport, ManifestReport,
    OriginReport, Report, SnapshotReport, StreamReport, User,
};
use crate::{
    base::limits::{DISK_IO_BYTES_MAX, Durability},
    protocol::{
        expiry::Lifetime,
        incarnation::{Allocator, Incarnation},
        snapshot::{Digester, hex},
    },
    shard::{
        stream::{Blob, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{self, BlobId, BlobStore, Graveyard},
        data_dir::{self, Look},
        disk::ReadOnlyDisk,
        journal::{Position, RecoveryReport, read_journal},
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
    for shard in 0..look.layout.shards {
        let dir = look.layout.journal_dir(shard);
        let mut tables = Tables::new(Allocator::new(manifest.secret, 0), Graveyard::default());
        let read = read_journal(&ReadOnlyDisk, &dir, Position(0), |_, record| {
            tables.replay(record).map_err(Into::into)
        })
        .await;
        let journal = match read {
            Ok(read) => {
                if read.batches == 0 && manifest.started {
                    report.problem(format!("shard {shard}"), "its journal holds nothing");
                }
                let id = manifest.journal_id(manifest.layout, shard);
                if let Err(error) = read.check_home((id, shard), manifest.boot_epoch) {
                    report.problem(format!("shard {shard}"), error);
                }
                report.unknown.extend(read.unknown.iter().cloned());
                journal(shard, dir, &read, &tables)
            }
            Err(error) => {
                report.problem(format!("shard {shard}"), error);
                unread_journal(shard, dir, &tables)
            }
        };
        report.journals.push(journal);
        shards.push(tables);
    }
    check_forks(report, &shards);
    gather_streams(report, &shards).await;
    gather_blobs(report, &shards).await;
    add_up(report);
    report.unknown.extend(look.unknown);
    report.other_layouts = look.other_layouts;
    report.quarantine = look.quarantine;
    let fenced = shards.iter().flat_map(Tables::fenced_buckets);
    report.fenced_buckets = fenced.map(String::from).collect();
    report.fenced_buckets.sort_unstable();
    report.fenced_buckets.dedup();
}

fn journal(
    shard: u32,
    directory: PathBuf,
    read: &RecoveryReport,
    tables: &Tables,
) -> JournalReport {
    let files = read.journal_files.iter().map(|file| FileReport {
        name: file_name(&file.path),
        bytes: file.bytes,
        batches: Some(file.batches),
        records: Some(file.records),
    });
    JournalReport {
        shard,
        directory,
        files: files.collect(),
        batches: read.batches,
        records: read.records,
        lost_records: read.lost_records,
        log_bytes: read.bytes,
        cut: read.cut.as_ref().map(|cut| CutReport {
            file: cut.path.clone(),
            offset: cut.offset,
            what: cut.to_string(),
        }),
        streams: tables.all_streams().count(),
        live_bytes: live_bytes(tables),
    }
}

/// A journal that does not verify: its files as the directory lists them, its streams up to there.
fn unread_journal(shard: u32, directory: PathBuf, tables: &Tables) -> JournalReport {
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
        shard,
        directory,
        files,
        streams: tables.all_streams().count(),
        live_bytes: live_bytes(tables),
        ..JournalReport::default()
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Bytes in the journal that clients could still read.
fn live_bytes(tables: &Tables) -> u64 {
    let streams = tables.all_streams();
    streams
        .map(|stream| {
            let inline = stream.all_blobs().map(Blob::memory_bytes);
            stream.own_bytes() + inline.sum::<u64>()
        })
        .sum()
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

async fn gather_streams(report: &mut Report, shards: &[Tables]) {
    let store = store(report);
    for (shard, tables) in (0..).zip(shards) {
        for stream in tables.all_streams() {
            let snapshot = match stream.snapshot() {
                None => None,
                Some(snapshot) => Some(check_snapshot(report, &store, stream, snapshot).await),
            };
            report.streams.push(describe(shard, stream, snapshot));
        }
    }
    report.streams_total = report.streams.len();
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
        staged_parts: stream.blobs.as_ref().map_or(0, |blobs| blobs.parts.len()),
        forked_from: state.origin().map(|origin| OriginReport {
            key: origin.source.as_str().to_owned(),
            incarnation: origin.incarnation.0,
            start: origin.start,
            offset: origin.offset,
        }),
        forks: rare.map_or_else(Vec::new, |rare| {
            let forks = rare.forks.values();
            forks.map(|fork| fork.key.as_str().to_owned()).collect()
        }),
        producers: rare.map_or(0, |rare| rare.producers.len()),
    }
}

fn store(report: &Report) -> BlobStore<ReadOnlyDisk> {
    let dir = report.directory.join(blob::DIR_NAME);
    BlobStore::new(ReadOnlyDisk, dir, Durability::Sync, Graveyard::default())
}

/// Computes a snapshot's digest from its body.
async fn check_snapshot(
    report: &mut Report,
    store: &BlobStore<ReadOnlyDisk>,
    stream: &Stream,
    snapshot: &StoredSnapshot,
) -> SnapshotReport {
    let meta = &snapshot.meta;
    let digest = digest(store, snapshot).await;
    let verified = digest.as_ref().is_ok_and(|digest| *digest == meta.digest);
    if !verified {
        let why = match digest {
            Ok(_) => String::from("its body does not give its digest: restore it from a copy"),
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

async fn digest(
    store: &BlobStore<ReadOnlyDisk>,
    snapshot: &StoredSnapshot,
) -> Result<[u8; 32], StorageError> {
    let mut digester = Digester::new(&snapshot.meta.content_type);
    for blob in &snapshot.body {
        match blob {
            Blob::Memory(bytes) => digester.update(bytes),
            Blob::Block(_) => {}
            Blob::File(file) => {
                let reader = store.open(file.clone()).await?;
                let (mut at, mut piece) = (0, Vec::new());
                while at < file.len {
                    piece.clear();
                    at += reader
                        .read(at, file.len, DISK_IO_BYTES_MAX, &mut piece)
                        .await?;
                    digester.update(&piece);
                }
            }
        }
    }
    Ok(digester.finish())
}

/// Checks the file of every blob that a record names, and finds those that none names.
async fn gather_blobs(report: &mut Report, shards: &[Tables]) {
    let store = store(report);
    let mut named: HashMap<BlobId, u64> = HashMap::new();
    for (id, len) in shards.iter().flat_map(Tables::blob_files) {
        named.insert(id, len);
        if let Err(error) = store.check(id, len).await {
            report.problem(format!("blob {}", id.name()), error);
        }
    }
    report.blobs = BlobsReport {
        files: named.len(),
        bytes: named.values().sum(),
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
                report.bytes.blob_files += len;
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
    let live = sum(|journal| journal.live_bytes);
    let bytes = &mut report.bytes;
    bytes.journal_files = files;
    bytes.live = live + report.blobs.bytes;
    bytes.dead = log.saturating_sub(live) + bytes.blob_files.saturating_sub(report.blobs.bytes);
    bytes.unused = files.saturating_sub(log);
}
