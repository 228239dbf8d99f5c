//! Where a core lays out a copy of its profile when the operator asks.
//!
//! The core looks whether it was asked when it handles its mailbox, which
//! [`Post::nudge`](crate::shard::mailbox::Post::nudge) makes it do, and at each
//! sweep: its hot path knows nothing of this.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::profile::Profile;

/// One core's.
#[derive(Debug, Default)]
pub struct Shelf {
    /// Copies asked for, ever.
    asked: AtomicU64,
    /// Resets asked for, ever.
    resets: AtomicU64,
    /// Of `asked`, how many the copy that is here answers.
    given: AtomicU64,
    copy: Mutex<Option<Arc<Profile>>>,
}

/// What a core is to do for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    ticket: u64,
    /// Resets asked for, ever.
    pub resets: u64,
}

impl Shelf {
    /// Asks for a copy, made after a reset if one is wanted. The ticket is for [`Self::take`].
    pub fn ask(&self, reset: bool) -> u64 {
        if reset {
            self.resets.fetch_add(1, Ordering::Release);
        }
        self.asked.fetch_add(1, Ordering::AcqRel).saturating_add(1)
    }

    /// The copy that answers `ticket`, once it is there.
    pub fn take(&self, ticket: u64) -> Option<Arc<Profile>> {
        if self.given.load(Ordering::Acquire) < ticket {
            return None;
        }
        let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        copy.clone()
    }

    /// For the core: what it was asked for and has not given yet.
    pub fn asked(&self) -> Option<Asked> {
        let ticket = self.asked.load(Ordering::Acquire);
        (ticket != self.given.load(Ordering::Relaxed)).then(|| Asked {
            ticket,
            resets: self.resets.load(Ordering::Acquire),
        })
    }

    /// For the core: this answers all that was asked by then.
    pub fn give(&self, asked: Asked, profile: Profile) {
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        *copy = Some(Arc::new(profile));
        drop(copy);
        self.given.store(asked.ticket, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_answers_those_who_asked_before_it_was_made() {
        let shelf = Shelf::default();
        assert_eq!(shelf.asked(), None);
        let first = shelf.ask(false);
        let second = shelf.ask(true);
        let asked = shelf.asked().unwrap();
        assert_eq!(asked.resets, 1);
        let third = shelf.ask(false);
        assert!(shelf.take(first).is_none());
        shelf.give(asked, Profile::new(7));
        assert_eq!(shelf.take(first).unwrap().since_ms, 7);
        assert!(shelf.take(second).is_some());
        assert!(shelf.take(third).is_none());
        assert!(shelf.asked().is_some());
    }
}
