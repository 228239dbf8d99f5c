//! A server that stops for a second must not be able to hide the requests that were due meanwhile.
//!
//! How long it stopped the server itself says, so that the least that must show follows from the schedule alone: a machine that
//! stops too can only add to it.

use std::time::Duration;

use loadgen::report::{Report, json};

use crate::run_line;
use crate::server::{Wrong, start_and_watch};

/// A latency that only the pause explains, in seconds.
const HELD_UP_S: f64 = 0.1;
/// Of requests or deliveries, at most this share may be held up: the pause's, and as much again for a machine that crawls.
const SHARE_MAX: f64 = 0.3;

/// The report, and how long the server stopped.
fn run(wrong: Wrong, line: &str) -> (Report, Duration) {
    let (address, pause) = start_and_watch(wrong);
    let report = run_line(&format!(
        "{line} --url http://{address} --warmup 200ms --drain 30s --timeout 30s"
    ));
    (report, pause.get().copied().unwrap_or_default())
}

/// How many of an operation's latencies were held up, how many there are, and the greatest in seconds.
fn held_up(report: &Report, operation: &str) -> (f64, f64, f64) {
    let operation = report.operation(operation).expect("measured");
    let histogram = json::decode(&operation.histogram).expect("a histogram");
    (
        histogram.count_between((HELD_UP_S * 1e9) as u64, u64::MAX) as f64,
        histogram.len() as f64,
        operation.latency_us.max / 1e6,
    )
}

#[test]
fn a_pause_of_one_second_shows_in_a_fixed_rate_run_and_hides_in_a_closed_loop() {
    let pause = Wrong::PausesAppends {
        after_ms: 3000,
        for_ms: 1000,
    };
    let line = "append --streams 8 --connections 8 --no-verify";
    let (report, paused) = run(pause, &format!("{line} --rate 200 --duration 10s"));
    let (count, all, max_s) = held_up(&report, "append");
    // Due in the pause and not in its last 100 ms: about 9 % of ten seconds. One of each connection may be on its way.
    let least = 200.0 * (paused.as_secs_f64() - HELD_UP_S) - 8.0;
    assert!(paused.as_secs_f64() >= 1.0, "it did stop");
    assert!(count >= least, "{count} were held up, not {least}");
    assert!(count / all < SHARE_MAX, "{count} of {all} were held up");
    assert!(max_s >= paused.as_secs_f64(), "the longest took {max_s} s");
    assert_eq!(all, 2000.0, "none may be left out");

    let (report, _) = run(pause, &format!("{line} --duration 5s"));
    let (count, all, _) = held_up(&report, "append");
    assert!(
        count / all < 0.02,
        "a closed loop saw {count} of {all}: more than it can"
    );
}

#[test]
fn a_subscriber_that_is_not_served_shows_in_its_deliveries() {
    let pause = Wrong::PausesSubscriber {
        after_ms: 1000,
        for_ms: 1000,
    };
    let line = "tail --streams 1 --connections 1 --subscribers 2 --rate 100 --duration 5s";
    let (report, paused) = run(pause, line);
    let (count, all, max_s) = held_up(&report, "delivery");
    // One of two subscribers, for a second of five: about 9 %.
    let least = 100.0 * (paused.as_secs_f64() - HELD_UP_S) - 2.0;
    assert!(paused.as_secs_f64() >= 1.0, "it did stop");
    assert!(count >= least, "{count} were held up, not {least}");
    assert!(count / all < SHARE_MAX, "{count} of {all} were held up");
    assert!(
        max_s >= paused.as_secs_f64() - 0.05,
        "the longest took {max_s} s"
    );
}

#[test]
fn a_rate_that_cannot_be_kept_is_not_called_valid() {
    let pause = Wrong::PausesAppends {
        after_ms: 300,
        for_ms: 5000,
    };
    let line = "append --streams 2 --connections 2 --no-verify --rate 200 --duration 1s";
    let (report, _) = run(pause, line);
    assert!(!report.valid);
    assert!(
        report
            .invalid_because
            .iter()
            .any(|reason| reason.contains("rate was not kept"))
    );
}
