//! What a repair could not keep, in words for whoever has to tell its users.

use std::fmt;

use crate::protocol::{incarnation::Incarnation, stream_key::StreamKey};

/// Something that was acknowledged once and is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Bytes in the middle of a stream.
    Bytes {
        /// The stream.
        key: StreamKey,
        /// Where its unbroken bytes end: it is closed there.
        tail: u64,
        /// How far it is known to have gone.
        reached: u64,
        /// Records behind the gap that were left out.
        records: u64,
    },
    /// A stream whose creation, and so its name, is not there.
    Stream {
        /// Its token.
        incarnation: Incarnation,
        /// Records of it that were left out.
        records: u64,
    },
    /// The record that a stream was deleted: it is deleted now.
    Deletion {
        /// Its name; a later stream has it.
        key: StreamKey,
        /// Its token.
        incarnation: Incarnation,
    },
    /// The latest snapshot of a stream, or one that it could still have used.
    Snapshot {
        /// The stream.
        key: StreamKey,
        /// The snapshot's offset.
        offset: u64,
    },
    /// Staged parts of a snapshot.
    Parts {
        /// The stream.
        key: StreamKey,
        /// Their ids.
        ids: Vec<Box<str>>,
    },
    /// Bytes that a fork shared with its source.
    Inherited {
        /// The fork.
        key: StreamKey,
        /// Its source.
        source: StreamKey,
        /// The first of them.
        start: u64,
        /// The offset after the last: the fork begins there now.
        end: u64,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes {
                key,
                tail,
                reached,
                records,
            } => write!(
                f,
                "stream {}: bytes from {tail} on are lost, of at least {} that it had; it is \
                 closed at {tail}, and {records} later records of it are set aside",
                key.as_str(),
                reached
            ),
            Self::Stream {
                incarnation,
                records,
            } => write!(
                f,
                "a stream whose creation is lost (incarnation {}): {records} records of it are \
                 set aside",
                incarnation.0
            ),
            Self::Deletion { key, incarnation } => write!(
                f,
                "stream {} (incarnation {}): the record of its deletion is lost; it is deleted \
                 again, as a later stream has its name",
                key.as_str(),
                incarnation.0
            ),
            Self::Snapshot { key, offset } => write!(
                f,
                "stream {}: its snapshot at {offset} is lost; it has none until the next is \
                 published",
                key.as_str()
            ),
            Self::Parts { key, ids } => write!(
                f,
                "stream {}: staged parts are lost: {}; stage them again",
                key.as_str(),
                ids.join(", ")
            ),
            Self::Inherited {
                key,
                source,
                start,
                end,
            } => write!(
                f,
                "stream {}: bytes {start} to {end}, inherited from {}, are lost; it begins at \
                 {end} now",
                key.as_str(),
                source.as_str()
            ),
        }
    }
}
