//! Live readers: who is woken by which append, and why nobody misses one.
//!
//! A [`Watch`] joins a stream's owner to one core that has readers of it. The
//! owner registers it in the same turn in which it read the tail for the
//! reader, so no append falls between. When the durable state moves, the
//! owner stores it in the watch and, unless a wake-up is already on its way,
//! sends one: one message per (stream, core), however many readers wait and
//! however many appends came. The reader's core clears the flag before it
//! reads the state, so a change is either seen or causes another wake-up. What
//! becomes of it there is the [`Hub`](super::hub::Hub)'s.
//!
//! Readers never see more than the owner's visible state: the watch is only
//! written from there.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use crate::protocol::incarnation::Incarnation;

/// What joins a stream's owner to a core with readers.
#[derive(Debug)]
pub struct Watch {
    /// The core with the readers.
    pub core: usize,
    incarnation: AtomicU64,
    tail: AtomicU64,
    phase: AtomicU8,
    published_ns: AtomicU64,
    wake_sent: AtomicBool,
}

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const GONE: u8 = 2;

/// The durable state of a watched stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// It takes appends.
    Open {
        /// Its tail.
        tail: u64,
    },
    /// It takes no more.
    Closed {
        /// Its final offset.
        tail: u64,
    },
    /// It was deleted or expired.
    Gone,
}

impl Watch {
    /// A watch for readers on `core`.
    #[must_use]
    pub fn new(core: usize) -> Arc<Self> {
        Arc::new(Self {
            core,
            incarnation: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            phase: AtomicU8::new(OPEN),
            published_ns: AtomicU64::new(0),
            wake_sent: AtomicBool::new(false),
        })
    }

    /// The stream it is registered at.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Relaxed))
    }

    /// The state the owner last published.
    #[must_use]
    pub fn state(&self) -> Watched {
        // The phase is stored after the tail, so a closed stream is never seen with an old tail.
        let phase = self.phase.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        match phase {
            OPEN => Watched::Open { tail },
            CLOSED => Watched::Closed { tail },
            _ => Watched::Gone,
        }
    }

    /// Publishes the durable state. True when a wake-up must be sent: none is on its way.
    fn publish(&self, state: Watched) -> bool {
        let phase = match state {
            Watched::Open { tail } => {
                self.tail.store(tail, Ordering::Release);
                OPEN
            }
            Watched::Closed { tail } => {
                self.tail.store(tail, Ordering::Release);
                CLOSED
            }
            Watched::Gone => GONE,
        };
        self.phase.store(phase, Ordering::Release);
        !self.wake_sent.swap(true, Ordering::AcqRel)
    }

    /// Takes note of when the change became readable that readers are now woken for, in
    /// nanoseconds of the monotonic clock. For a profile: stored after the state, so a reader that
    /// runs at once may still see the moment of the change before.
    pub fn stamp(&self, published_ns: u64) {
        self.published_ns.store(published_ns, Ordering::Relaxed);
    }

    /// The last [`stamp`](Self::stamp); 0 before the first.
    #[must_use]
    pub fn published_ns(&self) -> u64 {
        self.published_ns.load(Ordering::Relaxed)
    }

    /// Takes note that the wake-up has arrived; the state is read after this.
    pub fn wake_arrived(&self) {
        self.wake_sent.store(false, Ordering::Release);
    }
}

/// The cores that have readers of one stream; kept by its owner.
#[derive(Debug, Default)]
pub struct Watchers(Vec<Watcher>);

/// A core's watch, and how many readers there it serves.
type Watcher = (Arc<Watch>, usize);

impl Watchers {
    /// Whether nobody watches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a reader on `watch.core` and returns the watch that serves that core.
    pub fn register(
        &mut self,
        watch: Arc<Watch>,
        incarnation: Incarnation,
        state: Watched,
    ) -> Arc<Watch> {
        let cores = &mut self.0;
        if let Some((known, readers)) = cores.iter_mut().find(|(known, _)| known.core == watch.core)
        {
            *readers = readers.saturating_add(1);
            return known.clone();
        }
        watch.incarnation.store(incarnation.0, Ordering::Relaxed);
        // Nobody waits on it yet, so this needs no wake-up.
        watch.publish(state);
        watch.wake_arrived();
        cores.push((watch.clone(), 1));
        watch
    }

    /// Forgets one reader on `core`.
    pub fn unregister(&mut self, core: usize) {
        let cores = &mut self.0;
        if let Some(index) = cores.iter().position(|(watch, _)| watch.core == core)
            && let Some((_, readers)) = cores.get_mut(index)
        {
            *readers = readers.saturating_sub(1);
            if *readers == 0 {
                cores.swap_remove(index);
            }
        }
    }

    /// Publishes `state` to every core; returns the watches that need a wake-up.
    pub fn publish(&self, state: Watched) -> impl Iterator<Item = &Arc<Watch>> {
        let cores = self.0.iter();
        cores.filter_map(move |(watch, _)| watch.publish(state).then_some(watch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changes_send_one_wake_up_and_none_is_lost() {
        let mut watchers = Watchers::default();
        let watch = watchers.register(Watch::new(1), Incarnation(9), Watched::Open { tail: 0 });
        assert_eq!(watchers.publish(Watched::Open { tail: 1 }).count(), 1);
        assert_eq!(watchers.publish(Watched::Open { tail: 2 }).count(), 0);
        watch.wake_arrived();
        assert_eq!(watch.state(), Watched::Open { tail: 2 });
        assert_eq!(watchers.publish(Watched::Closed { tail: 2 }).count(), 1);
        assert_eq!(watch.state(), Watched::Closed { tail: 2 });
    }
}
