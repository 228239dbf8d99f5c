//! The verdicts: facts against configuration, without touching the machine.

use std::{io, net::SocketAddr};

use super::{Finding, Status, machine::Machine};
use crate::{base::limits::MIB, server::config::Config};

mod disk;
mod uring;

use disk::{data_dir, direct_io, free_space};
use uring::{io_uring, locked_memory};

/// Open files of a shard besides its connections: rings, event counters, its listener, and the
/// journal and segment files that it keeps open.
const FILES_PER_SHARD: u64 = 64;
/// Open files of the process besides: standard streams, lock, admin plane and its connections.
const FILES_BESIDES: u64 = 64;
/// Fewer connections than these are no service.
const CONNECTIONS_MIN: u64 = 64;

/// Judges every fact, in the order in which an operator would put things right.
pub fn judge(config: &Config, machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![
        io_uring(machine),
        locked_memory(config, machine),
        open_files(config, machine),
        cores(config, machine),
        memory(config, machine),
        data_dir(config, &machine.data_dir),
        direct_io(&machine.data_dir),
        free_space(config, &machine.data_dir),
        addresses(config, machine),
    ];
    findings.extend(shares(config));
    findings
}

/// How many of the configured connections the limit of open files leaves room for.
pub fn connections_that_fit(config: &Config, files: Option<u64>) -> u64 {
    let wanted = config.limits.connections_max as u64;
    files.map_or(wanted, |files| {
        wanted.min(files.saturating_sub(files_without_clients(config)))
    })
}

/// Open files besides connections.
pub fn files_without_clients(config: &Config) -> u64 {
    (config.shards as u64)
        .saturating_mul(FILES_PER_SHARD)
        .saturating_add(FILES_BESIDES)
}

fn ok(check: &'static str, detail: String) -> Finding {
    Finding {
        check,
        status: Status::Ok,
        detail,
        remedy: None,
    }
}

fn warn(check: &'static str, detail: String, remedy: String) -> Finding {
    Finding {
        check,
        status: Status::Warn,
        detail,
        remedy: Some(remedy),
    }
}

fn fail(check: &'static str, detail: String, remedy: String) -> Finding {
    Finding {
        check,
        status: Status::Fail,
        detail,
        remedy: Some(remedy),
    }
}

fn open_files(config: &Config, machine: &Machine) -> Finding {
    let check = "nofile";
    let wanted = config.limits.connections_max as u64;
    let besides = files_without_clients(config);
    let fit = connections_that_fit(config, machine.files);
    let Some(limit) = machine.files else {
        return ok(check, String::from("no limit on open files"));
    };
    let all = besides.saturating_add(wanted);
    let remedy = format!(
        "shell, as root: ulimit -n {all}\n\
         systemd: LimitNOFILE={all}\n\
         docker: --ulimit nofile={all}:{all}"
    );
    if fit < wanted.min(CONNECTIONS_MIN) {
        let detail = format!(
            "RLIMIT_NOFILE is {limit}; {} executors take up to {besides}, which leaves {fit} \
             connections",
            config.shards
        );
        return fail(check, detail, remedy);
    }
    if fit < wanted {
        let detail = format!(
            "RLIMIT_NOFILE is {limit}: room for {fit} connections of the {wanted} configured"
        );
        let remedy = format!("{remedy}\nor ask for less: --connections-max {fit}");
        return warn(check, detail, remedy);
    }
    ok(
        check,
        format!("RLIMIT_NOFILE is {limit}: room for all {wanted} connections"),
    )
}

fn cores(config: &Config, machine: &Machine) -> Finding {
    let check = "cores";
    let (shards, allowed) = (config.shards, machine.cores.len());
    let listed = config.cores.as_deref().unwrap_or(&machine.cores);
    let barred: Vec<String> = listed
        .iter()
        .filter(|core| !machine.cores.contains(core))
        .map(ToString::to_string)
        .collect();
    if !barred.is_empty() {
        return fail(
            check,
            format!(
                "--cores names {}, where this process may not run",
                barred.join(", ")
            ),
            format!(
                "choose among {}, or change its cpuset or taskset",
                list(&machine.cores)
            ),
        );
    }
    let usable = listed.len().min(machine.parallelism);
    let quota = match machine.parallelism < allowed {
        true => format!(", under a CPU quota of {}", machine.parallelism),
        false => String::new(),
    };
    if shards > usable {
        return warn(
            check,
            format!("{shards} shards share {usable} of {allowed} cores{quota}"),
            format!("for speed, one shard to a core: --shards {usable}"),
        );
    }
    ok(
        check,
        format!("{shards} shards, of {allowed} cores allowed{quota}"),
    )
}

