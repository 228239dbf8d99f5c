//! Clients that mean harm or do not know better (issue 6, "Hard to knock
//! over"; `cases/http.md` 6 and 8, `cases/protocol.md` 11).
//!
//! Each test does one kind of harm and holds the server to four things: the
//! client gets a clear answer or a close, a counter tells the operator, the
//! memory stays in its bounds, and a [`Bystander`] on the same core is served
//! all the while. Times are bounds of the server's that are set short here;
//! nothing asserts that something was quick.
//!
//! [`idle`], [`attack`] and [`soak`] measure on demand.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ursula_headers::ErrorCode;

use crate::common::http::Connection;
use crate::common::observe::{await_metric, cpu_time, metric, open_files, rss_bytes, status};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset};
use crate::common::{PATIENCE, eventually};

mod attack;
mod companions;
mod event_streams;
mod idle;
mod soak;

/// What a client that does not read may add to the server's memory, all
/// connections together: the budget for unsent bytes and some slack for the
/// allocator.
const UNSENT_BYTES: u64 = 320 << 20;
/// A client whose socket takes nothing more for this long has met the
/// server's own limit.
const STUCK: Duration = Duration::from_millis(300);

/// A good client on a connection of its own, whose every append must succeed.
struct Bystander<'a> {
    stream: Stream<'a>,
    connection: Connection,
    appended: usize,
}

impl<'a> Bystander<'a> {
    fn new(server: &'a Server) -> Self {
        Self {
            stream: Stream::create(server, Surface::Base, OCTETS),
            connection: Connection::to(server),
            appended: 0,
        }
    }

    /// Appends on the old connection, and reads on a new one.
    #[track_caller]
    fn expect_served(&mut self) {
        self.expect_append();
        let tail = offset(self.appended);
        assert_eq!(self.stream.head().send().expect(200).next_offset(), tail);
    }

    /// Asks on the old connection.
    #[track_caller]
    fn expect_answer(&mut self) {
        self.connection.write(self.stream.head().encode());
        self.connection.read_response("HEAD").expect(200);
    }

    #[track_caller]
    fn expect_append(&mut self) {
        self.connection.write(self.encoded_append());
        self.expect_appended();
    }

    fn encoded_append(&self) -> Vec<u8> {
        let append = self.stream.post().header("Content-Type", OCTETS);
        append.body("x").encode()
    }

    /// Takes the answer to an append that was sent.
    #[track_caller]
    fn expect_appended(&mut self) {
        let answer = self.connection.read_response("POST").expect(204);
        self.appended += 1;
        assert_eq!(answer.next_offset(), offset(self.appended));
    }
}

/// A socket that takes little, so that a client that does not read is noticed soon.
#[track_caller]
fn narrow_socket(address: SocketAddr) -> TcpStream {
    try_narrow_socket(address).expect("the server listens")
}

/// A client with a small receive buffer that has asked for `query` of the stream, and not read.
fn narrow_reader(server: &Server, stream: &Stream, query: &str) -> TcpStream {
    let mut socket = narrow_socket(server.address());
    socket
        .write_all(get(stream, query).as_bytes())
        .expect("the server takes a request");
    socket
}

fn try_narrow_socket(address: SocketAddr) -> io::Result<TcpStream> {
    narrow_socket_of(address, 16 << 10)
}

fn narrow_socket_of(address: SocketAddr, bytes: usize) -> io::Result<TcpStream> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_recv_buffer_size(bytes)?;
    socket.connect(&address.into())?;
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket.into())
}

