//! Whether the figures of a run may be used.
//!
//! A run is *valid* only if its figures mean what they seem to: the schedule was kept (at least 99 % of the planned requests completed
//! inside the window), at most 1 % of requests failed, nothing that was read broke a promise, every delivery arrived, and the generator
//! itself was not late. A generator that used all of its core is a warning: the run is what it is, but it may not show the server.

use crate::error::Errors;

/// Planned requests that may not have completed in time, as a share of all.
const RATE_MISSED_MAX: f64 = 0.01;
/// The same for short runs: so many may be in flight at the ends of the window.
const MISSED_MAX: u64 = 2;
/// Errors over requests above which a run is not valid.
const ERROR_SHARE_MAX: f64 = 0.01;
/// Own lateness (p99) above which a fixed-rate run is not valid, in microseconds.
const LAG_US_MAX: f64 = 10_000.0;
/// Share of a core above which a load thread counts as saturated.
const CPU_SHARE_FULL: f64 = 0.95;

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Requests completed inside the window.
    pub requests: u64,
    /// Those of them that were on the schedule.
    pub paced: u64,
    /// Requests the schedule held inside the window; 0 without one.
    pub planned: u64,
    /// All errors of the run, verification included.
    pub errors: &'a Errors,
    /// Errors while measuring.
    pub measured_errors: &'a Errors,
    /// Acknowledged messages that live readers were still waiting for at the end.
    pub undelivered: u64,
    /// The generator's own lateness, 99th percentile, microseconds.
    pub lag_us: f64,
    /// Share of a core each load thread used.
    pub cpu_shares: &'a [f64],
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why the run is not valid; empty if it is.
    pub invalid: Vec<String>,
    /// What a reader of the figures should know.
    pub warnings: Vec<String>,
}

/// Judges a run.
pub fn judge(facts: &Facts<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    let invalid = &mut verdict.invalid;
    if facts.requests == 0 {
        invalid.push("no request completed during the measurement".into());
    }
    if facts.errors.faults() > 0 {
        invalid.push(format!("broken promises: {}", facts.errors.describe()));
    }
    if facts.undelivered > 0 {
        invalid.push(format!(
            "{} deliveries were still due when the drain ended",
            facts.undelivered
        ));
    }
    if facts.planned > 0 {
        let missed = facts.planned.saturating_sub(facts.paced);
        if missed > MISSED_MAX.max((facts.planned as f64 * RATE_MISSED_MAX) as u64) {
            invalid.push(format!(
                "the rate was not kept: {} of {} planned requests completed in time ({:.1} %)",
                facts.paced,
                facts.planned,
                facts.paced as f64 / facts.planned as f64 * 100.0
            ));
        }
        if facts.lag_us > LAG_US_MAX {
            invalid.push(format!(
                "the generator itself was late: p99 {:.1} ms",
                facts.lag_us / 1e3
            ));
        }
    }
    let failed = facts.measured_errors.total() - facts.measured_errors.faults();
    let text = format!("{failed} errors beside {} requests", facts.requests);
    if failed as f64 > ERROR_SHARE_MAX * (facts.requests + failed) as f64 {
        invalid.push(text);
    } else if failed > 0 {
        verdict.warnings.push(text);
    }
    for (thread, share) in facts
        .cpu_shares
        .iter()
        .enumerate()
        .filter(|(_, share)| **share > CPU_SHARE_FULL)
    {
        verdict.warnings.push(format!(
            "load thread {thread} used {:.0} % of its core: figures may show the generator's limit, not the server's",
            share * 100.0
        ));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::{Facts, judge};
    use crate::error::{ErrorKind, Errors};
    use crate::verify::Fault;

    #[test]
    fn each_condition_stands_alone() {
        let none = Errors::default();
        let good = Facts {
            requests: 1000,
            paced: 995,
            planned: 1000,
            errors: &none,
            measured_errors: &none,
            undelivered: 0,
            lag_us: 50.0,
            cpu_shares: &[0.5],
        };
        assert_eq!(judge(&good), Default::default());
        let mut refusals = Errors::default();
        refusals.add(ErrorKind::Status(503), 5);
        let few = judge(&Facts {
            measured_errors: &refusals,
            ..good
        });
        assert!(few.invalid.is_empty() && few.warnings.len() == 1);
        refusals.add(ErrorKind::Status(503), 50);
        let mut faults = Errors::default();
        faults.add(ErrorKind::Fault(Fault::Gap), 1);
        let bad = [
            Facts {
                requests: 0,
                ..good
            },
            Facts { paced: 900, ..good },
            Facts {
                errors: &faults,
                ..good
            },
            Facts {
                measured_errors: &refusals,
                ..good
            },
            Facts {
                undelivered: 1,
                ..good
            },
            Facts {
                lag_us: 20_000.0,
                ..good
            },
        ];
        for facts in bad {
            assert_eq!(judge(&facts).invalid.len(), 1, "{facts:?}");
        }
        assert_eq!(
            judge(&Facts {
                cpu_shares: &[0.2, 0.99],
                ..good
            })
            .warnings
            .len(),
            1
        );
    }
}
