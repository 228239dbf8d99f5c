//! A crowd of hostile connections of every kind, while a good client appends
//! at a fixed rate: no error for it, everything within its bound.
//!
//! `attack_run` measures, on demand, what each kind and all of them together
//! do to the good client's latency, beside what it is without them:
//! `cargo test --release --test blackbox attack_run -- --ignored --nocapture`;
//! `THALWEG_ATTACK` names the kinds (`slow-head,flood,all`), and
//! `THALWEG_ATTACK_S` says for how many seconds each is watched, and
//! `THALWEG_ATTACK_BESIDE` how many other honest clients append all the while
//! as fast as they are answered.
//!
//! The crowd's own work is not to be measured. So the server has the last core
//! to itself; crowd and client share the first, where the client's thread goes
//! before everything else and the crowd's runs only when nothing else wants to.
//! Both need root, and `chrt`. The core that serves the disk's interrupts is to
//! be the server's (`THALWEG_ATTACK_CORE` names another than the last): on the
//! crowd's, the kernel's thread that completes a write waited for it, for 20 ms
//! while 5,000 connected.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use super::companions::Companions;
use super::{Bystander, UNSENT_BYTES, append_head, get, reset, try_narrow_socket};
use crate::common::http::Request;
use crate::common::observe::{await_metric, cpu_time, metric, open_files, rss_bytes};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset};
use crate::common::{PATIENCE, eventually};

/// Hostile connections in a measurement.
const HOSTILE: usize = 5_000;
/// Time between two appends of the good client in a measurement.
const PACE: Duration = Duration::from_millis(4);
/// The crowd does each one's next thing this often.
const ROUND: Duration = Duration::from_secs(1);
/// Threads that the crowd is divided among: one that waits to be let in keeps no others from it.
const PARTS: usize = 8;
/// How often a measurement alternates between the client alone and under attack.
const ROUNDS: u32 = 2;
/// Takes part in every list of kinds: all of them at once.
const ALL: &str = "all";

/// What a hostile connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Asks once, then for nothing more.
    Idle,
    /// Sends a head byte by byte.
    SlowHead,
    /// Sends a body byte by byte.
    SlowBody,
    /// Sends one small chunk after the other.
    EndlessChunks,
    /// Takes a little of a large answer at a time.
    SlowReader,
    /// Asks for large answers and reads none.
    UnreadAnswers,
    /// Opens an event stream far behind the tail and reads nothing.
    UnreadEvents,
    /// Pipelines hundreds of requests and reads their answers.
    Flood,
    /// Pipelines hundreds of requests and reads nothing.
    UnreadFlood,
    /// Resets its connection, each time at another stage of a request.
    Resets,
    /// Connects when there is no room for it.
    PastTheBound,
    /// Sends whole requests, but byte by byte.
    SplitRequests,
    /// Ends its side right after its request.
    HalfClosed,
}

const KINDS: [(&str, Kind); 13] = [
    ("idle", Kind::Idle),
    ("slow-head", Kind::SlowHead),
    ("slow-body", Kind::SlowBody),
    ("endless-chunks", Kind::EndlessChunks),
    ("slow-reader", Kind::SlowReader),
    ("unread-answers", Kind::UnreadAnswers),
    ("unread-events", Kind::UnreadEvents),
    ("flood", Kind::Flood),
    ("unread-flood", Kind::UnreadFlood),
    ("resets", Kind::Resets),
    ("past-the-bound", Kind::PastTheBound),
    ("split-requests", Kind::SplitRequests),
    ("half-closed", Kind::HalfClosed),
];

/// The kinds of a name.
#[track_caller]
fn kinds_of(name: &str) -> Vec<Kind> {
    let kinds = KINDS
        .iter()
        .filter(|(known, _)| name == ALL || name == *known);
    let kinds: Vec<Kind> = kinds.map(|(_, kind)| *kind).collect();
    assert!(!kinds.is_empty(), "no kind {name}");
    kinds
}

