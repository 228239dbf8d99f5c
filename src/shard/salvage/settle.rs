//! The end of a salvage, when every shard's records have been seen: what rests
//! on files, and on streams of other shards.
//!
//! In this order, as each step may take away what the next looks for: broken
//! streams are closed, and those that have lost blocks are cut; forks lose what their sources no longer have, and their
//! own forks in turn; references that forks need are written again; snapshots
//! and parts without their bytes go.

use std::collections::{HashMap, HashSet};

use super::{Loss, Salvage};
use crate::{
    protocol::{fork::ForkOrigin, incarnation::Incarnation, stream_key::StreamKey},
    shard::{
        record::Record,
        replay::ReplayError,
        stream::{Blob, Stream},
    },
    storage::{blob::BlobId, segment::Place},
};

/// What streams name and what is not there, or not whole.
#[derive(Debug, Default)]
pub struct Lost {
    /// Blobs.
    pub files: HashSet<BlobId>,
    /// Blocks, of streams and of small blobs.
    pub blocks: HashSet<Place>,
    /// Streams whose latest snapshot does not give its digest.
    pub snapshots: HashSet<Incarnation>,
}

impl Lost {
    fn has(&self, blob: &Blob) -> bool {
        match blob {
            Blob::Memory(_) => false,
            Blob::File(file) => self.files.contains(&file.id),
            Blob::Block(place) => self.blocks.contains(place),
        }
    }
}

/// Settles the salvage of all shards together.
///
/// # Errors
/// [`ReplayError`] when an added record cannot be applied, which would be a mistake of this module.
pub fn settle(shards: &mut [Salvage], lost: &Lost) -> Result<(), ReplayError> {
    for shard in shards.iter_mut() {
        shard.close_broken()?;
        shard.cut_at_lost_blocks(&lost.blocks)?;
        shard.report_headless();
    }
    let sources = sources(shards);
    let mut forks = forks(shards);
    let bare = bare_forks(&sources, &forks);
    forks.retain(|fork| {
        let inherits = fork.origin.start < fork.origin.offset;
        inherits && !bare.contains(&fork.incarnation)
    });
    for shard in shards.iter_mut() {
        shard.bare(&bare)?;
    }
    for fork in forks {
        let source = fork.origin.incarnation;
        if let Some(shard) = sources.get(&source).and_then(|at| shards.get_mut(at.shard)) {
            shard.refer(fork)?;
        }
    }
    for shard in shards.iter_mut() {
        shard.drop_blobs(lost)?;
    }
    Ok(())
}

/// What a stream has for its forks.
struct Source {
    shard: usize,
    kept_from: u64,
    tail: u64,
}

struct Fork {
    incarnation: Incarnation,
    key: StreamKey,
    origin: ForkOrigin,
}

fn sources(shards: &[Salvage]) -> HashMap<Incarnation, Source> {
    let mut sources = HashMap::new();
    for (number, shard) in shards.iter().enumerate() {
        for stream in shard.tables.all_streams() {
            let gone = shard.gone.get(&stream.staged.incarnation);
            let source = Source {
                shard: number,
                kept_from: stream.staged.kept_from().max(gone.copied().unwrap_or(0)),
                tail: stream.staged.tail,
            };
            sources.insert(stream.staged.incarnation, source);
        }
    }
    sources
}

fn forks(shards: &[Salvage]) -> Vec<Fork> {
    let streams = shards.iter().flat_map(|shard| shard.tables.all_streams());
    streams
        .filter_map(|stream| {
            Some(Fork {
                incarnation: stream.staged.incarnation,
                key: stream.staged.key.clone(),
                origin: stream.staged.origin()?.clone(),
            })
        })
        .collect()
}

/// Forks that have lost what they inherit. One that has is a source of its own bytes only.
fn bare_forks(sources: &HashMap<Incarnation, Source>, forks: &[Fork]) -> HashSet<Incarnation> {
    let mut own_start = HashMap::new();
    loop {
        let before = own_start.len();
        for Fork {
            incarnation,
            origin,
            ..
        } in forks
        {
            let whole = sources.get(&origin.incarnation).is_some_and(|source| {
                let own = own_start.get(&origin.incarnation).copied();
                source.kept_from.max(own.unwrap_or(0)) <= origin.start
                    && source.tail >= origin.offset
            });
            if !whole && origin.start < origin.offset {
                own_start.insert(*incarnation, origin.offset);
            }
        }
        if own_start.len() == before {
            return own_start.into_keys().collect();
        }
    }
}

