//! One core, from its executor's first task to its last: recovers its shard,
//! checks with the other cores that forks and files are whole, serves, and
//! drains.
//!
//! Start is in steps that all cores take together ([`Stage`]): nobody listens
//! before every shard has recovered, references whose fork never came to be
//! are dropped, and every fork's source has the bytes it inherits.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    future::poll_fn,
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use futures_lite::{FutureExt as _, future};
use glommio::{net::TcpListener, timer::Timer};

use crate::{
    base::{
        limits::{SEGMENT_FILES_OPEN_MAX, UNSENT_BYTES_MAX},
        rng::Rng,
        time::{Clock, SystemClock},
    },
    http::{answer::Shared, cors::AllowedOrigins, encode},
    protocol::{
        error::Refusal,
        fork::ForkOrigin,
        incarnation::{Allocator, Incarnation},
    },
    server::{
        admin,
        budget::Budget,
        config::Config,
        connection,
        core::{Core, CorePeers},
        error::StartError,
        latency::{Latency, slow::Slow},
        metrics::ShardMetrics,
        seat::{SWEEP_INTERVAL, Seats},
        socket::Socket,
        spare::Spare,
        turnstile::Turnstile,
    },
    shard::{
        keeper::{Keeper, KeeperOptions, KeeperStats},
        live::Hub,
        mailbox::{Desk, Post},
        owner::Shard,
        placement::Placement,
        recovery::{Recovery, recover},
        request::{Reply, Request},
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{BlobId, BlobStore, Graveyard},
        checkpoint::Identity,
        data_dir::Layout,
        disk::GlommioDisk,
        journal::{Health, Journal, Options, RecoveryReport, Stage as _},
        segment::{
            self, BlockReader, Segment, SegmentGraveyard, SegmentId, SegmentWriter, WriterOptions,
        },
    },
};

/// Messages handled before other tasks get their turn.
const MESSAGES_PER_TURN: usize = 256;
/// Size of the buffer that a core's reads go into, in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Blobs' files removed by one sweep of a core.
const BURIALS_PER_SWEEP: usize = 64;
/// A crowd of new connections is admitted this many at a time between other tasks.
const ACCEPTS_PER_TURN: usize = 64;
/// Pause after a failed accept: what it lacked does not come back by asking again at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all cores of a process share.
pub struct Process {
    /// The configuration.
    pub config: Config,
    /// The layout that rules.
    pub layout: Layout,
    /// Where snapshot bodies and parts are.
    pub blob_dir: PathBuf,
    /// Where segments are.
    pub segments_dir: PathBuf,
    /// Which of them are to be removed.
    pub segment_graveyard: SegmentGraveyard,
    /// What their checksums are seeded with.
    pub segment_seed: u64,
    /// Which of them are to be removed.
    pub graveyard: Graveyard,
    /// How each journal is opened.
    pub options: Vec<Options>,
    /// The data directory's secret.
    pub secret: [u8; 16],
    /// The first of one block of incarnations per shard.
    pub first_block: u64,
    /// The mailboxes.
    pub post: Arc<Post>,
    /// Every shard's metrics.
    pub metrics: Vec<Arc<ShardMetrics>>,
    /// Where clients connect, with the real port.
    pub listen: SocketAddr,
    /// Where the operator connects, with the real port.
    pub admin_listen: SocketAddr,
    /// How many connections may be open.
    pub connections_max: usize,
    /// How far the start is.
    pub start: Start,
    /// Whether to go down.
    pub stop: AtomicBool,
    /// Whether clients are served.
    pub ready: AtomicBool,
}

/// What the cores tell each other while they start.
#[derive(Default)]
pub struct Start {
    forks: Mutex<Vec<(Incarnation, ForkOrigin)>>,
    blobs: Mutex<HashMap<BlobId, u64>>,
    /// Segments that streams need, for all shards that do; and how far they need them.
    segments: Mutex<HashMap<SegmentId, Arc<Segment>>>,
    segment_ends: Mutex<HashMap<SegmentId, u64>>,
    fences: Mutex<HashSet<Box<str>>>,
    stages: [AtomicUsize; 3],
    failed: AtomicBool,
}

/// A step of the start that all cores take together.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Every journal is replayed.
    Replayed,
    /// Every fork's source has what it inherits, and every file is there.
    Checked,
    /// Everybody listens.
    Listening,
}

