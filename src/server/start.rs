//! How a core comes to serve: it recovers its shard, and all cores check
//! together that what shards say of one another, and of files, is so.
//!
//! The steps are taken by all cores at once ([`Stage`]): nobody listens before
//! every shard has recovered, references whose fork never came to be are
//! dropped, and every fork's source has the bytes it inherits.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use glommio::timer::Timer;

use crate::{
    base::{
        limits::{SEGMENT_FILES_OPEN_MAX, UNSENT_BYTES_MAX},
        rng::Rng,
        time::{Clock, SystemClock},
    },
    http::{answer::Shared, cors::AllowedOrigins, encode, head::NamedLimits},
    protocol::{
        error::Refusal,
        fork::ForkOrigin,
        incarnation::{Allocator, Incarnation},
    },
    server::{
        budget::Budget,
        core::{Core, CorePeers, Releases},
        error::StartError,
        latency::{Latency, slow::Slow},
        read_turns::ReadTurns,
        rounds::Rounds,
        seat::Seats,
        spare::Spare,
        turnstile::Turnstile,
        unsent::UnsentBound,
        worker::Process,
    },
    shard::{
        hub::Hub,
        keeper::{Keeper, KeeperOptions},
        mailbox::Desk,
        owner::Shard,
        placement::Placement,
        recovery::{Recovery, recover},
        request::{Reply, Request},
        tables::Tables,
    },
    storage::{
        StorageError,
        blob::{BlobId, BlobStore},
        checkpoint::Identity,
        disk::GlommioDisk,
        journal::{Journal, Options, RecoveryReport},
        segment::{
            self, BlockReader, Segment, SegmentGraveyard, SegmentId, SegmentWriter, WriterOptions,
        },
    },
};

/// Size of the buffer that a core's reads go into, in bytes.
const SCRATCH_BYTES: usize = 64 * 1024;

/// What the cores tell each other while they start.
#[derive(Default)]
pub struct Start {
    forks: Mutex<Vec<(Incarnation, ForkOrigin)>>,
    blobs: Mutex<HashMap<BlobId, u64>>,
    /// Segments that streams need, for all shards that do; and how far they need them.
    segments: Mutex<HashMap<SegmentId, Arc<Segment>>>,
    segment_ends: Mutex<HashMap<SegmentId, u64>>,
    fences: Mutex<HashSet<Box<str>>>,
    stages: [AtomicUsize; 4],
    failed: AtomicBool,
}

/// A step of the start that all cores take together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Every journal is replayed.
    Replayed,
    /// Every fork's source has what it inherits, and every file is there.
    Checked,
    /// Everybody listens.
    Listening,
    /// No shard has a connection any more.
    Drained,
}

impl Start {
    /// Waits until all `cores` have come to `stage`; false when one has failed.
    pub(super) async fn reach(&self, stage: Stage, cores: usize) -> bool {
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
        tables.note_segment_ends(&mut lock(&self.segment_ends));
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

/// A core whose shard has recovered.
pub(super) struct Ready {
    pub(super) core: Rc<Core>,
    pub(super) journal: Journal<GlommioDisk>,
    pub(super) keeper: Keeper<GlommioDisk>,
    pub(super) claims: Claims,
    pub(super) report: RecoveryReport,
}

/// What a shard says of other shards and of files, to be checked when all have recovered.
pub(super) struct Claims {
    forks: Vec<(Incarnation, ForkOrigin)>,
    /// Source and fork.
    references: Vec<(Incarnation, Incarnation)>,
    orphans: Vec<Incarnation>,
    segment_disk: GlommioDisk,
}

/// Recovers a core's shard, and tells the other cores what it has and needs.
pub(super) async fn recover_core(
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
    let block = process.first_block.saturating_add(id as u64);
    let allocator = Allocator::new(process.secret, block);
    let tables = Tables::new(allocator, process.graveyard.clone());
    let identity = Identity::of(&process.layout, shard_number, options.journal_id);
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
            reserve_bytes: config.limits.disk_floor_bytes(),
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
            reserve_bytes: config.limits.disk_floor_bytes(),
            hold: process.hold.clone(),
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
pub(super) async fn check_claims(
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
    let share = |total: u64| total.checked_div(shards as u64).unwrap_or(total);
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
    let releases = Rc::new(Releases::new(desk.clone(), placement, process.hold.clone()));
    let peers = Rc::new(CorePeers {
        id,
        desk: desk.clone(),
        hub: hub.clone(),
        releases: releases.clone(),
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
        fan_out: Rc::default(),
        desk,
        releases,
        hold: process.hold.clone(),
        placement,
        shared: RefCell::new(Shared::new(
            AllowedOrigins::new(&process.config.cors_allow_origins),
            date,
        )),
        named_limits: NamedLimits::new(limits.request_bytes_max, limits.snapshot_bytes_max),
        rng: RefCell::new(Rng::from_os().unwrap_or_else(|_| Rng::from_seed(clock.now_ms()))),
        read_turns: Rc::new(ReadTurns::new(process.journal_use.clone(), clock.clone())),
        clock,
        seats: Rc::new(Seats::default()),
        turnstile: Turnstile::default(),
        rounds: Rounds::default(),
        latency,
        metrics: process.metrics.get(id).cloned().unwrap_or_default(),
        scratch: RefCell::new(vec![0; SCRATCH_BYTES]),
        spare: Spare::default(),
        // A share always holds one whole body, whatever the number of shards.
        requests: Budget::new(
            share(limits.body_memory_bytes_max).max(limits.request_bytes_max.saturating_mul(2)),
        ),
        unsent: Budget::new(share(UNSENT_BYTES_MAX)),
        unsent_bound: UnsentBound::new(id),
        live_reads_max: limits.live_reads_max.checked_div(shards).unwrap_or(0),
        blobs,
        blocks,
        limits,
    })
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

/// Checks that the sources of this core's forks have what those inherit. A fork that
/// [`reconcile`] finishes the deletion of meanwhile may find its source gone, too.
///
/// # Errors
/// [`StartError::LostSource`] when one lacks it: only damage can cause that.
async fn check_sources(
    core: &Rc<Core>,
    forks: Vec<(Incarnation, ForkOrigin)>,
) -> Result<(), StartError> {
    for (fork, origin) in forks {
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
        if lost && core.shard.has_stream(fork) {
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
