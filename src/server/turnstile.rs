//! Where connections queue that have more requests at hand than their share:
//! one of them goes on each time the core has been round its ready tasks, so
//! that however many there are, everybody else waits for one share, not for
//! one share of each.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

use futures_lite::future;

/// The queue of one core.
#[derive(Debug, Default)]
pub struct Turnstile {
    queue: RefCell<VecDeque<Rc<Ticket>>>,
    keeper: RefCell<Option<Waker>>,
}

#[derive(Debug)]
struct Ticket {
    is_called: Cell<bool>,
    waker: RefCell<Waker>,
}

impl Turnstile {
    /// Waits for this connection's turn.
    pub async fn pass(&self) {
        let mut ticket: Option<Rc<Ticket>> = None;
        poll_fn(|cx| match &ticket {
            None => {
                let queued = Rc::new(Ticket {
                    is_called: Cell::new(false),
                    waker: RefCell::new(cx.waker().clone()),
                });
                self.queue.borrow_mut().push_back(queued.clone());
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

    /// Calls one connection after the other, each in a round of its own, for ever. A ticket whose
    /// connection is gone costs a round.
    pub async fn keep(&self) {
        loop {
            let ticket = poll_fn(|cx| match self.queue.borrow_mut().pop_front() {
                Some(ticket) => Poll::Ready(ticket),
                None => {
                    *self.keeper.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
            .await;
            ticket.is_called.set(true);
            ticket.waker.borrow().wake_by_ref();
            future::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    #[test]
    fn one_passes_in_each_round_in_order() {
        let turnstile = Turnstile::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut keeper = pin!(turnstile.keep());
        let (mut first, mut second) = (pin!(turnstile.pass()), pin!(turnstile.pass()));
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert!(keeper.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }
}
