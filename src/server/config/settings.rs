//! The one table of settings: name, field, unit, meaning.
//!
//! A row is a flag (`--request-bytes-max`), a key of the configuration file
//! (`request-bytes-max` or `request_bytes_max`), a variable of the environment
//! (`THALWEG_REQUEST_BYTES_MAX`) and an entry of `--print-config`. A field of
//! [`Config`] or [`Limits`] without a row does not compile; `repair` alone has
//! none, as it is asked for once and not configured.

use std::fmt;

use toml::Value;

use super::{
    Config,
    unit::{
        Address, Bytes, Cores, Count, Directory, DurabilityWord, Form, LogFilter, Micros, Millis,
        Origins, Time, Unit,
    },
};
use crate::base::limits::Limits;

/// Under which heading help and `--print-config` list a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// What a deployment decides.
    Server,
    /// Bounds, budgets and timeouts, which rarely need touching.
    Limits,
}

/// One row of the table.
pub struct Setting {
    /// Its name, with dashes.
    pub name: &'static str,
    /// What it means, in a sentence without its full stop.
    pub help: &'static str,
    /// What stands for a value in help.
    pub placeholder: &'static str,
    /// What its value counts.
    pub measure: &'static str,
    /// Whether it is a list, its flag repeatable.
    pub list: bool,
    /// Where it is listed.
    pub group: Group,
    read: fn(&mut Config, &[String]) -> Result<(), String>,
    write: fn(&Config) -> Option<Value>,
}

