//! A small stream server for tests, with one fault built in.
//!
//! Threads and blocking sockets from std; streams in memory; bytes only; the base surface of Thalweg with offsets that count bytes.
//! Without a fault it keeps the protocol as far as `loadgen` asks of it, which the tests show first.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::snapshots::{self, Extras};

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Nothing.
    Nothing,
    /// Every 20th append is acknowledged and forgotten.
    Drops,
    /// The last append of each stream is not returned.
    ForgetsTail,
    /// Every 20th append is stored twice.
    Duplicates,
    /// Every 20th append is stored after the one that follows it.
    Reorders,
    /// One byte of every 20th append is changed.
    Alters,
    /// Reads return another stream.
    MixesStreams,
    /// Responses are not capped.
    Oversize,
    /// Shortened responses claim to be up to date, and three long-polls of four are told so when there is data.
    FalseUpToDate,
    /// Responses never claim to be up to date.
    NeverUpToDate,
    /// `Stream-Next-Offset` is one too high at the tail.
    SkewsOffset,
    /// SSE leaves out every 20th event.
    SseDrops,
    /// SSE repeats every 20th event.
    SseDuplicates,
    /// SSE sends every 20th event after the one that follows it.
    SseReorders,
    /// SSE leaves out every 20th control event.
    SseNoControl,
    /// Every 20th control event names the offset after the right one.
    SseSkewsOffset,
    /// A snapshot comes back with one byte changed.
    AltersSnapshot,
    /// Bootstrap leaves out the first message after the snapshot.
    BootstrapSkips,
    /// A bootstrap that stops short claims to be up to date.
    BootstrapFalseUpToDate,
    /// Every 10th append is refused with 503.
    Refuses,
    /// Every 10th append is answered with nonsense.
    Garbage,
    /// Every 10th append is applied and not answered.
    HangsUp,
    /// Once, this long after the first append, everything stops for this long.
    PausesAppends {
        /// Milliseconds.
        after_ms: u64,
        /// Milliseconds.
        for_ms: u64,
    },
    /// As above, but only the first subscriber is not served.
    PausesSubscriber {
        /// Milliseconds.
        after_ms: u64,
        /// Milliseconds.
        for_ms: u64,
    },
}

const CAP: usize = 8 << 20;

/// One stream.
#[derive(Default)]
pub struct Stream {
    appends: Vec<Vec<u8>>,
    withheld: Option<Vec<u8>>,
    /// What belongs to the extensions.
    pub extras: Extras,
}

impl Stream {
    /// All its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.appends.concat()
    }
}

/// The server.
pub struct State {
    /// Its fault.
    pub wrong: Wrong,
    /// Its streams by path.
    pub streams: Mutex<HashMap<String, Stream>>,
    grown: Condvar,
    appends: AtomicU64,
    polls: AtomicU64,
    subscribers: AtomicU64,
    first_append: Mutex<Option<Instant>>,
    paused: AtomicBool,
    /// How long the pause was in fact.
    pause: Arc<OnceLock<Duration>>,
}

/// Starts a server that runs until the test process ends.
pub fn start(wrong: Wrong) -> SocketAddr {
    start_and_watch(wrong).0
}

/// As [`start`]; also gives where the length of the pause will be told.
pub fn start_and_watch(wrong: Wrong) -> (SocketAddr, Arc<OnceLock<Duration>>) {
    let pause = Arc::new(OnceLock::new());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let state = Arc::new(State {
        wrong,
        streams: Mutex::default(),
        grown: Condvar::new(),
        appends: AtomicU64::new(0),
        polls: AtomicU64::new(0),
        subscribers: AtomicU64::new(0),
        first_append: Mutex::default(),
        paused: AtomicBool::new(false),
        pause: pause.clone(),
    });
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let state = state.clone();
            // A connection that the client closes ends its thread.
            thread::spawn(move || serve(&state, socket));
        }
    });
    (address, pause)
}

