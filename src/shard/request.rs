//! What is asked of a stream's owner, and what it answers.
//!
//! These cross cores, so they own what they carry or share it immutably.
//! Whether a request comes from the owner's own connections or from another
//! core, it goes through the same [`Shard::execute`](super::owner::Shard::execute).

use std::{cell::Cell, sync::Arc};

use bytes::Bytes;

pub use crate::storage::journal::BatchNumber;
use crate::{
    protocol::{
        append::AppendRequest,
        bootstrap::BootstrapRequest,
        content_type::ContentType,
        create::{CreateRequest, Inherited},
        error::Refusal,
        expiry::Lifetime,
        fork::ForkRequest,
        incarnation::Incarnation,
        producer::{Digest, Repeat},
        read::{Extent, ReadRequest, Window},
        snapshot::{PublishRequest, SnapshotMeta},
        stream_key::{StreamKey, Surface},
    },
    shard::{
        hold::Cut,
        live::Watch,
        lookup::Lack,
        purge::Purged,
        run::Run,
        stream::{Blob, StoredSnapshot},
    },
    storage::segment::Segment,
};

/// A name and a precondition: all that many requests carry.
#[derive(Clone, Debug)]
pub struct Target {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
}

/// Something asked of a stream's owner.
#[derive(Debug)]
pub enum Request {
    /// PUT of a stream.
    Create(CreateRequest),
    /// POST.
    Append(AppendRequest),
    /// DELETE.
    Delete(Target),
    /// HEAD.
    Head(Target),
    /// GET; a long-poll brings the watch to wait on.
    Read(ReadRequest, Option<Arc<Watch>>),
    /// The opening of an SSE response.
    Tail(ReadRequest, Arc<Watch>),
    /// The next stored bytes of an open SSE response.
    Event(EventRequest),
    /// A live reader on `core` has gone.
    Leave {
        /// Its stream.
        incarnation: Incarnation,
        /// Its core.
        core: usize,
    },
    /// PUT of a whole snapshot, with its body.
    Publish(PublishRequest, Blob),
    /// POST of a part: target, id, body.
    StagePart(Target, Box<str>, Blob),
    /// PUT of a parts commit, first step: reserve the parts.
    BeginCommit(CommitRequest),
    /// Its second step, once the digest is known to match (`true`) or not.
    EndCommit(CommitRequest, bool),
    /// DELETE of the staged parts.
    DiscardParts(Target),
    /// GET of a snapshot at an offset.
    ReadSnapshot(Target, u64),
    /// PUT of a retention offset.
    Retain(Target, u64),
    /// GET of the bootstrap.
    Bootstrap(BootstrapRequest),
    /// A fork asks its source for a reference.
    Refer(ReferRequest),
    /// A fork lets its reference go.
    Release {
        /// The source.
        source: Incarnation,
        /// The fork.
        fork: Incarnation,
    },
    /// A fork asks for bytes it inherits.
    Inherit {
        /// The source.
        source: Incarnation,
        /// First byte.
        start: u64,
        /// After the last byte.
        end: u64,
    },
    /// Fences a bucket.
    Fence(Box<str>),
    /// Deletes some of the streams that fences cover.
    PurgeSlice {
        /// Those of this bucket alone.
        bucket: Option<Box<str>>,
        /// [`Purged::next`] of the slice before; 0 at first.
        from: usize,
    },
    /// Nothing but an answer: what this core did before it got this is done.
    Barrier,
    /// Pins what a copy under the hold of this number needs; see [`Hold`](super::hold::Hold).
    Cut(u64),
    /// A request that came back ([`Reply::Cold`]), with the bytes it lacked.
    Warm(Box<Warm>),
}

/// A fork's request of a reference on its source.
#[derive(Debug)]
pub struct ReferRequest {
    /// What the fork's create asked for.
    pub fork: ForkRequest,
    /// The fork's name.
    pub key: StreamKey,
    /// The fork's token.
    pub incarnation: Incarnation,
    /// How far the source's messages have been counted, if it came back: of which stream, up to
    /// which offset, and how many are left.
    pub counted: Cell<Option<(Incarnation, u64, u64)>>,
}

