//! Counters of each shard: one writer, read by the admin plane.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{base::limits::Durability, protocol::error::Refusal, server::latency::shelf::Shelf};

macro_rules! metrics {
    ($($field:ident: $kind:ident, $unit:literal, $help:literal;)+) => {
        /// The counters and gauges of one shard.
        #[derive(Debug, Default)]
        pub struct ShardMetrics {
            $(#[doc = $help] pub $field: Metric,)+
            /// Where its latency profile is laid out.
            pub latency: Shelf,
        }

        /// Name, kind, unit and meaning of each metric, in order.
        pub const DESCRIPTIONS: &[Description] = &[
            $(Description {
                name: stringify!($field),
                kind: Kind::$kind,
                unit: $unit,
                help: $help,
            },)+
        ];

        impl ShardMetrics {
            /// Every value, in the order of [`DESCRIPTIONS`].
            #[must_use]
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.value(),)+]
            }
        }
    };
}

metrics! {
    connections: Gauge, "", "Open connections.";
    connections_total: Counter, "", "Connections accepted.";
    connections_refused_total: Counter, "", "Connections closed at once because as many as may be were open.";
    requests_total: Counter, "", "Requests answered, refusals included.";
    refusals_total: Counter, "", "Requests answered with a 4xx or 5xx status.";
    too_large_total: Counter, "", "Requests refused because their line, head or body, or what frames its chunks, is longer than may be.";
    body_budget_refusals_total: Counter, "", "Requests refused because the memory for requests that are waited for was full.";
    live_read_refusals_total: Counter, "", "Long-polls and event streams refused because as many as may be were open.";
    appends_total: Counter, "", "Appends answered with a 2xx status.";
    append_bytes_total: Counter, "bytes", "Bodies of those appends, as they were sent.";
    reads_total: Counter, "", "Reads of streams that were not refused, long-polls included.";
    sse_events_total: Counter, "", "Events with data written to event streams.";
    received_bytes_total: Counter, "bytes", "Bytes read from clients.";
    sent_bytes_total: Counter, "bytes", "Bytes written to clients.";
    head_timeouts_total: Counter, "", "Connections closed because a request head was not whole in time.";
    body_timeouts_total: Counter, "", "Connections closed because a request body was not whole in time.";
    write_timeouts_total: Counter, "", "Connections dropped because the client did not read its answer.";
    event_stream_drops_total: Counter, "", "Event streams among the write timeouts and among what was shed.";
    event_stream_floods_total: Counter, "", "Event streams dropped because the client sent more into them than a request or two.";
    turns_total: Counter, "", "Times a connection had had its share and let others go first.";
    idle_closes_total: Counter, "", "Connections closed because they asked for nothing in time.";
    shed_total: Counter, "", "Connections and event streams ended because the memory for what clients hold was full.";
    broken_total: Counter, "", "Connections that the client broke off.";
    truncated_total: Counter, "", "Connections that the client ended in the middle of a request.";
    accept_errors_total: Counter, "", "Failed accepts, such as for want of a descriptor.";
    panics_total: Counter, "", "Requests that panicked; act on it.";
    live_readers: Gauge, "", "Long-polls and event streams that wait.";
    streams: Gauge, "", "Streams in the table.";
    memory_bytes: Gauge, "bytes", "Memory charged for streams.";
    memory_limit_bytes: Gauge, "bytes", "The shard's share of the memory budget.";
    body_bytes: Gauge, "bytes", "Memory held by requests that are waited for.";
    body_limit_bytes: Gauge, "bytes", "The shard's bound on memory held by requests.";
    unsent_bytes: Gauge, "bytes", "Memory held by what clients have yet to take.";
    unsent_limit_bytes: Gauge, "bytes", "The shard's bound on memory held by what clients have yet to take.";
    journal_records_total: Counter, "", "Records staged.";
    journal_record_bytes_total: Counter, "bytes", "Bytes of records staged.";
    journal_batches_total: Counter, "", "Batches that became durable.";
    journal_batch_bytes_total: Counter, "bytes", "Bytes written for batches, headers and padding included.";
    journal_syncs_total: Counter, "", "Syncs of the journal.";
    journal_bytes: Gauge, "bytes", "Journal behind the last checkpoint: what a start reads.";
    unflushed_bytes: Gauge, "bytes", "Bytes of streams in memory and journal alone, not in segments yet.";
    segments: Gauge, "", "Segment files with live blocks.";
    segment_live_bytes: Gauge, "bytes", "Live blocks in segments, headers included.";
    segment_taken_bytes: Gauge, "bytes", "Segment files on disk; one that several shards use is counted by each.";
    segment_written_bytes_total: Counter, "bytes", "Bytes written to segments, for blocks moved included.";
    compacted_bytes_total: Counter, "bytes", "Bytes of blocks moved to empty a segment.";
    punched_bytes_total: Counter, "bytes", "Bytes given back from within segments.";
    checkpoints_total: Counter, "", "Checkpoints written.";
    checkpoint_bytes: Gauge, "bytes", "The last checkpoint's file.";
    checkpoint_written_bytes_total: Counter, "bytes", "Bytes written for checkpoints.";
    keeper_failures_total: Counter, "", "Failed attempts to write segments or checkpoints; tried again, but act on it.";
    backup_held: Gauge, "", "1 while a backup copies the data directory: until it ends no disk space is given back.";
    backup_held_seconds: Gauge, "seconds", "For how long it has been so; 0 when no backup runs.";
    disk_free_bytes: Gauge, "bytes", "Free space of the journal's file system, as of about a second ago.";
    disk_pressure: Gauge, "", "1 while the journal has no space that it may use: the shard takes no writes; act on it.";
    directory_gone: Gauge, "", "1 while the journal's directory is not there: the shard takes no writes; act on it.";
    journal_failed: Gauge, "", "1 once a write or sync of the journal failed: the shard takes no writes; act on it.";
}