fn serve(state: &State, socket: TcpStream) -> Option<()> {
    socket.set_nodelay(true).ok()?;
    let mut input = BufReader::new(socket.try_clone().ok()?);
    let mut output = socket;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0usize;
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            input.read_line(&mut header).ok()?;
            let header = header.trim_end();
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':')?;
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        if let Some(value) = headers.get("content-length") {
            length = value.parse().ok()?;
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if let Some((stream, subresource)) = snapshots::split(path) {
            let request = snapshots::Request {
                method: &method,
                stream,
                subresource,
                headers: &headers,
                body,
            };
            snapshots::answer(state, request, &mut output)?;
            continue;
        }
        match method.as_str() {
            "PUT" => {
                state
                    .streams
                    .lock()
                    .ok()?
                    .entry(path.to_owned())
                    .or_default();
                output
                    .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
                    .ok()?;
            }
            "POST" => append(state, path, body, &mut output)?,
            _ => read(state, path, query, &mut output)?,
        }
    }
}

fn append(state: &State, path: &str, body: Vec<u8>, output: &mut TcpStream) -> Option<()> {
    let number = state.appends.fetch_add(1, Ordering::Relaxed);
    if let Wrong::PausesAppends { after_ms, for_ms } = state.wrong {
        pause_once(state, after_ms, for_ms, true);
    }
    let twentieth = number % 20 == 19;
    let tenth = number % 10 == 9;
    match state.wrong {
        Wrong::Refuses if tenth => {
            let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}";
            return output.write_all(answer).ok();
        }
        Wrong::Garbage if tenth => {
            output.write_all(b"what?\r\n\r\n").ok()?;
            return None;
        }
        _ => {}
    }
    let next = {
        let mut streams = state.streams.lock().ok()?;
        let stream = streams.get_mut(path)?;
        let mut body = body;
        match state.wrong {
            Wrong::Drops if twentieth => body.clear(),
            Wrong::Duplicates if twentieth => stream.appends.push(body.clone()),
            Wrong::Alters if twentieth => body[100] ^= 1,
            _ => {}
        }
        if state.wrong == Wrong::Reorders && twentieth && stream.withheld.is_none() {
            stream.withheld = Some(body);
        } else {
            stream.appends.push(body);
            let withheld = stream.withheld.take();
            stream.appends.extend(withheld);
        }
        stream.bytes().len()
    };
    state.grown.notify_all();
    if state.wrong == Wrong::HangsUp && tenth {
        return None;
    }
    let answer = format!("HTTP/1.1 204 No Content\r\nStream-Next-Offset: {next:020}\r\n\r\n");
    output.write_all(answer.as_bytes()).ok()
}

/// Once the time has come: sleeps, the first time, and keeps how long it was. With `streams` everybody who wants them waits
/// meanwhile, as on a server that has stopped.
fn pause_once(state: &State, after_ms: u64, for_ms: u64, streams: bool) {
    let first = *state
        .first_append
        .lock()
        .expect("no panics")
        .get_or_insert_with(Instant::now);
    if first.elapsed() >= Duration::from_millis(after_ms)
        && !state.paused.swap(true, Ordering::SeqCst)
    {
        let _streams = streams.then(|| state.streams.lock());
        let start = Instant::now();
        thread::sleep(Duration::from_millis(for_ms));
        let _ = state.pause.set(start.elapsed());
    }
}

