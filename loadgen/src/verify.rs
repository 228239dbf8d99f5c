//! Proof that what was read is what was written.
//!
//! [`StreamVerifier`] takes the bytes of one stream in order, cut anywhere, and accounts for every message: each lane's numbers
//! must follow each other and its chain must hold. It finds damage, repeats, swaps and gaps as they pass by. Whether a gap is a
//! loss can only be said with the writers' side in hand (a request whose answer never came may or may not have been applied), so
//! gaps are kept and judged by [`reconcile`] at the end: every message that was acknowledged must have been seen, by every
//! reader, exactly once, in order.
//!
//! Nothing here trusts the server: any input yields faults, never a panic.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::record::{self, Fields, Form};

/// At most this many missing messages of a lane are kept one by one; what lies beyond is only counted.
const MISSING_KEPT_MAX: usize = 4096;

/// What a server did wrong, apart from answering with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An acknowledged message a reader passed over.
    Gap,
    /// An acknowledged message at the end of its lane that a reader never got.
    Lost,
    /// A message seen twice.
    Duplicate,
    /// A message seen after a later one of its lane.
    Reordered,
    /// The hash chain does not hold: altered, or from another stream.
    BrokenChain,
    /// Bytes that are no message, or a message whose filler was altered.
    Corrupt,
    /// A response above the cap.
    Oversize,
    /// `Stream-Up-To-Date: true` on a response that was not.
    FalseUpToDate,
    /// An empty response without `Stream-Up-To-Date`, on which a reader would loop for ever.
    MissingUpToDate,
    /// `Stream-Next-Offset` missing, or not where the returned bytes end.
    WrongOffset,
    /// A data event that no control event followed.
    MissingControl,
    /// A snapshot that is not the one published.
    WrongSnapshot,
    /// A body that does not keep its format (multipart, SSE, base64).
    BadFormat,
}

impl Fault {
    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Gap => "gap",
            Fault::Lost => "lost",
            Fault::Duplicate => "duplicate",
            Fault::Reordered => "reordered",
            Fault::BrokenChain => "broken_chain",
            Fault::Corrupt => "corrupt",
            Fault::Oversize => "oversize",
            Fault::FalseUpToDate => "false_up_to_date",
            Fault::MissingUpToDate => "missing_up_to_date",
            Fault::WrongOffset => "wrong_offset",
            Fault::MissingControl => "missing_control",
            Fault::WrongSnapshot => "wrong_snapshot",
            Fault::BadFormat => "bad_format",
        }
    }
}

/// What readers need to know about the writers while both run.
#[derive(Debug)]
pub struct Ledger {
    acked: Vec<AtomicU64>,
}

impl Ledger {
    /// A ledger of so many streams, nothing acknowledged.
    pub fn new(streams: u32) -> Ledger {
        Ledger {
            acked: (0..streams).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Adds acknowledged messages of a stream.
    pub fn acknowledge(&self, stream: u32, messages: u64) {
        self.acked[stream as usize].fetch_add(messages, Ordering::Release);
    }

    /// Messages of a stream acknowledged so far.
    pub fn acknowledged(&self, stream: u32) -> u64 {
        self.acked[stream as usize].load(Ordering::Acquire)
    }
}

/// One lane as its writer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The stream's number.
    pub stream: u32,
    /// The writer's number in the stream.
    pub lane: u16,
    /// Messages sent: numbers `0..sent`.
    pub sent: u32,
    /// Those among them whose fate is unknown, ascending.
    pub uncertain: Vec<u32>,
}

/// One stream as a reader knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The stream's number.
    pub stream: u32,
    /// Its lanes by number; those beyond were not seen at all.
    pub lanes: Vec<LaneSeen>,
    /// Whether the reader was to read to the end, so that what lies beyond is lost.
    pub to_the_end: bool,
}

/// One lane as a reader knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneSeen {
    /// One past the highest number seen.
    pub next: u32,
    /// Numbers below `next` that were passed over.
    pub missing: Vec<u32>,
    /// More of those, not kept one by one.
    pub missing_more: u64,
}

#[derive(Debug)]
struct Lane {
    seen: LaneSeen,
    chain: u64,
}