impl ShardMetrics {
    /// Counts a request that is answered with `refusal`.
    pub fn refused(&self, refusal: &Refusal) {
        self.refusals_total.increment();
        match refusal {
            Refusal::RequestTooLarge { .. } | Refusal::SnapshotTooLarge { .. } => {
                self.too_large_total.increment();
            }
            Refusal::BodyBudget => self.body_budget_refusals_total.increment(),
            Refusal::LiveReadLimit => self.live_read_refusals_total.increment(),
            _ => {}
        }
    }
}

/// A counter or gauge.
#[derive(Debug, Default)]
pub struct Metric(AtomicU64);

impl Metric {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `more`; only for a metric that one task or core alone writes.
    pub fn count(&self, more: u64) {
        self.set(self.value().wrapping_add(more));
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Name, kind, unit and meaning of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Its name, without prefix.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit; empty for counts.
    pub unit: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// What does not change while the process runs.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// What an acknowledgement means.
    pub durability: Durability,
}

impl Info {
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    fn durability(self) -> &'static str {
        match self.durability {
            Durability::Sync => "sync",
            Durability::Os => "os",
        }
    }
}

/// All shards' metrics in the Prometheus text format.
#[must_use]
pub fn prometheus(info: Info, shards: &[std::sync::Arc<ShardMetrics>]) -> String {
    use std::fmt::Write as _;
    let values: Vec<Vec<u64>> = shards.iter().map(|shard| shard.values()).collect();
    let mut text = format!(
        "# HELP thalweg_info Version, and what an acknowledgement means (sync or os); always 1.\n\
         # TYPE thalweg_info gauge\n\
         thalweg_info{{version=\"{}\",durability=\"{}\"}} 1\n",
        Info::VERSION,
        info.durability()
    );
    for (index, metric) in DESCRIPTIONS.iter().enumerate() {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let name = metric.name;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP thalweg_{name} {}", metric.help);
        let _ = writeln!(text, "# TYPE thalweg_{name} {kind}");
        for (shard, values) in values.iter().enumerate() {
            let value = values.get(index).copied().unwrap_or_default();
            let _ = writeln!(text, "thalweg_{name}{{shard=\"{shard}\"}} {value}");
        }
    }
    text
}

/// All shards' metrics as JSON: an object per shard.
#[must_use]
pub fn json(info: Info, shards: &[std::sync::Arc<ShardMetrics>]) -> String {
    let shards: Vec<serde_json::Value> = shards
        .iter()
        .map(|shard| {
            let values = shard.values();
            let named = DESCRIPTIONS.iter().zip(values);
            named
                .map(|(metric, value)| (metric.name.to_owned(), value.into()))
                .collect()
        })
        .map(serde_json::Value::Object)
        .collect();
    serde_json::json!({
        "version": Info::VERSION,
        "durability": info.durability(),
        "shards": shards,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn both_forms_carry_every_metric_of_every_shard() {
        let shards = [
            Arc::new(ShardMetrics::default()),
            Arc::new(ShardMetrics::default()),
        ];
        shards[1].streams.set(7);
        let info = Info {
            durability: Durability::Os,
        };
        let text = prometheus(info, &shards);
        let version = env!("CARGO_PKG_VERSION");
        let line = format!("thalweg_info{{version=\"{version}\",durability=\"os\"}} 1\n");
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("thalweg_streams{shard=\"1\"} 7\n"), "{text}");
        for metric in DESCRIPTIONS {
            assert!(text.contains(&format!("# TYPE thalweg_{} ", metric.name)));
            let counts = metric.name.ends_with("_total");
            assert_eq!(counts, metric.kind == Kind::Counter, "{}", metric.name);
            let bare = metric.name.trim_end_matches("_total");
            assert!(
                bare.ends_with(metric.unit),
                "{} in {}",
                metric.name,
                metric.unit
            );
        }
        let parsed: serde_json::Value = serde_json::from_str(&json(info, &shards)).unwrap();
        assert_eq!(parsed["durability"], "os");
        assert_eq!(parsed["shards"][1]["streams"], 7);
    }
}
