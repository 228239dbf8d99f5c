//! Where the durable part of a journal is, for those who copy it while it grows.
//!
//! A copy must end exactly behind a durable batch. Behind that, batches may be
//! half written, and later ones whole, which would prove to a start that it is
//! damage.

use super::{Inner, Position};
use crate::storage::disk::Disk;

/// Which bytes of which files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of the first file that is needed.
    pub first_file: u64,
    /// Number of the last.
    pub last_file: u64,
    /// Where the last durable batch ends in the last, in bytes; those before are needed whole.
    pub end: u64,
}

impl<D: Disk> Inner<D> {
    pub(super) fn extent(&self, from: Position) -> Extent {
        let (last_file, end) = self.durable_end.get();
        let queue = self.queue.borrow();
        // What is behind the last durable batch may have a place already.
        let durable = queue.spans.iter().filter(|(file, _)| *file <= last_file);
        let holds = durable.filter(|(_, span)| span.first_record <= from.0);
        let first_file = holds.map(|(file, _)| *file).next_back();
        Extent {
            first_file: first_file.unwrap_or(last_file),
            last_file,
            end,
        }
    }
}
