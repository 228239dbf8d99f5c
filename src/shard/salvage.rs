//! Replay that lives with losses: for `--repair`, and for nothing else.
//!
//! Where damaged batches were set aside, records are missing that later ones
//! rest on, and plain replay refuses. This decides, record by record, what can
//! still be told to clients without telling them anything untrue, and comes to
//! [`Edits`] of the journal: applied to its records they give one that plain
//! replay takes, so that a repaired directory is an ordinary one.
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
//!
//! What cannot be known, and is not guessed at: a stream whose *last* appends,
//! closure or deletion are missing looks like one that never had them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    protocol::{incarnation::Incarnation, stream_key::StreamKey},
    shard::{record::Record, replay::ReplayError, tables::Tables},
    storage::journal::Position,
};

mod loss;
mod settle;
#[cfg(test)]
mod tests;

pub use loss::Loss;
pub use settle::settle;

/// What is to be changed in the records of one journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Records to be left out.
    pub left_out: BTreeSet<Position>,
    /// Records to be written otherwise.
    pub replaced: BTreeMap<Position, Vec<u8>>,
    /// Records to be written after all others.
    pub added: Vec<Vec<u8>>,
}

impl Edits {
    /// Whether the records stay as they are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left_out.is_empty() && self.replaced.is_empty() && self.added.is_empty()
    }
}

/// The salvage of one shard's records.
#[derive(Debug)]
pub struct Salvage {
    tables: Tables,
    edits: Edits,
    losses: Vec<Loss>,
    /// Streams that end before something they are known to have had.
    broken: BTreeMap<Incarnation, Broken>,
    /// Streams of which nothing says how they began, and how many of their records there are.
    headless: BTreeMap<Incarnation, u64>,
    /// Streams that were deleted for good: what else was on its way for one is no loss.
    deleted: HashSet<Incarnation>,
    /// The creation of each fork, and where it is.
    forks: HashMap<Incarnation, (Position, Vec<u8>)>,
    /// Where each stream's snapshots were published.
    published: HashMap<Incarnation, Vec<Published>>,
}

/// A publication of a snapshot.
#[derive(Debug)]
struct Published {
    position: Position,
    /// The staged parts it used.
    parts: Vec<Box<str>>,
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
    /// A salvage that fills `tables`, which are empty.
    #[must_use]
    pub fn new(tables: Tables) -> Self {
        Self {
            tables,
            edits: Edits::default(),
            losses: Vec::new(),
            broken: BTreeMap::new(),
            headless: BTreeMap::new(),
            deleted: HashSet::new(),
            forks: HashMap::new(),
            published: HashMap::new(),
        }
    }

    /// Takes the next record. False if it is left out.
    ///
    /// # Errors
    /// [`ReplayError`] for a record that no loss explains.
    pub fn apply(&mut self, position: Position, bytes: &[u8]) -> Result<bool, ReplayError> {
        let record = Record::decode(bytes).map_err(ReplayError::Malformed)?;
        if !self.takes(position, &record)? {
            self.edits.left_out.insert(position);
            return Ok(false);
        }
        self.tables.replay(bytes)?;
        match record {
            Record::Create {
                incarnation,
                origin: Some(_),
                ..
            } => {
                self.forks.insert(incarnation, (position, bytes.to_vec()));
            }
            Record::Delete {
                incarnation,
                soft: false,
            } => {
                self.deleted.insert(incarnation);
            }
            _ => {}
        }
        Ok(true)
    }

    /// The tables as they came out.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// What was lost, and what is to be changed.
    #[must_use]
    pub fn finish(self) -> (Edits, Vec<Loss>) {
        (self.edits, self.losses)
    }

    fn takes(&mut self, position: Position, record: &Record<'_>) -> Result<bool, ReplayError> {
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
            *self.headless.entry(incarnation).or_default() += 1;
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
                broken.records += 1;
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
        match record {
            Record::Publish { .. } => self.note_published(incarnation, position, Vec::new()),
            Record::CommitParts { offset, ids, .. } => {
                let parts = stream.blobs.as_ref().map(|blobs| &blobs.parts);
                let held = |id| parts.is_some_and(|parts| parts.contains_key(id));
                if !ids.iter().all(held) {
                    let key = stream.staged.key.clone();
                    let offset = *offset;
                    self.losses.push(Loss::Snapshot { key, offset });
                    return Ok(false);
                }
                self.note_published(incarnation, position, ids.clone());
            }
            _ => {}
        }
        Ok(true)
    }

    fn note_published(&mut self, stream: Incarnation, position: Position, parts: Vec<Box<str>>) {
        let published = Published { position, parts };
        self.published.entry(stream).or_default().push(published);
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

    /// Adds a record behind all others, here and in the edits.
    fn add(&mut self, record: &Record<'_>) -> Result<(), ReplayError> {
        let mut bytes = Vec::new();
        let body = record.encode(&mut bytes);
        bytes.extend_from_slice(body);
        self.tables.replay(&bytes)?;
        self.edits.added.push(bytes);
        Ok(())
    }
}
