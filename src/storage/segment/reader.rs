//! Reading blocks: several that lie together in one direct read, each verified.
//!
//! Open files are kept, up to a bound; the one not read for longest is closed.
//! Running out of descriptors is an error of the read that met it, and of
//! nothing else.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::rc::Rc;

use lru::LruCache;

use super::format::{
    BLOCK_HEADER_BYTES, BlockKey, FILE_HEADER_BYTES, FORMAT, Place, SegmentId, check_file_header,
    decode_block_header, verify_block,
};
use crate::base::limits::{BLOCK_BYTES_MAX, DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Access, Disk, DiskFile, ReadBuf, align_down, open_named};
use crate::storage::error::StorageError;

const PAGE: u64 = DISK_ALIGN as u64;

/// Reads blocks; one for each core. Clones share the open files.
pub struct BlockReader<D: Disk>(Rc<Inner<D>>);

impl<D: Disk> Clone for BlockReader<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<D: Disk> {
    disk: D,
    dir: PathBuf,
    seed: u64,
    files: RefCell<LruCache<SegmentId, Rc<OpenFile<D>>>>,
}

struct OpenFile<D: Disk> {
    file: D::File,
    path: PathBuf,
}

/// The payload of a block that was read. Blocks of one read share its buffer.
#[derive(Clone, Debug)]
pub struct BlockBytes {
    buffer: ReadBuf,
    range: Range<usize>,
}

impl Deref for BlockBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }
}

/// Small blocks of a segment that are looked at before others have their turn.
const BLOCKS_PER_TURN: u64 = 1024;

/// What going through a whole segment found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Whole blocks.
    pub blocks: u64,
    /// Bytes of them, headers included.
    pub bytes: u64,
    /// Bytes, in whole pages, that are neither a block's nor zero: damage, or remains of a write
    /// that failed.
    pub skipped_bytes: u64,
}

/// Bytes that a read from `from` on takes to bring the block at `place`, which lies behind it.
fn bytes_from(from: u64, place: Place) -> u64 {
    place.end().next_multiple_of(PAGE).saturating_sub(from)
}

/// Cuts blocks into runs that one read may bring ([`BlockReader::read`]): of one segment, each behind
/// the one before it, and together at most `bytes_max` long, unless one alone is longer; more than
/// [`DISK_IO_BYTES_MAX`] is never asked for at once.
pub fn reads<T>(
    blocks: &[T],
    bytes_max: usize,
    place: impl Fn(&T) -> Place,
) -> impl Iterator<Item = &[T]> {
    let bytes_max = bytes_max.min(DISK_IO_BYTES_MAX) as u64;
    let mut rest = blocks;
    std::iter::from_fn(move || {
        let first = place(rest.first()?);
        let from = align_down(u64::from(first.offset));
        let goes_on = |pair: &[T]| match pair {
            [before, next] => {
                let (before, next) = (place(before), place(next));
                next.segment == first.segment
                    && u64::from(next.offset) >= before.end()
                    && bytes_from(from, next) <= bytes_max
            }
            _ => false,
        };
        let more = rest.windows(2).take_while(|pair| goes_on(pair)).count();
        let len = more.saturating_add(1);
        let (run, others) = rest.split_at_checked(len)?;
        rest = others;
        Some(run)
    })
}

impl<D: Disk> BlockReader<D> {
    /// A reader of the segments in `dir`, which keeps at most `open_files_max` (at least 1) open.
    #[must_use]
    pub fn new(disk: D, dir: PathBuf, seed: u64, open_files_max: usize) -> Self {
        let files = NonZeroUsize::new(open_files_max).unwrap_or(NonZeroUsize::MIN);
        Self(Rc::new(Inner {
            disk,
            dir,
            seed,
            files: RefCell::new(LruCache::new(files)),
        }))
    }

    /// Reads blocks that one read may bring ([`reads`]).
    ///
    /// # Errors
    /// [`StorageError::DamagedBlock`] when one is not there whole, or is another;
    /// [`StorageError::Io`].
    pub async fn read(
        &self,
        blocks: &[(Place, BlockKey)],
    ) -> Result<Vec<BlockBytes>, StorageError> {
        let (Some((first, _)), Some((last, _))) = (blocks.first(), blocks.last()) else {
            return Ok(Vec::new());
        };
        assert!(
            reads(blocks, DISK_IO_BYTES_MAX, |(place, _)| *place).count() == 1,
            "blocks of one read lie together"
        );
        let open = self.open(first.segment).await?;
        let from = align_down(u64::from(first.offset));
        let len = bytes_from(from, *last) as usize;
        let buffer = open
            .file
            .read_at(from, len)
            .await
            .map_err(StorageError::io_at("read", &open.path, from))?;
        let mut found = Vec::with_capacity(blocks.len());
        for (place, key) in blocks {
            let at = u64::from(place.offset).saturating_sub(from) as usize;
            let bytes = buffer.get(at..).unwrap_or_default();
            if verify_block(*place, *key, self.0.seed, bytes).is_none() {
                return Err(StorageError::DamagedBlock {
                    path: open.path.clone(),
                    offset: u64::from(place.offset),
                    bytes: place.bytes(),
                    stream: key.owner,
                    start: key.start,
                });
            }
            let payload = at.saturating_add(BLOCK_HEADER_BYTES);
            found.push(BlockBytes {
                buffer: buffer.clone(),
                range: payload..payload.saturating_add(place.len as usize),
            });
        }
        Ok(found)
    }

