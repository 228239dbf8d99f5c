//! What a connection tells its owner.

#![forbid(unsafe_code)]

use crate::http::parse::Refusal;

/// What [`next_head`](super::Connection::next_head) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadEvent {
    /// Read more, then ask again.
    NeedInput,
    /// A request: look at it, then [`accept_body`](super::Connection::accept_body) or
    /// [`reject`](super::Connection::reject).
    Head,
    /// No request: answer this, then [`finish`](super::Connection::finish).
    Refused(Refusal),
    /// The client ended its side inside a head: there is nothing to answer. Close.
    Truncated,
    /// No further request will come: close.
    Closed,
}

/// What [`next_body`](super::Connection::next_body) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEvent<'c> {
    /// Read more, then ask again.
    NeedInput,
    /// The next bytes of the body; never empty.
    Piece(&'c [u8]),
    /// The body is complete: answer, and [`finish`](super::Connection::finish).
    Done,
    /// The body is wrong or too large: answer this, then [`finish`](super::Connection::finish).
    Refused(Refusal),
    /// The client ended its side inside the body: drop the request, then
    /// [`finish`](super::Connection::finish).
    Truncated,
}

/// What [`accept_body`](super::Connection::accept_body) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Continue {
    /// Write [`CONTINUE`](crate::http::encode::CONTINUE), behind the answers that are pending.
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
    /// Write out what is pending, shut down the writing side, then
    /// [`drain`](super::Connection::drain).
    Drain,
    /// Write out what is pending and close.
    Close,
}

/// What [`drain`](super::Connection::drain) came to.
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
    /// For the client to notice that the connection is over.
    Draining,
    /// For nothing.
    Closed,
}
