//! Append and close: what a POST does to a stream (base protocol 5.2, 5.2.1,
//! 5.3; decisions, Order of checks).

use bytes::Bytes;

use crate::protocol::{
    content_type::ContentType,
    error::Refusal,
    incarnation::Incarnation,
    producer::{self, ProducerWrite, Repeat, Sequenced},
    state::{ProducerTuple, StreamState},
    stream_key::StreamKey,
};

/// A POST, its body already in stored form.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
    /// `Content-Type`; required when there is a body.
    pub content_type: Option<ContentType>,
    /// Whether one was named that is none.
    pub malformed_type: bool,
    /// What to append: stored text for JSON, bytes as sent for the rest. Empty only with `close`.
    pub body: Bytes,
    /// `Stream-Closed: true`.
    pub close: bool,
    /// The producer headers.
    pub producer: Option<ProducerWrite>,
    /// `Stream-Seq`.
    pub seq: Option<Box<str>>,
}

/// What an append comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendDecision {
    /// Apply it: the body becomes the bytes from the tail on.
    Apply {
        /// The epoch (and its last sequence number) that the producer's write closes.
        closed_epoch: Option<(u64, u64)>,
    },
    /// A producer's write that was applied before: nothing changes.
    Repeat(Repeat),
    /// Close-only on a closed stream: nothing changes.
    AlreadyClosed,
}

/// Checks that a body of type `got` fits a stream of type `want` whose tail is `tail` (base protocol 5.2).
///
/// # Errors
/// [`Refusal::ContentTypeMismatch`].
pub fn check_type(got: &ContentType, want: &ContentType, tail: u64) -> Result<(), Refusal> {
    if want.matches(got) {
        return Ok(());
    }
    Err(Refusal::ContentTypeMismatch {
        got: got.clone(),
        want: want.clone(),
        tail,
    })
}

/// Decides an append against `state`, in the order of `decisions.md`.
///
/// # Errors
/// The first refusal in that order.
pub fn decide(
    state: &StreamState,
    request: &AppendRequest,
    producers_max: usize,
) -> Result<AppendDecision, Refusal> {
    if state.soft_deleted {
        return Err(Refusal::SoftDeleted);
    }
    check_incarnation(state, request.precondition)?;
    if state.closed {
        return decide_closed(state, request);
    }
    if !request.body.is_empty() {
        let got = request
            .content_type
            .as_ref()
            .ok_or(Refusal::MissingContentType)?;
        check_type(got, &state.content_type, state.tail)?;
    }
    let mut closed_epoch = None;
    if let Some(write) = &request.producer {
        let known = state.producer(&write.id);
        match producer::judge(known, write)? {
            Sequenced::Repeat(repeat) => return Ok(AppendDecision::Repeat(repeat)),
            Sequenced::New { closed } => closed_epoch = closed,
        }
        let remembered = state.rare.as_ref().map_or(0, |rare| rare.producers.len());
        if known.is_none() && remembered >= producers_max {
            return Err(Refusal::ProducerLimit {
                limit: producers_max,
            });
        }
    }
    if let Some(seq) = &request.seq {
        let last = state.rare.as_ref().and_then(|rare| rare.last_seq.as_ref());
        if let Some(last) = last.filter(|last| seq.as_bytes() <= last.as_bytes()) {
            return Err(Refusal::StreamSeqConflict {
                last: last.clone(),
                tail: state.tail,
            });
        }
    }
    Ok(AppendDecision::Apply { closed_epoch })
}

/// A closed stream takes the repeat of the write that closed it, and another close without data;
/// everything else is refused.
fn decide_closed(state: &StreamState, request: &AppendRequest) -> Result<AppendDecision, Refusal> {
    let closed = Refusal::Closed { tail: state.tail };
    if let Some(write) = &request.producer {
        let closed_by = state.rare.as_ref().and_then(|rare| rare.closed_by.as_ref());
        let is_closing_write = closed_by.is_some_and(|tuple| {
            (tuple.id.as_ref(), tuple.epoch, tuple.seq) == (&*write.id, write.epoch, write.seq)
        });
        if !is_closing_write {
            return Err(closed);
        }
        return match producer::judge(state.producer(&write.id), write)? {
            Sequenced::Repeat(repeat) => Ok(AppendDecision::Repeat(repeat)),
            Sequenced::New { .. } => Err(closed),
        };
    }
    if request.body.is_empty() && request.close {
        return Ok(AppendDecision::AlreadyClosed);
    }
    Err(closed)
}

/// Compares a request's `Stream-Incarnation` with the stream it reached (extensions 2.4).
///
/// # Errors
/// [`Refusal::IncarnationMismatch`] with the current token.
pub fn check_incarnation(
    state: &StreamState,
    precondition: Option<Incarnation>,
) -> Result<(), Refusal> {
    match precondition {
        Some(expected) if expected != state.incarnation => Err(Refusal::IncarnationMismatch {
            current: Some(state.incarnation),
        }),
        _ => Ok(()),
    }
}

/// Applies an accepted append to `state`, live and in replay alike.
pub fn apply(state: &mut StreamState, write: &AppliedAppend<'_>) {
    let start = state.tail;
    let end = start.saturating_add(write.body_len);
    state.tail = end;
    state.closed |= write.close;
    state.renewed_ms = state.renewed_ms.max(write.at_ms);
    if let Some(producer) = write.producer {
        let rare = state.rare_mut();
        let entry = producer::Producer {
            epoch: producer.epoch,
            seq: producer.seq,
            start,
            end,
            closes: write.close,
            digest: producer.digest,
            closed: match rare.producers.get(&producer.id) {
                Some(known) if known.epoch < producer.epoch => Some((known.epoch, known.seq)),
                Some(known) => known.closed,
                None => None,
            },
        };
        rare.producers.insert(producer.id.clone(), entry);
        if write.close {
            rare.closed_by = Some(ProducerTuple {
                id: producer.id.clone(),
                epoch: producer.epoch,
                seq: producer.seq,
            });
        }
    }
    if let Some(seq) = write.seq {
        state.rare_mut().last_seq = Some(seq.into());
    }
}

/// An append that was accepted, as its record holds it.
#[derive(Clone, Copy, Debug)]
pub struct AppliedAppend<'a> {
    /// When it was accepted, in Unix milliseconds.
    pub at_ms: u64,
    /// Bytes appended.
    pub body_len: u64,
    /// Whether it closed the stream.
    pub close: bool,
    /// Its producer.
    pub producer: Option<&'a ProducerWrite>,
    /// Its `Stream-Seq`.
    pub seq: Option<&'a str>,
}
