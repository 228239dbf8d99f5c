//! SIGKILL under load, again and again: nothing acknowledged is lost, doubled
//! or moved, and nothing a reader was shown goes away (issue 2; Design, "The
//! life of an append").
//!
//! Every cycle runs writers, readers and a thread that creates, closes and
//! deletes streams, kills the server at a random moment, often kills the next
//! one while it starts, and then holds what the last one recovered against
//! what was acknowledged. A request without an answer may or may not have
//! applied; everything else is decided.
//!
//! `THALWEG_CRASH_CYCLES` sets the number of cycles (20), `THALWEG_CRASH_SEED`
//! repeats a run's choices; the seed is printed.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use ursula_headers::ErrorCode;

use crate::common::disk::inspect;
use crate::common::http::{Connection, Request};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, TEXT, unique};

/// Streams with two plain writers, and with one idempotent producer, each.
const STREAMS_OF_EACH_KIND: usize = 6;
/// Writers of a stream with plain ones.
const PLAIN_WRITERS: usize = 2;
/// The streams are replaced after this many cycles, so that checking them stays cheap.
const CYCLES_PER_GENERATION: usize = 25;

#[test]
fn acknowledged_writes_survive_kills_at_1_shard() {
    run(1);
}

#[test]
fn acknowledged_writes_survive_kills_at_4_shards() {
    run(4);
}

fn run(shards: usize) {
    let cycles = setting("THALWEG_CRASH_CYCLES").unwrap_or(20);
    let seed = setting("THALWEG_CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("{cycles} cycles at --shards {shards}, THALWEG_CRASH_SEED={seed}");
    let mut random = Random(seed);
    // Small journal files, so that they roll; they must hold the largest body.
    let options = Options::new(shards)
        .flag("request-bytes-max", 64 << 10)
        .flag("journal-file-bytes", 2 << 20)
        // And small checkpoints and segments, so that a kill finds every step of them.
        .flag("checkpoint-bytes", 64 << 10)
        .flag("segment-bytes", 2 << 20)
        .flag("memory-bytes-max", 2 << 20);
    let mut server = options.start();
    let mut generation = Generation::create(&server);
    for cycle in 0..cycles {
        if cycle > 0 && cycle % CYCLES_PER_GENERATION as u64 == 0 {
            generation.delete(&server);
            generation = Generation::create(&server);
            println!("{cycle} cycles done at --shards {shards}");
        }
        let load = Duration::from_millis(random.below(300));
        server = generation.load_until_killed(server, load, &mut random);
        generation.check(&server);
    }
    let options = server.kill();
    let (verified, report) = inspect(options.data_dir());
    assert!(verified, "what the last kill left: {report:#}");
    let writes = generation.acknowledged();
    println!("{writes} acknowledged writes in the last generation of streams");
    assert!(writes > 0, "no write was acknowledged: nothing was tested");
}

/// A number from the environment.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
    )
}

/// Splitmix64: choices that a seed repeats.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The streams of some cycles and all that was said about them.
struct Generation {
    written: Vec<Written>,
    churn: Vec<Churned>,
}

impl Generation {
    fn create(server: &Server) -> Self {
        let written = (0..2 * STREAMS_OF_EACH_KIND)
            .map(|index| Written::create(server, index % 2 == 1))
            .collect();
        Self {
            written,
            churn: Vec::new(),
        }
    }

    /// Runs the load, kills the server after `time`, and gives the next one.
    fn load_until_killed(&mut self, server: Server, time: Duration, random: &mut Random) -> Server {
        let address = server.address();
        let options = thread::scope(|scope| {
            for stream in &mut self.written {
                stream.spawn_load(scope, address);
            }
            let churn = scope.spawn(move || churn_until_killed(address));
            thread::sleep(time);
            let options = server.kill();
            self.churn
                .extend(churn.join().expect("churning does not panic"));
            options
        });
        for _ in 0..random.below(3) {
            let starting = options.spawn();
            thread::sleep(Duration::from_millis(random.below(120)));
            starting.kill();
        }
        options.start()
    }

    fn check(&mut self, server: &Server) {
        for stream in &mut self.written {
            stream.check(server);
        }
        for stream in &mut self.churn {
            stream.check(server);
        }
    }

    fn acknowledged(&self) -> usize {
        let writers = self.written.iter().flat_map(|stream| &stream.writers);
        writers.map(|writer| writer.tails.len()).sum()
    }