    /// Goes through every whole block of a segment, in the order in which they lie. What does not
    /// verify is passed over, to the next page.
    ///
    /// # Errors
    /// [`StorageError`] when the file cannot be read, or is no segment.
    pub async fn scan(
        &self,
        id: SegmentId,
        mut found: impl FnMut(Place, BlockKey, &[u8]),
    ) -> Result<ScanReport, StorageError> {
        let open = self.open(id).await?;
        let file_bytes = open
            .file
            .len()
            .await
            .map_err(StorageError::io("stat", &open.path))?;
        let mut report = ScanReport::default();
        let mut at = FILE_HEADER_BYTES as u64;
        let mut window: Option<(u64, ReadBuf)> = None;
        const BLOCK_MAX: u64 = (BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX) as u64;
        while at < file_bytes {
            let covers = window.as_ref().is_some_and(|(from, buffer)| {
                let end = from.saturating_add(buffer.len() as u64);
                *from <= at && (at.saturating_add(BLOCK_MAX) <= end || end >= file_bytes)
            });
            if !covers {
                let from = align_down(at);
                let left = file_bytes.saturating_sub(from).next_multiple_of(PAGE);
                let len = left.min(DISK_IO_BYTES_MAX as u64) as usize;
                let buffer = open
                    .file
                    .read_at(from, len)
                    .await
                    .map_err(StorageError::io_at("read", &open.path, from))?;
                if buffer.is_empty() {
                    break;
                }
                window = Some((from, buffer));
            }
            let Some((from, buffer)) = &window else {
                break;
            };
            let bytes = buffer
                .get(at.saturating_sub(*from) as usize..)
                .unwrap_or_default();
            let block = decode_block_header(id, bytes)
                .filter(|(place, _)| u64::from(place.offset) == at)
                .and_then(|(place, key)| {
                    let payload = verify_block(place, key, self.0.seed, bytes)?;
                    Some((place, key, payload))
                });
            match block {
                Some((place, key, payload)) => {
                    report.blocks = report.blocks.saturating_add(1);
                    report.bytes = report.bytes.saturating_add(place.bytes());
                    found(place, key, payload);
                    at = place.end();
                    if report.blocks.is_multiple_of(BLOCKS_PER_TURN) {
                        futures_lite::future::yield_now().await;
                    }
                }
                None => {
                    let next = align_down(at).saturating_add(PAGE);
                    let skipped = next.saturating_sub(at);
                    let rest = bytes.get(..skipped as usize).unwrap_or(bytes);
                    if rest.iter().any(|byte| *byte != 0) {
                        report.skipped_bytes = report.skipped_bytes.saturating_add(skipped);
                    }
                    at = next;
                }
            }
        }
        Ok(report)
    }

    /// Checks that the file of a segment is there, is that segment's, and reaches to `end`: what a
    /// start asks of it. Its length.
    ///
    /// # Errors
    /// [`StorageError::MissingFile`], [`StorageError::DamagedFileHeader`],
    /// [`StorageError::WrongLength`], [`StorageError::UnsupportedFormat`], [`StorageError::Io`].
    pub async fn check(&self, id: SegmentId, end: u64) -> Result<u64, StorageError> {
        let open = self.open(id).await?;
        let path = &open.path;
        let found = open.file.len().await;
        let found = found.map_err(StorageError::io("stat", path))?;
        let expected = end.next_multiple_of(PAGE);
        if found < expected {
            return Err(StorageError::WrongLength {
                path: path.clone(),
                found,
                expected,
            });
        }
        Ok(found)
    }

    /// Where the file of a segment is.
    #[must_use]
    pub fn path(&self, id: SegmentId) -> PathBuf {
        self.0.dir.join(id.name())
    }

    /// Closes the file of a segment, if it is open.
    pub fn forget(&self, id: SegmentId) {
        self.0.files.borrow_mut().pop(&id);
    }

    async fn open(&self, id: SegmentId) -> Result<Rc<OpenFile<D>>, StorageError> {
        let inner = &*self.0;
        if let Some(open) = inner.files.borrow_mut().get(&id) {
            return Ok(open.clone());
        }
        let path = self.path(id);
        let file = open_named(&inner.disk, &path, Access::Read).await?;
        let header = file
            .read_at(0, FILE_HEADER_BYTES)
            .await
            .map_err(StorageError::io_at("read", &path, 0))?;
        if let Err(error) = check_file_header(id, inner.seed, &header) {
            return Err(error.of(path, FORMAT));
        }
        let open = Rc::new(OpenFile { file, path });
        inner.files.borrow_mut().put(id, open.clone());
        Ok(open)
    }
}
