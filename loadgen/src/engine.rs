//! The event loop: one thread, one epoll, many connections, no allocation per request.
//!
//! ```text
//! thread 0: slots 0, T, 2T, ...     a slot = one client (what to ask, what to make of the answer)
//! thread 1: slots 1, T+1, ...                + one connection + one pace
//!    open all connections -> live readers ask and get their heads -> barrier -> one start time for all
//!    warm-up | measurement | drain
//! ```
//!
//! Pace: a *closed* slot asks again as soon as it is answered. A *paced* slot has a schedule fixed in advance, tick `k` at
//! `start + phase + k * interval`; if the answer to one tick is late, the ticks it held up are sent as soon as possible and
//! their latency counts from when they were due (no coordinated omission). No tick inside the window is ever skipped: what has
//! not been sent when the drain ends is reported as unsent.
//!
//! Drivers start nothing after the end of the window. Followers (live readers) go on until they have seen what drivers wrote.
//! What state a slot can be in: `slot`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};

use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::time::ClockId;

use crate::client::{Clock, Evidence, Times, Turn};
use crate::connection::Received;
use crate::error::{ErrorKind, Errors};
use crate::histogram::{Tally, Window};
use crate::pace::{Pace, Timing};
use crate::slot::{Listener, Slot, SlotPlan};

/// Bytes one thread reads at a time.
const SCRATCH_BYTES: usize = 256 * 1024;
/// Events taken from the kernel at a time: few enough that a tick that comes due meanwhile is late by less than a millisecond.
const EVENTS_MAX: usize = 64;
/// A closed slot whose connection failed waits this long.
const BACKOFF_NS: u64 = 100_000_000;
/// Time limits are checked this often.
const CHECK_NS: u64 = 100_000_000;
/// Connections and live readers get this long to be ready before the start.
const READY_NS_MAX: u64 = 10_000_000_000;
/// From the barrier to the start, so that every thread sees the start coming.
const LEAD_NS: u64 = 5_000_000;
/// While followers are drained, how often they are asked whether they are done.
const SETTLE_NS: u64 = 10_000_000;

/// What all threads of one run share.
#[derive(Debug)]
pub struct Shared {
    /// Where to connect.
    pub address: SocketAddr,
    /// The run's clock.
    pub clock: Clock,
    /// The phases.
    pub timing: Timing,
    /// A request may take so long, in nanoseconds.
    pub timeout_ns: u64,
    /// Drivers reconnect after so many requests; 0 is never.
    pub churn: u64,
    /// When the run started, once it has.
    pub start: OnceLock<u64>,
    barrier: Barrier,
    drivers: AtomicUsize,
}

impl Shared {
    /// For a run of so many threads with so many driver slots.
    pub fn new(
        address: SocketAddr,
        clock: Clock,
        timing: Timing,
        threads: usize,
        drivers: usize,
    ) -> Shared {
        Shared {
            address,
            clock,
            timing,
            timeout_ns: 10_000_000_000,
            churn: 0,
            start: OnceLock::new(),
            barrier: Barrier::new(threads),
            drivers: AtomicUsize::new(drivers),
        }
    }
}

/// What one thread has to say at the end.
#[derive(Debug)]
pub struct ThreadResult {
    /// Errors by kind.
    pub errors: Errors,
    /// Messages read and checked.
    pub verified: u64,
    /// How late ticks were sent although the connection was idle.
    pub lag: Histogram<u64>,
    /// What its clients know.
    pub evidence: Evidence,
    /// Share of one core it used during measurement, 0 to 1.
    pub cpu_share: f64,
    /// Ticks of paced slots inside the window.
    pub planned: u64,
    /// Those that were never sent.
    pub unsent: u64,
}

struct Engine<'s> {
    shared: &'s Shared,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    again: Vec<u32>,
    again_now: Vec<u32>,
    events: Vec<epoll::Event>,
    scratch: Box<[u8]>,
    window: Window,
    tally: Tally,
}

/// Runs one thread's slots from start to end. `tally` holds a window that never comes; it is replaced at the start.
pub fn run_thread(shared: &Shared, plans: Vec<SlotPlan>, tally: Tally) -> io::Result<ThreadResult> {
    // Whatever fails, the barrier is passed, or the other threads would wait for ever.
    let prepared = Engine::prepare(shared, plans, tally);
    if shared.barrier.wait().is_leader() {
        let _ = shared.start.set(shared.clock.now() + LEAD_NS);
    }
    shared.barrier.wait();
    prepared?.run(shared.start.get().copied().unwrap_or(0))
}