    /// Deletes its streams: they would fill the server's memory in some hundred cycles.
    fn delete(&self, server: &Server) {
        let left = self.churn.iter();
        let left = left.filter(|stream| stream.exists());
        let written = self.written.iter().map(|stream| &stream.path);
        for path in written.chain(left.map(|stream| &stream.path)) {
            Request::new(server, "DELETE", path).send().expect(204);
        }
    }
}

/// A stream of lines `writer number`, and one reader of it.
struct Written {
    path: String,
    producer: bool,
    writers: Vec<Writer>,
    /// The bytes from the start that a reader was shown.
    shown: Vec<u8>,
}

/// One writer of numbered lines, one after the other.
#[derive(Default)]
struct Writer {
    /// The tail each acknowledged line ended at.
    tails: Vec<String>,
    /// The line after those was sent, and no answer came.
    in_doubt: bool,
}

impl Written {
    fn create(server: &Server, producer: bool) -> Self {
        let path = format!("/crash/{}", unique("s"));
        Request::new(server, "PUT", &path)
            .header("Content-Type", TEXT)
            .send()
            .expect(201);
        let writers = if producer { 1 } else { PLAIN_WRITERS };
        Self {
            path,
            producer,
            writers: (0..writers).map(|_| Writer::default()).collect(),
            shown: Vec::new(),
        }
    }

    fn spawn_load<'scope>(
        &'scope mut self,
        scope: &'scope thread::Scope<'scope, '_>,
        address: SocketAddr,
    ) {
        let Self {
            path,
            producer,
            writers,
            shown,
        } = self;
        for (index, writer) in writers.iter_mut().enumerate() {
            let (path, producer) = (&*path, *producer);
            scope.spawn(move || writer.write_until_killed(address, path, index, producer));
        }
        let path = &*path;
        scope.spawn(move || read_until_killed(address, path, shown));
    }

    fn check(&mut self, server: &Server) {
        let answer = Request::new(server, "GET", &self.path).send().expect(200);
        assert_eq!(
            answer.header("stream-up-to-date"),
            Some("true"),
            "more than one answer holds"
        );
        let text = answer.text();
        assert!(
            answer.body.starts_with(&self.shown),
            "{}: a reader was shown {} bytes, the stream now has {}",
            self.path,
            self.shown.len(),
            answer.body.len()
        );
        let head = Request::new(server, "HEAD", &self.path).send().expect(200);
        assert_eq!(head.next_offset(), answer.next_offset());
        assert_eq!(head.next_offset(), format!("{:020}", text.len()));
        for (index, writer) in self.writers.iter_mut().enumerate() {
            writer.check(&self.path, index, text);
        }
        if self.producer {
            self.writers[0].check_repeat(server, &self.path);
        }
    }
}

/// The line `number` of writer `index`.
fn line(index: usize, number: usize) -> String {
    format!("{index} {number:08}\n")
}

/// A request that appends the line; the producer's sequence is the number.
fn append(address: SocketAddr, path: &str, index: usize, number: usize, producer: bool) -> Request {
    let request = Request::to(address, "POST", path).header("Content-Type", TEXT);
    let request = request.body(line(index, number));
    if !producer {
        return request;
    }
    request
        .header("Producer-Id", "crash")
        .header("Producer-Epoch", "0")
        .header("Producer-Seq", number)
}

impl Writer {
    fn write_until_killed(
        &mut self,
        address: SocketAddr,
        path: &str,
        index: usize,
        producer: bool,
    ) {
        let Some(mut connection) = Connection::try_open(address) else {
            return;
        };
        loop {
            let number = self.tails.len();
            // A repeat of what is in doubt: a producer learns what became of it. `check` has
            // decided that for a plain writer.
            let request = append(address, path, index, number, producer);
            self.in_doubt = true;
            let Some(answer) = connection.exchange(&request) else {
                return;
            };
            let expected = if producer { 200 } else { 204 };
            self.tails.push(answer.expect(expected).next_offset());
            self.in_doubt = false;
        }
    }

    /// Every acknowledged line is there once, in order, where the answer said; one more may be.
    fn check(&mut self, path: &str, index: usize, text: &str) {
        let mut number = 0;
        let mut end = 0;
        for found in text.split_inclusive('\n') {
            end += found.len();
            if !found.starts_with(&format!("{index} ")) {
                continue;
            }
            assert_eq!(
                found,
                line(index, number),
                "{path}, writer {index}: lost, doubled or moved"
            );
            let tail = format!("{end:020}");
            match self.tails.get(number) {
                Some(acknowledged) => assert_eq!(*acknowledged, tail, "{path}: another offset"),
                None => {
                    assert!(self.in_doubt, "{path}: a line nobody sent: {found:?}");
                    self.tails.push(tail);
                    self.in_doubt = false;
                }
            }
            number += 1;
        }
        assert_eq!(
            number,
            self.tails.len(),
            "{path}, writer {index}: acknowledged lines are gone"
        );
        self.in_doubt = false;
    }

