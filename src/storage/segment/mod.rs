//! Segments: where the bytes of streams are once they have left memory.
//!
//! A segment is a file of blocks, below `<data-dir>/segments/`. A block is a
//! header and up to 64 KiB of one stream, or a small snapshot body; blocks lie
//! one behind the other, so that many small streams share a page and one large
//! stream is read in one piece.
//!
//! What is guaranteed:
//! - A file is written by one shard in one life of the process, from front to
//!   back, and never again: no block changes once it is written. Numbers of
//!   segments are never used twice.
//! - A block that is read is the one that was asked for, whole: its header says
//!   where it lies and whose it is, and a checksum covers header and payload.
//!   It is seeded with a secret of the data directory, so that what a client
//!   stores cannot pass for a block.
//! - Nothing here is durable before [`SegmentWriter::sync`]; until a checkpoint
//!   names a block, the journal has its bytes too.
//! - A file goes when nobody has a live block in it any more and the last
//!   response that reads from it has ended. Pages of dead blocks go before
//!   ([`punch`]), what is left between live ones by moving those
//!   ([`Holdings::wasteful`]).
//!
//! The files lie beside the layouts, so that a change of the number of shards
//! copies none of them.

mod format;
mod holdings;
mod reader;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use self::format::{BlockKey, BlockKind, Place, SegmentId};
pub use self::holdings::{Holdings, Segment, SegmentGraveyard, intern};
pub use self::reader::{BlockBytes, BlockReader, ScanReport, reads};
pub use self::store::{DIR_NAME, bury, list, mend, prepare_dir, punch, reconcile};
pub use self::writer::{NewBlock, SegmentStats, SegmentWriter, WriterOptions};
