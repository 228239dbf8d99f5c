//! What this machine lacks to serve a configuration, and how to give it.
//!
//! Three steps, apart so that each can be tested: [`machine`] gathers facts
//! (and is the only one to touch the machine), [`checks`] judges them against
//! the configuration (pure, on made-up facts in tests), and this file renders
//! the verdicts.
//!
//! `thalweg serve` goes through the same door before it builds an executor
//! ([`refuse_if_unfit`]): what would be a panic inside glommio (no io_uring), a
//! bare "out of memory" (locked memory) or a silent theft of connections (a
//! second server on the port: glommio shares ports) is told in these words.
//!
//! - A *failure* means that the server could not start, or would do harm.
//! - A *warning* means that it serves, with less speed, room or safety.
//!
//! Nothing stays behind: files and sockets opened for a probe are gone when
//! [`examine`] returns.

use std::{
    error, fmt,
    io::{self, Write},
    process::ExitCode,
};

use serde::Serialize;

use super::config::Config;

mod checks;
mod machine;

use machine::Machine;
pub use machine::{cores as allowed_cores, raise_limits};

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// The server runs, with less speed, room or safety.
    Warn,
    /// The server cannot start, or must not.
    Fail,
}

/// The verdict of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in a word.
    pub check: &'static str,
    /// How it went.
    pub status: Status,
    /// What was found, with the numbers.
    pub detail: String,
    /// What to do about it; `None` when nothing needs doing.
    pub remedy: Option<String>,
}

/// Why this machine cannot serve the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoctorError {
    /// At least one, each with [`Status::Fail`].
    pub failures: Vec<Finding>,
}

/// Runs every check against this machine. Takes milliseconds; creates and removes a file of a few
/// KiB in the data directory, or in the nearest directory above it that exists.
///
/// Judges resource limits as they are: call [`raise_limits`] first, as `serve` does.
pub fn examine(config: &Config) -> Vec<Finding> {
    checks::judge(config, &Machine::probe(config))
}

/// Raises resource limits as far as allowed and runs every check, for `serve` to do before it
/// builds anything. Returns the warnings, to be logged.
///
/// # Errors
/// When any check fails, with every check that failed.
pub fn refuse_if_unfit(config: &Config) -> Result<Vec<Finding>, DoctorError> {
    raise_limits();
    let (failures, rest): (Vec<_>, Vec<_>) = examine(config)
        .into_iter()
        .partition(|finding| finding.status == Status::Fail);
    if !failures.is_empty() {
        return Err(DoctorError { failures });
    }
    Ok(rest
        .into_iter()
        .filter(|finding| finding.status == Status::Warn)
        .collect())
}

/// `thalweg doctor`: writes every finding, as text or JSON. The status is 1 when a check failed.
///
/// # Errors
/// When `out` cannot be written.
pub fn run(config: &Config, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    raise_limits();
    let findings = examine(config);
    if json {
        serde_json::to_writer_pretty(&mut *out, &findings)?;
        writeln!(out)?;
    } else {
        for finding in &findings {
            write!(out, "{finding}")?;
        }
        writeln!(out, "{}", summary(&findings))?;
    }
    let worst = findings.iter().map(|finding| finding.status).max();
    Ok(if worst == Some(Status::Fail) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// How many of [`connections_max`](crate::base::limits::Limits::connections_max) this process has
/// open files for: the bound to admit by, so that journals never find the descriptors gone.
pub fn connections_that_fit(config: &Config) -> usize {
    let fit = checks::connections_that_fit(config, machine::files_limit());
    usize::try_from(fit).unwrap_or(usize::MAX)
}

/// Descriptors that this process has open at once, at most.
pub fn files_max(config: &Config) -> u64 {
    let fit = checks::connections_that_fit(config, machine::files_limit());
    fit.saturating_add(checks::files_without_clients(config))
}

fn summary(findings: &[Finding]) -> String {
    let count = |status| {
        findings
            .iter()
            .filter(|finding| finding.status == status)
            .count()
    };
    match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => String::from("All is well: `thalweg serve` has what it needs."),
        (0, warnings) => format!("`thalweg serve` will run; warnings: {warnings}."),
        (failures, _) => format!("`thalweg serve` will not start; failures: {failures}."),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

impl Finding {
    /// What is wrong, for a line of a log: the remedy too, where that is one line.
    pub fn in_a_line(&self) -> String {
        let (check, detail) = (self.check, &self.detail);
        match &self.remedy {
            None => format!("{check}: {detail}"),
            Some(remedy) if !remedy.contains('\n') => format!("{check}: {detail}; {remedy}"),
            Some(_) => format!("{check}: {detail}; `thalweg doctor` says how to change that"),
        }
    }
}

/// Lines of status, check and detail, and the remedy below, indented.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<4}  {:<11} {}", self.status, self.check, self.detail)?;
        for line in self.remedy.iter().flat_map(|remedy| remedy.lines()) {
            writeln!(f, "{:18}{line}", "")?;
        }
        Ok(())
    }
}

impl fmt::Display for DoctorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "this machine cannot serve that configuration:")?;
        for finding in &self.failures {
            write!(f, "{finding}")?;
        }
        f.write_str("`thalweg doctor`, with the same flags, runs every check")
    }
}

impl error::Error for DoctorError {}
