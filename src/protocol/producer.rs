//! Idempotent producers: which write is new, which is a repeat, which is
//! fenced (base protocol 5.2.1; decisions, Producers).
//!
//! A producer's state changes in the same record as the data it describes,
//! so a retry after any crash is recognised exactly when its data survived.

use std::{borrow::Cow, collections::HashMap};

use crate::{
    base::limits::{JS_INTEGER_MAX, TOKEN_BYTES_MAX},
    protocol::{
        error::{NumberBuffer, Refusal},
        offset::decimal,
    },
};

/// A 32-byte BLAKE3 digest of a request body.
pub type Digest = [u8; 32];

/// The producer headers of one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerWrite {
    /// `Producer-Id`: 1 to 256 bytes.
    pub id: Box<str>,
    /// `Producer-Epoch`, at most 2^53-1.
    pub epoch: u64,
    /// `Producer-Seq`, at most 2^53-1.
    pub seq: u64,
    /// `Producer-Digest`, already compared with the body.
    pub digest: Option<Digest>,
}

impl ProducerWrite {
    /// Reads the producer headers of a write; `None` when it carries none.
    ///
    /// # Errors
    /// [`Refusal::InvalidProducer`] when some but not all of id, epoch and sequence number are
    /// there, or one is malformed.
    pub fn parse(
        id: Option<&[u8]>,
        epoch: Option<&[u8]>,
        seq: Option<&[u8]>,
        digest: Option<&[u8]>,
    ) -> Result<Option<Self>, Refusal> {
        let invalid = |text: &'static str| Err(Refusal::InvalidProducer(Cow::Borrowed(text)));
        let (id, epoch, seq) = match (id, epoch, seq, digest) {
            (None, None, None, None) => return Ok(None),
            (Some(id), Some(epoch), Some(seq), _) => (id, epoch, seq),
            _ => {
                return invalid(
                    "Producer-Id, Producer-Epoch and Producer-Seq must be provided together",
                );
            }
        };
        if id.is_empty() || id.len() > TOKEN_BYTES_MAX {
            return invalid("Producer-Id must be 1 to 256 bytes");
        }
        let Ok(id) = std::str::from_utf8(id) else {
            return invalid("Producer-Id must be UTF-8");
        };
        let integer = |value: &[u8]| decimal(value).filter(|value| *value <= JS_INTEGER_MAX);
        let Some(epoch) = integer(epoch) else {
            return invalid("Producer-Epoch must be a decimal integer from 0 to 2^53-1");
        };
        let Some(seq) = integer(seq) else {
            return invalid("Producer-Seq must be a decimal integer from 0 to 2^53-1");
        };
        let digest = match digest {
            None => None,
            Some(text) => match parse_digest(text) {
                Some(digest) => Some(digest),
                None => return invalid("Producer-Digest must be 64 lowercase hex digits"),
            },
        };
        Ok(Some(Self {
            id: id.into(),
            epoch,
            seq,
            digest,
        }))
    }
}

/// 64 lowercase hex digits, as digests travel in headers.
#[must_use]
pub fn parse_digest(text: &[u8]) -> Option<Digest> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(byte.wrapping_sub(b'a').wrapping_add(10)),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = (nibble(*high)? << 4) | nibble(*low)?;
    }
    Some(digest)
}

/// What a stream remembers of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Its current epoch.
    pub epoch: u64,
    /// The last sequence number applied in that epoch.
    pub seq: u64,
    /// First byte of that write.
    pub start: u64,
    /// Offset after that write.
    pub end: u64,
    /// Whether that write closed the stream.
    pub closes: bool,
    /// The digest that write named, if it named one.
    pub digest: Option<Digest>,
    /// The epoch that the current one closed, and its last sequence number.
    pub closed: Option<(u64, u64)>,
}

/// The producers of one stream.
pub type Producers = HashMap<Box<str>, Producer>;

/// What a producer's write is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// New: apply it; if it opens an epoch over an older one, that one is named.
    New {
        /// Epoch and last sequence number that this write closes.
        closed: Option<(u64, u64)>,
    },
    /// Applied before.
    Repeat(Repeat),
}

/// The receipt of a write that was applied before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The producer's epoch.
    pub epoch: u64,
    /// The highest sequence number applied in it.
    pub seq: u64,
    /// The byte range of this very write, when it is the last one; `None` says that the range is
    /// no longer known.
    pub range: Option<(u64, u64)>,
    /// Whether this write closed the stream.
    pub closes: bool,
    /// What the epoch's first write closed, on its repeats.
    pub closed: Option<(u64, u64)>,
}

