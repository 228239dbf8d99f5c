//! The admin plane: the latency profile, the metrics' text form, the log of
//! slow requests, and the page (issue 5).

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::eventually;
use crate::common::http::{Connection, Request, Response};
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, Stream, Surface};

const LATENCY: &str = "/__ursula/latency";

fn ask(server: &Server, method: &str, path: &str) -> Response {
    Request::to(server.admin_address(), method, path).send()
}

fn latency(server: &Server) -> Value {
    ask(server, "GET", LATENCY).expect(200).json()
}

fn count(series: &Value, name: &str) -> u64 {
    let count = series[name]["count"].as_u64();
    count.unwrap_or_else(|| panic!("no count of {name}: {series}"))
}

/// Waits until a series over all shards has counted at least `wanted`: a request is counted when
/// its answer is written, which may be after the client has read it.
fn await_count(server: &Server, name: &str, wanted: u64) -> Value {
    eventually(&format!("{wanted} of {name}"), || {
        let latency = latency(server);
        (count(&latency["overall"], name) >= wanted).then_some(latency)
    })
}

fn append_to_many_streams(server: &Server, streams: u64) {
    for _ in 0..streams {
        let stream = Stream::create(server, Surface::Bucket, JSON);
        stream.append(JSON, "[1,2]");
    }
}

#[test]
fn every_stage_is_measured_at_1_shard() {
    every_stage_is_measured(1);
}

#[test]
fn every_stage_is_measured_at_4_shards() {
    every_stage_is_measured(4);
}

/// Every stage that these requests pass is counted for each of them, on the shard that had the
/// connection; a core's own streams need no mailbox.
fn every_stage_is_measured(shards: usize) {
    let server = Options::new(shards).start();
    append_to_many_streams(&server, 40);
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let mut events = stream.sse("0");
    events.control();
    let mut poll = stream
        .get("offset=0&live=long-poll&timeout_ms=60000")
        .open();
    eventually("both wait", || {
        let metrics = ask(&server, "GET", "/__ursula/metrics").json();
        let shards = metrics["shards"].as_array()?;
        let waiting = shards
            .iter()
            .filter_map(|shard| shard["live_readers"].as_u64());
        (waiting.sum::<u64>() == 2).then_some(())
    });
    stream.append(OCTETS, "abc");
    poll.read_response("GET").expect(200).expect_body("abc");
    assert_eq!(events.expect("data").bytes(), b"abc");

    await_count(&server, "sse_delivery", 1);
    await_count(&server, "long_poll_delivery", 1);
    // 41 creates, 41 appends, a poll and the opening of a stream.
    let latency = await_count(&server, "request", 84);
    let overall = &latency["overall"];
    assert_eq!(count(overall, "request"), 84);
    assert_eq!(count(overall, "head"), 84);
    assert_eq!(count(overall, "body"), 82);
    assert_eq!(count(overall, "decide"), 84);
    for stage in ["staging", "journal"] {
        let counted = count(overall, stage);
        assert!((82..=84).contains(&counted), "{counted} of {stage}");
    }
    assert_eq!(count(overall, "wait"), 1);
    assert_eq!(count(overall, "sse_delivery"), 1);
    assert_eq!(count(overall, "long_poll_delivery"), 1);
    assert!(count(overall, "journal_batch") >= 1);
    if shards == 1 {
        assert_eq!(count(overall, "mailbox"), 0);
    } else {
        assert!(count(overall, "mailbox") > 0);
    }

    let named: BTreeSet<_> = overall.as_object().expect("series").keys().collect();
    let explained: BTreeSet<_> = latency["meanings"]
        .as_object()
        .expect("words")
        .keys()
        .collect();
    assert_eq!(named, explained);
    let of_shards = latency["shards"].as_array().expect("a list");
    assert_eq!(of_shards.len(), shards);
    for (name, series) in overall.as_object().expect("series") {
        let sum: u64 = of_shards.iter().map(|shard| count(shard, name)).sum();
        assert_eq!(sum, count(overall, name), "{name}");
        let ascending = ["p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"];
        let values = ascending.map(|field| series[field].as_f64().expect("a number"));
        assert!(values.is_sorted(), "{name}: {series}");
        assert!(
            series["mean_us"].as_f64() <= Some(values[4]),
            "{name}: {series}"
        );
        // The cookie of HDR's V2 format, deflated: what its tools look for.
        let hdr = series["hdr_ns"].as_str().expect("a histogram");
        assert!(hdr.starts_with("HISTFAA"), "{hdr}");
    }
}

