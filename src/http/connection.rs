//! One connection's side of HTTP/1.1 as a machine over bytes: no socket, no clock.
//!
//! ```text
//!          next_head            accept_body          next_body: Done
//!  Head ─────────────► Decide ───────────────► Body ─────────────────► Complete
//!   ▲                    │ reject                │ reject, a refusal       │
//!   │                    ▼                       ▼                         │
//!   │                 Rejected ◄─────────────────┘                         │
//!   │ finish             │                                                 │ finish
//!   ├──────── Skip ◄─────┼─────► Drain ─────► Closed ◄─────────────────────┤
//!   └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Guarantees:
//! - What follows a request is read as a request only if the end of that request was found; after
//!   a refusal nothing is (cases/http.md 1).
//! - A 100 is asked for at most once a request, only when the body is wanted and no byte of it is
//!   there (cases/http.md 5, RFC 9110 section 10.1.1).
//! - A refused client gets to read its answer: what it still sends is read and dropped, up to a
//!   bound, before the close (cases/http.md 6). The bound in time is the driver's.
//! - Memory is bounded by [`ConnectionLimits::input_bytes_max`]: when the buffer is full,
//!   [`Connection::space`] is empty and the driver stops reading. A connection that waits for a
//!   request may hold no buffer at all ([`Connection::release`]).
//!
//! The owner may call [`Connection::finish`] as soon as it has what it needs of a request, and go
//! on with the next while answers are pending, as long as it writes them in order.
//!
//! Calls out of turn are the owner's mistakes: debug builds assert, release builds end the
//! connection rather than read anything as a request.

#![forbid(unsafe_code)]

mod event;
mod input;
#[cfg(test)]
mod splits;
#[cfg(test)]
mod tests;

use crate::base::limits::{KIB, Limits, SKIP_BYTES_MAX};
use crate::http::body::{BodyDecoder, BodyError};
use crate::http::parse::{Head, HeadLimits, HeadParser, Lookup, Method, Refusal};

pub use event::{BodyEvent, Continue, DrainEvent, HeadEvent, Next, Phase};
use input::{INPUT_BYTES_MIN, Input};

/// Size of the input buffer beyond a head, in bytes: what one read of a large body may bring.
const INPUT_BODY_BYTES: usize = 64 * KIB;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Bounds of a request head.
    pub head: HeadLimits,
    /// Most bytes read and dropped so that a client sees a refusal before the close.
    pub drain_bytes_max: u64,
}

impl ConnectionLimits {
    /// Most bytes that the input buffer may hold: a head that is kept while its body comes in,
    /// and a read.
    pub fn input_bytes_max(&self) -> usize {
        self.head.head_bytes_max.saturating_add(INPUT_BODY_BYTES)
    }
}

impl From<&Limits> for ConnectionLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            head: HeadLimits::from(limits),
            drain_bytes_max: limits.drain_bytes_max,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before or in a head.
    Head,
    /// A head is there; the owner has not said what becomes of the body.
    Decide,
    /// The owner takes the body.
    Body,
    /// The whole request has been read.
    Complete,
    /// The owner gets, or wants, no more of the request.
    Rejected,
    /// Reading past a short body nobody wants.
    Skip,
    /// Dropping what comes, until the client notices.
    Drain,
    Closed,
}

/// Buffers that hold nothing: what [`Connection::release`] lets go of, and [`Connection::lend`]
/// takes over.
#[derive(Debug)]
pub struct Buffers {
    input: Vec<u8>,
    head: Head,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    limits: ConnectionLimits,
    state: State,
    input: Input,
    parser: HeadParser,
    head: Head,
    body: BodyDecoder,
    /// No request is read after this one.
    close: bool,
    /// The client has ended its side.
    ended: bool,
    drained_bytes: u64,
}

