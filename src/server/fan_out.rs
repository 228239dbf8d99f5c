//! Event streams that wait at the tail, served together.
//!
//! A reader's task that has written everything joins its stream's crowd on
//! this core and sleeps. What is appended then is fetched and encoded once for
//! all members at one offset, and sent to one socket after the other; nobody
//! is woken for it. One task of the core does this ([`run`]), in turns, so
//! that appends and other clients come between.
//!
//! A member gets what there is up to the tail of that moment: the longer a
//! round takes, the more appends are one event, and nobody is served again
//! before everybody was served once.
//!
//! Only the plain case is served here. Otherwise the member is let go, which
//! wakes its task: its socket takes less than the event (the task has the
//! rest, and the write timeout), or broke; the stream was closed or is gone;
//! the event cannot be had. What a crowd holds is one event for each offset
//! that members are at, at most [`EVENTS_MAX`], and nothing between rounds.

mod breath;
mod encoded;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    num::NonZeroU64,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_lite::future;
use glommio::timer::Timer;
use slab::Slab;
use smallvec::SmallVec;

use self::{breath::Breath, encoded::Encoded};
use crate::{
    protocol::{cursor, incarnation::Incarnation},
    server::{
        core::{Core, LiveReader},
        event_stream::{COPY_BYTES_MAX, Fetched, Shape, fetch},
        socket::Tap,
    },
    shard::{hub::LiveStream, live::Watched},
};

/// Sends in one turn.
const SENDS_PER_TURN: usize = 64;
/// How long the core is left to others once the [`Breath`] is out: its sockets and its disk, the threads of the
/// kernel that complete what it asked for, and receivers on the same machine. What is appended
/// meanwhile goes into the same events. Without it commits waited for a tick of the scheduler (4 ms),
/// and a crowd of 5,000 was slower, not faster, since each event carried less.
const REST: Duration = Duration::from_micros(30);
/// Bytes sent in one turn, give or take an event.
const BYTES_PER_TURN: usize = 512 * 1024;
/// Encoded events that a crowd keeps within a round.
const EVENTS_MAX: usize = 16;

/// The crowds of one core.
#[derive(Debug, Default)]
pub struct FanOut {
    crowds: RefCell<HashMap<Incarnation, Rc<Crowd>>>,
}

/// Who a reader is and how far.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// How its events are written.
    pub shape: Shape,
    /// The cursor that it came with.
    pub cursor: Option<NonZeroU64>,
    /// The offset after what was written.
    pub at: u64,
    /// The tail up to which there is nothing more to write.
    pub seen: u64,
    /// Whether `at` was the tail when that was written.
    pub up_to_date: bool,
    /// When something was last written, in nanoseconds of the monotonic clock.
    pub sent_ns: u64,
    /// The change that was last delivered; see [`Latency::delivered`](super::latency::Latency::delivered).
    pub delivered_ns: u64,
    /// When its event stream began, in tenths of a second of the monotonic clock.
    pub began_tenths: u32,
}

/// The part of an event that a socket did not take.
#[derive(Debug)]
pub struct Unsent {
    /// The bytes; `None` if there is no memory to keep them, so that the reader is dropped.
    pub bytes: Option<Bytes>,
    /// When what they carry became readable.
    pub published_ns: u64,
}

/// The members of one stream.
#[derive(Debug)]
struct Crowd {
    home: Rc<FanOut>,
    stream: Rc<LiveStream>,
    owner: usize,
    members: RefCell<Slab<Member>>,
    /// No member has this index or a higher one.
    slots: Cell<usize>,
    /// The member that is next to be looked at.
    hand: Cell<usize>,
    events: RefCell<Vec<Encoded>>,
    is_fetching: Cell<bool>,
}

#[derive(Debug)]
struct Member {
    tap: Tap,
    is_released: bool,
    standing: Standing,
    waker: Option<Waker>,
    unsent: Option<Box<Unsent>>,
}

/// What a turn came to.
enum Served {
    /// Everybody has everything.
    All,
    /// The turn is over.
    Some,
    /// This event is missing.
    Lacks(u64, Shape),
}

/// What is left of a turn.
struct Turn {
    sends: usize,
    bytes: usize,
}

/// A reader's place in a crowd, given up when dropped.
#[derive(Debug)]
pub struct Place {
    crowd: Rc<Crowd>,
    /// 32 bits do for what is bounded by the number of descriptors.
    index: u32,
    /// Whether it queues to be looked at, or is to be for the first time; for
    /// [`Turnstile::poll_let_in`](super::turnstile::Turnstile::poll_let_in).
    pub is_queued: bool,
}

