//! The live readers of one core, and how a change of a stream reaches them.
//!
//! It wakes those that left a waker, some in each turn ([`Hub::poll_wakes`]), and
//! queues the stream for whoever serves its crowd: readers that all wait at the
//! tail and are written to in one go ([`Hub::poll_crowd`]). Readers at one offset
//! share what was encoded for it ([`SharedEvent`]).

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    rc::{Rc, Weak},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use slab::Slab;

use crate::{
    protocol::{incarnation::Incarnation, sse::Framing},
    shard::live::{Watch, Watched},
};

/// The live readers of one core.
#[derive(Debug, Default)]
pub struct Hub {
    streams: RefCell<HashMap<Incarnation, Rc<LiveStream>>>,
    readers: Cell<usize>,
    /// Streams whose crowds are to be looked after, each once.
    crowds: RefCell<VecDeque<Rc<LiveStream>>>,
    /// Who looks after them, while there are none.
    server: RefCell<Option<Waker>>,
    /// Streams with readers that are yet to be woken, each once.
    wakes: RefCell<VecDeque<Rc<LiveStream>>>,
    /// Who wakes them, while there are none.
    waker: RefCell<Option<Waker>>,
}

/// Readers woken in one turn.
const WAKES_PER_TURN: usize = 256;
/// Readers looked at for it.
const LOOKS_PER_TURN: usize = 16 * WAKES_PER_TURN;

/// A stream that has live readers on this core.
#[derive(Debug)]
pub struct LiveStream {
    /// What the owner publishes.
    pub watch: Arc<Watch>,
    /// The shard that owns it.
    pub owner: usize,
    hub: Weak<Hub>,
    readers: RefCell<Slab<Option<Waker>>>,
    has_crowd: Cell<bool>,
    is_queued: Cell<bool>,
    event: RefCell<Option<SharedEvent>>,
    fetching: Cell<Option<EventKey>>,
    /// Readers that wait for a fetch.
    fetch_waiters: RefCell<Vec<usize>>,
    /// Where the waking of readers goes on, if some are yet to be woken.
    wake_from: Cell<Option<usize>>,
    /// It has changed again since that began.
    has_changed_again: Cell<bool>,
}

/// Which bytes of a stream an event carries, in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKey {
    /// Where it starts.
    pub start: u64,
    /// Most stored bytes in it.
    pub bytes_max: u64,
    /// How it is written.
    pub framing: Framing,
}

/// An encoded data event that all readers at one offset share.
#[derive(Clone, Debug)]
pub struct SharedEvent {
    /// What it answers.
    pub key: EventKey,
    /// The offset after it.
    pub end: u64,
    /// The tail it was encoded at.
    pub tail: u64,
    /// Whether the stream was closed at that tail.
    pub closed: bool,
    /// The event's text; empty when there was nothing to say.
    pub text: Bytes,
}

impl Hub {
    /// Adds a reader of the stream that `watch` watches and shard `owner` owns.
    #[must_use]
    pub fn join(self: &Rc<Self>, watch: Arc<Watch>, owner: usize) -> Reader {
        let incarnation = watch.incarnation();
        let stream = self
            .streams
            .borrow_mut()
            .entry(incarnation)
            .or_insert_with(|| {
                Rc::new(LiveStream {
                    watch,
                    owner,
                    hub: Rc::downgrade(self),
                    readers: RefCell::default(),
                    has_crowd: Cell::new(false),
                    is_queued: Cell::new(false),
                    event: RefCell::default(),
                    fetching: Cell::new(None),
                    fetch_waiters: RefCell::default(),
                    wake_from: Cell::new(None),
                    has_changed_again: Cell::new(false),
                })
            })
            .clone();
        let id = stream.readers.borrow_mut().insert(None);
        self.readers.set(self.readers.get().saturating_add(1));
        Reader { stream, id }
    }

