//! The bytes of a journal file.
//!
//! A file is one header block and then batches, each padded with zeros to
//! 4 KiB. All integers are little-endian. A file of `file_bytes` bytes:
//!
//! ```text
//! file header, one block of 4096 bytes           batch header, 80 bytes
//!   0  magic        8  "THALWEGJ"                  0  magic             4  "TWBA"
//!   8  format       4                              4  header_checksum   4  of bytes 8..80
//!  12  checksum     4  of bytes 16..4096           8  body_checksum     4  of the body
//!  16  journal_id   8  random, per journal        12  flags             4
//!  24  file_number  8  from 1, no gaps            16  journal_id        8
//!  32  file_bytes   8                             24  epoch             8  seeds both checksums
//!  40  shard        4                             32  number            8  from 1, no gaps
//!  44  zeros                                      40  durable           8  highest number known
//!                                                                          durable at issue
//! body: record_count times                        48  first_record      8  position of record 0
//!   0  len          4                             56  file_number       8
//!   4  payload    len                             64  offset            8  of this header
//!                                                 72  body_bytes        4
//!                                                 76  record_count      4
//! ```
//!
//! Why each field that is not data is there:
//! - *epoch* orders the lives of the process. It never falls along the log, so
//!   bytes behind a cut, which are older, are never read as a continuation.
//! - *file_number* and *offset* say where the batch was written: a recycled
//!   file's old content, or a misdirected write, is not taken for a batch.
//! - *journal_id* is random and nobody outside is told it: data that a client
//!   wrote cannot pass for a batch when the bytes behind a damaged one are
//!   searched.
//! - *durable* makes a torn tail and damage distinguishable: a whole batch
//!   whose `durable` is at least `n` proves that batch `n` was acknowledged.
//! - the header has its own checksum so that a search reads bodies only where
//!   a header verifies.

use super::FILE_BYTES_MAX;
use crate::base::checksum::Checksum;
use crate::base::limits::DISK_ALIGN;
use crate::storage::fields::{FileHeaderError, front, u32_at, u64_at};

/// Version of everything in this file.
pub(super) const FORMAT: u32 = 1;
/// Bytes of the file header: one block.
pub(super) const FILE_HEADER_BYTES: u64 = DISK_ALIGN as u64;
/// Bytes of a batch header.
pub(super) const BATCH_HEADER_BYTES: usize = 80;
/// Bytes before each record's payload.
pub(super) const RECORD_HEADER_BYTES: usize = 4;

const FILE_MAGIC: [u8; 8] = *b"THALWEGJ";
const BATCH_MAGIC: [u8; 4] = *b"TWBA";
const BATCH_ALIGN: u64 = DISK_ALIGN as u64;

const _: () = assert!(BATCH_HEADER_BYTES < DISK_ALIGN);

/// The first batch of an epoch: no records; written at the cut before anything is served.
pub(super) const FLAG_EPOCH_OPEN: u32 = 1;
/// Written by repair over a damaged range: no records in it, but it takes the place of lost
/// batches, up to its number, and of `record_count` lost records.
pub(super) const FLAG_FILLER: u32 = 2;
/// Every flag there is. A whole batch with another one is no torn tail: it is refused, not cut.
pub(super) const FLAGS: u32 = FLAG_EPOCH_OPEN | FLAG_FILLER;

/// Beyond the numbers that files, batches and records of any journal reach, so that sums of them do
/// not overflow: what says one is forged.
pub(super) const NUMBER_MAX: u64 = 1 << 62;

/// Rounds up to a whole number of blocks.
pub(super) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(BATCH_ALIGN)
}

/// The first block of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) journal_id: u64,
    pub(super) file_number: u64,
    pub(super) file_bytes: u64,
    pub(super) shard: u32,
}

