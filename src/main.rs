//! The `thalweg` program.

use std::process::ExitCode;

// Memory of a core is reused by that core, in huge pages where the system gives them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    thalweg::server::main()
}