/// What a core's recovery came to.
#[derive(Debug)]
pub struct Recovered {
    /// What the journal said.
    pub report: RecoveryReport,
    /// Streams in the table.
    pub streams: usize,
}

impl Start {
    /// Waits until all `cores` have come to `stage`; false when one has failed.
    async fn reach(&self, stage: Stage, cores: usize) -> bool {
        let Some(count) = self.stages.get(stage as usize) else {
            return false;
        };
        count.fetch_add(1, Ordering::AcqRel);
        tracing::debug!(?stage, "reached");
        while count.load(Ordering::Acquire) < cores {
            if self.failed.load(Ordering::Acquire) {
                return false;
            }
            Timer::new(Duration::from_millis(1)).await;
        }
        !self.failed.load(Ordering::Acquire)
    }

    /// The segment `id` of an earlier start, for all shards that refer to it.
    fn segment(&self, id: SegmentId, graveyard: &SegmentGraveyard) -> Arc<Segment> {
        segment::intern(&mut lock(&self.segments), id, graveyard)
    }

    /// A shard has recovered: what it has and needs, for all to know.
    fn tell(&self, tables: &Tables) {
        lock(&self.fences).extend(tables.fenced_buckets().map(Box::from));
        lock(&self.blobs).extend(tables.blob_files());
        lock(&self.forks).extend(tables.forks());
        let mut ends = lock(&self.segment_ends);
        for (id, end) in tables.segment_ends() {
            let known: &mut u64 = ends.entry(id).or_default();
            *known = end.max(*known);
        }
    }

    /// The start has failed: nobody waits any longer.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Whether all `cores` listen.
    #[must_use]
    pub fn is_done(&self, cores: usize) -> bool {
        self.stages
            .get(Stage::Listening as usize)
            .is_some_and(|count| count.load(Ordering::Acquire) >= cores)
    }

    /// Whether the start has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// What a panic has interrupted may be half done; the process is aborted then anyway.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs core `id` until the process is to stop.
///
/// # Errors
/// [`StartError`] when its shard cannot be recovered; nothing was served then.
pub async fn run(
    process: Arc<Process>,
    id: usize,
    on_recovered: impl FnOnce(Recovered),
) -> Result<(), StartError> {
    let _guard = AbortOnPanic { shard: id };
    let outcome = work(&process, id, on_recovered).await;
    if outcome.is_err() {
        process.start.fail();
    }
    outcome
}

/// A panic outside a connection ends the process: a core that lost one of its tasks would accept
/// connections and answer none, while a restart recovers everything acknowledged.
struct AbortOnPanic {
    shard: usize,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!(
                shard = self.shard,
                "a task of this shard panicked; aborting"
            );
            std::process::abort();
        }
    }
}

async fn work(
    process: &Arc<Process>,
    id: usize,
    on_recovered: impl FnOnce(Recovered),
) -> Result<(), StartError> {
    let Some(options) = process.options.get(id).cloned() else {
        return Ok(());
    };
    let Ready {
        core,
        journal,
        keeper,
        claims,
        report,
    } = recover_core(process, id, options).await?;
    on_recovered(Recovered {
        report,
        streams: core.shard.streams(),
    });
    let stopped = Rc::new(Cell::new(false));
    let mut keeping = None;
    spawn_journal(&core, journal.clone());
    spawn_mailbox(&core, &stopped);
    let cores = process.config.shards;
    if process.start.reach(Stage::Replayed, cores).await {
        check_claims(process, &core, claims).await?;
    }
    if process.start.reach(Stage::Checked, cores).await {
        let listener = bind(process.listen)?;
        let admin_listener = (id == 0).then(|| bind(process.admin_listen)).transpose()?;
        spawn_timers(process, &core, &stopped, journal.clone(), keeper.stats());
        keeping = Some(glommio::spawn_local(keeper.run()));
        glommio::spawn_local(resume_purges(core.clone())).detach();
        let keeper = core.clone();
        glommio::spawn_local(async move { keeper.turnstile.keep().await }).detach();
        if let Some(listener) = admin_listener {
            let admin = admin::serve(process.clone(), core.clone(), listener);
            glommio::spawn_local(admin).detach();
        }
        process.start.reach(Stage::Listening, cores).await;
        accept(process, &core, &listener).await;
        drop(listener);
        drain(&core, process.config.limits.shutdown_timeout).await;
    }
    core.shard.stop_keeper();
    if let Some(keeping) = keeping {
        keeping.await;
    }
    journal.close().await;
    stopped.set(true);
    Ok(())
}

