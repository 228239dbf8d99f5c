//! `thalweg inspect`: what a data directory holds, and whether all of it
//! verifies.
//!
//! What is guaranteed:
//! - Nothing is changed: the disk it reads through cannot
//!   ([`ReadOnlyDisk`]), no lock is kept, and no io_uring is needed.
//! - Everything is verified: every chunk of every checkpoint and every batch of
//!   every journal by its checksum, the order of batches and records, every
//!   record behind the checkpoint by replaying it, every live block by its
//!   checksum, its place and its owner, every segment and every blob's file by
//!   its length, every snapshot by the digest of its content type and body,
//!   every fork by its source. What does not verify is a *problem*, and the
//!   status is 1 then. Where one thing cannot be read, the others still are.
//! - It does not take a moving picture for damage: when a server has the lock,
//!   only those problems count that are found every time of several, as a batch
//!   half written or a body just superseded is not; and the report says who has
//!   it.
//!
//! Behind a problem in a journal that journal is not read on, as a start would
//! not: its streams are shown as they were there.
//!
//! Three steps, each in a file: [`report`] is the outcome and its JSON,
//! [`gather`] fills it, [`text`] renders it for people.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use futures_lite::future::block_on;

mod gather;
pub(super) mod report;
mod text;

use report::Report;

/// Problems found under a running server count when they were found this often in a row.
const ATTEMPTS: u32 = 5;
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(200);
/// Streams listed in text, unless asked otherwise; in JSON all are.
const TEXT_STREAMS: usize = 20;

/// Writes the report on `dir`, with at most `streams` streams listed. The status is 1 when
/// something does not verify.
///
/// # Errors
/// When `out` cannot be written.
pub fn run(
    dir: &Path,
    json: bool,
    streams: Option<usize>,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    let mut report = inspect(dir);
    if json {
        report.streams.truncate(streams.unwrap_or(usize::MAX));
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        report.streams.truncate(streams.unwrap_or(TEXT_STREAMS));
        write!(out, "{report}")?;
    }
    Ok(if report.verified {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads and verifies all of a directory that nobody changes.
pub(super) fn verify(dir: &Path) -> Report {
    block_on(gather::gather(dir))
}

fn inspect(dir: &Path) -> Report {
    let mut report = block_on(gather::gather(dir));
    let mut lasting = report.problems.clone();
    for _ in 1..ATTEMPTS {
        if report.verified || report.in_use_by.is_none() {
            return report;
        }
        thread::sleep(ATTEMPT_INTERVAL);
        report = block_on(gather::gather(dir));
        lasting.retain(|problem| report.problems.contains(problem));
    }
    if report.in_use_by.is_some() {
        report.verified = lasting.is_empty();
        report.problems = lasting;
    }
    report
}
