//! Whether what streams name is there and whole: for `inspect`, and for
//! `--repair`. Reads all of it.

use std::collections::HashMap;

use crate::{
    base::limits::{DISK_IO_BYTES_MAX, KIB},
    protocol::{incarnation::Incarnation, snapshot::Digester},
    shard::stream::{Blob, StoredSnapshot, Stream, blob_key},
    storage::{
        StorageError,
        blob::BlobStore,
        disk::Disk,
        segment::{BlockKey, BlockKind, BlockReader, Place, reads},
    },
};

/// Streams whose blocks are looked for together.
pub const STREAMS_AT_ONCE: usize = 1 << 16;
/// What lies between two blocks and is not asked for is read with them up to this, in bytes: that
/// takes no longer than another read.
const GAP_BYTES_MAX: u64 = 32 * KIB as u64;

/// A block, and which of its stream's it is.
type Wanted = (usize, (Place, BlockKey));

/// Reads what streams name.
pub struct Verifier<D: Disk> {
    /// Their blocks.
    pub blocks: BlockReader<D>,
    /// Their large blobs.
    pub blobs: BlobStore<D>,
}

/// A block that does not verify.
#[derive(Debug)]
pub struct BadBlock {
    /// Where it is, or should be.
    pub place: Place,
    /// What it should hold.
    pub key: BlockKey,
    /// Why it does not verify.
    pub what: StorageError,
}

impl BadBlock {
    /// What is wrong and where, in words, but for whose it is.
    #[must_use]
    pub fn describe(&self) -> String {
        let (start, end) = (
            self.key.start,
            self.key.start.saturating_add(u64::from(self.place.len)),
        );
        let offset = self.place.offset;
        match (self.key.kind, &self.what) {
            (_, StorageError::DamagedBlock { .. }) => self.what.to_string(),
            (BlockKind::Data, what) => {
                format!("bytes {start} to {end}, in the block at byte {offset}: {what}")
            }
            (BlockKind::Blob, what) => {
                format!("a snapshot's, in the block at byte {offset}: {what}")
            }
        }
    }
}

impl<D: Disk> Verifier<D> {
    /// The blocks of streams that do not verify: of each stream's bytes, of its snapshot, of its parts,
    /// by its token. They are read in the order in which they lie, as many at once as lie together:
    /// those of many small streams do.
    pub async fn bad_blocks(&self, streams: &[&Stream]) -> HashMap<Incarnation, Vec<BadBlock>> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for stream in streams {
            let owner = stream.staged.incarnation;
            let data = stream.history.blocks().iter();
            let bodies = stream.all_blobs().filter_map(Blob::place);
            let blocks = data
                .map(|block| (block.place, block.key(owner)))
                .chain(bodies.map(|place| (place, blob_key(owner))));
            wanted.extend((0..).zip(blocks));
        }
        let mut bad: HashMap<Incarnation, Vec<(usize, BadBlock)>> = HashMap::new();
        for group in together(&mut wanted) {
            let blocks: Vec<(Place, BlockKey)> = group.iter().map(|(_, block)| *block).collect();
            if self.blocks.read(&blocks).await.is_ok() {
                continue;
            }
            for (number, (place, key)) in group.iter().copied() {
                if let Err(what) = self.blocks.read(&[(place, key)]).await {
                    let of_stream = bad.entry(Incarnation(key.owner)).or_default();
                    of_stream.push((number, BadBlock { place, key, what }));
                }
            }
        }
        let in_order = |mut bad: Vec<(usize, BadBlock)>| {
            bad.sort_unstable_by_key(|(number, _)| *number);
            bad.into_iter().map(|(_, bad)| bad).collect()
        };
        bad.into_iter()
            .map(|(owner, bad)| (owner, in_order(bad)))
            .collect()
    }

    /// Whether a snapshot's body gives its digest.
    ///
    /// # Errors
    /// [`StorageError`] when its body cannot be read.
    pub async fn gives_digest(
        &self,
        owner: Incarnation,
        snapshot: &StoredSnapshot,
    ) -> Result<bool, StorageError> {
        let mut digester = Digester::new(&snapshot.meta.content_type);
        for blob in &snapshot.body {
            match blob {
                Blob::Memory(bytes) => digester.update(bytes),
                Blob::Block(place) => {
                    let wanted = [(*place, blob_key(owner))];
                    for bytes in self.blocks.read(&wanted).await? {
                        digester.update(&bytes);
                    }
                }
                Blob::File(file) => {
                    let reader = self.blobs.open(file.clone()).await?;
                    let (mut at, mut piece) = (0, Vec::new());
                    while at < file.len {
                        piece.clear();
                        let read = reader.read(at, file.len, DISK_IO_BYTES_MAX, &mut piece);
                        at = read.await?.saturating_add(at);
                        digester.update(&piece);
                    }
                }
            }
        }
        Ok(digester.finish() == snapshot.meta.digest)
    }
}

/// Blocks in the order in which they lie, in groups that one read brings.
fn together(wanted: &mut [Wanted]) -> impl Iterator<Item = &[Wanted]> {
    wanted.sort_unstable_by_key(|(_, (place, _))| (place.segment, place.offset));
    let wanted: &[Wanted] = wanted;
    let near = wanted.chunk_by(|(_, (before, _)), (_, (next, _))| {
        u64::from(next.offset).saturating_sub(before.end()) <= GAP_BYTES_MAX
    });
    near.flat_map(|near| reads(near, DISK_IO_BYTES_MAX, |(_, (place, _))| *place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::segment::SegmentId;

    fn wanted(segment: u64, offset: u32, owner: u64) -> Wanted {
        let place = Place {
            segment: SegmentId(segment),
            offset,
            len: 60,
        };
        (0, (place, blob_key(Incarnation(owner))))
    }

    #[test]
    fn the_blocks_of_very_many_small_streams_take_few_reads() {
        const BYTES: u32 = 128;
        let mut all: Vec<Wanted> = (0..100_000)
            .map(|number| wanted(1, 4096 + number * BYTES, u64::from(number)))
            .collect();
        // In whatever order the streams are.
        all.sort_by_key(|(_, (place, _))| place.offset.wrapping_mul(2_654_435_761));
        let (bytes, groups) = (100_000 * BYTES as usize, together(&mut all).count());
        assert!(groups <= bytes / DISK_IO_BYTES_MAX + 2, "{groups} reads");
        assert_eq!(together(&mut all).map(<[_]>::len).sum::<usize>(), all.len());
    }

    #[test]
    fn what_lies_far_apart_is_read_alone() {
        let far = 4096 + GAP_BYTES_MAX as u32;
        let mut all = [
            wanted(1, 4096, 1),
            wanted(1, 4096 + 2 * far, 2),
            wanted(2, 4096 + 2 * far + 200, 3),
            wanted(1, 4096 + 4 * far, 4),
            wanted(1, 4096 + 4 * far + 200, 4),
        ];
        let lens: Vec<usize> = together(&mut all).map(<[_]>::len).collect();
        assert_eq!(lens, [1, 1, 2, 1]);
    }
}