/// Sends `bytes` again and again until the socket takes no more for [`STUCK`], the server closes,
/// or `bytes_max` are on their way.
fn pour(socket: &mut TcpStream, bytes: &[u8], bytes_max: usize) -> usize {
    socket
        .set_write_timeout(Some(STUCK))
        .expect("the socket is open");
    let mut sent = 0;
    while sent < bytes_max {
        match socket.write(&bytes[sent % bytes.len()..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    sent
}

/// Closes with a reset instead of a FIN.
fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .expect("the socket is open");
}

fn append_head(stream: &Stream<'_>, framing: &str) -> String {
    format!(
        "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\n{framing}\r\n",
        stream.path()
    )
}

fn get(stream: &Stream<'_>, query: &str) -> String {
    format!("GET {}{query} HTTP/1.1\r\nHost: x\r\n\r\n", stream.path())
}

/// Drips `bytes` one at a time, over and over, until the server answers or closes. True when it
/// answered 408.
fn drip_until_over(mut socket: TcpStream, bytes: &[u8]) -> bool {
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("the socket is open");
    let deadline = Instant::now() + PATIENCE;
    let mut answer = [0; 12];
    for byte in bytes.iter().cycle() {
        assert!(
            Instant::now() < deadline,
            "the server waits for ever for a client that drips"
        );
        let is_taken = socket.write_all(&[*byte]).is_ok();
        match socket.read(&mut answer) {
            Ok(0) => return false,
            Ok(_) => return answer.starts_with(b"HTTP/1.1 408"),
            Err(error) if error.kind() == ErrorKind::WouldBlock && is_taken => {}
            Err(_) => return false,
        }
    }
    false
}

/// A head must be whole in time from its first byte on, however steadily it drips.
#[test]
fn heads_that_drip_are_let_go() {
    let server = Options::new(1).flag("head-timeout", "1s").start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    for before in [String::new(), get(&stream, "")] {
        let mut connection = TcpStream::connect(server.address()).expect("the server listens");
        connection
            .write_all(before.as_bytes())
            .expect("the server takes a request");
        if !before.is_empty() {
            thread::sleep(Duration::from_millis(200));
            let read = connection.read(&mut [0; 4096]);
            assert!(read.is_ok_and(|count| count > 0), "the request is answered");
        }
        let head = format!("GET {} HTTP/1.1\r\nHost: {}", stream.path(), "x".repeat(64));
        assert!(
            drip_until_over(connection, head.as_bytes()),
            "after {before:?}"
        );
        bystander.expect_served();
    }
    assert_eq!(metric(&server, "head_timeouts_total"), 2);
}

/// What is left of a refused body is skipped, but not for ever.
#[test]
fn the_rest_of_a_refused_body_may_not_drip_for_ever() {
    let server = Options::new(1).flag("head-timeout", "1s").start();
    let mut bystander = Bystander::new(&server);
    let absent = Stream::absent(&server, Surface::Base);
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n",
        absent.path()
    );
    let mut socket = TcpStream::connect(server.address()).expect("the server listens");
    socket
        .write_all(head.as_bytes())
        .expect("the server takes a request");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("the socket is open");
    let mut answer = vec![0; 4096];
    let count = socket.read(&mut answer).expect("it is answered");
    assert!(answer[..count].starts_with(b"HTTP/1.1 4"), "a refusal");
    drip_until_over(socket, b"x");
    bystander.expect_served();
}

/// A body must make progress, and be whole in time however steadily it drips.
#[test]
fn bodies_that_drip_are_let_go() {
    let server = Options::new(1)
        .flag("body-timeout", "1s")
        .flag("body-total-timeout", "2s")
        .start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    for (framing, drop) in [
        ("Content-Length: 100000\r\n", &b"x"[..]),
        ("Transfer-Encoding: chunked\r\n", &b"1\r\nx\r\n"[..]),
    ] {
        let mut socket = TcpStream::connect(server.address()).expect("the server listens");
        socket
            .write_all(append_head(&stream, framing).as_bytes())
            .expect("the server takes a head");
        assert!(drip_until_over(socket, drop), "with {framing}");
        bystander.expect_served();
    }
    let mut silent = Connection::to(&server);
    silent.write(append_head(&stream, "Content-Length: 3\r\n"));
    silent.read_response("POST").expect(408);
    assert_eq!(metric(&server, "body_timeouts_total"), 3);
    assert_eq!(stream.head().send().next_offset(), offset(0));
}

/// Bodies that stall fill their budget; what arrives at once needs none of it.
#[test]
fn stalled_bodies_do_not_starve_small_appends() {
    let server = Options::new(1)
        .flag("request-bytes-max", 4 << 20)
        .flag("body-memory-bytes-max", 32 << 20)
        .start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let large = vec![b'x'; (4 << 20) - 1];
    let stalled: Vec<TcpStream> = (0..16)
        .map(|_| {
            let mut socket = TcpStream::connect(server.address()).expect("the server listens");
            let head = append_head(&stream, "Content-Length: 4194304\r\n");
            socket
                .write_all(head.as_bytes())
                .expect("the server takes a head");
            pour(&mut socket, &large, large.len());
            bystander.expect_served();
            socket
        })
        .collect();
    await_metric(&server, "body_bytes", |bytes| bytes >= 4 << 20);
    assert!(metric(&server, "body_bytes") <= 32 << 20);
    let refused = stalled.into_iter().filter(|socket| {
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .expect("the socket is open");
        let mut answer = vec![0; 4096];
        let mut socket = socket;
        let count = socket.read(&mut answer).unwrap_or(0);
        String::from_utf8_lossy(&answer[..count])
            .contains(ErrorCode::IngressBodyBytesLimitReached.as_str())
    });
    assert!(
        refused.count() >= 1,
        "nobody was told that there is no room"
    );
    assert!(metric(&server, "body_budget_refusals_total") >= 1);
    bystander.expect_served();
    // The stalled ones are gone: there is room again.
    eventually("a large append finds room", || {
        let append = stream.post().header("Content-Type", OCTETS).body(&large);
        (append.try_send()?.status == 204).then_some(())
    });
    assert_eq!(stream.head().send().next_offset(), offset(large.len()));
}

/// Who does not take an answer is dropped, whatever the answer is.
#[test]
fn readers_that_stop_are_dropped() {
    const READERS: usize = 40;
    let server = Options::new(1).flag("write-timeout", "1s").start();
    let mut bystander = Bystander::new(&server);
    let message = format!("\"{}\"", "x".repeat(1 << 20));
    let octets = Stream::create(&server, Surface::Bucket, OCTETS);
    let json = Stream::create(&server, Surface::Bucket, "application/json");
    for _ in 0..8 {
        octets.append(OCTETS, vec![b'x'; 1 << 20]);
        json.append("application/json", &message);
    }
    octets
        .request("PUT", &format!("/snapshot/{}", offset(0)))
        .header("Content-Type", OCTETS)
        .body(vec![b's'; 8 << 20])
        .send();
    let before = rss_bytes(&server);
    let mut stuck = Vec::new();
    for index in 0..READERS {
        let request = match index % 4 {
            0 => get(&octets, "?offset=-1"),
            1 => get(&json, "?offset=-1"),
            2 => get(&octets, "/bootstrap"),
            _ => get(&octets, &format!("/snapshot/{}", offset(0))),
        };
        let mut socket = narrow_socket(server.address());
        // Pipelined: what waits behind an unread answer is not answered into memory.
        pour(&mut socket, request.as_bytes(), 100 * request.len());
        stuck.push(socket);
    }
    bystander.expect_served();
    await_metric(&server, "write_timeouts_total", |count| {
        count >= READERS as u64 / 2
    });
    await_metric(&server, "connections", |count| count <= 4);
    await_metric(&server, "unsent_bytes", |bytes| bytes == 0);
    assert_eq!(metric(&server, "event_stream_drops_total"), 0);
    let grown = rss_bytes(&server).saturating_sub(before);
    assert!(grown < UNSENT_BYTES, "grew by {grown} bytes");
    bystander.expect_served();
}

/// A client that takes its answer slowly, but steadily, is served; its socket never has much room.
/// One that stops is dropped.
#[test]
fn readers_that_are_only_slow_are_not_dropped() {
    // It tells the server of every few KiB that it took.
    take_slowly(|address| narrow_socket_of(address, 4 << 10), 1 << 10);
}

/// The same for one whose system says seldom what it took, with twice what the README asks for.
#[test]
fn readers_whose_system_says_little_are_not_dropped_if_they_take_some() {
    take_slowly(TcpStream::connect, 16 << 10);
}

/// Takes `bytes` of an answer 16 times in each `--write-timeout`, for four of them.
#[track_caller]
fn take_slowly(connect: impl FnOnce(SocketAddr) -> io::Result<TcpStream>, bytes: usize) {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let server = Options::new(1).flag("write-timeout", "2s").start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::with_body(&server, Surface::Base, OCTETS, vec![b'x'; 8 << 20]);
    let mut socket = connect(server.address()).expect("the server listens");
    socket
        .write_all(get(&stream, "?offset=-1").as_bytes())
        .expect("the server takes a request");
    let started = Instant::now();
    let mut taken = vec![0; bytes];
    while started.elapsed() < 4 * TIMEOUT {
        let read = socket.read(&mut taken);
        assert!(
            read.is_ok_and(|count| count > 0),
            "dropped after {:?}",
            started.elapsed()
        );
        thread::sleep(TIMEOUT / 16);
    }
    assert_eq!(metric(&server, "write_timeouts_total"), 0);
    bystander.expect_served();
    await_metric(&server, "write_timeouts_total", |count| count == 1);
    bystander.expect_served();
}

/// Idle connections end by themselves.
#[test]
fn idle_connections_are_closed() {
    let server = Options::new(1).flag("idle-timeout", "1s").start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let mut never_asked = Connection::to(&server);
    let mut asked = stream.head().open();
    asked.read_response("HEAD").expect(200);
    never_asked.expect_closed();
    asked.expect_closed();
    await_metric(&server, "idle_closes_total", |count| count >= 2);
}

/// Whatever has no end is refused, the refusal can be read, and nothing of it stays.
#[test]
fn requests_without_end_are_refused() {
    let server = Options::new(1).flag("request-bytes-max", 1 << 20).start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let chunked = append_head(&stream, "Transfer-Encoding: chunked\r\n");
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let before = rss_bytes(&server);
    for (start, endless, status) in [
        (chunked.clone(), chunk.as_str(), 413),
        (chunked.clone(), "1\r\nx\r\n", 413),
        (format!("{chunked}1;"), "extension", 400),
        (format!("{chunked}0\r\n"), "X-Trailer: y\r\n", 400),
        ("GET /".to_owned(), "path", 414),
        (get(&stream, "").replace("\r\n\r\n", "\r\nX: "), "y", 431),
        (
            get(&stream, "").replace("\r\n\r\n", "\r\n"),
            "X: y\r\n",
            431,
        ),
    ] {
        let mut connection = Connection::to(&server);
        connection.write(&start);
        let piece = endless.repeat((256 << 10) / endless.len());
        let mut sent = 0;
        while sent < 64 << 20 && connection.try_write(piece.as_bytes()) {
            sent += piece.len();
        }
        assert!(sent < 64 << 20, "{endless:.20?} is read without end");
        match connection.try_read_response("POST") {
            Ok(answer) => assert_eq!(answer.status, status, "for {endless:.20?}: {answer}"),
            // A client that sends on long after its refusal meets a reset.
            Err(_reset) => {}
        }
        bystander.expect_served();
    }
    assert!(metric(&server, "refusals_total") >= 7);
    assert_eq!(metric(&server, "too_large_total"), 7);
    let grown = rss_bytes(&server).saturating_sub(before);
    assert!(grown < 64 << 20, "grew by {grown} bytes");
    assert_eq!(stream.head().send().next_offset(), offset(0));
}

/// More connections than may be: the new ones are closed, the old ones served.
#[test]
fn connections_past_the_bound_are_closed() {
    let server = Options::new(1).flag("connections-max", 20).start();
    let mut bystander = Bystander::new(&server);
    bystander.expect_append();
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(server.address()).expect("the kernel takes connections"));
        if crowd.len() % 10 == 0 {
            bystander.expect_append();
        }
    }
    await_metric(&server, "connections_refused_total", |count| count >= 150);
    assert!(metric(&server, "connections") <= 22);
    drop(crowd);
    eventually("new connections are served again", || {
        let answer = bystander.stream.head().try_send()?;
        (answer.status == 200).then_some(())
    });
    bystander.expect_served();
}