impl Connection {
    /// A connection on which nothing has happened. Allocates nothing.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            state: State::Head,
            input: Input::default(),
            parser: HeadParser::default(),
            head: Head::default(),
            body: BodyDecoder::complete(),
            close: false,
            ended: false,
            drained_bytes: 0,
        }
    }

    /// Room for the next read; report what came with [`Self::received`]. Empty when the buffer is
    /// full of what the owner has not taken: then do not read, for a read into nothing looks like
    /// the end.
    pub fn space(&mut self) -> &mut [u8] {
        self.space_up_to(usize::MAX)
    }

    /// The same for a read of at most `bytes_max`: the buffer grows no more than for that.
    pub fn space_up_to(&mut self, bytes_max: usize) -> &mut [u8] {
        if matches!(self.state, State::Drain | State::Closed) {
            self.discard();
        }
        // While the owner is at work, one pipelined read is enough.
        let may_grow = !self.input.has_pending()
            || matches!(self.state, State::Head | State::Body | State::Skip);
        let needed_max = self.input.held_bytes().saturating_add(bytes_max);
        let limit = self.limits.input_bytes_max().min(needed_max);
        let space = self.input.space(may_grow, limit);
        let count = space.len().min(bytes_max);
        space.get_mut(..count).unwrap_or_default()
    }

    /// `count` bytes were read into [`Self::space`]; 0 means that the client ended its side.
    pub fn received(&mut self, count: usize) {
        self.input.received(count);
        self.ended |= count == 0;
    }

    /// Takes a copy of as much of `bytes` as there is room for, and says how much that was: for a
    /// driver that reads for connections without a buffer into one of its own.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            let space = self.space();
            let count = space.len().min(rest.len());
            let (Some(to), Some(from)) = (space.get_mut(..count), rest.get(..count)) else {
                break;
            };
            if count == 0 {
                break;
            }
            to.copy_from_slice(from);
            self.input.received(count);
            taken = taken.saturating_add(count);
        }
        taken
    }

    /// The client ended its side. Requests that are whole are still served.
    pub fn receive_end(&mut self) {
        self.ended = true;
    }

    /// Looks for the next request: first, and again after [`HeadEvent::NeedInput`] and
    /// [`Next::Head`].
    pub fn next_head(&mut self) -> HeadEvent {
        if self.state == State::Skip
            && let Some(event) = self.skip()
        {
            return event;
        }
        if self.state != State::Head {
            debug_assert!(matches!(self.state, State::Drain | State::Closed));
            self.state = State::Closed;
            return HeadEvent::Closed;
        }
        let input = self.input.pending();
        match self.parser.parse(input, &self.limits.head, &mut self.head) {
            Ok(true) => {
                self.input.keep(self.head.consumed);
                self.close |= !self.head.keep_alive;
                self.state = State::Decide;
                HeadEvent::Head
            }
            Ok(false) if self.ended => {
                self.state = State::Closed;
                if self.parser.has_begun(input) {
                    HeadEvent::Truncated
                } else {
                    HeadEvent::Closed
                }
            }
            Ok(false) => HeadEvent::NeedInput,
            Err(refusal) => {
                // It may hold half of this head, which nobody must take for a request.
                self.head = Head::default();
                self.end_request();
                HeadEvent::Refused(refusal)
            }
        }
    }

    /// The head in hand, until [`Self::finish`].
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The bytes that [`Self::head`] refers to.
    pub fn head_bytes(&self) -> &[u8] {
        self.input.kept()
    }

    /// The method of the head in hand.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The request target of the head in hand, raw.
    pub fn target(&self) -> &[u8] {
        self.head.target(self.head_bytes())
    }

    /// The fields of the head in hand.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.head.headers(self.head_bytes())
    }

    /// A field of the head in hand.
    pub fn header(&self, name: &str) -> Lookup<'_> {
        self.head.find(self.head_bytes(), name)
    }

    /// Takes the body, up to `bytes_max` of it. A request without one is complete;
    /// [`Self::next_body`] says so at once.
    ///
    /// # Errors
    /// The refusal of a body that is known to be too large: answer it, then [`Self::finish`].
    pub fn accept_body(&mut self, bytes_max: u64) -> Result<Continue, Refusal> {
        debug_assert_eq!(self.state, State::Decide);
        match BodyDecoder::new(self.head.framing, bytes_max) {
            Ok(body) => {
                let waits = self.client_waits();
                self.body = body;
                self.state = State::Body;
                Ok(if waits { Continue::Send } else { Continue::No })
            }
            Err(error) => {
                self.reject();
                Err(error.refusal())
            }
        }
    }

    /// The next piece of the body that was accepted.
    pub fn next_body(&mut self) -> BodyEvent<'_> {
        match self.state {
            State::Body => {}
            State::Complete => return BodyEvent::Done,
            _ => {
                debug_assert!(false, "no body was accepted");
                return BodyEvent::Truncated;
            }
        }
        let step = match self.body.decode(self.input.pending()) {
            Ok(step) => step,
            Err(error) => {
                self.end_request();
                return BodyEvent::Refused(error.refusal());
            }
        };
        if step.payload.is_empty() {
            self.input.take(step.consumed, 0..0);
            if step.done {
                self.state = State::Complete;
                return BodyEvent::Done;
            }
            if self.ended {
                self.end_request();
                return BodyEvent::Truncated;
            }
            return BodyEvent::NeedInput;
        }
        BodyEvent::Piece(self.input.take(step.consumed, step.payload))
    }

    /// Bytes of the body that may be read from the socket straight to where they belong, past
    /// this buffer: 0 unless the length is known and everything received has been taken. Report
    /// them with [`Self::received_direct`].
    pub fn direct_bytes_max(&self) -> u64 {
        if self.state == State::Body && !self.input.has_pending() && !self.ended {
            self.body.remaining().unwrap_or(0)
        } else {
            0
        }
    }

    /// `bytes` bytes of the body, at most [`Self::direct_bytes_max`], were read past this buffer;
    /// 0 means that the client ended its side.
    pub fn received_direct(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.direct_bytes_max());
        self.body.take_payload(bytes);
        self.ended |= bytes == 0;
    }

    /// The owner answers without the body, or without the rest of it. From here on
    /// [`Self::should_close`] says whether the connection can be kept.
    pub fn reject(&mut self) {
        debug_assert!(matches!(self.state, State::Decide | State::Body));
        if self.state == State::Decide {
            // A client that asked for a 100 and gets a refusal may send the body, or what is left
            // of it, or not: where the next request would start is unknown. Also when some of it
            // is here: what an answer says must not depend on how the bytes came.
            self.close |= self.head.expect_continue && self.head.framing.has_body();
            match BodyDecoder::new(self.head.framing, u64::MAX) {
                Ok(body) => self.body = body,
                Err(_) => self.close = true,
            }
        }
        self.state = State::Rejected;
        if self.skip_received().is_err() {
            self.close = true;
        } else if self.body.is_done() {
            self.state = State::Complete;
        } else {
            let remaining = self.body.remaining();
            self.close |= remaining.is_none_or(|remaining| remaining > SKIP_BYTES_MAX);
        }
    }

    /// Whether the answer to the request in hand must say `Connection: close`. If not, an
    /// HTTP/1.0 client must be told `Connection: keep-alive`.
    pub fn should_close(&self) -> bool {
        self.close
    }

    /// The owner wants no request after the one in hand (shutdown, too many requests).
    pub fn close_after_this(&mut self) {
        self.close = true;
    }

    /// The owner is done with the request in hand: its head goes. Its answer may be pending.
    pub fn finish(&mut self) -> Next {
        debug_assert!(matches!(self.state, State::Complete | State::Rejected));
        let is_complete = self.state == State::Complete;
        self.input.forget();
        if !self.close && matches!(self.state, State::Complete | State::Rejected) {
            self.state = if is_complete {
                State::Head
            } else {
                State::Skip
            };
            return Next::Head;
        }
        // Unread bytes at a close make the kernel send a reset, which can overtake the answer
        // (RFC 9112 section 9.6).
        if is_complete && !self.input.has_pending() {
            self.state = State::Closed;
            return Next::Close;
        }
        self.state = State::Drain;
        Next::Drain
    }

    /// Drops what has been received after [`Next::Drain`].
    pub fn drain(&mut self) -> DrainEvent {
        debug_assert!(matches!(self.state, State::Drain | State::Closed));
        self.discard();
        if self.ended || self.drained_bytes >= self.limits.drain_bytes_max {
            self.state = State::Closed;
        }
        if self.state == State::Drain {
            return DrainEvent::NeedInput;
        }
        self.input.release();
        self.head = Head::default();
        DrainEvent::Done
    }

    /// Which of its timeouts the driver applies.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Head if self.parser.has_begun(self.input.pending()) => Phase::Head,
            State::Head => Phase::Idle,
            State::Body if self.body.is_done() => Phase::Answering,
            State::Body | State::Skip => Phase::Body,
            State::Decide | State::Complete | State::Rejected => Phase::Answering,
            State::Drain => Phase::Draining,
            State::Closed => Phase::Closed,
        }
    }

    /// Whether bytes are there that nothing has taken: a pipelined request, or part of one.
    pub fn has_input(&self) -> bool {
        self.input.has_pending()
    }

    /// Whether the client has ended its side.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Lets go of the buffers if they hold nothing: for a connection that may wait long. They are
    /// returned if they are of the size that another is likely to want.
    pub fn release(&mut self) -> Option<Buffers> {
        if self.state != State::Head || self.input.has_pending() {
            return None;
        }
        let buffers = Buffers {
            input: self.input.release(),
            head: std::mem::take(&mut self.head),
        };
        (buffers.input.len() == INPUT_BYTES_MIN && buffers.head.memory_bytes() <= INPUT_BYTES_MIN)
            .then_some(buffers)
    }

    /// Takes over what another connection has let go of, if it has no buffers itself.
    pub fn lend(&mut self, buffers: Buffers) {
        if self.memory_bytes() == 0 {
            self.input.lend(buffers.input);
            self.head = buffers.head;
        }
    }

    /// Bytes of memory that this connection holds besides itself.
    pub fn memory_bytes(&self) -> usize {
        self.input
            .memory_bytes()
            .saturating_add(self.head.memory_bytes())
    }

    /// Whether the client waits for a 100 before it sends a body of which nothing is here.
    fn client_waits(&self) -> bool {
        self.head.expect_continue && self.head.framing.has_body() && !self.input.has_pending()
    }

    /// The end of the request in hand will not be found.
    fn end_request(&mut self) {
        self.close = true;
        self.state = State::Rejected;
    }

    /// Takes and drops what has been received of the body.
    fn skip_received(&mut self) -> Result<(), BodyError> {
        while self.input.has_pending() && !self.body.is_done() {
            let step = self.body.decode(self.input.pending())?;
            self.input.take(step.consumed, 0..0);
        }
        Ok(())
    }

    /// Reads past the rest of a body that was rejected; `None` once it is behind.
    fn skip(&mut self) -> Option<HeadEvent> {
        let failed = self.skip_received().is_err();
        if self.body.is_done() {
            self.state = State::Head;
            return None;
        }
        if failed || self.ended {
            self.state = State::Closed;
            return Some(HeadEvent::Closed);
        }
        Some(HeadEvent::NeedInput)
    }

    fn discard(&mut self) {
        let bytes = self.input.discard() as u64;
        self.drained_bytes = self.drained_bytes.saturating_add(bytes);
    }
}