/// Accounts for the messages of one stream, in the order they are read.
#[derive(Debug)]
pub struct StreamVerifier {
    form: Form,
    run_seed: u64,
    stream: u32,
    filler: Arc<[u8]>,
    lanes: Vec<Lane>,
    /// A message whose end has not been seen.
    carry: Vec<u8>,
    in_sync: bool,
    /// A reader that lost its connection may be sent again what it had.
    repeats: bool,
    messages: u64,
    stored_bytes: u64,
}

impl StreamVerifier {
    /// A verifier at the start of a stream.
    pub fn new(form: Form, run_seed: u64, stream: u32, filler: Arc<[u8]>) -> StreamVerifier {
        StreamVerifier {
            form,
            run_seed,
            stream,
            filler,
            lanes: Vec::new(),
            carry: Vec::new(),
            in_sync: true,
            repeats: false,
            messages: 0,
            stored_bytes: 0,
        }
    }

    /// Starts over, at the start of `stream`. Keeps its buffers.
    pub fn restart(&mut self, stream: u32) {
        self.stream = stream;
        self.lanes.clear();
        self.carry.clear();
        self.in_sync = true;
        self.repeats = false;
        self.messages = 0;
        self.stored_bytes = 0;
    }

    /// The connection broke and the reader asks again from an earlier offset: until [`StreamVerifier::end_repeats`], messages it
    /// has seen are no fault.
    pub fn expect_repeats(&mut self) {
        self.carry.clear();
        self.repeats = true;
    }

    /// See [`StreamVerifier::expect_repeats`].
    pub fn end_repeats(&mut self) {
        self.repeats = false;
    }

    /// Distinct messages seen.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Bytes a server stores for the messages seen, repeats included.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Whether the bytes so far end inside a message.
    pub fn inside_message(&self) -> bool {
        !self.carry.is_empty()
    }

