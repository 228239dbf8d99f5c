//! Every limit, budget and timeout, with its default and its unit.
//!
//! A bound that is not in this file does not exist: queues, caches, tables
//! and buffers take theirs from here. [`Limits`] holds those that an operator
//! may set (the settings of the same names in the command line and the
//! configuration file); constants are fixed by the protocol or by the format
//! on disk. How they relate is asserted at compile time below, and for set
//! values by [`Limits::check`].

use std::time::Duration;

mod check;

pub use check::LimitsError;

/// Bytes in a kibibyte.
pub const KIB: usize = 1 << 10;
/// Bytes in a mebibyte.
pub const MIB: usize = 1 << 20;
/// Bytes in a gibibyte.
pub const GIB: u64 = 1 << 30;

/// Most stored bytes in one response or SSE event (extensions 9.3).
pub const RESPONSE_BYTES_MAX: u64 = 8 * MIB as u64;
/// Deepest JSON message (JSON Message Text, rule 3).
pub const JSON_DEPTH_MAX: usize = 127;
/// Longest stream id, and longest `bucket/stream` key, on the bucket surface, in bytes
/// (extensions 1.1).
pub const STREAM_ID_BYTES_MAX: usize = 122;
/// Longest key of a base-surface path, decoded, in bytes (ours).
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest `Producer-Id` and `Stream-Seq`, in bytes (decisions, Producers).
pub const TOKEN_BYTES_MAX: usize = 256;
/// Longest content type of a stream or snapshot, in bytes (ours).
pub const CONTENT_TYPE_BYTES_MAX: usize = 256;
/// Largest integer a JavaScript client holds exactly: bounds incarnations, producer epochs and
/// sequence numbers.
pub const JS_INTEGER_MAX: u64 = (1 << 53) - 1;
/// Most parts one snapshot commit may list (source 1, publish from parts).
pub const COMMIT_PARTS_MAX: usize = 4096;
/// Most staged, unused parts a stream may hold (source 1, stage a part).
pub const STAGED_PARTS_MAX: usize = 8192;
/// Most bytes of staged, unused parts a stream may hold (source 1, stage a part).
pub const STAGED_BYTES_MAX: u64 = 2 * GIB;
/// Staged parts no commit used are dropped after this (source 1, stage a part).
pub const STAGED_PART_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest wait of a long-poll read, in milliseconds (extensions 9.1).
pub const LONG_POLL_MS_MAX: u64 = 60_000;
/// Wait of a long-poll read on the bucket surface when the client names none, in milliseconds
/// (extensions 9.1).
pub const LONG_POLL_BUCKET_MS: u64 = 1_000;
/// Length of a cursor interval, in seconds (base protocol 10.1).
pub const CURSOR_INTERVAL_S: u64 = 20;
/// Start of cursor interval 0: 9 October 2024 00:00:00 UTC, in Unix seconds (base protocol 10.1).
pub const CURSOR_EPOCH_S: u64 = 1_728_432_000;
/// Most header fields a request may carry.
pub const HEADERS_MAX: usize = 64;
/// Most bytes of chunk extensions in one request body, in bytes; they are dropped.
pub const CHUNK_EXTENSION_BYTES_MAX: u32 = 16 * KIB as u32;
/// Most bytes of trailer fields in one request body, in bytes; they are dropped.
pub const TRAILER_BYTES_MAX: u32 = 16 * KIB as u32;
/// Longest rest of a refused body that is read to keep the connection, in bytes.
pub const SKIP_BYTES_MAX: u64 = 64 * KIB as u64;
/// Memory for what clients have yet to take (copies of answers, events), in bytes, over all shards
/// (ours): who does not read while it is full is dropped, and resumes by offset.
pub const UNSENT_BYTES_MAX: u64 = 256 * MIB as u64;
/// Most bytes that the kernel takes for a client beyond what it has sent it, in bytes (ours): who
/// does not read costs no more of the machine's memory, and of the time to copy it there, than this.
pub const SOCKET_UNSENT_BYTES_MAX: u32 = 256 * KIB as u32;
/// The same for those with a long answer, as many as [`WIDE_ANSWERS_MAX`], in bytes (ours): a large
/// read of a segment goes out with one call.
pub const WIDE_UNSENT_BYTES_MAX: u32 = MIB as u32;
/// Answers per core at once that the kernel takes [`WIDE_UNSENT_BYTES_MAX`] of (ours).
pub const WIDE_ANSWERS_MAX: usize = 16;
/// An answer of which more than this is yet to be written is long, in bytes (ours).
pub const WIDE_ANSWER_BYTES_MIN: usize = 2 * MIB;
/// Most stored bytes in one SSE event, in bytes, unless a single message is larger (ours): a reader
/// that stops reading keeps no more than one event.
pub const EVENT_BYTES_MAX: u64 = 64 * KIB as u64;
/// Most bytes that the client of an event stream, which has nothing to say, may send at once, in
/// bytes (ours): a pipelined request or two, which are dropped; who sends more is.
pub const EVENT_STREAM_INPUT_BYTES_MAX: usize = 16 * KIB;
/// An answer or event up to this size is never refused for want of [`UNSENT_BYTES_MAX`], in bytes:
/// readers of small events do not suffer from those who stopped reading large ones.
pub const UNSENT_SMALL_BYTES: u64 = 4 * KIB as u64;
/// Requests of one connection served before other tasks get their turn.
pub const REQUESTS_PER_TURN: u32 = 16;
/// Requests that come before those of others who never wait, for each time that a connection waited
/// for its client: who falls behind since the server was slow catches up, however many send on and on.
pub const PREFERRED_PER_WAIT: u32 = 4;
/// Most of them that a connection may have saved up.
pub const PREFERRED_REQUESTS_MAX: u32 = 256;
/// Connections that may be woken within [`ARRIVALS_WINDOW`], for whatever reason, and go on at once,
/// though they have few requests saved up; of others, one after the other does.
pub const ARRIVALS_AT_ONCE_MAX: u32 = 8;
/// See [`ARRIVALS_AT_ONCE_MAX`].
pub const ARRIVALS_WINDOW: Duration = Duration::from_millis(1);
/// From so many connections on that wait for their turns, others read only [`CROWDED_READ_BYTES`] at
/// once: what they ask for would only wait in memory.
pub const CROWD: usize = 64;
/// See [`CROWD`], in bytes.
pub const CROWDED_READ_BYTES: usize = 4 * KIB;
/// And write only so much of a large answer in their turn, in bytes, instead of [`PIECE_BYTES`]: where
/// the kernel has to find memory for it first, that took 0.4 ms.
pub const CROWDED_PIECE_BYTES: usize = 64 * KIB;
/// Clients that may wait until they are accepted, where the system lets as many (ours): thousands
/// that come back at once do not have to try twice.
pub const BACKLOG_MAX: i32 = 16_384;
/// Connections that may be open on the admin plane.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// Pieces in which bodies are streamed to a socket, in bytes.
pub const PIECE_BYTES: usize = 256 * KIB;
/// Most bytes of a stream in one block of a segment: what is read at once to look at one byte.
pub const BLOCK_BYTES_MAX: usize = 64 * KIB;
/// A stream with this many bytes in memory alone writes them to blocks, in bytes: large enough that
/// a catch-up read is few and large reads of the disk.
pub const FLUSH_BYTES: u64 = MIB as u64;
/// Bodies of snapshots and parts below this size stay in memory and in the checkpoint, in bytes.
pub const BLOB_BLOCK_BYTES_MIN: usize = 512;
/// Memory for blocks that were read to be looked at, in bytes, per shard; more than the two largest
/// messages that one decision can look at.
pub const LOOKUP_CACHE_BYTES_MAX: usize = 32 * MIB;
/// Smallest segment file that may be set, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 2 * MIB as u64;
/// Largest segment file that may be set, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 2 * GIB;
/// Reads of segments under way at once for one answer, each of at most [`DISK_IO_BYTES_MAX`].
pub const READ_AHEAD_MAX: usize = 4;
/// Reads of segments under way at once per core, for all answers, while no journal is written: as
/// many bring all that a disk gives.
pub const READS_MAX: usize = 16;
/// The same while journals are written, one per core.
pub const READS_BESIDE_JOURNAL_MAX: usize = 1;
/// Bytes of one of those.
pub const READ_BESIDE_JOURNAL_BYTES_MAX: usize = 128 * KIB;
/// Open segment files per shard; the least recently read one is closed for the next.
pub const SEGMENT_FILES_OPEN_MAX: usize = 64;
/// Snapshot bodies and parts from this size on are files of their own, in bytes; smaller ones are in
/// the journal and in memory.
pub const BLOB_FILE_BYTES_MIN: usize = 64 * KIB;
/// Largest single read or write a disk is asked for, in bytes (`facts.md`, Disk).
pub const DISK_IO_BYTES_MAX: usize = MIB;
/// Alignment of direct I/O, in bytes: holds for 512-byte and 4-KiB-native devices.
pub const DISK_ALIGN: usize = 4 * KIB;