/// Too few descriptors for any service: it says so, and does not start.
#[test]
fn a_server_without_descriptors_says_so() {
    let Err(log) = Options::new(1).files_max(64).try_start() else {
        panic!("64 descriptors are fewer than it needs besides its clients");
    };
    assert!(log.contains("RLIMIT_NOFILE is 64"), "{log}");
}

/// The bound on connections follows the bound on descriptors, so that journals never lack one.
#[test]
fn connections_leave_descriptors_for_the_journal() {
    let server = Options::new(1)
        .files_max(256)
        .flag("request-bytes-max", 64 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .start();
    let mut bystander = Bystander::new(&server);
    bystander.expect_append();
    let crowd: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(server.address()).expect("the kernel takes connections"))
        .collect();
    await_metric(&server, "connections_refused_total", |count| count >= 100);
    // Enough for some new journal files while the crowd is there.
    let append = bystander
        .stream
        .post()
        .header("Content-Type", OCTETS)
        .body(vec![b'x'; 60 << 10])
        .encode();
    for _ in 0..200 {
        bystander.connection.write(&append);
        bystander.connection.read_response("POST").expect(204);
    }
    assert_eq!(metric(&server, "journal_failed"), 0);
    assert_eq!(metric(&server, "accept_errors_total"), 0);
    drop(crowd);
}