    /// Takes the next bytes of the stream. Brackets, commas and line ends between JSON messages are framing.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        on_message: &mut impl FnMut(&Fields),
        on_fault: &mut impl FnMut(Fault),
    ) {
        while !bytes.is_empty() {
            if self.carry.is_empty() {
                bytes = self.skip_to_start(bytes, on_fault);
                match self.whole_message(bytes) {
                    Some(Ok(fields)) => {
                        let (message, rest) = bytes.split_at(fields.len as usize);
                        self.check_message(message, &fields, on_message, on_fault);
                        bytes = rest;
                    }
                    Some(Err(())) => bytes = self.lose_sync(&bytes[1..], on_fault),
                    None => {
                        self.carry.extend_from_slice(bytes);
                        return;
                    }
                }
            } else {
                bytes = self.feed_carry(bytes, on_message, on_fault);
            }
        }
    }

    /// The stream as seen so far.
    pub fn seen(&self, to_the_end: bool) -> Seen {
        let lanes = self.lanes.iter().map(|lane| lane.seen.clone()).collect();
        Seen {
            stream: self.stream,
            lanes,
            to_the_end,
        }
    }

    /// Whether some lane has passed over a number.
    pub fn has_missing(&self) -> bool {
        self.lanes
            .iter()
            .any(|lane| !lane.seen.missing.is_empty() || lane.seen.missing_more > 0)
    }

    fn skip_to_start<'a>(&mut self, bytes: &'a [u8], on_fault: &mut impl FnMut(Fault)) -> &'a [u8] {
        let framing = match (self.form, self.in_sync) {
            (_, false) => bytes.iter().position(|byte| *byte == self.form.start()),
            (Form::Json, true) => bytes
                .iter()
                .position(|byte| !matches!(byte, b'[' | b']' | b',' | b'\n' | b' ')),
            (Form::Bytes, true) => Some(0),
        };
        let rest = &bytes[framing.unwrap_or(bytes.len())..];
        match rest.first() {
            Some(first) if *first != self.form.start() => {
                let rest = self.lose_sync(rest, on_fault);
                self.skip_to_start(rest, on_fault)
            }
            _ => rest,
        }
    }

    fn lose_sync<'a>(&mut self, rest: &'a [u8], on_fault: &mut impl FnMut(Fault)) -> &'a [u8] {
        if self.in_sync {
            on_fault(Fault::Corrupt);
        }
        self.in_sync = false;
        rest
    }

    /// The header, if `bytes` holds a whole message; an error if it starts none; `None` if more bytes are needed.
    fn whole_message(&self, bytes: &[u8]) -> Option<Result<Fields, ()>> {
        if bytes.len() < self.form.head_bytes() {
            return None;
        }
        match record::parse_head(self.form, bytes) {
            Some(fields) if fields.len as usize > self.filler.len() => Some(Err(())),
            Some(fields) => (bytes.len() >= fields.len as usize).then_some(Ok(fields)),
            None => Some(Err(())),
        }
    }

    fn feed_carry<'a>(
        &mut self,
        bytes: &'a [u8],
        on_message: &mut impl FnMut(&Fields),
        on_fault: &mut impl FnMut(Fault),
    ) -> &'a [u8] {
        let head = self.form.head_bytes();
        let want = if self.carry.len() < head {
            head
        } else {
            match record::parse_head(self.form, &self.carry) {
                Some(fields) if fields.len as usize <= self.filler.len() => fields.len as usize,
                _ => {
                    self.carry.clear();
                    return self.lose_sync(bytes, on_fault);
                }
            }
        };
        let taken = (want - self.carry.len()).min(bytes.len());
        self.carry.extend_from_slice(&bytes[..taken]);
        if self.carry.len() == want && want > head {
            let message = std::mem::take(&mut self.carry);
            if let Some(fields) = record::parse_head(self.form, &message) {
                self.check_message(&message, &fields, on_message, on_fault);
            }
            self.carry = message;
            self.carry.clear();
        }
        &bytes[taken..]
    }

    fn check_message(
        &mut self,
        message: &[u8],
        fields: &Fields,
        on_message: &mut impl FnMut(&Fields),
        on_fault: &mut impl FnMut(Fault),
    ) {
        self.in_sync = true;
        self.stored_bytes += self.form.stored_bytes(fields.len);
        if !record::body_intact(self.form, message, &self.filler) {
            on_fault(Fault::Corrupt);
        }
        let repeats = self.repeats;
        let Lane { seen, chain } = self.lane(fields.lane);
        if fields.seq == seen.next && record::chain_step(*chain, fields) != fields.chain {
            on_fault(Fault::BrokenChain);
        }
        if fields.seq < seen.next {
            match seen.missing.iter().position(|seq| *seq == fields.seq) {
                Some(at) => {
                    seen.missing.remove(at);
                    self.messages += 1;
                    on_fault(Fault::Reordered);
                    on_message(fields);
                }
                None if repeats => {}
                None => on_fault(Fault::Duplicate),
            }
            return;
        }
        let passed_over = fields.seq - seen.next;
        let kept = passed_over.min((MISSING_KEPT_MAX - seen.missing.len()) as u32);
        seen.missing.extend(seen.next..seen.next + kept);
        seen.missing_more += u64::from(passed_over - kept);
        seen.next = fields.seq.saturating_add(1);
        *chain = fields.chain;
        self.messages += 1;
        on_message(fields);
    }

    fn lane(&mut self, number: u16) -> &mut Lane {
        while self.lanes.len() <= usize::from(number) {
            let lane = self.lanes.len() as u16;
            self.lanes.push(Lane {
                seen: LaneSeen::default(),
                chain: record::chain_seed(self.run_seed, self.stream, lane),
            });
        }
        &mut self.lanes[usize::from(number)]
    }
}

/// Compares what readers saw with what writers know, and reports each fault with its count.
pub fn reconcile(written: &[Written], seen: &[Seen], mut on_fault: impl FnMut(Fault, u64)) {
    let mut lanes: HashMap<u32, Vec<&Written>> = HashMap::new();
    for lane in written {
        lanes.entry(lane.stream).or_default().push(lane);
    }
    let unseen = LaneSeen::default();
    for reader in seen {
        for lane in lanes.get(&reader.stream).into_iter().flatten() {
            let known = reader.lanes.get(usize::from(lane.lane)).unwrap_or(&unseen);
            let acknowledged = |seq: &u32| lane.uncertain.binary_search(seq).is_err();
            let gaps = known.missing.iter().copied().filter(acknowledged).count() as u64
                + known.missing_more;
            if gaps > 0 {
                on_fault(Fault::Gap, gaps);
            }
            let lost = (known.next..lane.sent).filter(acknowledged).count() as u64;
            if reader.to_the_end && lost > 0 {
                on_fault(Fault::Lost, lost);
            }
        }
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