/// Judges a write against what the stream remembers of its producer (base protocol 5.2.1,
/// Validation Logic).
///
/// # Errors
/// [`Refusal::Producer`] for a fenced epoch, an unclaimed one, a gap, or a key that holds
/// another write.
pub fn judge(known: Option<&Producer>, write: &ProducerWrite) -> Result<Sequenced, Refusal> {
    let refuse = |refusal| Err(Refusal::Producer(refusal));
    let Some(known) = known else {
        return if write.seq == 0 {
            Ok(Sequenced::New { closed: None })
        } else {
            refuse(ProducerRefusal::SeqGap {
                expected: 0,
                received: write.seq,
            })
        };
    };
    if write.epoch < known.epoch {
        return match known.closed {
            Some((epoch, seq)) if epoch == write.epoch => refuse(ProducerRefusal::EpochClosed {
                epoch: known.epoch,
                closed: (epoch, seq),
            }),
            _ => refuse(ProducerRefusal::StaleEpoch { epoch: known.epoch }),
        };
    }
    if write.epoch > known.epoch {
        return if write.seq == 0 {
            Ok(Sequenced::New {
                closed: Some((known.epoch, known.seq)),
            })
        } else {
            refuse(ProducerRefusal::EpochNotClaimed)
        };
    }
    if write.seq > known.seq {
        let expected = known.seq.saturating_add(1);
        return if write.seq == expected {
            Ok(Sequenced::New { closed: None })
        } else {
            refuse(ProducerRefusal::SeqGap {
                expected,
                received: write.seq,
            })
        };
    }
    let is_last = write.seq == known.seq;
    if let (true, Some(held), Some(sent)) = (is_last, known.digest, write.digest)
        && held != sent
    {
        return refuse(ProducerRefusal::KeyConflict { epoch: known.epoch });
    }
    Ok(Sequenced::Repeat(Repeat {
        epoch: known.epoch,
        seq: known.seq,
        range: is_last.then_some((known.start, known.end)),
        closes: is_last && known.closes,
        closed: known.closed.filter(|_| write.seq == 0),
    }))
}

/// Why a producer's write was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProducerRefusal {
    /// A later epoch closed this one.
    EpochClosed {
        /// The current epoch.
        epoch: u64,
        /// The closed epoch and its last sequence number.
        closed: (u64, u64),
    },
    /// The epoch is older than any that is remembered.
    StaleEpoch {
        /// The current epoch.
        epoch: u64,
    },
    /// A sequence number above 0 of an epoch that no write has opened.
    EpochNotClaimed,
    /// A sequence number past the next one.
    SeqGap {
        /// The next one.
        expected: u64,
        /// What came.
        received: u64,
    },
    /// The key holds a write with another digest.
    KeyConflict {
        /// The current epoch.
        epoch: u64,
    },
    /// `Producer-Digest` is not the body's digest.
    DigestMismatch,
}

