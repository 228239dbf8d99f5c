//! Where connections queue that have more requests at hand than their share,
//! or a piece of a large answer to write: one of them goes on each time the
//! core has been round its ready tasks, so that however many there are,
//! everybody else waits for one share, not for one share of each.
//!
//! There is a queue for each [`Share`]: somebody who had to wait, and now has a
//! few more requests at hand than usual, does not queue behind hundreds who
//! never have less.
//!
//! When very many connections are woken at once, whatever for, most of those
//! that seldom wait for their clients queue, too, before they do anything
//! ([`Turnstile::run`]). An executor runs what is ready in the order in which it
//! became so: the journal, and whoever waits for it, would come after all of
//! them. Measured with 5,000 floods: a commit waited up to 270 ms.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    task::{Poll, Waker},
    time::Instant,
};

use crate::base::limits::{
    ARRIVALS_AT_ONCE_MAX, ARRIVALS_WINDOW, CROWD, CROWDED_PIECE_BYTES, CROWDED_READ_BYTES,
    PIECE_BYTES, PREFERRED_PER_WAIT, PREFERRED_REQUESTS_MAX, REQUESTS_PER_TURN,
};

/// What somebody waits to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// More requests, of one that often waited for its client.
    Requests,
    /// More requests, of one that hardly ever did.
    ManyRequests,
    /// A piece of a large answer.
    Piece,
    /// Whatever comes next, of one that seldom waited for its client and was woken with many.
    First,
}

const SHARES: usize = 4;
/// Whose turn it is, if somebody waits for it: none of them for ever.
const ORDER: [Share; 8] = [
    Share::Requests,
    Share::Requests,
    Share::First,
    Share::ManyRequests,
    Share::Requests,
    Share::Requests,
    Share::First,
    Share::Piece,
];

/// The queues of one core.
#[derive(Debug)]
pub struct Turnstile {
    queues: RefCell<[VecDeque<Rc<Gate>>; SHARES]>,
    /// Where in [`ORDER`] it is.
    hand: Cell<usize>,
    keeper: RefCell<Option<Waker>>,
    /// When the present window of arrivals began, and how many came in since.
    window: Cell<(Instant, u32)>,
}

impl Default for Turnstile {
    fn default() -> Self {
        Self {
            queues: RefCell::default(),
            hand: Cell::default(),
            keeper: RefCell::default(),
            window: Cell::new((Instant::now(), 0)),
        }
    }
}

/// One connection's place at the turnstile.
#[derive(Debug, Default)]
pub struct Gate {
    place: Cell<Place>,
    waker: RefCell<Option<Waker>>,
    /// Requests at hand that come before those of others who never wait for their client.
    preferred: Cell<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Free,
    Queued,
    Called,
}

impl Gate {
    /// The connection has waited for its client, and so earned some requests.
    pub fn waited(&self) {
        let preferred = self.preferred.get().saturating_add(PREFERRED_PER_WAIT);
        self.preferred.set(preferred.min(PREFERRED_REQUESTS_MAX));
    }

    /// Which share its next requests are.
    pub fn next_share(&self) -> Share {
        match self.preferred.get().checked_sub(REQUESTS_PER_TURN) {
            Some(left) => {
                self.preferred.set(left);
                Share::Requests
            }
            None => Share::ManyRequests,
        }
    }

    fn is_preferred(&self) -> bool {
        self.preferred.get() >= REQUESTS_PER_TURN
    }

