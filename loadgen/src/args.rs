//! What can be typed. What it means is worked out in `plan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::record::Form;
use crate::target::Surface;

/// Measures durable-stream servers, and checks everything it reads while doing so.
///
/// Without --rate a run saturates the server (closed loop). With --rate it sends on a fixed schedule and counts latency from
/// the moment each request was due, so that a server that pauses cannot hide it. Exit status: 0 if the run is valid, 2 if
/// not (rate not kept, errors, broken promises), 1 if it could not be run.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A workload against one server.
    #[command(flatten)]
    Run(Workload),
    /// Two finished runs side by side.
    Compare(CompareArgs),
    /// One workload against two servers in turn, with ratios and their confidence intervals.
    Versus(VersusArgs),
}

/// The workloads.
#[derive(Clone, Debug, Subcommand)]
pub enum Workload {
    /// Appends to many streams, then reads them back.
    Append(RunArgs),
    /// Fills streams, then reads them whole, again and again.
    Read(RunArgs),
    /// Appends with SSE subscribers; latency is that of each delivery.
    Tail(RunArgs),
    /// Appends with long-polling readers; latency is that of each delivery.
    LongPoll(RunArgs),
    /// Fills streams, publishes snapshots, then bootstraps readers (bucket surface).
    Bootstrap(RunArgs),
    /// Publishes snapshots, whole or in parts, and reads them back (bucket surface).
    Snapshot(RunArgs),
    /// Writers, catch-up readers, subscribers and pollers at once.
    Mixed(RunArgs),
}

impl Workload {
    /// Its name as typed.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Append(_) => "append",
            Workload::Read(_) => "read",
            Workload::Tail(_) => "tail",
            Workload::LongPoll(_) => "long-poll",
            Workload::Bootstrap(_) => "bootstrap",
            Workload::Snapshot(_) => "snapshot",
            Workload::Mixed(_) => "mixed",
        }
    }

    /// Its flags.
    pub fn args(&self) -> &RunArgs {
        match self {
            Workload::Append(args)
            | Workload::Read(args)
            | Workload::Tail(args)
            | Workload::LongPoll(args)
            | Workload::Bootstrap(args)
            | Workload::Snapshot(args)
            | Workload::Mixed(args) => args,
        }
    }
}

/// How messages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ContentForm {
    /// application/octet-stream
    Bytes,
    /// application/json
    Json,
    /// application/json, indented by four spaces as it is sent; a server that stores JSON text keeps it without the white space
    JsonIndented,
}

impl ContentForm {
    /// Whether messages are sent with white space that readers do not get back.
    pub fn is_indented(self) -> bool {
        self == ContentForm::JsonIndented
    }
}

impl From<ContentForm> for Form {
    fn from(form: ContentForm) -> Form {
        match form {
            ContentForm::Bytes => Form::Bytes,
            ContentForm::Json | ContentForm::JsonIndented => Form::Json,
        }
    }
}