/// Longest silence on an SSE response that intermediaries are sure to bear (decisions, Live reads).
pub const SSE_HEARTBEAT_MAX: Duration = Duration::from_secs(15);
/// Longest timeout: far beyond use, and no deadline computed from it overflows.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Shortest request line and head that may be set, in bytes: room for the longest stream id,
/// percent-encoded, with a method, a version and a query.
pub const HEAD_BYTES_MIN: usize = 512;
/// What a journal file must hold beside the largest request body, in bytes: the batch's and the
/// record's headers, the key, producer and content type of an append, and padding.
pub const JOURNAL_SLACK_BYTES: u64 = MIB as u64;
/// Prepared space of a journal that only records which free space may take, in bytes: a deletion
/// finds a place when writes no longer do. Dozens of batches, and each may hold many deletions.
pub const JOURNAL_FREEING_BYTES: u64 = 256 * KIB as u64;
/// Most shards: a mailbox for each pair of them must stay affordable.
pub const SHARDS_MAX: usize = 1024;
/// Deepest ring the kernel makes, in entries.
pub const RING_DEPTH_MAX: usize = 32 * KIB;
/// Least I/O memory of an executor, in bytes: glommio takes no less.
pub const IO_MEMORY_BYTES_MIN: usize = 64 * KIB;
/// Longest spin of an idle executor, in microseconds: beyond a tick of the kernel's scheduler it
/// only starves others.
pub const SPIN_US_MAX: u64 = 10_000;

