//! Real clients against the real binary, at one shard and at four: the official JavaScript and
//! Python clients, and headless Chromium with pages of another origin (issue 6) and with the page of
//! the admin plane (issue 5).
//!
//! The scripts in `tests/clients` do the work and print a report; here the server is started, what
//! the scripts need is installed, and the report is judged. The server ends SSE answers after a
//! second and long-polls too, so that every live reader reconnects. Packages are pinned by the
//! lock files there and installed into `node_modules` and Cargo's temporary directory when they
//! are missing. Where they, Node.js, Python or Chromium cannot be had, the test says on stderr that
//! it was skipped and why; with `CI=true` in the environment it fails instead.

#[path = "common/server.rs"]
#[expect(dead_code, reason = "this test only starts servers")]
mod server;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use server::{Options, Server};

/// Bound on one script: its checks run side by side, each with a deadline of two minutes.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(240);

/// The checks of `javascript.mjs`. Named here so that none can go missing unnoticed.
const JAVASCRIPT_CHECKS: &[&str] = &[
    "catch_up_binary",
    "catch_up_text_base",
    "catch_up_text_bucket",
    "close",
    "create_and_head",
    "fork",
    "json_mode",
    "long_poll",
    "producer_exactly_once_bytes",
    "producer_exactly_once_json",
    "producer_fencing",
    "remove",
    "sse_binary",
    "sse_json",
    "sse_text_base",
    "sse_text_bucket",
    "stream_seq",
    "writable_stream",
];

/// The checks of `python_client.py`.
const PYTHON_CHECKS: &[&str] = &[
    "catch_up_binary",
    "catch_up_text_base",
    "catch_up_text_bucket",
    "close_by_header",
    "create_and_head",
    "fork_by_header",
    "json_mode",
    "long_poll",
    "producer_exactly_once",
    "remove",
    "sse_json",
    "sse_text_base",
    "sse_text_bucket",
    "stream_seq",
];

/// The checks of `browser.mjs`.
const BROWSER_CHECKS: &[&str] = &[
    "event_source_by_itself",
    "event_source_json_base",
    "event_source_json_bucket",
    "event_source_text_base",
    "event_source_text_bucket",
    "fetch_after_a_cached_load",
    "fetch_base",
    "fetch_bucket",
    "fetch_needs_permission",
    "official_client",
    "stored_html_base",
    "stored_html_bucket",
    "stored_html_control",
    "stored_text_is_no_script",
];

/// The checks of `admin_page.mjs`.
const ADMIN_PAGE_CHECKS: &[&str] = &[
    "phone_dark",
    "phone_light",
    "stays_its_own",
    "wide_dark",
    "wide_light",
];

/// Checks that fail for a reason that is written down, and must fail until it is gone.
///
/// `fetch_after_a_cached_load`: `Access-Control-Expose-Headers` is sent only when the request has
/// an `Origin`, without `Vary: Origin`, so a cache may hand a page an answer whose
/// `Stream-Next-Offset` it cannot read.
const KNOWN_FAILURES: &[&str] = &[];

/// What a check must have reached, by the number it reports.
const FACTS_MIN: &[(&str, u64)] = &[
    ("answers_lost", 4),
    ("connections", 3),
    ("preflights", 3),
    ("requests_lost", 2),
    ("timeouts", 1),
];

#[test]
fn javascript_client_at_1_shard() {
    javascript_client(1);
}

#[test]
fn javascript_client_at_4_shards() {
    javascript_client(4);
}

#[test]
fn python_client_at_1_shard() {
    python_client(1);
}

#[test]
fn python_client_at_4_shards() {
    python_client(4);
}

#[test]
fn browser_at_1_shard() {
    browser(1);
}

#[test]
fn browser_at_4_shards() {
    browser(4);
}

fn javascript_client(shards: usize) {
    let Some(()) = available("the JavaScript client", node_packages()) else {
        return;
    };
    let server = start(shards);
    let mut script = Command::new("node");
    script.arg("javascript.mjs").arg(url(server.address()));
    run(script, &format!("javascript-{shards}"), JAVASCRIPT_CHECKS);
}

fn python_client(shards: usize) {
    let ready = node_packages().and_then(|()| python_packages());
    let Some(python) = available("the Python client", ready) else {
        return;
    };
    let server = start(shards);
    let mut script = Command::new(python);
    script.arg("python_client.py").arg(url(server.address()));
    run(script, &format!("python-{shards}"), PYTHON_CHECKS);
}

fn browser(shards: usize) {
    let ready = node_packages().and_then(|()| chromium());
    let Some(chromium) = available("the browser", ready) else {
        return;
    };
    let server = start(shards);
    let mut script = Command::new("node");
    script
        .arg("browser.mjs")
        .arg(url(server.address()))
        .arg(url(server.admin_address()))
        .arg(chromium);
    run(script, &format!("browser-{shards}"), BROWSER_CHECKS);
}

#[test]
fn admin_page() {
    let ready = node_packages().and_then(|()| chromium());
    let Some(chromium) = available("the admin page", ready) else {
        return;
    };
    let server = Options::new(2).start();
    let mut script = Command::new("node");
    script
        .arg("admin_page.mjs")
        .arg(url(server.address()))
        .arg(url(server.admin_address()))
        .arg(chromium)
        .arg(env!("CARGO_TARGET_TMPDIR"));
    run(script, "admin-page", ADMIN_PAGE_CHECKS);
}