/// HTTP case 8: a real limit of 64 descriptors, with 200 connections.
#[test]
fn nothing_spins_without_descriptors() {
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    bystander.expect_append();
    let admin = server.admin_address();
    let mut operator = Connection::open(admin);
    // Lowered while it runs: it is past its own account of descriptors.
    let pid = i32::try_from(server.pid()).expect("a pid fits");
    let limit = rustix::process::Rlimit {
        current: Some(64),
        maximum: Some(64),
    };
    let pid = rustix::process::Pid::from_raw(pid).expect("the server's process runs");
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit)
        .expect("our own child may be limited");
    let crowd: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(server.address()).expect("the kernel takes connections"))
        .collect();
    eventually("the descriptors are used up", || {
        (open_files(&server) >= 60).then_some(())
    });
    let (started, cpu_before) = (Instant::now(), cpu_time(&server));
    while started.elapsed() < Duration::from_secs(3) {
        bystander.expect_answer();
        thread::sleep(Duration::from_millis(100));
    }
    let (wall, cpu) = (started.elapsed(), cpu_time(&server) - cpu_before);
    // Spinning would use all of a core, or what others leave of it; 30 requests need next to none.
    assert!(cpu < wall / 3, "{cpu:?} of CPU time in {wall:?}");
    operator.write("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = operator.read_response("GET").expect(200);
    let errors = answer
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("thalweg_accept_errors_total{shard=\"0\"} "));
    assert!(
        errors.is_some_and(|count| count != "0"),
        "no accept failed, so nothing was tested"
    );
    drop(crowd);
    // The journal, too, may have wanted a descriptor.
    eventually("new connections are served again", || {
        let append = bystander.stream.post().header("Content-Type", OCTETS);
        (append.body("x").try_send()?.status == 204).then_some(())
    });
}

