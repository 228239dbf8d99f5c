//! One request's clock: where its time went, stage by stage.
//!
//! A stopwatch knows when the last stage ended; [`Stopwatch::lap`] gives all
//! time since then to one stage. So the stages add up to the time between the
//! first moment and the last by construction, whatever order they come in,
//! however often, and whatever a clock on another core says: a moment before
//! the last one counts as the last one.

use crate::{http::parse::Method, server::latency::sample::Arrival, shard::trip::Trip};

/// Where a request's time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the arrival of its bytes until it is known what is asked.
    Head,
    /// Taking its body out of the connection's buffer; JSON is checked and stored text made.
    Body,
    /// To the owner on another core and back.
    Mailbox,
    /// The owner decides, and stages what is written.
    Decide,
    /// Staged, until the batch is issued.
    Staging,
    /// The batch is written and synced.
    Journal,
    /// The outcome is there, until the connection's task runs.
    Wake,
    /// From the outcome until the socket has taken the last byte of the answer.
    Write,
    /// Not the server's: the client has yet to send its body, or a long-poll waits for data.
    Wait,
}

impl Stage {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All, in the order in which a request passes them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Head,
        Self::Body,
        Self::Mailbox,
        Self::Decide,
        Self::Staging,
        Self::Journal,
        Self::Wake,
        Self::Write,
        Self::Wait,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Body => "body",
            Self::Mailbox => "mailbox",
            Self::Decide => "decide",
            Self::Staging => "staging",
            Self::Journal => "journal",
            Self::Wake => "wake",
            Self::Write => "write",
            Self::Wait => "wait",
        }
    }

    /// What it measures.
    #[must_use]
    pub fn help(self) -> &'static str {
        match self {
            Self::Head => "from the arrival of a request until it is known what it asks",
            Self::Body => "taking the body in, JSON checked; without the wait for the client",
            Self::Mailbox => "to the stream's owner on another core, and back",
            Self::Decide => "the owner decides, and stages what is written",
            Self::Staging => "staged, until the batch is issued",
            Self::Journal => "the batch on its way: write and sync",
            Self::Wake => "the outcome is there, until the connection's task runs",
            Self::Write => "from the outcome until the socket has taken the answer",
            Self::Wait => "waiting for the client's body, or for data to long-poll",
        }
    }
}

/// One request's times.
#[derive(Debug, Default)]
pub struct Stopwatch {
    started_ns: u64,
    last_ns: u64,
    spent_ns: [u64; Stage::COUNT],
    /// A bit for each stage it passed through.
    passed: u16,
    /// How many requests it stands for, itself one of them; see [`sample`](super::sample).
    pub stands_for: u64,
    /// For a long-poll that was woken by data: when that became readable; else 0.
    pub published_ns: u64,
    /// Bytes of the request's body as it was sent.
    pub body_bytes: u64,
    /// The answer's status; 0 before there is one.
    pub status: u16,
    /// The method.
    pub method: Method,
    /// The target, without its query, when requests are traced and it is short.
    pub path: Option<Box<str>>,
}

impl Stopwatch {
    /// A request whose bytes were there at `arrival`.
    #[must_use]
    pub fn started(arrival: Arrival) -> Self {
        Self {
            started_ns: arrival.at_ns,
            last_ns: arrival.at_ns,
            stands_for: arrival.stands_for,
            ..Self::default()
        }
    }

    /// Everything since the last stage's end was `stage`, which ends at `now_ns`.
    pub fn lap(&mut self, stage: Stage, now_ns: u64) {
        let index = stage as usize;
        if let Some(spent_ns) = self.spent_ns.get_mut(index) {
            *spent_ns = spent_ns.saturating_add(now_ns.saturating_sub(self.last_ns));
        }
        self.last_ns = self.last_ns.max(now_ns);
        self.passed |= 1 << index;
    }

    /// An outcome came by `trip`, and its task took it up at `now_ns`.
    pub fn follow(&mut self, trip: &Trip, now_ns: u64) {
        for (stage, at_ns) in [
            (Stage::Mailbox, trip.received_ns),
            (Stage::Decide, trip.decided_ns),
            (Stage::Staging, trip.issued_ns),
            (Stage::Journal, trip.durable_ns),
            (Stage::Mailbox, trip.returned_ns),
        ] {
            if at_ns > 0 {
                self.lap(stage, at_ns);
            }
        }
        if now_ns > self.last_ns {
            self.lap(Stage::Wake, now_ns);
        }
    }

    /// When the last stage ended.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// The time spent in a stage, if it passed through it.
    #[must_use]
    pub fn spent_ns(&self, stage: Stage) -> Option<u64> {
        let index = stage as usize;
        let has_passed = self.passed & (1 << index) != 0;
        self.spent_ns.get(index).copied().filter(|_| has_passed)
    }

