//! One connection's side of HTTP/1.1 as a machine over bytes: no socket, no clock.
//!
//! ```text
//!            next_head             accept_body           next_body: Done
//!  Head ──────────────► Decide ────────────────► Body ─────────────────► Complete
//!   ▲                     │ reject                 │ reject, refused         │
//!   │                     ▼                        ▼                         │
//!   │     finish      Rejected ◄───────────────────┘                  finish │
//!   ├─────(Skip)──────────┤                                                  │
//!   │                     └─────── finish ──► Drain ──► Closed ◄─────────────┤
//!   └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Guarantees:
//! - What follows a request is read as a request only if the end of that request was found; after
//!   a refusal nothing is (cases/http.md 1).
//! - A 100 is asked for at most once a request, only when the body is wanted and no byte of it is
//!   there (cases/http.md 5, RFC 9110 section 10.1.1).
//! - A refused client gets to read its answer: what it still sends is read and dropped, up to a
//!   bound, before the close (cases/http.md 6). The time bound is the driver's.
//! - The input buffer never exceeds [`ConnectionLimits::input_bytes_max`]: when it is full,
//!   [`Connection::space`] is empty and the driver stops reading. A connection that waits for a
//!   request may hold no buffer at all ([`Connection::release`]).
//!
//! Answers are the owner's: it may call [`Connection::finish`] as soon as it has read the request
//! and go on with the next while answers are pending, as long as it writes them in order.

#![forbid(unsafe_code)]

use crate::base::limits::{KIB, Limits};
use crate::http::body::{BodyDecoder, BodyError};
use crate::http::parse::{Head, HeadLimits, HeadParser, Lookup, Method, Refusal};

/// First size of the input buffer, in bytes: a common head with a small body.
const INPUT_BYTES_MIN: usize = 4 * KIB;
/// Size of the input buffer beyond a head, in bytes: what one read of a large body may bring.
const INPUT_BODY_BYTES: usize = 64 * KIB;
/// Less room than this is not worth a read, in bytes, while the buffer may grow or move.
const SPACE_BYTES_MIN: usize = KIB;
/// Longest rest of a refused body that is read to keep the connection, in bytes.
const SKIP_BYTES_MAX: u64 = 64 * KIB as u64;

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

/// What [`Connection::next_head`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// Read more, then ask again.
    NeedInput,
    /// A request: see [`Connection::head`]. Then [`Connection::accept_body`] or
    /// [`Connection::reject`].
    Head,
    /// No request: answer this, then [`Connection::finish`].
    Refused(Refusal),
    /// The client ended its side inside a head; there is nobody to tell.
    Truncated,
    /// No further request will come.
    Closed,
}

/// What [`Connection::next_body`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEvent<'c> {
    /// Read more, then ask again.
    NeedInput,
    /// The next bytes of the body; never empty.
    Piece(&'c [u8]),
    /// The body is complete: answer, and [`Connection::finish`].
    Done,
    /// The body is wrong or too large: answer this, then [`Connection::finish`].
    Refused(Refusal),
    /// The client ended its side inside the body: drop the request.
    Truncated,
}

/// What [`Connection::accept_body`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Continue {
    /// Write [`crate::http::encode::CONTINUE`], behind the answers that are pending.
    Send,
    /// Write nothing.
    No,
}

/// What to do once a request's answer is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Ask for the next head.
    Head,
    /// Write out what is pending, shut down the writing side, then [`Connection::drain`].
    Drain,
    /// Write out what is pending and close.
    Close,
}

/// What [`Connection::drain`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainEvent {
    /// Read more, or give up when the time for it is over.
    NeedInput,
    /// The client ended its side, or has sent as much as is tolerated: close.
    Done,
}