impl Setting {
    /// The setting a key of the file names, in dashes or underscores.
    pub fn find(key: &str) -> Option<&'static Self> {
        let name = key.replace('_', "-");
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The name nearest to a key that names none, if near enough to be meant.
    pub fn nearest(key: &str) -> Option<&'static str> {
        let name = key.replace('_', "-").to_ascii_lowercase();
        let likeness = |setting: &Self| strsim::jaro_winkler(setting.name, &name);
        let nearest = SETTINGS
            .iter()
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
        (likeness(nearest) > 0.8).then_some(nearest.name)
    }

    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        format!(
            "THALWEG_{}",
            self.name.replace('-', "_").to_ascii_uppercase()
        )
    }

    /// Sets it from text.
    ///
    /// # Errors
    /// What would have been right, to follow "write"; `config` is unchanged.
    pub fn read(&self, config: &mut Config, texts: &[String]) -> Result<(), String> {
        (self.read)(config, texts)
    }

    /// Its value as TOML; `None` when the default is an absence.
    pub fn write(&self, config: &Config) -> Option<Value> {
        (self.write)(config)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Makes [`SETTINGS`] of rows `"name" field: Unit "help";`, and checks that no field is left out.
macro_rules! settings {
    (
        Server: $($name:literal $field:ident: $unit:ident $help:literal;)*
        Limits: $($limit_name:literal $limit:ident: $limit_unit:ident $limit_help:literal;)*
    ) => {
        /// Every setting, in the order in which it is listed.
        pub static SETTINGS: &[Setting] = &[
            $(settings!(@row $name, $help, Server, $unit, $field),)*
            $(settings!(@row $limit_name, $limit_help, Limits, $limit_unit, limits.$limit),)*
        ];

        /// Does not compile when a field has no row.
        const _: fn(Config) = |Config {
            $($field: _,)*
            limits: Limits { $($limit: _,)* },
            repair: _,
        }| ();
    };
    (@row $name:literal, $help:literal, $group:ident, $unit:ident, $($field:ident).+) => {
        Setting {
            name: $name,
            help: $help,
            group: Group::$group,
            placeholder: $unit::PLACEHOLDER,
            measure: $unit::MEASURE,
            list: $unit::LIST,
            read: |config, texts| {
                config.$($field).+ = $unit::read(texts)?;
                Ok(())
            },
            write: |config| $unit::write(&config.$($field).+),
        }
    };
}

settings! {
    Server:
    "listen" listen: Address "Address and port of the data plane";
    "admin-listen" admin_listen: Address
        "Address and port of the admin plane: metrics, health, purge";
    "data-dir" data_dir: Directory "Where everything durable is kept; made if missing";
    "shards" shards: Count "Executors, one to a core; by default one for each core at hand";
    "durability" durability: DurabilityWord
        "When an append is acknowledged: on the disk (sync) or with the kernel (os)";
    "cores" cores: Cores
        "The cores to pin shards to, as 0,2-3, in order and round again; by default all at hand";
    "cors-allow-origin" cors_allow_origins: Origins
        "A browser origin that may use the data plane; repeatable, by default any";
    "io-memory-bytes" io_memory_bytes: Bytes
        "I/O memory of each executor; counts three times against the memlock limit";
    "ring-depth" ring_depth: Count "Entries of each io_uring";
    "spin-us" spin_us: Micros
        "How long an idle executor spins before it sleeps; above 0 only with cores to spare";
    "log" log: LogFilter "What is logged, as info or info,thalweg::storage=debug";
    "slow-request-ms" slow_request_ms: Millis
        "Requests that take this long in the server are logged with their stages; 0 for none";
    "slow-request-lines-max" slow_request_lines_max: Count
        "Such lines a second, for each shard";

    Limits:
    "request-bytes-max" request_bytes_max: Bytes "Largest request body (413 above)";
    "snapshot-bytes-max" snapshot_bytes_max: Bytes "Largest snapshot published from parts";
    "request-line-bytes-max" request_line_bytes_max: Bytes "Longest request line (414 above)";
    "head-bytes-max" head_bytes_max: Bytes "Longest request head (431 above)";
    "producers-per-stream-max" producers_per_stream_max: Count
        "Producers remembered per stream (429 above)";
    "memory-bytes-max" memory_bytes_max: Bytes
        "Memory for streams: their entries, and their bytes that are not on disk alone, over all shards";
    "body-memory-bytes-max" body_memory_bytes_max: Bytes
        "Memory for request bodies in flight, over all shards";
    "connections-max" connections_max: Count "Open connections, over all shards";
    "live-reads-max" live_reads_max: Count
        "Live reads (long-poll and SSE) open at once, over all shards";
    "mailbox-requests-max" mailbox_requests_max: Count
        "Requests one shard may have waiting at another";
    "pipeline-max" pipeline_max: Count
        "Answers a connection may have pending before its next request is read";
    "head-timeout" head_timeout: Time
        "A request head must be whole within this from its first byte";
    "body-timeout" body_timeout: Time "A request body must make progress within this";
    "body-total-timeout" body_total_timeout: Time
        "A whole request body must have arrived within this";
    "idle-timeout" idle_timeout: Time "A connection without a request is closed after this";
    "write-timeout" write_timeout: Time
        "A client is dropped that takes nothing of an answer for this long, as far as the system tells";
    "drain-bytes-max" drain_bytes_max: Bytes
        "Most bytes read and dropped so that a client sees a refusal";
    "drain-timeout" drain_timeout: Time "Longest time spent on such a drain; 0 for none";
    "long-poll-timeout" long_poll_timeout: Time
        "Wait of a long-poll read under /v1/stream when the client names none";
    "sse-duration" sse_duration: Time "An SSE response ends after about this";
    "sse-heartbeat" sse_heartbeat: Time "Longest silence on an SSE response";
    "shutdown-timeout" shutdown_timeout: Time "Bound on the drain at shutdown; 0 for none";
    "disk-reserve-bytes" disk_reserve_bytes: Bytes
        "Free bytes the file system must keep; below it writes answer 503";
    "journal-file-bytes" journal_file_bytes: Bytes "Size of one journal file";
    "checkpoint-bytes" checkpoint_bytes: Bytes
        "Journal after which a shard writes a checkpoint, or after the size of the last one if that is more";
    "segment-bytes" segment_bytes: Bytes "Size of one segment file";
}
