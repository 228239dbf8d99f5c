//! Writing blocks: one shard, one file at a time, from front to back.
//!
//! A write gathers its blocks into aligned buffers of at most 1 MiB, all on
//! their way at once; only its end is padded. A write that fails gives up the
//! file it was in: its earlier blocks stay, nothing of the failed call is
//! handed out, and the next call opens a new file.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::format::{
    BLOCK_HEADER_BYTES, BlockKey, FILE_HEADER_BYTES, Place, SegmentId, encode_block_header,
    encode_file_header,
};
use super::holdings::{Segment, SegmentGraveyard};
use crate::base::limits::{BLOCK_BYTES_MAX, DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Access, AlignedBuf, Disk, DiskFile, write_all_at};
use crate::storage::error::StorageError;

/// A block to be written.
#[derive(Clone, Debug)]
pub struct NewBlock {
    /// What it holds.
    pub key: BlockKey,
    /// Its payload in pieces: together 1 to [`BLOCK_BYTES_MAX`] bytes.
    pub pieces: Vec<Bytes>,
}

impl NewBlock {
    fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// How segments are written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Epoch of this start.
    pub epoch: u64,
    /// The shard.
    pub shard: u32,
    /// What checksums are seeded with.
    pub seed: u64,
    /// Size of a file, in bytes; one block may make it larger.
    pub segment_bytes: u64,
    /// Bytes of free space that are left alone.
    pub reserve_bytes: u64,
}

/// What a writer has done; every number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Bytes written, headers and padding included.
    pub written_bytes: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Files made.
    pub files: u64,
}

/// Writes the segments of one shard.
pub struct SegmentWriter<D: Disk> {
    disk: D,
    dir: PathBuf,
    options: WriterOptions,
    graveyard: SegmentGraveyard,
    active: RefCell<Option<Active<D>>>,
    /// Files that were written to and are full or given up, but not synced.
    unsynced: RefCell<Vec<Rc<OpenFile<D>>>>,
    dir_changed: Cell<bool>,
    counter: Cell<u32>,
    stats: Cell<SegmentStats>,
}

struct OpenFile<D: Disk> {
    file: D::File,
    path: PathBuf,
}

struct Active<D: Disk> {
    open: Rc<OpenFile<D>>,
    segment: Arc<Segment>,
    /// Where the next block goes.
    end: u64,
    is_synced: bool,
}