impl FanOut {
    /// Takes `reader`, which writes through `tap`, into its stream's crowd. If there is more to write
    /// already it is queued.
    #[must_use]
    pub fn join(
        self: &Rc<Self>,
        core: &Core,
        reader: &LiveReader,
        tap: Tap,
        standing: Standing,
    ) -> Place {
        let stream = &reader.reader.stream;
        let incarnation = stream.watch.incarnation();
        let crowd = self
            .crowds
            .borrow_mut()
            .entry(incarnation)
            .or_insert_with(|| {
                stream.set_crowd(true);
                Rc::new(Crowd {
                    home: self.clone(),
                    stream: stream.clone(),
                    owner: stream.owner,
                    members: RefCell::default(),
                    slots: Cell::new(0),
                    hand: Cell::new(0),
                    events: RefCell::default(),
                    is_fetching: Cell::new(false),
                })
            })
            .clone();
        let index = crowd.members.borrow_mut().insert(Member {
            tap,
            is_released: false,
            standing,
            waker: None,
            unsent: None,
        });
        let slots = index.saturating_add(1);
        crowd.slots.set(crowd.slots.get().max(slots));
        let seen = Watched::Open {
            tail: standing.seen,
        };
        if stream.watch.state() != seen {
            core.hub.queue_crowd(stream);
        }
        Place {
            crowd,
            index: u32::try_from(index).unwrap_or(u32::MAX),
            is_queued: true,
        }
    }

    fn crowd_of(&self, stream: &LiveStream) -> Option<Rc<Crowd>> {
        let crowds = self.crowds.borrow();
        crowds.get(&stream.watch.incarnation()).cloned()
    }
}

impl Place {
    fn index(&self) -> usize {
        self.index as usize
    }

