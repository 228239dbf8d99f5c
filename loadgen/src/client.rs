//! What a connection's client must be able to do; what the engine tells it.
//!
//! A client never blocks, never looks at a socket and never keeps the bytes it is shown. The engine calls, in order: `request`, then
//! `head`, `body` any number of times and `done`, or `failed` at any point instead. It calls `evidence` once, at the end.

use std::time::Instant;

use crate::histogram::Tally;
use crate::http::Head;
use crate::verify::{Seen, Written};

/// The run's clock: nanoseconds since the process set it up.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Nanoseconds since its start.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// What a client does when it is its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It rendered a request.
    Send,
    /// It has nothing to ask now; ask again after so many nanoseconds.
    Wait(u64),
    /// It is done for good.
    Finished,
}

/// The times of one request, in nanoseconds of the run's clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When it was meant to be sent.
    pub intended: u64,
    /// When its answer was complete.
    pub done: u64,
}

/// What clients know at the end of a run.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Lanes, by their writers.
    pub written: Vec<Written>,
    /// Streams, by their readers.
    pub seen: Vec<Seen>,
    /// Acknowledged messages that live readers were still waiting for.
    pub undelivered: u64,
}

/// What one connection asks and what it makes of the answers.
pub trait Client: Send {
    /// Renders the next request into `out`, which is empty. `intended` is when it is meant to be sent.
    fn request(&mut self, intended: u64, out: &mut Vec<u8>) -> Turn;
    /// The head of the answer.
    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally);
    /// The next bytes of its body. `clock` is for those who measure single messages.
    fn body(&mut self, bytes: &[u8], clock: &Clock, tally: &mut Tally);
    /// The answer is complete.
    fn done(&mut self, times: Times, tally: &mut Tally);
    /// The answer will not come; the engine has counted the error.
    fn failed(&mut self);
    /// Whether this is a live reader, which starts before the window and ends after it.
    fn follows(&self) -> bool {
        false
    }
    /// Whether its first answer begins at once, so that the run can wait for it before it starts.
    fn answered_before_start(&self) -> bool {
        false
    }
    /// Whether a follower has seen all there is.
    fn settled(&self) -> bool {
        true
    }
    /// Whether the current request may take as long as it likes.
    fn patient(&self) -> bool {
        false
    }
    /// What it knows at the end.
    fn evidence(&mut self, evidence: &mut Evidence);
}