impl FileHeader {
    /// Fills the first block of `buffer`.
    pub(super) fn encode(&self, buffer: &mut [u8]) {
        let block: &mut [u8; DISK_ALIGN] = front(buffer);
        block.fill(0);
        block[0..8].copy_from_slice(&FILE_MAGIC);
        block[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        block[16..24].copy_from_slice(&self.journal_id.to_le_bytes());
        block[24..32].copy_from_slice(&self.file_number.to_le_bytes());
        block[32..40].copy_from_slice(&self.file_bytes.to_le_bytes());
        block[40..44].copy_from_slice(&self.shard.to_le_bytes());
        let checksum = Checksum::seeded(0).with(&block[16..]).value();
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a block.
    pub(super) fn decode(block: &[u8]) -> Result<Self, FileHeaderError> {
        let damaged = FileHeaderError::Damaged;
        let bytes: &[u8; DISK_ALIGN] = block.try_into().map_err(|_| damaged)?;
        if bytes[0..8] != FILE_MAGIC {
            return Err(damaged);
        }
        let format = u32_at(bytes, 8);
        if format != FORMAT {
            return Err(FileHeaderError::Format(format));
        }
        if Checksum::seeded(0).with(&bytes[16..]).value() != u32_at(bytes, 12) {
            return Err(damaged);
        }
        let header = Self {
            journal_id: u64_at(bytes, 16),
            file_number: u64_at(bytes, 24),
            file_bytes: u64_at(bytes, 32),
            shard: u32_at(bytes, 40),
        };
        let sized = header.file_bytes > FILE_HEADER_BYTES
            && header.file_bytes.is_multiple_of(BATCH_ALIGN)
            && header.file_bytes <= FILE_BYTES_MAX;
        if sized { Ok(header) } else { Err(damaged) }
    }
}

/// The header of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub(super) flags: u32,
    pub(super) journal_id: u64,
    pub(super) epoch: u64,
    pub(super) number: u64,
    pub(super) durable: u64,
    pub(super) first_record: u64,
    pub(super) file_number: u64,
    pub(super) offset: u64,
    pub(super) body_bytes: u32,
    pub(super) record_count: u32,
    pub(super) body_checksum: u32,
}

impl BatchHeader {
    /// Bytes of header, body and padding.
    pub(super) fn batch_bytes(&self) -> u64 {
        padded((BATCH_HEADER_BYTES as u64).saturating_add(u64::from(self.body_bytes)))
    }

