//! The progress bar: live rate, p99 and errors while a phase runs.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::table::number;
use crate::collect::Sample;
use crate::histogram::{Measured, Op};

/// A bar over the time of one phase. Draws nothing where standard error is no terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    interval_s: f64,
    current: usize,
    ops: Vec<(Op, Measured)>,
    errors: Vec<u64>,
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
        let bar = ProgressBar::new(length.as_millis() as u64);
        if quiet {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:>10} [{bar:30}] {elapsed:>3}  {msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(name.to_owned());
        bar.set_message("warming up");
        Progress {
            bar,
            interval_s: interval.as_secs_f64(),
            current: 0,
            ops: Vec::new(),
            errors: vec![0; threads],
        }
    }

    /// Takes what a thread reports, and shows each interval once the next one begins.
    pub fn update(&mut self, sample: Option<&Sample>, since_start: Option<Duration>) {
        if let Some(elapsed) = since_start {
            self.bar.set_position(elapsed.as_millis() as u64);
        }
        let Some(sample) = sample else {
            return;
        };
        if sample.interval > self.current {
            self.bar.set_message(self.message());
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

    /// Takes the bar away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn message(&self) -> String {
        let mut parts: Vec<String> = self
            .ops
            .iter()
            .map(|(op, measured)| {
                let per_s = number(measured.completed as f64 / self.interval_s);
                let p99_ms = measured.latency.value_at_quantile(0.99) as f64 / 1e6;
                format!("{} {per_s}/s p99 {p99_ms:.2} ms", op.name())
            })
            .collect();
        parts.push(format!("errors {}", self.errors.iter().sum::<u64>()));
        parts.join("  ")
    }
}