/// Core numbers as ranges: `0-3, 8`.
fn list(cores: &[usize]) -> String {
    let follow = |a: &usize, b: &usize| a.checked_add(1) == Some(*b);
    let runs = cores.chunk_by(follow).filter_map(|run| match run {
        [] => None,
        [only] => Some(only.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(", ")
}

fn memory(config: &Config, machine: &Machine) -> Finding {
    const TWO_MIB: u64 = 2 * MIB as u64;
    let check = "memory";
    let limits = &config.limits;
    let executors = (config.shards as u64).saturating_mul(config.io_memory_bytes as u64);
    let budgets = limits
        .memory_bytes_max
        .saturating_add(limits.body_memory_bytes_max)
        .saturating_add(executors);
    match machine.memory_bytes {
        Some(have) if budgets > have => warn(
            check,
            format!(
                "budgets add up to {}, and this process may use {}: it may be killed before they \
                 are full",
                size(budgets),
                size(have)
            ),
            format!("--memory-bytes-max {}MiB, or more memory", have / TWO_MIB),
        ),
        Some(have) => ok(
            check,
            format!("budgets of {} fit in {}", size(budgets), size(have)),
        ),
        None => ok(check, format!("budgets add up to {}", size(budgets))),
    }
}

/// A budget's share of one shard must hold the largest request, or none of that size is served.
fn shares(config: &Config) -> Option<Finding> {
    let limits = &config.limits;
    let body = limits.request_bytes_max;
    let needed = body.saturating_mul(config.shards as u64);
    let small = [
        ("memory-bytes-max", limits.memory_bytes_max),
        ("body-memory-bytes-max", limits.body_memory_bytes_max),
    ];
    let small: Vec<_> = small
        .into_iter()
        .filter(|(_, budget)| *budget < needed)
        .collect();
    let (name, budget) = *small.first()?;
    let share = size(budget.checked_div(config.shards as u64).unwrap_or(budget));
    let remedies = small
        .iter()
        .map(|(name, _)| format!("--{name} {}MiB", needed.div_ceil(MIB as u64)));
    Some(warn(
        "budgets",
        format!(
            "--{name} gives each of {} shards {share}, and --request-bytes-max allows bodies of {}",
            config.shards,
            size(body)
        ),
        format!(
            "{} (or fewer --shards)",
            remedies.collect::<Vec<_>>().join(" ")
        ),
    ))
}

fn addresses(config: &Config, machine: &Machine) -> Finding {
    let check = "listen";
    let Some((setting, address, error)) = machine.unbindable.first() else {
        let (data, admin) = (config.listen, config.admin_listen);
        return ok(check, format!("{data} (data) and {admin} (admin) are free"));
    };
    let detail = format!("--{setting} {address} cannot be listened on: {error}");
    fail(check, detail, unbindable_remedy(setting, *address, error))
}

fn unbindable_remedy(setting: &str, address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "see who listens: ss -ltnp 'sport = :{port}' (if this server itself, all is well)\n\
             or choose another port: --{setting} {}",
            SocketAddr::new(address.ip(), port.checked_add(10).unwrap_or(4437))
        ),
        io::ErrorKind::PermissionDenied => format!(
            "systemd: AmbientCapabilities=CAP_NET_BIND_SERVICE\n\
             elsewhere: sysctl -w net.ipv4.ip_unprivileged_port_start={port}\n\
             or a port above 1023"
        ),
        io::ErrorKind::AddrNotAvailable => {
            String::from("name an address of this machine (`ip address` lists them), or 0.0.0.0")
        }
        _ => format!("choose another address: --{setting} ADDRESS:PORT"),
    }
}

/// A size for people, in binary units.
fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests;
