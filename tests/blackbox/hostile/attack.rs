//! A crowd of hostile connections of every kind, while a good client appends
//! at a fixed rate: no error for it, and its latency beside what it is without
//! them. On demand:
//! `cargo test --release --test blackbox attack_run -- --ignored --nocapture`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bystander, append_head, get, narrow_socket, reset};
use crate::common::observe::{metric, rss_bytes};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset};

const HOSTILE: usize = 5_000;
/// Time between two appends of the good client.
const PACE: Duration = Duration::from_millis(20);
/// Appends in a run of it.
const APPENDS: u32 = 1_000;
/// Those of them that meet the crowd's first bytes.
const ONSET: usize = 250;
/// The crowd does each one's next thing this often.
const ROUND: Duration = Duration::from_secs(1);

#[test]
#[ignore = "measures; opens more sockets than many machines allow"]
fn attack_run() {
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    let target = Target::new(&server);
    let alone = pace(&mut bystander);
    println!("alone:        {alone}");
    let (open, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let attacked = thread::scope(|scope| {
        scope.spawn(|| target.attack(&open, &stop));
        while !open.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        let attacked = pace(&mut bystander);
        for name in [
            "connections",
            "live_readers",
            "body_bytes",
            "unsent_bytes",
            "memory_bytes",
            "requests_total",
            "refusals_total",
            "head_timeouts_total",
            "body_timeouts_total",
            "write_timeouts_total",
            "shed_total",
            "broken_total",
        ] {
            println!("  {name}: {}", metric(&server, name));
        }
        println!("  rss_bytes: {}", rss_bytes(&server));
        stop.store(true, Ordering::Relaxed);
        attacked
    });
    println!("under attack: {attacked}");
    let ratio = attacked.p99.as_secs_f64() / alone.p99.as_secs_f64();
    println!("p99 under attack / alone: {ratio:.2}");
    assert_eq!(metric(&server, "panics_total"), 0);
}

/// Latencies of a run, from when each append was due.
struct Latencies {
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, max } = self;
        write!(f, "p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?}")
    }
}

impl Latencies {
    fn of(sorted: &[Duration]) -> Self {
        let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
        Self {
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

fn pace(bystander: &mut Bystander<'_>) -> Latencies {
    let started = Instant::now();
    let mut latencies: Vec<Duration> = (0..APPENDS)
        .map(|number| {
            let due = started + PACE * number;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            bystander.expect_append();
            due.elapsed()
        })
        .collect();
    // The first quarter is the onset: the crowd's first bytes all come in it.
    latencies[ONSET..].sort_unstable();
    let settled = Latencies::of(&latencies[ONSET..]);
    println!("  without the onset: {settled}");
    latencies.sort_unstable();
    Latencies::of(&latencies)
}

/// What the crowd asks for.
struct Target<'a> {
    server: &'a Server,
    small: Stream<'a>,
    large: Stream<'a>,
    flood: Vec<u8>,
}

/// What a hostile connection does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Idle,
    SlowHead,
    SlowBody,
    EndlessChunks,
    UnreadAnswers,
    UnreadEvents,
    Flood,
    Resets,
}

const KINDS: [Kind; 8] = [
    Kind::Idle,
    Kind::SlowHead,
    Kind::SlowBody,
    Kind::EndlessChunks,
    Kind::UnreadAnswers,
    Kind::UnreadEvents,
    Kind::Flood,
    Kind::Resets,
];

impl<'a> Target<'a> {
    fn new(server: &'a Server) -> Self {
        let small = Stream::create(server, Surface::Base, OCTETS);
        let large = Stream::with_body(server, Surface::Base, OCTETS, vec![b'x'; 8 << 20]);
        let head = get(&small, "").replace("GET", "HEAD");
        Self {
            server,
            small,
            large,
            flood: head.repeat((64 << 10) / head.len()).into_bytes(),
        }
    }

    /// Keeps [`HOSTILE`] connections at it until told to stop; whom the server closes comes back.
    fn attack(&self, open: &AtomicBool, stop: &AtomicBool) {
        let mut crowd: Vec<TcpStream> = (0..HOSTILE).map(|index| self.open(index)).collect();
        open.store(true, Ordering::Relaxed);
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            for (index, socket) in crowd.iter_mut().enumerate() {
                if !self.go_on(index, socket) {
                    let old = std::mem::replace(socket, self.open(index));
                    reset(old);
                }
                // Spread over the round: a burst would measure the crowd, not the server.
                let due = started + ROUND.mul_f64(index as f64 / HOSTILE as f64);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
    }

    fn open(&self, index: usize) -> TcpStream {
        let mut socket = narrow_socket(self.server.address());
        let first = match KINDS[index % KINDS.len()] {
            Kind::Idle => get(&self.small, ""),
            Kind::SlowHead | Kind::Flood => String::new(),
            Kind::SlowBody => append_head(&self.small, "Content-Length: 100000\r\n"),
            Kind::EndlessChunks => append_head(&self.small, "Transfer-Encoding: chunked\r\n"),
            Kind::UnreadAnswers => get(&self.large, "?offset=-1").repeat(10),
            Kind::UnreadEvents => get(&self.large, &format!("?offset={}&live=sse", offset(index))),
            Kind::Resets => get(&self.small, "?offset=-1&live=long-poll"),
        };
        // The server may close at once; the next round finds out.
        let _ = socket.write_all(first.as_bytes());
        socket.set_nonblocking(true).expect("the socket is open");
        socket
    }

    /// One connection's next thing; false when it is to be opened anew.
    fn go_on(&self, index: usize, socket: &mut TcpStream) -> bool {
        let written = match KINDS[index % KINDS.len()] {
            Kind::SlowHead => socket.write(b"G"),
            Kind::SlowBody => socket.write(b"x"),
            Kind::EndlessChunks => socket.write(b"1\r\nx\r\n"),
            Kind::Flood => socket.write(&self.flood),
            Kind::Resets => return false,
            Kind::UnreadAnswers | Kind::UnreadEvents => return !is_broken(socket),
            Kind::Idle => Ok(1),
        };
        let is_writable = match written {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        match KINDS[index % KINDS.len()] {
            Kind::Flood => is_writable,
            _ => is_writable && !is_closed(socket),
        }
    }
}

/// Whether the server has ended the connection; reads its answer on the way.
fn is_closed(socket: &mut TcpStream) -> bool {
    match socket.read(&mut [0; 4096]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Whether the connection was reset; reads nothing.
fn is_broken(socket: &TcpStream) -> bool {
    !matches!(socket.take_error(), Ok(None))
}
