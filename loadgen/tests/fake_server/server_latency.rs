//! The server's own profile stands beside the client's figures, and is of the measurement alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use loadgen::report::{html, json, table};

use crate::run_line;
use crate::server::{Wrong, start};

/// An admin plane whose profile says what it is told, and the requests it got.
fn admin(body: &'static str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).expect("a request");
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let line = request.lines().next().unwrap_or_default().to_owned();
            log.lock().expect("no test panics with it").push(line);
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            // A client that has seen enough may be gone.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, asked)
}

const PROFILE: &str = r#"{"overall":{
    "journal":{"count":7,"mean_us":2.5,"p50_us":2,"p90_us":3,"p99_us":4,"p99_9_us":5,"max_us":6},
    "request":{"count":7,"mean_us":0.9,"p50_us":0.8,"p90_us":1,"p99_us":1.1,"p99_9_us":1.2,"max_us":1.3}}}"#;

#[test]
fn it_is_emptied_at_the_start_and_read_at_the_end() {
    let url = format!("http://{}", start(Wrong::Nothing));
    let (admin, asked) = admin(PROFILE);
    let report = run_line(&format!(
        "append --url {url} --streams 4 --connections 2 --duration 1s --warmup 100ms --server-latency http://{admin}"
    ));
    assert!(report.valid, "{:?}", report.invalid_because);
    let get = "GET /__ursula/latency?hdr=false HTTP/1.1";
    let expected = [get, "DELETE /__ursula/latency HTTP/1.1", get];
    assert_eq!(*asked.lock().expect("no test panics with it"), expected);
    let profile = report.server_latency.as_ref().expect("a profile");
    let request = profile.series("request").expect("requests");
    assert_eq!(
        (request.count, request.p50_us, request.p99_us),
        (7, 0.8, 1.1)
    );
    let (operation, p50, p99) = report.beyond_server_us().expect("one operation");
    let client = report.operation("append").expect("measured").latency_us;
    assert_eq!(operation, "append");
    assert_eq!((p50, p99), (client.p50 - 0.8, client.p99 - 1.1));
    for text in [table::summary(&report), html::page(&report)] {
        assert!(text.contains("journal"), "{text}");
        assert!(text.contains("both kernels'"), "{text}");
    }
    let directory = std::env::temp_dir();
    let path = directory.join(format!("loadgen-latency-{}.json", std::process::id()));
    json::write(&path, &report).expect("writable");
    let again = json::read(&path).expect("a report");
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(again.server_latency, report.server_latency);
}

#[test]
fn a_server_without_one_is_told_before_the_run() {
    let url = format!("http://{}", start(Wrong::Nothing));
    let (admin, _) = admin("{}");
    let line = format!("append --url {url} --server-latency http://{admin} --quiet");
    let words = ["loadgen"].into_iter().chain(line.split(' '));
    let cli = <loadgen::args::Cli as clap::Parser>::try_parse_from(words).expect("a command line");
    let loadgen::args::Command::Run(workload) = cli.command else {
        panic!("not a workload");
    };
    let refused = loadgen::plan::run(&workload, workload.args());
    let text = refused.expect_err("no profile").to_string();
    assert!(
        text.contains("--server-latency") && text.contains("no latency profile"),
        "{text}"
    );
}
