//! Bootstraps: new readers that start from a snapshot and the messages after it.
//!
//! Every stream is filled with half its messages, gets a snapshot at its end, and is filled with the other half on a second lane.
//! A bootstrap must return exactly that snapshot, then the second lane from its first message, each part one message on a JSON
//! stream; where it stops short it must say so and be continued by ordinary reads without a gap.

use std::sync::Arc;

use super::append;
use super::checks::decimal;
use super::snapshot::{SNAPSHOT_TYPE, snapshot_body};
use super::{Role, World, push_decimal, shares};
use crate::args::RunArgs;
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;
use crate::multipart;
use crate::record::Form;
use crate::verify::{Fault, StreamVerifier};

/// The version of the snapshot that preparation publishes.
const VERSION: u64 = 0;
const SETUP_CONNECTIONS_MAX: u32 = 16;
/// A bootstrap response larger than this is not held in memory and counts as a bad format.
const BODY_BYTES_MAX: usize = 256 << 20;

/// The phases before measuring: fill, publish, fill.
pub fn preparation(
    world: &Arc<World>,
    args: &RunArgs,
) -> Vec<(&'static str, Vec<Box<dyn Client>>)> {
    let (before, after) = halves(args.messages);
    let publish = shares(world.streams, SETUP_CONNECTIONS_MAX)
        .into_iter()
        .map(|streams| {
            Box::new(PublishAtTail::new(
                world.clone(),
                streams,
                args.snapshot_bytes,
            )) as Box<dyn Client>
        })
        .collect();
    vec![
        ("fill", append::fill(world, before, 0)),
        ("publish", publish),
        ("fill again", append::fill(world, after, 1)),
    ]
}

/// The slots of the bootstrap workload.
pub fn roles(world: &Arc<World>, connections: u32, args: &RunArgs) -> Vec<Role> {
    (0..connections)
        .map(|index| Role {
            client: Box::new(Bootstrap::new(world.clone(), index, args)),
            paced: true,
        })
        .collect()
}

fn halves(messages: u32) -> (u32, u32) {
    (messages / 2, messages - messages / 2)
}

/// Publishes a snapshot at the tail of each of its streams.
#[derive(Debug)]
struct PublishAtTail {
    world: Arc<World>,
    streams: Vec<u32>,
    at: usize,
    snapshot_bytes: u32,
    tail: Option<Vec<u8>>,
    status: u16,
    next_offset: Vec<u8>,
}

impl PublishAtTail {
    fn new(world: Arc<World>, streams: Vec<u32>, snapshot_bytes: u32) -> PublishAtTail {
        PublishAtTail {
            world,
            streams,
            at: 0,
            snapshot_bytes,
            tail: None,
            status: 0,
            next_offset: Vec::new(),
        }
    }
}

