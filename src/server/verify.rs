//! Whether what streams name is there and whole: for `inspect`, and for
//! `--repair`. Reads all of it.

use crate::{
    base::limits::DISK_IO_BYTES_MAX,
    protocol::{incarnation::Incarnation, snapshot::Digester},
    shard::stream::{Blob, StoredSnapshot, Stream, blob_key},
    storage::{
        StorageError,
        blob::BlobStore,
        disk::Disk,
        segment::{BlockKey, BlockKind, BlockReader, Place, reads},
    },
};

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
    /// The blocks of a stream that do not verify: of its bytes, of its snapshot, of its parts.
    pub async fn bad_blocks(&self, stream: &Stream) -> Vec<BadBlock> {
        let owner = stream.staged.incarnation;
        let data = stream.history.blocks().iter();
        let bodies = stream.all_blobs().filter_map(Blob::place);
        let wanted: Vec<(Place, BlockKey)> = data
            .map(|block| (block.place, block.key(owner)))
            .chain(bodies.map(|place| (place, blob_key(owner))))
            .collect();
        let mut bad = Vec::new();
        for group in reads(&wanted, DISK_IO_BYTES_MAX, |(place, _)| *place) {
            if self.blocks.read(group).await.is_ok() {
                continue;
            }
            for (place, key) in group.iter().copied() {
                if let Err(what) = self.blocks.read(&[(place, key)]).await {
                    bad.push(BadBlock { place, key, what });
                }
            }
        }
        bad
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