/// The first touch of a huge page holds a core up for as long as it takes to clear 2 MiB.
#[test]
fn memory_comes_in_small_pages() {
    let server = Options::new(1).start();
    assert_eq!(status(&server, "THP_enabled"), "0");
}

/// Clients that ask for much and read nothing: the kernel takes little of the answers for them, too;
/// of a long one a little more, for a few of them.
#[test]
fn unread_answers_cost_the_kernel_little() {
    const CLIENTS: usize = 20;
    let server = Options::new(1).flag("shards", 1).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    stream.append(OCTETS, vec![b'x'; 6 << 20]);
    let request = format!(
        "GET {}?offset=-1 HTTP/1.1\r\nHost: x\r\n\r\n",
        stream.path()
    );
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(server.address()).expect("it listens");
            client.write_all(request.as_bytes()).expect("it is short");
            client
        })
        .collect();
    let mut seen = (Vec::new(), 0);
    let held = eventually("the kernel takes no more", || {
        thread::sleep(Duration::from_millis(50));
        let bytes: Vec<u64> = clients
            .iter()
            .map(|client| unconfirmed(&server, client))
            .collect();
        let stands = if bytes == seen.0 { seen.1 + 1 } else { 0 };
        let is_over = bytes.iter().all(|bytes| *bytes > 0) && stands >= 5;
        seen = (bytes.clone(), stands);
        is_over.then_some(bytes)
    });
    assert!(held.iter().all(|bytes| *bytes < 5 << 18), "{held:?}");
    let long = held.iter().filter(|bytes| **bytes > 1 << 19).count();
    assert!(long <= 16, "{held:?}");
}

