//! Replay that lives with losses: for `--repair`, and for nothing else.
//!
//! Where damaged batches were set aside, records are missing that later ones
//! rest on, and plain replay refuses. This decides, record by record, what can
//! still be told to clients without telling them anything untrue, and comes to
//! tables that hold it: written into a new layout they are an ordinary
//! directory.
//!
//! | what is missing                      | what is done                              |
//! |--------------------------------------|-------------------------------------------|
//! | bytes before an append, a retention  | the stream is closed where its unbroken   |
//! | or a snapshot of the stream          | bytes end; what follows is left out       |
//! | a stream's creation                  | its other records are left out            |
//! | a stream's deletion, known from a    | it is deleted                             |
//! | later stream of its name             |                                           |
//! | a part that a commit used, or a file | the snapshot, or the part, is dropped     |
//! | a snapshot after a retention by it   | any older one is dropped: it would lead   |
//! |                                      | readers to bytes that are gone            |
//! | bytes that a fork inherits           | the fork begins where its own bytes do    |
//! | a source's record of its fork        | it is written again                       |
//! | an entry of the checkpoint           | as a stream's creation; without records   |
//! |                                      | behind it nothing tells which it was      |
//! | a block of a stream, or the segment  | as bytes before an append; blocks that    |
//! | that it is in                        | only forks can read: as inherited bytes   |
//! | a block or file of a snapshot        | as a file                                 |
//!
//! A record of a stream that is deleted later, or that was deleted before the
//! checkpoint came to it, is no loss.
//!
//! What cannot be known, and is not guessed at: a stream whose *last* appends,
//! closure or deletion are missing looks like one that never had them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    protocol::{incarnation::Incarnation, stream_key::StreamKey},
    shard::{checkpoint::Included, record::Record, replay::ReplayError, tables::Tables},
    storage::journal::Position,
};

mod blocks;
mod loss;
mod settle;
#[cfg(test)]
mod tests;

pub use loss::Loss;
pub use settle::{Lost, settle};

/// The salvage of one shard's records.
#[derive(Debug)]
pub struct Salvage {
    tables: Tables,
    /// Up to where each stream's records are in its entry of the checkpoint.
    included: Included,
    /// Whether the tables are other than the records say.
    changed: bool,
    losses: Vec<Loss>,
    /// Streams that end before something they are known to have had.
    broken: BTreeMap<Incarnation, Broken>,
    /// Streams of which nothing says how they began, and how many of their records there are.
    headless: BTreeMap<Incarnation, u64>,
    /// Streams that were deleted for good: what else was on its way for one is no loss.
    deleted: HashSet<Incarnation>,
    /// Whole records that were left out, with their places.
    left_out: Vec<LeftOut>,
    /// Streams whose own bytes before an offset are gone, for their forks too.
    gone: HashMap<Incarnation, u64>,
}

/// A whole record that rests on something lost.
#[derive(Debug)]
pub struct LeftOut {
    /// Its place in the journal.
    pub position: Position,
    /// The record.
    pub bytes: Vec<u8>,
    stream: Incarnation,
}

/// What followed a gap in one stream.
#[derive(Debug)]
struct Broken {
    at_ms: u64,
    /// The furthest offset that the stream is known to have had.
    reached: u64,
    records: u64,
}

impl Salvage {
    /// A salvage that goes on with `tables`: what could be read of a checkpoint.
    #[must_use]
    pub fn new(tables: Tables, included: Included) -> Self {
        Self {
            tables,
            included,
            changed: false,
            losses: Vec::new(),
            broken: BTreeMap::new(),
            headless: BTreeMap::new(),
            deleted: HashSet::new(),
            left_out: Vec::new(),
            gone: HashMap::new(),
        }
    }

    /// Takes the next record.
    ///
    /// # Errors
    /// [`ReplayError`] for a record that no loss explains.
    pub fn apply(&mut self, position: Position, bytes: &[u8]) -> Result<(), ReplayError> {
        let record = Record::decode(bytes).map_err(ReplayError::Malformed)?;
        let stream = record.incarnation();
        let included = self.included.get(&stream);
        if included.is_some_and(|included| position < *included) || self.precedes(position, &record)
        {
            return Ok(());
        }
        if !self.takes(&record)? {
            self.left_out.push(LeftOut {
                position,
                bytes: bytes.to_vec(),
                stream,
            });
            return Ok(());
        }
        self.tables.replay(bytes)?;
        if let Record::Delete { soft: false, .. } = record {
            self.deleted.insert(stream);
            self.headless.remove(&stream);
        }
        Ok(())
    }