    /// Fills the first 80 bytes of `out`.
    pub(super) fn encode(&self, out: &mut [u8]) {
        let out: &mut [u8; BATCH_HEADER_BYTES] = front(out);
        out[0..4].copy_from_slice(&BATCH_MAGIC);
        out[8..12].copy_from_slice(&self.body_checksum.to_le_bytes());
        out[12..16].copy_from_slice(&self.flags.to_le_bytes());
        out[16..24].copy_from_slice(&self.journal_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.durable.to_le_bytes());
        out[48..56].copy_from_slice(&self.first_record.to_le_bytes());
        out[56..64].copy_from_slice(&self.file_number.to_le_bytes());
        out[64..72].copy_from_slice(&self.offset.to_le_bytes());
        out[72..76].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[76..80].copy_from_slice(&self.record_count.to_le_bytes());
        let checksum = Checksum::seeded(self.epoch).with(&out[8..]).value();
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a header that was written at `offset` of this file; `None` if there is none.
    /// What it says fits the file, and is in range; the body is not looked at.
    pub(super) fn decode(bytes: &[u8], file: &FileHeader, offset: u64) -> Option<Self> {
        let bytes: &[u8; BATCH_HEADER_BYTES] = bytes.first_chunk()?;
        if bytes[0..4] != BATCH_MAGIC {
            return None;
        }
        let header = Self {
            body_checksum: u32_at(bytes, 8),
            flags: u32_at(bytes, 12),
            journal_id: u64_at(bytes, 16),
            epoch: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            durable: u64_at(bytes, 40),
            first_record: u64_at(bytes, 48),
            file_number: u64_at(bytes, 56),
            offset: u64_at(bytes, 64),
            body_bytes: u32_at(bytes, 72),
            record_count: u32_at(bytes, 76),
        };
        let checksum = Checksum::seeded(header.epoch).with(&bytes[8..]).value();
        let here = header.journal_id == file.journal_id
            && header.file_number == file.file_number
            && header.offset == offset;
        let fits = header.batch_bytes() <= file.file_bytes.checked_sub(offset)?;
        let in_range = header.durable < header.number
            && header.number < NUMBER_MAX
            && header.first_record < NUMBER_MAX;
        (checksum == u32_at(bytes, 4) && here && fits && in_range).then_some(header)
    }

    /// True if `body` is what was written with this header.
    pub(super) fn verifies(&self, body: &[u8]) -> bool {
        Checksum::seeded(self.epoch).with(body).value() == self.body_checksum
    }
}

/// The records in the body of a batch that verified; an item is `None` where they do not fit.
pub(super) struct Records<'a> {
    body: &'a [u8],
    left: u32,
}

impl<'a> Records<'a> {
    pub(super) fn new(header: &BatchHeader, body: &'a [u8]) -> Self {
        Self {
            body,
            left: header.record_count,
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return (!std::mem::take(&mut self.body).is_empty()).then_some(None);
        }
        let record = self.body.split_first_chunk().and_then(|(len, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
        });
        match record {
            Some((payload, rest)) => {
                self.body = rest;
                self.left = self.left.saturating_sub(1);
                Some(Some(payload))
            }
            None => {
                (self.left, self.body) = (0, &[]);
                Some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_header() -> FileHeader {
        FileHeader {
            journal_id: 0x1122_3344,
            file_number: 3,
            file_bytes: 1 << 20,
            shard: 2,
        }
    }

    fn batch_header() -> BatchHeader {
        BatchHeader {
            flags: FLAG_EPOCH_OPEN,
            journal_id: 0x1122_3344,
            epoch: 9,
            number: 77,
            durable: 75,
            first_record: 1000,
            file_number: 3,
            offset: 8192,
            body_bytes: 5000,
            record_count: 2,
            body_checksum: 42,
        }
    }

    #[test]
    fn file_header_round_trip_and_every_bit_flip_is_seen() {
        let mut block = [0; DISK_ALIGN];
        file_header().encode(&mut block);
        assert_eq!(FileHeader::decode(&block), Ok(file_header()));
        for bit in (0..64 * 8).chain([8 * DISK_ALIGN - 1]) {
            let mut flipped = block;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_format_is_named() {
        let mut block = [0; DISK_ALIGN];
        file_header().encode(&mut block);
        block[8] = 2;
        assert_eq!(FileHeader::decode(&block), Err(FileHeaderError::Format(2)));
    }

    #[test]
    fn batch_header_round_trip_and_every_bit_flip_is_seen() {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        batch_header().encode(&mut bytes);
        assert_eq!(
            BatchHeader::decode(&bytes, &file_header(), 8192),
            Some(batch_header())
        );
        for bit in 0..BATCH_HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                BatchHeader::decode(&flipped, &file_header(), 8192),
                None,
                "bit {bit}"
            );
        }
        for len in 0..BATCH_HEADER_BYTES {
            assert_eq!(
                BatchHeader::decode(&bytes[..len], &file_header(), 8192),
                None
            );
        }
    }

    #[test]
    fn batch_header_holds_only_where_it_was_written() {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        batch_header().encode(&mut bytes);
        let decode = |file, offset| BatchHeader::decode(&bytes, &file, offset);
        assert_eq!(decode(file_header(), 4096), None);
        assert_eq!(
            decode(
                FileHeader {
                    file_number: 4,
                    ..file_header()
                },
                8192
            ),
            None
        );
        assert_eq!(
            decode(
                FileHeader {
                    journal_id: 1,
                    ..file_header()
                },
                8192
            ),
            None
        );
        assert_eq!(
            decode(
                FileHeader {
                    file_bytes: 8192,
                    ..file_header()
                },
                8192
            ),
            None
        );
    }

    #[test]
    fn records_never_reach_beyond_the_body() {
        let header = BatchHeader {
            record_count: 2,
            ..batch_header()
        };
        let body = [1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c'];
        let items: Vec<_> = Records::new(&header, &body).collect();
        assert_eq!(items, [Some(&b"a"[..]), Some(b"bc")]);
        for len in 0..body.len() {
            let items: Vec<_> = Records::new(&header, &body[..len]).collect();
            assert_eq!(items.last(), Some(&None), "{len}");
        }
        let longer = [&body[..], &[0]].concat();
        assert_eq!(Records::new(&header, &longer).last(), Some(None));
    }
}