    /// The producer's last write is recognised, and the next one expected.
    fn check_repeat(&mut self, server: &Server, path: &str) {
        let Some(last) = self.tails.len().checked_sub(1) else {
            return;
        };
        let address = server.address();
        let repeat = append(address, path, 0, last, true).send().expect(204);
        assert_eq!(
            repeat.header("stream-next-offset"),
            Some(self.tails[last].as_str()),
            "{repeat}"
        );
        let gap = append(address, path, 0, last + 2, true).send();
        let gap = gap.expect_error(409, ErrorCode::ProducerSeqConflict);
        assert_eq!(
            gap.expect_header("producer-expected-seq"),
            (last + 1).to_string()
        );
    }
}

/// Follows the stream by long-poll and keeps what it is shown.
fn read_until_killed(address: SocketAddr, path: &str, shown: &mut Vec<u8>) {
    let Some(mut connection) = Connection::try_open(address) else {
        return;
    };
    loop {
        let target = format!(
            "{path}?offset={}&live=long-poll&timeout_ms=1000",
            shown.len()
        );
        let Some(answer) = connection.exchange(&Request::to(address, "GET", target)) else {
            return;
        };
        assert!(matches!(answer.status, 200 | 204), "{answer}");
        shown.extend_from_slice(&answer.body);
    }
}

/// How far a short-lived stream came: each step is one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Absent,
    Created,
    Appended,
    Closed,
    Deleted,
}

/// A stream that is created, appended to, closed and deleted, one request after the other.
struct Churned {
    path: String,
    acknowledged: Step,
    in_doubt: Option<Step>,
}

/// Churns until the server is gone. Every other stream stops half-way and stays.
fn churn_until_killed(address: SocketAddr) -> Vec<Churned> {
    let mut churned = Vec::new();
    let Some(mut connection) = Connection::try_open(address) else {
        return churned;
    };
    loop {
        let last = [Step::Deleted, Step::Appended, Step::Deleted, Step::Closed][churned.len() % 4];
        let path = format!("/crash/{}", unique("churn"));
        let mut stream = Churned {
            path,
            acknowledged: Step::Absent,
            in_doubt: None,
        };
        let alive = stream.walk(&mut connection, address, last);
        churned.push(stream);
        if !alive {
            return churned;
        }
    }
}

impl Churned {
    fn exists(&self) -> bool {
        (Step::Created..Step::Deleted).contains(&self.acknowledged)
    }

    /// Takes every step up to `last`; `false` when the server went away.
    fn walk(&mut self, connection: &mut Connection, address: SocketAddr, last: Step) -> bool {
        let request = |method: &str| Request::to(address, method, &self.path);
        let steps = [
            (Step::Created, request("PUT"), 201),
            (
                Step::Appended,
                request("POST").header("Content-Type", OCTETS).body("x"),
                204,
            ),
            (
                Step::Closed,
                request("POST").header("Stream-Closed", "true"),
                204,
            ),
            (Step::Deleted, request("DELETE"), 204),
        ];
        for (step, request, status) in steps {
            if step > last {
                break;
            }
            self.in_doubt = Some(step);
            let Some(answer) = connection.exchange(&request) else {
                return false;
            };
            answer.expect(status);
            self.acknowledged = step;
            self.in_doubt = None;
        }
        true
    }

    fn check(&mut self, server: &Server) {
        let head = Request::new(server, "HEAD", &self.path).send();
        let found = match head.status {
            404 if self.acknowledged == Step::Absent => Step::Absent,
            404 => Step::Deleted,
            200 if head.header("stream-closed").is_some() => Step::Closed,
            200 if head.next_offset() == format!("{:020}", 1) => Step::Appended,
            200 => Step::Created,
            _ => panic!("{head}"),
        };
        assert!(
            found == self.acknowledged || Some(found) == self.in_doubt,
            "{}: {found:?}, though {:?} was acknowledged and {:?} in doubt",
            self.path,
            self.acknowledged,
            self.in_doubt
        );
        self.acknowledged = found;
        self.in_doubt = None;
    }
}