/// A core whose shard has recovered.
struct Ready {
    core: Rc<Core>,
    journal: Journal<GlommioDisk>,
    keeper: Keeper<GlommioDisk>,
    claims: Claims,
    report: RecoveryReport,
}

/// What a shard says of other shards and of files, to be checked when all have recovered.
struct Claims {
    forks: Vec<(Incarnation, ForkOrigin)>,
    /// Source and fork.
    references: Vec<(Incarnation, Incarnation)>,
    orphans: Vec<Incarnation>,
    segment_disk: GlommioDisk,
}

/// Recovers a core's shard, and tells the other cores what it has and needs.
async fn recover_core(
    process: &Arc<Process>,
    id: usize,
    options: Options,
) -> Result<Ready, StartError> {
    let config = &process.config;
    let shard_number = u32::try_from(id).unwrap_or(u32::MAX);
    let dir = process.layout.journal_dir(shard_number);
    let disk = GlommioDisk::new(&dir)
        .await
        .map_err(StorageError::io("probe", &dir))?;
    let block = process.first_block + id as u64;
    let allocator = Allocator::new(process.secret, block);
    let tables = Tables::new(allocator, process.graveyard.clone());
    let identity = Identity {
        dir: process.layout.shard_dir(shard_number),
        journal_id: options.journal_id,
        shard: shard_number,
    };
    let epoch = options.epoch;
    let mut segment = |id| process.start.segment(id, &process.segment_graveyard);
    let recovered = recover(&disk, &dir, &identity, options, tables, &mut segment).await?;
    let Recovery {
        journal,
        report,
        tables,
        current,
    } = recovered;
    process.start.tell(&tables);

    let blob_disk = GlommioDisk::new(&process.blob_dir)
        .await
        .map_err(StorageError::io("probe", &process.blob_dir))?;
    let blobs = BlobStore::new(
        blob_disk,
        process.blob_dir.clone(),
        config.durability,
        process.graveyard.clone(),
    );
    let segment_disk = GlommioDisk::new(&process.segments_dir)
        .await
        .map_err(StorageError::io("probe", &process.segments_dir))?;
    let blocks = BlockReader::new(
        segment_disk,
        process.segments_dir.clone(),
        process.segment_seed,
        SEGMENT_FILES_OPEN_MAX,
    );
    let claims = Claims {
        forks: tables.forks(),
        references: tables.references(),
        orphans: tables.orphans(),
        segment_disk,
    };
    let core = build(process, id, tables, &journal, blobs, blocks);
    let writer = SegmentWriter::new(
        segment_disk,
        process.segments_dir.clone(),
        WriterOptions {
            epoch,
            shard: shard_number,
            seed: process.segment_seed,
            segment_bytes: config.limits.segment_bytes,
            reserve_bytes: config.limits.disk_reserve_bytes,
        },
        process.segment_graveyard.clone(),
    );
    let keeper = Keeper::new(
        core.shard.clone(),
        journal.clone(),
        segment_disk,
        writer,
        core.blocks.clone(),
        process.segment_graveyard.clone(),
        KeeperOptions {
            identity,
            segments_dir: process.segments_dir.clone(),
            current,
            journal_bytes: report.bytes,
            checkpoint_bytes: config.limits.checkpoint_bytes,
            reserve_bytes: config.limits.disk_reserve_bytes,
        },
    );
    Ok(Ready {
        core,
        journal,
        keeper,
        claims,
        report,
    })
}

/// Settles, when every shard has recovered, what this one says of others; and for the first core,
/// what all of them say of files.
///
/// # Errors
/// [`StartError`] when something that a shard needs is not there.
async fn check_claims(
    process: &Arc<Process>,
    core: &Rc<Core>,
    claims: Claims,
) -> Result<(), StartError> {
    reconcile(process, core, &claims.references, &claims.orphans);
    check_sources(core, claims.forks).await?;
    if core.id == 0 {
        reconcile_segments(process, core, &claims.segment_disk).await?;
        let named = std::mem::take(&mut *lock(&process.start.blobs));
        core.blobs.reconcile(&named).await?;
    }
    Ok(())
}

fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|error| StartError::Listen {
        address,
        source: error.into(),
    })
}

fn build(
    process: &Arc<Process>,
    id: usize,
    tables: Tables,
    journal: &Journal<GlommioDisk>,
    blobs: BlobStore<GlommioDisk>,
    blocks: BlockReader<GlommioDisk>,
) -> Rc<Core> {
    let limits = process.config.limits.clone();
    let shards = process.config.shards.max(1);
    let share = |total: u64| total / shards as u64;
    let hub = Rc::new(Hub::default());
    let desk = Desk::new(id, process.post.clone(), limits.mailbox_requests_max);
    let placement = Placement::new(process.secret, shards);
    let clock: Rc<dyn Clock> = Rc::new(SystemClock);
    journal.keep_time(clock.clone());
    let slow = Slow::new(
        process.config.slow_request_ms,
        process.config.slow_request_lines_max,
    );
    let latency = Rc::new(Latency::new(clock.clone(), slow));
    let peers = Rc::new(CorePeers {
        id,
        desk: desk.clone(),
        hub: hub.clone(),
        placement,
    });
    let shard = Rc::new(Shard::new(
        id,
        tables,
        Rc::new(journal.clone()),
        clock.clone(),
        limits.clone(),
        share(limits.memory_bytes_max),
        peers,
    ));
    let date = encode::format_date(clock.now_ms() / 1000);
    Rc::new(Core {
        id,
        shard,
        hub,
        desk,
        placement,
        shared: RefCell::new(Shared {
            date,
            origins: AllowedOrigins::new(&process.config.cors_allow_origins),
        }),
        rng: RefCell::new(Rng::from_os().unwrap_or_else(|_| Rng::from_seed(clock.now_ms()))),
        clock,
        seats: Rc::new(Seats::default()),
        turnstile: Turnstile::default(),
        latency,
        metrics: process.metrics.get(id).cloned().unwrap_or_default(),
        scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
        spare: Spare::default(),
        // A share always holds one whole body, whatever the number of shards.
        requests: Budget::new(
            share(limits.body_memory_bytes_max).max(limits.request_bytes_max.saturating_mul(2)),
        ),
        unsent: Budget::new(share(UNSENT_BYTES_MAX)),
        live_reads_max: limits.live_reads_max / shards,
        blobs,
        blocks,
        limits,
    })
}

fn spawn_journal(core: &Rc<Core>, journal: Journal<GlommioDisk>) {
    let (shard, desk) = (core.shard.clone(), core.desk.clone());
    let failed = core.clone();
    glommio::spawn_local(async move {
        journal
            .run(
                |batch| {
                    shard.on_durable(batch);
                    let times = shard.batch_times(batch);
                    desk.on_durable(batch, times);
                    failed.latency.batch(times);
                },
                |error| {
                    tracing::error!(
                        shard = failed.id,
                        "{error}; this shard takes no more writes until the server is restarted"
                    );
                    failed.metrics.journal_failed.set(1);
                    failed.shard.on_failed();
                    failed.desk.on_failed();
                },
            )
            .await;
    })
    .detach();
}

