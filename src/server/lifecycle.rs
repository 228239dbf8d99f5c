//! Start order, signals, stop order.
//!
//! Start: check the machine, lock the data directory, mend it if that is asked
//! for, bring the layout to the number of shards asked for, begin a new epoch, start a pinned executor per
//! shard, recover, listen, say so. Stop, on SIGTERM or SIGINT: stop accepting,
//! finish what is in flight, end live reads with a last event, make everything
//! staged durable, exit 0. A second signal ends the process at once.

use std::{
    io::IsTerminal as _,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use glommio::{LocalExecutorBuilder, Placement as CorePlacement};
use signal_hook::consts::{SIGINT, SIGTERM};
use socket2::{Domain, Socket, Type};

use crate::{
    base::limits::Durability,
    server::{
        config::Config,
        descriptors, doctor,
        error::StartError,
        executor::{self, Worker, rouse_until},
        metrics::ShardMetrics,
        repair, reshard,
        start::Start,
        worker::{self, Process, Recovered},
    },
    shard::mailbox::Post,
    storage::{
        blob::{self, Graveyard},
        data_dir::{DataDir, Layout},
        journal::{self, Options, RecoveryReport},
        segment::{self, SegmentGraveyard},
    },
};

/// Longest time for which ready tasks keep an executor from its sockets and disks.
const TURN: Duration = Duration::from_millis(1);

/// Serves until a signal says to stop.
#[must_use]
pub fn serve(config: Config) -> ExitCode {
    init_log(&config.log);
    match doctor::refuse_if_unfit(&config) {
        Ok(warnings) => {
            for warning in warnings {
                tracing::warn!("{}", warning.in_a_line());
            }
        }
        Err(error) => {
            eprintln!("thalweg: {error}");
            return ExitCode::FAILURE;
        }
    }
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("thalweg: {error}");
            ExitCode::FAILURE
        }
    }
}

