//! What a server costs and counts: its metrics, and what the kernel says of
//! its process.

use std::fs;
use std::time::Duration;

use super::eventually;
use super::http::Request;
use super::server::Server;

/// A metric, summed over the shards.
#[track_caller]
pub fn metric(server: &Server, name: &str) -> u64 {
    let answer = Request::to(server.admin_address(), "GET", "/metrics")
        .send()
        .expect(200);
    let prefix = format!("thalweg_{name}{{");
    let values: Vec<u64> = answer
        .text()
        .lines()
        .filter(|line| line.starts_with(&prefix))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect();
    assert!(!values.is_empty(), "no metric {name} in {answer}");
    values.iter().sum()
}

/// Waits until a metric satisfies `wanted`.
#[track_caller]
pub fn await_metric(server: &Server, name: &str, wanted: impl Fn(u64) -> bool) {
    eventually(&format!("the right value of {name}"), || {
        wanted(metric(server, name)).then_some(())
    });
}

/// Resident memory of the server's process, in bytes.
#[track_caller]
pub fn rss_bytes(server: &Server) -> u64 {
    let kib = status(server, "VmRSS");
    let kib = kib.strip_suffix(" kB").and_then(|kib| kib.parse().ok());
    kib.map(|kib: u64| kib << 10)
        .expect("the kernel says how much memory is resident")
}

/// What the kernel says of the server's process under `name`.
#[track_caller]
pub fn status(server: &Server, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid()))
        .expect("the server's process runs");
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find_map(|(known, value)| (known == name).then_some(value));
    value.expect("the kernel says so").trim().to_owned()
}

/// CPU time that the server's process has used, in user and kernel mode.
#[track_caller]
pub fn cpu_time(server: &Server) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid()))
        .expect("the server's process runs");
    // Fields 14 and 15, counted from the pid; the name in parentheses may hold spaces.
    let (_, after_name) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number of ticks"))
        .sum();
    // The kernel's USER_HZ is 100 on every architecture that we run on.
    Duration::from_millis(ticks * 10)
}

/// Open descriptors of the server's process.
#[track_caller]
pub fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .expect("the server's process runs")
        .count()
}
