//! One client with its connection and its pace: the state that the engine moves along.
//!
//! A slot is in exactly one of: asking (a request is in flight), waiting (one entry in the engine's heap), finished.

use crate::client::{Client, Clock};
use crate::connection::Connection;
use crate::histogram::{Tally, Window};
use crate::http::{Head, Sink};
use crate::pace::Pace;

/// One slot as planned.
pub struct SlotPlan {
    /// What it asks.
    pub client: Box<dyn Client>,
    /// When.
    pub pace: Pace,
}

/// A slot while it runs.
pub struct Slot {
    /// What it asks and what it makes of the answers.
    pub client: Box<dyn Client>,
    /// Its connection.
    pub connection: Connection,
    /// When it asks.
    pub pace: Pace,
    /// The next tick of its schedule.
    pub tick: u64,
    /// When the request in flight was meant to be sent.
    pub intended: u64,
    /// When its time limit began to run.
    pub asked: u64,
    /// A request is in flight.
    pub asking: bool,
    /// It has had a response head.
    pub headed: bool,
    /// It will ask no more.
    pub finished: bool,
}

impl Slot {
    /// A slot that has asked nothing yet.
    pub fn new(plan: SlotPlan) -> Slot {
        Slot {
            client: plan.client,
            connection: Connection::default(),
            pace: plan.pace,
            tick: 0,
            intended: 0,
            asked: 0,
            asking: false,
            headed: false,
            finished: false,
        }
    }

    /// Ticks inside the window that have not been sent.
    pub fn due_between(&self, window: Window) -> u64 {
        self.pace
            .due_between(window.start, self.tick, window.measured, window.end)
    }
}

/// Hands an answer on to the slot's client as it arrives.
pub struct Listener<'a> {
    /// The client.
    pub client: &'a mut dyn Client,
    /// The thread's counts.
    pub tally: &'a mut Tally,
    /// The run's clock.
    pub clock: &'a Clock,
    /// Set once the head is there.
    pub headed: &'a mut bool,
}

impl Sink for Listener<'_> {
    fn head(&mut self, head: &Head<'_, '_>) {
        *self.headed = true;
        self.client.head(head, self.tally);
    }
    fn body(&mut self, bytes: &[u8]) {
        self.client.body(bytes, self.clock, self.tally);
    }
}