fn init_log(filter: &str) {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second initialisation can only happen in tests and changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

fn run(config: Config) -> Result<(), StartError> {
    let started = Instant::now();
    let stop = stop_on_signals().map_err(StartError::Signals)?;
    executor::prepare().map_err(StartError::Signals)?;
    let shards = u32::try_from(config.shards).unwrap_or(u32::MAX);
    let mut data_dir = DataDir::open(&config.data_dir, shards)?;
    if config.repair {
        repair::repair(&mut data_dir, &config)?;
    }
    if data_dir.layout().shards != shards {
        reshard::reshard(&mut data_dir, &config, shards)?;
    }
    let first_block = data_dir.manifest().incarnation_blocks;
    let blocks = first_block.saturating_add(u64::from(shards));
    data_dir.update(|manifest| manifest.incarnation_blocks = blocks)?;
    let layout = data_dir.layout();
    let options = (0..shards)
        .map(|shard| options(&config, &data_dir, &layout, shard))
        .collect();
    descriptors::make_room(doctor::files_max(&config));
    let (listen, hold) = reserve(config.listen)?;
    let (admin_listen, hold_admin) = reserve(config.admin_listen)?;
    let process = Arc::new(Process {
        layout,
        blob_dir: blob::prepare_dir(data_dir.path())?,
        graveyard: Graveyard::default(),
        segments_dir: segment::prepare_dir(data_dir.path())?,
        segment_graveyard: SegmentGraveyard::default(),
        segment_seed: data_dir.manifest().segment_seed(),
        options,
        secret: data_dir.manifest().secret,
        identity: data_dir.manifest().identity(),
        first_block,
        post: Post::new(config.shards),
        metrics: (0..config.shards)
            .map(|_| Arc::new(ShardMetrics::default()))
            .collect(),
        listen,
        admin_listen,
        connections_max: doctor::connections_that_fit(&config),
        start: Start::default(),
        journal_use: Arc::default(),
        stop: AtomicBool::new(false),
        ready: AtomicBool::new(false),
        hold: Arc::default(),
        config,
    });
    let recovered = Arc::new(Mutex::new(Vec::new()));
    let mut workers = Vec::new();
    for (id, core) in cores(&process.config).into_iter().enumerate() {
        workers.push(spawn(&process, id, core, &recovered)?);
    }
    rouse_until(&workers, executor::WAITING, || {
        // One that ends before all listen takes the start with it.
        if workers.iter().any(Worker::has_ended) {
            process.start.fail();
        }
        process.start.is_done(process.config.shards) || process.start.has_failed()
    });
    drop((hold, hold_admin));
    if !process.start.has_failed() {
        data_dir.mark_started()?;
        process.ready.store(true, Ordering::Release);
        announce(&process, &recovered, started.elapsed());
        rouse_until(&workers, executor::SERVING, || stop.load(Ordering::Acquire));
        tracing::info!("stopping: finishing what is in flight");
    }
    process.ready.store(false, Ordering::Release);
    process.stop.store(true, Ordering::Release);
    let mut outcome = Ok(());
    for worker in workers {
        if let Err(error) = worker.join() {
            outcome = Err(error);
        }
    }
    outcome
}

fn options(config: &Config, data_dir: &DataDir, layout: &Layout, shard: u32) -> Options {
    let mut options = Options::new(&config.limits, data_dir.manifest(), layout, shard);
    options.durability = match config.durability {
        Durability::Sync => journal::Durability::Sync,
        Durability::Os => journal::Durability::Os,
    };
    options
}

fn spawn(
    process: &Arc<Process>,
    id: usize,
    core: usize,
    recovered: &Arc<Mutex<Vec<Recovered>>>,
) -> Result<Worker<()>, StartError> {
    let config = &process.config;
    let builder = LocalExecutorBuilder::new(CorePlacement::Fixed(core))
        .io_memory(config.io_memory_bytes)
        .ring_depth(config.ring_depth)
        .spin_before_park(Duration::from_micros(config.spin_us))
        .preempt_timer(TURN);
    let (process, recovered) = (process.clone(), recovered.clone());
    executor::spawn(id, builder, move || {
        worker::run(process, id, move |report| {
            if let Ok(mut all) = recovered.lock() {
                all.push(report);
            }
        })
    })
}

/// The core of each shard.
fn cores(config: &Config) -> Vec<usize> {
    let allowed = config.cores.clone().unwrap_or_else(doctor::allowed_cores);
    let allowed = if allowed.is_empty() { vec![0] } else { allowed };
    allowed
        .iter()
        .copied()
        .cycle()
        .take(config.shards)
        .collect()
}

/// Finds the real address of a listener: the kernel's choice for port 0 must be the same for all
/// shards. The port is held until they listen.
fn reserve(address: SocketAddr) -> Result<(SocketAddr, Option<Socket>), StartError> {
    if address.port() != 0 {
        return Ok((address, None));
    }
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        let real = socket.local_addr()?.as_socket();
        Ok((real.unwrap_or(address), Some(socket)))
    };
    bound().map_err(|source| StartError::Listen { address, source })
}

fn announce(process: &Process, recovered: &Mutex<Vec<Recovered>>, took: Duration) {
    let config = &process.config;
    let (mut streams, mut records) = (0, 0);
    if let Ok(recovered) = recovered.lock() {
        for shard in recovered.iter() {
            streams = shard.streams.saturating_add(streams);
            records = shard.report.records.saturating_add(records);
            log_recovery(&shard.report);
        }
    }
    if config.durability == Durability::Os {
        tracing::warn!(
            "durability os: acknowledged data survives a crash of the server, not of the machine"
        );
    }
    println!(
        "thalweg {} listening on http://{}, admin on http://{}, data in {}, {} shards, durability {}, \
         recovered {streams} streams from {records} records in {took:.0?}",
        env!("CARGO_PKG_VERSION"),
        process.listen,
        process.admin_listen,
        config.data_dir.display(),
        config.shards,
        config.durability.as_str(),
    );
}

/// Says what recovery found beside whole batches.
fn log_recovery(report: &RecoveryReport) {
    if let Some(cut) = &report.cut {
        tracing::info!("{cut}; everything before was recovered");
    }
    for (path, bytes) in &report.trimmed {
        let path = path.display();
        tracing::warn!("{path} was {bytes} bytes longer than it was made: they were cut off");
    }
    for path in &report.unknown {
        tracing::warn!(path = %path.display(), "not ours: left alone");
    }
    if report.lost_records > 0 {
        let records = report.lost_records;
        tracing::warn!("{records} records were lost, as an earlier --repair reported");
    }
}

/// A flag that SIGTERM and SIGINT raise; a second signal ends the process at once.
fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}