/// A reset empties the profile, and what Prometheus counts never goes back.
#[test]
fn a_reset_empties_the_profile_and_no_counter() {
    let server = Options::new(2).start();
    append_to_many_streams(&server, 10);
    let before = await_count(&server, "request", 20);
    let counted = |server: &Server| {
        let text = ask(server, "GET", "/metrics").expect(200).text().to_owned();
        let lines = text.lines().filter(|line| {
            line.starts_with("thalweg_request_seconds_count{")
                || line.starts_with("thalweg_request_stage_seconds_count{")
                    && line.contains("\"journal\"")
        });
        let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    assert_eq!(counted(&server), 40);
    for method in ["POST", "DELETE"] {
        let answer = ask(&server, method, LATENCY).expect(200);
        assert_eq!(answer.json()["reset"], true);
        let after = latency(&server);
        assert_eq!(count(&after["overall"], "request"), 0, "{after}");
        assert!(after["since"].as_str() >= before["since"].as_str());
        assert_eq!(counted(&server), 40);
    }
    append_to_many_streams(&server, 1);
    await_count(&server, "request", 2);
    assert_eq!(counted(&server), 44);
    ask(&server, "PUT", LATENCY)
        .expect(405)
        .expect_field("allow", "GET, HEAD, POST, DELETE");
}

/// Without detail the answer is small enough to be asked for every second.
#[test]
fn detail_is_as_asked() {
    let server = Options::new(1).start();
    append_to_many_streams(&server, 3);
    await_count(&server, "request", 6);
    let answer = ask(&server, "GET", &format!("{LATENCY}?hdr=false&steps=true")).expect(200);
    let answer = answer.json();
    let request = &answer["overall"]["request"];
    assert!(request.get("hdr_ns").is_none(), "{request}");
    let steps = request["steps_us"].as_array().expect("steps");
    let counted: u64 = steps.iter().filter_map(|step| step[1].as_u64()).sum();
    assert_eq!(counted, 6);
    assert!(answer["shards"][0]["request"].get("steps_us").is_none());
}

/// What `promtool check metrics` would say: every family has a help and a type before its first
/// sample and once, names end in their unit, counters in `_total`, no sample is there twice, and
/// histograms are whole.
#[test]
fn the_text_form_is_well_formed() {
    let server = Options::new(2).flag("durability", "os").start();
    append_to_many_streams(&server, 5);
    let answer = ask(&server, "GET", "/metrics").expect(200);
    let answer = answer.expect_field("content-type", "text/plain; version=0.0.4");
    let text = answer.text();
    assert!(text.ends_with('\n'));
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helps = BTreeSet::new();
    let mut samples: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a help has words");
            assert!(!words.is_empty() && helps.insert(name), "{line}");
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type has a name");
            assert!(types.insert(name, kind).is_none(), "{line}");
            assert!(helps.contains(name), "no help before {line}");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample has a value");
        let value: f64 = value
            .parse()
            .unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(sample, value).is_none(), "twice: {sample}");
        let name = sample.split('{').next().unwrap_or(sample);
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| types.get_key_value(name.strip_suffix(part)?))
            .or_else(|| types.get_key_value(name));
        let (family, kind) = family.unwrap_or_else(|| panic!("no type before {line}"));
        assert_eq!(*kind == "counter", family.ends_with("_total"), "{line}");
        let is_timed = family.ends_with("_seconds") && *kind != "gauge";
        assert_eq!(*kind == "histogram", is_timed, "{line}");
        let legal = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(
            family.starts_with("thalweg_") && family.chars().all(legal),
            "{line}"
        );
    }
    assert_eq!(types.len(), helps.len());
    // Nothing else is measured in seconds or bytes and hides it.
    for unit in ["_ms", "_us", "_ns", "_kib", "_mib"] {
        assert!(types.keys().all(|name| !name.contains(unit)), "{unit}");
    }

    let buckets: Vec<_> = samples
        .keys()
        .filter(|name| name.contains("_bucket{"))
        .collect();
    let whole = buckets.iter().filter(|name| name.contains("le=\"+Inf\""));
    for all in whole {
        let prefix = all.trim_end_matches("le=\"+Inf\"}");
        let mut steps: Vec<(f64, f64)> = samples
            .iter()
            .filter_map(|(name, &count)| {
                let bound = name.strip_prefix(prefix)?.strip_prefix("le=\"")?;
                Some((bound.trim_end_matches("\"}").parse().ok()?, count))
            })
            .collect();
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(
            steps.iter().map(|step| step.1).is_sorted(),
            "{prefix}: {steps:?}"
        );
        let rest = prefix.replacen("_bucket{", "_count{", 1);
        let count = samples[format!("{}}}", rest.trim_end_matches(',')).as_str()];
        assert_eq!(steps.last().map(|step| step.1), Some(count), "{prefix}");
    }
    let info = "thalweg_info{version=\"0.1.0\",durability=\"os\"}";
    assert_eq!(samples.get(info), Some(&1.0));
    let json = ask(&server, "GET", "/__ursula/metrics").json();
    assert_eq!(json["durability"], "os");
    assert_eq!(json["version"], "0.1.0");
}

