//! One non-blocking socket: requests out, answers in.
//!
//! A connection that is gone is opened again by the next request. Sending keeps what the socket did not take; receiving reads
//! into the thread's scratch buffer and keeps only bytes that cannot be understood yet (part of a head or of a chunk line), so
//! an idle connection costs no buffer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::error::ErrorKind;
use crate::http::{Parser, Sink};

/// Reads from one socket before others get their turn.
const READS_PER_TURN_MAX: u32 = 8;

/// What a turn of reading led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The answer is not complete; an event will tell of more.
    Partial,
    /// The answer is not complete and there may be more to read right now.
    Unfinished,
    /// The answer is complete; whether the connection can be used again.
    Complete {
        /// It can.
        keep_alive: bool,
    },
}

/// One connection, open or not.
#[derive(Debug, Default)]
pub struct Connection {
    socket: Option<TcpStream>,
    parser: Parser,
    /// Received, not understood yet.
    carry: Vec<u8>,
    /// The request being sent.
    pub out: Vec<u8>,
    sent: usize,
    /// Requests sent since it was opened.
    pub requests: u64,
}

impl Connection {
    /// The socket, if there is one.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Starts to connect. The outcome shows when sending.
    pub fn open(&mut self, to: &SocketAddr) -> io::Result<()> {
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.close();
        self.socket = Some(TcpStream::from(socket));
        Ok(())
    }

    /// Forgets the socket and everything about the answer that was due.
    pub fn close(&mut self) {
        self.socket = None;
        self.parser = Parser::default();
        self.carry.clear();
        self.requests = 0;
        self.sent = 0;
    }

    /// Sends what is left of `out`; true once all of it is gone.
    pub fn send(&mut self) -> Result<bool, ErrorKind> {
        let Some(socket) = &mut self.socket else {
            return Err(ErrorKind::Connect);
        };
        while self.sent < self.out.len() {
            match socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::Broken),
                Ok(taken) => self.sent += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Not connected yet; the event that says so follows.
                Err(error) if error.kind() == io::ErrorKind::NotConnected && self.requests == 0 => {
                    return Ok(false);
                }
                Err(_) if self.requests == 0 => return Err(ErrorKind::Connect),
                Err(_) => return Err(ErrorKind::Broken),
            }
        }
        self.sent = 0;
        self.out.clear();
        self.requests += 1;
        Ok(true)
    }

    /// For a connection nothing is due on: forgets it if the server closed it; true if the server sent something instead.
    pub fn said_something_unasked(&mut self) -> bool {
        let mut byte = [0; 1];
        match self.socket.as_mut().map(|socket| socket.read(&mut byte)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => false,
            Some(Ok(1..)) => {
                self.close();
                true
            }
            _ => {
                self.close();
                false
            }
        }
    }

    /// Whether part of the request has not been sent.
    pub fn sending(&self) -> bool {
        !self.out.is_empty()
    }

    /// Reads and hands on what is there of the answer.
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        sink: &mut impl Sink,
    ) -> Result<Received, ErrorKind> {
        for _ in 0..READS_PER_TURN_MAX {
            let carried = self.carry.len();
            scratch[..carried].copy_from_slice(&self.carry);
            let Some(socket) = &mut self.socket else {
                return Err(ErrorKind::Broken);
            };
            let room = scratch.len() - carried;
            let taken = match socket.read(&mut scratch[carried..]) {
                Ok(0) if self.parser.complete_at_close() => {
                    return Ok(Received::Complete { keep_alive: false });
                }
                Ok(0) => return Err(ErrorKind::Broken),
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Partial);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if self.requests == 0 => return Err(ErrorKind::Connect),
                Err(_) => return Err(ErrorKind::Broken),
            };
            let input = &scratch[..carried + taken];
            let progress = self
                .parser
                .advance(input, sink)
                .map_err(|_| ErrorKind::Malformed)?;
            self.carry.clear();
            if progress.complete {
                if progress.consumed < input.len() {
                    return Err(ErrorKind::Unasked);
                }
                return Ok(Received::Complete {
                    keep_alive: self.parser.keep_alive(),
                });
            }
            self.carry.extend_from_slice(&input[progress.consumed..]);
            if taken < room {
                // A short read has emptied the socket; what comes later is announced by an edge of its own.
                return Ok(Received::Partial);
            }
        }
        Ok(Received::Unfinished)
    }
}