    /// Whether a stream is created that had gone, and had a successor, when the checkpoint was
    /// written.
    fn precedes(&mut self, position: Position, record: &Record<'_>) -> bool {
        let Record::Create {
            key, incarnation, ..
        } = record
        else {
            return false;
        };
        let successor = self.tables.stream_named(key).map(|stream| &stream.staged);
        let included = successor.and_then(|state| self.included.get(&state.incarnation));
        let precedes = included.is_some_and(|included| position < *included);
        if precedes {
            self.deleted.insert(*incarnation);
        }
        precedes
    }

    /// Nothing was lost of what the records rest on: streams that they do not create were deleted
    /// before the checkpoint came to them.
    pub fn is_complete(&mut self) {
        for incarnation in std::mem::take(&mut self.headless).into_keys() {
            self.deleted.insert(incarnation);
        }
    }

    /// The records that were left out, except those that nobody misses.
    pub fn take_left_out(&mut self) -> Vec<LeftOut> {
        let mut left_out = std::mem::take(&mut self.left_out);
        left_out.retain(|record| !self.deleted.contains(&record.stream));
        left_out
    }

    /// The tables as they came out.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The streams that are left, whether they are other than the records say, and what was lost.
    #[must_use]
    pub fn finish(self) -> (Tables, bool, Vec<Loss>) {
        let changed = self.changed || !self.losses.is_empty();
        (self.tables, changed, self.losses)
    }

    fn takes(&mut self, record: &Record<'_>) -> Result<bool, ReplayError> {
        let incarnation = record.incarnation();
        match record {
            Record::Fence { .. } => return Ok(true),
            Record::Create { key, .. } => {
                self.supersede(key, incarnation)?;
                return Ok(true);
            }
            _ if self.deleted.contains(&incarnation) => return Ok(true),
            _ => {}
        }
        let Some(stream) = self.tables.stream(incarnation) else {
            if matches!(record, Record::Delete { soft: false, .. }) {
                return Ok(true);
            }
            let headless = self.headless.entry(incarnation).or_default();
            *headless = headless.saturating_add(1);
            return Ok(false);
        };
        let tail = stream.staged.tail;
        // How far the stream must reach for the record to be true, or all of it to be known.
        let (at_ms, reaches, fits) = match record {
            Record::Append {
                at_ms, start, body, ..
            } => {
                let end = start.saturating_add(body.len() as u64);
                (*at_ms, end, *start == tail)
            }
            Record::Retain { at_ms, offset, .. }
            | Record::Publish { at_ms, offset, .. }
            | Record::CommitParts { at_ms, offset, .. } => (*at_ms, *offset, *offset <= tail),
            _ => return Ok(true),
        };
        if let Some(broken) = self.broken.get_mut(&incarnation) {
            // No append follows one that is left out, even if it starts at the tail.
            if !fits || matches!(record, Record::Append { .. }) {
                broken.reached = broken.reached.max(reaches);
                broken.records = broken.records.saturating_add(1);
                return Ok(false);
            }
        } else if !fits {
            let broken = Broken {
                at_ms,
                reached: reaches,
                records: 1,
            };
            self.broken.insert(incarnation, broken);
            return Ok(false);
        }
        if let Record::CommitParts { offset, ids, .. } = record {
            let parts = stream.blobs().map(|blobs| &blobs.parts);
            let held = |id| parts.is_some_and(|parts| parts.contains_key(id));
            if !ids.iter().all(held) {
                let key = stream.staged.key.clone();
                let offset = *offset;
                self.losses.push(Loss::Snapshot { key, offset });
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A stream of this name comes to be: an earlier one had been deleted.
    fn supersede(&mut self, key: &StreamKey, by: Incarnation) -> Result<(), ReplayError> {
        let Some(old) = self.tables.stream_named(key) else {
            return Ok(());
        };
        let incarnation = old.staged.incarnation;
        // A second creation with the same token is not a loss, and replay says so.
        if incarnation == by {
            return Ok(());
        }
        self.broken.remove(&incarnation);
        let key = key.clone();
        self.losses.push(Loss::Deletion { key, incarnation });
        self.add(&Record::Delete {
            incarnation,
            soft: false,
        })
    }

    /// Adds a record behind all others.
    fn add(&mut self, record: &Record<'_>) -> Result<(), ReplayError> {
        let mut bytes = Vec::new();
        let body = record.encode(&mut bytes);
        bytes.extend_from_slice(body);
        self.tables.replay(&bytes)?;
        self.changed = true;
        Ok(())
    }
}