fn spawn_mailbox(core: &Rc<Core>, stopped: &Rc<Cell<bool>>) {
    let (core, stopped) = (core.clone(), stopped.clone());
    glommio::spawn_local(async move {
        while !stopped.get() {
            poll_fn(|cx| {
                // Registered before it looks, so that no message falls between.
                core.desk.wake_on_message(cx.waker());
                core.latency.serve(&core.metrics.latency);
                if core.desk.handle(&core.shard, &core.hub, MESSAGES_PER_TURN) || stopped.get() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            future::yield_now().await;
        }
    })
    .detach();
}

/// Drops references whose fork never came to be, finishes deletions that a crash interrupted, and
/// takes over the fences that a purge had set on other shards when it was interrupted.
fn reconcile(
    process: &Arc<Process>,
    core: &Rc<Core>,
    references: &[(Incarnation, Incarnation)],
    orphans: &[Incarnation],
) {
    let known: HashSet<Incarnation> = lock(&process.start.forks)
        .iter()
        .map(|(fork, _)| *fork)
        .collect();
    for (source, fork) in references {
        if !known.contains(fork) {
            tracing::info!(
                shard = core.id,
                "dropping a reference whose fork never came to be"
            );
            let release = Request::Release {
                source: *source,
                fork: *fork,
            };
            // Journaled like any other release; without room it is done at the next start.
            let _ = core.shard.execute(release).outcome;
        }
    }
    for orphan in orphans {
        core.shard.remove_orphan(*orphan);
    }
    let own: HashSet<Box<str>> = core.shard.fenced().into_iter().collect();
    for bucket in lock(&process.start.fences).difference(&own) {
        core.shard.adopt_fence(bucket);
    }
}

/// Checks that the sources of this core's forks have what those inherit.
///
/// # Errors
/// [`StartError::LostSource`] when one lacks it: only damage can cause that.
async fn check_sources(
    core: &Rc<Core>,
    forks: Vec<(Incarnation, ForkOrigin)>,
) -> Result<(), StartError> {
    for (_, origin) in forks {
        let inherit = || Request::Inherit {
            source: origin.incarnation,
            start: origin.start,
            end: origin.offset,
        };
        let owner = core.placement.owner(&origin.source);
        // Every fork asks at once: a full mailbox empties.
        let lost = loop {
            match core.call_shard(owner, inherit()).await {
                Ok(Reply::Inherited(runs)) => break runs.is_none(),
                Err(Refusal::MailboxFull) => {}
                _ => break true,
            }
            Timer::new(Duration::from_millis(1)).await;
        };
        if lost {
            return Err(StartError::LostSource {
                source: origin.source.as_str().to_owned(),
                offset: origin.offset,
            });
        }
    }
    Ok(())
}

/// Checks the files of segments against what the streams of all shards need.
async fn reconcile_segments(
    process: &Arc<Process>,
    core: &Rc<Core>,
    disk: &GlommioDisk,
) -> Result<(), StartError> {
    let ends = std::mem::take(&mut *lock(&process.start.segment_ends));
    let segments = std::mem::take(&mut *lock(&process.start.segments));
    segment::reconcile(disk, &process.segments_dir, &ends, &segments).await?;
    tracing::debug!(shard = core.id, segments = ends.len(), "segments are whole");
    Ok(())
}

async fn resume_purges(core: Rc<Core>) {
    for bucket in core.shard.fenced() {
        while let Ok(Reply::Purged { streams: 1.., .. }) = core
            .call_shard(core.id, Request::PurgeSlice(bucket.clone()))
            .await
        {
            future::yield_now().await;
        }
    }
}

fn spawn_timers(
    process: &Arc<Process>,
    core: &Rc<Core>,
    stopped: &Rc<Cell<bool>>,
    journal: Journal<GlommioDisk>,
    keeper: Rc<Cell<KeeperStats>>,
) {
    let (process, core, stopped) = (process.clone(), core.clone(), stopped.clone());
    glommio::spawn_local(async move {
        let mut parts_from = None;
        let mut sweeps = 0u64;
        while !stopped.get() {
            Timer::new(SWEEP_INTERVAL).await;
            core.seats.sweep();
            if core.unsent.is_half_used() {
                core.hub.forget_events();
            }
            let now_ms = core.clock.now_ms();
            core.shared.borrow_mut().date = encode::format_date(now_ms / 1000);
            while core.shard.sweep_expired() {
                future::yield_now().await;
            }
            sweeps += 1;
            if sweeps.is_multiple_of(240) {
                parts_from = parts_from.or(Some(0));
            }
            if let Some(from) = parts_from {
                parts_from = core.shard.sweep_parts(from);
            }
            core.blobs.bury(BURIALS_PER_SWEEP).await;
            publish_metrics(&core, &journal, keeper.get());
            core.latency.serve(&core.metrics.latency);
            if process.stop.load(Ordering::Acquire) {
                core.seats.drain();
                core.hub.wake_all();
            }
        }
    })
    .detach();
}

fn publish_metrics(core: &Rc<Core>, journal: &Journal<GlommioDisk>, keeper: KeeperStats) {
    let metrics = &core.metrics;
    let held = core.shard.held();
    metrics.unflushed_bytes.set(held.unflushed_bytes);
    metrics.segment_live_bytes.set(held.segment_live_bytes);
    metrics.segment_taken_bytes.set(held.segment_taken_bytes);
    metrics.segments.set(held.segments);
    metrics.checkpoints_total.set(keeper.checkpoints);
    metrics
        .checkpoint_written_bytes_total
        .set(keeper.checkpoint_bytes);
    metrics.checkpoint_bytes.set(keeper.current_bytes);
    metrics.journal_bytes.set(keeper.journal_bytes);
    metrics.compacted_bytes_total.set(keeper.compacted_bytes);
    metrics.punched_bytes_total.set(keeper.punched_bytes);
    metrics
        .segment_written_bytes_total
        .set(keeper.segment_written_bytes);
    metrics.keeper_failures_total.set(keeper.failures);
    let (memory, limit) = core.shard.memory();
    let stats = journal.stats();
    metrics.connections.set(core.seats.len() as u64);
    metrics.live_readers.set(core.hub.readers() as u64);
    metrics.streams.set(core.shard.streams() as u64);
    metrics.memory_bytes.set(memory);
    metrics.memory_limit_bytes.set(limit);
    metrics.body_bytes.set(core.requests.held());
    metrics.unsent_bytes.set(core.unsent.held());
    metrics.journal_records_total.set(stats.records);
    metrics.journal_record_bytes_total.set(stats.record_bytes);
    metrics.journal_batches_total.set(stats.batches);
    metrics.journal_batch_bytes_total.set(stats.batch_bytes);
    metrics.journal_syncs_total.set(stats.syncs);
    metrics.disk_free_bytes.set(journal.free_bytes());
    let is_pressed = journal.health() == Health::DiskPressure;
    metrics.disk_pressure.set(u64::from(is_pressed));
    metrics.body_limit_bytes.set(core.requests.bytes_max());
    metrics.unsent_limit_bytes.set(core.unsent.bytes_max());
    metrics
        .received_bytes_total
        .set(core.seats.received_bytes());
    metrics.sent_bytes_total.set(core.seats.sent_bytes());
}

/// Accepts connections until the process is to stop.
async fn accept(process: &Arc<Process>, core: &Rc<Core>, listener: &TcpListener) {
    let share = process
        .connections_max
        .div_ceil(process.config.shards.max(1));
    let seat = core.seats.take();
    let mut in_a_row = 0;
    loop {
        let stopping = poll_fn(|cx| {
            seat.wake_on_end(cx.waker());
            if seat.is_draining() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let accepted = async { Some(listener.accept().await) };
        let accepted = accepted
            .or(async {
                stopping.await;
                None
            })
            .await;
        match accepted {
            None => return,
            Some(Ok(stream)) => {
                if core.seats.len() > share {
                    core.metrics.connections_refused_total.increment();
                    drop(stream);
                } else {
                    core.metrics.connections_total.increment();
                    let socket = Socket::new(stream, core.seats.take());
                    let serve = connection::serve(core.clone(), socket);
                    glommio::spawn_local(serve).detach();
                }
            }
            Some(Err(error)) => {
                // Out of descriptors, or a client that left at once: old connections go on.
                core.metrics.accept_errors_total.increment();
                tracing::debug!(shard = core.id, "accept: {error}");
                Timer::new(ACCEPT_PAUSE).await;
            }
        }
        in_a_row += 1;
        if in_a_row >= ACCEPTS_PER_TURN {
            in_a_row = 0;
            future::yield_now().await;
        }
    }
}

/// Waits for the connections to end, at most `timeout`.
async fn drain(core: &Rc<Core>, timeout: Duration) {
    let started = Instant::now();
    core.seats.drain();
    core.hub.wake_all();
    let mut done = pin!(async {
        while !core.seats.is_empty() {
            Timer::new(Duration::from_millis(5)).await;
        }
    });
    let timer = Timer::new(timeout);
    let finished = async {
        done.as_mut().await;
        true
    }
    .or(async {
        timer.await;
        false
    })
    .await;
    if !finished {
        tracing::warn!(
            shard = core.id,
            connections = core.seats.len(),
            "closing what did not end within {:?}",
            started.elapsed()
        );
    }
}
