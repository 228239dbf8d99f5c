//! One core, from its executor's first task to its last: starts
//! ([`start`](super::start)), serves, and drains.

use std::{
    cell::Cell,
    future::poll_fn,
    net::SocketAddr,
    path::PathBuf,
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use futures_lite::{FutureExt as _, future};
use glommio::{Shares, net::TcpListener, timer::Timer};

use crate::{
    server::{
        admin,
        config::Config,
        connection,
        core::Core,
        descriptors::widen_backlog,
        error::StartError,
        fan_out,
        metrics::ShardMetrics,
        purge,
        read_turns::JournalUse,
        socket::Socket,
        start::{Ready, Stage, Start, check_claims, recover_core},
        sweep,
    },
    shard::{hold::Hold, mailbox::Post},
    storage::{
        blob::Graveyard,
        data_dir::Layout,
        disk::GlommioDisk,
        journal::{Journal, Options, RecoveryReport},
        segment::SegmentGraveyard,
    },
};

/// Messages handled before other tasks get their turn.
const MESSAGES_PER_TURN: usize = 256;
/// Of 1,000, to 1 for everything else; it needs little.
const JOURNAL_SHARES: usize = 1000;
/// Pause after a failed accept: what it lacked does not come back by asking again at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How much later than others a shard may begin to drain: one that never does is not waited for.
const DRAIN_APART_MAX: Duration = Duration::from_secs(1);

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
        sweep::spawn(process, &core, &stopped, journal.clone(), keeper.stats());
        keeping = Some(glommio::spawn_local(keeper.run()));
        glommio::spawn_local(purge::resume(core.clone())).detach();
        let keeper = core.clone();
        glommio::spawn_local(async move {
            keeper
                .turnstile
                .keep(async || keeper.next_round().await)
                .await
        })
        .detach();
        glommio::spawn_local(fan_out::run(core.clone())).detach();
        glommio::spawn_local(wake_readers(core.clone())).detach();
        if let Some(listener) = admin_listener {
            let admin = admin::serve(process.clone(), core.clone(), listener);
            glommio::spawn_local(admin).detach();
        }
        process.start.reach(Stage::Listening, cores).await;
        accept(process, &core, &listener).await;
        drop(listener);
        let timeout = process.config.limits.shutdown_timeout;
        drain(&core, timeout).await;
        // Shards hear of the stop one after the other. Requests of the others' connections come here
        // until those have drained, too.
        let others = process.start.reach(Stage::Drained, cores);
        let patience = Timer::new(timeout.saturating_add(DRAIN_APART_MAX));
        others
            .or(async {
                patience.await;
                false
            })
            .await;
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

/// Wakes readers that are too many to be woken at once, for ever.
async fn wake_readers(core: Rc<Core>) {
    loop {
        poll_fn(|cx| core.hub.poll_wakes(cx)).await;
        core.next_round().await;
    }
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
