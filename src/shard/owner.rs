//! One owner core: its streams, and the path of a change through them.
//!
//! A change is decided on staged state, encoded into the journal's open batch
//! and applied to staged state in the same turn ([`Shard::stage`]). When its
//! batch is durable ([`Shard::on_durable`]) the change becomes visible,
//! readers are woken, and whoever waits is answered. Between the two, nobody
//! is told anything that rests on it: every outcome carries the batch it must
//! wait for ([`Staged`]). A batch that fails latches the shard: what waits is
//! told that the outcome is unknown, new writes are refused, durable state
//! stays readable.
//!
//! No lock: a shard lives on one thread, and no borrow of its tables is held
//! across an await.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    base::{limits::Limits, time::Clock},
    protocol::{
        error::Refusal, expiry::Lifetime, fork::ForkOrigin, incarnation::Incarnation,
        stream_key::StreamKey,
    },
    shard::{
        keeper::KeeperBell,
        live::{Watch, Watched},
        lookup::{Cache, Lack},
        record::Record,
        request::{BatchNumber, Cold, Reply, Request, Staged, Warm},
        slice::SLICE_PLACES,
        stream::{Blob, Stream},
        tables::{Effect, Tables},
    },
    storage::journal::{BatchTimes, Health, Purpose, Stage, StageError},
};

/// What a shard tells other cores of its own accord.
pub trait Peers {
    /// Wakes the readers that wait on `watch`. Called at most once per watch until it arrived.
    fn wake_readers(&self, watch: &Arc<Watch>);

    /// A fork is durably gone: its source's owner may let go of what it inherited.
    fn release_source(&self, origin: &ForkOrigin, fork: Incarnation);
}

/// One shard.
pub struct Shard {
    /// Its number.
    pub id: usize,
    pub(super) tables: RefCell<Tables>,
    pub(super) journal: Rc<dyn Stage>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) limits: Limits,
    memory_bytes_max: u64,
    peers: Rc<dyn Peers>,
    waiters: RefCell<Vec<(BatchNumber, Vec<Waker>)>>,
    failed: Cell<bool>,
    scratch: RefCell<Vec<u8>>,
    pub(super) cache: RefCell<Cache>,
    pub(super) lack: RefCell<Option<Lack>>,
    pub(super) keeper: KeeperBell,
}

/// A stream as a write finds it.
pub(super) enum Found {
    /// It is there.
    Slot(usize),
    /// It is not, and that rests on this batch.
    Missing(BatchNumber),
}

impl Shard {
    /// A shard over an open journal. `memory_bytes_max` is its share of the budget.
    #[must_use]
    pub fn new(
        id: usize,
        mut tables: Tables,
        journal: Rc<dyn Stage>,
        clock: Rc<dyn Clock>,
        limits: Limits,
        memory_bytes_max: u64,
        peers: Rc<dyn Peers>,
    ) -> Self {
        tables.set_releases_max(SLICE_PLACES);
        Self {
            id,
            tables: RefCell::new(tables),
            journal,
            clock,
            limits,
            memory_bytes_max,
            peers,
            waiters: RefCell::default(),
            failed: Cell::new(false),
            scratch: RefCell::default(),
            cache: RefCell::default(),
            lack: RefCell::default(),
            keeper: KeeperBell::default(),
        }
    }

    /// Carries out a request. One whose decision needs bytes that are not in memory comes back
    /// ([`Reply::Cold`]), and nothing has happened.
    pub fn execute(&self, request: Request) -> Staged<Reply> {
        match request {
            Request::Create(request) => self.create(request),
            Request::Append(request) => self.append(&request).map(Reply::Appended),
            Request::Delete(target) => self.delete(&target).map(Reply::Done),
            Request::Head(target) => self.head(&target).map(Reply::Head),
            Request::Leave { incarnation, core } => {
                self.leave(incarnation, core);
                Staged::now(Ok(Reply::Done(incarnation)))
            }
            Request::StagePart(target, id, body) => {
                self.stage_part(&target, id, body).map(Reply::Done)
            }
            Request::DiscardParts(target) => self.discard_parts(&target).map(Reply::Done),
            Request::ReadSnapshot(target, offset) => {
                self.read_snapshot(&target, offset).map(Reply::Snapshot)
            }
            Request::Release { source, fork } => self.release(source, fork).map(Reply::Done),
            Request::Inherit { source, start, end } => {
                Staged::now(Ok(Reply::Inherited(self.inherit(source, start, end))))
            }
            Request::Fence(bucket) => self.fence(&bucket).map(|()| Reply::Done(Incarnation(0))),
            Request::PurgeSlice { bucket, from } => self.purge_slice(bucket.as_deref(), from),
            Request::Barrier => Staged::now(Ok(Reply::Done(Incarnation(0)))),
            Request::Cut(hold) => Staged::now(Ok(Reply::Cut(Box::new(self.cut(hold))))),
            Request::Warm(warm) => {
                let Warm {
                    incarnation,
                    start,
                    bytes,
                    request,
                } = *warm;
                self.cache.borrow_mut().insert(incarnation, start, bytes);
                self.execute(request)
            }
            looks => {
                self.lack.take();
                let staged = self.look(&looks);
                match self.lack.take() {
                    None => staged,
                    Some(lack) => Staged::now(Ok(Reply::Cold(Box::new(Cold {
                        lack,
                        request: looks,
                    })))),
                }
            }
        }
    }

