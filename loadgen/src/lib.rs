//! A load generator for durable-stream servers whose figures can be trusted.
//!
//! What it guarantees:
//! - **Honest latency.** With a rate, requests follow a schedule fixed in advance and latency counts from the moment each was
//!   due; a server that stops for a second cannot hide the requests that should have been sent meanwhile (`engine`).
//! - **Checked content.** Every message carries its writer, number and a hash chain; every reader, live or catching up, proves that
//!   each acknowledged message arrived exactly once, in order, unaltered (`record`, `verify`). Responses must keep the cap and tell
//!   the truth about being up to date (`workload::read`).
//! - **No silent failure.** Errors are counted by kind apart from latency; a run that could not keep its rate, met errors or
//!   broken promises, or was late itself is not valid, and says why (`plan`).
//! - **Its own cost in sight.** Client CPU by thread, and CPU per operation, are part of every result.
//! - **Independence.** It shares no code with the server, so that a mistake cannot cancel itself out.
//!
//! ```text
//! args     what was typed          plan     create, fill, measure, read back, judge
//! workload one file each: clients  phase    clients over threads     engine  one thread: epoll, schedule
//! connection, http  bytes in, out  histogram, verify  count, prove   report  table, JSON, page
//! ```
//!
//! One thread drives all its connections from one epoll, without allocating, in two system calls per request; nearly all of its time is
//! the kernel's TCP. Measured on 30 November 2026 on a quiet machine, 256-byte appends over 64 connections, client and server on a core
//! each: against Thalweg with `--durability os` the server's core is full (0.99) at 54,600 to 58,900 appends/s with 64 % of the client's;
//! against a peer in memory 114,000/s with 56 %. An append costs the client 11 to 12 µs there and 5 here. The difference is not the
//! client's work, which is the same (two calls, two segments, fewer context switches): more than half of its time against Thalweg goes, in
//! the kernel's `sock_def_readable`, into interrupting the server's core for each request (`tuning/README.md`, the finding at its end).
//! With the ring flag that spares the interrupts it is 4.5 µs, at 98,000 appends/s and 44 %.
//!
//! The default workload (500 streams, 64 connections, 256-byte appends) is the case the protocol is made for: many small
//! messages to many streams, more streams than connections, enough concurrency for group commit to matter.

pub mod args;
pub mod client;
pub mod collect;
pub mod connection;
pub mod engine;
pub mod error;
pub mod histogram;
pub mod http;
pub mod judge;
pub mod machine;
pub mod multipart;
pub mod pace;
pub mod phase;
pub mod plan;
pub mod record;
pub mod report;
pub mod server_latency;
pub mod slot;
pub mod sse;
pub mod statistics;
pub mod target;
pub mod verify;
pub mod versus;
pub mod workload;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command, CompareArgs, Workload};
use crate::report::{html, json, table};

/// The run could not be run.
const EXIT_FAILED: u8 = 1;
/// The run is not valid.
const EXIT_INVALID: u8 = 2;

/// The command line.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(workload) => run(&workload),
        Command::Compare(args) => compare(&args),
        Command::Versus(args) => versus::command(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_INVALID),
        Err(text) => {
            eprintln!("loadgen: {text}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

fn run(workload: &Workload) -> Result<bool, String> {
    let args = workload.args();
    check_writable(args.json.as_deref())?;
    check_writable(args.html.as_deref())?;
    plan::check_reachable(args)?;
    let report = plan::run(workload, args).map_err(|error| error.to_string())?;
    print!("{}", table::summary(&report));
    if let Some(path) = &args.json {
        json::write(path, &report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    save_page(args.html.as_deref(), || html::page(&report))?;
    Ok(report.valid)
}

fn compare(args: &CompareArgs) -> Result<bool, String> {
    let (a, b) = (json::read(&args.a)?, json::read(&args.b)?);
    print!("{}", report::compare::table(&a, &b));
    save_page(args.html.as_deref(), || html::compare_page(&a, &b))?;
    Ok(a.valid && b.valid)
}

/// That a report can be written to `path`: known before the run, not after it. Nothing is changed,
/// but an empty file may stay.
pub(crate) fn check_writable(path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    opened.map(drop).map_err(|error| {
        format!(
            "no report can be written to {}: {error}; name a file in a directory that exists",
            path.display()
        )
    })
}

fn save_page(path: Option<&Path>, page: impl FnOnce() -> String) -> Result<(), String> {
    match path {
        Some(path) => {
            std::fs::write(path, page()).map_err(|error| format!("{}: {error}", path.display()))
        }
        None => Ok(()),
    }
}