    /// A wake-up has arrived: everybody who waits on this stream looks again, some of very many after
    /// others have had their turn.
    pub fn wake(&self, watch: &Watch) {
        watch.wake_arrived();
        let stream = self.streams.borrow().get(&watch.incarnation()).cloned();
        if let Some(stream) = stream {
            if stream.wake_from.get().is_some() {
                stream.has_changed_again.set(true);
            } else {
                self.wake_from(stream.clone(), 0);
            }
            if stream.has_crowd.get() {
                self.queue_crowd(&stream);
            }
        }
    }

    fn wake_from(&self, stream: Rc<LiveStream>, from: usize) {
        let mut next = stream.wake_some(from);
        if next.is_none() && stream.has_changed_again.take() {
            next = Some(0);
        }
        stream.wake_from.set(next);
        if next.is_none() {
            return;
        }
        self.wakes.borrow_mut().push_back(stream);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes some of the readers that are yet to be woken: one turn.
    pub fn poll_wakes(&self, cx: &Context<'_>) -> Poll<()> {
        let Some(stream) = self.wakes.borrow_mut().pop_front() else {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let from = stream.wake_from.take().unwrap_or(0);
        self.wake_from(stream, from);
        Poll::Ready(())
    }

    /// Queues `stream` for who serves its crowd, behind the others.
    pub fn queue_crowd(&self, stream: &Rc<LiveStream>) {
        if stream.is_queued.replace(true) {
            return;
        }
        self.crowds.borrow_mut().push_back(stream.clone());
        let server = self.server.borrow_mut().take();
        if let Some(server) = server {
            server.wake();
        }
    }

    /// The next stream whose crowd is to be looked after. A change from now on queues it again.
    pub fn poll_crowd(&self, cx: &Context<'_>) -> Poll<Rc<LiveStream>> {
        let Some(stream) = self.crowds.borrow_mut().pop_front() else {
            *self.server.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        };
        stream.is_queued.set(false);
        Poll::Ready(stream)
    }

    /// Wakes every reader of every stream: the server is shutting down.
    pub fn wake_all(&self) {
        let streams: Vec<_> = self.streams.borrow().values().cloned().collect();
        for stream in streams {
            stream.wake_all();
        }
    }

    /// Drops the encoded events that are kept so that readers at one offset share them. Those that
    /// are being sent stay with whom they are sent to.
    pub fn forget_events(&self) {
        for stream in self.streams.borrow().values() {
            stream.event.take();
        }
    }

    /// Live readers on this core.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers.get()
    }
}

impl LiveStream {
    /// Whether changes of this stream queue it for who serves its crowd.
    pub fn set_crowd(&self, has_crowd: bool) {
        self.has_crowd.set(has_crowd);
    }

    fn wake_all(&self) {
        for (_, waker) in self.readers.borrow_mut().iter_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Wakes some readers from index `from` on; where to go on.
    fn wake_some(&self, from: usize) -> Option<usize> {
        let mut readers = self.readers.borrow_mut();
        let end = readers.capacity();
        let last = from.saturating_add(LOOKS_PER_TURN).min(end);
        let mut left = WAKES_PER_TURN;
        for index in from..last {
            if left == 0 {
                return Some(index);
            }
            if let Some(waker) = readers.get_mut(index).and_then(Option::take) {
                left = left.saturating_sub(1);
                waker.wake();
            }
        }
        (last < end).then_some(last)
    }

    /// The shared event for `key`, if it is still the newest there can be for it.
    #[must_use]
    pub fn shared_event(&self, key: EventKey) -> Option<SharedEvent> {
        let event = self.event.borrow();
        let event = event.as_ref().filter(|event| event.key == key)?;
        let is_newest = match self.watch.state() {
            Watched::Open { tail } => tail == event.tail && !event.closed,
            Watched::Closed { tail } => tail == event.tail && event.closed,
            Watched::Gone => false,
        };
        // An event that its size cut short stays right however the tail moves; one that only waits
        // for the rest of a character does not.
        let is_full = event.end < event.tail && event.end > event.key.start;
        (is_newest || is_full).then(|| event.clone())
    }

    /// Claims the fetch of `key`; false while another reader's fetch of it is under way.
    pub fn claim_fetch(&self, key: EventKey) -> bool {
        if self.fetching.get() == Some(key) {
            return false;
        }
        self.fetching.set(Some(key));
        true
    }

    /// Ends a claimed fetch, with what it brought.
    pub fn end_fetch(&self, key: EventKey, event: Option<SharedEvent>) {
        if self.fetching.get() == Some(key) {
            self.fetching.set(None);
        }
        if event.is_some() {
            *self.event.borrow_mut() = event;
        }
        let waiters = self.fetch_waiters.take();
        let mut readers = self.readers.borrow_mut();
        for id in waiters {
            if let Some(waker) = readers.get_mut(id).and_then(Option::take) {
                waker.wake();
            }
        }
    }
}

/// One live reader; dropping it ends its watch.
#[derive(Debug)]
pub struct Reader {
    /// The stream it reads.
    pub stream: Rc<LiveStream>,
    id: usize,
}

impl Reader {
    /// Leaves `waker` to be woken by the next change.
    pub fn wake_on_change(&self, waker: &Waker) {
        if let Some(slot) = self.stream.readers.borrow_mut().get_mut(self.id) {
            match slot {
                Some(known) if known.will_wake(waker) => {}
                _ => *slot = Some(waker.clone()),
            }
        }
    }