impl Salvage {
    fn close_broken(&mut self) -> Result<(), ReplayError> {
        for (incarnation, broken) in std::mem::take(&mut self.broken) {
            // Deleted since: nobody misses its bytes.
            let Some(stream) = self.tables.stream(incarnation) else {
                continue;
            };
            let (key, tail) = (stream.staged.key.clone(), stream.staged.tail);
            self.losses.push(Loss::Bytes {
                key,
                tail,
                reached: broken.reached,
                records: broken.records,
            });
            if !stream.staged.closed {
                self.add(&Record::Append {
                    incarnation,
                    at_ms: broken.at_ms,
                    start: tail,
                    close: true,
                    producer: None,
                    seq: None,
                    body: &[],
                })?;
            }
        }
        Ok(())
    }

    fn report_headless(&mut self) {
        for (incarnation, records) in std::mem::take(&mut self.headless) {
            self.losses.push(Loss::Stream {
                incarnation,
                records,
            });
        }
    }

    /// Lets the forks in `bare` begin where their own bytes do.
    fn bare(&mut self, bare: &HashSet<Incarnation>) -> Result<(), ReplayError> {
        for incarnation in bare {
            let slot = self.tables.slot_of(*incarnation);
            let Some(stream) = slot.and_then(|slot| self.tables.streams.get_mut(slot)) else {
                continue;
            };
            let (at_ms, retained) = (stream.staged.renewed_ms, stream.staged.retained);
            let key = stream.staged.key.clone();
            let Some(origin) = &mut stream.staged.rare_mut().origin else {
                continue;
            };
            self.losses.push(Loss::Inherited {
                key,
                source: origin.source.clone(),
                start: origin.start,
                end: origin.offset,
            });
            let offset = retained.max(origin.offset);
            origin.start = origin.offset;
            // Earlier retentions of it may lie before that.
            self.add(&Record::Retain {
                incarnation: *incarnation,
                at_ms,
                offset,
            })?;
        }
        Ok(())
    }

    /// Writes a fork's reference again if it is not there.
    fn refer(&mut self, fork: Fork) -> Result<(), ReplayError> {
        let source = self.tables.stream(fork.origin.incarnation);
        let rare = source.and_then(|stream| stream.staged.rare.as_ref());
        if rare.is_some_and(|rare| rare.forks.contains(fork.incarnation)) {
            return Ok(());
        }
        self.add(&Record::Refer {
            incarnation: fork.origin.incarnation,
            fork: fork.incarnation,
            fork_key: fork.key,
            start: fork.origin.start,
        })
    }

    /// Drops snapshots and parts that are of no use any more.
    fn drop_blobs(&mut self, lost: &Lost) -> Result<(), ReplayError> {
        let is_lost = |blob: &Blob| lost.has(blob);
        let mut snapshots = Vec::new();
        let mut parts = Vec::new();
        for stream in self.tables.all_streams() {
            let incarnation = stream.staged.incarnation;
            if let Some(snapshot) = stream.snapshot() {
                let early = snapshot.meta.offset < stream.staged.retained;
                let ahead = snapshot.meta.offset > stream.staged.tail;
                let body = lost.snapshots.contains(&incarnation);
                if early || ahead || body || snapshot.body.iter().any(is_lost) {
                    snapshots.push((incarnation, snapshot.meta.offset));
                }
            }
            let staged = stream.blobs().into_iter().flat_map(|blobs| &blobs.parts);
            let gone = staged.filter(|(_, blob)| is_lost(blob));
            let ids: Vec<Box<str>> = gone.map(|(id, _)| id.clone()).collect();
            if !ids.is_empty() {
                let key = stream.staged.key.clone();
                parts.push((
                    incarnation,
                    Loss::Parts {
                        key,
                        ids: ids.clone(),
                    },
                    ids,
                ));
            }
        }
        for (incarnation, offset) in snapshots {
            self.drop_snapshot(incarnation, offset);
        }
        for (incarnation, loss, ids) in parts {
            self.losses.push(loss);
            self.add(&Record::DiscardParts { incarnation, ids })?;
        }
        Ok(())
    }

    /// Drops a stream's snapshot: an older one's bytes are long gone.
    fn drop_snapshot(&mut self, incarnation: Incarnation, offset: u64) {
        let slot = self.tables.slot_of(incarnation);
        if let Some(stream) = slot.and_then(|slot| self.tables.streams.get_mut(slot)) {
            forget_snapshot(stream);
            let key = stream.staged.key.clone();
            self.losses.push(Loss::Snapshot { key, offset });
            self.changed = true;
        }
    }
}

fn forget_snapshot(stream: &mut Stream) {
    stream.staged.rare_mut().snapshot = None;
    if let Some(blobs) = stream.blobs_mut() {
        blobs.snapshot = None;
    }
}
