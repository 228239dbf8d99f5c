//! Reads of segments give way to the journal.
//!
//! A disk serves what it is asked for in about the order in which it was asked.
//! Large reads, several at a time, bring the most bytes a second; a batch of the
//! journal that is issued behind them waits for all of them, twice, once for its
//! write and once for its sync. So while any core of this server writes a
//! journal, each core has one read under way at most, and a short one: the
//! readers still get most of what the disk has, and appends wait for little.

use std::{
    rc::Rc,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
};

use glommio::sync::{Permit, Semaphore};

use crate::base::{
    limits::{
        DISK_IO_BYTES_MAX, READ_BESIDE_JOURNAL_BYTES_MAX, READS_BESIDE_JOURNAL_MAX, READS_MAX,
    },
    time::Clock,
};

/// For so long after a batch another is expected, in nanoseconds.
const JOURNAL_RECENT_NS: u64 = 50_000_000;

/// When this process last wrote to a journal.
#[derive(Debug, Default)]
pub struct JournalUse {
    /// In nanoseconds of the monotonic clock; 0 if never.
    at_ns: AtomicU64,
}

/// One core's turns at reading.
pub struct ReadTurns {
    journal: Arc<JournalUse>,
    clock: Rc<dyn Clock>,
    all: Semaphore,
    beside_journal: Semaphore,
}

/// A read may go on until this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    _beside_journal: Option<Permit<'a>>,
    _any: Option<Permit<'a>>,
}

impl ReadTurns {
    /// Turns of a core, which share `journal` with those of all others.
    #[must_use]
    pub fn new(journal: Arc<JournalUse>, clock: Rc<dyn Clock>) -> Self {
        Self {
            journal,
            clock,
            all: Semaphore::new(READS_MAX as u64),
            beside_journal: Semaphore::new(READS_BESIDE_JOURNAL_MAX as u64),
        }
    }

    /// A batch of this core's journal has just been written.
    pub fn journal_written(&self) {
        let now_ns = self.clock.monotonic_ns();
        self.journal.at_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// How much one read should ask for at most, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        if self.is_journal_written() {
            READ_BESIDE_JOURNAL_BYTES_MAX
        } else {
            DISK_IO_BYTES_MAX
        }
    }

    /// Waits until one more read may be under way.
    pub async fn take(&self) -> Turn<'_> {
        // Nobody closes a semaphore. Who holds the first waits for the second, never the other way
        // round.
        let beside_journal = match self.is_journal_written() {
            true => self.beside_journal.acquire_permit(1).await.ok(),
            false => None,
        };
        Turn {
            _beside_journal: beside_journal,
            _any: self.all.acquire_permit(1).await.ok(),
        }
    }

    fn is_journal_written(&self) -> bool {
        let at_ns = self.journal.at_ns.load(Ordering::Relaxed);
        at_ns > 0 && self.clock.monotonic_ns().saturating_sub(at_ns) < JOURNAL_RECENT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::ManualClock;
    use futures_lite::future::{block_on, poll_once};
    use std::time::Duration;

    fn turns_at_once(turns: &ReadTurns) -> usize {
        let taken = std::iter::from_fn(|| block_on(poll_once(turns.take())));
        taken.collect::<Vec<_>>().len()
    }

    #[test]
    fn reads_are_few_and_short_while_any_core_writes_its_journal() {
        let clock = ManualClock::new(1);
        clock.advance(Duration::from_secs(1));
        let journal = Arc::new(JournalUse::default());
        let new = || ReadTurns::new(journal.clone(), Rc::new(clock.clone()));
        let (turns, other_core) = (new(), new());
        assert_eq!(turns_at_once(&turns), READS_MAX);
        assert_eq!(turns.bytes_max(), DISK_IO_BYTES_MAX);
        other_core.journal_written();
        assert_eq!(turns_at_once(&turns), READS_BESIDE_JOURNAL_MAX);
        assert_eq!(turns.bytes_max(), READ_BESIDE_JOURNAL_BYTES_MAX);
        clock.advance(Duration::from_nanos(JOURNAL_RECENT_NS));
        assert_eq!(turns_at_once(&turns), READS_MAX);
        assert_eq!(turns.bytes_max(), DISK_IO_BYTES_MAX);
    }
}