/// All kinds at once, few of each: none of them costs the good client an answer or the server more
/// than its bounds, each meets its bound, and nothing of them stays.
#[test]
fn a_crowd_of_every_kind_harms_nobody() {
    const CROWD: usize = 20 * KINDS.len();
    let mut options = Options::new(1).flag("connections-max", CROWD / 4 * 3);
    for timeout in ["head", "body-total", "write"] {
        options = options.flag(&format!("{timeout}-timeout"), "1s");
    }
    let server = options.start();
    let mut bystander = Bystander::new(&server);
    bystander.expect_append();
    let target = Target::new(&server);
    let files_before = open_files(&server);
    let before = rss_bytes(&server);
    let crowd = Crowd::new(&target, kinds_of(ALL), CROWD);
    thread::scope(|scope| {
        let (call, called) = channel();
        scope.spawn(|| called.into_iter().for_each(Crowd::attack));
        let _called = crowd.call(&call);
        let deadline = Instant::now() + PATIENCE;
        for counter in [
            "connections_refused_total",
            "head_timeouts_total",
            "body_timeouts_total",
            "write_timeouts_total",
            "broken_total",
        ] {
            while metric(&server, counter) == 0 {
                assert!(Instant::now() < deadline, "{counter} counts nothing");
                (0..20).for_each(|_| bystander.expect_append());
            }
        }
        let unsent = metric(&server, "unsent_bytes");
        assert!(unsent <= metric(&server, "unsent_limit_bytes"), "{unsent}");
        let held = metric(&server, "body_bytes");
        assert!(held <= metric(&server, "body_limit_bytes"), "{held}");
    });
    let grown = rss_bytes(&server).saturating_sub(before);
    assert!(grown < UNSENT_BYTES, "grew by {grown} bytes");
    await_metric(&server, "live_readers", |count| count == 0);
    eventually("every descriptor is given back", || {
        (open_files(&server) <= files_before + 4).then_some(())
    });
    assert_eq!(metric(&server, "panics_total"), 0);
    bystander.expect_served();
}

#[test]
#[ignore = "measures; opens more sockets than many machines allow"]
fn attack_run() {
    let named = std::env::var("THALWEG_ATTACK").unwrap_or_else(|_| {
        let names = KINDS.iter().map(|(name, _)| *name);
        names.chain([ALL]).collect::<Vec<_>>().join(",")
    });
    let number = |name, default| {
        let text = std::env::var(name).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let seconds = number("THALWEG_ATTACK_S", 12);
    let small = |name, default| usize::try_from(number(name, default)).expect("a small number");
    let beside = small("THALWEG_ATTACK_BESIDE", 0);
    let allowed = allowed_cores();
    let last = allowed.last().copied().expect("a process has a core");
    let core = small("THALWEG_ATTACK_CORE", last as u64);
    let other = allowed.into_iter().find(|&other| other != core);
    for name in named.split(',') {
        measure(name, Duration::from_secs(seconds), beside, (core, other));
    }
}

/// Prints what the crowd `name` does to the good client, and to as many `beside` it, in alternation
/// with how they fare alone. The server has one core, and everybody else the other, if there is one.
fn measure(name: &str, time: Duration, beside: usize, (core, other): (usize, Option<usize>)) {
    let kinds = kinds_of(name);
    // Short, so that who is let go for it is let go, and comes back, within the time.
    let mut options = Options::new(1).flag("journal-file-bytes", "32MiB");
    for timeout in ["head", "body-total", "write"] {
        options = options.flag(&format!("{timeout}-timeout"), "4s");
    }
    let bound = match kinds[..] {
        [Kind::PastTheBound] => HOSTILE / 2,
        [_] => 2 * HOSTILE,
        _ => HOSTILE - HOSTILE / KINDS.len(),
    };
    let server = options
        .flag("cores", core)
        .flag("connections-max", bound + beside)
        .start();
    let target = Target::new(&server);
    let crowds: Vec<Crowd> = (0..ROUNDS)
        .map(|_| Crowd::new(&target, kinds.clone(), HOSTILE))
        .collect();
    let (call, called) = channel();
    let (server, crowds) = (&server, &crowds);
    // After the start: the server has its core and priority from who starts it.
    let (alone, attacked) = thread::scope(|scope| {
        if let Some(other) = other {
            stay_on(other);
        }
        scope.spawn(|| {
            prefer(&["--idle", "--pid", "0"]);
            called.into_iter().for_each(Crowd::attack);
        });
        let client = scope.spawn(move || {
            let mut bystander = Bystander::new(server);
            let mut companions = (beside > 0).then(|| Companions::new(server, beside));
            prefer(&["--fifo", "--pid", "10"]);
            pace(&mut bystander, time / 4);
            let (mut alone, mut attacked) = (Run::default(), Run::default());
            for crowd in crowds {
                alone.add(server, &mut companions, || {
                    pace(&mut bystander, time / ROUNDS)
                });
                let called = crowd.call(&call);
                attacked.add(server, &mut companions, || {
                    pace(&mut bystander, time / ROUNDS)
                });
                attacked.note(server, crowd);
                drop(called);
                await_metric(server, "connections", |count| count < 10 + beside as u64);
            }
            (alone, attacked)
        });
        client.join().expect("the good client gets no error")
    });
    println!("{name}: alone        {alone}");
    println!("{name}: under attack {attacked}");
    let ratio = attacked.p99().as_secs_f64() / alone.p99().as_secs_f64();
    println!("{name}: p99 under attack / alone: {ratio:.2}");
    if beside > 0 {
        let ratio = |of: fn(&Run) -> f64| of(&attacked) / of(&alone);
        println!(
            "{name}: {beside} others under attack / alone: appends/s {:.2}, p99 {:.2}",
            ratio(Run::others_per_second),
            ratio(|run| percentile(&run.others, 99.0).as_secs_f64()),
        );
    }
    assert_eq!(metric(server, "panics_total"), 0);
}

/// The cores that this process may use.
fn allowed_cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("a thread has cores");
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|&core| allowed.is_set(core)).collect()
}

