//! Mixed load with faults for as long as asked, everything read held against
//! what was written, memory and descriptors watched. On demand:
//! `THALWEG_SOAK_S=1800 THALWEG_SOAK_KILL_S=180 cargo test --release --test blackbox soak -- --ignored --nocapture`.
//!
//! The byte at a position of a stream is a function of the position, so a
//! reader that knows its offset can judge every byte. Writers are idempotent
//! producers: what a kill left unanswered they send again. Only injected
//! faults may cost anybody an answer.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{reset, try_narrow_socket};
use crate::common::eventually;
use crate::common::http::{Connection, Request, Response};
use crate::common::observe::{metric, open_files, rss_bytes};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, offset};

const WRITERS: usize = 8;
/// A stream is read in full, deleted and replaced at this size, so that memory can be flat.
const STREAM_BYTES: usize = 4 << 20;
const BODY_BYTES_MAX: usize = 2048;
/// Time a server may take to come back before a client calls it an error.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

#[test]
#[ignore = "runs for a minute, or as long as THALWEG_SOAK_S says"]
fn soak() {
    let time = Duration::from_secs(setting("THALWEG_SOAK_S", 60));
    let kill_every = Duration::from_secs(setting("THALWEG_SOAK_KILL_S", 20));
    // Its address must outlive its process.
    let first = Options::new(2).start();
    let address = first.address();
    let options = first.kill().flag("listen", address);
    let soak = Soak::new(address);
    let mut samples = Vec::new();
    let server = thread::scope(|scope| {
        let mut server = start(&options);
        for written in &soak.written {
            scope.spawn(|| soak.write(written));
            scope.spawn(|| soak.read(written));
        }
        scope.spawn(|| soak.harass());
        let started = Instant::now();
        let mut last_kill = started;
        while started.elapsed() < time && !soak.has_failed() {
            thread::sleep(Duration::from_secs(1));
            samples.push(Sample::take(&server));
            if last_kill.elapsed() >= kill_every {
                server = start(&server.kill());
                soak.kills.fetch_add(1, Ordering::Relaxed);
                last_kill = Instant::now();
            }
        }
        soak.stop.store(true, Ordering::Relaxed);
        server
    });
    soak.report(&samples);
    assert_eq!(*soak.fault.lock().expect("no holder panics"), None);
    assert_eq!(metric(&server, "panics_total"), 0);
    assert_eq!(metric(&server, "journal_failed"), 0);
    let (early, late) = samples.split_at(samples.len() / 2);
    let most = |samples: &[Sample]| {
        let rss = samples.iter().map(|sample| sample.rss_bytes).max();
        let files = samples.iter().map(|sample| sample.files).max();
        (rss.unwrap_or(0), files.unwrap_or(0))
    };
    let ((early_rss, early_files), (late_rss, late_files)) = (most(early), most(late));
    assert!(
        late_rss < early_rss * 3 / 2,
        "memory grows: {early_rss}, {late_rss}"
    );
    assert!(
        late_files < early_files * 3 / 2 + 64,
        "descriptors leak: {early_files}, {late_files}"
    );
}

/// Starts the server where the one before it was. The kernel takes the rings of a killed process
/// apart in its own time, and until then its port is taken.
fn start(options: &Options) -> Server {
    eventually("the port of the killed server is free", || {
        options.try_start().ok()
    })
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
    }
}

struct Sample {
    rss_bytes: u64,
    files: usize,
}

impl Sample {
    fn take(server: &Server) -> Self {
        Self {
            rss_bytes: rss_bytes(server),
            files: open_files(server),
        }
    }
}

/// The stream of one writer; replaced by the next generation when it is full.
struct Written {
    number: usize,
    generation: AtomicU64,
}

impl Written {
    fn path(&self, generation: u64) -> String {
        format!("/v1/stream/soak/w{}-{generation}", self.number)
    }
}

struct Soak {
    address: SocketAddr,
    written: Vec<Written>,
    stop: AtomicBool,
    kills: AtomicU64,
    appends: AtomicU64,
    retries: AtomicU64,
    bytes_read: AtomicU64,
    streams: AtomicU64,
    harassments: AtomicU64,
    /// The first thing that went wrong.
    fault: Mutex<Option<String>>,
}