/// Bytes that a decision looks at, and the request that needs them.
#[derive(Debug)]
pub struct Warm {
    /// The stream.
    pub incarnation: Incarnation,
    /// The offset of the first of them.
    pub start: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// The request.
    pub request: Request,
}

/// A request that came back, and what it lacked.
#[derive(Debug)]
pub struct Cold {
    /// That.
    pub lack: Lack,
    /// The request.
    pub request: Request,
}

/// The second form of a publish: from parts.
#[derive(Clone, Debug)]
pub struct CommitRequest {
    /// Which stream, and which incarnation.
    pub target: Target,
    /// The snapshot's offset.
    pub offset: u64,
    /// Its content type.
    pub content_type: ContentType,
    /// What its digest must be.
    pub digest: Digest,
    /// The parts, in order.
    pub ids: Arc<[Box<str>]>,
    /// Largest snapshot, in bytes.
    pub bytes_max: u64,
}

/// Which bytes an SSE response needs next.
#[derive(Clone, Copy, Debug)]
pub struct EventRequest {
    /// The stream.
    pub incarnation: Incarnation,
    /// Its view.
    pub surface: Surface,
    /// Where the event starts.
    pub start: u64,
    /// Most stored bytes.
    pub bytes_max: u64,
}

/// An answer of a stream's owner.
#[derive(Debug)]
pub enum Reply {
    /// To [`Request::Create`].
    Created(Created),
    /// To [`Request::Create`] of a fork that does not exist yet: get the source's reference first.
    NeedsSource,
    /// To [`Request::Append`].
    Appended(Appended),
    /// To [`Request::Delete`] and others that have nothing to say but the stream's token.
    Done(Incarnation),
    /// To [`Request::Head`].
    Head(StreamHead),
    /// To [`Request::Read`].
    Read(ReadReply),
    /// To [`Request::Read`] of a long-poll at the tail, and to [`Request::Tail`].
    Watching(Watching),
    /// To [`Request::Event`].
    Event(EventReply),
    /// To [`Request::Publish`] and [`Request::EndCommit`], and to a commit that was done before.
    Published(SnapshotMeta, Incarnation),
    /// To [`Request::BeginCommit`]: the parts' bodies, in order, and the segments they are in.
    Parts(Vec<Blob>, Vec<Arc<Segment>>, Incarnation),
    /// To [`Request::ReadSnapshot`].
    Snapshot(SnapshotReply),
    /// To [`Request::Retain`]: the retained offset.
    Retained(u64, Incarnation),
    /// To [`Request::Bootstrap`].
    Bootstrap(Box<BootstrapReply>),
    /// To [`Request::Refer`].
    Referred(Box<Inherited>),
    /// To [`Request::Inherit`]: where they are; `None` if the source lacks some.
    Inherited(Option<Vec<Run>>),
    /// To [`Request::Cut`].
    Cut(Box<Cut>),
    /// To a request whose decision needs bytes that are not in memory, or more time: nothing has
    /// happened. Load them and send [`Request::Warm`], or send it again.
    Cold(Box<Cold>),
    /// To [`Request::PurgeSlice`].
    Purged(Purged),
}

/// A stream that exists as asked for.
#[derive(Clone, Debug)]
pub struct Created {
    /// Whether this request made it.
    pub is_new: bool,
    /// Its token.
    pub incarnation: Incarnation,
    /// Its content type.
    pub content_type: ContentType,
    /// Its lifetime.
    pub lifetime: Lifetime,
    /// Its tail.
    pub tail: u64,
    /// Whether it is closed.
    pub closed: bool,
}

/// An append that holds.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The stream's token.
    pub incarnation: Incarnation,
    /// First byte of the write.
    pub start: u64,
    /// The tail after the write.
    pub tail: u64,
    /// Whether the stream is closed.
    pub closed: bool,
    /// The receipt of a producer's write.
    pub receipt: Option<Receipt>,
}