/// The flags every workload takes. Flags that mean nothing to a workload are ignored by it.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The server. For --target base the path is the prefix of its streams.
    #[arg(long, default_value = "http://127.0.0.1:4437")]
    pub url: String,
    /// The kind of server.
    #[arg(long, value_enum, default_value = "thalweg-base")]
    pub target: Surface,
    /// POST everything to this path of a bare server that has no streams; nothing is created or verified.
    #[arg(long, value_name = "PATH")]
    pub raw_post: Option<String>,
    /// Streams [default: 500; live workloads 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub streams: Option<u32>,
    /// Connections that drive the load [default: 64; live workloads 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub connections: Option<u32>,
    /// Bytes of one message.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..16_777_216))]
    pub payload: u32,
    /// How messages are written.
    #[arg(long = "type", value_enum, default_value = "bytes")]
    pub form: ContentForm,
    /// Messages in one append (a JSON array of them).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Idempotent producers of each stream; 0 sends no producer headers.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub producers: u32,
    /// Requests per second over all driving connections; absent: saturation.
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// How long to measure (10s, 500ms, 2m).
    #[arg(long, default_value = "10s", value_parser = measured)]
    pub duration: Duration,
    /// How long to run before measuring.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub warmup: Duration,
    /// How long to wait for what is still due after measuring.
    #[arg(long, default_value = "5s", value_parser = duration)]
    pub drain: Duration,
    /// Time limit of one request.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// Load threads, each with its own connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// CPUs to pin load threads to, in turn (1 or 2,3).
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Driving connections reconnect after so many requests; 0 is never.
    #[arg(long, default_value_t = 0)]
    pub churn: u64,
    /// Live readers (tail, long-poll, mixed).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub subscribers: u32,
    /// Long-polling readers of mixed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub pollers: u32,
    /// Catch-up readers of mixed.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub readers: u32,
    /// Messages each stream is filled with before read and bootstrap.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub messages: u32,
    /// Bytes of a snapshot (bootstrap, snapshot).
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1_073_741_824))]
    pub snapshot_bytes: u32,
    /// Parts of a snapshot; 0 publishes it in one request.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub parts: u32,
    /// Do not read streams back after the run, and let catch-up readers check heads and lengths only.
    #[arg(long)]
    pub no_verify: bool,
    /// Seed of payloads and names; absent: the clock.
    #[arg(long)]
    pub seed: Option<u64>,
    /// A server process whose CPU time is measured too.
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// The admin plane of a Thalweg server: what the server says of its latency stands beside the client's figures.
    #[arg(long, value_name = "URL")]
    pub server_latency: Option<String>,
    /// Name of the run in reports.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Write the whole result here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots here.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

/// `loadgen compare`
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The result of one run, as --json wrote it.
    pub a: PathBuf,
    /// The result of the other.
    pub b: PathBuf,
    /// Write a page with both overlaid here.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `loadgen versus`
#[derive(Debug, Args)]
pub struct VersusArgs {
    /// One server.
    #[arg(long)]
    pub a: String,
    /// The other.
    #[arg(long)]
    pub b: String,
    /// The kind of the first; absent: the workload's --target.
    #[arg(long, value_enum)]
    pub a_target: Option<Surface>,
    /// The kind of the second.
    #[arg(long, value_enum)]
    pub b_target: Option<Surface>,
    /// As --raw-post, for the first.
    #[arg(long, value_name = "PATH")]
    pub a_raw_post: Option<String>,
    /// As --raw-post, for the second.
    #[arg(long, value_name = "PATH")]
    pub b_raw_post: Option<String>,
    /// As --server-pid, for the first.
    #[arg(long, value_name = "PID")]
    pub a_pid: Option<u32>,
    /// As --server-pid, for the second.
    #[arg(long, value_name = "PID")]
    pub b_pid: Option<u32>,
    /// Rounds; each measures both, in alternating order.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rounds: u32,
    /// Write every run and the ratios here.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with the last round's runs overlaid and the ratios here.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// What to run.
    #[command(subcommand)]
    pub workload: Workload,
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text}: not a duration"))?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("{text}: the units are ms, s, m and h")),
    };
    if seconds <= 1e6 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{text}: too long"))
    }
}

fn measured(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text}: nothing can be measured in no time")),
        measured => Ok(measured),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("{text}: not a number"))?;
    if rate > 0.0 && rate <= 1e9 {
        Ok(rate)
    } else {
        Err(format!("{text}: not between 0 and a billion"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, duration, measured, rate};

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        let line =
            "loadgen versus --a http://a --b http://b append --streams 5 --rate 100 --cpus 1,2";
        let Command::Versus(args) = Cli::try_parse_from(line.split(' '))
            .expect("parses")
            .command
        else {
            panic!("not versus");
        };
        assert_eq!(args.workload.args().cpus, [1, 2]);
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(measured("0s").is_err() && measured("1ms").is_ok());
        assert!(duration("10x").is_err() && duration("").is_err() && duration("s").is_err());
        assert!(rate("0").is_err() && rate("NaN").is_err());
    }
}