    /// The same, and by the end of a fetch, whoever's.
    pub fn wake_on_fetch(&self, waker: &Waker) {
        self.wake_on_change(waker);
        self.stream.fetch_waiters.borrow_mut().push(self.id);
    }

    /// Takes the waker back: somebody else looks after this reader.
    pub fn wake_never(&self) {
        let waker = match self.stream.readers.borrow_mut().get_mut(self.id) {
            Some(slot) => slot.take(),
            None => None,
        };
        // It may be the last reference to a task that is a reader: dropped after the borrow.
        drop(waker);
    }

    /// When the last change became readable that readers were woken for; see [`Watch::stamp`].
    #[must_use]
    pub fn published_ns(&self) -> u64 {
        self.stream.watch.published_ns()
    }

    /// Ready once the stream is no longer open with its tail at `seen`.
    pub fn poll_changed(&self, seen: u64, waker: &Waker) -> Poll<Watched> {
        self.wake_on_change(waker);
        match self.stream.watch.state() {
            Watched::Open { tail } if tail == seen => Poll::Pending,
            state => Poll::Ready(state),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.stream.readers.borrow_mut();
        if readers.contains(self.id) {
            readers.remove(self.id);
        }
        let Some(hub) = self.stream.hub.upgrade() else {
            return;
        };
        hub.readers.set(hub.readers.get().saturating_sub(1));
        if readers.is_empty() {
            let incarnation = self.stream.watch.incarnation();
            hub.streams.borrow_mut().remove(&incarnation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{content_type::Kind, stream_key::Surface},
        shard::live::Watchers,
    };
    use std::{
        sync::atomic::Ordering,
        task::{Context, Wake},
    };

    struct Count(std::sync::atomic::AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counter() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(0.into()));
        (count.clone(), Waker::from(count))
    }

    #[test]
    fn a_core_counts_its_readers_and_is_forgotten_with_the_last() {
        let mut watchers = Watchers::default();
        let first = watchers.register(Watch::new(1), Incarnation(9), Watched::Open { tail: 0 });
        let again = watchers.register(Watch::new(1), Incarnation(9), Watched::Open { tail: 0 });
        assert!(Arc::ptr_eq(&first, &again));
        watchers.unregister(1);
        assert!(!watchers.is_empty());
        watchers.unregister(1);
        assert!(watchers.is_empty());
        watchers.unregister(1);
    }

    #[test]
    fn a_stream_with_a_crowd_is_queued_once_until_it_is_looked_after() {
        let hub = Rc::new(Hub::default());
        let mut watchers = Watchers::default();
        let watch = watchers.register(Watch::new(0), Incarnation(9), Watched::Open { tail: 5 });
        let reader = hub.join(watch.clone(), 0);
        let (count, waker) = counter();
        let context = Context::from_waker(&waker);
        hub.wake(&watch);
        assert!(hub.poll_crowd(&context).is_pending());
        reader.stream.set_crowd(true);
        hub.wake(&watch);
        hub.wake(&watch);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(hub.poll_crowd(&context).is_ready());
        assert!(hub.poll_crowd(&context).is_pending());
        hub.wake(&watch);
        assert!(hub.poll_crowd(&context).is_ready());
        // A reader that somebody else looks after is not woken itself.
        let (count, waker) = counter();
        reader.wake_on_change(&waker);
        reader.wake_never();
        hub.wake(&watch);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn of_very_many_readers_some_are_woken_in_each_turn_and_all_in_the_end() {
        const READERS: usize = 10 * WAKES_PER_TURN;
        let hub = Rc::new(Hub::default());
        let mut watchers = Watchers::default();
        let watch = watchers.register(Watch::new(0), Incarnation(9), Watched::Open { tail: 5 });
        let readers: Vec<_> = (0..READERS).map(|_| hub.join(watch.clone(), 0)).collect();
        let (count, waker) = counter();
        let (server, server_waker) = counter();
        let context = Context::from_waker(&server_waker);
        let wait = |from: usize| {
            for reader in readers.iter().skip(from) {
                reader.wake_on_change(&waker);
            }
        };
        let woken = || count.0.swap(0, Ordering::Relaxed);
        wait(0);
        assert!(hub.poll_wakes(&context).is_pending());
        hub.wake(&watch);
        assert_eq!(server.0.load(Ordering::Relaxed), 1);
        assert_eq!(woken(), WAKES_PER_TURN);
        // The first of them wait again, and the stream changes again.
        wait(0);
        hub.wake(&watch);
        assert_eq!(woken(), 0);
        let mut all = 0;
        for _ in 0..9 {
            assert!(hub.poll_wakes(&context).is_ready());
            let now = woken();
            assert!(now <= WAKES_PER_TURN);
            all += now;
        }
        assert_eq!(all, READERS - WAKES_PER_TURN, "nobody is passed over");
        while hub.poll_wakes(&context).is_ready() {
            all += woken();
        }
        assert_eq!(all, READERS);
        assert!(hub.wakes.borrow().is_empty());
    }

    #[test]
    fn the_end_of_a_fetch_wakes_who_waits_for_one() {
        let hub = Rc::new(Hub::default());
        let mut watchers = Watchers::default();
        let watch = watchers.register(Watch::new(0), Incarnation(9), Watched::Open { tail: 5 });
        let [waits, works] = [(); 2].map(|()| hub.join(watch.clone(), 0));
        let [waiting, working] = [(); 2].map(|()| counter());
        works.wake_on_change(&working.1);
        waits.wake_on_fetch(&waiting.1);
        let key = EventKey {
            start: 0,
            bytes_max: 1,
            framing: Framing::of(Kind::Binary, Surface::Bucket),
        };
        waits.stream.end_fetch(key, None);
        waits.stream.end_fetch(key, None);
        let count = |counter: &Arc<Count>| counter.0.load(Ordering::Relaxed);
        assert_eq!((count(&waiting.0), count(&working.0)), (1, 0));
        hub.wake(&watch);
        assert_eq!((count(&waiting.0), count(&working.0)), (1, 1));
    }

    #[test]
    fn a_reader_sees_changes_made_before_and_after_it_waits() {
        let hub = Rc::new(Hub::default());
        let mut watchers = Watchers::default();
        let watch = watchers.register(Watch::new(0), Incarnation(9), Watched::Open { tail: 5 });
        let reader = hub.join(watch.clone(), 0);
        let (count, waker) = counter();
        let mut context = Context::from_waker(&waker);
        assert!(reader.poll_changed(5, context.waker()).is_pending());
        for watch in watchers.publish(Watched::Open { tail: 6 }) {
            hub.wake(watch);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(
            reader.poll_changed(5, context.waker()),
            Poll::Ready(Watched::Open { tail: 6 })
        );
        assert_eq!(hub.readers(), 1);
        drop(reader);
        assert_eq!(hub.readers(), 0);
        let _ = &mut context;
    }
}