/// When an append is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the disk has confirmed it: survives power loss.
    #[default]
    Sync,
    /// After the kernel has taken it: survives a crash of the server, not of the machine. For
    /// comparison, and for data that may be lost.
    Os,
}

impl Durability {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Sync, Self::Os];

    /// Its name in settings, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Os => "os",
        }
    }
}

/// What an operator may set; defaults are in [`Limits::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, in bytes: `Ursula-Max-Request-Bytes`.
    pub request_bytes_max: u64,
    /// Largest snapshot published from parts, in bytes: `Ursula-Max-Snapshot-Bytes`.
    pub snapshot_bytes_max: u64,
    /// Longest request line, in bytes (414 above).
    pub request_line_bytes_max: usize,
    /// Longest request head, in bytes (431 above).
    pub head_bytes_max: usize,
    /// Producers remembered per stream (429 `PRODUCER_LIMIT` above).
    pub producers_per_stream_max: usize,
    /// Memory for stream bytes that are not on disk alone, in bytes, over all shards.
    pub memory_bytes_max: u64,
    /// Memory for requests that are waited for (bodies in flight, large heads), in bytes, over all
    /// shards. What is there at once needs none of it.
    pub body_memory_bytes_max: u64,
    /// Open connections, over all shards.
    pub connections_max: usize,
    /// Live reads (long-poll and SSE) open at once, over all shards.
    pub live_reads_max: usize,
    /// Requests one shard may have waiting at another shard.
    pub mailbox_requests_max: usize,
    /// Answers a connection may have pending before its next request is read.
    pub pipeline_max: usize,
    /// A request head must be whole within this from its first byte.
    pub head_timeout: Duration,
    /// A request body must make progress within this.
    pub body_timeout: Duration,
    /// A whole request body must have arrived within this.
    pub body_total_timeout: Duration,
    /// A connection without a request is closed after this.
    pub idle_timeout: Duration,
    /// A client is dropped that takes nothing of an answer for this long, as far as the system tells.
    /// It finds room for more when a packet's worth (64 KiB) is taken whole, and hears of what is taken
    /// when that makes a packet's worth, or a sixteenth of the client's receive buffer.
    pub write_timeout: Duration,
    /// Most bytes read and dropped so that a client sees a refusal before the close.
    pub drain_bytes_max: u64,
    /// Longest time spent on such a drain.
    pub drain_timeout: Duration,
    /// Wait of a long-poll read on the base surface when the client names none.
    pub long_poll_timeout: Duration,
    /// An SSE response ends after about this (base protocol 5.8).
    pub sse_duration: Duration,
    /// Longest silence on an SSE response; a comment frame fills it.
    pub sse_heartbeat: Duration,
    /// Bound on the drain at shutdown.
    pub shutdown_timeout: Duration,
    /// Free bytes that the file system must keep; below it writes answer 503 `WAL_DISK_PRESSURE`,
    /// but for those that only free space.
    pub disk_reserve_bytes: u64,
    /// Size of one journal file, in bytes; a multiple of [`DISK_ALIGN`].
    pub journal_file_bytes: u64,
    /// A shard writes a checkpoint once its journal has grown by this, in bytes, or by the size of
    /// the last checkpoint, whichever is more: bounds the journal that a start reads.
    pub checkpoint_bytes: u64,
    /// Size of one segment file, in bytes.
    pub segment_bytes: u64,
}

