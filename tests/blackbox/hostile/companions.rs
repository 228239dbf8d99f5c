//! Many honest clients at once, on one thread: each appends, and appends again
//! as soon as it is answered. They are what a server is busy with while an
//! [attack](super::attack) is measured.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use crate::common::http::Connection;
use crate::common::server::Server;
use crate::common::stream::{OCTETS, Stream, Surface};

/// Streams that they append to, in turn.
const STREAMS: usize = 64;
/// Bytes of each append.
const BODY: [u8; 256] = [b'x'; 256];
/// How long they wait for an answer before they look whether they are to go on.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// The clients, each connected.
pub struct Companions {
    clients: Vec<Client>,
    ready: OwnedFd,
}

struct Client {
    socket: TcpStream,
    append: Vec<u8>,
    sent: Instant,
    answer: Vec<u8>,
}

impl Companions {
    /// `count` clients of `server`.
    pub fn new(server: &Server, count: usize) -> Self {
        let streams: Vec<Stream<'_>> = (0..STREAMS.min(count))
            .map(|_| Stream::create(server, Surface::Base, OCTETS))
            .collect();
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor is free");
        let client = |index: usize| {
            let append = streams[index % streams.len()].post();
            let socket = Connection::to(server).writer();
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&ready, &socket, data, epoll::EventFlags::IN).expect("it is a socket");
            Client {
                socket,
                append: append.header("Content-Type", OCTETS).body(BODY).encode(),
                sent: Instant::now(),
                answer: Vec::new(),
            }
        };
        Self {
            clients: (0..count).map(client).collect(),
            ready,
        }
    }

    /// Lets them append until `is_over`, and says how long each append took.
    ///
    /// # Panics
    /// When an append is not answered with 204.
    pub fn append(&mut self, is_over: &AtomicBool) -> Vec<Duration> {
        let mut latencies = Vec::new();
        let mut awaited = self.clients.len();
        self.clients.iter_mut().for_each(Client::send);
        let mut events = Vec::with_capacity(self.clients.len());
        while awaited > 0 {
            epoll::wait(&self.ready, spare_capacity(&mut events), Some(&LOOK))
                .expect("it is an epoll");
            for event in events.drain(..) {
                let client = &mut self.clients[event.data.u64() as usize];
                if !client.is_answered() {
                    continue;
                }
                latencies.push(client.sent.elapsed());
                if is_over.load(Ordering::Relaxed) {
                    awaited -= 1;
                } else {
                    client.send();
                }
            }
        }
        latencies
    }
}

impl Client {
    fn send(&mut self) {
        self.sent = Instant::now();
        self.socket
            .write_all(&self.append)
            .expect("the server takes an append");
    }

    /// Reads some of the answer; whether it is whole.
    fn is_answered(&mut self) -> bool {
        let mut part = [0; 1024];
        let count = self.socket.read(&mut part).expect("the server answers");
        self.answer.extend_from_slice(&part[..count]);
        assert!(count > 0, "closed after {:?}", self.answer);
        let is_whole = self.answer.ends_with(b"\r\n\r\n");
        if is_whole {
            let text = String::from_utf8_lossy(&self.answer);
            assert!(text.starts_with("HTTP/1.1 204 "), "{text}");
            self.answer.clear();
        }
        is_whole
    }
}