/// Operations and bytes are counted where the page shows them; the operator's own are not.
#[test]
fn operations_and_bytes_are_counted() {
    let server = Options::new(1).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    stream.append(OCTETS, "0123456789");
    stream.append(OCTETS, "abc");
    stream.read_all();
    let shard = eventually("both appends are counted", || {
        let metrics = ask(&server, "GET", "/__ursula/metrics").json();
        let shard = metrics["shards"][0].clone();
        (shard["appends_total"] == 2 && shard["reads_total"].as_u64()? >= 1).then_some(shard)
    });
    assert_eq!(shard["append_bytes_total"], 13);
    // What a sweep publishes is a quarter of a second old at most; two are waited for.
    let published = || {
        thread::sleep(Duration::from_millis(600));
        let metrics = ask(&server, "GET", "/__ursula/metrics").json();
        metrics["shards"][0].clone()
    };
    let bytes = |shard: &Value| {
        let counts = ["received_bytes_total", "sent_bytes_total"];
        counts.map(|name| shard[name].as_u64().expect("a count"))
    };
    let settled = published();
    assert!(
        bytes(&settled).iter().all(|&count| count > 100),
        "{settled}"
    );
    assert!(settled["disk_free_bytes"].as_u64() > Some(0), "{settled}");
    assert_eq!(settled["disk_pressure"], 0);
    for _ in 0..5 {
        ask(&server, "GET", "/metrics").expect(200);
    }
    assert_eq!(bytes(&published()), bytes(&settled));
}

/// A request that takes longer than asked for leaves one line with its stages; by default none.
#[test]
fn slow_requests_are_logged_when_asked_for() {
    // Several megabytes of JSON take more than a millisecond to check and to write.
    let body = format!("[{}1]", "123456789,".repeat(600_000));
    let slow = |server: &Server| {
        let stream = Stream::create(server, Surface::Bucket, JSON);
        stream.append(JSON, &body);
        stream.path()
    };
    let server = Options::new(1).flag("slow-request-ms", 1).start();
    let path = slow(&server);
    let line = eventually("a line for it", || {
        let log = server.log();
        let of_it = |line: &&str| line.contains("thalweg::slow") && line.contains("POST");
        log.lines().find(of_it).map(str::to_owned)
    });
    for part in [
        "WARN",
        "surface=\"bucket\"",
        "status=204",
        "total_us=",
        "head_us=",
        "body_us=",
        "staging_us=",
        "journal_us=",
        "wake_us=",
        "write_us=",
        path.as_str(),
        &format!("body_bytes={}", body.len()),
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(!line.contains("123456789,1"), "{line}");

    let silent = Options::new(1).start();
    slow(&silent);
    await_count(&silent, "request", 2);
    assert!(!silent.log().contains("thalweg::slow"));
}

/// The page comes whole from here, and is told to ask nobody else.
#[test]
fn the_page_is_served_with_its_policy() {
    let server = Options::new(1).start();
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let answer = ask(&server, "GET", path).expect(200);
        assert!(
            answer.expect_header("content-type").starts_with(kind),
            "{path}"
        );
        let policy = answer.expect_header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        assert!(!answer.text().is_empty());
        ask(&server, "HEAD", path).expect(200).expect_body("");
        ask(&server, "POST", path).expect(405);
    }
    ask(&server, "GET", "/page.html").expect(404);
}

/// A client that asks now and then, as a monitor does, does not hold up a stop.
#[test]
fn a_stop_does_not_wait_for_an_idle_connection() {
    let server = Options::new(2).start();
    let mut monitor = Connection::try_open(server.admin_address()).expect("it listens");
    let live = Request::to(server.admin_address(), "GET", "/__ursula/live");
    let answer = monitor.exchange(&live).expect("an answer");
    assert_eq!(answer.status, 200);
    let log = server.stop();
    assert!(!log.contains("closing what did not end"), "{log}");
    assert!(monitor.exchange(&live).is_none());
}
