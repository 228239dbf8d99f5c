//! io_uring, and the memory that it locks.

use rustix::io::Errno;

use super::{fail, ok, size, warn};
use crate::{
    base::limits::{KIB, MIB},
    server::{
        config::Config,
        doctor::{
            Finding,
            machine::{IoUringFact, Machine},
        },
    },
};

/// Locked memory below which glommio refuses to start, whatever the process's privileges.
const MEMLOCK_BYTES_MIN: u64 = 512 * KIB as u64;
/// io_urings that make an executor.
const RINGS_PER_SHARD: u64 = 3;
/// Locked memory of the small ring by which glommio asks what the kernel can, in bytes.
const PROBE_RING_BYTES: u64 = 8 * KIB as u64;

/// Whether io_uring opens and suffices; if not, who refuses it.
pub fn io_uring(machine: &Machine) -> Finding {
    let check = "io_uring";
    let kernel = &machine.kernel;
    let (error, disabled, filtered) = match &machine.io_uring {
        IoUringFact::Ready => {
            return ok(
                check,
                format!("allowed, and Linux {kernel} has every operation needed"),
            );
        }
        IoUringFact::Lacks(operations) => {
            let detail = format!("Linux {kernel} lacks: {}", operations.join(", "));
            return fail(check, detail, String::from("run Linux 5.8 or later"));
        }
        IoUringFact::Refused {
            error,
            disabled,
            filtered,
        } => (error, *disabled, *filtered),
    };
    let unblock = "docker: --security-opt seccomp=FILE, FILE being docker's default profile with\n\
        io_uring_setup, io_uring_enter and io_uring_register allowed (or seccomp=unconfined)\n\
        kubernetes: the same profile under securityContext.seccompProfile (type: Localhost)\n\
        systemd: SystemCallFilter=io_uring_setup io_uring_enter io_uring_register";
    match (Errno::from_io_error(error), disabled) {
        (Some(Errno::PERM), Some(2)) => fail(
            check,
            String::from("switched off for every process (kernel.io_uring_disabled is 2)"),
            String::from(
                "sysctl -w kernel.io_uring_disabled=0\n\
                 to keep it: echo kernel.io_uring_disabled=0 > /etc/sysctl.d/90-io-uring.conf",
            ),
        ),
        (Some(Errno::PERM), Some(1)) => fail(
            check,
            String::from("switched off for unprivileged processes (kernel.io_uring_disabled is 1)"),
            String::from(
                "allow this user's group: sysctl -w kernel.io_uring_group=$(id -g)\n\
                 or everybody: sysctl -w kernel.io_uring_disabled=0",
            ),
        ),
        (Some(Errno::PERM | Errno::NOSYS | Errno::ACCESS), _) if filtered => fail(
            check,
            format!("blocked by a seccomp filter ({error})"),
            String::from(unblock),
        ),
        (Some(Errno::PERM | Errno::ACCESS), _) => fail(
            check,
            format!("refused by a security policy ({error})"),
            format!("SELinux or AppArmor may say why: journalctl -k | grep -i denied\n{unblock}"),
        ),
        (Some(Errno::NOSYS), _) => fail(
            check,
            format!("Linux {kernel} has none ({error})"),
            String::from(
                "run Linux 5.8 or later built with CONFIG_IO_URING; sandboxes such as gVisor \
                 have none",
            ),
        ),
        (Some(Errno::NOMEM), _) => fail(
            check,
            String::from("no memory may be locked for even a small ring"),
            raise_memlock(MEMLOCK_BYTES_MIN),
        ),
        _ => fail(
            check,
            format!("a small ring could not be opened: {error}"),
            String::from("this is unexpected; the error is the kernel's, from io_uring_setup"),
        ),
    }
}

/// Bytes of one ring, as the kernel allocates and accounts them: submission entries of 64 bytes;
/// and in one region a header, twice as many completion entries of 16 and an index of 4.
pub fn ring_bytes(depth: usize) -> u64 {
    const HEADER_BYTES: u64 = 384;
    let depth = depth.checked_next_power_of_two().unwrap_or(usize::MAX) as u64;
    let submissions = depth.saturating_mul(64);
    let completions = depth.saturating_mul(2 * 16 + 4);
    pages(submissions).saturating_add(pages(completions.saturating_add(HEADER_BYTES)))
}