impl Soak {
    fn new(address: SocketAddr) -> Self {
        let written = |number| Written {
            number,
            generation: AtomicU64::new(0),
        };
        Self {
            address,
            written: (0..WRITERS).map(written).collect(),
            stop: AtomicBool::new(false),
            kills: AtomicU64::new(0),
            appends: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            harassments: AtomicU64::new(0),
            fault: Mutex::new(None),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && !self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.fault.lock().expect("no holder panics").is_some()
    }

    fn fail(&self, what: String) {
        self.fault
            .lock()
            .expect("no holder panics")
            .get_or_insert(what);
    }

    /// Sends `request` until it is answered; `None` at the end of the soak.
    fn insist(&self, connection: &mut Option<Connection>, request: &Request) -> Option<Response> {
        let deadline = Instant::now() + OUTAGE_MAX;
        loop {
            if connection.is_none() {
                *connection = Connection::try_open(self.address);
            }
            let answer = connection
                .as_mut()
                .and_then(|connection| connection.exchange(request));
            match answer {
                // Going down or coming up.
                Some(answer) if answer.status != 503 => return Some(answer),
                _ => *connection = None,
            }
            if !self.goes_on() {
                return None;
            }
            if Instant::now() > deadline {
                self.fail(format!("no answer for {OUTAGE_MAX:?}"));
                return None;
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn write(&self, written: &Written) {
        let mut connection = None;
        while self.goes_on() {
            let generation = written.generation.load(Ordering::Relaxed);
            if self.fill(written, generation, &mut connection).is_none() {
                return;
            }
            self.streams.fetch_add(1, Ordering::Relaxed);
            written.generation.store(generation + 1, Ordering::Relaxed);
            let delete = Request::to(self.address, "DELETE", written.path(generation));
            match self.insist(&mut connection, &delete) {
                None => return,
                // Deleted already when the first answer was lost.
                Some(answer) if matches!(answer.status, 204 | 404 | 410) => {}
                Some(answer) => return self.fail(format!("delete: {answer}")),
            }
        }
    }

    /// Writes one stream full and reads it back.
    fn fill(
        &self,
        written: &Written,
        generation: u64,
        connection: &mut Option<Connection>,
    ) -> Option<()> {
        let path = written.path(generation);
        let create = Request::to(self.address, "PUT", &path).header("Content-Type", OCTETS);
        let answer = self.insist(connection, &create)?;
        if !matches!(answer.status, 200 | 201) {
            self.fail(format!("create: {answer}"));
            return None;
        }
        let (mut tail, mut sequence) = (0, 0);
        while tail < STREAM_BYTES {
            let len = 1 + (sequence * 131) % BODY_BYTES_MAX;
            let append = Request::to(self.address, "POST", &path)
                .header("Content-Type", OCTETS)
                .header("Producer-Id", "soak")
                .header("Producer-Epoch", 0)
                .header("Producer-Seq", sequence)
                .body(pattern(tail, len));
            let answer = self.insist(connection, &append)?;
            tail += len;
            // 204 for one that had applied before its answer was lost.
            let is_right = matches!(answer.status, 200 | 204)
                && answer
                    .header("stream-next-offset")
                    .is_none_or(|next| next == offset(tail));
            if !is_right {
                self.fail(format!("append {sequence}, to {tail}: {answer}"));
                return None;
            }
            sequence += 1;
            self.appends.fetch_add(1, Ordering::Relaxed);
        }
        let mut at = 0;
        while at < tail {
            let read = Request::to(self.address, "GET", format!("{path}?offset={}", offset(at)));
            let answer = self.insist(connection, &read)?;
            if answer.status != 200 || answer.body.is_empty() {
                self.fail(format!("read at {at} of {tail}: {answer}"));
                return None;
            }
            self.judge(&path, at, &answer.body);
            at += answer.body.len();
        }
        Some(())
    }

    /// Follows a writer by long-polls.
    fn read(&self, written: &Written) {
        let mut connection = None;
        let (mut generation, mut at) = (0, 0);
        while self.goes_on() {
            let path = written.path(generation);
            let query = format!("?offset={}&live=long-poll", offset(at));
            let poll = Request::to(self.address, "GET", format!("{path}{query}"));
            let Some(answer) = self.insist(&mut connection, &poll) else {
                return;
            };
            match answer.status {
                200 | 204 => {
                    self.judge(&path, at, &answer.body);
                    at += answer.body.len();
                }
                // Not created yet, or deleted.
                404 | 410 => {
                    let current = written.generation.load(Ordering::Relaxed);
                    if current != generation {
                        (generation, at) = (current, 0);
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                _ => return self.fail(format!("long-poll at {at}: {answer}")),
            }
        }
    }

    fn judge(&self, path: &str, at: usize, bytes: &[u8]) {
        if bytes != pattern(at, bytes.len()) {
            self.fail(format!("{path} has other bytes at {at} than were written"));
        }
        self.bytes_read
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    /// Resets and stalls, a crowd of a few dozen at a time.
    fn harass(&self) {
        let mut stalled: Vec<TcpStream> = Vec::new();
        let mut round = 0;
        while self.goes_on() {
            thread::sleep(Duration::from_millis(20));
            let written = &self.written[round % WRITERS];
            let path = written.path(written.generation.load(Ordering::Relaxed));
            let request = match round % 5 {
                0 => format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhal"),
                1 => format!("GET {path}?offset=-1 HTTP/1.1\r\nHost: x\r\n\r\n").repeat(20),
                2 => format!("GET {path}?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n\r\n"),
                3 => format!("GET {path}?offset=now&live=long-poll HTTP/1.1\r\nHost: x\r\n\r\n"),
                _ => format!("GET {path} HT"),
            };
            // The server may be down.
            let Ok(mut socket) = try_narrow_socket(self.address) else {
                continue;
            };
            let _ = socket.write_all(request.as_bytes());
            stalled.push(socket);
            if stalled.len() > 40 {
                reset(stalled.swap_remove(round % 40));
            }
            round += 1;
            self.harassments.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(&self, samples: &[Sample]) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        println!(
            "{} s, {} kills; {} appends in {} streams read back, {} retries, {} MiB read and judged, {} harassments",
            samples.len(),
            count(&self.kills),
            count(&self.appends),
            count(&self.streams),
            count(&self.retries),
            count(&self.bytes_read) >> 20,
            count(&self.harassments),
        );
        for tenth in samples.chunks(samples.len().div_ceil(10).max(1)) {
            let rss = tenth.iter().map(|sample| sample.rss_bytes).max();
            let files = tenth.iter().map(|sample| sample.files).max();
            println!(
                "  most in this tenth: {} MiB resident, {} descriptors",
                rss.unwrap_or(0) >> 20,
                files.unwrap_or(0)
            );
        }
    }
}

/// The bytes `[at, at + len)` of every stream.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len)
        .map(|position| {
            let mixed = (position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            mixed as u8
        })
        .collect()
}