fn start(shards: usize) -> Server {
    Options::new(shards)
        .flag("sse-duration", "1s")
        .flag("long-poll-timeout", "1s")
        .start()
}

fn url(address: std::net::SocketAddr) -> String {
    format!("http://{address}")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

// --- Running and judging ---------------------------------------------------------------------

/// Runs a script in the folder and judges its report, which must hold exactly `expected`.
#[track_caller]
fn run(mut script: Command, name: &str, expected: &[&str]) {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let report = out.join(format!("clients-{name}.json"));
    let log = out.join(format!("clients-{name}.log"));
    let mut child = script
        .current_dir(folder())
        .stdin(Stdio::null())
        .stdout(File::create(&report).expect("Cargo's temporary directory is writable"))
        .stderr(File::create(&log).expect("Cargo's temporary directory is writable"))
        .spawn()
        .expect("the interpreter was found before");
    let deadline = Instant::now() + SCRIPT_PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child can be waited for") {
            break status;
        }
        if Instant::now() >= deadline {
            // A browser whose driver is gone ends by itself.
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name} ran for {SCRIPT_PATIENCE:?}\n{}", text(&log));
        }
        thread::sleep(Duration::from_millis(20));
    };
    let report: Value = serde_json::from_str(&text(&report))
        .unwrap_or_else(|error| panic!("{name}: no report ({error})\n{}", text(&log)));
    let checks = report["checks"].as_array().expect("a report lists checks");

    let found: BTreeSet<&str> = checks.iter().map(name_of).collect();
    let wanted: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(found, wanted, "the checks of {name}");
    let wrong: Vec<String> = checks.iter().filter_map(complaint).collect();
    for check in checks {
        println!(
            "{name}: {} {} ms {}",
            name_of(check),
            check["ms"],
            check["facts"]
        );
    }
    assert!(
        wrong.is_empty(),
        "{} of {} in {name}:\n{}\n{}",
        wrong.len(),
        checks.len(),
        wrong.join("\n"),
        text(&log)
    );
    assert!(status.success(), "{name}: {status}\n{}", text(&log));
}

/// What is wrong with a check, if anything.
fn complaint(check: &Value) -> Option<String> {
    let name = name_of(check);
    let known = KNOWN_FAILURES.contains(&name);
    match (check["ok"].as_bool() == Some(true), known) {
        (true, true) => return Some(format!("a known failure, but passes: {name}")),
        (false, true) => return None,
        (false, false) => {
            let why = check["why"].as_str().unwrap_or("no reason given");
            return Some(format!("fails: {name}: {why}"));
        }
        (true, false) => {}
    }
    FACTS_MIN.iter().find_map(|&(fact, min)| {
        let value = check["facts"].get(fact)?.as_u64();
        (value < Some(min)).then(|| format!("{name}: {fact} is {value:?}, less than {min}"))
    })
}

fn name_of(check: &Value) -> &str {
    check["name"].as_str().expect("a check has a name")
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

// --- What the scripts need -------------------------------------------------------------------

/// What was made ready, or a skip that is said aloud; in CI, a failure.
#[track_caller]
fn available<T>(what: &str, ready: Result<T, String>) -> Option<T> {
    match ready {
        Ok(ready) => Some(ready),
        Err(why) => {
            let in_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!in_ci, "{what} cannot be tested: {why}");
            // Not eprintln!, which the test harness keeps to itself when a test passes.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {why}");
            None
        }
    }
}

/// Node.js, and the packages of `package-lock.json` in `node_modules`.
fn node_packages() -> Result<(), String> {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    READY
        .get_or_init(|| {
            let folder = folder();
            succeed(Command::new("node").arg("--version"), "node --version")?;
            install(
                &folder.join("package-lock.json"),
                &folder.join("node_modules/.installed-for"),
                || {
                    let mut npm = Command::new("npm");
                    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
                    succeed(npm.current_dir(&folder), "npm ci in tests/clients")
                },
            )
        })
        .clone()
}

/// A Python with the packages of `requirements.txt`, in an environment of its own.
fn python_packages() -> Result<PathBuf, String> {
    static READY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    READY
        .get_or_init(|| {
            let requirements = folder().join("requirements.txt");
            let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-venv");
            let python = venv.join("bin/python");
            install(&requirements, &venv.join("installed-for"), || {
                let mut create = Command::new("python3");
                create.args(["-m", "venv", "--clear"]).arg(&venv);
                succeed(&mut create, "python3 -m venv")?;
                let mut pip = Command::new(&python);
                pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
                    .args(["--disable-pip-version-check", "--require-hashes", "-r"])
                    .arg(&requirements);
                succeed(&mut pip, "pip install of tests/clients/requirements.txt")
            })?;
            Ok(python)
        })
        .clone()
}

/// Chromium, which the tests do not install.
fn chromium() -> Result<PathBuf, String> {
    let candidates = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin")])
        .flat_map(|folder| candidates.map(|name| folder.join(name)))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| "no Chromium on this machine (Debian: apt-get install chromium)".to_owned())
}

/// Runs `install` unless `stamp` says that it was run for `lock` as it is now.
fn install(
    lock: &Path,
    stamp: &Path,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let wanted = fs::read(lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    if fs::read(stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    install()?;
    fs::write(stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Runs `command`; what it said is the reason when it does not succeed.
fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{what}: {}\n{}", output.status, said.trim()))
}
