//! Mailboxes between cores: how a request reaches another core's shard, and
//! how its answer comes back.
//!
//! Every core has one mailbox that all others put messages in. It needs no
//! bound of its own, because what can be in it is bounded where it is sent: a
//! core has at most `mailbox_requests_max` requests at another one, each
//! reserving the slot for its answer when it is sent (so answers never wait
//! for room); and a wake-up is sent at most once per watch until it has
//! arrived. A core that may send no more refuses the request itself (503).
//!
//! The receiver is not woken by each message but by the sender's bell
//! ([`Desk::ring`]), once its ready tasks have all had their turn: what they sent
//! is then handled together, and shares one commit.
//! What crosses is moved, or shared and immutable.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use atomic_waker::AtomicWaker;
use crossbeam::queue::SegQueue;
use slab::Slab;

use crate::{
    protocol::error::Refusal,
    shard::{
        hub::Hub,
        live::Watch,
        owner::Shard,
        request::{BatchNumber, Reply, Request},
        trip::Trip,
    },
    storage::journal::BatchTimes,
};

/// The mailboxes of all cores.
#[derive(Debug)]
pub struct Post {
    boxes: Box<[Mailbox]>,
}

#[derive(Debug, Default)]
struct Mailbox {
    messages: SegQueue<Message>,
    receiver: AtomicWaker,
}

#[derive(Debug)]
enum Message {
    /// Carry this out and answer to slot `slot` of core `from`.
    Request {
        from: usize,
        slot: usize,
        request: Request,
    },
    /// Carry this out; nobody waits.
    Notice(Request),
    /// The answer for `slot`.
    Answer {
        slot: usize,
        outcome: Result<Reply, Refusal>,
        trip: Trip,
    },
    /// Readers on the receiving core look again.
    Wake(Arc<Watch>),
}

impl Post {
    /// Mailboxes for `cores` cores.
    #[must_use]
    pub fn new(cores: usize) -> Arc<Self> {
        Arc::new(Self {
            boxes: (0..cores).map(|_| Mailbox::default()).collect(),
        })
    }

    /// Wakes a core that waits for messages: something it polls for has changed.
    pub fn nudge(&self, core: usize) {
        if let Some(mailbox) = self.boxes.get(core) {
            mailbox.receiver.wake();
        }
    }
}

/// One core's end of the post.
#[derive(Debug)]
pub struct Desk {
    core: usize,
    post: Arc<Post>,
    slots: RefCell<Slab<Slot>>,
    outstanding: Box<[Cell<usize>]>,
    outstanding_max: usize,
    deferred: RefCell<VecDeque<Deferred>>,
    bell: RefCell<Bell>,
}

/// Which cores are to be told of messages.
#[derive(Debug, Default)]
struct Bell {
    cores: Vec<usize>,
    ringer: Option<Waker>,
}

#[derive(Debug)]
enum Slot {
    Waiting {
        to: usize,
        waker: Option<Waker>,
    },
    Answered {
        to: usize,
        outcome: Result<Reply, Refusal>,
        trip: Trip,
    },
    Abandoned {
        to: usize,
    },
}

/// An answer that waits for its batch.
#[derive(Debug)]
struct Deferred {
    after: BatchNumber,
    to: usize,
    slot: usize,
    outcome: Result<Reply, Refusal>,
    trip: Trip,
}

impl Desk {
    /// The end of core `core`, with at most `outstanding_max` requests at each other core.
    #[must_use]
    pub fn new(core: usize, post: Arc<Post>, outstanding_max: usize) -> Rc<Self> {
        let outstanding = post.boxes.iter().map(|_| Cell::new(0)).collect();
        Rc::new(Self {
            core,
            post,
            slots: RefCell::default(),
            outstanding,
            outstanding_max,
            deferred: RefCell::default(),
            bell: RefCell::default(),
        })
    }

    fn put(&self, core: usize, message: Message) {
        let Some(mailbox) = self.post.boxes.get(core) else {
            return;
        };
        mailbox.messages.push(message);
        let mut bell = self.bell.borrow_mut();
        if !bell.cores.contains(&core) {
            bell.cores.push(core);
        }
        let ringer = bell.ringer.take();
        drop(bell);
        if let Some(ringer) = ringer {
            ringer.wake();
        }
    }