    /// Carries out a request that may have to look at stored bytes.
    fn look(&self, request: &Request) -> Staged<Reply> {
        match request {
            Request::Read(request, watch) => self.read(request, watch.clone()),
            Request::Tail(request, watch) => self.tail(request, watch.clone()).map(Reply::Watching),
            Request::Event(request) => self.event(request).map(Reply::Event),
            Request::Publish(request, body) => self
                .publish(request, body.clone())
                .map(|(meta, incarnation)| Reply::Published(meta, incarnation)),
            Request::BeginCommit(request) => self.begin_commit(request),
            Request::EndCommit(request, matches) => self
                .end_commit(request, *matches)
                .map(|(meta, incarnation)| Reply::Published(meta, incarnation)),
            Request::Retain(target, offset) => self
                .retain(target, *offset)
                .map(|(offset, incarnation)| Reply::Retained(offset, incarnation)),
            Request::Bootstrap(request) => self
                .bootstrap(request)
                .map(|reply| Reply::Bootstrap(Box::new(reply))),
            Request::Refer(request) => self
                .refer(request)
                .map(|inherited| Reply::Referred(Box::new(inherited))),
            _ => Staged::now(Err(Refusal::Internal)),
        }
    }

    /// Wall time, in Unix milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Whether the shard takes writes now.
    ///
    /// # Errors
    /// [`Refusal::DiskPressure`], [`Refusal::ApplyStopped`], [`Refusal::MemoryPressure`].
    pub fn check_writes(&self) -> Result<(), Refusal> {
        self.check_room(0)
    }

