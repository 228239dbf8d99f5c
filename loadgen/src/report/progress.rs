//! The line of a phase: live rate, p99 and errors while it runs.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::table::number;
use crate::collect::Sample;
use crate::histogram::{Measured, Op};

/// How often the line of a phase of unknown length moves, so that it does not look dead.
const TICK: Duration = Duration::from_millis(200);

/// A line on standard error, as long as the terminal is wide. Draws nothing where that is none.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    name: String,
    length: Duration,
    interval_s: f64,
    current: usize,
    ops: Vec<(Op, Measured)>,
    errors: Vec<u64>,
    last: String,
}

impl Progress {
    /// For a phase of `length`, warm-up included, reported in intervals.
    pub fn new(
        quiet: bool,
        name: &str,
        length: Duration,
        interval: Duration,
        threads: usize,
    ) -> Progress {
        let mut progress = Progress {
            bar: line(quiet, "{wide_msg}"),
            name: name.to_owned(),
            length,
            interval_s: interval.as_secs_f64(),
            current: 0,
            ops: Vec::new(),
            errors: vec![0; threads],
            last: String::from("warming up"),
        };
        progress.show(Duration::ZERO);
        progress
    }

    /// For a phase that ends when it is done. Dropped, it takes the line away.
    pub fn waiting(quiet: bool, name: &str) -> Waiting {
        let bar = line(quiet, "{msg} {elapsed}").with_message(name.to_owned());
        bar.enable_steady_tick(TICK);
        Waiting(bar)
    }

    /// Takes what a thread reports, and shows each interval once the next one begins.
    pub fn update(&mut self, sample: Option<&Sample>, since_start: Option<Duration>) {
        if let Some(sample) = sample {
            self.take(sample);
        }
        if let Some(elapsed) = since_start {
            self.show(elapsed);
        }
    }

    fn take(&mut self, sample: &Sample) {
        if sample.interval > self.current {
            self.last = figures(&self.ops, self.interval_s);
            self.ops.clear();
            self.current = sample.interval;
        }
        if let Some(errors) = self.errors.get_mut(sample.thread) {
            *errors = sample.errors;
        }
        for (op, measured) in &sample.ops {
            match self.ops.iter_mut().find(|entry| entry.0 == *op) {
                Some(entry) => entry.1.merge(measured),
                None => self.ops.push((*op, measured.clone())),
            }
        }
    }

    fn show(&mut self, elapsed: Duration) {
        let errors = self.errors.iter().sum();
        let text = text(&self.name, elapsed, self.length, errors, &self.last);
        self.bar.set_message(text);
    }

    /// Takes the line away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// The line of a phase that ends when it is done.
#[derive(Debug)]
pub struct Waiting(ProgressBar);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn line(quiet: bool, template: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What matters most comes first: the terminal may be narrow.
fn text(name: &str, elapsed: Duration, length: Duration, errors: u64, last: &str) -> String {
    let (seconds, of) = (elapsed.as_secs(), length.as_secs_f64().ceil());
    // The last answers are waited for; what is left to count is no rate.
    let is_ending = elapsed > length;
    let mut parts = match is_ending {
        true => vec![format!("{name} finishing")],
        false => vec![format!("{name} {seconds} of {of} s")],
    };
    if errors > 0 {
        parts.push(format!("{errors} errors"));
    }
    if !is_ending {
        parts.push(last.to_owned());
    }
    parts.join("  ")
}

fn figures(ops: &[(Op, Measured)], interval_s: f64) -> String {
    let is_one = ops.len() == 1;
    let parts: Vec<String> = ops
        .iter()
        .map(|(op, measured)| {
            let per_s = number(measured.completed as f64 / interval_s);
            let p99_ms = measured.latency.value_at_quantile(0.99) as f64 / 1e6;
            let name = if is_one { "" } else { op.name() };
            let text = format!("{name} {per_s}/s, p99 {p99_ms:.2} ms");
            text.trim_start().to_owned()
        })
        .collect();
    if parts.is_empty() {
        return String::from("no answers");
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_and_errors_before_figures() {
        let at = |ms, errors| {
            let (elapsed, length) = (Duration::from_millis(ms), Duration::from_millis(6500));
            text("append", elapsed, length, errors, "31,190/s, p99 11.46 ms")
        };
        assert_eq!(at(3900, 0), "append 3 of 7 s  31,190/s, p99 11.46 ms");
        assert_eq!(
            at(0, 12),
            "append 0 of 7 s  12 errors  31,190/s, p99 11.46 ms"
        );
        assert_eq!(at(6501, 3), "append finishing  3 errors");
    }
}