impl<'s> Engine<'s> {
    fn prepare(shared: &'s Shared, plans: Vec<SlotPlan>, tally: Tally) -> io::Result<Engine<'s>> {
        let mut engine = Engine {
            shared,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            slots: plans.into_iter().map(Slot::new).collect(),
            due: BinaryHeap::new(),
            again: Vec::new(),
            again_now: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            window: shared.timing.window(u64::MAX),
            tally,
        };
        engine.get_ready()?;
        Ok(engine)
    }

    /// Opens every connection, and lets followers ask and get their heads.
    fn get_ready(&mut self) -> io::Result<()> {
        for index in 0..self.slots.len() {
            if self.slots[index].client.follows() {
                self.act(index, self.shared.clock.now());
            } else {
                // A failure is met again, and counted, by the first request.
                let _ = self.open(index);
            }
        }
        let limit = self.shared.clock.now() + READY_NS_MAX;
        loop {
            let now = self.shared.clock.now();
            let waiting = |slot: &Slot| slot.client.answered_before_start() && !slot.headed;
            if now >= limit || !self.slots.iter().any(waiting) {
                return Ok(());
            }
            self.turn(now + SETTLE_NS)?;
        }
    }

    fn run(mut self, start: u64) -> io::Result<ThreadResult> {
        let window = self.shared.timing.window(start);
        self.window = window;
        self.tally.begin(window);
        let planned = self.slots.iter().map(|slot| slot.due_between(window)).sum();
        for index in 0..self.slots.len() {
            if !self.slots[index].client.follows() {
                let first = self.slots[index].pace.due(start, 0);
                self.due.push(Reverse((first, index as u32)));
            }
        }
        let mut cpu = [None; 2];
        let mut check = start;
        loop {
            let now = self.shared.clock.now();
            for (at, boundary) in [window.measured, window.end].into_iter().enumerate() {
                if now >= boundary && cpu[at].is_none() {
                    cpu[at] = Some((now, thread_cpu_ns()));
                }
            }
            if now >= self.tally.interval_ends() {
                self.tally.flush(now);
            }
            if now >= check {
                self.check_time_limits(now);
                check = now + CHECK_NS;
            }
            if now >= window.drained || self.all_finished() {
                break;
            }
            let mut wake = check.min(self.tally.interval_ends());
            for boundary in [window.measured, window.end] {
                if now < boundary {
                    wake = wake.min(boundary);
                }
            }
            if self.shared.drivers.load(Ordering::Acquire) == 0 || now >= window.end {
                wake = wake.min(now + SETTLE_NS);
            }
            self.turn(wake)?;
        }
        let end = cpu[1].unwrap_or_else(|| (self.shared.clock.now(), thread_cpu_ns()));
        Ok(self.conclude(planned, cpu[0].map_or(0.0, |from| share(from, end))))
    }

    fn conclude(mut self, planned: u64, cpu_share: f64) -> ThreadResult {
        let mut evidence = Evidence::default();
        let mut unsent = 0;
        for slot in &mut self.slots {
            if slot.asking && !slot.client.follows() {
                self.tally.error(ErrorKind::Timeout);
                slot.client.failed();
                slot.tick += 1;
            }
            if !slot.finished {
                unsent += slot.due_between(self.window);
            }
            slot.client.evidence(&mut evidence);
        }
        let (errors, verified, lag) = self.tally.finish(self.shared.clock.now());
        ThreadResult {
            errors,
            verified,
            lag,
            evidence,
            cpu_share,
            planned,
            unsent,
        }
    }

    fn all_finished(&self) -> bool {
        let drivers_done = self.shared.drivers.load(Ordering::Acquire) == 0;
        self.slots.iter().all(|slot| {
            slot.finished || (drivers_done && slot.client.follows() && slot.client.settled())
        })
    }

    /// Waits for events until `wake` or until a slot is due, and handles what there is.
    fn turn(&mut self, wake: u64) -> io::Result<()> {
        let now = self.shared.clock.now();
        let mut until = self
            .due
            .peek()
            .map_or(wake, |Reverse((due, _))| wake.min(*due));
        if !self.again.is_empty() {
            until = now;
        }
        let left = until.saturating_sub(now);
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as _,
        };
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for at in 0..self.events.len() {
            let epoll::Event { data, flags } = self.events[at];
            self.ready(data.u64() as usize, flags);
        }
        std::mem::swap(&mut self.again, &mut self.again_now);
        while let Some(index) = self.again_now.pop() {
            self.receive(index as usize);
        }
        let now = self.shared.clock.now();
        while let Some(Reverse((due, index))) = self.due.peek().copied() {
            if due > now {
                break;
            }
            self.due.pop();
            if matches!(self.slots[index as usize].pace, Pace::Every { .. }) {
                self.tally.record_lag(due, self.shared.clock.now());
            }
            self.act(index as usize, due);
        }
        Ok(())
    }

