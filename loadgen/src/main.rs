//! The `loadgen` command: see the library for what it guarantees.

use std::process::ExitCode;

fn main() -> ExitCode {
    loadgen::main()
}