impl ProducerRefusal {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::EpochClosed { .. } | Self::StaleEpoch { .. } | Self::KeyConflict { .. } => 403,
            Self::EpochNotClaimed | Self::DigestMismatch => 400,
            Self::SeqGap { .. } => 409,
        }
    }

    /// The code in the error body.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::EpochClosed { .. } => "PRODUCER_EPOCH_CLOSED",
            Self::StaleEpoch { .. } => "PRODUCER_EPOCH_STALE",
            Self::EpochNotClaimed => "INVALID_PRODUCER",
            Self::SeqGap { .. } => "PRODUCER_SEQ_CONFLICT",
            Self::KeyConflict { .. } => "PRODUCER_KEY_CONFLICT",
            Self::DigestMismatch => "PRODUCER_DIGEST_MISMATCH",
        }
    }

    /// What was wrong, for a person.
    #[must_use]
    pub fn message(&self) -> Cow<'_, str> {
        match self {
            Self::EpochClosed { epoch, .. } => {
                format!("the producer's epoch is closed: epoch {epoch} is the current one").into()
            }
            Self::StaleEpoch { epoch } => {
                format!("the producer's epoch is stale: epoch {epoch} is the current one").into()
            }
            Self::EpochNotClaimed => "a new epoch must start at sequence 0".into(),
            Self::SeqGap { expected, received } => {
                format!("the producer's next sequence number is {expected}, got {received}").into()
            }
            Self::KeyConflict { .. } => {
                "this epoch and sequence number hold a write with another digest".into()
            }
            Self::DigestMismatch => "Producer-Digest is not the digest of the request body".into(),
        }
    }

    /// Emits the typed headers of the refusal.
    pub fn headers(&self, emit: &mut dyn FnMut(&'static str, &[u8])) {
        let mut number = NumberBuffer::default();
        match *self {
            Self::EpochClosed { epoch, closed } => {
                emit("Producer-Epoch", number.write(epoch));
                emit("Producer-Closed-Epoch", number.write(closed.0));
                emit("Producer-Closed-Seq", number.write(closed.1));
                emit("Producer-Outcome", b"epoch-closed;by=claim");
            }
            Self::StaleEpoch { epoch } => {
                emit("Producer-Epoch", number.write(epoch));
                emit("Producer-Outcome", b"stale-epoch");
            }
            Self::EpochNotClaimed => emit("Producer-Expected-Seq", b"0"),
            Self::SeqGap { expected, received } => {
                emit("Producer-Expected-Seq", number.write(expected));
                emit("Producer-Received-Seq", number.write(received));
            }
            Self::KeyConflict { epoch } => {
                emit("Producer-Epoch", number.write(epoch));
                emit("Producer-Outcome", b"key-conflict");
            }
            Self::DigestMismatch => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(epoch: u64, seq: u64) -> ProducerWrite {
        ProducerWrite {
            id: "w".into(),
            epoch,
            seq,
            digest: None,
        }
    }

    fn known(epoch: u64, seq: u64) -> Producer {
        Producer {
            epoch,
            seq,
            start: 3,
            end: 5,
            closes: false,
            digest: Some([1; 32]),
            closed: epoch.checked_sub(1).map(|closed| (closed, 9)),
        }
    }

    fn refused(known: Option<&Producer>, write: &ProducerWrite) -> ProducerRefusal {
        match judge(known, write) {
            Err(Refusal::Producer(refusal)) => refusal,
            other => panic!("expected a producer refusal, got {other:?}"),
        }
    }

    #[test]
    fn every_row_of_the_validation_logic() {
        assert_eq!(
            judge(None, &write(4, 0)),
            Ok(Sequenced::New { closed: None })
        );
        assert!(matches!(
            refused(None, &write(0, 5)),
            ProducerRefusal::SeqGap {
                expected: 0,
                received: 5
            }
        ));
        let state = known(2, 7);
        assert!(matches!(
            refused(Some(&state), &write(1, 0)),
            ProducerRefusal::EpochClosed {
                epoch: 2,
                closed: (1, 9)
            }
        ));
        assert!(matches!(
            refused(Some(&state), &write(0, 0)),
            ProducerRefusal::StaleEpoch { epoch: 2 }
        ));
        assert!(matches!(
            refused(Some(&state), &write(3, 1)),
            ProducerRefusal::EpochNotClaimed
        ));
        assert_eq!(
            judge(Some(&state), &write(3, 0)),
            Ok(Sequenced::New {
                closed: Some((2, 7))
            })
        );
        assert_eq!(
            judge(Some(&state), &write(2, 8)),
            Ok(Sequenced::New { closed: None })
        );
        assert!(matches!(
            refused(Some(&state), &write(2, 9)),
            ProducerRefusal::SeqGap {
                expected: 8,
                received: 9
            }
        ));
    }

    #[test]
    fn a_repeat_of_the_last_write_names_its_range_and_older_ones_do_not() {
        let state = known(0, 7);
        let Ok(Sequenced::Repeat(last)) = judge(Some(&state), &write(0, 7)) else {
            panic!("a repeat")
        };
        assert_eq!((last.range, last.seq), (Some((3, 5)), 7));
        let Ok(Sequenced::Repeat(older)) = judge(Some(&state), &write(0, 2)) else {
            panic!("a repeat")
        };
        assert_eq!((older.range, older.seq), (None, 7));
    }

    #[test]
    fn a_used_key_with_another_digest_is_a_conflict() {
        let state = known(0, 7);
        let mut again = write(0, 7);
        again.digest = Some([2; 32]);
        assert!(matches!(
            refused(Some(&state), &again),
            ProducerRefusal::KeyConflict { .. }
        ));
        again.digest = Some([1; 32]);
        assert!(judge(Some(&state), &again).is_ok());
    }

    #[test]
    fn headers_come_together_and_well_formed() {
        let parse = |id: &str, epoch: &str, seq: &str| {
            ProducerWrite::parse(
                Some(id.as_bytes()),
                Some(epoch.as_bytes()),
                Some(seq.as_bytes()),
                None,
            )
        };
        assert_eq!(ProducerWrite::parse(None, None, None, None), Ok(None));
        assert!(ProducerWrite::parse(Some(b"a"), None, None, None).is_err());
        assert!(ProducerWrite::parse(None, None, None, Some(&[b'0'; 64])).is_err());
        assert!(parse("a", "0", "00").unwrap().is_some());
        for (id, epoch, seq) in [
            ("", "0", "0"),
            ("a", "-1", "0"),
            ("a", "0", "1.0"),
            ("a", "0", "1e3"),
            ("a", "9007199254740992", "0"),
            ("a", "", "0"),
        ] {
            assert!(parse(id, epoch, seq).is_err(), "{id} {epoch} {seq}");
        }
    }
}