/// What a producer is told.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// Applied now.
    Applied {
        /// Its epoch.
        epoch: u64,
        /// Its sequence number.
        seq: u64,
        /// The epoch it closed.
        closed: Option<(u64, u64)>,
    },
    /// Applied before.
    Repeated(Repeat),
}

/// What HEAD says.
#[derive(Clone, Debug)]
pub struct StreamHead {
    /// The durable extent.
    pub extent: Extent,
    /// The content type.
    pub content_type: ContentType,
    /// The lifetime.
    pub lifetime: Lifetime,
    /// The latest snapshot, which most streams do not have.
    pub snapshot: Option<Box<SnapshotMeta>>,
}

/// What a read returns.
#[derive(Clone, Debug)]
pub struct ReadReply {
    /// The stream's token.
    pub incarnation: Incarnation,
    /// Its content type.
    pub content_type: ContentType,
    /// Its lifetime, and when it was last renewed, in Unix milliseconds.
    pub lifetime: (Lifetime, u64),
    /// Which bytes.
    pub window: Window,
    /// Where the bytes are.
    pub runs: Vec<Run>,
}

/// A live read that waits.
#[derive(Debug)]
pub struct Watching {
    /// The durable extent.
    pub extent: Extent,
    /// The content type.
    pub content_type: ContentType,
    /// Where the read starts.
    pub start: u64,
    /// What to wait on.
    pub watch: Arc<Watch>,
}

/// The stored bytes of an event.
#[derive(Debug)]
pub struct EventReply {
    /// Which bytes; empty when there are none yet, or only an incomplete character.
    pub window: Window,
    /// Whether the byte before them is a CR.
    pub after_cr: bool,
    /// Where the bytes are.
    pub runs: Vec<Run>,
}

/// A snapshot that was asked for.
#[derive(Debug)]
pub struct SnapshotReply {
    /// The snapshot.
    pub snapshot: Arc<StoredSnapshot>,
    /// The stream's token.
    pub incarnation: Incarnation,
    /// Whether it is at the tail.
    pub up_to_date: bool,
    /// The segments with blocks of its body.
    pub segments: Vec<Arc<Segment>>,
}

/// What a bootstrap returns.
#[derive(Debug)]
pub struct BootstrapReply {
    /// The stream's token.
    pub incarnation: Incarnation,
    /// The stream's content type.
    pub content_type: ContentType,
    /// The latest snapshot.
    pub snapshot: Option<Arc<StoredSnapshot>>,
    /// The updates after the snapshot point.
    pub window: Window,
    /// Where their bytes are.
    pub runs: Vec<Run>,
    /// The segments with blocks of the snapshot's body.
    pub segments: Vec<Arc<Segment>>,
}

/// An outcome, and the batch that must be durable before anybody is told.
#[derive(Debug)]
#[must_use]
pub struct Staged<T> {
    /// What was decided.
    pub outcome: Result<T, Refusal>,
    /// The batch; batch 0 when nothing staged was involved.
    pub after: BatchNumber,
}

impl<T> Staged<T> {
    /// An outcome that rests on durable state alone.
    pub fn now(outcome: Result<T, Refusal>) -> Self {
        Self {
            outcome,
            after: BatchNumber(0),
        }
    }

    /// An outcome that rests on what `after` makes durable. That the shard takes no more writes rests
    /// on nothing: nothing was applied, whatever becomes of `after`.
    pub fn after(after: BatchNumber, outcome: Result<T, Refusal>) -> Self {
        match outcome {
            Err(Refusal::ApplyStopped) => Self::now(outcome),
            outcome => Self { outcome, after },
        }
    }

    /// The same, for a wider type.
    pub fn map<U>(self, wrap: impl FnOnce(T) -> U) -> Staged<U> {
        Staged {
            outcome: self.outcome.map(wrap),
            after: self.after,
        }
    }
}
