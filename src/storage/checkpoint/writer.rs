//! Writing a checkpoint, slice by slice.
//!
//! The file is under its own name from the start: a name alone means nothing,
//! only `current` does. Entries gather in memory until a chunk is full; a chunk
//! is written at once, in aligned writes, its header last, so that the checksum
//! of a large entry is taken piece by piece between writes. Nothing is synced
//! before the end: until then a crash costs the whole file, and the next start
//! removes it.

use std::path::PathBuf;

use super::format::{
    CHUNK_BYTES, ChunkHeader, ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES, HEADER_BYTES, Totals,
    chunk_bytes,
};
use super::{Current, Identity};
use crate::base::limits::DISK_IO_BYTES_MAX;
use crate::storage::disk::{Access, Disk, DiskFile, remove_if_there, write_whole};
use crate::storage::error::StorageError;
use crate::storage::journal::Position;

/// A checkpoint that is being written.
///
/// Holds at most 256 KiB of entries, and up to 2 MiB of buffers during a write.
#[derive(Debug)]
pub struct CheckpointWriter<D: Disk> {
    disk: D,
    file: D::File,
    path: PathBuf,
    identity: Identity,
    number: u64,
    /// Framed entries of the open chunk.
    open: Vec<u8>,
    open_entries: u32,
    /// Bytes of whole chunks written, and where the next one begins.
    offset: u64,
    chunks: u64,
    /// Entries in whole chunks written.
    entries: u64,
    /// True while a chunk is written, and for good if that failed or was dropped half-way.
    writing: bool,
}

/// What goes into one chunk: its payload, in two parts, and what the header says of it.
struct Chunk<'a> {
    parts: [&'a [u8]; 2],
    entries: u32,
    last: bool,
}

impl Chunk<'_> {
    fn payload_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Moves the next bytes of the payload into `out`, and zeros where there are none left.
    fn fill(&mut self, mut out: &mut [u8]) {
        for part in &mut self.parts {
            let (now, later) = part.split_at(part.len().min(out.len()));
            let (head, rest) = out.split_at_mut(now.len());
            head.copy_from_slice(now);
            (*part, out) = (later, rest);
        }
        out.fill(0);
    }
}

impl<D: Disk> CheckpointWriter<D> {
    /// Begins checkpoint `number`, in place of an unfinished file of the same name. `number` must
    /// not be the one that `current` names: that file would be lost.
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub async fn create(disk: D, identity: Identity, number: u64) -> Result<Self, StorageError> {
        let path = identity.path(number);
        remove_if_there(&disk, &path).await?;
        let file = disk
            .open(&path, Access::Create)
            .await
            .map_err(StorageError::io("create", &path))?;
        Ok(Self {
            disk,
            file,
            path,
            identity,
            number,
            open: Vec::new(),
            open_entries: 0,
            offset: 0,
            chunks: 0,
            entries: 0,
            writing: false,
        })
    }

    /// Adds an entry of at most [`ENTRY_BYTES_MAX`] bytes. Writes the open chunk when the entry
    /// no longer fits it, and an entry that is larger than a chunk as a chunk of its own.
    ///
    /// # Errors
    /// [`StorageError::EntryTooLarge`], after which the writer goes on. Any other one is final:
    /// every later call fails with [`StorageError::CheckpointStopped`], and the checkpoint is
    /// to be [abandoned](Self::abandon). So is one of which a call was dropped half-way.
    pub async fn append(&mut self, entry: &[u8]) -> Result<(), StorageError> {
        self.check_running()?;
        let len = match u32::try_from(entry.len()) {
            Ok(len) if entry.len() <= ENTRY_BYTES_MAX => len.to_le_bytes(),
            _ => {
                return Err(StorageError::EntryTooLarge {
                    path: self.path.clone(),
                    bytes: entry.len() as u64,
                    bytes_max: ENTRY_BYTES_MAX as u64,
                });
            }
        };
        const ROOM: usize = CHUNK_BYTES - HEADER_BYTES;
        let framed = ENTRY_HEADER_BYTES.saturating_add(entry.len());
        if self.open.len().saturating_add(framed) > ROOM {
            self.write_open().await?;
        }
        if framed > ROOM {
            return self
                .write_chunk(Chunk {
                    parts: [&len, entry],
                    entries: 1,
                    last: false,
                })
                .await;
        }
        if self.open.capacity() == 0 {
            self.open.reserve_exact(ROOM);
        }
        self.open.extend_from_slice(&len);
        self.open.extend_from_slice(entry);
        self.open_entries = self.open_entries.saturating_add(1);
        Ok(())
    }

