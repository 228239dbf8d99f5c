//! One core, from its executor's first task to its last: starts
//! ([`start`](super::start)), serves, and drains.

use std::{
    cell::Cell,
    future::poll_fn,
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use futures_lite::{FutureExt as _, future};
use glommio::{Shares, net::TcpListener, timer::Timer};

use crate::{
    http::encode,
    server::{
        admin,
        config::Config,
        connection,
        core::Core,
        descriptors::widen_backlog,
        error::StartError,
        fan_out,
        metrics::ShardMetrics,
        read_turns::JournalUse,
        seat::SWEEP_INTERVAL,
        socket::Socket,
        start::{Ready, Stage, Start, check_claims, recover_core},
    },
    shard::{
        hold::Hold,
        keeper::KeeperStats,
        mailbox::Post,
        request::{Reply, Request},
    },
    storage::{
        blob::Graveyard,
        data_dir::Layout,
        disk::GlommioDisk,
        journal::{Health, Journal, Options, RecoveryReport, Stage as _},
        segment::SegmentGraveyard,
    },
};

/// Messages handled before other tasks get their turn.
const MESSAGES_PER_TURN: usize = 256;
/// Blobs' files removed by one sweep of a core.
const BURIALS_PER_SWEEP: usize = 64;
/// Of 1,000, to 1 for everything else; it needs little.
const JOURNAL_SHARES: usize = 1000;
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
    /// What the data directory may be called outside.
    pub identity: String,
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
    /// When a journal was last written.
    pub journal_use: Arc<JournalUse>,
    /// Whether to go down.
    pub stop: AtomicBool,
    /// Whether clients are served.
    pub ready: AtomicBool,
    /// Whether somebody copies the data directory.
    pub hold: Arc<Hold>,
}

/// What a core's recovery came to.
#[derive(Debug)]
pub struct Recovered {
    /// What the journal said.
    pub report: RecoveryReport,
    /// Streams in the table.
    pub streams: usize,
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
    spawn_journal(&core, journal.clone())?;
    spawn_mailbox(&core, &stopped);
    let cores = process.config.shards;
    if process.start.reach(Stage::Replayed, cores).await {
        check_claims(process, &core, claims).await?;
    }
    if process.start.reach(Stage::Checked, cores).await {
        let listener = bind(process.listen)?;
        if let Err(error) = widen_backlog(process.listen) {
            tracing::debug!(
                shard = id,
                "no more than 1,024 may wait for an accept: {error}"
            );
        }
        let admin_listener = (id == 0).then(|| bind(process.admin_listen)).transpose()?;
        spawn_timers(process, &core, &stopped, journal.clone(), keeper.stats());
        keeping = Some(glommio::spawn_local(keeper.run()));
        glommio::spawn_local(resume_purges(core.clone())).detach();
        let keeper = core.clone();
        glommio::spawn_local(async move {
            keeper
                .turnstile
                .keep(async || keeper.next_round().await)
                .await
        })
        .detach();
        glommio::spawn_local(fan_out::run(core.clone())).detach();
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

fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|error| StartError::Listen {
        address,
        source: error.into(),
    })
}

/// The journal has a queue of its own: between two looks at sockets and disks an executor runs what is
/// ready of one queue in the order in which it became so, and the journal is not to wait for thousands.
fn spawn_journal(core: &Rc<Core>, journal: Journal<GlommioDisk>) -> Result<(), StartError> {
    let (shard, desk) = (core.shard.clone(), core.desk.clone());
    let failed = core.clone();
    let shares = Shares::Static(JOURNAL_SHARES);
    let queue =
        glommio::executor().create_task_queue(shares, glommio::Latency::NotImportant, "journal");
    let run = async move {
        journal
            .run(
                |batch| {
                    shard.on_durable(batch);
                    let times = shard.batch_times(batch);
                    desk.on_durable(batch, times);
                    failed.latency.batch(times);
                    failed.read_turns.journal_written();
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
    };
    let spawned = glommio::spawn_local_into(run, queue).map_err(|error| StartError::Executor {
        shard: core.id,
        reason: error.to_string(),
    })?;
    spawned.detach();
    Ok(())
}

fn spawn_mailbox(core: &Rc<Core>, stopped: &Rc<Cell<bool>>) {
    let desk = core.desk.clone();
    glommio::spawn_local(async move { desk.ring().await }).detach();
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
        let mut held = HeldFor::default();
        while !stopped.get() {
            Timer::new(SWEEP_INTERVAL).await;
            core.seats.begin_sweep();
            let mut from = Some(0);
            while let Some(at) = from {
                from = core.seats.wake_one(at);
                core.next_round().await;
            }
            if core.unsent.is_half_used() {
                core.hub.forget_events();
            }
            let now_ms = core.clock.now_ms();
            let date = encode::format_date(now_ms / 1000);
            core.shared.borrow_mut().set_date(date);
            while core.shard.sweep_expired() {
                future::yield_now().await;
            }
            sweeps = sweeps.saturating_add(1);
            if sweeps.is_multiple_of(240) {
                parts_from = parts_from.or(Some(0));
            }
            if let Some(from) = parts_from {
                parts_from = core.shard.sweep_parts(from);
            }
            for _ in 0..BURIALS_PER_SWEEP {
                // One at a time: a hold may have begun, and a copy need what was doomed since.
                if process.hold.is_held() {
                    break;
                }
                core.blobs.bury(1).await;
            }
            core.releases.flush();
            publish_metrics(&core, &journal, keeper.get());
            let held = held.look(process.hold.holds(), Instant::now());
            core.metrics.backup_held.set(u64::from(held.is_some()));
            let seconds = held.unwrap_or_default().as_secs();
            core.metrics.backup_held_seconds.set(seconds);
            core.latency.serve(&core.metrics.latency);
            if process.stop.load(Ordering::Acquire) {
                core.seats.drain();
                core.hub.wake_all();
            }
        }
    })
    .detach();
}

/// How long the present hold has been seen.
#[derive(Debug, Default)]
struct HeldFor(Option<(u64, Instant)>);

impl HeldFor {
    /// For how long hold `number` has been in force at `now`; `None` if there is none.
    fn look(&mut self, number: Option<u64>, now: Instant) -> Option<Duration> {
        match (self.0, number) {
            (Some((known, since)), Some(number)) if known == number => {
                return Some(now.saturating_duration_since(since));
            }
            _ => self.0 = number.map(|number| (number, now)),
        }
        self.0.map(|_| Duration::ZERO)
    }
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
    let is_gone = journal.health() == Health::DirectoryGone;
    metrics.directory_gone.set(u64::from(is_gone));
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
                    core.unsent_bound.apply(core.id, &stream);
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
        // It has its first share before the next is accepted.
        core.next_round().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_that_of_the_present_hold() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut held = HeldFor::default();
        assert_eq!(held.look(None, start), None);
        assert_eq!(held.look(Some(1), start), Some(Duration::ZERO));
        assert_eq!(held.look(Some(1), start + second), Some(second));
        // One ended and another began between two looks.
        assert_eq!(held.look(Some(2), start + second), Some(Duration::ZERO));
        assert_eq!(held.look(Some(2), start + 3 * second), Some(2 * second));
        assert_eq!(held.look(None, start + 3 * second), None);
        assert_eq!(held.look(Some(3), start + 4 * second), Some(Duration::ZERO));
    }
}
