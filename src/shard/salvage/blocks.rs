//! Streams that have lost blocks: they end where their unbroken bytes do.

use std::collections::HashSet;

use super::{Loss, Salvage};
use crate::{
    protocol::incarnation::Incarnation,
    shard::{
        history::{Block, History},
        record::Record,
        replay::ReplayError,
    },
    storage::segment::Place,
};

/// What is left of a stream's history.
struct Cut {
    slot: usize,
    incarnation: Incarnation,
    /// Blocks that are left, and the offset after the last.
    blocks: Vec<Block>,
    /// Own bytes before this are gone.
    gone: u64,
    /// The new tail, if the stream ends earlier now.
    tail: Option<u64>,
}

impl Salvage {
    /// Cuts every stream at its first lost block that readers could ask for, and closes it there.
    /// Of those that only forks could ask for, what lies before goes.
    pub(super) fn cut_at_lost_blocks(&mut self, lost: &HashSet<Place>) -> Result<(), ReplayError> {
        if lost.is_empty() {
            return Ok(());
        }
        let cuts: Vec<Cut> = self
            .tables
            .streams
            .iter()
            .filter_map(|(slot, stream)| {
                let (blocks, retained) = (stream.history.blocks(), stream.staged.retained);
                plan(blocks, retained, lost).map(|(blocks, gone, tail)| Cut {
                    slot,
                    incarnation: stream.staged.incarnation,
                    blocks,
                    gone,
                    tail,
                })
            })
            .collect();
        for cut in cuts {
            self.cut(cut)?;
        }
        Ok(())
    }

    fn cut(&mut self, cut: Cut) -> Result<(), ReplayError> {
        let incarnation = cut.incarnation;
        self.changed = true;
        self.gone.insert(incarnation, cut.gone);
        let Some(stream) = self.tables.streams.get_mut(cut.slot) else {
            return Ok(());
        };
        let old = std::mem::take(&mut stream.history);
        let Some(tail) = cut.tail else {
            // The end is whole: only what forks inherit is gone.
            stream.history = History::of_blocks(&cut.blocks, old.flushed_end());
            for piece in old.memory(old.flushed_end(), old.end()) {
                stream.history.append(piece);
            }
            return Ok(());
        };
        stream.history = History::of_blocks(&cut.blocks, tail);
        let state = &mut stream.staged;
        let (key, reached, at_ms) = (state.key.clone(), state.tail, state.renewed_ms);
        let closed = state.closed;
        state.tail = tail;
        stream.visible.tail = tail;
        if let Some(rare) = state.rare.as_deref_mut() {
            // A repeat of what is lost is no repeat.
            rare.producers.retain(|_, producer| producer.end <= tail);
            rare.closed_by = None;
        }
        self.losses.push(Loss::Bytes {
            key,
            tail,
            reached,
            records: 0,
        });
        if closed {
            return Ok(());
        }
        self.add(&Record::Append {
            incarnation,
            at_ms,
            start: tail,
            close: true,
            producer: None,
            seq: None,
            body: &[],
        })
    }
}

/// What is left of `blocks`: them, the offset before which bytes are gone, and the new tail if it
/// is another. `None` if nothing is lost.
fn plan(
    blocks: &[Block],
    retained: u64,
    lost: &HashSet<Place>,
) -> Option<(Vec<Block>, u64, Option<u64>)> {
    let is_lost = |block: &Block| lost.contains(&block.place);
    let first = blocks.iter().position(is_lost)?;
    // Behind the last one that only forks could read.
    let passed = blocks
        .iter()
        .rposition(|block| is_lost(block) && block.end() <= retained);
    let keep = passed.map_or(0, |index| index.saturating_add(1));
    let gone = passed
        .and_then(|index| blocks.get(index))
        .map_or(0, Block::end);
    let cut = blocks
        .iter()
        .enumerate()
        .skip(first.max(keep))
        .find(|(_, block)| is_lost(block));
    let Some((cut, block)) = cut else {
        let left = blocks.get(keep..).unwrap_or_default();
        return Some((left.to_vec(), gone, None));
    };
    if block.start < retained {
        // Nothing that readers can ask for is left, and the tail is no earlier than that.
        return Some((Vec::new(), retained, Some(retained)));
    }
    let left = blocks.get(keep..cut).unwrap_or_default();
    Some((left.to_vec(), gone, Some(block.start)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::segment::SegmentId;

    /// Four blocks of 10 bytes from offset 100 on.
    fn blocks() -> Vec<Block> {
        let place = |index: u32| Place {
            segment: SegmentId(1),
            offset: 4096 + index * 58,
            len: 10,
        };
        (0..4)
            .map(|index| Block {
                start: 100 + u64::from(index) * 10,
                place: place(index),
            })
            .collect()
    }

    /// What is left when the blocks of these numbers are lost: block numbers, gone, tail.
    fn left(retained: u64, lost: &[usize]) -> Option<(Vec<usize>, u64, Option<u64>)> {
        let blocks = blocks();
        let places = lost.iter().map(|index| blocks[*index].place).collect();
        let (left, gone, tail) = plan(&blocks, retained, &places)?;
        let number = |block: &Block| blocks.iter().position(|one| one == block);
        Some((left.iter().filter_map(number).collect(), gone, tail))
    }

    #[test]
    fn a_stream_ends_at_its_first_lost_block() {
        assert_eq!(left(100, &[]), None);
        assert_eq!(left(100, &[2]), Some((vec![0, 1], 0, Some(120))));
        assert_eq!(left(100, &[1, 3]), Some((vec![0], 0, Some(110))));
        assert_eq!(left(100, &[0]), Some((vec![], 0, Some(100))));
        // What lies before 120 is for forks alone.
        assert_eq!(left(120, &[0]), Some((vec![1, 2, 3], 110, None)));
        assert_eq!(left(120, &[0, 3]), Some((vec![1, 2], 110, Some(130))));
        assert_eq!(left(115, &[1]), Some((vec![], 115, Some(115))));
        assert_eq!(left(115, &[0, 1]), Some((vec![], 115, Some(115))));
    }
}
