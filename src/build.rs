//! Puts `storage::disk::ring_setup` between glommio's liburing and the kernel; see there.

fn main() {
    println!("cargo::rustc-link-arg=-Wl,--wrap=__sys_io_uring_setup");
    println!("cargo::rerun-if-changed=src/build.rs");
}
