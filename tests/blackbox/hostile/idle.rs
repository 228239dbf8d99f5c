//! What connections and readers cost that ask for nothing, on demand:
//! `cargo test --release --test blackbox idle_cost -- --ignored --nocapture`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::get;
use crate::common::observe::{await_metric, cpu_time, rss_bytes};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface};

const CONNECTIONS: usize = 10_000;
const READERS: usize = 5_000;
/// How long CPU time is watched.
const WATCH: Duration = Duration::from_secs(10);

/// Goals: 4 KiB for a connection, 1 KiB more for a reader of events, 1 % of a core for all.
#[test]
#[ignore = "measures; opens more sockets than many machines allow"]
fn idle_cost() {
    measure("connection", CONNECTIONS, "HEAD", "");
    measure("reader of events", READERS, "GET", "?offset=now&live=sse");
}

/// Opens `count` connections that have made one request and prints what each costs.
fn measure(kind: &str, count: usize, method: &str, query: &str) {
    let server = &Options::new(1)
        .flag("idle-timeout", "600s")
        .flag("sse-duration", "600s")
        .start();
    let stream = Stream::create(server, Surface::Base, OCTETS);
    let request = get(&stream, query).replace("GET", method);
    let request = request.as_bytes();
    let cpu_alone = watch_cpu(server);
    let before = rss_bytes(server);
    let open: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut socket = TcpStream::connect(server.address()).expect("the server listens");
            socket
                .write_all(request)
                .expect("the server takes a request");
            let read = socket.read(&mut [0; 4096]).expect("the server answers");
            assert!(read > 0, "the server answers");
            socket
        })
        .collect();
    await_metric(server, "connections", |open| open >= count as u64);
    let bytes = rss_bytes(server).saturating_sub(before) / count as u64;
    let cpu = watch_cpu(server);
    println!(
        "{count} idle: {bytes} B for each {kind}; {cpu:.1} % of a core for all ({cpu_alone:.1} % without any)"
    );
    drop(open);
    await_metric(server, "connections", |open| open < 10);
}

/// Share of a core that the server uses, in percent.
fn watch_cpu(server: &Server) -> f64 {
    let before = cpu_time(server);
    thread::sleep(WATCH);
    let cpu = cpu_time(server) - before;
    100.0 * cpu.as_secs_f64() / WATCH.as_secs_f64()
}
