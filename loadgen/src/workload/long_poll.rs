//! Long-polling readers: each asks for what comes next, and again as soon as it has it.
//!
//! Measured like SSE: from the intended send time of a message until the reader has it, which includes the time the reader was
//! between two polls. Sizes, offsets and claims to be up to date are checked as those of catch-up reads are.

use std::sync::Arc;

use super::checks::{self, Extent};
use super::tail::deliver;
use super::{Role, World};
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::Tally;
use crate::http::Head;
use crate::verify::{Fault, StreamVerifier};

/// After a refusal a reader waits this long.
const RETRY_NS: u64 = 100_000_000;

/// One long-polling reader.
#[derive(Debug)]
pub struct Poller {
    world: Arc<World>,
    stream: u32,
    request: Vec<u8>,
    request_tail: Vec<u8>,
    verifier: StreamVerifier,
    offset: Vec<u8>,
    cursor: Vec<u8>,
    answer: Answer,
    acknowledged_before: u64,
    /// It claimed to be up to date too soon, or messages were lost: the next answer tells which.
    doubted: bool,
    rest: bool,
}

#[derive(Debug, Default)]
struct Answer {
    status: u16,
    up_to_date: bool,
    next_offset: Vec<u8>,
    body_bytes: u64,
    messages_before: u64,
    stored_before: u64,
}

/// `count` readers, spread evenly over the streams.
pub fn roles(world: &Arc<World>, count: u32) -> impl Iterator<Item = Role> + '_ {
    (0..count).map(|index| Role {
        client: Box::new(Poller::new(world.clone(), index % world.streams)),
        paced: false,
    })
}

impl Poller {
    /// Follows a stream from its start.
    pub fn new(world: Arc<World>, stream: u32) -> Poller {
        Poller {
            request: format!("GET {}?live=long-poll&offset=", world.target.path(stream))
                .into_bytes(),
            request_tail: world.target.request_tail(),
            verifier: world.verifier(stream),
            world,
            stream,
            offset: b"-1".to_vec(),
            cursor: Vec::new(),
            answer: Answer::default(),
            acknowledged_before: 0,
            doubted: false,
            rest: false,
        }
    }

    /// Checks one complete answer; false if there is no going on from it.
    fn check(&mut self, tally: &mut Tally) -> bool {
        let answer = &self.answer;
        let messages = self.verifier.messages();
        if self.doubted && messages > answer.messages_before {
            tally.fault(Fault::FalseUpToDate);
            self.doubted = false;
        }
        let short = messages < self.acknowledged_before && !self.verifier.has_missing();
        self.doubted |= answer.up_to_date && short;
        if answer.status == 204 {
            if !answer.up_to_date {
                tally.fault(Fault::MissingUpToDate);
            }
            if answer.next_offset.is_empty() {
                tally.fault(Fault::WrongOffset);
            }
            return !answer.next_offset.is_empty();
        }
        let extent = Extent {
            start: &self.offset,
            next: &answer.next_offset,
            body_bytes: answer.body_bytes,
            messages_before: answer.messages_before,
            stored_before: answer.stored_before,
        };
        checks::extent(&self.world, &self.verifier, extent, tally)
    }
}

impl Client for Poller {
    fn request(&mut self, _intended: u64, out: &mut Vec<u8>) -> Turn {
        if std::mem::take(&mut self.rest) {
            return Turn::Wait(RETRY_NS);
        }
        self.acknowledged_before = self.world.ledger.acknowledged(self.stream);
        out.extend_from_slice(&self.request);
        out.extend_from_slice(&self.offset);
        if !self.cursor.is_empty() {
            out.extend_from_slice(b"&cursor=");
            out.extend_from_slice(&self.cursor);
        }
        out.extend_from_slice(&self.request_tail);
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        let answer = &mut self.answer;
        answer.status = head.status;
        answer.up_to_date = head.is_true("stream-up-to-date");
        answer.body_bytes = 0;
        answer.messages_before = self.verifier.messages();
        answer.stored_before = self.verifier.stored_bytes();
        answer.next_offset.clear();
        answer
            .next_offset
            .extend_from_slice(head.header("stream-next-offset").unwrap_or_default());
        self.cursor.clear();
        self.cursor
            .extend_from_slice(head.header("stream-cursor").unwrap_or_default());
        if !matches!(head.status, 200 | 204) {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, bytes: &[u8], clock: &Clock, tally: &mut Tally) {
        if self.answer.status == 200 {
            self.answer.body_bytes += bytes.len() as u64;
            deliver(&mut self.verifier, bytes, clock.now(), tally);
        }
    }

    fn done(&mut self, _times: Times, tally: &mut Tally) {
        self.verifier.end_repeats();
        if !matches!(self.answer.status, 200 | 204) || !self.check(tally) {
            self.rest = true;
            return;
        }
        // An empty answer again and again would otherwise spin.
        self.rest = self.answer.status == 200 && self.answer.body_bytes == 0;
        std::mem::swap(&mut self.offset, &mut self.answer.next_offset);
    }

    fn failed(&mut self) {
        self.verifier.expect_repeats();
    }

    fn follows(&self) -> bool {
        true
    }

    fn settled(&self) -> bool {
        self.verifier.messages() >= self.world.ledger.acknowledged(self.stream)
    }

    fn patient(&self) -> bool {
        true
    }

    fn evidence(&mut self, evidence: &mut Evidence) {
        let settled = self.settled();
        evidence.seen.push(self.verifier.seen(settled));
        evidence.undelivered += self
            .world
            .ledger
            .acknowledged(self.stream)
            .saturating_sub(self.verifier.messages());
    }
}
