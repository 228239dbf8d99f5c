//! Where a range of a stream's bytes is: in memory, in a block of a segment,
//! or with the owner of the stream it was forked from.
//!
//! Runs cross cores: they share what is immutable and name what is on disk. A
//! run of a block pins its segment, so that its file outlives the response.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    protocol::{fork::ForkOrigin, incarnation::Incarnation, stream_key::StreamKey},
    storage::segment::{BlockKey, Place, Segment},
};

/// Bytes that follow one another in a stream.
#[derive(Clone, Debug)]
pub enum Run {
    /// In memory.
    Memory(Bytes),
    /// A part of a block on disk.
    Block(BlockRun),
    /// Inherited: the source's owner has them, or knows where they are.
    Inherited(Box<InheritedRun>),
}

/// A part of a block's payload.
#[derive(Clone, Debug)]
pub struct BlockRun {
    /// The file.
    pub segment: Arc<Segment>,
    /// Where the block is.
    pub place: Place,
    /// What is in it.
    pub key: BlockKey,
    /// The first byte of the payload that belongs to the run.
    pub from: u32,
    /// The byte after the last.
    pub to: u32,
}

/// Bytes that a fork shares with its source.
#[derive(Clone, Debug)]
pub struct InheritedRun {
    /// The source's name: says who owns it.
    pub key: StreamKey,
    /// The source.
    pub source: Incarnation,
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Run {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Block(run) => u64::from(run.to.saturating_sub(run.from)),
            Self::Inherited(run) => run.end.saturating_sub(run.start),
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a fork inherits from `start` to `end`.
    #[must_use]
    pub fn inherited(origin: &ForkOrigin, start: u64, end: u64) -> Self {
        Self::Inherited(Box::new(InheritedRun {
            key: origin.source.clone(),
            source: origin.incarnation,
            start,
            end,
        }))
    }
}