    /// It is this slot's turn: `intended` is the time it was meant to be.
    fn act(&mut self, index: usize, intended: u64) {
        let slot = &mut self.slots[index];
        let follows = slot.client.follows();
        if !follows && intended >= self.window.end {
            return self.finish(index);
        }
        slot.connection.out.clear();
        match slot.client.request(intended, &mut slot.connection.out) {
            Turn::Finished => return self.finish(index),
            Turn::Wait(nanoseconds) => {
                let due = self.shared.clock.now().saturating_add(nanoseconds);
                self.due.push(Reverse((due, index as u32)));
                return;
            }
            Turn::Send => {}
        }
        slot.intended = intended;
        slot.asked = intended.max(self.shared.clock.now());
        slot.asking = true;
        if slot.connection.socket().is_none()
            && let Err(kind) = self.open(index)
        {
            return self.fail(index, kind);
        }
        if let Err(kind) = self.slots[index].connection.send() {
            self.fail(index, kind);
        }
    }

    fn open(&mut self, index: usize) -> Result<(), ErrorKind> {
        let connection = &mut self.slots[index].connection;
        connection
            .open(&self.shared.address)
            .map_err(|_| ErrorKind::Connect)?;
        let socket = connection.socket().ok_or(ErrorKind::Connect)?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(index as u64),
            flags,
        )
        .map_err(|_| ErrorKind::Connect)
    }

    fn ready(&mut self, index: usize, flags: epoll::EventFlags) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        if slot.asking
            && slot.connection.sending()
            && let Err(kind) = slot.connection.send()
        {
            return self.fail(index, kind);
        }
        let incoming = epoll::EventFlags::IN
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::HUP
            | epoll::EventFlags::ERR;
        if flags.intersects(incoming) {
            self.receive(index);
        }
    }

    fn receive(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if !slot.asking {
            // An idle connection that the server closed is opened again when needed; anything else it says is wrong.
            if slot.connection.said_something_unasked() {
                self.tally.error(ErrorKind::Unasked);
            }
            return;
        }
        let mut listener = Listener {
            client: &mut *slot.client,
            tally: &mut self.tally,
            clock: &self.shared.clock,
            headed: &mut slot.headed,
        };
        match slot.connection.receive(&mut self.scratch, &mut listener) {
            Ok(Received::Partial) => {}
            Ok(Received::Unfinished) => self.again.push(index as u32),
            Ok(Received::Complete { keep_alive }) => self.complete(index, keep_alive),
            Err(kind) => self.fail(index, kind),
        }
    }

    fn complete(&mut self, index: usize, keep_alive: bool) {
        let done = self.shared.clock.now();
        let slot = &mut self.slots[index];
        slot.asking = false;
        slot.client.done(
            Times {
                intended: slot.intended,
                done,
            },
            &mut self.tally,
        );
        let churn = self.shared.churn;
        if !keep_alive || (churn > 0 && slot.connection.requests >= churn) {
            slot.connection.close();
        }
        self.next(index, done, 0);
    }

    fn fail(&mut self, index: usize, kind: ErrorKind) {
        self.tally.error(kind);
        let slot = &mut self.slots[index];
        slot.asking = false;
        slot.connection.close();
        slot.client.failed();
        self.next(index, self.shared.clock.now(), BACKOFF_NS);
    }

    /// The request is over: the next one starts at once, at its time, or after a pause.
    fn next(&mut self, index: usize, now: u64, pause: u64) {
        let slot = &mut self.slots[index];
        let at = match slot.pace {
            Pace::Closed => now.saturating_add(pause),
            Pace::Every { .. } => {
                slot.tick += 1;
                slot.pace.due(self.window.start, slot.tick)
            }
        };
        if at <= now && pause == 0 {
            self.act(index, at);
        } else {
            // Past ticks after a failure go through the heap too, so that failing at once does not recurse.
            self.due.push(Reverse((at, index as u32)));
        }
    }

    fn finish(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if !slot.finished {
            slot.finished = true;
            if !slot.client.follows() {
                self.shared.drivers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn check_time_limits(&mut self, now: u64) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.asking
                && !slot.client.patient()
                && now.saturating_sub(slot.asked) > self.shared.timeout_ns
            {
                self.fail(index, ErrorKind::Timeout);
            }
        }
    }
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn share(from: (u64, u64), to: (u64, u64)) -> f64 {
    (to.1.saturating_sub(from.1)) as f64 / (to.0.saturating_sub(from.0)).max(1) as f64
}