impl Limits {
    /// Free bytes that the file system must keep also from what moves bytes to free others: segments,
    /// compaction and checkpoints may use three quarters of [`Self::disk_reserve_bytes`]. Journal
    /// files of records that free space may use all of it.
    #[must_use]
    pub fn disk_floor_bytes(&self) -> u64 {
        self.disk_reserve_bytes / 4
    }
}

impl Default for Limits {
    #[expect(clippy::arithmetic_side_effects, reason = "sums of constants")]
    fn default() -> Self {
        Self {
            request_bytes_max: 8 * MIB as u64,
            snapshot_bytes_max: GIB,
            request_line_bytes_max: 8 * KIB,
            head_bytes_max: 32 * KIB,
            producers_per_stream_max: 1024,
            memory_bytes_max: GIB,
            body_memory_bytes_max: 256 * MIB as u64,
            connections_max: 100_000,
            live_reads_max: 100_000,
            mailbox_requests_max: 4096,
            pipeline_max: 64,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(15),
            body_total_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(30),
            drain_bytes_max: 16 * MIB as u64,
            drain_timeout: Duration::from_secs(2),
            long_poll_timeout: Duration::from_secs(20),
            sse_duration: Duration::from_secs(60),
            sse_heartbeat: Duration::from_secs(15),
            shutdown_timeout: Duration::from_secs(10),
            disk_reserve_bytes: 256 * MIB as u64,
            journal_file_bytes: 32 * MIB as u64,
            checkpoint_bytes: 64 * MIB as u64,
            segment_bytes: 64 * MIB as u64,
        }
    }
}

const _: () = assert!(PIECE_BYTES <= DISK_IO_BYTES_MAX);
const _: () = assert!(DISK_IO_BYTES_MAX.is_multiple_of(DISK_ALIGN));
const _: () = assert!(COMMIT_PARTS_MAX <= STAGED_PARTS_MAX);
const _: () = assert!(EVENT_BYTES_MAX <= RESPONSE_BYTES_MAX);
const _: () = assert!(UNSENT_SMALL_BYTES <= EVENT_BYTES_MAX);
// What was taken for an answer while it was long is sent before its end is taken.
const _: () = assert!(WIDE_ANSWER_BYTES_MIN > WIDE_UNSENT_BYTES_MAX as usize);
const _: () = assert!(WIDE_UNSENT_BYTES_MAX > SOCKET_UNSENT_BYTES_MAX);
const _: () = assert!(STREAM_ID_BYTES_MAX <= KEY_BYTES_MAX);
const _: () = assert!(LONG_POLL_BUCKET_MS <= LONG_POLL_MS_MAX);
const _: () = assert!(3 * STREAM_ID_BYTES_MAX < HEAD_BYTES_MIN);
const _: () = assert!(JOURNAL_SLACK_BYTES.is_multiple_of(DISK_ALIGN as u64));
const _: () = assert!(JOURNAL_FREEING_BYTES.is_multiple_of(DISK_ALIGN as u64));
const _: () = assert!(JOURNAL_FREEING_BYTES < JOURNAL_SLACK_BYTES);