impl<D: Disk> SegmentWriter<D> {
    /// A writer of files in `dir`, which exists. It makes none before there is a block.
    #[must_use]
    pub fn new(disk: D, dir: PathBuf, options: WriterOptions, graveyard: SegmentGraveyard) -> Self {
        Self {
            disk,
            dir,
            options,
            graveyard,
            active: RefCell::new(None),
            unsynced: RefCell::default(),
            dir_changed: Cell::new(false),
            counter: Cell::new(0),
            stats: Cell::default(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> SegmentStats {
        self.stats.get()
    }

    /// Writes blocks in order and says where each is. Nothing is durable before
    /// [`sync`](Self::sync). One call at a time.
    ///
    /// # Errors
    /// [`StorageError`]; nothing was handed out, and it may be tried again.
    pub async fn write(
        &self,
        blocks: &[NewBlock],
    ) -> Result<Vec<(Arc<Segment>, Place)>, StorageError> {
        let mut placed = Vec::with_capacity(blocks.len());
        let mut rest = blocks;
        while !rest.is_empty() {
            let mut active = match self.active.take() {
                Some(active) => active,
                None => self.open().await?,
            };
            let room = self.options.segment_bytes.saturating_sub(active.end);
            let fits = how_many_fit(rest, room);
            let is_new = active.end == FILE_HEADER_BYTES as u64;
            if fits == 0 && !is_new {
                self.retire(active).await?;
                continue;
            }
            let (now, later) = rest.split_at(fits.max(1));
            match self.write_run(&mut active, now).await {
                Ok(places) => {
                    let segment = &active.segment;
                    placed.extend(places.into_iter().map(|place| (segment.clone(), place)));
                    *self.active.borrow_mut() = Some(active);
                }
                Err(error) => {
                    // Its earlier blocks may be named by others.
                    active.segment.seal();
                    self.unsynced.borrow_mut().push(active.open);
                    return Err(error);
                }
            }
            rest = later;
        }
        Ok(placed)
    }

    /// Writes blocks behind one another into the file in use.
    async fn write_run(
        &self,
        active: &mut Active<D>,
        blocks: &[NewBlock],
    ) -> Result<Vec<Place>, StorageError> {
        let start = active.end;
        let mut places = Vec::with_capacity(blocks.len());
        let total: usize = blocks
            .iter()
            .map(|block| BLOCK_HEADER_BYTES.saturating_add(block.len()))
            .sum();
        let mut out = Gather::new(&self.disk, total);
        for block in blocks {
            let len = block.len();
            assert!(
                (1..=BLOCK_BYTES_MAX).contains(&len),
                "a block of {len} bytes"
            );
            let place = Place {
                segment: active.segment.id,
                offset: start.saturating_add(out.bytes as u64) as u32,
                len: len as u32,
            };
            let pieces = || block.pieces.iter().map(|piece| &piece[..]);
            let header = encode_block_header(place, block.key, self.options.seed, pieces());
            out.push(&header);
            pieces().for_each(|piece| out.push(piece));
            places.push(place);
        }
        let buffers = out.finish();
        let written: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        active.is_synced = false;
        let open = &active.open;
        write_all_at(&open.file, &open.path, buffers, start).await?;
        active.end = start.saturating_add(written);
        active.segment.set_taken_bytes(active.end);
        let payload_bytes: u64 = places.iter().map(|place| u64::from(place.len)).sum();
        let mut stats = self.stats.get();
        stats.blocks = stats.blocks.saturating_add(blocks.len() as u64);
        stats.payload_bytes = stats.payload_bytes.saturating_add(payload_bytes);
        stats.written_bytes = stats.written_bytes.saturating_add(written);
        self.stats.set(stats);
        Ok(places)
    }

    /// Makes every block handed out so far durable.
    ///
    /// # Errors
    /// [`StorageError`]: whether they are is not known, and trying again would not tell.
    pub async fn sync(&self) -> Result<(), StorageError> {
        let retired = std::mem::take(&mut *self.unsynced.borrow_mut());
        let active = self
            .active
            .borrow()
            .as_ref()
            .and_then(|active| (!active.is_synced).then(|| active.open.clone()));
        for open in retired.iter().chain(&active) {
            open.file
                .sync_data()
                .await
                .map_err(StorageError::io("sync", &open.path))?;
            let mut stats = self.stats.get();
            stats.syncs = stats.syncs.saturating_add(1);
            self.stats.set(stats);
        }
        if let (Some(synced), Some(active)) = (active, self.active.borrow_mut().as_mut())
            && Rc::ptr_eq(&synced, &active.open)
        {
            active.is_synced = true;
        }
        if self.dir_changed.replace(false) {
            self.disk
                .sync_dir(&self.dir)
                .await
                .map_err(StorageError::io("sync", &self.dir))?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<Active<D>, StorageError> {
        let free = self
            .disk
            .free_space(&self.dir)
            .await
            .map_err(StorageError::io("statfs", &self.dir))?;
        let (bytes, reserve) = (self.options.segment_bytes, self.options.reserve_bytes);
        let needed = bytes.saturating_add(reserve);
        let full = || StorageError::DiskFull {
            dir: self.dir.clone(),
            free,
            needed,
        };
        if free < needed {
            return Err(full());
        }
        let counter = self.counter.get();
        let id = SegmentId::new(self.options.epoch, self.options.shard, counter);
        let id = id.ok_or_else(full)?;
        self.counter.set(counter.saturating_add(1));
        let path = self.dir.join(id.name());
        let file = self
            .disk
            .open(&path, Access::Create)
            .await
            .map_err(StorageError::io("create", &path))?;
        self.dir_changed.set(true);
        match file.allocate(self.options.segment_bytes).await {
            Ok(()) => {}
            // It grows as it is written, then.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(StorageError::io("allocate", &path)(error)),
        }
        let mut header = self.disk.buffer(FILE_HEADER_BYTES);
        encode_file_header(id, self.options.seed, header.as_mut_slice());
        write_all_at(&file, &path, vec![header], 0).await?;
        let mut stats = self.stats.get();
        stats.files = stats.files.saturating_add(1);
        stats.written_bytes = stats.written_bytes.saturating_add(FILE_HEADER_BYTES as u64);
        self.stats.set(stats);
        Ok(Active {
            open: Rc::new(OpenFile { file, path }),
            segment: Segment::open(id, &self.graveyard),
            end: FILE_HEADER_BYTES as u64,
            is_synced: false,
        })
    }

    /// Gives back what a full file has not used, and takes it out of use.
    async fn retire(&self, active: Active<D>) -> Result<(), StorageError> {
        active.segment.seal();
        let open = active.open;
        let cut = open.file.truncate(active.end).await;
        let cut = cut.map_err(StorageError::io("truncate", &open.path));
        self.unsynced.borrow_mut().push(open);
        cut
    }
}

/// How many of the first blocks fit into `room` bytes.
fn how_many_fit(blocks: &[NewBlock], room: u64) -> usize {
    let mut used = 0u64;
    blocks
        .iter()
        .take_while(|block| {
            let bytes = BLOCK_HEADER_BYTES.saturating_add(block.len());
            used = used.saturating_add(bytes as u64);
            used.next_multiple_of(DISK_ALIGN as u64) <= room
        })
        .count()
}

/// Bytes gathered into aligned buffers, each but the last of 1 MiB.
struct Gather<'a, D: Disk> {
    disk: &'a D,
    buffers: Vec<AlignedBuf>,
    /// Bytes that will come in all.
    total: usize,
    bytes: usize,
}

impl<'a, D: Disk> Gather<'a, D> {
    fn new(disk: &'a D, total: usize) -> Self {
        Self {
            disk,
            buffers: Vec::new(),
            total,
            bytes: 0,
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`total` are all bytes that come, and a piece is cut to what its buffer has left"
    )]
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = self.bytes % DISK_IO_BYTES_MAX;
            if at == 0 {
                let left = (self.total - self.bytes).next_multiple_of(DISK_ALIGN);
                self.buffers
                    .push(self.disk.buffer(left.min(DISK_IO_BYTES_MAX)));
            }
            let now = bytes.len().min(DISK_IO_BYTES_MAX - at);
            let (head, tail) = bytes.split_at(now);
            if let Some(buffer) = self.buffers.last_mut() {
                buffer.as_mut_slice()[at..at + now].copy_from_slice(head);
            }
            self.bytes += now;
            bytes = tail;
        }
    }

    /// The buffers, the last one padded with zeros.
    fn finish(mut self) -> Vec<AlignedBuf> {
        let used = self.bytes % DISK_IO_BYTES_MAX;
        if used > 0
            && let Some(last) = self.buffers.last_mut()
        {
            let (_, padding) = last.as_mut_slice().split_at_mut(used);
            padding.fill(0);
        }
        self.buffers
    }
}
