//! What a core does four times a second: wakes those whose time is up, tells
//! the date, deletes what has expired and buries its files, publishes its
//! metrics, and notices that the process is to stop.

use std::{
    cell::Cell,
    future::poll_fn,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_lite::future;
use glommio::timer::Timer;

use crate::{
    http::encode,
    server::{core::Core, seat::SWEEP_INTERVAL, worker::Process},
    shard::keeper::KeeperStats,
    storage::{
        disk::GlommioDisk,
        journal::{Health, Journal, Stage as _},
    },
};

/// Blobs' files removed by one sweep of a core.
const BURIALS_PER_SWEEP: usize = 64;

/// Spawns what a core does every [`SWEEP_INTERVAL`].
pub fn spawn(
    process: &Arc<Process>,
    core: &Rc<Core>,
    stopped: &Rc<Cell<bool>>,
    journal: Journal<GlommioDisk>,
    keeper: Rc<Cell<KeeperStats>>,
) {
    glommio::spawn_local(expire(core.clone(), stopped.clone())).detach();
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

/// Deletes what has expired. Nothing else waits for its end: very much may expire at once.
async fn expire(core: Rc<Core>, stopped: Rc<Cell<bool>>) {
    while !stopped.get() {
        Timer::new(SWEEP_INTERVAL).await;
        while core.shard.sweep_expired() {
            // What becomes durable together is removed in one turn.
            let staged = core.shard.staged();
            if poll_fn(|cx| core.shard.poll_durable(staged, cx))
                .await
                .is_err()
            {
                break;
            }
            future::yield_now().await;
        }
    }
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