fn read(state: &State, path: &str, query: &str, output: &mut TcpStream) -> Option<()> {
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    let offset = parameter("offset")?;
    let from = if offset == "-1" {
        0
    } else if offset == "now" {
        usize::MAX
    } else {
        offset.parse::<usize>().ok()?
    };
    match parameter("live") {
        Some("sse") => return subscribe(state, path, from, output),
        Some(_) => {
            let streams = state.streams.lock().ok()?;
            let empty = |streams: &mut HashMap<String, Stream>| {
                streams
                    .get(path)
                    .is_some_and(|stream| stream.bytes().len() <= from)
            };
            let (streams, waited) = state
                .grown
                .wait_timeout_while(streams, Duration::from_secs(5), empty)
                .ok()?;
            drop(streams);
            let denied = state.wrong == Wrong::FalseUpToDate
                && state.polls.fetch_add(1, Ordering::Relaxed) % 4 != 3;
            if denied {
                thread::sleep(Duration::from_millis(2));
            }
            if denied || waited.timed_out() {
                let answer =
                    format!("HTTP/1.1 204 No Content\r\nStream-Next-Offset: {from:020}\r\n");
                return output
                    .write_all(format!("{answer}Stream-Up-To-Date: true\r\n\r\n").as_bytes())
                    .ok();
            }
        }
        None => {}
    }
    let bytes = {
        let streams = state.streams.lock().ok()?;
        let other = || {
            streams
                .iter()
                .find(|(name, stream)| *name != path && !stream.appends.is_empty())
        };
        match state.wrong {
            Wrong::MixesStreams => other().map(|(_, stream)| stream.bytes()),
            Wrong::ForgetsTail => streams
                .get(path)
                .map(|s| s.appends[..s.appends.len().saturating_sub(1)].concat()),
            _ => streams.get(path).map(Stream::bytes),
        }
    }?;
    let from = from.min(bytes.len());
    let cap = match state.wrong {
        Wrong::Oversize => usize::MAX,
        Wrong::FalseUpToDate => 1 << 20,
        _ => CAP,
    };
    let to = bytes.len().min(from.saturating_add(cap));
    let at_tail = to == bytes.len();
    let up_to_date = match state.wrong {
        Wrong::FalseUpToDate => true,
        Wrong::NeverUpToDate => false,
        _ => at_tail,
    };
    let next = if state.wrong == Wrong::SkewsOffset && at_tail {
        to + 1
    } else {
        to
    };
    let up_to_date = if up_to_date {
        "Stream-Up-To-Date: true\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nStream-Next-Offset: {next:020}\r\n{up_to_date}\r\n",
        to - from
    );
    output.write_all(head.as_bytes()).ok()?;
    output.write_all(&bytes[from..to]).ok()
}

fn subscribe(state: &State, path: &str, mut from: usize, output: &mut TcpStream) -> Option<()> {
    let number = state.subscribers.fetch_add(1, Ordering::SeqCst);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nStream-SSE-Data-Encoding: base64\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    output.write_all(head.as_bytes()).ok()?;
    let mut events = 0u64;
    let mut withheld = String::new();
    loop {
        let fresh: Vec<Vec<u8>> = {
            let streams = state.streams.lock().ok()?;
            let empty = |streams: &mut HashMap<String, Stream>| {
                streams
                    .get(path)
                    .is_some_and(|stream| stream.bytes().len() <= from)
            };
            let wait = Duration::from_secs(5);
            let (streams, _) = state.grown.wait_timeout_while(streams, wait, empty).ok()?;
            let mut at = 0;
            let starts = streams.get(path)?.appends.iter().map(|append| {
                at += append.len();
                (at, append)
            });
            starts
                .filter(|(end, _)| *end > from)
                .map(|(_, append)| append.clone())
                .collect()
        };
        if let (Wrong::PausesSubscriber { after_ms, for_ms }, 0) = (state.wrong, number) {
            pause_once(state, after_ms, for_ms, false);
        }
        for append in fresh {
            from += append.len();
            events += 1;
            let twentieth = events.is_multiple_of(20);
            let data = format!("event: data\ndata: {}\n\n", STANDARD.encode(&append));
            let next = from + usize::from(state.wrong == Wrong::SseSkewsOffset && twentieth);
            let control =
                format!("event: control\ndata: {{\"streamNextOffset\":\"{next:020}\"}}\n\n");
            let text = match state.wrong {
                Wrong::SseReorders if twentieth => {
                    withheld = data + &control;
                    continue;
                }
                Wrong::SseDrops if twentieth => control,
                Wrong::SseDuplicates if twentieth => format!("{data}{control}{data}{control}"),
                Wrong::SseNoControl if twentieth => data,
                _ => format!("{data}{control}{}", std::mem::take(&mut withheld)),
            };
            write!(output, "{:x}\r\n{text}\r\n", text.len()).ok()?;
        }
    }
}
