//! A server that stops for a second must not be able to hide the requests that were due meanwhile.

use loadgen::report::{Report, json};

use crate::run_line;
use crate::server::{Wrong, start};

/// A latency that only the pause explains, in nanoseconds.
const HELD_UP_NS: u64 = 100_000_000;

fn run(wrong: Wrong, line: &str) -> Report {
    run_line(&format!(
        "{line} --url http://{} --warmup 200ms --drain 3s",
        start(wrong)
    ))
}

/// How many of an operation's latencies were held up, how many there are, and the greatest in seconds.
fn held_up(report: &Report, operation: &str) -> (u64, u64, f64) {
    let operation = report.operation(operation).expect("measured");
    let histogram = json::decode(&operation.histogram).expect("a histogram");
    (
        histogram.count_between(HELD_UP_NS, u64::MAX),
        histogram.len(),
        operation.latency_us.max / 1e6,
    )
}

#[test]
fn a_pause_of_one_second_shows_in_a_fixed_rate_run_and_hides_in_a_closed_loop() {
    let pause = Wrong::PausesAppends {
        after_ms: 1500,
        for_ms: 1000,
    };
    let line = "append --streams 8 --connections 8 --no-verify --duration 4s";
    let report = run(pause, &format!("{line} --rate 500"));
    let (count, all, max_s) = held_up(&report, "append");
    // One second of four, less the last 100 ms of it: about 22 %.
    let share = count as f64 / all as f64;
    assert!(
        (0.15..0.40).contains(&share),
        "{count} of {all} were held up"
    );
    assert!((0.8..2.5).contains(&max_s), "the longest took {max_s} s");
    assert!(
        all >= 1990,
        "{all} of 2000 were measured: none may be left out"
    );

    let (count, all, _) = held_up(&run(pause, line), "append");
    assert!(
        count < 40,
        "a closed loop of 8 connections saw {count} of {all}: more than it can"
    );
}

#[test]
fn a_subscriber_that_is_not_served_shows_in_its_deliveries() {
    let pause = Wrong::PausesSubscriber {
        after_ms: 1000,
        for_ms: 1000,
    };
    let report = run(
        pause,
        "tail --streams 1 --connections 1 --subscribers 2 --rate 100 --duration 4s",
    );
    let (count, all, max_s) = held_up(&report, "delivery");
    // One of two subscribers, for one second of four: about 11 %.
    let share = count as f64 / all as f64;
    assert!(
        (0.07..0.25).contains(&share),
        "{count} of {all} were held up"
    );
    assert!((0.8..2.5).contains(&max_s), "the longest took {max_s} s");
}

#[test]
fn a_rate_that_cannot_be_kept_is_not_called_valid() {
    let pause = Wrong::PausesAppends {
        after_ms: 300,
        for_ms: 5000,
    };
    let report = run(
        pause,
        "append --streams 2 --connections 2 --no-verify --rate 200 --duration 1s",
    );
    assert!(!report.valid);
    assert!(
        report
            .invalid_because
            .iter()
            .any(|reason| reason.contains("rate was not kept"))
    );
}
