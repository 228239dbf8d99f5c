//! How glommio's rings are made: the main one of each executor with
//! `IORING_SETUP_COOP_TASKRUN`.
//!
//! Without it every completion interrupts the core that its executor runs on,
//! even if that core is about to enter the kernel anyway: 0.7 interrupts for
//! each append, two fifths of the server's time, and more than half of the
//! sender's (`tuning/README.md`). glommio 0.9.0 has no setting for it, so the
//! linker puts this function in the place of its liburing's own (`--wrap`,
//! `src/build.rs`).
//!
//! The latency ring stays as it is: glommio looks there for its preemption
//! timer without entering the kernel. glommio makes the rings of an executor in
//! the order main, poll, latency, and only the poll ring has IOPOLL: the one
//! after it is the latency ring. Should a later glommio differ, the worst is
//! that the wrong ring has the flag: slower, not wrong.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

/// `IORING_SETUP_IOPOLL` of `io_uring_setup(2)`.
const IOPOLL: u32 = 1 << 0;
/// `IORING_SETUP_COOP_TASKRUN` of `io_uring_setup(2)`; since Linux 5.19.
const COOP_TASKRUN: u32 = 1 << 8;

/// The start of `struct io_uring_params`; the rest is passed on untouched.
#[repr(C)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
}

thread_local! {
    static AFTER_POLL_RING: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn __real___sys_io_uring_setup(entries: c_uint, params: *mut Params) -> c_int;
}

/// What liburing calls instead of its `__sys_io_uring_setup`.
///
/// # Safety
/// That of `io_uring_setup(2)`: `params` points to a whole `struct io_uring_params`, which nobody
/// else uses during the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___sys_io_uring_setup(entries: c_uint, params: *mut Params) -> c_int {
    // SAFETY: the caller's promise.
    let flags = unsafe { (*params).flags };
    let is_poll = flags & IOPOLL != 0;
    let is_latency = AFTER_POLL_RING.replace(is_poll);
    if !is_poll && !is_latency {
        // SAFETY: the caller's promise.
        let made = unsafe {
            (*params).flags = flags | COOP_TASKRUN;
            __real___sys_io_uring_setup(entries, params)
        };
        if made >= 0 {
            return made;
        }
        // SAFETY: the caller's promise. A kernel before 5.19 does not know the flag.
        unsafe { (*params).flags = flags };
    }
    // SAFETY: the caller's promise.
    unsafe { __real___sys_io_uring_setup(entries, params) }
}
