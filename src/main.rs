//! The `thalweg` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    thalweg::server::main()
}