    /// Writes what is left and the end chunk, and syncs the file and its name. The checkpoint is
    /// then whole and durable, but does not rule until [`Current::store`] has named it.
    ///
    /// # Errors
    /// [`StorageError`]; the unfinished file is removed as far as the disk allows.
    pub async fn finish(mut self, replay_from: Position) -> Result<Current, StorageError> {
        match self.try_finish(replay_from).await {
            Ok(current) => {
                // It is synced: a failure to close it loses nothing.
                let _ = self.file.close().await;
                Ok(current)
            }
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    /// Gives up: removes the unfinished file. What cannot be removed, the next
    /// [`remove_others`](super::remove_others) removes.
    pub async fn abandon(self) {
        let Self {
            disk, file, path, ..
        } = self;
        if let Err(error) = file.close().await {
            tracing::debug!(path = %path.display(), %error, "cannot close an unfinished checkpoint");
        }
        if let Err(error) = disk.remove(&path).await {
            tracing::debug!(path = %path.display(), %error, "an unfinished checkpoint stays behind");
        }
    }

    async fn try_finish(&mut self, replay_from: Position) -> Result<Current, StorageError> {
        self.check_running()?;
        self.write_open().await?;
        let totals = Totals {
            entries: self.entries,
            chunks: self.chunks.saturating_add(1),
            bytes: self.offset.saturating_add(Totals::CHUNK_BYTES),
            replay_from,
        };
        self.write_chunk(Chunk {
            parts: [&totals.encode(), &[]],
            entries: 0,
            last: true,
        })
        .await?;
        self.file
            .sync_data()
            .await
            .map_err(StorageError::io("sync", &self.path))?;
        let dir = &self.identity.dir;
        self.disk
            .sync_dir(dir)
            .await
            .map_err(StorageError::io("sync", dir))?;
        Ok(Current {
            number: self.number,
            replay_from,
            entries: totals.entries,
            bytes: totals.bytes,
        })
    }

    fn check_running(&self) -> Result<(), StorageError> {
        if self.writing {
            return Err(StorageError::CheckpointStopped {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Writes the open chunk, if there is anything in it.
    async fn write_open(&mut self) -> Result<(), StorageError> {
        if self.open_entries == 0 {
            return Ok(());
        }
        let mut open = std::mem::take(&mut self.open);
        let chunk = Chunk {
            parts: [&open, &[]],
            entries: std::mem::take(&mut self.open_entries),
            last: false,
        };
        self.write_chunk(chunk).await?;
        open.clear();
        self.open = open;
        Ok(())
    }

    async fn write_chunk(&mut self, mut chunk: Chunk<'_>) -> Result<(), StorageError> {
        self.writing = true;
        let payload_bytes = chunk.payload_bytes() as u64;
        let end = self.offset.saturating_add(chunk_bytes(payload_bytes));
        let piece = |from: u64| end.saturating_sub(from).min(DISK_IO_BYTES_MAX as u64) as usize;

        let mut first = self.disk.buffer(piece(self.offset));
        let (_, body) = first.as_mut_slice().split_at_mut(HEADER_BYTES);
        chunk.fill(body);
        let mut checksum = ChunkHeader::checksum(self.identity.journal_id, self.number).with(body);

        let mut offset = self.offset.saturating_add(first.len() as u64);
        while offset < end {
            let mut buffer = self.disk.buffer(piece(offset));
            chunk.fill(buffer.as_mut_slice());
            checksum = checksum.with(buffer.as_slice());
            let len = buffer.len() as u64;
            write_whole(&self.file, &self.path, buffer, offset).await?;
            offset = offset.saturating_add(len);
        }

        let header = ChunkHeader {
            body_checksum: checksum.value(),
            last: chunk.last,
            journal_id: self.identity.journal_id,
            number: self.number,
            offset: self.offset,
            index: self.chunks,
            payload_bytes,
            entry_count: chunk.entries,
            shard: self.identity.shard,
        };
        header.encode(first.as_mut_slice());
        write_whole(&self.file, &self.path, first, self.offset).await?;
        self.offset = end;
        self.chunks = self.chunks.saturating_add(1);
        self.entries = self.entries.saturating_add(u64::from(chunk.entries));
        self.writing = false;
        Ok(())
    }
}
