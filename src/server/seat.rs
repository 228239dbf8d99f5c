//! Seats: one per connection, through which it is told that its time is up or
//! that the server is going down.
//!
//! Deadlines are coarse: a sweep looks at all seats four times a second, so a
//! connection costs no timer of its own, however often its deadline moves. It
//! wakes one at a time: a crowd that came at once has its end at once, too.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
    time::Duration,
};

use slab::Slab;

/// Time between two sweeps.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The seats of one core. They lie side by side, so that a sweep over many thousands is cheap.
#[derive(Debug, Default)]
pub struct Seats {
    taken: RefCell<Slab<Place>>,
    now: Cell<u64>,
    draining: Cell<bool>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
}

#[derive(Debug)]
struct Place {
    deadline: u64,
    waker: Option<Waker>,
}

/// A connection's seat, given back when dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Rc<Seats>,
    /// 32 bits do for what is bounded by the number of descriptors.
    index: u32,
    is_counted: bool,
}

const NEVER: u64 = u64::MAX;

impl Seats {
    /// Takes a seat.
    #[must_use]
    pub fn take(self: &Rc<Self>) -> Seat {
        self.place(true)
    }

    /// Takes a seat for the operator, whose bytes are not counted.
    #[must_use]
    pub fn take_uncounted(self: &Rc<Self>) -> Seat {
        self.place(false)
    }

    /// Bytes received by all counted connections there ever were.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.get()
    }

    /// Bytes sent by all counted connections there ever were.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.get()
    }

    /// Counts bytes that counted connections' sockets have taken.
    pub fn sent(&self, bytes: usize) {
        let sent = self.sent_bytes.get().saturating_add(bytes as u64);
        self.sent_bytes.set(sent);
    }

    fn place(self: &Rc<Self>, is_counted: bool) -> Seat {
        let index = self.taken.borrow_mut().insert(Place {
            deadline: NEVER,
            waker: None,
        });
        Seat {
            seats: self.clone(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            is_counted,
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

    /// One sweep begins: time moves on, and [`wake_one`](Self::wake_one) is to be called from 0 on.
    pub fn begin_sweep(&self) {
        self.now.set(self.now.get().saturating_add(1));
    }

    /// Wakes the first at `from` or after it whose time is up, and says where to go on.
    pub fn wake_one(&self, from: usize) -> Option<usize> {
        let now = self.now.get();
        let mut taken = self.taken.borrow_mut();
        for index in from..taken.capacity() {
            if let Some(place) = taken.get_mut(index)
                && place.deadline <= now
                && let Some(waker) = place.waker.take()
            {
                // Waking only queues the connection's task: nothing runs while the seats are
                // borrowed.
                waker.wake();
                return index.checked_add(1);
            }
        }
        None
    }

    /// The server is going down: everybody is told.
    pub fn drain(&self) {
        self.draining.set(true);
        for (_, place) in self.taken.borrow_mut().iter_mut() {
            if let Some(waker) = place.waker.take() {
                waker.wake();
            }
        }
    }

    /// Whether the server is going down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

impl Seat {
    fn index(&self) -> usize {
        self.index as usize
    }

    /// Sets the deadline, `timeout` from now, up to half a second late.
    pub fn set_timeout(&self, timeout: Duration) {
        const SWEEP_MS: u128 = SWEEP_INTERVAL.as_millis();
        let sweeps = u64::try_from(timeout.as_millis() / SWEEP_MS).unwrap_or(NEVER / 2);
        let deadline = self
            .seats
            .now
            .get()
            .saturating_add(sweeps)
            .saturating_add(1);
        if let Some(place) = self.seats.taken.borrow_mut().get_mut(self.index()) {
            place.deadline = deadline;
        }
    }

    /// Counts bytes that came from the client.
    pub fn received(&self, bytes: usize) {
        if self.is_counted {
            let count = &self.seats.received_bytes;
            count.set(count.get().saturating_add(bytes as u64));
        }
    }

    /// Counts bytes that the client's socket has taken.
    pub fn sent(&self, bytes: usize) {
        if self.is_counted {
            self.seats.sent(bytes);
        }
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let taken = self.seats.taken.borrow();
        let deadline = taken.get(self.index()).map(|place| place.deadline);
        deadline.is_some_and(|deadline| deadline <= self.seats.now.get())
    }

    /// Whether the server is going down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.seats.is_draining()
    }

    /// Leaves `waker` to be woken by the deadline or the drain.
    pub fn wake_on_end(&self, waker: &Waker) {
        if let Some(place) = self.seats.taken.borrow_mut().get_mut(self.index()) {
            match &place.waker {
                Some(known) if known.will_wake(waker) => {}
                _ => place.waker = Some(waker.clone()),
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // The waker may hold the last reference to a task that holds a seat: dropped after the
        // borrow.
        let place = self.seats.taken.borrow_mut().try_remove(self.index());
        drop(place);
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
        seats.begin_sweep();
        assert!(!seat.is_over());
        seats.begin_sweep();
        assert!(seat.is_over());
        seat.set_timeout(SWEEP_INTERVAL);
        assert!(!seat.is_over());
        assert_eq!(seats.len(), 1);
        drop(seat);
        assert!(seats.is_empty());
    }
}
