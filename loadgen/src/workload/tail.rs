//! SSE fan-out: subscribers that follow a stream while others write it.
//!
//! Subscribers are connected, and have their response heads, before the first append is due. The latency of a delivery is from
//! the moment the message was *meant* to be sent (it says so itself) until the subscriber has read it, so neither a slow server
//! nor a slow subscriber can hide behind the other. After the end of the window subscribers go on until each has everything that
//! was acknowledged; what is missing when the drain ends is counted as undelivered. A control event must say where the bytes before
//! it end. Whether its claim to be up to date is true cannot be told from outside while others write, and is not judged.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::checks::{self, decimal};
use super::{Role, World};
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;
use crate::record::Form;
use crate::sse::{Event, EventParser};
use crate::verify::{Fault, StreamVerifier};

/// After a refusal a subscriber waits this long.
const RETRY_NS: u64 = 100_000_000;

/// One subscriber.
#[derive(Debug)]
pub struct Subscriber {
    request: Vec<u8>,
    request_tail: Vec<u8>,
    ok: bool,
    rest: bool,
    events: EventParser,
    follower: Follower,
}

/// What a subscriber knows of its stream.
#[derive(Debug)]
struct Follower {
    world: Arc<World>,
    stream: u32,
    verifier: StreamVerifier,
    offset: Vec<u8>,
    /// The offset this answer was asked for, the stored bytes seen before it, and the bytes decoded from it.
    start: Vec<u8>,
    stored_before: u64,
    decoded_bytes: u64,
    base64: bool,
    text: Vec<u8>,
    decoded: Vec<u8>,
    /// A data event has come whose control event has not.
    control_due: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Control<'a> {
    #[serde(borrow)]
    stream_next_offset: Cow<'a, str>,
}

/// `count` subscribers, spread evenly over the streams.
pub fn roles(world: &Arc<World>, count: u32) -> impl Iterator<Item = Role> + '_ {
    (0..count).map(|index| Role {
        client: Box::new(Subscriber::new(world.clone(), index % world.streams)),
        paced: false,
    })
}

impl Subscriber {
    /// Follows a stream from its start.
    pub fn new(world: Arc<World>, stream: u32) -> Subscriber {
        let mut request_tail = b"&live=sse".to_vec();
        request_tail.extend_from_slice(&world.target.request_tail());
        Subscriber {
            request: format!("GET {}?offset=", world.target.path(stream)).into_bytes(),
            request_tail,
            ok: false,
            rest: false,
            events: EventParser::default(),
            follower: Follower {
                verifier: world.verifier(stream),
                world,
                stream,
                offset: b"-1".to_vec(),
                start: b"-1".to_vec(),
                stored_before: 0,
                decoded_bytes: 0,
                base64: false,
                text: Vec::new(),
                decoded: Vec::new(),
                control_due: false,
            },
        }
    }
}