    fn set_waker(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    fn call(&self) {
        self.place.set(Place::Called);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Turnstile {
    /// Waits for somebody's turn who is no connection.
    pub async fn pass(&self, share: Share) {
        self.pass_at(&Rc::default(), share).await;
    }

    /// Waits for the turn of the connection with this gate.
    pub async fn pass_at(&self, gate: &Rc<Gate>, share: Share) {
        self.queue(gate, share);
        poll_fn(|cx| {
            if gate.place.get() == Place::Called {
                gate.place.set(Place::Free);
                return Poll::Ready(());
            }
            gate.set_waker(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Runs all of a connection's `work`. Of those that are woken with very many, each queues before
    /// it goes on, unless it is preferred; none does any more once `is_over`. It is in place: moved in,
    /// it would be in memory twice.
    pub fn run<F: Future>(
        &self,
        gate: &Rc<Gate>,
        is_over: impl Fn() -> bool,
        mut work: Pin<&mut F>,
    ) -> impl Future<Output = F::Output> {
        // Here, not in its work.
        let mut is_queued = false;
        poll_fn(move |cx| {
            let must_wait = match gate.place.get() {
                Place::Queued => is_queued,
                Place::Free => !gate.is_preferred() && !self.has_room(Instant::now()),
                Place::Called => false,
            };
            if must_wait && !is_over() {
                if !std::mem::replace(&mut is_queued, true) {
                    self.queue(gate, Share::First);
                }
                gate.set_waker(cx.waker());
                return Poll::Pending;
            }
            if std::mem::take(&mut is_queued) {
                gate.place.set(Place::Free);
            }
            work.as_mut().poll(cx)
        })
    }

    /// Whether somebody who waited, perhaps for hours, goes on now that it was woken. Of those that are
    /// woken with very many each queues before, and is woken again when it is its turn. It has no gate,
    /// which would have to be kept while it waits: queued, it is let in by whatever wakes it next.
    pub fn poll_let_in(&self, is_queued: &mut bool, waker: &Waker) -> Poll<()> {
        if std::mem::take(is_queued) || self.has_room(Instant::now()) {
            return Poll::Ready(());
        }
        *is_queued = true;
        let gate = Rc::<Gate>::default();
        gate.set_waker(waker);
        self.queue(&gate, Share::First);
        Poll::Pending
    }

    fn queue(&self, gate: &Rc<Gate>, share: Share) {
        gate.place.set(Place::Queued);
        if let Some(queue) = self.queues.borrow_mut().get_mut(share as usize) {
            queue.push_back(gate.clone());
        }
        if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.wake();
        }
    }

    /// Whether one more may come in at once, at `now`; counts it.
    fn has_room(&self, now: Instant) -> bool {
        let (began, count) = self.window.get();
        let (began, count) = match now.saturating_duration_since(began) < ARRIVALS_WINDOW {
            true => (began, count),
            false => (now, 0),
        };
        self.window.set((began, count.saturating_add(1)));
        count < ARRIVALS_AT_ONCE_MAX
    }

    /// How much a connection may read at once now, in bytes: little while many wait.
    #[must_use]
    pub fn read_bytes_max(&self) -> usize {
        if self.is_crowded() {
            CROWDED_READ_BYTES
        } else {
            usize::MAX
        }
    }

    /// How much of a large answer a connection may write in its turn, in bytes: less while many wait.
    #[must_use]
    pub fn piece_bytes_max(&self) -> usize {
        if self.is_crowded() {
            CROWDED_PIECE_BYTES
        } else {
            PIECE_BYTES
        }
    }

    /// Whether many wait.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let queues = self.queues.borrow();
        queues.iter().map(VecDeque::len).sum::<usize>() >= CROWD
    }

    fn next(&self) -> Option<Rc<Gate>> {
        let mut queues = self.queues.borrow_mut();
        // The hand is never past the end.
        let (done, next) = ORDER.split_at_checked(self.hand.get()).unwrap_or_default();
        for (steps, share) in (1..).zip(next.iter().chain(done)) {
            let queue = queues.get_mut(*share as usize);
            if let Some(gate) = queue.and_then(VecDeque::pop_front) {
                let hand = self.hand.get().saturating_add(steps);
                self.hand.set(hand.checked_rem(ORDER.len()).unwrap_or(0));
                return Some(gate);
            }
        }
        None
    }

    /// Calls one connection after the other, and waits for a `round` after each, for ever. One that is
    /// gone costs a round.
    pub async fn keep(&self, round: impl AsyncFn()) {
        loop {
            let gate = poll_fn(|cx| match self.next() {
                Some(gate) => Poll::Ready(gate),
                None => {
                    *self.keeper.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
            .await;
            gate.call();
            round().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future;
    use std::{
        future::Future,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Wake, Waker},
        time::Duration,
    };

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn one_passes_in_each_round_in_order() {
        let turnstile = Turnstile::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep(async || future::yield_now().await));
        let pass = || turnstile.pass(Share::Requests);
        let (mut first, mut second) = (pin!(pass()), pin!(pass()));
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn every_share_has_its_turn() {
        let turnstile = Turnstile::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep(async || future::yield_now().await));
        let shares = [
            Share::Piece,
            Share::Piece,
            Share::ManyRequests,
            Share::Requests,
            Share::First,
        ];
        let mut passes: Vec<_> = shares
            .iter()
            .map(|share| Box::pin(turnstile.pass(*share)))
            .collect();
        for pass in &mut passes {
            assert!(pass.as_mut().poll(&mut cx).is_pending());
        }
        for expected in [3, 4, 2, 0, 1] {
            assert!(keeper.as_mut().poll(&mut cx).is_pending());
            let passed = passes
                .iter_mut()
                .map(|pass| pass.as_mut().poll(&mut cx).is_ready());
            let passed: Vec<bool> = passed.collect();
            let mut wanted = vec![false; passes.len()];
            wanted[expected] = true;
            assert_eq!(passed, wanted);
            // What is done is polled no more.
            passes[expected] = Box::pin(turnstile.pass(Share::Piece));
        }
    }

    #[test]
    fn of_many_that_come_at_once_some_come_in_at_once() {
        let turnstile = Turnstile::default();
        let start = Instant::now();
        for _ in 0..ARRIVALS_AT_ONCE_MAX {
            assert!(turnstile.has_room(start));
        }
        assert!(!turnstile.has_room(start + ARRIVALS_WINDOW / 2));
        assert!(turnstile.has_room(start + ARRIVALS_WINDOW));
    }

    #[test]
    fn who_is_woken_with_many_waits_for_its_turn_unless_it_is_preferred() {
        let turnstile = Turnstile::default();
        // The window never ends.
        let begun = Instant::now() + Duration::from_secs(3600);
        turnstile.window.set((begun, ARRIVALS_AT_ONCE_MAX));
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep(async || future::yield_now().await));
        let (gate, preferred, over) = (Rc::default(), Rc::new(Gate::default()), Rc::default());
        (0..REQUESTS_PER_TURN).for_each(|_| preferred.waited());
        let polls = Cell::new(0);
        let never = || {
            poll_fn(|_| {
                polls.set(polls.get() + 1);
                Poll::<()>::Pending
            })
        };
        let work = pin!(never());
        let mut crowd = pin!(turnstile.run(&gate, || false, work));
        assert!(crowd.as_mut().poll(&mut cx).is_pending());
        assert!(crowd.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.take(), 0);
        for (gate, is_over) in [(&preferred, false), (&over, true)] {
            let work = pin!(never());
            let mut at_once = pin!(turnstile.run(gate, move || is_over, work));
            assert!(at_once.as_mut().poll(&mut cx).is_pending());
            assert_eq!(polls.take(), 1);
        }
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(crowd.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.take(), 1);
        // The next time is another.
        assert!(crowd.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.take(), 0);
    }

    #[test]
    fn of_those_that_waited_and_are_woken_at_once_one_goes_on_in_each_round() {
        const WOKEN: usize = 100;
        let turnstile = Turnstile::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep(async || future::yield_now().await));
        // The window never ends.
        let begun = Instant::now() + Duration::from_secs(3600);
        turnstile.window.set((begun, 0));
        let counts: Vec<_> = (0..WOKEN).map(|_| Arc::new(Count::default())).collect();
        let mut are_queued = [false; WOKEN];
        let mut let_in = 0;
        for (is_queued, count) in are_queued.iter_mut().zip(&counts) {
            let waker = Waker::from(count.clone());
            let_in += u32::from(turnstile.poll_let_in(is_queued, &waker).is_ready());
        }
        assert_eq!(let_in, ARRIVALS_AT_ONCE_MAX);
        let woken = || {
            counts
                .iter()
                .filter(|count| count.0.load(Ordering::Relaxed) > 0)
        };
        for round in 1..=10 {
            assert!(keeper.as_mut().poll(&mut cx).is_pending());
            assert_eq!(woken().count(), round);
        }
        let next = are_queued.get_mut(ARRIVALS_AT_ONCE_MAX as usize).unwrap();
        assert!(turnstile.poll_let_in(next, Waker::noop()).is_ready());
    }

    #[test]
    fn work_that_waits_for_its_own_turn_is_held_up_no_second_time() {
        let turnstile = Turnstile::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep(async || future::yield_now().await));
        let gate = Rc::default();
        let work = pin!(turnstile.pass_at(&gate, Share::ManyRequests));
        let mut run = pin!(turnstile.run(&gate, || false, work));
        assert!(run.as_mut().poll(&mut cx).is_pending());
        let begun = Instant::now() + Duration::from_secs(3600);
        turnstile.window.set((begun, ARRIVALS_AT_ONCE_MAX));
        assert!(run.as_mut().poll(&mut cx).is_pending());
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(run.as_mut().poll(&mut cx).is_ready());
    }
}
