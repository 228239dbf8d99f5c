//! The bytes of a checkpoint.
//!
//! A file is chunks, one after another, each padded with zeros to 4 KiB; the
//! last one, and no other, is the end chunk. All integers are little-endian.
//!
//! ```text
//! chunk header, 80 bytes                            payload of a chunk: entry_count times
//!   0  magic            8  "THALWEGC"                 0  len       4
//!   8  format           4                             4  entry   len
//!  12  header_checksum  4  of bytes 16..80
//!  16  body_checksum    4  of all after the header  payload of the end chunk, 32 bytes
//!  20  flags            4  bit 0: the end chunk       0  entries       8  in all chunks
//!  24  journal_id       8                             8  chunks        8  this one included
//!  32  number           8  of the checkpoint         16  bytes         8  of the file
//!  40  offset           8  of this header            24  replay_from   8
//!  48  index            8  from 0, no gaps
//!  56  payload_bytes    8
//!  64  entry_count      4
//!  68  shard            4
//!  72  zeros            8
//! ```
//!
//! Why each field that is not data is there:
//! - both checksums are CRC32C seeded with `journal_id ^ number`. The header has
//!   its own so that its length can be trusted before a body is read, and a
//!   search behind damage reads bodies only where a header verifies. The body's
//!   takes in the padding: no byte of the file is without a checksum.
//! - *journal_id*, *shard*, *number*, *offset* and *index* say where the chunk
//!   belongs: a file moved here, a misdirected write or a chunk left out is not
//!   taken for this checkpoint. Nobody outside is told *journal_id*: data that
//!   a client wrote cannot pass for a chunk.
//! - the end chunk's totals show that nothing is missing at the end.

use super::Identity;
use crate::base::checksum::Checksum;
use crate::base::limits::DISK_ALIGN;
use crate::storage::fields::{front, u32_at, u64_at};
use crate::storage::journal::Position;

/// Version of everything in this file.
pub(super) const FORMAT: u32 = 1;
/// Bytes of a chunk header.
pub(super) const HEADER_BYTES: usize = 80;
/// Bytes of a chunk, header included, above which no further entry is put in it.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes before each entry.
pub(super) const ENTRY_HEADER_BYTES: usize = 4;
/// Largest entry, in bytes: 1 GiB.
pub const ENTRY_BYTES_MAX: usize = 1 << 30;

const MAGIC: [u8; 8] = *b"THALWEGC";
const FLAG_LAST: u32 = 1;
const TOTALS_BYTES: usize = 32;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(DISK_ALIGN));
const _: () = assert!(HEADER_BYTES + TOTALS_BYTES <= DISK_ALIGN);
const _: () = assert!(ENTRY_BYTES_MAX < u32::MAX as usize);

/// The header of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) body_checksum: u32,
    pub(super) last: bool,
    pub(super) journal_id: u64,
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) index: u64,
    pub(super) payload_bytes: u64,
    pub(super) entry_count: u32,
    pub(super) shard: u32,
}

/// Why bytes were not accepted as a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// No header, or one that does not verify.
    Damaged,
    /// A header in another format.
    Format(u32),
    /// A whole header of another checkpoint, or that was written elsewhere in this one.
    Foreign,
}

impl ChunkHeader {
    /// A checksum of no bytes, seeded as all checksums of a checkpoint are.
    pub(super) fn checksum(journal_id: u64, number: u64) -> Checksum {
        Checksum::seeded(journal_id ^ number)
    }

    /// Bytes of header, payload and padding.
    pub(super) fn chunk_bytes(&self) -> u64 {
        chunk_bytes(self.payload_bytes)
    }

