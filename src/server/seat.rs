//! Seats: one per connection, through which it is told that its time is up or
//! that the server is going down.
//!
//! Deadlines are coarse: a sweep looks at all seats four times a second, so a
//! connection costs no timer of its own, however often its deadline moves.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
    time::Duration,
};

use slab::Slab;

/// Time between two sweeps.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The seats of one core.
#[derive(Debug, Default)]
pub struct Seats {
    taken: RefCell<Slab<Rc<SeatState>>>,
    now: Cell<u64>,
    draining: Cell<bool>,
}

#[derive(Debug, Default)]
struct SeatState {
    deadline: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// A connection's seat, given back when dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Rc<Seats>,
    state: Rc<SeatState>,
    index: usize,
}

const NEVER: u64 = u64::MAX;

impl Seats {
    /// Takes a seat.
    #[must_use]
    pub fn take(self: &Rc<Self>) -> Seat {
        let state = Rc::new(SeatState {
            deadline: Cell::new(NEVER),
            waker: RefCell::default(),
        });
        let index = self.taken.borrow_mut().insert(state.clone());
        Seat {
            seats: self.clone(),
            state,
            index,
        }
    }

    /// Seats taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.borrow().len()
    }

    /// Whether no seat is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One sweep: time moves on, and whose time is up is woken.
    pub fn sweep(&self) {
        let now = self.now.get() + 1;
        self.now.set(now);
        for (_, state) in self.taken.borrow().iter() {
            if state.deadline.get() <= now {
                state.wake();
            }
        }
    }

    /// The server is going down: everybody is told.
    pub fn drain(&self) {
        self.draining.set(true);
        for (_, state) in self.taken.borrow().iter() {
            state.wake();
        }
    }

    /// Whether the server is going down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

impl SeatState {
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl Seat {
    /// Sets the deadline, `timeout` from now, up to half a second late.
    pub fn set_timeout(&self, timeout: Duration) {
        let sweeps = timeout.as_millis() / SWEEP_INTERVAL.as_millis();
        let sweeps = u64::try_from(sweeps).unwrap_or(NEVER / 2);
        self.state.deadline.set(self.seats.now.get() + sweeps + 1);
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.deadline.get() <= self.seats.now.get()
    }

    /// Whether the server is going down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.seats.is_draining()
    }

    /// Leaves `waker` to be woken by the deadline or the drain.
    pub fn wake_on_end(&self, waker: &Waker) {
        let mut slot = self.state.waker.borrow_mut();
        match &*slot {
            Some(known) if known.will_wake(waker) => {}
            _ => *slot = Some(waker.clone()),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.borrow_mut();
        if taken.contains(self.index) {
            taken.remove(self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_pass_with_sweeps_and_can_be_moved() {
        let seats = Rc::new(Seats::default());
        let seat = seats.take();
        assert!(!seat.is_over());
        seat.set_timeout(SWEEP_INTERVAL);
        seats.sweep();
        assert!(!seat.is_over());
        seats.sweep();
        assert!(seat.is_over());
        seat.set_timeout(SWEEP_INTERVAL);
        assert!(!seat.is_over());
        assert_eq!(seats.len(), 1);
        drop(seat);
        assert!(seats.is_empty());
    }
}
