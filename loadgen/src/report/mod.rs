//! The result of a run, complete enough to be judged and repeated by somebody else.
//!
//! The JSON form of [`Report`] is the record; the table and the HTML page are views of it. It holds the full histograms twice
//! over: each operation's total as one V2-compressed base64 histogram, and its intervals as an HDR interval log that the usual
//! tools read.

pub mod compare;
pub mod html;
pub mod json;
pub mod plot;
pub mod progress;
pub mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::server_latency::{REQUEST, ServerLatency};

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of this tool.
    pub loadgen: String,
    /// Revision of the source tree it ran in.
    pub revision: String,
    /// The user's name for the run.
    pub label: String,
    /// When it started, seconds since 1970.
    pub started_unix_s: f64,
    /// The command line.
    pub command: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// The workload and the server.
    pub parameters: Parameters,
    /// Whether its figures may be used.
    pub valid: bool,
    /// Why not.
    pub invalid_because: Vec<String>,
    /// What a reader of the figures should know.
    pub warnings: Vec<String>,
    /// Length of the measurement, seconds.
    pub measured_s: f64,
    /// Length of one interval, seconds.
    pub interval_s: f64,
    /// What was measured.
    pub operations: Vec<Operation>,
    /// Errors by kind, over the whole run.
    pub errors: BTreeMap<String, u64>,
    /// What was checked.
    pub verification: Verification,
    /// The generator itself.
    pub client: Client,
    /// The server process, if its number was given.
    pub server: Option<Server>,
    /// What the server itself says of its latency, if it was asked.
    #[serde(default)]
    pub server_latency: Option<ServerLatency>,
}

impl Report {
    /// An operation by name.
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations
            .iter()
            .find(|operation| operation.name == name)
    }

    /// The operation the run is about: deliveries if there are any, else the first.
    pub fn main_operation(&self) -> Option<&Operation> {
        self.operation("delivery").or(self.operations.first())
    }

    /// What the client's median and 99th percentile have beyond the server's, in microseconds, and of which operation; none
    /// where requests are of several kinds, or what is measured is not the time of requests.
    pub fn beyond_server_us(&self) -> Option<(&str, f64, f64)> {
        let server = self.server_latency.as_ref()?.series(REQUEST)?;
        let [operation] = self.operations.as_slice() else {
            return None;
        };
        let client = &operation.latency_us;
        let beyond = (client.p50 - server.p50_us, client.p99 - server.p99_us);
        Some((&operation.name, beyond.0, beyond.1))
    }

    /// The user's name for it, or workload and server.
    pub fn title(&self) -> String {
        if self.label.is_empty() {
            format!(
                "{} on {} ({})",
                self.parameters.workload, self.parameters.url, self.parameters.target
            )
        } else {
            self.label.clone()
        }
    }
}

/// Workload and server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// The workload.
    pub workload: String,
    /// The server.
    pub url: String,
    /// Its kind.
    pub target: String,
    /// Requests per second asked for; none: saturation.
    pub rate_per_s: Option<f64>,
    /// Streams.
    pub streams: u32,
    /// Driving connections.
    pub connections: u32,
    /// Live readers.
    pub followers: u32,
    /// Bytes of one message.
    pub payload_bytes: u32,
    /// Content type of the streams.
    pub content_type: String,
    /// Messages in one append.
    pub batch: u32,
    /// Idempotent producers of each stream.
    pub producers: u32,
    /// Load threads.
    pub threads: usize,
    /// CPUs they are pinned to.
    pub cpus: Vec<usize>,
    /// Requests after which a connection is opened anew.
    pub churn: u64,
    /// Before measurement, seconds.
    #[serde(default)]
    pub warmup_s: f64,
    /// Time limit of a request, seconds.
    #[serde(default)]
    pub timeout_s: f64,
    /// Messages each stream was filled with, where a workload fills.
    #[serde(default)]
    pub messages: u32,
    /// Bytes of a snapshot, where there are snapshots.
    #[serde(default)]
    pub snapshot_bytes: u32,
    /// Parts of a snapshot; 0: whole.
    #[serde(default)]
    pub parts: u32,
    /// Whether message bytes were looked at.
    #[serde(default)]
    pub content_checked: bool,
    /// Seed of payloads and names.
    pub seed: u64,
}

/// One kind of request, or of delivery.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// How many completed during measurement.
    pub completed: u64,
    /// The same, per second.
    pub per_s: f64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// Latency percentiles.
    pub latency_us: Percentiles,
    /// All latencies in nanoseconds: a V2-compressed HDR histogram in base64.
    pub histogram: String,
    /// The same by interval: an HDR interval log.
    pub interval_log: String,
    /// For plots.
    pub intervals: Vec<IntervalPoint>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many there are.
    pub count: u64,
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Half are no longer.
    pub p50: f64,
    /// 90 % are no longer.
    pub p90: f64,
    /// 99 % are no longer.
    pub p99: f64,
    /// 99.9 % are no longer.
    pub p999: f64,
    /// 99.99 % are no longer.
    pub p9999: f64,
    /// The greatest.
    pub max: f64,
}

/// One interval of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalPoint {
    /// Its start, seconds from the start of measurement.
    pub at_s: f64,
    /// Completed per second.
    pub per_s: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Greatest, microseconds.
    pub max_us: f64,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Whether streams were read back after the run.
    pub read_back: bool,
    /// Messages read and checked, all readers together.
    pub messages_checked: u64,
    /// Messages acknowledged to writers.
    pub messages_acknowledged: u64,
    /// Broken promises found.
    pub faults: u64,
}

/// The generator itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Share of one core that each load thread used during measurement, 0 to 1.
    pub cpu_share_by_thread: Vec<f64>,
    /// CPU microseconds of all load threads for one main operation.
    pub cpu_us_per_operation: f64,
    /// How late requests were sent although their connection was idle.
    pub lag_us: Percentiles,
    /// Requests the schedule held during measurement.
    pub planned: u64,
    /// Those of them that were never sent.
    pub unsent: u64,
}

impl Client {
    /// Each thread's share, for people.
    pub fn cpu_shares(&self) -> String {
        let shares = self.cpu_share_by_thread.iter();
        let shares: Vec<String> = shares
            .map(|share| format!("{:.0} %", share * 100.0))
            .collect();
        shares.join(", ")
    }

    /// The busiest thread's share.
    pub fn cpu_share_max(&self) -> f64 {
        self.cpu_share_by_thread.iter().copied().fold(0.0, f64::max)
    }
}

/// The server process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its number.
    pub pid: u32,
    /// Cores it used during measurement.
    pub cpu_cores: f64,
    /// Its CPU microseconds for one main operation.
    pub cpu_us_per_operation: f64,
}
