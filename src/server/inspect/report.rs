//! What an inspection comes to; serialised, it is the JSON. Sizes and lengths
//! are in bytes, times in Unix milliseconds, digests in hex.

use std::path::PathBuf;

use serde::Serialize;

/// The whole report.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The data directory.
    pub directory: PathBuf,
    /// Whether everything verifies: there are no problems.
    pub verified: bool,
    /// What does not.
    pub problems: Vec<Problem>,
    /// The process that uses the directory; what follows is a picture of a moment then.
    pub in_use_by: Option<User>,
    /// What the manifest says; `None` when it cannot be read.
    pub manifest: Option<ManifestReport>,
    /// Totals.
    pub bytes: Bytes,
    /// One for each shard.
    pub journals: Vec<JournalReport>,
    /// Where streams' bytes are once they have left the journal. Shards may share them.
    pub segments: SegmentsReport,
    /// Bodies of snapshots and parts in files of their own.
    pub blobs: BlobsReport,
    /// Buckets that were purged.
    pub fenced_buckets: Vec<String>,
    /// Blocks of segments that streams and their snapshots are in.
    pub blocks_total: usize,
    /// Streams in all.
    pub streams_total: usize,
    /// The first of them, by name; as many as were asked for.
    pub streams: Vec<StreamReport>,
    /// Layouts that do not rule: the next start removes them.
    pub other_layouts: Vec<PathBuf>,
    /// Where repairs have set things aside.
    pub quarantine: Option<PathBuf>,
    /// Files that are not ours.
    pub unknown: Vec<PathBuf>,
}

/// Something that does not verify.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where: a shard, a stream, a file.
    pub place: String,
    /// What, and what to do about it.
    pub what: String,
}

/// Who has the lock.
#[derive(Debug, Serialize)]
pub struct User {
    /// The pid, if the lock file says.
    pub pid: Option<u32>,
}

/// What the manifest says.
#[derive(Debug, Serialize)]
pub struct ManifestReport {
    /// Version of the format of everything in the directory.
    pub format_version: u32,
    /// Number of the layout that rules.
    pub layout: u64,
    /// Its shards.
    pub shards: u32,
    /// Starts so far, changes of layout counted too.
    pub epoch: u64,
}

/// Where the bytes are.
#[derive(Debug, Default, Serialize)]
pub struct Bytes {
    /// Of streams, of their snapshots and of staged parts, as clients could read them now.
    pub live: u64,
    /// Of the journals, segments and blob files that hold none of them: superseded, retained away,
    /// deleted, in a block as well, and what records and padding add.
    pub dead: u64,
    /// Of journal files, made ahead and not written.
    pub unused: u64,
    /// Of journal files, in all.
    pub journal_files: u64,
    /// Of the checkpoints that rule.
    pub checkpoints: u64,
    /// Of segments, in all, as they lie on disk: holes take nothing.
    pub segment_files: u64,
    /// Of blob files, in all.
    pub blob_files: u64,
}

/// One shard: its journal, and what of its streams is elsewhere.
#[derive(Debug, Default, Serialize)]
pub struct JournalReport {
    /// The shard.
    pub shard: u32,
    /// The checkpoint from which a start goes on; `None` if there is none yet. When the file that
    /// says so is damaged, the newest that is whole.
    pub checkpoint: Option<CheckpointReport>,
    /// The journal's directory.
    pub directory: PathBuf,
    /// Its files, oldest first.
    pub files: Vec<FileReport>,
    /// Whole batches.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Records that a repair found lost.
    pub lost_records: u64,
    /// Bytes of batches, headers and padding included.
    pub log_bytes: u64,
    /// Where it was cut, if it does not end in zeros.
    pub cut: Option<CutReport>,
    /// The position of the next record: the number of records ever; `None` when the journal could
    /// not be read to its end.
    pub next_position: Option<u64>,
    /// Records behind the checkpoint, which a start replays.
    pub records_behind: Option<u64>,
    /// The shard's streams.
    pub streams: usize,
    /// Bytes of live streams, snapshots and parts that are in it, or in the checkpoint, alone.
    pub live_bytes: u64,
    /// Segments in which the shard has blocks.
    pub segments: usize,
    /// Bytes of live streams, snapshots and parts in them.
    pub segment_live_bytes: u64,
}