    /// Tells the other cores of messages, for ever. A task of its own: the first message makes it
    /// ready behind all tasks that are so already.
    pub async fn ring(&self) {
        poll_fn::<(), _>(|cx| {
            let mut bell = self.bell.borrow_mut();
            for core in bell.cores.drain(..) {
                self.post.nudge(core);
            }
            bell.ringer = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Sends a request to core `to`.
    ///
    /// # Errors
    /// [`Refusal::MailboxFull`] when as many as may be wait there already.
    pub fn send(self: &Rc<Self>, to: usize, request: Request) -> Result<PendingReply, Refusal> {
        let outstanding = self.outstanding.get(to).ok_or(Refusal::Internal)?;
        if outstanding.get() >= self.outstanding_max {
            return Err(Refusal::MailboxFull);
        }
        outstanding.set(outstanding.get().saturating_add(1));
        let slot = self
            .slots
            .borrow_mut()
            .insert(Slot::Waiting { to, waker: None });
        let from = self.core;
        self.put(
            to,
            Message::Request {
                from,
                slot,
                request,
            },
        );
        Ok(PendingReply {
            desk: self.clone(),
            slot: Some(slot),
            trip: Trip::default(),
        })
    }

    /// Sends a request that nobody waits for.
    pub fn notify(&self, to: usize, request: Request) {
        self.put(to, Message::Notice(request));
    }

    /// Sends a wake-up to the readers' core.
    pub fn wake(&self, watch: &Arc<Watch>) {
        self.put(watch.core, Message::Wake(watch.clone()));
    }

    /// Leaves `waker` to be woken by the next message.
    pub fn wake_on_message(&self, waker: &Waker) {
        if let Some(mailbox) = self.post.boxes.get(self.core) {
            mailbox.receiver.register(waker);
        }
    }

    /// Handles at most `messages_max` messages; true when there was at least one.
    pub fn handle(&self, shard: &Shard, hub: &Hub, messages_max: usize) -> bool {
        let Some(mailbox) = self.post.boxes.get(self.core) else {
            return false;
        };
        for handled in 0..messages_max {
            let Some(message) = mailbox.messages.pop() else {
                return handled > 0;
            };
            match message {
                Message::Request {
                    from,
                    slot,
                    request,
                } => {
                    let received_ns = shard.clock.monotonic_ns();
                    let staged = shard.execute(request);
                    let trip = Trip {
                        received_ns,
                        ..Trip::local(shard.clock.monotonic_ns())
                    };
                    if shard.is_durable(staged.after) {
                        self.answer(from, slot, staged.outcome, trip);
                    } else if shard.has_failed() {
                        self.answer(from, slot, Err(Refusal::OutcomeUnknown), trip);
                    } else {
                        self.defer(staged.after, from, slot, staged.outcome, trip);
                    }
                }
                Message::Notice(request) => {
                    // Nobody waits: what it changes is journaled, what it reports is not asked for.
                    let _ = shard.execute(request).outcome;
                }
                Message::Answer {
                    slot,
                    outcome,
                    trip,
                } => {
                    let trip = trip.returned(shard.clock.monotonic_ns());
                    self.take_answer(slot, outcome, trip);
                }
                Message::Wake(watch) => hub.wake(&watch),
            }
        }
        true
    }

    fn answer(&self, to: usize, slot: usize, outcome: Result<Reply, Refusal>, trip: Trip) {
        self.put(
            to,
            Message::Answer {
                slot,
                outcome,
                trip,
            },
        );
    }

    fn defer(
        &self,
        after: BatchNumber,
        to: usize,
        slot: usize,
        outcome: Result<Reply, Refusal>,
        trip: Trip,
    ) {
        let mut deferred = self.deferred.borrow_mut();
        // Kept in batch order: an answer that needs an older batch than the one before it waits
        // for that one too, which costs at most one commit.
        let after = deferred.back().map_or(after, |last| last.after.max(after));
        deferred.push_back(Deferred {
            after,
            to,
            slot,
            outcome,
            trip,
        });
    }

    /// Sends the answers that waited for batches up to `durable`, the last of which had `times`.
    pub fn on_durable(&self, durable: BatchNumber, times: BatchTimes) {
        let mut deferred = self.deferred.borrow_mut();
        while deferred.front().is_some_and(|first| first.after <= durable) {
            if let Some(first) = deferred.pop_front() {
                self.answer(
                    first.to,
                    first.slot,
                    first.outcome,
                    first.trip.committed(times),
                );
            }
        }
    }

    /// The journal has failed: whoever waits learns that the outcome is unknown.
    pub fn on_failed(&self) {
        for waiting in self.deferred.borrow_mut().drain(..) {
            self.answer(
                waiting.to,
                waiting.slot,
                Err(Refusal::OutcomeUnknown),
                waiting.trip,
            );
        }
    }

    fn take_answer(&self, slot: usize, outcome: Result<Reply, Refusal>, trip: Trip) {
        let mut slots = self.slots.borrow_mut();
        let Some(entry) = slots.get_mut(slot) else {
            return;
        };
        let (to, waker) = match entry {
            Slot::Waiting { to, waker } => (*to, waker.take()),
            Slot::Abandoned { to } => {
                let to = *to;
                slots.remove(slot);
                drop(slots);
                self.abandon(outcome, to);
                self.returned(to);
                return;
            }
            Slot::Answered { .. } => return,
        };
        *entry = Slot::Answered { to, outcome, trip };
        drop(slots);
        self.returned(to);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// An answer that nobody waits for any more: what it holds at the owner is given back.
    fn abandon(&self, outcome: Result<Reply, Refusal>, owner: usize) {
        if let Ok(Reply::Watching(watching)) = outcome {
            self.notify(
                owner,
                Request::Leave {
                    incarnation: watching.extent.incarnation,
                    core: self.core,
                },
            );
        }
    }

    fn returned(&self, to: usize) {
        if let Some(outstanding) = self.outstanding.get(to) {
            outstanding.set(outstanding.get().saturating_sub(1));
        }
    }
}

/// An answer to come. Dropping it abandons the answer, not the request.
#[derive(Debug)]
pub struct PendingReply {
    desk: Rc<Desk>,
    slot: Option<usize>,
    trip: Trip,
}

impl PendingReply {
    /// Once it is ready: the way it went.
    #[must_use]
    pub fn trip(&self) -> Trip {
        self.trip
    }
}

impl Future for PendingReply {
    type Output = Result<Reply, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else {
            return Poll::Ready(Err(Refusal::Internal));
        };
        let (outcome, trip) = {
            let mut slots = self.desk.slots.borrow_mut();
            match slots.get_mut(slot) {
                Some(Slot::Waiting { waker, .. }) => {
                    *waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Some(Slot::Answered { .. }) => match slots.remove(slot) {
                    Slot::Answered { outcome, trip, .. } => (outcome, trip),
                    _ => (Err(Refusal::Internal), Trip::default()),
                },
                _ => (Err(Refusal::Internal), Trip::default()),
            }
        };
        self.slot = None;
        self.trip = trip;
        Poll::Ready(outcome)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut slots = self.desk.slots.borrow_mut();
        let Some(entry) = slots.get_mut(slot) else {
            return;
        };
        match entry {
            Slot::Waiting { to, .. } => *entry = Slot::Abandoned { to: *to },
            Slot::Answered { .. } | Slot::Abandoned { .. } => {
                let entry = slots.remove(slot);
                drop(slots);
                if let Slot::Answered { to, outcome, .. } = entry {
                    self.desk.abandon(outcome, to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn messages_of_one_round_wake_their_receiver_once_and_after_it() {
        let post = Post::new(3);
        let [sender, receiver, other] = [0, 1, 2].map(|core| Desk::new(core, post.clone(), 8));
        let [ringer, woken, idle] = [(); 3].map(|()| Arc::new(Count::default()));
        let count = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        receiver.wake_on_message(&Waker::from(woken.clone()));
        other.wake_on_message(&Waker::from(idle.clone()));
        let waker = Waker::from(ringer.clone());
        let mut cx = Context::from_waker(&waker);
        let mut ring = pin!(sender.ring());
        // One sent before there is a bell is told of when there is.
        sender.notify(1, Request::Barrier);
        assert!(ring.as_mut().poll(&mut cx).is_pending());
        assert_eq!((count(&woken), count(&ringer)), (1, 0));
        receiver.wake_on_message(&Waker::from(woken.clone()));
        for _ in 0..3 {
            sender.notify(1, Request::Barrier);
        }
        assert_eq!((count(&woken), count(&ringer)), (1, 1));
        assert!(ring.as_mut().poll(&mut cx).is_pending());
        receiver.wake_on_message(&Waker::from(woken.clone()));
        assert!(ring.as_mut().poll(&mut cx).is_pending());
        assert_eq!((count(&woken), count(&ringer)), (2, 1));
        assert_eq!(count(&idle), 0);
    }
}
