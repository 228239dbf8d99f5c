//! Everything joined: the command line, executors, sockets, start and stop.
//!
//! [`lifecycle`] brings the process up and down; [`executor`] is a thread,
//! [`worker`] what one core does on it, [`start`] how it comes to;
//! [`core`] is what a core's tasks share; [`connection`] drives one client's
//! connection, [`live`] its long-polls, [`event_stream`] what it becomes when
//! it follows a stream ([`fan_out`] serves those that are at the tail
//! together), [`socket`] moves its bytes; [`budget`] bounds what clients can
//! make it hold, [`unsent`] what the kernel does, [`turnstile`] how long they
//! can keep it from others; [`admin`] serves the operator; [`backup`] copies a
//! data directory while it does.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::todo,
        clippy::unreachable,
        clippy::unwrap_used,
    )
)]
#![forbid(unsafe_code)]

pub mod admin;
pub mod backup;
pub mod budget;
pub mod cli;
pub mod config;
pub mod connection;
pub mod core;
pub mod descriptors;
pub mod doctor;
pub mod error;
pub mod event_stream;
pub mod exchange;
pub mod executor;
pub mod fan_out;
pub mod inspect;
pub mod latency;
pub mod lifecycle;
pub mod live;
pub mod metrics;
pub mod progress;
pub mod purge;
pub mod read_turns;
pub mod repair;
pub mod reshard;
pub mod rounds;
pub mod seat;
pub mod socket;
pub mod spare;
pub mod start;
pub mod stored;
pub mod sweep;
pub mod turnstile;
pub mod unsent;
mod verify;
pub mod worker;

use std::{io::Write as _, process::ExitCode};

/// Memory comes in small pages, even where the allocator asks for huge ones. The first touch of a huge
/// page clears 2 MiB while its core does nothing else, for 5 ms on a virtual machine whose host has yet
/// to find that memory: at 256 connections p99 was twice as long with them, and nothing was faster.
fn refuse_huge_pages() {
    // A kernel that refuses has none to give.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Runs the program: what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    refuse_huge_pages();
    match cli::parse() {
        Err(error) => {
            eprintln!("thalweg: {error}");
            ExitCode::from(2)
        }
        Ok(cli::Action::PrintConfig(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(cli::Action::Doctor { config, json }) => {
            let mut out = std::io::stdout().lock();
            let code = doctor::run(&config, json, &mut out);
            let _ = out.flush();
            code.unwrap_or(ExitCode::FAILURE)
        }
        Ok(cli::Action::Inspect { dir, json, streams }) => {
            let mut out = std::io::stdout().lock();
            let code = inspect::run(&dir, json, streams, &mut out);
            let _ = out.flush();
            code.unwrap_or(ExitCode::FAILURE)
        }
        Ok(cli::Action::Backup(options)) => backup::backup(&options),
        Ok(cli::Action::Restore { from, to }) => backup::restore(&from, &to),
        Ok(cli::Action::Serve(config)) => lifecycle::serve(*config),
    }
}