/// A checkpoint.
#[derive(Debug, Serialize)]
pub struct CheckpointReport {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub file: PathBuf,
    /// Streams and purged buckets in it.
    pub entries: u64,
    /// Its length.
    pub bytes: u64,
    /// The first position in the journal that is not in it.
    pub replay_from: u64,
}

/// Segments that streams name.
#[derive(Debug, Default, Serialize)]
pub struct SegmentsReport {
    /// Each of them.
    pub files: Vec<SegmentReport>,
    /// What they take on disk.
    pub disk_bytes: u64,
    /// Bytes of live blocks in them, headers included.
    pub live_bytes: u64,
    /// The rest of what they take.
    pub dead_bytes: u64,
    /// Files that nothing names: the next start removes them.
    pub unnamed: Vec<PathBuf>,
}

/// One segment.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    /// Its file's name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What it takes on disk.
    pub disk_bytes: u64,
    /// Bytes of live blocks in it, headers included.
    pub live_bytes: u64,
    /// The rest of what it takes.
    pub dead_bytes: u64,
}

/// One journal file.
#[derive(Debug, Serialize)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Batches in it; `None` when the journal could not be read to its end.
    pub batches: Option<u64>,
    /// Records in them.
    pub records: Option<u64>,
}

/// The end of a log that does not end in zeros.
#[derive(Debug, Serialize)]
pub struct CutReport {
    /// The file.
    pub file: PathBuf,
    /// Where it ends.
    pub offset: u64,
    /// What lies behind, in words.
    pub what: String,
}

/// Blobs.
#[derive(Debug, Default, Serialize)]
pub struct BlobsReport {
    /// Files that records name.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that no record names: the next start removes them.
    pub unnamed: Vec<PathBuf>,
}

/// One stream.
#[derive(Debug, Serialize)]
pub struct StreamReport {
    /// `bucket/stream`, or the path of the base surface.
    pub key: String,
    /// Its token.
    pub incarnation: u64,
    /// Its shard.
    pub shard: u32,
    /// Its content type.
    pub content_type: String,
    /// The earliest offset that can be read.
    pub retained: u64,
    /// The offset after its last byte.
    pub tail: u64,
    /// Bytes of it that are its own, not its source's.
    pub bytes: u64,
    /// Blocks of segments that they are in.
    pub blocks: usize,
    /// How many of them are in those; the others are in the journal and the checkpoint.
    pub block_bytes: u64,
    /// Whether it takes no more appends.
    pub closed: bool,
    /// Whether it is deleted, and kept for its forks.
    pub soft_deleted: bool,
    /// How long it lives.
    pub lifetime: LifetimeReport,
    /// Its latest snapshot.
    pub snapshot: Option<SnapshotReport>,
    /// Snapshot parts that no commit has used.
    pub staged_parts: usize,
    /// What it was forked from.
    pub forked_from: Option<OriginReport>,
    /// Names of streams that inherit from it.
    pub forks: Vec<String>,
    /// Producers remembered.
    pub producers: usize,
}

/// How long a stream lives.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LifetimeReport {
    /// Until it is deleted.
    Unlimited,
    /// So long from its last use.
    Ttl {
        /// How long.
        seconds: u64,
        /// When that is over, as things are.
        ends_ms: u64,
    },
    /// Until a moment.
    ExpiresAt {
        /// That moment.
        ends_ms: u64,
    },
}

/// A snapshot.
#[derive(Debug, Serialize)]
pub struct SnapshotReport {
    /// The offset it summarises up to.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// Its content type.
    pub content_type: String,
    /// Its digest, as recorded.
    pub digest: String,
    /// Whether its body gives that digest.
    pub verified: bool,
}

/// What a fork inherits.
#[derive(Debug, Serialize)]
pub struct OriginReport {
    /// The source's name.
    pub key: String,
    /// The source's token.
    pub incarnation: u64,
    /// The first offset inherited.
    pub start: u64,
    /// The offset after the last.
    pub offset: u64,
}

impl Report {
    /// Notes something that does not verify.
    pub fn problem(&mut self, place: impl ToString, what: impl ToString) {
        self.problems.push(Problem {
            place: place.to_string(),
            what: what.to_string(),
        });
    }
}