/// What the connection waits for: which timeout applies to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// For the first byte of a request.
    Idle,
    /// For the rest of a head.
    Head,
    /// For the rest of a body, wanted or skipped.
    Body,
    /// For the owner: the client owes nothing.
    Answering,
    /// For the client to notice a refusal.
    Draining,
    /// For nothing.
    Closed,
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
    /// The owner wants no more of the request.
    Rejected,
    /// Reading past a short body nobody wants.
    Skip,
    Drain,
    Closed,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    limits: ConnectionLimits,
    state: State,
    /// Initialised throughout; `head_at <= next <= end <= input.len()`.
    input: Vec<u8>,
    /// Start of the current head, which stays in place until [`Connection::finish`]; equal to
    /// `next` while there is none.
    head_at: usize,
    /// First byte that nothing has taken.
    next: usize,
    /// End of what has been received.
    end: usize,
    parser: HeadParser,
    head: Head,
    body: BodyDecoder,
    /// No request is read after this one.
    close: bool,
    /// The client has ended its side.
    eof: bool,
    drained: u64,
}

impl Connection {
    /// A connection on which nothing has happened. Allocates nothing.
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            state: State::Head,
            input: Vec::new(),
            head_at: 0,
            next: 0,
            end: 0,
            parser: HeadParser::default(),
            head: Head::default(),
            body: BodyDecoder::complete(),
            close: false,
            eof: false,
            drained: 0,
        }
    }

    /// Room for the next read; report what came with [`Self::received`]. Empty when the buffer is
    /// full of what the owner has not taken: then do not read, for a read into nothing looks like
    /// the end.
    pub fn space(&mut self) -> &mut [u8] {
        if self.state == State::Drain {
            self.discard();
        }
        // A read that filled the buffer says that more is on its way; one that did not says that
        // this client needs no larger buffer, whatever it announced.
        let was_filled = self.end == self.input.len();
        if was_filled || self.room() < SPACE_BYTES_MIN {
            self.compact();
            // While the owner is at work, one pipelined read is enough.
            let may_grow = self.next == self.end
                || matches!(self.state, State::Head | State::Body | State::Skip);
            if (was_filled || self.room() < SPACE_BYTES_MIN) && may_grow {
                let doubled = self.input.len().saturating_mul(2).max(INPUT_BYTES_MIN);
                let size = doubled
                    .min(self.limits.input_bytes_max())
                    .max(self.input.len());
                self.input.resize(size, 0);
            }
        }
        self.input.get_mut(self.end..).unwrap_or_default()
    }

    /// `bytes` bytes were read into [`Self::space`]; 0 means that the client ended its side.
    pub fn received(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.input.len().saturating_sub(self.end));
        self.end = self.end.saturating_add(bytes).min(self.input.len());
        self.eof |= bytes == 0;
    }

    /// Takes a copy of as much of `bytes` as there is room for, and says how much that was: for a
    /// driver that reads idle connections into a buffer of its own.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            let space = self.space();
            let count = space.len().min(rest.len());
            if count == 0 {
                break;
            }
            space
                .iter_mut()
                .zip(rest)
                .for_each(|(to, from)| *to = *from);
            self.received(count);
            taken = taken.saturating_add(count);
        }
        taken
    }

    /// The client ended its side. Requests that are whole are still served.
    pub fn receive_end(&mut self) {
        self.eof = true;
    }

    /// Looks for the next request. Only between requests: first and after
    /// [`Next::Head`].
    pub fn next_head(&mut self) -> HeadEvent {
        debug_assert!(matches!(
            self.state,
            State::Head | State::Skip | State::Drain | State::Closed
        ));
        if self.state == State::Skip
            && let Err(event) = self.skip()
        {
            return event;
        }
        if self.state != State::Head {
            return HeadEvent::Closed;
        }
        self.head_at = self.next;
        let input = self.input.get(self.next..self.end).unwrap_or_default();
        match self.parser.parse(input, &self.limits.head, &mut self.head) {
            Ok(true) => {
                self.next = self.next.saturating_add(self.head.consumed).min(self.end);
                self.close |= !self.head.keep_alive;
                self.state = State::Decide;
                HeadEvent::Head
            }
            Ok(false) if self.eof => {
                let begun = self.parser.has_begun(input);
                self.state = State::Closed;
                if begun {
                    HeadEvent::Truncated
                } else {
                    HeadEvent::Closed
                }
            }
            Ok(false) => HeadEvent::NeedInput,
            Err(refusal) => {
                // The head may hold the fields of an earlier request, or half of this one's.
                self.head = Head::default();
                self.close = true;
                self.state = State::Rejected;
                HeadEvent::Refused(refusal)
            }
        }
    }

    /// The head in hand, until [`Self::finish`].
    pub fn head(&self) -> &Head {
        &self.head
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

    /// The bytes that [`Self::head`] refers to.
    pub fn head_bytes(&self) -> &[u8] {
        self.input.get(self.head_at..self.end).unwrap_or_default()
    }

    /// Takes the body, up to `limit` bytes of it; a request without one is complete at once, and
    /// [`Self::next_body`] says so.
    ///
    /// # Errors
    /// The refusal of a body that is known to be too large: answer it, then [`Self::finish`].
    pub fn accept_body(&mut self, limit: u64) -> Result<Continue, Refusal> {
        debug_assert_eq!(self.state, State::Decide);
        match BodyDecoder::new(self.head.framing, limit) {
            Ok(body) => {
                self.body = body;
                let waits = self.client_waits();
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
        if self.state == State::Complete {
            return BodyEvent::Done;
        }
        debug_assert_eq!(self.state, State::Body);
        if self.state != State::Body {
            return BodyEvent::Truncated;
        }
        let from = self.next;
        let input = self.input.get(from..self.end).unwrap_or_default();
        let step = match self.body.decode(input) {
            Ok(step) => step,
            Err(error) => return BodyEvent::Refused(self.refuse_body(error)),
        };
        self.next = from.saturating_add(step.consumed);
        if !step.payload.is_empty() {
            let start = from.saturating_add(step.payload.start);
            let end = from.saturating_add(step.payload.end);
            return BodyEvent::Piece(self.input.get(start..end).unwrap_or_default());
        }
        if step.done {
            self.state = State::Complete;
            return BodyEvent::Done;
        }
        if self.eof {
            self.close = true;
            self.state = State::Rejected;
            return BodyEvent::Truncated;
        }
        BodyEvent::NeedInput
    }

    /// Bytes of the body that may be read from the socket straight to where they belong, past
    /// this buffer: 0 unless the length is known and everything received has been taken. Report
    /// them with [`Self::received_direct`].
    pub fn direct_bytes_max(&self) -> u64 {
        if self.state == State::Body && self.next == self.end && !self.eof {
            self.body.remaining().unwrap_or(0)
        } else {
            0
        }
    }

    /// `bytes` bytes of the body, at most [`Self::direct_bytes_max`], were read past this buffer.
    pub fn received_direct(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.direct_bytes_max());
        self.body.take_payload(bytes);
    }

    /// The owner answers without the body, or without the rest of it. Whether the connection can
    /// be kept is then known: [`Self::should_close`].
    pub fn reject(&mut self) {
        debug_assert!(matches!(self.state, State::Decide | State::Body));
        if self.state == State::Decide {
            // A client that waits for a 100 and gets a refusal may send the body all the same or
            // not: where the next request would start is unknown.
            self.close |= self.client_waits();
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
        } else if self
            .body
            .remaining()
            .is_none_or(|remaining| remaining > SKIP_BYTES_MAX)
        {
            self.close = true;
        }
    }

    /// Whether the answer to the request in hand must say `Connection: close`.
    pub fn should_close(&self) -> bool {
        self.close
    }

    /// The owner wants no request after the one in hand (shutdown, too many requests).
    pub fn close_after_this(&mut self) {
        self.close = true;
    }

    /// The request in hand is done with: its head goes. Its answer may still be pending.
    pub fn finish(&mut self) -> Next {
        debug_assert!(matches!(self.state, State::Complete | State::Rejected));
        let complete = self.state == State::Complete;
        self.head_at = self.next;
        if self.close {
            // Unread bytes at a close make the kernel send a reset, which can overtake the answer.
            if complete && self.next == self.end {
                self.state = State::Closed;
                return Next::Close;
            }
            self.state = State::Drain;
            return Next::Drain;
        }
        self.state = if complete { State::Head } else { State::Skip };
        Next::Head
    }

    /// Drops what has been received after [`Next::Drain`].
    pub fn drain(&mut self) -> DrainEvent {
        debug_assert!(matches!(self.state, State::Drain | State::Closed));
        self.discard();
        if self.eof || self.state == State::Closed || self.drained > self.limits.drain_bytes_max {
            self.state = State::Closed;
            self.input = Vec::new();
            return DrainEvent::Done;
        }
        DrainEvent::NeedInput
    }

    /// Which of its timeouts the driver applies.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Head => {
                let input = self.input.get(self.next..self.end).unwrap_or_default();
                if self.parser.has_begun(input) {
                    Phase::Head
                } else {
                    Phase::Idle
                }
            }
            State::Body if self.body.is_done() => Phase::Answering,
            State::Body | State::Skip => Phase::Body,
            State::Decide | State::Complete | State::Rejected => Phase::Answering,
            State::Drain => Phase::Draining,
            State::Closed => Phase::Closed,
        }
    }

    /// Whether bytes are there that nothing has taken: a pipelined request, or part of one.
    pub fn has_input(&self) -> bool {
        self.next < self.end
    }

    /// Whether the client has ended its side.
    pub fn is_ended(&self) -> bool {
        self.eof
    }

    /// Gives the buffers back if they hold nothing: for a connection that may wait long.
    pub fn release(&mut self) {
        if self.state == State::Head && self.next == self.end && self.parser.is_new() {
            self.input = Vec::new();
            self.head = Head::default();
            (self.head_at, self.next, self.end) = (0, 0, 0);
        }
    }

    /// Bytes of memory that this connection holds besides itself.
    pub fn memory_bytes(&self) -> usize {
        self.input
            .capacity()
            .saturating_add(self.head.memory_bytes())
    }

    /// Whether the client waits for a 100 before it sends a body of which nothing is here.
    fn client_waits(&self) -> bool {
        self.head.expect_continue && self.head.framing.has_body() && self.next == self.end
    }

    /// Bytes that the buffer has room for as it is.
    fn room(&self) -> usize {
        self.input.len().saturating_sub(self.end)
    }

    fn refuse_body(&mut self, error: BodyError) -> Refusal {
        self.close = true;
        self.state = State::Rejected;
        error.refusal()
    }

    /// Takes and drops what has been received of the body.
    fn skip_received(&mut self) -> Result<(), BodyError> {
        while self.next < self.end && !self.body.is_done() {
            let input = self.input.get(self.next..self.end).unwrap_or_default();
            let step = self.body.decode(input)?;
            self.next = self.next.saturating_add(step.consumed);
        }
        Ok(())
    }

    /// Reads past the rest of a body that was rejected. `Err` holds what to report meanwhile.
    fn skip(&mut self) -> Result<(), HeadEvent> {
        if self.skip_received().is_err() || (self.eof && !self.body.is_done()) {
            self.state = State::Closed;
            return Err(HeadEvent::Closed);
        }
        if !self.body.is_done() {
            return Err(HeadEvent::NeedInput);
        }
        self.state = State::Head;
        Ok(())
    }

    fn discard(&mut self) {
        let bytes = self.end.saturating_sub(self.next);
        self.drained = self.drained.saturating_add(bytes as u64);
        (self.head_at, self.next, self.end) = (0, 0, 0);
    }

    /// Moves what is still needed to the front: the head, and what nothing has taken.
    fn compact(&mut self) {
        let head_end = match self.state {
            State::Decide | State::Body | State::Complete | State::Rejected => self
                .head_at
                .saturating_add(self.head.consumed)
                .min(self.next),
            State::Head | State::Skip | State::Drain | State::Closed => {
                self.head_at = self.next;
                self.next
            }
        };
        let head_bytes = head_end.saturating_sub(self.head_at);
        self.input.copy_within(self.head_at..head_end, 0);
        self.input.copy_within(self.next..self.end, head_bytes);
        self.end = self
            .end
            .saturating_sub(self.next)
            .saturating_add(head_bytes);
        self.next = head_bytes;
        self.head_at = 0;
    }
}
