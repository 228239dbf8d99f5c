//! Moving what is live out of a segment that is mostly dead, as the owner sees
//! it: which of its blocks are ours, and where they are now.
//!
//! The segment itself says what is in it, so nothing in memory leads from a
//! segment to its blocks. The old places stay as they are until a checkpoint
//! rules that names the new ones.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    protocol::incarnation::Incarnation,
    shard::{
        owner::Shard,
        stream::{Blob, Stream},
        tables::Tables,
    },
    storage::segment::{BlockKey, BlockKind, Place, Segment},
};

/// A stream with more blobs than this is not gone through for each of them.
const FEW_BLOBS: usize = 16;

/// Where streams with many blobs have them.
#[derive(Debug, Default)]
pub(super) struct KnownBlobs(HashMap<Incarnation, HashSet<Place>>);

impl KnownBlobs {
    /// Whether `stream` has a blob at `place`.
    fn has(&mut self, stream: &Stream, place: Place) -> bool {
        let mut places = stream.all_blobs().filter_map(Blob::place);
        if stream.all_blobs().nth(FEW_BLOBS).is_none() {
            return places.any(|known| known == place);
        }
        let known = self.0.entry(stream.staged.incarnation);
        known.or_insert_with(|| places.collect()).contains(&place)
    }
}

impl Shard {
    /// Whether a stream here has this very block; of one with many blobs, whether it had it when it
    /// was first asked.
    pub(super) fn has_block(&self, place: Place, key: BlockKey, blobs: &mut KnownBlobs) -> bool {
        let tables = self.tables.borrow();
        let slot = tables.slot_of_any(Incarnation(key.owner));
        let stream = slot.and_then(|slot| tables.streams.get(slot));
        stream.is_some_and(|stream| match key.kind {
            BlockKind::Data => {
                let block = stream.history.block_at(key.start);
                block.is_some_and(|block| block.place == place)
            }
            BlockKind::Blob => blobs.has(stream, place),
        })
    }

    /// Blocks were written again at `to`: their streams name those places from now on.
    pub(super) fn move_blocks(&self, from: &[(Place, BlockKey)], to: &[(Arc<Segment>, Place)]) {
        let mut tables = self.tables.borrow_mut();
        let tables = &mut *tables;
        tables.adopt(to);
        let mut blobs: HashMap<Incarnation, HashMap<Place, Place>> = HashMap::new();
        for ((from, key), (_, to)) in from.iter().zip(to) {
            let owner = Incarnation(key.owner);
            match key.kind {
                BlockKind::Data => {
                    let is_moved = tables.relocate(owner, key.start, *from, *to);
                    tables.moved_if(is_moved, *from, *to);
                }
                BlockKind::Blob => {
                    blobs.entry(owner).or_default().insert(*from, *to);
                }
            }
        }
        for (owner, moves) in blobs {
            let slot = tables.slot_of_any(owner);
            let stream = slot.and_then(|slot| tables.streams.get_mut(slot));
            let moved = stream.map_or_else(HashSet::new, |stream| relocate_blobs(stream, &moves));
            for (from, to) in moves {
                tables.moved_if(moved.contains(&from), from, to);
            }
        }
    }
}

impl Tables {
    fn relocate(&mut self, owner: Incarnation, start: u64, from: Place, to: Place) -> bool {
        let slot = self.slot_of_any(owner);
        let stream = slot.and_then(|slot| self.streams.get_mut(slot));
        stream.is_some_and(|stream| stream.history.relocate(start, from, to))
    }

    /// A block was moved, or it is gone meanwhile, and its old place with it.
    fn moved_if(&mut self, is_moved: bool, from: Place, to: Place) {
        if is_moved {
            self.moved.push(from);
        } else {
            self.held.release(to);
        }
    }
}

/// Gives blobs of a stream their new places; the old places of those that are still there.
fn relocate_blobs(stream: &mut Stream, moves: &HashMap<Place, Place>) -> HashSet<Place> {
    let mut moved = HashSet::new();
    let Some(blobs) = stream.blobs_mut() else {
        return moved;
    };
    let mut relocate = |blob: &mut Blob| {
        if let Some(from) = blob.place()
            && let Some(to) = moves.get(&from)
        {
            *blob = Blob::Block(*to);
            moved.insert(from);
        }
    };
    blobs.parts.values_mut().for_each(&mut relocate);
    // One whose record is not durable yet is moved another time.
    if let Some(snapshot) = &mut blobs.snapshot {
        let mut places = snapshot.body.iter().filter_map(Blob::place);
        if places.any(|place| moves.contains_key(&place)) {
            let body = &mut Arc::make_mut(snapshot).body;
            body.iter_mut().for_each(relocate);
        }
    }
    moved
}
