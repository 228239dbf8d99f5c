//! A shard's checkpoint: its state as of one position, so that a start need
//! not replay what came before, and the journal's first files can go.
//!
//! ```text
//! <shard>/journal/                        records
//! <shard>/checkpoint-<number, 20 digits>  entries, in chunks that verify one by one
//! <shard>/current                         which checkpoint rules, replaced as a whole
//! <shard>/current.new                     the next `current`; alone it means nothing
//! ```
//!
//! What an entry says is the business of the layer above: here it is bytes.
//!
//! What is guaranteed:
//! - A checkpoint rules only once [`Current::store`] has returned, and it is
//!   whole and durable before that: file and name are synced by
//!   [`CheckpointWriter::finish`]. A crash at any step leaves the old `current`
//!   or the new one, and either names a whole file, if the caller removes the
//!   old checkpoint ([`remove_others`]), and releases the journal before
//!   [`Current::replay_from`], only after `store` has returned.
//! - [`read_checkpoint`] hands out every entry that was appended, once, in
//!   order, or fails. It may fail after it has handed out some: what was built
//!   of them must then be dropped.
//! - Damage is found and not guessed at: every byte of the file is covered by a
//!   checksum, a chunk holds only at the place where it was written, and the
//!   totals must agree with `current`. [`salvage_checkpoint`] is for an operator
//!   who has decided to go on with what is left.
//!
//! `current` removed by hand: then the journal's first files are missing, or
//! there is a checkpoint that says that it was written before them
//! ([`FIRST_WRITTEN`]), and it refuses. If neither, the journal has everything.
//!
//! ```text
//! format    every byte of a checkpoint
//! writer    entries in, slice by slice, while the shard works
//! reader    entries out, one chunk in memory at a time
//! current   the one file that says which checkpoint rules
//! ```

mod current;
mod format;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::data_dir::Layout;
use super::disk::{Disk, list_by, remove_if_there};
use super::error::StorageError;

pub use self::current::Current;
pub use self::format::ENTRY_BYTES_MAX;
pub use self::reader::{Damage, find_newest, find_whole, read_checkpoint, salvage_checkpoint};
pub use self::writer::CheckpointWriter;

const CURRENT: &str = "current";
const CURRENT_NEW: &str = "current.new";
const PREFIX: &str = "checkpoint-";
/// The journal's directory beside the checkpoints.
const JOURNAL_DIR: &str = "journal";

/// Number of the first checkpoint of a shard that began as one, in a layout that was written from
/// another. What is in it is in no journal: where there are such checkpoints, there is a `current`.
pub const FIRST_WRITTEN: u64 = 1 << 32;

/// Which shard's checkpoints these are and where they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The shard's directory, which exists.
    pub dir: PathBuf,
    /// Identity of the shard's journal: random, and nobody outside is told it.
    pub journal_id: u64,
    /// Number of the shard.
    pub shard: u32,
}

impl Identity {
    /// Those of shard number `shard` of `layout`, whose journal is `journal_id`.
    #[must_use]
    pub fn of(layout: &Layout, shard: u32, journal_id: u64) -> Self {
        Self {
            dir: layout.shard_dir(shard),
            journal_id,
            shard,
        }
    }

    /// Where checkpoint `number` is.
    #[must_use]
    pub fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{number:020}"))
    }

    /// Where `current` is.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.dir.join(CURRENT)
    }

    fn current_new_path(&self) -> PathBuf {
        self.dir.join(CURRENT_NEW)
    }
}

/// The number that a checkpoint's name says; `None` for any other name.
fn parse_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| canonical)
}

/// The numbers of the checkpoints in a shard's directory, in order.
async fn numbers<D: Disk>(disk: &D, identity: &Identity) -> Result<Vec<u64>, StorageError> {
    // Names are sorted, and numbers are written with all their digits.
    let (numbers, _) = list_by(disk, &identity.dir, parse_number).await?;
    Ok(numbers)
}

/// True for a name that this module gives to a file in a shard's directory.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    name == CURRENT || name == CURRENT_NEW || parse_number(name).is_some()
}

/// Removes every checkpoint but those of `keep`, older or unfinished, and `current.new`. Returns what else
/// is in the directory and is not known; the journal's directory is.
///
/// `keep` has what a durable `current` names, if there is one: what is removed does not come back. Removed names are not synced: one that a crash brings back is removed the next
/// time.
///
/// # Errors
/// [`StorageError::Io`]; what was not reached stays.
pub async fn remove_others<D: Disk>(
    disk: &D,
    identity: &Identity,
    keep: &[u64],
) -> Result<Vec<PathBuf>, StorageError> {
    let dir = &identity.dir;
    let names = disk
        .list_dir(dir)
        .await
        .map_err(StorageError::io("list", dir))?;
    let mut unknown = Vec::new();
    for name in names {
        let path = dir.join(&name);
        match parse_number(&name) {
            Some(number) if keep.contains(&number) => {}
            Some(_) => remove_if_there(disk, &path).await?,
            None if name == CURRENT_NEW => remove_if_there(disk, &path).await?,
            None if name == CURRENT || name == JOURNAL_DIR => {}
            None => unknown.push(path),
        }
    }
    Ok(unknown)
}
