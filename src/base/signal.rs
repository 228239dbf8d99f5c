//! A flag that one task waits on.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Raised any number of times, seen once. At most one task waits.
#[derive(Debug, Default)]
pub struct Signal {
    raised: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Raises the flag and wakes who waits for it.
    pub fn raise(&self) {
        self.raised.set(true);
        if let Some(waker) = self.waiter.take() {
            waker.wake();
        }
    }

    /// Takes the flag if it is raised; otherwise the task is woken when it is.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.raised.replace(false) {
            return Poll::Ready(());
        }
        let mut waiter = self.waiter.borrow_mut();
        if !waiter
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *waiter = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for the flag, and takes it.
    pub async fn wait(&self) {
        poll_fn(|cx| self.poll_take(cx)).await;
    }
}
