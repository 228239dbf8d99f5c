//! A server that breaks its promises must be caught, in every case, and named; one that keeps them must not be.

use loadgen::report::Report;

use crate::run_line;
use crate::server::{Wrong, start};

/// A reader whose message was dropped waits for it until the drain ends; an honest server's needs it only on a machine that crawls.
const DRAIN: &str = "2s";
const DRAIN_HONEST: &str = "30s";

fn run(wrong: Wrong, line: &str) -> Report {
    let url = format!("http://{}", start(wrong));
    let drain = if wrong == Wrong::Nothing {
        DRAIN_HONEST
    } else {
        DRAIN
    };
    run_line(&format!(
        "{line} --url {url} --warmup 50ms --drain {drain} --timeout 30s --seed 7"
    ))
}

const APPEND: &str = "append --streams 4 --connections 4 --rate 400 --duration 500ms";
const READ: &str = "read --streams 2 --connections 2 --messages 40000 --duration 500ms";
const TAIL: &str = "tail --streams 1 --connections 1 --subscribers 3 --rate 200 --duration 500ms";
const LONG_POLL: &str =
    "long-poll --streams 1 --connections 1 --subscribers 3 --rate 200 --duration 500ms";
const LARGE_POLL: &str = "long-poll --streams 1 --connections 1 --subscribers 1 --payload 9000000 --rate 4 --duration 1s";
const LARGE_BOOTSTRAP: &str = "bootstrap --target thalweg-bucket --streams 1 --connections 1 --messages 80000 --duration 500ms";
const MIXED: &str = "mixed --streams 2 --connections 2 --subscribers 2 --pollers 2 --readers 1 --rate 100 --duration 500ms";

const BOOTSTRAP: &str =
    "bootstrap --target thalweg-bucket --streams 2 --connections 2 --messages 400 --duration 300ms";
const SNAPSHOT: &str =
    "snapshot --target thalweg-bucket --streams 2 --connections 2 --duration 300ms";
const PARTS: &str =
    "snapshot --target thalweg-bucket --streams 2 --connections 2 --parts 3 --duration 300ms";

/// Runs, and demands that the run is not valid and this error is among those found.
fn must_find(wrong: Wrong, line: &str, error: &str) -> Report {
    let report = run(wrong, line);
    assert!(
        report.errors.contains_key(error),
        "{wrong:?}: {error} is not in {:?}",
        report.errors
    );
    assert!(!report.valid, "{wrong:?}: called valid");
    report
}

#[test]
fn an_honest_server_is_found_honest() {
    for line in [
        APPEND, READ, TAIL, LONG_POLL, MIXED, BOOTSTRAP, SNAPSHOT, PARTS,
    ] {
        let report = run(Wrong::Nothing, line);
        assert!(report.errors.is_empty(), "{line}: {:?}", report.errors);
        assert!(
            report.verification.messages_checked > 0,
            "{line}: nothing was read"
        );
    }
}

#[test]
fn whole_reads_count_every_byte_once() {
    let report = run(Wrong::Nothing, READ);
    let whole = report.operation("whole_read").expect("streams were read");
    let bytes_each = whole.bytes_per_s / whole.per_s;
    assert!(
        (bytes_each - 40_000.0 * 256.0).abs() < 1.0,
        "{bytes_each} bytes a stream"
    );
}

#[test]
fn dropped_appends() {
    must_find(Wrong::Drops, APPEND, "fault_gap");
    must_find(Wrong::ForgetsTail, APPEND, "fault_lost");
}

#[test]
fn duplicated_appends() {
    must_find(Wrong::Duplicates, APPEND, "fault_duplicate");
}

#[test]
fn reordered_appends() {
    must_find(Wrong::Reorders, APPEND, "fault_reordered");
}

#[test]
fn altered_bytes_and_mixed_up_streams() {
    must_find(Wrong::Alters, APPEND, "fault_corrupt");
    must_find(Wrong::MixesStreams, APPEND, "fault_broken_chain");
}

#[test]
fn responses_above_the_cap() {
    must_find(Wrong::Oversize, READ, "fault_oversize");
    must_find(Wrong::Oversize, LARGE_POLL, "fault_oversize");
    must_find(Wrong::Oversize, LARGE_BOOTSTRAP, "fault_oversize");
}

#[test]
fn false_claims_to_be_up_to_date() {
    must_find(Wrong::FalseUpToDate, READ, "fault_false_up_to_date");
    must_find(Wrong::NeverUpToDate, READ, "fault_missing_up_to_date");
    must_find(Wrong::FalseUpToDate, LONG_POLL, "fault_false_up_to_date");
}

#[test]
fn offsets_that_do_not_continue() {
    must_find(Wrong::SkewsOffset, READ, "fault_wrong_offset");
    must_find(Wrong::SkewsOffset, LONG_POLL, "fault_wrong_offset");
    must_find(Wrong::SseSkewsOffset, TAIL, "fault_wrong_offset");
}

#[test]
fn live_readers_notice_too() {
    must_find(Wrong::SseDrops, TAIL, "fault_gap");
    must_find(Wrong::SseDuplicates, TAIL, "fault_duplicate");
    must_find(Wrong::SseReorders, TAIL, "fault_reordered");
    must_find(Wrong::SseNoControl, TAIL, "fault_missing_control");
    for line in [TAIL, LONG_POLL, MIXED] {
        must_find(Wrong::Drops, line, "fault_gap");
        must_find(Wrong::Duplicates, line, "fault_duplicate");
        must_find(Wrong::Reorders, line, "fault_reordered");
        must_find(Wrong::Alters, line, "fault_corrupt");
    }
}

#[test]
fn snapshots_and_bootstraps() {
    must_find(Wrong::AltersSnapshot, SNAPSHOT, "fault_wrong_snapshot");
    must_find(Wrong::AltersSnapshot, PARTS, "fault_wrong_snapshot");
    must_find(Wrong::BootstrapSkips, BOOTSTRAP, "fault_wrong_offset");
    must_find(
        Wrong::BootstrapFalseUpToDate,
        BOOTSTRAP,
        "fault_false_up_to_date",
    );
}

#[test]
fn refusals_and_broken_answers_are_counted_apart_from_latency() {
    for (wrong, error) in [
        (Wrong::Refuses, "status_503"),
        (Wrong::Garbage, "malformed_answer"),
        (Wrong::HangsUp, "connection_broken"),
    ] {
        let report = must_find(wrong, APPEND, error);
        let append = report.operation("append").expect("appends");
        let planned = report.client.planned;
        assert!(
            append.latency_us.count < planned,
            "{wrong:?}: failures are among the latencies"
        );
        // An append whose answer never came may be there or not: that alone is no fault.
        assert_eq!(
            report.verification.faults, 0,
            "{wrong:?}: {:?}",
            report.errors
        );
    }
}

#[test]
fn nobody_at_home_is_a_result_not_a_crash() {
    let line =
        "append --url http://127.0.0.1:1 --duration 200ms --warmup 0s --drain 100ms --streams 2";
    let report = run_line(line);
    assert!(!report.valid && report.errors.contains_key("connect"));
}
