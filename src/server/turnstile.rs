//! Where connections queue that have more requests at hand than their share,
//! or a piece of a large answer to write: one of them goes on each time the
//! core has been round its ready tasks, so that however many there are,
//! everybody else waits for one share, not for one share of each.
//!
//! There is a queue for each [`Share`]: somebody who had to wait, and now has a
//! few more requests at hand than usual, does not queue behind hundreds who
//! never have less.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

use crate::base::limits::{CROWD, CROWDED_READ_BYTES};

/// What somebody waits to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// More requests, of one that often waited for its client.
    Requests,
    /// More requests, of one that hardly ever did.
    ManyRequests,
    /// A piece of a large answer.
    Piece,
}

const SHARES: usize = 3;
/// Whose turn it is, if somebody waits for it: none of them for ever.
const ORDER: [Share; 6] = [
    Share::Requests,
    Share::Requests,
    Share::ManyRequests,
    Share::Requests,
    Share::Requests,
    Share::Piece,
];

/// The queues of one core.
#[derive(Debug, Default)]
pub struct Turnstile {
    queues: RefCell<[VecDeque<Rc<Ticket>>; SHARES]>,
    /// Where in [`ORDER`] it is.
    hand: Cell<usize>,
    keeper: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Ticket {
    is_called: Cell<bool>,
    waker: RefCell<Waker>,
}

impl Turnstile {
    /// Waits for this connection's turn.
    pub async fn pass(&self, share: Share) {
        let mut ticket: Option<Rc<Ticket>> = None;
        poll_fn(|cx| match &ticket {
            None => {
                let queued = Rc::new(Ticket {
                    is_called: Cell::new(false),
                    waker: RefCell::new(cx.waker().clone()),
                });
                if let Some(queue) = self.queues.borrow_mut().get_mut(share as usize) {
                    queue.push_back(queued.clone());
                }
                ticket = Some(queued);
                if let Some(keeper) = self.keeper.borrow_mut().take() {
                    keeper.wake();
                }
                Poll::Pending
            }
            Some(ticket) if ticket.is_called.get() => Poll::Ready(()),
            Some(ticket) => {
                ticket.waker.borrow_mut().clone_from(cx.waker());
                Poll::Pending
            }
        })
        .await;
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

    /// Whether many wait.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let queues = self.queues.borrow();
        queues.iter().map(VecDeque::len).sum::<usize>() >= CROWD
    }

    fn next(&self) -> Option<Rc<Ticket>> {
        let mut queues = self.queues.borrow_mut();
        // The hand is never past the end.
        let (done, next) = ORDER.split_at_checked(self.hand.get()).unwrap_or_default();
        for (steps, share) in (1..).zip(next.iter().chain(done)) {
            let queue = queues.get_mut(*share as usize);
            if let Some(ticket) = queue.and_then(VecDeque::pop_front) {
                let hand = self.hand.get().saturating_add(steps);
                self.hand.set(hand.checked_rem(ORDER.len()).unwrap_or(0));
                return Some(ticket);
            }
        }
        None
    }

    /// Calls one connection after the other, and waits for a `round` after each, for ever. A ticket
    /// whose connection is gone costs a round.
    pub async fn keep(&self, round: impl AsyncFn()) {
        loop {
            let ticket = poll_fn(|cx| match self.next() {
                Some(ticket) => Poll::Ready(ticket),
                None => {
                    *self.keeper.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
            .await;
            ticket.is_called.set(true);
            ticket.waker.borrow().wake_by_ref();
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
        task::{Context, Waker},
    };

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
        ];
        let mut passes: Vec<_> = shares
            .iter()
            .map(|share| Box::pin(turnstile.pass(*share)))
            .collect();
        for pass in &mut passes {
            assert!(pass.as_mut().poll(&mut cx).is_pending());
        }
        for expected in [3, 2, 0, 1] {
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
}
