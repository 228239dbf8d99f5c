//! Errors by kind: what can go wrong with a request, and how often it did. Never part of a latency.

use crate::verify::Fault;

/// Everything that can go wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No connection.
    Connect,
    /// The connection broke while an answer was due.
    Broken,
    /// No answer within the time limit.
    Timeout,
    /// Bytes that are no HTTP answer.
    Malformed,
    /// Bytes nobody asked for.
    Unasked,
    /// An answer with this status where another was due.
    Status(u16),
    /// An acknowledged message that had not reached a live reader when the drain ended.
    Undelivered,
    /// A broken promise found by verification.
    Fault(Fault),
}

impl ErrorKind {
    /// The name used in reports.
    pub fn name(self) -> String {
        match self {
            ErrorKind::Connect => "connect".into(),
            ErrorKind::Broken => "connection_broken".into(),
            ErrorKind::Timeout => "timeout".into(),
            ErrorKind::Malformed => "malformed_answer".into(),
            ErrorKind::Unasked => "unasked_bytes".into(),
            ErrorKind::Undelivered => "undelivered".into(),
            ErrorKind::Status(status) => format!("status_{status}"),
            ErrorKind::Fault(fault) => format!("fault_{}", fault.name()),
        }
    }
}

/// Counts of errors by kind. Errors are rare, so a short list is enough.
#[derive(Clone, Debug, Default)]
pub struct Errors(Vec<(ErrorKind, u64)>);

impl Errors {
    /// Adds `count` errors of a kind.
    pub fn add(&mut self, kind: ErrorKind, count: u64) {
        match self.0.iter_mut().find(|entry| entry.0 == kind) {
            Some(entry) => entry.1 += count,
            None => self.0.push((kind, count)),
        }
    }

    /// Each kind that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (ErrorKind, u64)> + '_ {
        self.0.iter().copied()
    }

    /// All of it in a line.
    pub fn describe(&self) -> String {
        let list: Vec<String> = self
            .iter()
            .map(|(kind, count)| format!("{count} {}", kind.name()))
            .collect();
        list.join(", ")
    }

    /// All errors.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|entry| entry.1).sum()
    }

    /// Errors that verification found.
    pub fn faults(&self) -> u64 {
        let fault = |entry: &&(ErrorKind, u64)| matches!(entry.0, ErrorKind::Fault(_));
        self.0.iter().filter(fault).map(|entry| entry.1).sum()
    }
}