/// Rounded up to whole pages of 4 KiB.
fn pages(bytes: u64) -> u64 {
    const PAGE: u64 = 4 * KIB as u64;
    bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

/// Linux accounts rings to RLIMIT_MEMLOCK before 5.12 and, since it allocates them with
/// registered memory, from 6.14 on; between, to the control group.
pub fn kernel_counts_rings(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => !((5, 12)..(6, 14)).contains(&(major, minor)),
        _ => true,
    }
}

/// glommio needs its rings, and runs without registered I/O memory, only slower. (Measured on
/// Linux 6.18: an executor starts at 3 rings and a probe, and registers at 3 times `io_memory`
/// more, to the page.)
pub fn locked_memory(config: &Config, machine: &Machine) -> Finding {
    let check = "memlock";
    let shards = config.shards as u64;
    let rings = ring_bytes(config.ring_depth)
        .saturating_mul(RINGS_PER_SHARD)
        .saturating_add(PROBE_RING_BYTES)
        .saturating_mul(shards);
    let buffers = pages(config.io_memory_bytes as u64)
        .saturating_mul(RINGS_PER_SHARD)
        .saturating_mul(shards);
    let counted = if kernel_counts_rings(&machine.kernel) {
        rings
    } else {
        0
    };
    let all = rings.saturating_add(buffers);
    let Some(limit) = machine.memlock_bytes else {
        return ok(check, String::from("no limit on locked memory"));
    };
    let limit_shown = size(limit);

    if limit < MEMLOCK_BYTES_MIN {
        let detail = format!(
            "RLIMIT_MEMLOCK is {limit_shown}; no executor starts below {}, privileged or not",
            size(MEMLOCK_BYTES_MIN)
        );
        return fail(check, detail, raise_memlock(all));
    }
    if machine.memlock_exempt {
        return ok(
            check,
            format!("RLIMIT_MEMLOCK ({limit_shown}) does not bind: CAP_IPC_LOCK"),
        );
    }
    if limit < counted {
        let detail = format!(
            "RLIMIT_MEMLOCK is {limit_shown}; the rings of {shards} executors need {}",
            size(rings)
        );
        let remedy = format!(
            "{}\nor fewer --shards, or a smaller --ring-depth",
            raise_memlock(all)
        );
        return fail(check, detail, remedy);
    }
    let needed = counted.saturating_add(buffers);
    if limit < needed {
        let spare = limit.saturating_sub(counted);
        let in_each_mib = shards
            .saturating_mul(RINGS_PER_SHARD)
            .saturating_mul(MIB as u64);
        let spare_each = spare.checked_div(in_each_mib).unwrap_or(0);
        let smaller = match spare_each {
            0 => String::new(),
            spare => format!("\nor --io-memory-bytes {spare}MiB"),
        };
        let detail = format!(
            "RLIMIT_MEMLOCK is {limit_shown}; registering the I/O memory of {shards} executors \
             takes {}: they run without, and direct I/O costs more CPU",
            size(needed)
        );
        return warn(check, detail, format!("{}{smaller}", raise_memlock(all)));
    }
    ok(
        check,
        format!(
            "RLIMIT_MEMLOCK is {limit_shown}; {} are needed",
            size(needed)
        ),
    )
}

fn raise_memlock(bytes: u64) -> String {
    let mib = bytes.div_ceil(MIB as u64);
    format!(
        "shell, as root: ulimit -l {kib}\n\
         systemd: LimitMEMLOCK={mib}M\n\
         docker: --ulimit memlock={bytes}:{bytes}\n\
         login sessions: a line `USER - memlock {kib}` in /etc/security/limits.conf",
        kib = mib.saturating_mul(KIB as u64),
        bytes = mib.saturating_mul(MIB as u64),
    )
}
