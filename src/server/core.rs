//! What the tasks of one core share, and how a request gets to the core that
//! owns its stream.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use glommio::timer::Timer;

use crate::{
    base::{limits::Limits, rng::Rng, time::Clock},
    http::{answer::Shared, head::NamedLimits},
    protocol::{error::Refusal, fork::ForkOrigin, incarnation::Incarnation, stream_key::StreamKey},
    server::{
        budget::Budget, fan_out::FanOut, latency::Latency, metrics::ShardMetrics,
        read_turns::ReadTurns, rounds::Rounds, seat::Seats, spare::Spare, turnstile::Turnstile,
        unsent::UnsentBound,
    },
    shard::{
        across::Cores,
        hold::Hold,
        hub::{Hub, Reader},
        live::Watch,
        mailbox::{Desk, PendingReply},
        owner::{Peers, Shard},
        placement::Placement,
        request::{BatchNumber, Reply, Request, Watching},
        trip::Trip,
    },
    storage::{blob::BlobStore, disk::GlommioDisk, segment::BlockReader},
};

/// How often a closed gate is looked at.
const GATE_POLL: Duration = Duration::from_millis(1);

/// One core.
pub struct Core {
    /// Its number: also that of its shard.
    pub id: usize,
    /// The streams it owns.
    pub shard: Rc<Shard>,
    /// Its live readers.
    pub hub: Rc<Hub>,
    /// Those of them that are served together.
    pub fan_out: Rc<FanOut>,
    /// Its mailbox.
    pub desk: Rc<Desk>,
    /// What it tells the owners of forks' sources.
    pub releases: Rc<Releases>,
    /// Whether somebody copies the data directory.
    pub hold: Arc<Hold>,
    /// Who owns what.
    pub placement: Placement,
    /// Every bound.
    pub limits: Limits,
    /// What its answers share.
    pub shared: RefCell<Shared>,
    /// The limits that HEAD names.
    pub named_limits: NamedLimits,
    /// Randomness for cursors, part ids and boundaries.
    pub rng: RefCell<Rng>,
    /// The time.
    pub clock: Rc<dyn Clock>,
    /// Its connections.
    pub seats: Rc<Seats>,
    /// Where those of them queue that ask for more than their share.
    pub turnstile: Turnstile,
    /// Rounds of its ready tasks.
    pub rounds: Rounds,
    /// What it measures.
    pub latency: Rc<Latency>,
    /// What it counts.
    pub metrics: Arc<ShardMetrics>,
    /// Where reads go before anybody knows what they are; see [`socket`](super::socket).
    pub scratch: RefCell<Vec<u8>>,
    /// Buffers of connections that wait.
    pub spare: Spare,
    /// Memory for requests that are waited for: bodies in flight and large heads.
    pub requests: Budget,
    /// Memory for what clients have yet to take: copies of answers, and events.
    pub unsent: Budget,
    /// Bounds what the kernel takes for them.
    pub unsent_bound: UnsentBound,
    /// Its share of the live reads.
    pub live_reads_max: usize,
    /// Snapshot bodies and parts in files.
    pub blobs: BlobStore<GlommioDisk>,
    /// Blocks of segments.
    pub blocks: BlockReader<GlommioDisk>,
    /// When to read them.
    pub read_turns: Rc<ReadTurns>,
}

impl Core {
    /// Waits until everybody else has had a turn.
    pub async fn next_round(&self) {
        self.rounds.next(|| self.shard.is_committing()).await;
    }

    /// Asks the owner of `key`. Nothing is staged unless this returns `Ok`.
    pub fn call(&self, key: &StreamKey, request: Request) -> Pending {
        self.call_shard(self.placement.owner(key), request)
    }

    /// Asks shard `owner`.
    pub fn call_shard(&self, owner: usize, request: Request) -> Pending {
        let latency = self.latency.clone();
        let source = if owner == self.id {
            let staged = self.shard.execute(request);
            Source::Local {
                is_durable: self.shard.is_durable(staged.after),
                shard: self.shard.clone(),
                after: staged.after,
                outcome: Some(staged.outcome),
            }
        } else {
            match self.desk.send(owner, request) {
                Ok(reply) => return Pending::new(latency, Source::Remote(reply), Trip::default()),
                Err(refusal) => Source::Local {
                    is_durable: true,
                    shard: self.shard.clone(),
                    after: BatchNumber(0),
                    outcome: Some(Err(refusal)),
                },
            }
        };
        let decided = latency.decided();
        Pending::new(latency, source, decided)
    }

    /// Joins the readers of a stream that its owner has just registered one for.
    #[must_use]
    pub fn join(self: &Rc<Self>, key: &StreamKey, watching: &Watching) -> LiveReader {
        LiveReader {
            core: self.clone(),
            reader: self
                .hub
                .join(watching.watch.clone(), self.placement.owner(key)),
        }
    }

    /// Checks that one more live read may be opened.
    ///
    /// # Errors
    /// [`Refusal::LiveReadLimit`].
    pub fn check_live_reads(&self) -> Result<(), Refusal> {
        if self.hub.readers() >= self.live_reads_max {
            return Err(Refusal::LiveReadLimit);
        }
        Ok(())
    }