/// Keeps this thread, and those that it starts, on one core.
fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).expect("the core is allowed");
}

/// Sets how this thread is scheduled.
fn prefer(how: &[&str]) {
    let thread = gettid().as_raw_nonzero().to_string();
    let set = Command::new("chrt").args(how).arg(thread).status();
    if !set.is_ok_and(|status| status.success()) {
        println!("chrt {how:?} failed: the figures hold the crowd's own work");
    }
}

/// What one good client met, from when each append was due.
#[derive(Default)]
struct Run {
    /// In no order until printed.
    latencies: Vec<Duration>,
    /// How late the client itself was to send.
    lateness: Vec<Duration>,
    /// What other honest clients met, from when each append was sent.
    others: Vec<Duration>,
    wall: Duration,
    cpu: Duration,
    notes: Vec<String>,
}

/// When an append was sent and when it was answered, both since it was due.
type Append = (Duration, Duration);

impl Run {
    fn add(
        &mut self,
        server: &Server,
        companions: &mut Option<Companions>,
        pace: impl FnOnce() -> Vec<Append>,
    ) {
        let profile = Request::to(server.admin_address(), "POST", "/__ursula/latency");
        profile.send();
        let (started, cpu_before) = (Instant::now(), cpu_time(server));
        let is_over = &AtomicBool::new(false);
        let (appends, others) = thread::scope(|scope| {
            let others = companions.as_mut().map(|companions| {
                scope.spawn(|| {
                    prefer(&["--other", "--pid", "0"]);
                    companions.append(is_over)
                })
            });
            let appends = pace();
            is_over.store(true, Ordering::Relaxed);
            let others = others.map(|others| others.join().expect("nor do the others"));
            (appends, others)
        });
        self.others.extend(others.unwrap_or_default());
        let (sent, answered): (Vec<_>, Vec<_>) = appends.into_iter().unzip();
        self.lateness.extend(sent);
        let slowest = answered.iter().zip(0..).max().map_or(0, |(_, at)| at);
        self.latencies.extend(answered);
        self.wall += started.elapsed();
        self.cpu += cpu_time(server) - cpu_before;
        let profile = Request::to(server.admin_address(), "GET", "/__ursula/latency?hdr=false");
        let profile = profile.send().expect(200);
        let mut stages = format!("slowest after {:.1?}; server's p50/p99 us:", PACE * slowest);
        for stage in ["staging", "journal", "wake", "write"] {
            let times = &profile.json()["overall"][stage];
            stages += &format!(" {stage} {}/{}", times["p50_us"], times["p99_us"]);
        }
        self.notes.push(stages);
    }

    fn note(&mut self, server: &Server, crowd: &Crowd<'_, '_>) {
        let mut note = format!("crowd: {} things done", crowd.done());
        for name in [
            "connections",
            "live_readers",
            "unsent_bytes",
            "requests_total",
            "connections_total",
            "connections_refused_total",
            "head_timeouts_total",
            "body_timeouts_total",
            "write_timeouts_total",
            "shed_total",
            "broken_total",
        ] {
            note += &format!(", {name} {}", metric(server, name));
        }
        note += &format!(", rss {} MiB", rss_bytes(server) >> 20);
        self.notes.push(note);
    }

    fn others_per_second(&self) -> f64 {
        self.others.len() as f64 / self.wall.as_secs_f64()
    }

    fn p99(&self) -> Duration {
        percentile(&self.latencies, 99.0)
    }
}