impl Client for PublishAtTail {
    fn request(&mut self, _intended: u64, out: &mut Vec<u8>) -> Turn {
        let Some(stream) = self.streams.get(self.at).copied() else {
            return Turn::Finished;
        };
        let path = self.world.target.path(stream);
        match &self.tail {
            None => {
                out.extend_from_slice(format!("GET {path}?offset=now").as_bytes());
                out.extend_from_slice(&self.world.target.request_tail());
            }
            Some(tail) => {
                let path = format!("{path}/snapshot/{}", String::from_utf8_lossy(tail));
                out.extend_from_slice(self.world.target.request_head("PUT", &path).as_bytes());
                out.extend_from_slice(
                    format!("Content-Type: {SNAPSHOT_TYPE}\r\nContent-Length: ").as_bytes(),
                );
                push_decimal(out, u64::from(self.snapshot_bytes));
                out.extend_from_slice(b"\r\n\r\n");
                snapshot_body(self.world.seed, stream, VERSION, self.snapshot_bytes, out);
            }
        }
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        self.status = head.status;
        self.next_offset.clear();
        self.next_offset
            .extend_from_slice(head.header("stream-next-offset").unwrap_or_default());
        let wanted = if self.tail.is_none() { 200 } else { 204 };
        if head.status != wanted {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, _bytes: &[u8], _clock: &Clock, _tally: &mut Tally) {}

    fn done(&mut self, _times: Times, _tally: &mut Tally) {
        if self.tail.is_none() && self.status == 200 {
            self.tail = Some(std::mem::take(&mut self.next_offset));
        } else {
            self.failed();
        }
    }

    fn failed(&mut self) {
        self.tail = None;
        self.at += 1;
    }

    fn evidence(&mut self, _evidence: &mut Evidence) {}
}

/// One connection that bootstraps stream after stream.
#[derive(Debug)]
struct Bootstrap {
    world: Arc<World>,
    stream: u32,
    messages_after: u64,
    snapshot_bytes: u32,
    verifier: StreamVerifier,
    /// Where ordinary reads go on, if the bootstrap stopped short.
    offset: Option<Vec<u8>>,
    answer: Answer,
    body: Vec<u8>,
    expected: Vec<u8>,
    request_tail: Vec<u8>,
}

#[derive(Debug, Default)]
struct Answer {
    ok: bool,
    up_to_date: bool,
    next_offset: Vec<u8>,
    snapshot_offset: Vec<u8>,
    boundary: Vec<u8>,
}

impl Bootstrap {
    fn new(world: Arc<World>, index: u32, args: &RunArgs) -> Bootstrap {
        let stream = index % world.streams;
        Bootstrap {
            verifier: world.verifier(stream),
            request_tail: world.target.request_tail(),
            world,
            stream,
            messages_after: u64::from(halves(args.messages).1),
            snapshot_bytes: args.snapshot_bytes,
            offset: None,
            answer: Answer::default(),
            body: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn next_stream(&mut self) {
        self.stream = (self.stream + 1) % self.world.streams;
        self.verifier.restart(self.stream);
        self.offset = None;
    }

    /// Checks a bootstrap's body; what it returned beyond the snapshot goes to the verifier.
    fn check_parts(&mut self, tally: &mut Tally) {
        self.expected.clear();
        snapshot_body(
            self.world.seed,
            self.stream,
            VERSION,
            self.snapshot_bytes,
            &mut self.expected,
        );
        let Bootstrap {
            verifier,
            answer,
            expected,
            world,
            body,
            ..
        } = self;
        let mut first = true;
        let mut part_bytes = 0;
        let whole = multipart::parts(body, &answer.boundary, |part| {
            if std::mem::take(&mut first) {
                if part.body != expected.as_slice() || part.content_type != SNAPSHOT_TYPE.as_bytes()
                {
                    tally.fault(Fault::WrongSnapshot);
                }
                return;
            }
            part_bytes += part.body.len() as u64;
            let before = verifier.messages();
            verifier.feed(part.body, &mut |_| {}, &mut |fault| tally.fault(fault));
            if world.form == Form::Json
                && (verifier.messages() != before + 1 || verifier.inside_message())
            {
                tally.fault(Fault::BadFormat);
            }
        });
        if !whole || first {
            tally.fault(Fault::BadFormat);
        }
        let snapshot = decimal(&answer.snapshot_offset);
        // A JSON message is stored with a line end that its part need not have; bytes may be cut anywhere.
        let returned = match world.form {
            Form::Json => verifier.stored_bytes(),
            Form::Bytes => part_bytes,
        };
        let alone = world.form == Form::Json && verifier.messages() == 1;
        if world
            .target
            .response_bytes_max()
            .is_some_and(|cap| returned > cap)
            && !alone
        {
            tally.fault(Fault::Oversize);
        }
        let end = snapshot.and_then(|at| at.checked_add(returned));
        if end.is_none() || decimal(&answer.next_offset) != end {
            tally.fault(Fault::WrongOffset);
        }
    }
}

impl Client for Bootstrap {
    fn request(&mut self, _intended: u64, out: &mut Vec<u8>) -> Turn {
        out.extend_from_slice(b"GET ");
        out.extend_from_slice(self.world.target.path(self.stream).as_bytes());
        match &self.offset {
            None => out.extend_from_slice(b"/bootstrap"),
            Some(offset) => {
                out.extend_from_slice(b"?offset=");
                out.extend_from_slice(offset);
            }
        }
        out.extend_from_slice(&self.request_tail);
        self.body.clear();
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        let value = |name: &str| head.header(name).unwrap_or_default().to_vec();
        self.answer = Answer {
            ok: head.status == 200,
            up_to_date: head.is_true("stream-up-to-date"),
            next_offset: value("stream-next-offset"),
            snapshot_offset: value("stream-snapshot-offset"),
            boundary: multipart::boundary(&value("content-type"))
                .unwrap_or_default()
                .to_vec(),
        };
        if !self.answer.ok {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, bytes: &[u8], _clock: &Clock, _tally: &mut Tally) {
        if self.answer.ok && self.body.len() < BODY_BYTES_MAX {
            self.body.extend_from_slice(bytes);
        }
    }

    fn done(&mut self, times: Times, tally: &mut Tally) {
        if !self.answer.ok {
            return self.next_stream();
        }
        let before = self.verifier.messages();
        let bytes = self.body.len() as u64;
        if self.offset.is_none() {
            tally.record(Op::Bootstrap, times.intended, times.done, bytes);
            self.check_parts(tally);
        } else {
            tally.record(Op::Read, times.intended, times.done, bytes);
            self.verifier
                .feed(&self.body, &mut |_| {}, &mut |fault| tally.fault(fault));
            if self.body.is_empty() && !self.answer.up_to_date {
                tally.fault(Fault::MissingUpToDate);
                return self.next_stream();
            }
        }
        tally.verified(self.verifier.messages() - before);
        if !self.answer.up_to_date {
            self.offset = Some(std::mem::take(&mut self.answer.next_offset));
            return;
        }
        if self.verifier.has_missing() {
            tally.fault(Fault::Gap);
        } else if self.verifier.messages() < self.messages_after {
            tally.fault(Fault::FalseUpToDate);
        }
        self.next_stream();
    }

    fn failed(&mut self) {
        self.next_stream();
    }

    fn evidence(&mut self, _evidence: &mut Evidence) {}
}
