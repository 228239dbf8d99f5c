//! A hold: while somebody copies the data directory, nothing that the copy
//! needs is removed, and the shards' cuts fit each other.
//!
//! ```text
//! begin ──> every core has seen it ──> each shard's cut ──> gate opens ──> copy … ──> end
//!  held: no file is removed, no hole is punched
//!  gated: no message that carries durable state to another shard
//! ```
//!
//! What is guaranteed:
//! - From a shard's cut on and until the hold ends, the checkpoint and the
//!   journal files of that cut are there, and so are the segments and the blobs
//!   that they name, with the bytes that they name. New checkpoints are written
//!   meanwhile; what would go with them goes when the hold has ended.
//! - The cuts of all shards together are a state that a crash could have left.
//!   Two things rest on what another shard made durable: a fork rests on the
//!   reference at its source, and the release of a reference rests on the
//!   deletion of the fork. Both wait while the gate is closed: every core closes
//!   it before the first cut and none opens it before the last, so whatever a
//!   cut has seen of another shard is in that shard's cut as well. Fences need
//!   no gate: a start unites those of all shards.
//! - Writes come first: when a shard runs out of disk space the hold is broken,
//!   space comes back as ever, and whoever copies is told.
//!
//! One for the process, shared by its cores; there is one hold at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::storage::{checkpoint::Current, journal::Extent};

/// Whether a hold is in force.
#[derive(Debug, Default)]
pub struct Hold {
    /// The hold's number; 0 when there is none.
    number: AtomicU64,
    /// Holds so far.
    count: AtomicU64,
    gated: AtomicBool,
    broken: AtomicBool,
}

/// What a shard's part of a copy consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The checkpoint that ruled.
    pub checkpoint: Option<Current>,
    /// The journal behind it, as far as it was durable.
    pub journal: Extent,
}

impl Hold {
    /// Begins a hold and closes the gate; its number. `None` if there is one already.
    #[must_use]
    pub fn begin(&self) -> Option<u64> {
        let before = self.count.fetch_add(1, Ordering::SeqCst);
        // 0 means that there is none.
        let number = before.wrapping_add(1).max(1);
        let free = self
            .number
            .compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        free.ok()?;
        self.gated.store(true, Ordering::SeqCst);
        Some(number)
    }

    /// Every shard has made its cut, or will not.
    pub fn open_gate(&self) {
        self.gated.store(false, Ordering::SeqCst);
    }

    /// Ends it.
    pub fn end(&self) {
        self.open_gate();
        self.broken.store(false, Ordering::SeqCst);
        self.number.store(0, Ordering::SeqCst);
    }

    /// Space is needed now: what is held is let go.
    pub fn break_off(&self) {
        if self.is_held() {
            self.broken.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was broken.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Whether nothing may be removed.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holds().is_some()
    }

    /// Number of the hold in force.
    #[must_use]
    pub fn holds(&self) -> Option<u64> {
        let number = self.number.load(Ordering::SeqCst);
        (number != 0 && !self.is_broken()).then_some(number)
    }

    /// Whether what rests on another shard must wait.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.gated.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let hold = Hold::default();
        assert!(!hold.is_held() && !hold.is_gated());
        let first = hold.begin();
        assert_eq!(hold.holds(), first);
        assert!(first.is_some() && hold.is_gated());
        assert_eq!(hold.begin(), None);
        hold.open_gate();
        assert!(hold.is_held() && !hold.is_gated());
        hold.end();
        assert!(!hold.is_held());
        let second = hold.begin();
        assert!(second.is_some() && second != first);
    }

    #[test]
    fn a_broken_one_holds_nothing_and_stays_broken_until_it_ends() {
        let hold = Hold::default();
        hold.break_off();
        assert!(!hold.is_broken());
        assert!(hold.begin().is_some());
        hold.break_off();
        assert!(hold.is_broken() && !hold.is_held());
        assert_eq!(hold.begin(), None);
        hold.end();
        assert!(!hold.is_broken());
    }
}
