//! Where a run took place: what the reader of a figure needs to know about the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel name, release and version.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu_model: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Block devices with their models.
    pub disks: Vec<String>,
}

impl Machine {
    /// This machine. What cannot be found out is left empty.
    pub fn here() -> Machine {
        let name = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Machine {
            kernel: format!(
                "{} {} {}",
                text(name.sysname()),
                text(name.release()),
                text(name.version())
            ),
            cpu_model: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024,
            disks: disks(),
        }
    }
}

/// The revision of the source tree this runs in, with `-dirty` if it was changed; empty outside a repository.
pub fn git_revision() -> String {
    let manifest = env!("CARGO_MANIFEST_DIR");
    let directory = if Path::new(manifest).exists() {
        manifest
    } else {
        "."
    };
    Command::new("git")
        .args([
            "-C",
            directory,
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
        ])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

/// CPU seconds a process has used; `None` if there is none of that number.
pub fn process_cpu_s(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold spaces; utime and stime are the 12th and 13th fields after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let ticks = rustix::param::clock_ticks_per_second();
    Some((user + system) as f64 / ticks as f64)
}

/// CPU time of the server process over the measurement, as near to its ends as the collector looks.
#[derive(Debug)]
pub struct CpuSampler {
    pid: Option<u32>,
    first: Option<(u64, f64)>,
    last: Option<(u64, f64)>,
}

impl CpuSampler {
    /// For this process, if there is one to look at.
    pub fn new(pid: Option<u32>) -> CpuSampler {
        CpuSampler {
            pid,
            first: None,
            last: None,
        }
    }

    /// To be called often: takes a sample at the first call after `from` and at the first after `to`.
    pub fn look(&mut self, now: u64, from: u64, to: u64) {
        let Some(pid) = self.pid else {
            return;
        };
        let due = if self.first.is_none() {
            now >= from
        } else {
            self.last.is_none() && now >= to
        };
        if due && let Some(cpu_s) = process_cpu_s(pid) {
            let slot = if self.first.is_none() {
                &mut self.first
            } else {
                &mut self.last
            };
            *slot = Some((now, cpu_s));
        }
    }

    /// Cores used between the samples; none without both.
    pub fn cores(&self) -> Option<f64> {
        let (first, last) = (self.first?, self.last?);
        Some((last.1 - first.1) / ((last.0 - first.0).max(1) as f64 / 1e9))
    }
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn disks() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let mut list: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join("device").exists())
        .map(|entry| {
            let model = fs::read_to_string(entry.path().join("device/model")).unwrap_or_default();
            format!("{} {}", entry.file_name().to_string_lossy(), model.trim())
                .trim()
                .to_owned()
        })
        .collect();
    list.sort();
    list
}

#[cfg(test)]
mod tests {
    #[test]
    fn our_own_process_has_used_some_cpu() {
        assert!(super::process_cpu_s(std::process::id()).is_some());
        assert!(super::process_cpu_s(u32::MAX).is_none());
    }
}
