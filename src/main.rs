//! The `thalweg` program.

use std::process::ExitCode;

// Memory of a core is reused by that core.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    thalweg::server::main()
}