fn percentile(times: &[Duration], percent: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * percent / 100.0) as usize]
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |percent| percentile(&self.latencies, percent);
        write!(
            f,
            "{} appends, p50 {:.2?}, p90 {:.2?}, p99 {:.2?}, p99.9 {:.2?}, max {:.2?}; \
             client late by p99 {:.2?}; server's CPU {:.0} %",
            self.latencies.len(),
            at(50.0),
            at(90.0),
            at(99.0),
            at(99.9),
            at(100.0),
            percentile(&self.lateness, 99.0),
            100.0 * self.cpu.as_secs_f64() / self.wall.as_secs_f64(),
        )?;
        if !self.others.is_empty() {
            let at = |percent| percentile(&self.others, percent);
            write!(
                f,
                "\n    others: {:.0} appends/s, p50 {:.2?}, p99 {:.2?}, max {:.2?}",
                self.others_per_second(),
                at(50.0),
                at(99.0),
                at(100.0),
            )?;
        }
        self.notes
            .iter()
            .try_for_each(|note| write!(f, "\n    {note}"))
    }
}

/// Appends at a fixed rate, whether or not the appends before are answered.
fn pace(bystander: &mut Bystander<'_>, time: Duration) -> Vec<Append> {
    let count = u32::try_from(time.as_nanos() / PACE.as_nanos()).expect("a short time");
    let (mut writer, append) = (bystander.connection.writer(), bystander.encoded_append());
    let started = Instant::now();
    let due = |number: u32| started + PACE * number;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let send = |number| {
                thread::sleep(due(number).saturating_duration_since(Instant::now()));
                let late = due(number).elapsed();
                writer.write_all(&append).expect("the server reads");
                late
            };
            (0..count).map(send).collect::<Vec<_>>()
        });
        let await_answer = |number| {
            bystander.expect_appended();
            due(number).elapsed()
        };
        let answered: Vec<Duration> = (0..count).map(await_answer).collect();
        let sent = sender.join().expect("the server reads");
        sent.into_iter().zip(answered).collect()
    })
}

/// What the crowd asks for.
struct Target<'a> {
    server: &'a Server,
    small: Stream<'a>,
    large: Stream<'a>,
    flood: Vec<u8>,
    append: Vec<u8>,
    /// What is sent before a reset.
    stages: Vec<String>,
}

impl<'a> Target<'a> {
    fn new(server: &'a Server) -> Self {
        let small = Stream::create(server, Surface::Base, OCTETS);
        let large = Stream::with_body(server, Surface::Base, OCTETS, vec![b'x'; 8 << 20]);
        let head = get(&small, "").replace("GET", "HEAD");
        let append = format!("{}x", append_head(&small, "Content-Length: 1\r\n"));
        let stages = vec![
            String::new(),
            "G".to_owned(),
            append[..append.len() - 1].to_owned(),
            append_head(&small, "Transfer-Encoding: chunked\r\n") + "5\r\nab",
            append_head(&small, "Content-Length: 5\r\nExpect: 100-continue\r\n"),
            append.repeat(20),
            get(&large, "?offset=-1").repeat(3),
            get(&large, "?offset=-1&live=sse"),
            get(&small, "?offset=now&live=sse"),
            get(&small, "?offset=now&live=long-poll"),
        ];
        Self {
            server,
            flood: head.repeat((64 << 10) / head.len()).into_bytes(),
            append: append.into_bytes(),
            stages,
            small,
            large,
        }
    }
}

/// Connections that mean harm. Whom the server lets go comes back.
struct Crowd<'a, 'b> {
    target: &'a Target<'b>,
    kinds: Vec<Kind>,
    count: usize,
    done: AtomicU64,
    is_over: AtomicBool,
}

struct Hostile {
    kind: Kind,
    index: usize,
    /// How often it was its turn.
    turns: usize,
    /// How much of its request it has sent, if it sends one bit by bit.
    sent: usize,
    /// None when it could not connect.
    socket: Option<TcpStream>,
}

/// A crowd that attacks until this is dropped.
struct Called<'c, 'a, 'b>(&'c Crowd<'a, 'b>);

