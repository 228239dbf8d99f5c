//! Moving what is live out of a segment that is mostly dead, as the owner sees
//! it: which of its blocks are ours, and where they are now.
//!
//! The segment itself says what is in it, so nothing in memory leads from a
//! segment to its blocks. The old places stay as they are until a checkpoint
//! rules that names the new ones.

use std::sync::Arc;

use crate::{
    protocol::incarnation::Incarnation,
    shard::{
        owner::Shard,
        stream::{Blob, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::segment::{BlockKey, BlockKind, Place, Segment},
};

impl Shard {
    /// Whether a stream here has this very block.
    pub(super) fn has_block(&self, place: Place, key: BlockKey) -> bool {
        let tables = self.tables.borrow();
        let slot = tables.slot_of_any(Incarnation(key.owner));
        let stream = slot.and_then(|slot| tables.streams.get(slot));
        stream.is_some_and(|stream| match key.kind {
            BlockKind::Data => {
                let block = stream.history.block_at(key.start);
                block.is_some_and(|block| block.place == place)
            }
            BlockKind::Blob => stream.all_blobs().any(|blob| blob.place() == Some(place)),
        })
    }

    /// A block was written again at `to`: its stream names that place from now on.
    pub(super) fn move_block(&self, key: BlockKey, from: Place, to: &(Arc<Segment>, Place)) {
        let mut tables = self.tables.borrow_mut();
        let placed = std::slice::from_ref(to);
        tables.adopt(placed);
        if tables.relocate(key, from, to.1) {
            tables.moved.push(from);
        } else {
            // Gone meanwhile, and its old place with it.
            tables.disown(placed);
        }
    }
}

impl Tables {
    fn relocate(&mut self, key: BlockKey, from: Place, to: Place) -> bool {
        let slot = self.slot_of_any(Incarnation(key.owner));
        let Some(stream) = slot.and_then(|slot| self.streams.get_mut(slot)) else {
            return false;
        };
        match key.kind {
            BlockKind::Data => stream.history.relocate(key.start, from, to),
            BlockKind::Blob => relocate_blob(stream, from, to),
        }
    }
}

fn relocate_blob(stream: &mut Stream, from: Place, to: Place) -> bool {
    let Some(blobs) = stream.blobs_mut() else {
        return false;
    };
    let is_it = |blob: &Blob| blob.place() == Some(from);
    if let Some(part) = blobs.parts.values_mut().find(|blob| is_it(blob)) {
        *part = Blob::Block(to);
        return true;
    }
    // One whose record is not durable yet is moved another time.
    let Some(snapshot) = &blobs.snapshot else {
        return false;
    };
    let mut body = snapshot.body.clone();
    let Some(piece) = body.iter_mut().find(|blob| is_it(blob)) else {
        return false;
    };
    *piece = Blob::Block(to);
    let meta = snapshot.meta.clone();
    blobs.snapshot = Some(Arc::new(StoredSnapshot { meta, body }));
    true
}
