//! One stream on its owner core: staged state, durable view, bytes.
//!
//! Invariants: `visible.tail <= staged.tail == history.end()`; what `visible`
//! says is durable; nothing outside this core sees anything else of the
//! stream. Decisions are taken on `staged` and answered only once
//! `changed_in` is durable.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    protocol::{
        incarnation::Incarnation, read::Extent, snapshot::SnapshotMeta, state::StreamState,
    },
    shard::{
        history::History,
        live::{Watch, Watched, Watchers},
        record::BlobRecord,
        request::BatchNumber,
        run::Run,
    },
    storage::{
        blob::BlobFile,
        segment::{BlockKey, BlockKind, Holdings, Place},
    },
};

/// Bytes of memory charged for a stream besides its data: its entry, its place in both indexes,
/// and its name.
pub const STREAM_OVERHEAD_BYTES: u64 = 320;

// The entry itself, in the table; the rest is its name, and its places in the index. A million idle
// streams are to cost no more than 300 MB: what few of them need belongs into `Extras` or `Rare`.
const _: () = assert!(size_of::<Stream>() <= 176);

/// A stream and everything its owner knows of it.
#[derive(Debug)]
pub struct Stream {
    /// What staged records add up to.
    pub staged: StreamState,
    /// What durable records add up to, as far as readers see it.
    pub visible: Visible,
    /// Its bytes.
    pub history: History,
    /// The batch that holds the last staged change.
    pub changed_in: BatchNumber,
    /// Memory charged to the shard's budget for it, in bytes.
    pub charged: u64,
    /// What few streams have at any one time.
    extras: Option<Box<Extras>>,
}

/// What few streams have at any one time: all others do without the memory for it.
#[derive(Debug, Default)]
struct Extras {
    /// A stream of the same name whose deletion is staged but not durable yet.
    predecessor: Option<u32>,
    /// Whether its deletion is staged.
    deleted: bool,
    /// References of forks whose release is staged and not durable yet: a crash may bring them back,
    /// so what they keep stays.
    releasing: u32,
    /// Bodies of the latest visible snapshot and of staged parts.
    blobs: Option<Box<Blobs>>,
    /// Cores with live readers.
    watchers: Watchers,
}

impl Extras {
    fn is_empty(&self) -> bool {
        self.predecessor.is_none()
            && !self.deleted
            && self.releasing == 0
            && self.blobs.is_none()
            && self.watchers.is_empty()
    }
}

/// What readers may see.
#[derive(Clone, Debug, Default)]
pub struct Visible {
    /// Whether its creation is durable.
    pub exists: bool,
    /// Whether it is durably deleted while forks still inherit from it.
    pub soft_deleted: bool,
    /// Whether it is durably closed.
    pub closed: bool,
    /// The offset after the last durable byte.
    pub tail: u64,
    /// The earliest offset that can be read.
    pub retained: u64,
}

/// Snapshot bodies.
#[derive(Debug, Default)]
pub struct Blobs {
    /// The latest durable snapshot.
    pub snapshot: Option<Arc<StoredSnapshot>>,
    /// A later one whose record is staged and not durable yet.
    pub staged: Option<Arc<StoredSnapshot>>,
    /// Staged parts, by id.
    pub parts: std::collections::HashMap<Box<str>, Blob>,
}

/// A body, or a part of one, of a snapshot.
#[derive(Clone, Debug)]
pub enum Blob {
    /// In memory: small ones, which are in the journal.
    Memory(Bytes),
    /// In a file of its own.
    File(Arc<BlobFile>),
    /// In a block of a segment: a small one that a checkpoint has moved there.
    Block(Place),
}

impl Blob {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.len,
            Self::Block(place) => u64::from(place.len),
        }
    }

    /// Bytes in all pieces of a body.
    pub(super) fn len_of(body: &[Self]) -> u64 {
        let lens = body.iter().map(Self::len);
        lens.fold(0, u64::saturating_add)
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory it takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_) | Self::Block(_) => 0,
        }
    }

    /// The block it is in, if it is in one.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Block(place) => Some(*place),
            Self::Memory(_) | Self::File(_) => None,
        }
    }

    /// How its record names it.
    #[must_use]
    pub fn record(&self) -> BlobRecord<'_> {
        match self {
            Self::Memory(bytes) => BlobRecord::Inline(bytes),
            Self::File(file) => BlobRecord::File {
                id: file.id,
                len: file.len,
            },
            Self::Block(place) => BlobRecord::Block(*place),
        }
    }

    /// No durable record names it any more: its file goes with its last reader.
    pub fn doom(&self) {
        if let Self::File(file) = self {
            file.doom();
        }
    }

    /// A durable record names it: it stays.
    pub fn keep(&self) {
        if let Self::File(file) = self {
            file.keep();
        }
    }
}

/// A published snapshot with its body.
#[derive(Clone, Debug)]
pub struct StoredSnapshot {
    /// What it is.
    pub meta: SnapshotMeta,
    /// Its body, in order.
    pub body: Vec<Blob>,
}

impl StoredSnapshot {
    /// Memory its body takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.body.iter().map(Blob::memory_bytes).sum()
    }
}

impl Stream {
    /// A stream whose creation has been staged in `batch`.
    #[must_use]
    pub fn created(state: StreamState, history: History, batch: BatchNumber) -> Self {
        Self {
            visible: Visible {
                exists: false,
                soft_deleted: false,
                closed: state.closed,
                tail: state.tail,
                retained: state.retained,
            },
            staged: state,
            history,
            changed_in: batch,
            charged: 0,
            extras: None,
        }
    }