    /// The time spent in each stage it passed through.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, u64)> {
        let spent = |stage| Some((stage, self.spent_ns(stage)?));
        Stage::ALL.into_iter().filter_map(spent)
    }

    /// The server's time: all stages together but [`Stage::Wait`].
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let [.., wait_ns] = self.spent_ns;
        self.last_ns
            .saturating_sub(self.started_ns)
            .saturating_sub(wait_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::{Clock, ManualClock};
    use std::time::Duration;

    fn started(at_ns: u64) -> Stopwatch {
        Stopwatch::started(Arrival {
            at_ns,
            stands_for: 1,
        })
    }

    fn spent(watch: &Stopwatch) -> Vec<(&'static str, u64)> {
        watch
            .stages()
            .map(|(stage, ns)| (stage.name(), ns))
            .collect()
    }

    #[test]
    fn stages_have_their_place() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }

    #[test]
    fn the_stages_of_an_append_add_up_to_its_total() {
        let clock = ManualClock::new(0);
        let pass = |ns| {
            clock.advance(Duration::from_nanos(ns));
            clock.monotonic_ns()
        };
        let mut watch = started(pass(1_000));
        watch.lap(Stage::Head, pass(30));
        watch.lap(Stage::Body, pass(50));
        watch.lap(Stage::Wait, pass(9_000_000));
        // Somebody sets the wall clock: no stage goes by it.
        clock.step_to(5);
        watch.lap(Stage::Body, pass(7));
        let trip = Trip {
            received_ns: pass(200),
            decided_ns: pass(11),
            issued_ns: pass(400),
            durable_ns: pass(5_000),
            returned_ns: pass(300),
        };
        watch.follow(&trip, pass(90));
        watch.lap(Stage::Write, pass(600));
        assert_eq!(
            spent(&watch),
            [
                ("head", 30),
                ("body", 57),
                ("mailbox", 500),
                ("decide", 11),
                ("staging", 400),
                ("journal", 5_000),
                ("wake", 90),
                ("write", 600),
                ("wait", 9_000_000),
            ]
        );
        let all: u64 = watch.stages().map(|(_, ns)| ns).sum();
        assert_eq!(all, clock.monotonic_ns() - 1_000);
        assert_eq!(watch.total_ns(), all - 9_000_000);
    }

    /// Whatever the moments are, and in whatever order, none is lost and none counted twice.
    #[test]
    fn any_moments_add_up() {
        let mut rng = crate::base::rng::Rng::from_seed(5);
        let clock = ManualClock::new(0);
        for _ in 0..2_000 {
            let started_ns = clock.monotonic_ns();
            let mut watch = started(started_ns);
            let mut latest_ns = started_ns;
            for _ in 0..rng.next_u64() % 12 {
                clock.advance(Duration::from_nanos(rng.next_u64() % 1_000));
                let stage = Stage::ALL[(rng.next_u64() % 9) as usize];
                // Now and then a moment from before the last, or from before the start.
                let back_ns =
                    u64::from(rng.next_u64().is_multiple_of(4)) * (rng.next_u64() % 3_000);
                let at_ns = clock.monotonic_ns().saturating_sub(back_ns);
                latest_ns = latest_ns.max(at_ns);
                watch.lap(stage, at_ns);
            }
            let all: u64 = watch.stages().map(|(_, ns)| ns).sum();
            let wait = watch.stages().find(|(stage, _)| *stage == Stage::Wait);
            assert_eq!(all, latest_ns - started_ns);
            assert_eq!(watch.total_ns(), all - wait.map_or(0, |(_, ns)| ns));
            assert_eq!(watch.last_ns(), latest_ns);
        }
    }

    #[test]
    fn what_did_not_happen_is_no_stage() {
        let mut watch = started(100);
        watch.lap(Stage::Head, 110);
        watch.follow(&Trip::local(130), 130);
        watch.lap(Stage::Write, 150);
        assert_eq!(spent(&watch), [("head", 10), ("decide", 20), ("write", 20)]);
    }

    /// A refusal may rest on a batch that was issued before it was decided.
    #[test]
    fn a_batch_under_way_already_costs_only_the_rest_of_it() {
        let mut watch = started(100);
        watch.follow(
            &Trip {
                decided_ns: 120,
                issued_ns: 90,
                durable_ns: 170,
                ..Trip::default()
            },
            175,
        );
        assert_eq!(
            spent(&watch),
            [("decide", 20), ("staging", 0), ("journal", 50), ("wake", 5)]
        );
    }
}
