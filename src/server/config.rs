//! What was asked of the server, and where each answer came from.
//!
//! Typed text first, then meaning (as ripgrep's `LowArgs` and `HiArgs`):
//! - [`settings::SETTINGS`] is the one table of settings. The command line's
//!   flags, the file's keys, the environment's variables and `--print-config`
//!   are all read off it, so a setting exists in all four or in none.
//! - [`resolve`] lays the sources over each other: **flag, else environment,
//!   else file, else default**. Every source is read in full, so that a
//!   mistake in the file is told even where a flag overrides it.
//! - A [`Config`] that comes out of [`resolve`] holds: its limits pass
//!   [`Limits::check`], its two addresses differ, its numbers are in range.
//!   Whether the *machine* can serve it is [`doctor`](super::doctor)'s to say.

use std::{
    collections::HashMap,
    ffi::OsString,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    thread,
};

use crate::base::{
    amount::Amount,
    limits::{
        Durability, IO_MEMORY_BYTES_MIN, Limits, MIB, RING_DEPTH_MAX, SHARDS_MAX, SPIN_US_MAX,
    },
};

mod error;
mod file;
mod print;
pub mod settings;
mod unit;

pub use error::ConfigError;
use settings::{SETTINGS, Setting};

/// The effective settings of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// Where metrics, health and purge are served; loopback by default.
    pub admin_listen: SocketAddr,
    /// The directory that holds everything durable.
    pub data_dir: PathBuf,
    /// Executors, each with its own core, journal and share of the streams; 1 to [`SHARDS_MAX`].
    pub shards: usize,
    /// When an append is acknowledged.
    pub durability: Durability,
    /// The cores to pin shards to, in order and round again if shards are more; `None` for all
    /// that the process may use. Never empty, no core twice.
    pub cores: Option<Vec<usize>>,
    /// Browser origins that may use the data plane; empty for any.
    pub cors_allow_origins: Vec<String>,
    /// I/O memory of each executor, in bytes; registered with each of its three rings.
    pub io_memory_bytes: usize,
    /// Entries of each io_uring, three of which make an executor; 1 to [`RING_DEPTH_MAX`].
    pub ring_depth: usize,
    /// How long an idle executor spins before it sleeps, in microseconds.
    pub spin_us: u64,
    /// What is logged: a `tracing` filter such as `info` or `info,thalweg::storage=debug`.
    pub log: String,
    /// Requests that take this long in the server are logged, in milliseconds; 0 for none.
    pub slow_request_ms: u64,
    /// Such lines a second, for each shard.
    pub slow_request_lines_max: usize,
    /// Every limit, budget and timeout.
    pub limits: Limits,
    /// Salvage a damaged journal at start. Not a setting: a repair is asked for once, by flag.
    pub repair: bool,
}

impl Default for Config {
    /// The defaults; `shards` is the number of cores that this process may keep busy.
    fn default() -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            listen: SocketAddr::new(loopback, 4437),
            admin_listen: SocketAddr::new(loopback, 4438),
            data_dir: PathBuf::from("./data"),
            shards: thread::available_parallelism().map_or(1, |n| n.get().min(SHARDS_MAX)),
            durability: Durability::Sync,
            cores: None,
            cors_allow_origins: Vec::new(),
            io_memory_bytes: 12 * MIB,
            ring_depth: 4096,
            spin_us: 0,
            log: String::from("info"),
            slow_request_ms: 0,
            slow_request_lines_max: 10,
            limits: Limits::default(),
            repair: false,
        }
    }
}

/// Where a setting's value came from; the later of these wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A line of the configuration file.
    File {
        /// The file as it was named.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A setting, called as where it was written calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name, with dashes.
    pub name: &'static str,
    /// Where its value came from.
    pub source: Source,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.source {
            Source::Default => write!(f, "--{name}, by default,"),
            Source::File { .. } => write!(f, "{}: {name}", self.source),
            source @ (Source::Environment(_) | Source::Flag(_)) => source.fmt(f),
        }
    }
}

/// One setting as it was typed: values still text, more than one where a list was given.
#[derive(Clone, Debug)]
pub struct Typed {
    /// Which.
    pub setting: &'static Setting,
    /// At least one.
    pub values: Vec<String>,
    /// Where.
    pub source: Source,
}