impl Client for Subscriber {
    fn request(&mut self, _intended: u64, out: &mut Vec<u8>) -> Turn {
        if std::mem::take(&mut self.rest) {
            return Turn::Wait(RETRY_NS);
        }
        out.extend_from_slice(&self.request);
        out.extend_from_slice(&self.follower.offset);
        out.extend_from_slice(&self.request_tail);
        self.events.reset();
        self.follower.begin();
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        self.ok = head.status == 200;
        self.rest = !self.ok;
        let encoding = head.header("stream-sse-data-encoding");
        self.follower.base64 = encoding.is_some_and(|value| value.eq_ignore_ascii_case(b"base64"));
        if !self.ok {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, bytes: &[u8], clock: &Clock, tally: &mut Tally) {
        if !self.ok {
            return;
        }
        let now = clock.now();
        let follower = &mut self.follower;
        if self
            .events
            .feed(bytes, &mut |event| follower.event(event, now, tally))
            .is_err()
        {
            tally.fault(Fault::BadFormat);
            self.events.reset();
        }
    }

    fn done(&mut self, _times: Times, _tally: &mut Tally) {
        // Servers end SSE answers now and then; the next request goes on from the last control event.
        self.follower.resume();
    }

    fn failed(&mut self) {
        self.follower.resume();
    }

    fn follows(&self) -> bool {
        true
    }

    fn answered_before_start(&self) -> bool {
        true
    }

    fn settled(&self) -> bool {
        self.follower.verifier.messages()
            >= self
                .follower
                .world
                .ledger
                .acknowledged(self.follower.stream)
    }

    fn patient(&self) -> bool {
        true
    }

    fn evidence(&mut self, evidence: &mut Evidence) {
        let settled = self.settled();
        let Follower {
            world,
            stream,
            verifier,
            ..
        } = &self.follower;
        evidence.seen.push(verifier.seen(settled));
        evidence.undelivered += world
            .ledger
            .acknowledged(*stream)
            .saturating_sub(verifier.messages());
    }
}

impl Follower {
    fn event(&mut self, event: Event<'_>, now: u64, tally: &mut Tally) {
        match event.kind() {
            b"data" => {
                if std::mem::replace(&mut self.control_due, true) {
                    tally.fault(Fault::MissingControl);
                }
                if self.base64 {
                    self.base64_data(event, now, tally);
                } else {
                    for line in event.data() {
                        deliver(&mut self.verifier, line, now, tally);
                    }
                }
            }
            b"control" => {
                self.control_due = false;
                self.verifier.end_repeats();
                let data = event.data().next().unwrap_or_default();
                match serde_json::from_slice::<Control<'_>>(data) {
                    Ok(control) => {
                        self.offset.clear();
                        self.offset
                            .extend_from_slice(control.stream_next_offset.as_bytes());
                        self.check_offset(tally);
                    }
                    Err(_) => tally.fault(Fault::BadFormat),
                }
            }
            _ => {}
        }
    }

    fn base64_data(&mut self, event: Event<'_>, now: u64, tally: &mut Tally) {
        self.text.clear();
        self.decoded.clear();
        for line in event.data() {
            self.text.extend_from_slice(line);
        }
        match STANDARD.decode_vec(&self.text, &mut self.decoded) {
            Ok(()) => {
                self.decoded_bytes += self.decoded.len() as u64;
                deliver(&mut self.verifier, &self.decoded, now, tally);
            }
            Err(_) => tally.fault(Fault::BadFormat),
        }
    }

    /// A request is on its way.
    fn begin(&mut self) {
        self.start.clone_from(&self.offset);
        self.stored_before = self.verifier.stored_bytes();
        self.decoded_bytes = 0;
    }

    /// A control event says where the bytes end that came with this answer.
    fn check_offset(&self, tally: &mut Tally) {
        let stored = match (self.world.form, self.base64) {
            (Form::Json, _) => self.verifier.stored_bytes() - self.stored_before,
            (Form::Bytes, true) => self.decoded_bytes,
            // As text, line ends are not what was stored.
            (Form::Bytes, false) => return,
        };
        if self.world.target.offsets_count_bytes()
            && decimal(&self.offset) != checks::end(&self.start, stored)
        {
            tally.fault(Fault::WrongOffset);
        }
    }

    /// The answer has ended. What came after the last control event comes again.
    fn resume(&mut self) {
        if std::mem::take(&mut self.control_due) {
            self.verifier.expect_repeats();
        }
    }
}

/// Checks bytes a live reader got at `now`, and records each message as delivered.
pub(super) fn deliver(verifier: &mut StreamVerifier, bytes: &[u8], now: u64, tally: &mut Tally) {
    let mut faults = [None; 8];
    let mut found = 0;
    let before = verifier.messages();
    verifier.feed(
        bytes,
        &mut |fields| tally.record(Op::Delivery, fields.sent_ns, now, u64::from(fields.len)),
        &mut |fault| {
            if let Some(slot) = faults.get_mut(found) {
                *slot = Some(fault);
            }
            found += 1;
        },
    );
    tally.verified(verifier.messages() - before);
    // More faults than fit are all of the last kind kept; the run is not valid either way.
    for fault in faults.into_iter().flatten() {
        tally.fault(fault);
    }
}