    /// The durable extent.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent {
            incarnation: self.staged.incarnation,
            retained: self.visible.retained,
            tail: self.visible.tail,
            closed: self.visible.closed,
        }
    }

    /// Every blob that its records name.
    pub fn all_blobs(&self) -> impl Iterator<Item = &Blob> {
        self.blobs().into_iter().flat_map(|blobs| {
            let snapshots = blobs.snapshot.iter().chain(&blobs.staged);
            let bodies = snapshots.flat_map(|snapshot| &snapshot.body);
            blobs.parts.values().chain(bodies)
        })
    }

    /// Where the bytes of `[start, end)` are, those that it inherits included.
    #[must_use]
    pub fn runs(&self, start: u64, end: u64, held: &Holdings) -> Vec<Run> {
        let own_start = self.own_start();
        let mut runs = match self.staged.origin() {
            Some(origin) if start < own_start => {
                vec![Run::inherited(origin, start, end.min(own_start))]
            }
            _ => Vec::new(),
        };
        if end > own_start {
            let start = start.max(own_start);
            runs.extend(self.history.runs(self.staged.incarnation, start, end, held));
        }
        runs
    }

    /// The first offset whose byte is its own, not a fork's source's.
    #[must_use]
    pub fn own_start(&self) -> u64 {
        self.staged.origin().map_or(0, |origin| origin.offset)
    }

    /// Bytes of its history, without what a fork shares with its source.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.history.len()
    }

    /// The latest durable snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Arc<StoredSnapshot>> {
        self.blobs()?.snapshot.as_ref()
    }

    /// Bodies of its snapshot and of staged parts.
    #[must_use]
    pub fn blobs(&self) -> Option<&Blobs> {
        self.extras.as_ref()?.blobs.as_deref()
    }

    /// The same, to be changed.
    pub(super) fn blobs_mut(&mut self) -> Option<&mut Blobs> {
        self.extras.as_mut()?.blobs.as_deref_mut()
    }

    /// The same, made on first use.
    pub(super) fn blobs_or_new(&mut self) -> &mut Blobs {
        let extras = self.extras.get_or_insert_default();
        extras.blobs.get_or_insert_default()
    }

    /// Gives it the bodies that a checkpoint has of it.
    pub(super) fn set_blobs(&mut self, blobs: Option<Box<Blobs>>) {
        if blobs.is_some() {
            self.extras.get_or_insert_default().blobs = blobs;
        }
    }

    /// Whether its deletion is staged.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.deleted)
    }

    /// Its deletion has been staged.
    pub(super) fn set_deleted(&mut self) {
        self.extras.get_or_insert_default().deleted = true;
    }

    /// A stream of the same name whose deletion is staged but not durable yet.
    pub(super) fn predecessor(&self) -> Option<u32> {
        self.extras.as_ref()?.predecessor
    }

    pub(super) fn set_predecessor(&mut self, predecessor: Option<u32>) {
        if predecessor.is_some() || self.extras.is_some() {
            self.extras.get_or_insert_default().predecessor = predecessor;
            self.drop_idle_extras();
        }
    }

    /// Whether the release of a fork's reference is staged and not durable yet: a crash may bring
    /// it back, so what it keeps stays.
    pub(super) fn is_releasing(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| extras.releasing > 0)
    }

    /// The release of a fork's reference has been staged.
    pub(super) fn begin_release(&mut self) {
        let extras = self.extras.get_or_insert_default();
        extras.releasing = extras.releasing.saturating_add(1);
    }

    /// A release that was begun is durable.
    pub(super) fn end_release(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.releasing = extras.releasing.saturating_sub(1);
            self.drop_idle_extras();
        }
    }

    /// Whether it has live readers.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| !extras.watchers.is_empty())
    }

    /// Counts a live reader on `watch.core` and returns the watch that serves that core.
    pub(super) fn watch(&mut self, watch: Arc<Watch>, state: Watched) -> Arc<Watch> {
        let extras = self.extras.get_or_insert_default();
        extras
            .watchers
            .register(watch, self.staged.incarnation, state)
    }

    /// Forgets a live reader on `core`.
    pub(super) fn unwatch(&mut self, core: usize) {
        if let Some(extras) = &mut self.extras {
            extras.watchers.unregister(core);
            self.drop_idle_extras();
        }
    }

    /// Publishes `state` to every core with live readers; returns the watches that need a wake-up.
    pub(super) fn publish(&self, state: Watched) -> impl Iterator<Item = &Arc<Watch>> {
        let extras = self.extras.iter();
        extras.flat_map(move |extras| extras.watchers.publish(state))
    }

    fn drop_idle_extras(&mut self) {
        self.extras.take_if(|extras| extras.is_empty());
    }

    /// Every block it has: of its bytes, of its snapshot and of its parts.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let blocks = self.history.blocks().iter().map(|block| block.place);
        blocks.chain(self.all_blobs().filter_map(Blob::place))
    }

    /// Whether the stream's life is over. A live reader keeps a stream with a sliding window.
    #[must_use]
    pub fn is_over(&self, now_ms: u64) -> bool {
        let held = self.is_watched()
            && matches!(
                self.staged.lifetime,
                crate::protocol::expiry::Lifetime::Ttl { .. }
            );
        !held && self.staged.is_over(now_ms)
    }

    /// Restarts the sliding window; only forwards, so that a clock set back shortens no life.
    pub fn renew(&mut self, now_ms: u64) {
        self.staged.renewed_ms = self.staged.renewed_ms.max(now_ms);
    }
}

/// What the header of a block says that holds a small blob of `stream`.
#[must_use]
pub fn blob_key(stream: Incarnation) -> BlockKey {
    BlockKey {
        kind: BlockKind::Blob,
        owner: stream.0,
        start: 0,
    }
}