    /// The cursor of a live answer.
    #[must_use]
    pub fn cursor(&self, client: Option<u64>) -> u64 {
        let random = self.rng.borrow_mut().next_u64();
        crate::protocol::cursor::cursor(self.clock.now_ms(), client, random)
    }
}

/// An outcome to come: once it is there, everything it rests on is durable.
#[must_use]
pub struct Pending {
    latency: Rc<Latency>,
    source: Source,
    /// The way it went so far.
    trip: Trip,
}

enum Source {
    /// From this core's own shard.
    Local {
        /// The shard.
        shard: Rc<Shard>,
        /// The batch to wait for.
        after: BatchNumber,
        /// Whether that was durable when the outcome was decided.
        is_durable: bool,
        /// The outcome.
        outcome: Option<Result<Reply, Refusal>>,
    },
    /// From another core.
    Remote(PendingReply),
}

impl Pending {
    fn new(latency: Rc<Latency>, source: Source, trip: Trip) -> Self {
        Self {
            latency,
            source,
            trip,
        }
    }
}

impl Future for Pending {
    type Output = Result<Reply, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (outcome, trip, waited) = match &mut this.source {
            Source::Local {
                shard,
                after,
                is_durable,
                outcome,
            } => {
                let Poll::Ready(durable) = shard.poll_durable(*after, cx) else {
                    return Poll::Pending;
                };
                let outcome =
                    durable.and_then(|()| outcome.take().unwrap_or(Err(Refusal::Internal)));
                let trip = if *is_durable {
                    this.trip
                } else {
                    this.trip.committed(shard.batch_times(*after))
                };
                (outcome, trip, !*is_durable)
            }
            Source::Remote(reply) => {
                let Poll::Ready(outcome) = Pin::new(&mut *reply).poll(cx) else {
                    return Poll::Pending;
                };
                (outcome, reply.trip(), true)
            }
        };
        this.latency.follow(&trip, waited);
        Poll::Ready(outcome)
    }
}

/// A live reader that its stream's owner counts; dropping it tells the owner.
pub struct LiveReader {
    core: Rc<Core>,
    /// Its end of the watch.
    pub reader: Reader,
}

impl LiveReader {
    /// The core that it is on.
    #[must_use]
    pub fn core(&self) -> &Rc<Core> {
        &self.core
    }

    /// The shard that owns its stream.
    #[must_use]
    pub fn owner(&self) -> usize {
        self.reader.stream.owner
    }
}

impl Drop for LiveReader {
    fn drop(&mut self) {
        let leave = Request::Leave {
            incarnation: self.reader.stream.watch.incarnation(),
            core: self.core.id,
        };
        if self.owner() == self.core.id {
            let _ = self.core.shard.execute(leave).outcome;
        } else {
            self.core.desk.notify(self.owner(), leave);
        }
    }
}

/// How a shard reaches the other cores and its own readers.
pub struct CorePeers {
    /// The core.
    pub id: usize,
    /// Its mailbox.
    pub desk: Rc<Desk>,
    /// Its readers.
    pub hub: Rc<Hub>,
    /// What it tells the owners of forks' sources.
    pub releases: Rc<Releases>,
}

impl Cores for Core {
    fn call(
        &self,
        key: &StreamKey,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Refusal>> {
        Self::call(self, key, request)
    }

    fn ask(
        &self,
        key: &StreamKey,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Refusal>> {
        Self::ask(self, key, request)
    }

    fn notify(&self, key: &StreamKey, request: Request) {
        self.desk.notify(self.placement.owner(key), request);
    }

    fn allocate_incarnation(&self) -> Result<Incarnation, Refusal> {
        self.shard.allocate_incarnation()
    }

    async fn pass_gate(&self) {
        while self.hold.is_gated() {
            Timer::new(GATE_POLL).await;
        }
    }
}

/// Tells the owners of forks' sources that forks are durably gone; later, while the gate of a
/// [`Hold`] is closed. What a crash keeps from being told, the next start finds out.
pub struct Releases {
    desk: Rc<Desk>,
    placement: Placement,
    hold: Arc<Hold>,
    waiting: RefCell<Vec<(usize, Request)>>,
}

impl Releases {
    /// Those of one core.
    #[must_use]
    pub fn new(desk: Rc<Desk>, placement: Placement, hold: Arc<Hold>) -> Self {
        Self {
            desk,
            placement,
            hold,
            waiting: RefCell::default(),
        }
    }

    fn send(&self, origin: &ForkOrigin, fork: Incarnation) {
        let release = Request::Release {
            source: origin.incarnation,
            fork,
        };
        let owner = self.placement.owner(&origin.source);
        self.waiting.borrow_mut().push((owner, release));
        self.flush();
    }

    /// Sends what waits, unless it must go on waiting.
    pub fn flush(&self) {
        if self.hold.is_gated() {
            return;
        }
        for (owner, release) in self.waiting.borrow_mut().drain(..) {
            self.desk.notify(owner, release);
        }
    }
}

impl Peers for CorePeers {
    fn wake_readers(&self, watch: &Arc<Watch>) {
        if watch.core == self.id {
            self.hub.wake(watch);
        } else {
            self.desk.wake(watch);
        }
    }

    fn release_source(&self, origin: &ForkOrigin, fork: Incarnation) {
        // Through the mailbox even on this core: the shard is in the middle of a turn.
        self.releases.send(origin, fork);
    }
}
