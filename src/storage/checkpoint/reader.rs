//! Reading a checkpoint: whole or not at all, or what is left of it.
//!
//! A window of the file is held in memory: 256 KiB, or one chunk where a chunk
//! is larger. A header is believed only when it verifies, so the window never
//! grows on a damaged file's word, and never beyond the file.

use std::path::PathBuf;

use super::format::{CHUNK_BYTES, ChunkHeader, Entries, FORMAT, HEADER_BYTES, HeaderError, Totals};
use super::{Current, Identity, numbers};
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Access, Disk, DiskFile, align_down, open_if_there};
use crate::storage::error::{ApplyError, StorageError};
use crate::storage::journal::Position;

const BLOCK: u64 = DISK_ALIGN as u64;

/// What a salvaged checkpoint has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Chunks lost, the end chunk included. Where no later chunk is left to count by, what is
    /// missing at the end counts as one.
    pub chunks: u64,
    /// Bytes of the file that do not verify or are not there, and bytes behind its end.
    pub bytes: u64,
    /// Entries lost: those that `current` counts and that were not handed out.
    pub entries: u64,
}

impl Damage {
    /// True if anything was lost.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// Hands out every entry of the checkpoint that `current` names, in order.
///
/// Holds one chunk in memory. What was handed out before an error is to be dropped.
///
/// # Errors
/// [`StorageError::MissingFile`]; [`StorageError::ForeignFile`] for a file of another shard or
/// number; [`StorageError::DamagedCheckpoint`] for one that does not verify, is cut, lengthened or
/// does not have the totals that `current` says; [`StorageError::ApplyEntry`] if `entry` refuses
/// one; [`StorageError::UnsupportedFormat`]; [`StorageError::Io`].
pub async fn read_checkpoint<D: Disk>(
    disk: &D,
    identity: &Identity,
    current: &Current,
    mut entry: impl FnMut(&[u8]) -> Result<(), ApplyError>,
) -> Result<(), StorageError> {
    let mut reader = match Reader::open(disk, identity, current.number).await? {
        Some(reader) => reader,
        None => {
            return Err(StorageError::MissingFile {
                path: identity.path(current.number),
            });
        }
    };
    if reader.len != current.bytes {
        let end = reader.len.min(current.bytes);
        return Err(reader.damaged(end, "the file does not have the length it was written with"));
    }
    let found = reader.read_whole(&mut entry).await?;
    if found == *current {
        return Ok(());
    }
    Err(StorageError::DamagedCheckpoint {
        path: identity.path(current.number),
        offset: found.bytes.saturating_sub(Totals::CHUNK_BYTES),
        what: "the totals do not agree",
    })
}

/// The newest checkpoint in the shard's directory that reads whole, as a `current` would name it;
/// for when there is none that can be read.
///
/// # Errors
/// [`StorageError::Io`]; a checkpoint that does not verify is passed over.
pub async fn find_whole<D: Disk>(
    disk: &D,
    identity: &Identity,
) -> Result<Option<Current>, StorageError> {
    for number in numbers(disk, identity).await?.into_iter().rev() {
        let Some(mut reader) = Reader::open(disk, identity, number).await? else {
            continue;
        };
        let len = reader.len;
        match reader.read_whole(&mut |_| Ok(())).await {
            Ok(found) if found.bytes == len => return Ok(Some(found)),
            Err(error @ StorageError::Io { .. }) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// The newest checkpoint in the shard's directory, whatever is in it: what it should hold is not
/// known.
///
/// # Errors
/// [`StorageError::Io`].
pub async fn find_newest<D: Disk>(
    disk: &D,
    identity: &Identity,
) -> Result<Option<Current>, StorageError> {
    let Some(number) = numbers(disk, identity).await?.pop() else {
        return Ok(None);
    };
    let reader = Reader::open(disk, identity, number).await?;
    Ok(reader.map(|reader| Current {
        number,
        replay_from: Position(0),
        entries: 0,
        bytes: reader.len,
    }))
}

/// Hands out the entries of every chunk that verifies, in order, and says what was lost. For an
/// operator who has decided to go on without it. A file that is not there is all lost.
///
/// Holds one chunk in memory.
///
/// # Errors
/// [`StorageError::ApplyEntry`] if `entry` refuses one; [`StorageError::Io`].
pub async fn salvage_checkpoint<D: Disk>(
    disk: &D,
    identity: &Identity,
    current: &Current,
    mut entry: impl FnMut(&[u8]) -> Result<(), ApplyError>,
) -> Result<Damage, StorageError> {
    let Some(mut reader) = Reader::open(disk, identity, current.number).await? else {
        return Ok(Damage {
            chunks: 1,
            bytes: current.bytes,
            entries: current.entries,
        });
    };
    let (mut offset, mut verified_bytes, mut entries) = (0u64, 0u64, 0u64);
    // Chunks found, and the index that the next one has at least.
    let (mut found, mut next_index, mut ended) = (0u64, 0u64, false);
    while offset < reader.len && !ended {
        match reader.chunk(offset).await? {
            Ok(header) if header.index >= next_index => {
                if !header.last {
                    entries = reader.hand_out(offset, &header, entries, &mut entry)?;
                }
                ended = header.last;
                found = found.saturating_add(1);
                next_index = header.index.saturating_add(1);
                verified_bytes = verified_bytes.saturating_add(header.chunk_bytes());
                offset = offset.saturating_add(header.chunk_bytes());
            }
            // The header says which chunk it was and how long: only its body is lost.
            Err(Flaw::Body(header)) => {
                ended = header.last;
                next_index = next_index.max(header.index.saturating_add(1));
                offset = offset.saturating_add(header.chunk_bytes());
            }
            Ok(_) | Err(_) => offset = offset.saturating_add(BLOCK),
        }
    }
    let chunks = next_index.saturating_add(u64::from(!ended));
    let damage = Damage {
        chunks: chunks.saturating_sub(found),
        bytes: reader.len.max(current.bytes).saturating_sub(verified_bytes),
        entries: current.entries.saturating_sub(entries),
    };
    reader.close().await;
    Ok(damage)
}

/// Why there is no chunk at an offset.
enum Flaw {
    Header(HeaderError),
    /// The file ends inside it.
    Cut,
    /// The header verifies and the chunk lies in the file, but what is in it does not.
    Body(ChunkHeader),
}

/// An open checkpoint and a window of it.
struct Reader<'a, D: Disk> {
    file: D::File,
    path: PathBuf,
    identity: &'a Identity,
    number: u64,
    /// Bytes of the file.
    len: u64,
    /// Bytes from `start` on.
    window: Vec<u8>,
    start: u64,
}

impl<'a, D: Disk> Reader<'a, D> {
    /// `None` if there is no such file.
    async fn open(
        disk: &D,
        identity: &'a Identity,
        number: u64,
    ) -> Result<Option<Self>, StorageError> {
        let path = identity.path(number);
        let Some(file) = open_if_there(disk, &path, Access::Read).await? else {
            return Ok(None);
        };
        let len = file.len().await.map_err(StorageError::io("stat", &path))?;
        Ok(Some(Self {
            file,
            path,
            identity,
            number,
            len,
            window: Vec::new(),
            start: 0,
        }))
    }

    /// Hands out every entry, in order, and says what the `current` of this checkpoint says.
    async fn read_whole(
        &mut self,
        entry: &mut impl FnMut(&[u8]) -> Result<(), ApplyError>,
    ) -> Result<Current, StorageError> {
        let (mut offset, mut chunks, mut entries) = (0u64, 0u64, 0u64);
        loop {
            let header = match self.chunk(offset).await? {
                Ok(header) => header,
                Err(flaw) => return Err(self.refusal(offset, flaw)),
            };
            if header.index != chunks {
                return Err(self.damaged(offset, "chunks before it are missing"));
            }
            chunks = chunks.saturating_add(1);
            let chunk = offset;
            offset = offset.saturating_add(header.chunk_bytes());
            if !header.last {
                entries = self.hand_out(chunk, &header, entries, entry)?;
                continue;
            }
            return match Totals::decode(self.payload(chunk, &header)) {
                Some(totals)
                    if (totals.entries, totals.chunks, totals.bytes)
                        == (entries, chunks, offset) =>
                {
                    Ok(Current {
                        number: self.number,
                        replay_from: totals.replay_from,
                        entries,
                        bytes: offset,
                    })
                }
                _ => Err(self.damaged(chunk, "the totals do not agree")),
            };
        }
    }

    async fn close(self) {
        // A failure to close a file that was only read loses nothing.
        let _ = self.file.close().await;
    }

    /// Reads and verifies the chunk at `offset`, a multiple of 4 KiB; its bytes are in the window.
    async fn chunk(&mut self, offset: u64) -> Result<Result<ChunkHeader, Flaw>, StorageError> {
        if self.len.saturating_sub(offset) < BLOCK {
            return Ok(Err(Flaw::Cut));
        }
        self.load(offset, DISK_ALIGN, CHUNK_BYTES).await?;
        let bytes = self.bytes(offset, HEADER_BYTES);
        let header = match ChunkHeader::decode(bytes, self.identity, self.number, offset) {
            Ok(header) => header,
            Err(error) => return Ok(Err(Flaw::Header(error))),
        };
        let chunk_bytes = header.chunk_bytes();
        if self.len.saturating_sub(offset) < chunk_bytes {
            return Ok(Err(Flaw::Cut));
        }
        let len = chunk_bytes as usize;
        self.load(offset, len, len).await?;
        let body = self.bytes(offset, len).get(HEADER_BYTES..);
        let whole = body.is_some_and(|body| header.verifies(body));
        let payload = self.payload(offset, &header);
        let fits = if header.last {
            Totals::decode(payload).is_some()
        } else {
            Entries::checked(&header, payload).is_some()
        };
        Ok(if whole && fits {
            Ok(header)
        } else {
            Err(Flaw::Body(header))
        })
    }

    /// Hands out the entries of the chunk at `offset`, which was just read. `before` is the number
    /// of entries handed out so far; returns the same with these.
    fn hand_out(
        &self,
        offset: u64,
        header: &ChunkHeader,
        before: u64,
        entry: &mut impl FnMut(&[u8]) -> Result<(), ApplyError>,
    ) -> Result<u64, StorageError> {
        let mut count = before;
        for bytes in Entries::checked(header, self.payload(offset, header))
            .into_iter()
            .flatten()
            .flatten()
        {
            entry(bytes).map_err(|source| StorageError::ApplyEntry {
                path: self.path.clone(),
                offset,
                entry: count,
                source,
            })?;
            count = count.saturating_add(1);
        }
        Ok(count)
    }

    /// Brings at least `least` bytes from `offset` on into the window, and up to `most` if
    /// anything has to be read: both are multiples of 4 KiB, and `least` of them lie in the file.
    async fn load(&mut self, offset: u64, least: usize, most: usize) -> Result<(), StorageError> {
        let held = self.bytes(offset, usize::MAX).len();
        if held >= least {
            return Ok(());
        }
        // What is held is the window's end.
        self.window.drain(..self.window.len().saturating_sub(held));
        self.start = offset;
        let most = align_down(self.len).saturating_sub(offset).min(most as u64) as usize;
        while self.window.len() < most {
            let at = offset.saturating_add(self.window.len() as u64);
            let len = most
                .saturating_sub(self.window.len())
                .min(DISK_IO_BYTES_MAX);
            let bytes = self
                .file
                .read_at(at, len)
                .await
                .map_err(StorageError::io_at("read", &self.path, at))?;
            // Part of a block comes only from the end of a file that was just cut.
            let whole = align_down(bytes.len() as u64) as usize;
            match bytes.get(..whole.min(len)) {
                Some(bytes) if !bytes.is_empty() => self.window.extend_from_slice(bytes),
                _ => {
                    return Err(StorageError::ShortRead {
                        path: self.path.clone(),
                        offset: at,
                        expected: len,
                    });
                }
            }
        }
        Ok(())
    }

    /// Up to `len` bytes from `offset` on, as far as they are in the window.
    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        let skip = offset
            .checked_sub(self.start)
            .and_then(|skip| usize::try_from(skip).ok());
        let bytes = skip.and_then(|skip| self.window.get(skip..));
        let bytes = bytes.unwrap_or_default();
        bytes.get(..len).unwrap_or(bytes)
    }

    /// The payload of the chunk at `offset`, which is in the window.
    fn payload(&self, offset: u64, header: &ChunkHeader) -> &[u8] {
        let len = HEADER_BYTES.saturating_add(header.payload_bytes as usize);
        self.bytes(offset, len)
            .get(HEADER_BYTES..)
            .unwrap_or_default()
    }

    fn damaged(&self, offset: u64, what: &'static str) -> StorageError {
        StorageError::DamagedCheckpoint {
            path: self.path.clone(),
            offset,
            what,
        }
    }

    fn refusal(&self, offset: u64, flaw: Flaw) -> StorageError {
        let path = self.path.clone();
        match flaw {
            Flaw::Header(HeaderError::Foreign) => StorageError::ForeignFile { path },
            Flaw::Header(HeaderError::Format(found)) => StorageError::UnsupportedFormat {
                path,
                found,
                supported: FORMAT,
            },
            Flaw::Header(HeaderError::Damaged) => {
                self.damaged(offset, "the header does not verify")
            }
            Flaw::Cut => self.damaged(offset, "the file ends before the chunk does"),
            Flaw::Body(_) => self.damaged(offset, "the entries do not verify"),
        }
    }
}
