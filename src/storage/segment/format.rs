//! The bytes of a segment file.
//!
//! ```text
//! file header, one block of 4096 bytes      block header, 48 bytes
//!   0  magic     8  "THALWEGS"                0  magic     4  "TWBK"
//!   8  format    4                            4  checksum  4  of bytes 8..48 and payload
//!  12  checksum  4  of bytes 16..4096         8  segment   8
//!  16  segment   8                           16  owner     8  incarnation of a stream
//!  24  zeros                                 24  start     8  offset in the stream
//!                                            32  offset    4  of this header in the file
//!                                            36  len       4  of the payload
//!                                            40  kind      1
//!                                            41  zeros     7
//! ```
//!
//! Integers are little-endian; both checksums are seeded with the data
//! directory's secret. Zeros fill the file up to the next 4 KiB wherever a write
//! ended.

use crate::base::checksum::Checksum;
use crate::base::limits::{BLOCK_BYTES_MAX, DISK_ALIGN};
use crate::storage::fields::{FileHeaderError, front, u32_at, u64_at};

/// Version of everything in this file.
pub(super) const FORMAT: u32 = 1;
/// Bytes of the file header.
pub(super) const FILE_HEADER_BYTES: usize = DISK_ALIGN;
/// Bytes of a block's header.
pub(super) const BLOCK_HEADER_BYTES: usize = 48;

const FILE_MAGIC: [u8; 8] = *b"THALWEGS";
const BLOCK_MAGIC: [u8; 4] = *b"TWBK";

/// Identity of a segment: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// The segment number `counter` that shard `shard` (below 4,096) opens in the start of this
    /// epoch; `None` when there have been 2^20.
    #[must_use]
    pub fn new(epoch: u64, shard: u32, counter: u32) -> Option<Self> {
        let fits = epoch < 1 << 32 && shard < 1 << 12 && counter < 1 << 20;
        fits.then(|| Self(epoch << 32 | u64::from(shard) << 20 | u64::from(counter)))
    }

    /// Its file's name.
    #[must_use]
    pub fn name(self) -> String {
        format!("{:016x}.segment", self.0)
    }

    /// The identity that a file's name says; `None` for a file that is no segment.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(".segment")?;
        let canonical = digits.len() == 16
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = u64::from_str_radix(digits, 16).ok().filter(|_| canonical)?;
        Some(Self(id))
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file.
    pub segment: SegmentId,
    /// The offset of the block's header in it, in bytes.
    pub offset: u32,
    /// Bytes of the payload.
    pub len: u32,
}

impl Place {
    /// Bytes that the block takes in the file.
    #[must_use]
    pub fn bytes(self) -> u64 {
        (BLOCK_HEADER_BYTES as u64).saturating_add(u64::from(self.len))
    }

    /// The offset after the block.
    #[must_use]
    pub fn end(self) -> u64 {
        u64::from(self.offset).saturating_add(self.bytes())
    }
}

/// What is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Bytes of a stream.
    Data,
    /// A snapshot's body, or a part of one.
    Blob,
}

/// What a block holds, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey {
    /// What it is.
    pub kind: BlockKind,
    /// The incarnation of the stream that it belongs to.
    pub owner: u64,
    /// The offset of its first byte in the stream; 0 for a blob.
    pub start: u64,
}