/// A configuration with the source of each of its settings.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The effective values.
    pub config: Config,
    /// By the name of the setting; those that are not here are [`Source::Default`].
    sources: HashMap<&'static str, Source>,
}

/// Settles the effective configuration from the flags typed, the environment and the file.
///
/// # Errors
/// The first mistake found, in the order file, environment, flags, and then relations.
pub fn resolve(
    flags: Vec<Typed>,
    environment: impl Fn(&str) -> Option<OsString>,
    file: Option<&Path>,
) -> Result<Resolved, ConfigError> {
    let mut layers = file.map_or(Ok(Vec::new()), file::read)?;
    layers.extend(from_environment(environment)?);
    layers.extend(flags);

    let mut config = Config::default();
    let mut sources = HashMap::new();
    for typed in layers {
        typed
            .setting
            .read(&mut config, &typed.values)
            .map_err(|wanted| ConfigError::BadValue {
                setting: typed.setting.name,
                value: typed.values.join(", "),
                wanted,
                source: typed.source.clone(),
            })?;
        sources.insert(typed.setting.name, typed.source);
    }
    let resolved = Resolved { config, sources }.with_a_shard_for_each_core_named();
    resolved.check()?;
    Ok(resolved)
}

/// Reads `THALWEG_<NAME>` for every setting; an empty variable counts as unset, as composed
/// environments cannot leave one out.
///
/// Other variables with the prefix are no error: Kubernetes sets `THALWEG_SERVICE_HOST` and the
/// like for a service of that name.
fn from_environment(
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<Typed>, ConfigError> {
    let mut layer = Vec::new();
    for setting in SETTINGS {
        let variable = setting.variable();
        let Some(value) = environment(&variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let source = Source::Environment(variable);
        match value.into_string() {
            Ok(value) => layer.push(Typed {
                setting,
                values: vec![value],
                source,
            }),
            Err(value) => {
                return Err(ConfigError::BadValue {
                    setting: setting.name,
                    value: value.to_string_lossy().into_owned(),
                    wanted: String::from("text in UTF-8"),
                    source,
                });
            }
        }
    }
    Ok(layer)
}

impl Resolved {
    /// Where the setting of that name got its value; `None` if there is no such setting.
    pub fn source(&self, name: &str) -> Option<&Source> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name)?;
        Some(self.sources.get(setting.name).unwrap_or(&Source::Default))
    }

    fn named(&self, name: &'static str) -> Named {
        let source = self.source(name).cloned().unwrap_or(Source::Default);
        Named { name, source }
    }

    /// Who lists cores and no number of shards wants one on each.
    fn with_a_shard_for_each_core_named(mut self) -> Self {
        if let (Some(cores), Some(Source::Default)) = (&self.config.cores, self.source("shards")) {
            self.config.shards = cores.len();
        }
        self
    }

    /// What one setting alone cannot tell.
    fn check(&self) -> Result<(), ConfigError> {
        let config = &self.config;
        let count = |setting, have, least, most| {
            let most = Some(Amount::Count(most));
            (setting, Amount::Count(have), Amount::Count(least), most)
        };
        for (setting, have, least, most) in [
            count("shards", config.shards as u64, 1, SHARDS_MAX as u64),
            count(
                "ring-depth",
                config.ring_depth as u64,
                1,
                RING_DEPTH_MAX as u64,
            ),
            count("spin-us", config.spin_us, 0, SPIN_US_MAX),
            (
                "io-memory-bytes",
                Amount::Bytes(config.io_memory_bytes as u64),
                Amount::Bytes(IO_MEMORY_BYTES_MIN as u64),
                None,
            ),
        ] {
            if have < least || most.is_some_and(|most| have > most) {
                return Err(ConfigError::OutOfRange {
                    setting: self.named(setting),
                    have,
                    least,
                    most,
                });
            }
        }
        if share_a_port(config.listen, config.admin_listen) {
            return Err(ConfigError::SameAddress {
                listen: config.listen,
                admin_listen: config.admin_listen,
            });
        }
        let limits = config.limits.check();
        limits.map_err(|error| ConfigError::Limits {
            setting: self.named(error.setting()),
            error,
        })
    }
}

/// Whether a connection to one could be accepted by the other. The kernel would not refuse: data
/// listeners are opened to share their port.
fn share_a_port(a: SocketAddr, b: SocketAddr) -> bool {
    let overlap = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && overlap
}

#[cfg(test)]
mod tests;
