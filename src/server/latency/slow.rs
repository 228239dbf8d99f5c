//! One line in the log for a request that took longer than the operator
//! wants, at most so many a second.

use std::cell::Cell;

use super::stopwatch::Stopwatch;
use crate::http::{
    parse::Method,
    target::{Target, parse_target},
};

/// Longest path that a line names, in bytes; of a longer one only the surface is named.
const PATH_BYTES_MAX: usize = 64;

/// Which requests are traced, and how many.
#[derive(Debug)]
pub struct Slow {
    /// From this on a request is slow, in nanoseconds; `u64::MAX` when none is traced.
    threshold_ns: u64,
    lines_max: usize,
    /// The second, of the monotonic clock, that the counts below are of.
    second: Cell<u64>,
    lines: Cell<usize>,
    left_out: Cell<u64>,
}

impl Slow {
    /// Traces requests of `threshold_ms` and more, in milliseconds; none if that is 0. At most
    /// `lines_max` lines a second.
    #[must_use]
    pub fn new(threshold_ms: u64, lines_max: usize) -> Self {
        let threshold_ns = match threshold_ms {
            0 => u64::MAX,
            ms => ms.saturating_mul(1_000_000),
        };
        Self {
            threshold_ns,
            lines_max,
            second: Cell::new(0),
            lines: Cell::new(0),
            left_out: Cell::new(0),
        }
    }

    /// Whether any request is traced.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.threshold_ns < u64::MAX
    }

    /// Keeps what a line would name of a request.
    pub fn name(&self, watch: &mut Stopwatch, method: Method, target: &[u8]) {
        watch.method = method;
        if !self.is_on() {
            return;
        }
        if let Ok(Target::Path { path, .. }) = parse_target(target) {
            let shown = match path {
                short if short.len() <= PATH_BYTES_MAX => short,
                base if base.starts_with(b"/v1/stream/") => b"/v1/stream/...",
                _ => b"/...",
            };
            watch.path = Some(String::from_utf8_lossy(shown).into());
        }
    }

    /// Writes the line if this request is slow and the second's share is not used up. A line says
    /// how many before it were left out.
    pub fn consider(&self, watch: &Stopwatch) {
        if watch.total_ns() < self.threshold_ns {
            return;
        }
        if let Some(left_out) = self.admit(watch.last_ns()) {
            line(watch, left_out);
        }
    }

    /// Whether one more line may be written; then, how many before it were not.
    fn admit(&self, now_ns: u64) -> Option<u64> {
        let second = now_ns / 1_000_000_000;
        if self.second.replace(second) != second {
            self.lines.set(0);
        }
        if self.lines.get() >= self.lines_max {
            self.left_out.set(self.left_out.get().saturating_add(1));
            return None;
        }
        self.lines.set(self.lines.get().saturating_add(1));
        Some(self.left_out.take())
    }
}

fn line(watch: &Stopwatch, left_out: u64) {
    let path = watch.path.as_deref().unwrap_or_default();
    let surface = if path.starts_with("/v1/stream/") {
        "base"
    } else {
        "bucket"
    };
    let mut us = [0.0; super::stopwatch::Stage::COUNT];
    for (stage, ns) in watch.stages() {
        if let Some(us) = us.get_mut(stage as usize) {
            *us = micros(ns);
        }
    }
    let [
        head,
        body,
        mailbox,
        decide,
        staging,
        journal,
        wake,
        write,
        wait,
    ] = us;
    tracing::warn!(
        target: "thalweg::slow",
        method = method_name(watch.method),
        surface,
        path,
        status = watch.status,
        body_bytes = watch.body_bytes,
        total_us = micros(watch.total_ns()),
        head_us = head,
        body_us = body,
        mailbox_us = mailbox,
        decide_us = decide,
        staging_us = staging,
        journal_us = journal,
        wake_us = wake,
        write_us = write,
        wait_us = wait,
        left_out,
        "slow request"
    );
}

/// Nanoseconds as microseconds, to the nanosecond.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
pub fn micros(ns: u64) -> f64 {
    ns as f64 / 1_000.0
}

fn method_name(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Put => "PUT",
        Method::Post => "POST",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Unserved | Method::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::latency::sample::Arrival;

    #[test]
    fn a_second_has_its_share_of_lines() {
        let slow = Slow::new(5, 2);
        let second = 1_000_000_000;
        assert_eq!(slow.admit(second), Some(0));
        assert_eq!(slow.admit(second + 1), Some(0));
        assert_eq!(slow.admit(second + 2), None);
        assert_eq!(slow.admit(second + 3), None);
        assert_eq!(slow.admit(2 * second), Some(2));
        assert_eq!(slow.admit(2 * second), Some(0));
    }

    #[test]
    fn long_names_are_not_told_and_none_is_when_off() {
        let named = |slow: &Slow, target: &str| {
            let mut watch = Stopwatch::started(Arrival::default());
            slow.name(&mut watch, Method::Put, target.as_bytes());
            watch.path.map(String::from)
        };
        let slow = Slow::new(1, 1);
        assert_eq!(named(&slow, "/b/s?x=1").as_deref(), Some("/b/s"));
        let long = "x".repeat(100);
        let base = named(&slow, &format!("/v1/stream/{long}"));
        assert_eq!(base.as_deref(), Some("/v1/stream/..."));
        assert_eq!(named(&slow, &format!("/b/{long}")).as_deref(), Some("/..."));
        assert_eq!(named(&Slow::new(0, 1), "/b/s"), None);
    }
}