    /// Checks, before anything is decided, that the shard takes writes and has room for `bytes`
    /// more.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), Refusal> {
        self.check_room_in(&mut self.tables.borrow_mut(), bytes)
    }

    /// The same, for callers that hold the tables. What is in blocks leaves memory for it.
    pub(super) fn check_room_in(&self, tables: &mut Tables, bytes: u64) -> Result<(), Refusal> {
        match self.journal.health() {
            Health::Ok => {}
            Health::DiskPressure => return Err(Refusal::DiskPressure),
            Health::Failed | Health::DirectoryGone => return Err(Refusal::ApplyStopped),
        }
        let Some(room) = self.memory_bytes_max.checked_sub(bytes) else {
            return Err(Refusal::MemoryPressure);
        };
        tables.evict_to(room);
        if tables.memory_bytes > room {
            // A checkpoint turns what is in memory alone into what may leave it.
            self.keeper.ask_checkpoint();
            return Err(Refusal::MemoryPressure);
        }
        Ok(())
    }

    /// Puts a record into the open batch.
    pub(super) fn stage(&self, record: &Record<'_>) -> Result<BatchNumber, Refusal> {
        let mut head = self.scratch.borrow_mut();
        head.clear();
        let body = record.encode(&mut head);
        let purpose = if record.only_frees() {
            Purpose::Free
        } else {
            Purpose::Store
        };
        self.journal
            .stage_for(purpose, &[&head, body])
            .map_err(|error| match error {
                StageError::Latched => Refusal::ApplyStopped,
                StageError::DiskPressure => Refusal::DiskPressure,
                StageError::TooLarge => Refusal::Internal,
            })
    }

    /// Whether `batch` is durable.
    #[must_use]
    pub fn is_durable(&self, batch: BatchNumber) -> bool {
        batch <= self.journal.durable()
    }

    /// The last batch with something staged.
    #[must_use]
    pub fn staged(&self) -> BatchNumber {
        self.journal.staged()
    }

    /// Whether something is staged that is not durable yet.
    pub fn is_committing(&self) -> bool {
        self.journal.staged() > self.journal.durable()
    }

    /// When a recent batch was issued and became durable.
    #[must_use]
    pub fn batch_times(&self, batch: BatchNumber) -> BatchTimes {
        self.journal.times(batch)
    }

    /// Whether the journal has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Ready once `batch` is durable, or never will be.
    ///
    /// # Errors
    /// [`Refusal::OutcomeUnknown`] when the journal failed first.
    pub fn poll_durable(&self, batch: BatchNumber, cx: &Context<'_>) -> Poll<Result<(), Refusal>> {
        if self.is_durable(batch) {
            return Poll::Ready(Ok(()));
        }
        if self.failed.get() {
            return Poll::Ready(Err(Refusal::OutcomeUnknown));
        }
        let mut waiters = self.waiters.borrow_mut();
        match waiters.iter_mut().find(|(number, _)| *number == batch) {
            Some((_, wakers)) => wakers.push(cx.waker().clone()),
            None => waiters.push((batch, vec![cx.waker().clone()])),
        }
        Poll::Pending
    }

    /// Makes visible what `durable` has made durable, and wakes who waits for it.
    pub fn on_durable(&self, durable: BatchNumber) {
        loop {
            let effect = self.tables.borrow_mut().next_effect(durable);
            let Some(effect) = effect else { break };
            self.make_visible(effect);
        }
        if self.tables.borrow().has_leftover() {
            self.keeper.ring();
        }
        self.waiters.borrow_mut().retain_mut(|(batch, wakers)| {
            if *batch > durable {
                return true;
            }
            wakers.drain(..).for_each(Waker::wake);
            false
        });
    }

    /// The journal has failed: whoever waits learns that the outcome is unknown.
    pub fn on_failed(&self) {
        self.failed.set(true);
        for (_, wakers) in self.waiters.borrow_mut().drain(..) {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn make_visible(&self, effect: Effect) {
        let mut tables = self.tables.borrow_mut();
        let slot = match effect {
            Effect::Create { slot } => {
                if let Some(stream) = tables.streams.get_mut(slot) {
                    stream.visible.exists = true;
                }
                return;
            }
            Effect::Advance { slot, tail, closed } => {
                if let Some(stream) = tables.streams.get_mut(slot) {
                    stream.visible.tail = tail;
                    stream.visible.closed |= closed;
                }
                slot
            }
            Effect::Retain { slot, offset } => {
                if let Some(stream) = tables.streams.get_mut(slot) {
                    stream.visible.retained = offset;
                }
                tables.release_history(slot);
                return;
            }
            Effect::Release { slot } => {
                if let Some(stream) = tables.streams.get_mut(slot) {
                    stream.end_release();
                }
                tables.release_history(slot);
                return;
            }
            Effect::Snapshot { slot, snapshot } => {
                let replaced = tables.streams.get_mut(slot).and_then(|stream| {
                    let blobs = stream.blobs_or_new();
                    blobs
                        .staged
                        .take_if(|staged| Arc::ptr_eq(staged, &snapshot));
                    blobs.snapshot.replace(snapshot)
                });
                if let Some(replaced) = replaced {
                    tables.bury(&replaced.body);
                    tables.discharge(slot, replaced.memory_bytes());
                }
                return;
            }
            Effect::Doom { blobs } => {
                tables.bury(&blobs);
                return;
            }
            Effect::SoftDelete { slot } => {
                if let Some(stream) = tables.streams.get_mut(slot) {
                    stream.visible.soft_deleted = true;
                }
                slot
            }
            Effect::Delete { slot } => {
                let Some(stream) = tables.remove(slot) else {
                    return;
                };
                drop(tables);
                self.wake(stream.publish(Watched::Gone));
                stream.all_blobs().for_each(Blob::doom);
                if let Some(origin) = stream.staged.origin() {
                    self.peers.release_source(origin, stream.staged.incarnation);
                }
                return;
            }
        };
        let Some(stream) = tables.streams.get(slot) else {
            return;
        };
        if !stream.is_watched() {
            return;
        }
        let visible = &stream.visible;
        let state = match (visible.soft_deleted, visible.closed) {
            (true, _) => Watched::Gone,
            (false, true) => Watched::Closed { tail: visible.tail },
            (false, false) => Watched::Open { tail: visible.tail },
        };
        self.wake(stream.publish(state));
    }

    fn wake<'a>(&self, watches: impl Iterator<Item = &'a Arc<Watch>>) {
        for watch in watches {
            watch.stamp(self.batch_times(self.journal.durable()).durable_ns);
            self.peers.wake_readers(watch);
        }
    }

    /// The stream that a write to `key` meets, on staged state. A stream whose life is over is
    /// deleted here and now.
    pub(super) fn find_staged(&self, key: &StreamKey) -> Result<Found, Refusal> {
        let slot = {
            let tables = self.tables.borrow();
            if tables.is_fenced(key) {
                return Err(Refusal::BucketErased);
            }
            let Some(slot) = tables.slot_of_key(key) else {
                return Ok(Found::Missing(BatchNumber(0)));
            };
            let Some(stream) = tables.streams.get(slot) else {
                return Ok(Found::Missing(BatchNumber(0)));
            };
            if stream.is_deleted() {
                return Ok(Found::Missing(stream.changed_in));
            }
            if stream.staged.soft_deleted || !self.is_over(stream) {
                return Ok(Found::Slot(slot));
            }
            slot
        };
        let batch = self.remove_stream(slot)?;
        let tables = self.tables.borrow();
        // With forks it is soft-deleted and still there.
        match tables.streams.get(slot) {
            Some(stream) if !stream.is_deleted() => Ok(Found::Slot(slot)),
            _ => Ok(Found::Missing(batch)),
        }
    }

    /// The stream that a read of `key` meets, on durable state.
    ///
    /// # Errors
    /// [`Refusal::BucketErased`], [`Refusal::StreamNotFound`], [`Refusal::SoftDeleted`].
    pub(super) fn find_visible(&self, key: &StreamKey) -> Result<usize, Refusal> {
        let over = {
            let tables = self.tables.borrow();
            if tables.is_fenced(key) {
                return Err(Refusal::BucketErased);
            }
            let mut slot = tables.slot_of_key(key).ok_or(Refusal::StreamNotFound)?;
            loop {
                let stream = tables.streams.get(slot).ok_or(Refusal::StreamNotFound)?;
                if stream.visible.exists {
                    if stream.visible.soft_deleted {
                        return Err(Refusal::SoftDeleted);
                    }
                    if !self.is_over(stream) {
                        return Ok(slot);
                    }
                    break slot;
                }
                slot = stream.predecessor().ok_or(Refusal::StreamNotFound)? as usize;
            }
        };
        // Its life is over: as if it had been deleted. Without room for the record the sweep
        // will write it later.
        let _ = self.remove_stream(over);
        Err(Refusal::StreamNotFound)
    }

    /// Whether the life of `stream` is over. Most have no end: the clock is not read for them.
    fn is_over(&self, stream: &Stream) -> bool {
        stream.staged.lifetime != Lifetime::Unlimited && stream.is_over(self.now_ms())
    }

    /// Stages the end of a stream: deletion, or soft deletion while forks inherit from it.
    /// Returns the batch.
    pub(super) fn remove_stream(&self, slot: usize) -> Result<BatchNumber, Refusal> {
        let (incarnation, soft) = {
            let tables = self.tables.borrow();
            let stream = tables.streams.get(slot).ok_or(Refusal::StreamNotFound)?;
            if stream.is_deleted() || (stream.staged.soft_deleted && stream.staged.has_forks()) {
                return Ok(stream.changed_in);
            }
            (stream.staged.incarnation, stream.staged.has_forks())
        };
        let batch = self.stage(&Record::Delete { incarnation, soft })?;
        let mut tables = self.tables.borrow_mut();
        if let Some(stream) = tables.streams.get_mut(slot) {
            stream.changed_in = batch;
            if soft {
                stream.staged.soft_deleted = true;
            } else {
                stream.set_deleted();
            }
        }
        let effect = if soft {
            Effect::SoftDelete { slot }
        } else {
            Effect::Delete { slot }
        };
        tables.note(batch, effect);
        Ok(batch)
    }

    /// A token for a new stream.
    pub fn allocate_incarnation(&self) -> Result<Incarnation, Refusal> {
        self.tables.borrow_mut().allocate().ok_or(Refusal::Internal)
    }

    /// Memory charged for streams, in bytes, and its bound.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        (self.tables.borrow().memory_bytes, self.memory_bytes_max)
    }

    /// Whether a stream is there whose deletion has not been staged; a soft-deleted one is.
    #[must_use]
    pub fn has_stream(&self, incarnation: Incarnation) -> bool {
        let tables = self.tables.borrow();
        let slot = tables.slot_of(incarnation);
        let stream = slot.and_then(|slot| tables.streams.get(slot));
        stream.is_some_and(|stream| !stream.is_deleted())
    }

    /// Streams in the table.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.tables.borrow().streams.len()
    }
}