/// Fills the first block of a file.
pub(super) fn encode_file_header(id: SegmentId, seed: u64, block: &mut [u8]) {
    let block: &mut [u8; FILE_HEADER_BYTES] = front(block);
    block.fill(0);
    block[16..24].copy_from_slice(&id.0.to_le_bytes());
    let checksum = Checksum::seeded(seed).with(&block[16..]).value();
    block[..8].copy_from_slice(&FILE_MAGIC);
    block[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks the first block of a file.
pub(super) fn check_file_header(
    id: SegmentId,
    seed: u64,
    block: &[u8],
) -> Result<(), FileHeaderError> {
    let damaged = FileHeaderError::Damaged;
    let block: &[u8; FILE_HEADER_BYTES] = block.try_into().map_err(|_| damaged)?;
    if block[..8] != FILE_MAGIC {
        return Err(damaged);
    }
    let format = u32_at(block, 8);
    if format != FORMAT {
        return Err(FileHeaderError::Format(format));
    }
    let checksum = Checksum::seeded(seed).with(&block[16..]).value();
    if checksum != u32_at(block, 12) || u64_at(block, 16) != id.0 {
        return Err(damaged);
    }
    Ok(())
}

/// The header of a block with the payload `pieces`.
pub(super) fn encode_block_header<'a>(
    place: Place,
    key: BlockKey,
    seed: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> [u8; BLOCK_HEADER_BYTES] {
    let mut header = [0; BLOCK_HEADER_BYTES];
    header[..4].copy_from_slice(&BLOCK_MAGIC);
    header[8..16].copy_from_slice(&place.segment.0.to_le_bytes());
    header[16..24].copy_from_slice(&key.owner.to_le_bytes());
    header[24..32].copy_from_slice(&key.start.to_le_bytes());
    header[32..36].copy_from_slice(&place.offset.to_le_bytes());
    header[36..40].copy_from_slice(&place.len.to_le_bytes());
    header[40] = match key.kind {
        BlockKind::Data => 1,
        BlockKind::Blob => 2,
    };
    let checksum = pieces.fold(Checksum::seeded(seed).with(&header[8..]), |sum, piece| {
        sum.with(piece)
    });
    header[4..8].copy_from_slice(&checksum.value().to_le_bytes());
    header
}

/// What a block's header says, before anything of it is verified.
pub(super) fn decode_block_header(id: SegmentId, bytes: &[u8]) -> Option<(Place, BlockKey)> {
    let header: &[u8; BLOCK_HEADER_BYTES] = bytes.first_chunk()?;
    if header[..4] != BLOCK_MAGIC || u64_at(header, 8) != id.0 {
        return None;
    }
    let place = Place {
        segment: id,
        offset: u32_at(header, 32),
        len: u32_at(header, 36),
    };
    let kind = match header[40] {
        1 => BlockKind::Data,
        2 => BlockKind::Blob,
        _ => return None,
    };
    let key = BlockKey {
        kind,
        owner: u64_at(header, 16),
        start: u64_at(header, 24),
    };
    let sized = (1..=BLOCK_BYTES_MAX as u32).contains(&place.len);
    sized.then_some((place, key))
}

/// The payload of the block at the front of `bytes`, if it is whole and the one at `place`.
pub(super) fn verify_block(place: Place, key: BlockKey, seed: u64, bytes: &[u8]) -> Option<&[u8]> {
    if decode_block_header(place.segment, bytes)? != (place, key) {
        return None;
    }
    let (header, rest) = bytes.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
    let payload = rest.get(..place.len as usize)?;
    let block = bytes.get(8..place.bytes() as usize)?;
    let checksum = Checksum::seeded(seed).with(block).value();
    (checksum == u32_at(header, 4)).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_nothing_else_does() {
        let id = SegmentId::new(7, 3, 9).expect("in range");
        assert_eq!(id.0, 7 << 32 | 3 << 20 | 9);
        assert_eq!(SegmentId::parse(&id.name()), Some(id));
        for bad in [
            "",
            "7.segment",
            "000000070030000G.segment",
            "0000000700300009.segment.bak",
            "+000000700300009.segment",
        ] {
            assert_eq!(SegmentId::parse(bad), None, "{bad}");
        }
        assert_eq!(SegmentId::new(0, 0, 1 << 20), None);
        assert_eq!(SegmentId::new(1 << 32, 0, 0), None);
    }

    #[test]
    fn every_bit_of_a_block_counts() {
        let (seed, payload) = (99, b"payload");
        let place = Place {
            segment: SegmentId(5),
            offset: 4096,
            len: 7,
        };
        let key = BlockKey {
            kind: BlockKind::Data,
            owner: 11,
            start: 13,
        };
        let header = encode_block_header(place, key, seed, [&payload[..]].into_iter());
        let mut block = header.to_vec();
        block.extend_from_slice(payload);
        assert_eq!(verify_block(place, key, seed, &block), Some(&payload[..]));
        assert_eq!(verify_block(place, key, seed + 1, &block), None);
        let other = BlockKey { start: 14, ..key };
        assert_eq!(verify_block(place, other, seed, &block), None);
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify_block(place, key, seed, &flipped), None, "bit {bit}");
        }
        for len in 0..block.len() {
            assert_eq!(verify_block(place, key, seed, &block[..len]), None);
        }
    }
}
