//! `loadgen` against a server that is broken on purpose.

mod broken;
mod coordinated_omission;
mod page;
mod server;
mod server_latency;
mod snapshots;

use clap::Parser;

use loadgen::args::{Cli, Command};
use loadgen::plan;
use loadgen::report::Report;

/// Runs what the command line says.
fn run_line(line: &str) -> Report {
    let words = ["loadgen"]
        .into_iter()
        .chain(line.split_whitespace())
        .chain(["--quiet"]);
    let Command::Run(workload) = Cli::try_parse_from(words).expect("a command line").command else {
        panic!("not a workload");
    };
    plan::run(&workload, workload.args()).expect("runs")
}
