//! Runs the official suite of the base protocol, `@durable-streams/server-conformance-tests`,
//! against the real binary, at one shard and at four.
//!
//! The suite and what it needs are pinned by the lock file in `tests/conformance`; a checkout
//! without them installs them with `npm ci`. Every test must pass, except those that
//! `tests/conformance/expected-failures.txt` names, and those must fail. Subscriptions are later
//! work and stay switched off.

#[path = "common/server.rs"]
#[expect(dead_code, reason = "this test only starts servers")]
mod server;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use server::Options;

/// The group the suite skips by itself when subscriptions are switched off.
const SKIPPED_GROUP: &str = "Reserved subscription APIs ";
/// The server's long-poll timeout while the suite runs, in milliseconds.
const LONG_POLL_MS: u64 = 2_000;
/// Fewer results than this mean that the suite did not run as a whole.
const TESTS_MIN: usize = 332;

#[test]
fn official_suite_passes_at_1_shard() {
    run_suite(1);
}

#[test]
fn official_suite_passes_at_4_shards() {
    run_suite(4);
}

fn run_suite(shards: usize) {
    // The suite measures lifetimes and time-outs: one run at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    install(&folder);
    let server = Options::new(shards)
        .flag("long-poll-timeout", format!("{LONG_POLL_MS}ms"))
        .start();
    let results = vitest(&folder, &format!("http://{}", server.address()), shards);

    let expected = ExpectedFailures::read(&folder.join("expected-failures.txt"));
    let wrong = expected.compare(&results);
    let passed = results.iter().filter(|result| result.passed).count();
    println!(
        "official suite at --shards {shards}: {passed} of {} passed",
        results.len()
    );
    assert!(
        results.len() >= TESTS_MIN,
        "only {} tests ran, the suite has at least {TESTS_MIN}",
        results.len()
    );
    assert!(
        wrong.is_empty(),
        "{} at --shards {shards}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// `npm ci`, unless what the lock file names is there.
fn install(folder: &Path) {
    if folder.join("node_modules/.package-lock.json").exists() {
        return;
    }
    let status = Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
        .current_dir(folder)
        .status()
        .expect("Node.js with npm is installed: the official suite runs on it");
    assert!(
        status.success(),
        "npm ci in {} failed: {status}",
        folder.display()
    );
}

/// One test of the suite.
struct Outcome {
    name: String,
    passed: bool,
    why: String,
}

/// Runs the suite and reads its report. Vitest's own verdict is ignored: the
/// list of expected failures decides.
fn vitest(folder: &Path, url: &str, shards: usize) -> Vec<Outcome> {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let report = out.join(format!("conformance-{shards}.json"));
    let log = out.join(format!("conformance-{shards}.log"));
    let _ = fs::remove_file(&report);
    let log_file = File::create(&log).expect("Cargo's temporary directory is writable");
    Command::new("node")
        .args(["node_modules/vitest/vitest.mjs", "run", "--reporter=json"])
        .arg(format!("--outputFile={}", report.display()))
        .current_dir(folder)
        .env("CONFORMANCE_URL", url)
        .env("CONFORMANCE_LONG_POLL_MS", LONG_POLL_MS.to_string())
        .stdout(log_file.try_clone().expect("an open file can be cloned"))
        .stderr(log_file)
        .status()
        .expect("Node.js is installed");
    let text = fs::read_to_string(&report)
        .unwrap_or_else(|_| panic!("vitest wrote no report, see {}", log.display()));
    let report: Value = serde_json::from_str(&text).expect("vitest's report is JSON");
    let tests = report["testResults"].as_array().into_iter().flatten();
    tests
        .flat_map(|file| file["assertionResults"].as_array().into_iter().flatten())
        .map(|test| Outcome {
            name: test["fullName"]
                .as_str()
                .unwrap_or_default()
                .trim()
                .to_owned(),
            passed: test["status"] == "passed",
            why: test["failureMessages"][0]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        })
        .filter(|test| !test.name.starts_with(SKIPPED_GROUP))
        .collect()
}

/// The lines of `expected-failures.txt`.
struct ExpectedFailures(Vec<String>);

impl ExpectedFailures {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("the list of expected failures is there");
        let lines = text.lines().map(str::trim);
        Self(
            lines
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(str::to_owned)
                .collect(),
        )
    }

    /// Everything that is not as the list says, one line each.
    fn compare(&self, results: &[Outcome]) -> Vec<String> {
        let mut wrong = Vec::new();
        for result in results {
            let listed = self.0.contains(&result.name);
            match (result.passed, listed) {
                (true, false) | (false, true) => {}
                (true, true) => wrong.push(format!("listed, but passes: {}", result.name)),
                (false, false) => {
                    let why = result.why.lines().next().unwrap_or("no reason given");
                    wrong.push(format!("fails: {}: {why}", result.name));
                }
            }
        }
        let names: BTreeSet<&str> = results.iter().map(|result| result.name.as_str()).collect();
        let unknown = self.0.iter().filter(|line| !names.contains(line.as_str()));
        wrong.extend(unknown.map(|line| format!("listed, but not in the suite: {line}")));
        wrong
    }
}