impl Drop for Called<'_, '_, '_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl<'a, 'b> Crowd<'a, 'b> {
    fn new(target: &'a Target<'b>, kinds: Vec<Kind>, count: usize) -> Self {
        Self {
            target,
            kinds,
            count,
            done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Lets it attack, on the thread at the other end of `call`, until what is returned is dropped.
    fn call<'c>(&'c self, call: &Sender<&'c Self>) -> Called<'c, 'a, 'b> {
        call.send(self).expect("the crowd's thread waits");
        Called(self)
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Goes on until told to stop.
    fn attack(&self) {
        thread::scope(|scope| {
            for part in 0..PARTS {
                scope.spawn(move || self.attack_with(part));
            }
        });
    }

    /// Part `part` of it.
    fn attack_with(&self, part: usize) {
        let mut crowd: Vec<Hostile> = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let started = Instant::now();
            for (place, index) in (part..self.count).step_by(PARTS).enumerate() {
                if self.is_over.load(Ordering::Relaxed) {
                    break;
                }
                match crowd.get_mut(place) {
                    Some(hostile) => {
                        // Spread over the round: a burst would measure the crowd, not the server.
                        let due = started + ROUND.mul_f64(index as f64 / self.count as f64);
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        self.take_turn(hostile);
                    }
                    // They come as fast as they can.
                    None => {
                        let kind = self.kinds[index % self.kinds.len()];
                        let mut hostile = Hostile {
                            kind,
                            index,
                            turns: 0,
                            sent: 0,
                            socket: None,
                        };
                        self.take_turn(&mut hostile);
                        crowd.push(hostile);
                    }
                }
            }
        }
    }

    fn take_turn(&self, hostile: &mut Hostile) {
        self.done.fetch_add(1, Ordering::Relaxed);
        hostile.turns += 1;
        if !self.go_on(hostile) {
            if let Some(old) = hostile.socket.take() {
                reset(old);
            }
            hostile.sent = 0;
            hostile.socket = self.open(hostile).ok();
        }
    }

    fn open(&self, hostile: &Hostile) -> io::Result<TcpStream> {
        let target = self.target;
        let mut socket = try_narrow_socket(target.server.address())?;
        let large = |query: &str| get(&target.large, query);
        let first = match hostile.kind {
            Kind::Idle | Kind::HalfClosed => get(&target.small, ""),
            Kind::SlowHead | Kind::Flood | Kind::UnreadFlood => String::new(),
            Kind::PastTheBound | Kind::SplitRequests => String::new(),
            Kind::SlowBody => append_head(&target.small, "Content-Length: 100000\r\n"),
            Kind::EndlessChunks => append_head(&target.small, "Transfer-Encoding: chunked\r\n"),
            Kind::SlowReader => large("?offset=-1"),
            Kind::UnreadAnswers => large("?offset=-1").repeat(10),
            // Each at an offset of its own: they share no event.
            Kind::UnreadEvents => large(&format!("?offset={}&live=sse", offset(hostile.index))),
            Kind::Resets => {
                let stages = &target.stages;
                stages[(hostile.index + hostile.turns) % stages.len()].clone()
            }
        };
        // The server may close at once; the next turn finds out.
        let _ = socket.write_all(first.as_bytes());
        if hostile.kind == Kind::HalfClosed {
            let _ = socket.shutdown(Shutdown::Write);
        }
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// One connection's next thing; false when it is to be opened anew.
    fn go_on(&self, hostile: &mut Hostile) -> bool {
        let Some(socket) = &mut hostile.socket else {
            return false;
        };
        let is_open = match hostile.kind {
            Kind::Resets => false,
            Kind::UnreadAnswers | Kind::UnreadEvents => return !is_broken(socket),
            Kind::Idle | Kind::PastTheBound | Kind::HalfClosed | Kind::SlowReader => true,
            Kind::SlowHead => send(socket, b"G"),
            Kind::SlowBody => send(socket, b"x"),
            Kind::EndlessChunks => send(socket, b"1\r\nx\r\n"),
            Kind::UnreadFlood => return send(socket, &self.target.flood),
            Kind::Flood => send(socket, &self.target.flood) && (0..16).all(|_| !is_closed(socket)),
            Kind::SplitRequests => (0..32).all(|_| {
                let append = &self.target.append;
                let at = hostile.sent % append.len();
                hostile.sent += 1;
                send(socket, &append[at..=at])
            }),
        };
        is_open && !is_closed(socket)
    }
}

/// Sends what the socket takes; false when there is nobody to send it to.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> bool {
    let refused = socket.write(bytes).err();
    refused.is_none_or(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Whether the server has ended the connection; takes some of its answer on the way.
fn is_closed(socket: &mut TcpStream) -> bool {
    match socket.read(&mut [0; 8192]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Whether the connection was reset; reads nothing.
fn is_broken(socket: &TcpStream) -> bool {
    !matches!(socket.take_error(), Ok(None))
}