    /// Ready once it was let go; until then leaves `waker` for that.
    pub fn poll_released(&self, waker: &Waker) -> Poll<()> {
        let mut members = self.crowd.members.borrow_mut();
        match members.get_mut(self.index()) {
            Some(member) if !member.is_released => {
                match &member.waker {
                    Some(known) if known.will_wake(waker) => {}
                    _ => member.waker = Some(waker.clone()),
                }
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// How far it is, and when something was last written to it.
    #[must_use]
    pub fn standing(&self) -> Option<Standing> {
        let members = self.crowd.members.borrow();
        let member = members.get(self.index());
        member.map(|member| member.standing)
    }

    /// Gives the place up: how far it came, and what its socket has yet to take.
    #[must_use]
    pub fn leave(self) -> Option<(Standing, Option<Box<Unsent>>)> {
        let mut members = self.crowd.members.borrow_mut();
        let member = members.get_mut(self.index())?;
        Some((member.standing, member.unsent.take()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut members = self.crowd.members.borrow_mut();
        let member = members.try_remove(self.index());
        let mut slots = self.crowd.slots.get();
        while slots > 0 && !members.contains(slots.saturating_sub(1)) {
            slots = slots.saturating_sub(1);
        }
        self.crowd.slots.set(slots);
        // What was once a great crowd is not walked, nor paid for, for ever.
        if slots < members.capacity() / 4 {
            members.shrink_to_fit();
        }
        if members.is_empty() {
            self.crowd.stream.set_crowd(false);
            let mut crowds = self.crowd.home.crowds.borrow_mut();
            crowds.remove(&self.crowd.stream.watch.incarnation());
        }
        drop(members);
        // Its waker may hold the last reference to a task with a place: dropped after the borrow.
        drop(member);
    }
}

/// Serves the crowds of a core, for ever.
pub async fn run(core: Rc<Core>) {
    let mut breath = Breath::default();
    loop {
        let stream = poll_fn(|cx| core.hub.poll_crowd(cx)).await;
        // Whoever waits for the append itself, or for its turn, goes first.
        future::yield_now().await;
        let began_ns = core.clock.monotonic_ns();
        if let Some(crowd) = core.fan_out.crowd_of(&stream)
            && crowd.turn(&core).await
        {
            core.hub.queue_crowd(&stream);
        }
        if breath.is_out(began_ns, core.clock.monotonic_ns()) {
            Timer::new(REST).await;
        }
    }
}

impl Crowd {
    /// One turn; whether another is due.
    async fn turn(self: &Rc<Self>, core: &Rc<Core>) -> bool {
        if self.is_fetching.get() {
            return false;
        }
        let Watched::Open { tail } = self.stream.watch.state() else {
            self.release(|_| true);
            return false;
        };
        self.events.borrow_mut().retain(|event| {
            let is_full = event.end < event.tail && event.end > event.start;
            event.tail == tail || is_full || event.is_awaited.take()
        });
        let mut turn = Turn {
            sends: SENDS_PER_TURN,
            bytes: BYTES_PER_TURN,
        };
        loop {
            match self.serve(core, tail, &mut turn) {
                Served::All => {
                    self.events.borrow_mut().clear();
                    return false;
                }
                Served::Some => return true,
                Served::Lacks(start, shape) => {
                    let (asking, owner) = (core.clone(), self.owner);
                    let incarnation = self.stream.watch.incarnation();
                    let mut fetching =
                        Box::pin(
                            async move { fetch(&asking, owner, incarnation, shape, start).await },
                        );
                    if let Some(fetched) = future::poll_once(&mut fetching).await {
                        self.fetched(core, start, shape, fetched.ok(), false);
                        continue;
                    }
                    // Another core's, or on the disk: the other streams go on.
                    self.is_fetching.set(true);
                    let (crowd, core) = (self.clone(), core.clone());
                    glommio::spawn_local(async move {
                        let fetched = fetching.await;
                        crowd.is_fetching.set(false);
                        crowd.fetched(&core, start, shape, fetched.ok(), true);
                        core.hub.queue_crowd(&crowd.stream);
                    })
                    .detach();
                    return false;
                }
            }
        }
    }

    /// The event at `start` is there, or cannot be had: then its readers ask for themselves.
    fn fetched(
        &self,
        core: &Core,
        start: u64,
        shape: Shape,
        fetched: Option<Fetched>,
        is_awaited: bool,
    ) {
        match fetched.filter(|fetched| !fetched.closed) {
            Some(fetched) => {
                let interval = cursor::interval(core.clock.now_ms());
                let event = Encoded::new(fetched, start, shape, interval, is_awaited);
                let mut events = self.events.borrow_mut();
                if events.len() >= EVENTS_MAX {
                    events.remove(0);
                }
                events.push(event);
            }
            None => {
                self.release(|member| {
                    member.standing.at == start && member.standing.shape == shape
                });
            }
        }
    }

    /// Sends to members that lack something, up to `tail`, from where the last turn ended.
    fn serve(&self, core: &Core, tail: u64, turn: &mut Turn) -> Served {
        let published_ns = self.stream.watch.published_ns();
        let now_ns = core.clock.monotonic_ns();
        let interval = cursor::interval(core.clock.now_ms());
        let events = self.events.borrow();
        let mut members = self.members.borrow_mut();
        let mut released: SmallVec<[Waker; 8]> = SmallVec::new();
        let (mut delivered, mut bytes) = (0u64, 0usize);
        let mut own = Vec::new();
        let slots = self.slots.get();
        let mut passed = 0usize;
        let served = loop {
            if passed >= slots {
                break Served::All;
            }
            let index = if self.hand.get() < slots {
                self.hand.get()
            } else {
                0
            };
            let member = members.get_mut(index);
            let Some(member) = member.filter(|member| member.is_behind(tail)) else {
                passed = passed.saturating_add(1);
                self.hand.set(index.saturating_add(1));
                continue;
            };
            if turn.sends == 0 || turn.bytes == 0 {
                break Served::Some;
            }
            let Standing { at, shape, .. } = member.standing;
            let event = events.iter().rev();
            let event = event
                .filter(|event| event.start == at)
                .find(|event| event.shape == shape);
            let Some(event) = event else {
                break Served::Lacks(at, shape);
            };
            passed = 0;
            self.hand.set(index.saturating_add(1));
            turn.sends = turn.sends.saturating_sub(1);
            if event.end == at {
                // Only the start of a character: it waits for the rest.
                member.standing.seen = event.tail.max(tail);
                continue;
            }
            let cursor = member.standing.cursor.map(NonZeroU64::get);
            let is_shared = cursor.is_none_or(|client| client < interval);
            if !is_shared && event.data.len() > COPY_BYTES_MAX {
                member.release(&mut released);
                continue;
            }
            let text = if is_shared {
                &event.whole
            } else {
                event.with_cursor(core.cursor(cursor), &mut own);
                own.as_slice()
            };
            let Ok(sent) = member.tap.send(text) else {
                member.release(&mut released);
                continue;
            };
            bytes = bytes.saturating_add(sent);
            turn.bytes = turn.bytes.saturating_sub(text.len());
            member.standing.at = event.end;
            member.standing.seen = event.end;
            member.standing.up_to_date = event.end == event.tail;
            member.standing.sent_ns = now_ns;
            if sent < text.len() {
                let bytes = if is_shared {
                    Some(event.whole.slice(sent..))
                } else {
                    let rest = text.get(sent..).unwrap_or_default().to_vec();
                    let mut charge = core.unsent.charge();
                    charge.keep(rest.len()).ok().map(|()| charge.with(rest))
                };
                member.unsent = Some(Box::new(Unsent {
                    bytes,
                    published_ns,
                }));
                member.release(&mut released);
            } else {
                delivered = delivered.saturating_add(1);
                let seen_ns = &mut member.standing.delivered_ns;
                core.latency.delivered(published_ns, seen_ns);
            }
        };
        drop((members, events));
        core.seats.sent(bytes);
        core.metrics.sse_events_total.count(delivered);
        released.into_iter().for_each(Waker::wake);
        served
    }

    /// Lets the members go that `whom` names.
    fn release(&self, whom: impl Fn(&Member) -> bool) {
        let mut released: SmallVec<[Waker; 8]> = SmallVec::new();
        for (_, member) in self.members.borrow_mut().iter_mut() {
            if whom(member) {
                member.release(&mut released);
            }
        }
        released.into_iter().for_each(Waker::wake);
    }
}

impl Member {
    fn is_behind(&self, tail: u64) -> bool {
        self.standing.seen < tail && !self.is_released
    }

    /// Lets it go; its task is woken after the members are no longer borrowed.
    fn release(&mut self, wakers: &mut SmallVec<[Waker; 8]>) {
        self.is_released = true;
        wakers.extend(self.waker.take());
    }
}
