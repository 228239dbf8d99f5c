//! Catch-up reads of whole streams, from the start until up to date.
//!
//! Each response is checked: its messages follow on exactly from the one before; its stored bytes do not exceed the cap (on the
//! base surface one message alone may); `Stream-Next-Offset` is where its bytes end; it claims `Stream-Up-To-Date` only once every
//! message acknowledged before the request was sent has been returned; and an empty response does claim it.

use std::sync::Arc;

use super::checks::{self, Extent};
use super::{Role, World};
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;
use crate::verify::{Fault, Seen, StreamVerifier};

/// Passes with gaps that a reader which goes round keeps for the end.
const SEEN_KEPT_MAX: usize = 256;
/// A stream that has nothing to read yet is tried again after this long.
const RETRY_NS: u64 = 10_000_000;

/// One reading connection.
#[derive(Debug)]
pub struct CatchUp {
    world: Arc<World>,
    streams: Vec<Source>,
    /// What follows the offset in every request.
    request_tail: Vec<u8>,
    at: usize,
    /// Start over after the last stream, until the run ends.
    repeat: bool,
    verifier: StreamVerifier,
    offset: Vec<u8>,
    pass_started: u64,
    pass_bytes: u64,
    acknowledged_before: u64,
    answer: Answer,
    seen: Vec<Seen>,
    /// It claimed to be up to date too soon, or messages were lost: the next answer tells which.
    doubted: bool,
    rest: bool,
}

#[derive(Debug)]
struct Source {
    stream: u32,
    /// Its request up to the offset.
    request: Vec<u8>,
}

/// What is known of the answer that is arriving.
#[derive(Debug, Default)]
struct Answer {
    ok: bool,
    up_to_date: bool,
    next_offset: Vec<u8>,
    body_bytes: u64,
    messages_before: u64,
    stored_before: u64,
}

/// The slots of the read workload: every connection goes round all streams, each from another start.
pub fn roles(world: &Arc<World>, connections: u32) -> Vec<Role> {
    (0..connections)
        .map(|index| {
            let first =
                (u64::from(index) * u64::from(world.streams) / u64::from(connections)) as u32;
            let streams = (0..world.streams)
                .map(|stream| (first + stream) % world.streams)
                .collect();
            Role {
                client: Box::new(CatchUp::new(world.clone(), streams, true)),
                paced: true,
            }
        })
        .collect()
}

impl CatchUp {
    /// Reads these streams, in turn: once each, or again and again.
    pub fn new(world: Arc<World>, streams: Vec<u32>, repeat: bool) -> CatchUp {
        let verifier = world.verifier(streams.first().copied().unwrap_or(0));
        let source = |stream| {
            let request = format!("GET {}?offset=", world.target.path(stream)).into_bytes();
            Source { stream, request }
        };
        CatchUp {
            streams: streams.into_iter().map(source).collect(),
            request_tail: world.target.request_tail(),
            world,
            at: 0,
            repeat,
            verifier,
            offset: b"-1".to_vec(),
            pass_started: 0,
            pass_bytes: 0,
            acknowledged_before: 0,
            answer: Answer::default(),
            seen: Vec::new(),
            doubted: false,
            rest: false,
        }
    }

    fn end_pass(&mut self, whole: bool) {
        // Readers that go round keep what they found only where something is missing, and not for ever.
        if !self.repeat || (self.verifier.has_missing() && self.seen.len() < SEEN_KEPT_MAX) {
            self.seen.push(self.verifier.seen(whole && !self.repeat));
        }
        self.at += 1;
        if self.repeat && self.at >= self.streams.len() {
            self.at = 0;
            self.rest = self.pass_bytes == 0;
        }
        self.doubted = false;
        self.pass_bytes = 0;
        self.verifier
            .restart(self.streams.get(self.at).map_or(0, |source| source.stream));
        self.offset.clear();
        self.offset.extend_from_slice(b"-1");
    }

    /// Checks one complete answer; false if the pass cannot go on from it.
    fn check(&mut self, tally: &mut Tally) -> bool {
        let answer = &self.answer;
        let messages = self.verifier.messages() - answer.messages_before;
        tally.verified(messages);
        let extent = Extent {
            start: &self.offset,
            next: &answer.next_offset,
            body_bytes: answer.body_bytes,
            messages_before: answer.messages_before,
            stored_before: answer.stored_before,
        };
        if !checks::extent(&self.world, &self.verifier, extent, tally) {
            return false;
        }
        if self.doubted && messages > 0 {
            tally.fault(Fault::FalseUpToDate);
            self.doubted = false;
        }
        if !answer.up_to_date && answer.body_bytes == 0 {
            tally.fault(Fault::MissingUpToDate);
            return false;
        }
        true
    }
}

impl Client for CatchUp {
    fn request(&mut self, intended: u64, out: &mut Vec<u8>) -> Turn {
        let Some(source) = self.streams.get(self.at) else {
            return Turn::Finished;
        };
        if std::mem::take(&mut self.rest) {
            return Turn::Wait(RETRY_NS);
        }
        if self.offset == b"-1" {
            self.pass_started = intended;
        }
        self.acknowledged_before = self.world.ledger.acknowledged(source.stream);
        out.extend_from_slice(&source.request);
        out.extend_from_slice(&self.offset);
        out.extend_from_slice(&self.request_tail);
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        let answer = &mut self.answer;
        answer.ok = head.status == 200;
        answer.up_to_date = head.is_true("stream-up-to-date");
        answer.next_offset.clear();
        answer
            .next_offset
            .extend_from_slice(head.header("stream-next-offset").unwrap_or_default());
        answer.body_bytes = 0;
        answer.messages_before = self.verifier.messages();
        answer.stored_before = self.verifier.stored_bytes();
        if !answer.ok {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, bytes: &[u8], _clock: &Clock, tally: &mut Tally) {
        if self.answer.ok {
            self.answer.body_bytes += bytes.len() as u64;
            if self.world.check_content {
                self.verifier
                    .feed(bytes, &mut |_| {}, &mut |fault| tally.fault(fault));
            }
        }
    }

    fn done(&mut self, times: Times, tally: &mut Tally) {
        if !self.answer.ok {
            return self.end_pass(false);
        }
        tally.record(Op::Read, times.intended, times.done, self.answer.body_bytes);
        if !self.check(tally) {
            return self.end_pass(false);
        }
        self.pass_bytes += self.answer.body_bytes;
        let seen = self.verifier.messages();
        let short = self.world.check_content
            && seen < self.acknowledged_before
            && !self.verifier.has_missing();
        if !self.answer.up_to_date || (short && !self.doubted) {
            self.doubted |= self.answer.up_to_date;
            std::mem::swap(&mut self.offset, &mut self.answer.next_offset);
            return;
        }
        if short && self.repeat {
            tally.fault(Fault::Lost);
        }
        tally.record(
            Op::WholeRead,
            self.pass_started,
            times.done,
            self.pass_bytes,
        );
        self.end_pass(true);
    }

    fn failed(&mut self) {
        self.end_pass(false);
    }

    fn evidence(&mut self, evidence: &mut Evidence) {
        evidence.seen.append(&mut self.seen);
    }
}