    /// Fills the first [`HEADER_BYTES`] of `out`, which is at least that long.
    pub(super) fn encode(&self, out: &mut [u8]) {
        let flags = if self.last { FLAG_LAST } else { 0 };
        let out: &mut [u8; HEADER_BYTES] = front(out);
        out.fill(0);
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_checksum.to_le_bytes());
        out[20..24].copy_from_slice(&flags.to_le_bytes());
        out[24..32].copy_from_slice(&self.journal_id.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.offset.to_le_bytes());
        out[48..56].copy_from_slice(&self.index.to_le_bytes());
        out[56..64].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[64..68].copy_from_slice(&self.entry_count.to_le_bytes());
        out[68..72].copy_from_slice(&self.shard.to_le_bytes());
        let checksum = Self::checksum(self.journal_id, self.number)
            .with(&out[16..])
            .value();
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads the header at `offset` of checkpoint `number`. Its payload is no larger than an
    /// entry can make it; whether the chunk ends inside the file, and its body, are not looked at.
    pub(super) fn decode(
        bytes: &[u8],
        identity: &Identity,
        number: u64,
        offset: u64,
    ) -> Result<Self, HeaderError> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(HeaderError::Damaged)?;
        if bytes[0..8] != MAGIC {
            return Err(HeaderError::Damaged);
        }
        let format = u32_at(bytes, 8);
        if format != FORMAT {
            return Err(HeaderError::Format(format));
        }
        let header = Self {
            body_checksum: u32_at(bytes, 16),
            last: u32_at(bytes, 20) & FLAG_LAST != 0,
            journal_id: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            offset: u64_at(bytes, 40),
            index: u64_at(bytes, 48),
            payload_bytes: u64_at(bytes, 56),
            entry_count: u32_at(bytes, 64),
            shard: u32_at(bytes, 68),
        };
        let checksum = Self::checksum(header.journal_id, header.number).with(&bytes[16..]);
        let sized = header.payload_bytes <= (ENTRY_HEADER_BYTES + ENTRY_BYTES_MAX) as u64;
        let is_known = u32_at(bytes, 20) & !FLAG_LAST == 0;
        if checksum.value() != u32_at(bytes, 12) || !sized || !is_known {
            return Err(HeaderError::Damaged);
        }
        let here = header.journal_id == identity.journal_id
            && header.shard == identity.shard
            && header.number == number
            && header.offset == offset;
        if here {
            Ok(header)
        } else {
            Err(HeaderError::Foreign)
        }
    }

    /// True if `body`, all of the chunk after its header, is what was written with this header.
    pub(super) fn verifies(&self, body: &[u8]) -> bool {
        let checksum = Self::checksum(self.journal_id, self.number).with(body);
        checksum.value() == self.body_checksum
    }
}

/// Bytes of a chunk with `payload_bytes` of payload, at most 2^63.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "no payload is longer than an entry with its length"
)]
pub(super) const fn chunk_bytes(payload_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + payload_bytes).next_multiple_of(DISK_ALIGN as u64)
}

/// What the end chunk says of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) entries: u64,
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    pub(super) replay_from: Position,
}

impl Totals {
    /// Bytes of the end chunk.
    pub(super) const CHUNK_BYTES: u64 = chunk_bytes(TOTALS_BYTES as u64);

    pub(super) fn encode(&self) -> [u8; TOTALS_BYTES] {
        let mut out = [0; TOTALS_BYTES];
        out[0..8].copy_from_slice(&self.entries.to_le_bytes());
        out[8..16].copy_from_slice(&self.chunks.to_le_bytes());
        out[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        out[24..32].copy_from_slice(&self.replay_from.0.to_le_bytes());
        out
    }

    /// Reads the payload of an end chunk; `None` if it has another length.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; TOTALS_BYTES] = payload.try_into().ok()?;
        Some(Self {
            entries: u64_at(bytes, 0),
            chunks: u64_at(bytes, 8),
            bytes: u64_at(bytes, 16),
            replay_from: Position(u64_at(bytes, 24)),
        })
    }
}

/// The entries in the payload of a chunk that verified; an item is `None` where they do not fit.
#[derive(Clone)]
pub(super) struct Entries<'a> {
    payload: &'a [u8],
    left: u32,
}

impl<'a> Entries<'a> {
    /// The entries of a chunk; `None` if they do not fit its payload exactly.
    pub(super) fn checked(header: &ChunkHeader, payload: &'a [u8]) -> Option<Self> {
        let entries = Self {
            payload,
            left: header.entry_count,
        };
        entries
            .clone()
            .all(|entry| entry.is_some())
            .then_some(entries)
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return (!std::mem::take(&mut self.payload).is_empty()).then_some(None);
        }
        let entry = self.payload.split_first_chunk().and_then(|(len, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
        });
        match entry {
            Some((entry, rest)) => {
                (self.payload, self.left) = (rest, self.left.saturating_sub(1));
                Some(Some(entry))
            }
            None => {
                (self.payload, self.left) = (&[], 0);
                Some(None)
            }
        }
    }
}