/// Bytes that the kernel holds for `client`, which has not confirmed them.
fn unconfirmed(server: &Server, client: &TcpStream) -> u64 {
    let ports = [
        server.address(),
        client.local_addr().expect("it is connected"),
    ];
    let ports = ports.map(|address| format!(":{:04X}", address.port()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let mut sockets = sockets.lines().map(|line| line.split_whitespace());
    let mut socket = sockets
        .find(|socket| {
            let mut ends = socket.clone().skip(1);
            ports
                .iter()
                .all(|port| ends.next().is_some_and(|end| end.ends_with(port)))
        })
        .expect("it is connected");
    let queues = socket.nth(4).expect("two queues");
    let (to_send, _) = queues.split_once(':').expect("two of them");
    u64::from_str_radix(to_send, 16).expect("a number")
}

/// Thousands of requests whose answers nobody reads: no more are read than answers fit.
#[test]
fn unread_pipelines_are_bounded() {
    let server = Options::new(1).flag("write-timeout", "2s").start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let head = get(&stream, "").replace("GET", "HEAD");
    let append = format!("{}x", append_head(&stream, "Content-Length: 1\r\n"));
    let before = rss_bytes(&server);
    let mut floods = Vec::new();
    for request in [&head, &append] {
        for _ in 0..4 {
            let mut socket = narrow_socket(server.address());
            let bytes = request.repeat(1000);
            let sent = pour(&mut socket, bytes.as_bytes(), 256 << 20);
            assert!(sent < 256 << 20, "requests are read without end");
            floods.push(socket);
            bystander.expect_served();
        }
    }
    let grown = rss_bytes(&server).saturating_sub(before);
    assert!(grown < 128 << 20, "grew by {grown} bytes");
    await_metric(&server, "write_timeouts_total", |count| count >= 8);
    bystander.expect_served();
}

/// Hundreds of pipelines at once: while their requests wait for their turns they wait in the kernel,
/// and what has been read of them is accounted for.
#[test]
fn pipelines_that_wait_for_their_turn_hold_little() {
    const FLOODS: usize = 500;
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    bystander.expect_served();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let requests = get(&stream, "").replace("GET", "HEAD").repeat(1500);
    let mut floods: Vec<TcpStream> = (0..FLOODS)
        .map(|_| TcpStream::connect(server.address()).expect("the server listens"))
        .collect();
    await_metric(&server, "connections", |count| count > FLOODS as u64);
    let before = rss_bytes(&server);
    for flood in &mut floods {
        flood.set_nonblocking(true).expect("the socket is open");
        let sent = flood.write(requests.as_bytes());
        assert!(sent.is_ok_and(|count| count > 64 << 10));
    }
    await_metric(&server, "body_bytes", |bytes| bytes > 0);
    bystander.expect_served();
    let grown = rss_bytes(&server).saturating_sub(before);
    assert!(grown < FLOODS as u64 * (48 << 10), "grew by {grown} bytes");
    drop(floods);
    await_metric(&server, "body_bytes", |bytes| bytes == 0);
    bystander.expect_served();
}

/// Clients that all come back at once are all let in, also when the server is busy meanwhile.
#[test]
fn a_crowd_that_reconnects_at_once_is_let_in() {
    const CLIENTS: usize = 2_000;
    let resource = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(resource);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(resource, raised).expect("a soft limit may be raised");
    let server = Options::new(1).start();
    let stream = Stream::with_body(&server, Surface::Base, OCTETS, "abc");
    let pid = i32::try_from(server.pid()).expect("a pid fits");
    let pid = rustix::process::Pid::from_raw(pid).expect("the server's process runs");
    let signal = |signal| rustix::process::kill_process(pid, signal).expect("our own child");
    signal(rustix::process::Signal::STOP);
    let mut clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            TcpStream::connect_timeout(&server.address(), PATIENCE).expect("there is room to wait")
        })
        .collect();
    for client in &mut clients {
        let asked = client.write_all(get(&stream, "?offset=-1").as_bytes());
        asked.expect("the kernel takes a request");
    }
    signal(rustix::process::Signal::CONT);
    for client in clients {
        let mut connection = Connection::over(client);
        connection
            .read_response("GET")
            .expect(200)
            .expect_body("abc");
    }
}

/// A client that pipelines as fast as it can, and reads, has no more than its share of a core.
#[test]
fn greedy_pipelines_leave_others_their_turn() {
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let requests = get(&stream, "").replace("GET", "HEAD").repeat(500);
    let stop = AtomicBool::new(false);
    let greedy = || {
        let mut writer = TcpStream::connect(server.address()).expect("the server listens");
        let mut reader = writer.try_clone().expect("a socket can be shared");
        thread::scope(|scope| {
            scope.spawn(move || while reader.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {});
            while !stop.load(Ordering::Relaxed) {
                if writer.write_all(requests.as_bytes()).is_err() {
                    break;
                }
            }
            let _ = writer.shutdown(Shutdown::Both);
        });
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(greedy);
        }
        for _ in 0..30 {
            bystander.expect_served();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let turns = metric(&server, "turns_total");
    assert!(turns > 0, "three greedy clients never had their share");
}

/// Protocol case 11: readers that stop while much is appended cost no more than their budget, are
/// dropped, and resume by offset.
#[test]
fn event_streams_that_nobody_reads_are_dropped() {
    const READERS: usize = 60;
    const APPENDS: usize = 64;
    let server = Options::new(1).flag("write-timeout", "2s").start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let body = vec![b'x'; 4 << 20];
    stream.append(OCTETS, &body);
    let before = rss_bytes(&server).saturating_sub(metric(&server, "memory_bytes"));
    // Each at an offset of its own: they share no event.
    let stalled: Vec<TcpStream> = (0..READERS)
        .map(|index| {
            narrow_reader(
                &server,
                &stream,
                &format!("?offset={}&live=sse", offset(index)),
            )
        })
        .collect();
    for _ in 1..APPENDS {
        stream.append(OCTETS, &body);
        let beyond = rss_bytes(&server)
            .saturating_sub(metric(&server, "memory_bytes"))
            .saturating_sub(before);
        assert!(
            beyond < UNSENT_BYTES,
            "grew by {beyond} bytes beside the data"
        );
    }
    bystander.expect_served();
    await_metric(&server, "live_readers", |count| count == 0);
    let dropped = metric(&server, "write_timeouts_total") + metric(&server, "shed_total");
    assert!(dropped >= READERS as u64, "{dropped} of {READERS}");
    assert_eq!(metric(&server, "event_stream_drops_total"), dropped);
    drop(stalled);
    let near_the_end = APPENDS * body.len() - 1000;
    let mut resumed = stream.sse(&offset(near_the_end));
    let (bytes, _) = resumed.until_up_to_date(|event| event.bytes());
    assert_eq!(bytes.len(), 1000);
}

/// Resets at every stage leave nothing behind.
#[test]
fn resets_at_every_stage_leave_nothing_behind() {
    let server = Options::new(4).start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let large = Stream::with_body(&server, Surface::Base, OCTETS, vec![b'x'; 8 << 20]);
    let append = format!(
        "{}0123456789",
        append_head(&stream, "Content-Length: 10\r\n")
    );
    let tail = |what: &str| get(&stream, &format!("?offset=now&live={what}"));
    let stages = [
        String::new(),
        "G".to_owned(),
        append[..append.len() - 12].to_owned(),
        append[..append.len() - 1].to_owned(),
        append_head(&stream, "Transfer-Encoding: chunked\r\n") + "5\r\nab",
        append_head(&stream, "Content-Length: 5\r\nExpect: 100-continue\r\n"),
        append.repeat(100),
        get(&large, "?offset=-1"),
        get(&large, "?offset=-1").repeat(10),
        get(&large, "?offset=-1&live=sse"),
        tail("sse"),
        tail("long-poll"),
        format!("{}{append}", tail("long-poll")),
    ];
    let files_before = open_files(&server);
    for pause in [0, 1, 20] {
        for stage in &stages {
            for _ in 0..5 {
                let mut socket = narrow_socket(server.address());
                socket
                    .write_all(stage.as_bytes())
                    .expect("the server takes what is sent");
                thread::sleep(Duration::from_millis(pause));
                reset(socket);
            }
        }
        bystander.stream.head().send().expect(200);
    }
    await_metric(&server, "live_readers", |count| count == 0);
    // Those of the bystander, of each core's listener, and of this very request.
    await_metric(&server, "connections", |count| count <= 8);
    eventually("every descriptor is given back", || {
        (open_files(&server) <= files_before + 4).then_some(())
    });
    assert!(metric(&server, "broken_total") > 0);
    assert_eq!(metric(&server, "panics_total"), 0);
    bystander.expect_served();
}

/// Requests cut at every byte, and sent byte by byte, are the same requests.
#[test]
fn requests_may_arrive_in_any_pieces() {
    let server = Options::new(4).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let requests = [
        format!(
            "{}0123456789",
            append_head(&stream, "Content-Length: 10\r\n")
        ),
        append_head(&stream, "Transfer-Encoding: chunked\r\n") + "a\r\n0123456789\r\n0\r\n\r\n",
    ];
    let mut tail = 0;
    for request in &requests {
        for cut in 0..request.len() {
            let mut connection = Connection::to(&server);
            connection.write(&request[..cut]);
            thread::sleep(Duration::from_millis(1));
            connection.write(&request[cut..]);
            let answer = connection.read_response("POST").expect(204);
            tail += 10;
            assert_eq!(answer.next_offset(), offset(tail), "cut at {cut}");
        }
        let mut connection = Connection::to(&server);
        for byte in request.as_bytes() {
            connection.write([*byte]);
        }
        let answer = connection.read_response("POST").expect(204);
        tail += 10;
        assert_eq!(answer.next_offset(), offset(tail));
    }
    assert_eq!(stream.read_all(), b"0123456789".repeat(tail / 10));
}

/// A client that ended its side still gets what it asked for; only from an event stream it is
/// taken to be gone.
#[test]
fn half_closed_clients_are_answered() {
    let server = Options::new(4).start();
    let stream = Stream::with_body(&server, Surface::Base, OCTETS, "abc");
    let pipelined = get(&stream, "?offset=-1").repeat(3);
    let mut connection = Connection::to(&server);
    connection.write(pipelined);
    connection.finish_writing();
    for _ in 0..3 {
        connection
            .read_response("GET")
            .expect(200)
            .expect_body("abc");
    }
    connection.expect_closed();

    let mut poll = stream.get("offset=now&live=long-poll").open();
    poll.finish_writing();
    await_metric(&server, "live_readers", |count| count == 1);
    stream.append(OCTETS, "def");
    poll.read_response("GET").expect(200).expect_body("def");
    poll.expect_closed();

    let mut events = stream.get("offset=-1&live=sse").open();
    events.read_head();
    events.finish_writing();
    while events.read_chunk().is_some() {}
    await_metric(&server, "live_readers", |count| count == 0);
    assert_eq!(metric(&server, "truncated_total"), 0);
}

/// A request that its client ends in the middle is none, and is counted; those before it are
/// answered.
#[test]
fn requests_that_end_in_the_middle_are_counted() {
    let server = Options::new(1).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let append = format!("{}abc", append_head(&stream, "Content-Length: 3\r\n"));
    for (cut, counted) in [(20, 1), (append.len() - 1, 2)] {
        let mut connection = Connection::to(&server);
        connection.write(&append);
        connection.write(&append[..cut]);
        connection.finish_writing();
        connection.read_response("POST").expect(204);
        connection.expect_closed();
        assert_eq!(metric(&server, "truncated_total"), counted);
    }
    // All of it is there before the first of it is looked at.
    let tail = stream.head().send().next_offset();
    let poll = get(&stream, &format!("?offset={tail}&live=long-poll"));
    let mut connection = Connection::to(&server);
    connection.write(poll);
    await_metric(&server, "live_readers", |count| count == 1);
    let before = metric(&server, "received_bytes_total");
    let both = format!("{append}{}", &append[..append.len() - 1]);
    connection.write(&both);
    connection.finish_writing();
    await_metric(&server, "received_bytes_total", |bytes| {
        bytes >= before + both.len() as u64
    });
    stream.append(OCTETS, "def");
    connection
        .read_response("GET")
        .expect(200)
        .expect_body("def");
    connection.read_response("POST").expect(204);
    connection.expect_closed();
    assert_eq!(metric(&server, "truncated_total"), 3);
    assert_eq!(stream.read_all(), b"abcabcdefabc");
}

/// Ends its connections when it goes, also when a test fails.
struct HangUp(Vec<TcpStream>);

impl Drop for HangUp {
    fn drop(&mut self) {
        for socket in &self.0 {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Whoever asks on and on on the operator's plane does not keep the core from its clients: between
/// two of their answers it gets some, not all that it asks for.
#[test]
fn greedy_operators_leave_clients_their_turn() {
    const ANSWERS: usize = 20;
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    let requests = "GET /__ursula/live HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(500);
    let taken_bytes = AtomicUsize::new(0);
    thread::scope(|scope| {
        let mut hang_up = HangUp(Vec::new());
        for _ in 0..3 {
            let mut writer = TcpStream::connect(server.admin_address()).expect("it listens");
            let mut reader = writer.try_clone().expect("a socket can be shared");
            let end = writer.try_clone().expect("a socket can be shared");
            hang_up.0.push(end);
            let (requests, taken_bytes) = (requests.as_bytes(), &taken_bytes);
            scope.spawn(move || while writer.write_all(requests).is_ok() {});
            scope.spawn(move || {
                while let Ok(count @ 1..) = reader.read(&mut [0; 65536]) {
                    taken_bytes.fetch_add(count, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(Duration::from_millis(200));
        let before = taken_bytes.load(Ordering::Relaxed);
        for _ in 0..ANSWERS {
            bystander.expect_answer();
        }
        let taken = taken_bytes.load(Ordering::Relaxed) - before;
        // An answer has some hundred bytes; a core that is kept gives 10,000 times as many.
        let most = ANSWERS * 2_000_000;
        assert!(taken < most, "{taken} bytes between {ANSWERS} answers");
    });
}

/// The operator's plane is bounded too, and comes back.
#[test]
fn the_admin_plane_is_bounded() {
    let server = Options::new(1).flag("idle-timeout", "1s").start();
    let mut bystander = Bystander::new(&server);
    let files_before = open_files(&server);
    let crowd: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(server.admin_address()).expect("the kernel takes connections"))
        .collect();
    eventually("the crowd is there", || {
        (open_files(&server) >= files_before + 60).then_some(())
    });
    assert!(open_files(&server) <= files_before + 70);
    bystander.expect_served();
    let dripping =
        TcpStream::connect(server.admin_address()).expect("the kernel takes connections");
    drip_until_over(dripping, b"GET /metrics");
    eventually("the operator is served again", || {
        let live = crate::common::http::Request::to(server.admin_address(), "GET", "/metrics");
        (live.try_send()?.status == 200).then_some(())
    });
    drop(crowd);
}
