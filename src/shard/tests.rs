//! The path of a change, on a journal and a clock of our own: nothing is
//! shown or told before it is durable, and records add up to the same state.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;

mod across;
mod purge;
mod turns;

use super::{
    live::{Watch, Watched},
    lookup::Lack,
    owner::{Peers, Shard},
    request::{Appended, BatchNumber, Receipt, ReferRequest, Reply, Request, Staged, Target},
    run::Run,
    stream::Blob,
    tables::Tables,
};
use crate::{
    base::{
        limits::Limits,
        time::{Clock as _, ManualClock},
    },
    protocol::{
        append::AppendRequest,
        content_type::ContentType,
        create::CreateRequest,
        error::Refusal,
        expiry::Lifetime,
        fork::{ForkOrigin, ForkRequest},
        incarnation::{Allocator, Incarnation},
        offset::StartOffset,
        producer::ProducerWrite,
        read::{Live, ReadRequest},
        snapshot::{Digester, PublishRequest},
        stream_key::{StreamKey, Surface},
    },
    storage::{
        blob::Graveyard,
        journal::{Health, Position, Purpose, Stage, StageError},
    },
};

/// A journal that makes a batch durable when told to.
#[derive(Default)]
struct TestJournal {
    records: RefCell<Vec<Vec<u8>>>,
    durable: Cell<u64>,
    health: Cell<Option<Health>>,
}

impl Stage for TestJournal {
    fn stage_for(&self, purpose: Purpose, parts: &[&[u8]]) -> Result<BatchNumber, StageError> {
        match self.health() {
            Health::Ok => {}
            Health::DiskPressure if purpose == Purpose::Free => {}
            Health::DiskPressure | Health::DirectoryGone => return Err(StageError::DiskPressure),
            Health::Failed => return Err(StageError::Latched),
        }
        let mut records = self.records.borrow_mut();
        records.push(parts.concat());
        Ok(BatchNumber(records.len() as u64))
    }

    fn next_position(&self) -> Position {
        Position(self.records.borrow().len() as u64)
    }

    fn staged(&self) -> BatchNumber {
        BatchNumber(self.records.borrow().len() as u64)
    }

    fn durable(&self) -> BatchNumber {
        BatchNumber(self.durable.get())
    }

    fn health(&self) -> Health {
        self.health.get().unwrap_or(Health::Ok)
    }
}

#[derive(Default)]
struct TestPeers {
    wakes: Cell<usize>,
    released: RefCell<Vec<Incarnation>>,
}

impl Peers for TestPeers {
    fn wake_readers(&self, watch: &Arc<Watch>) {
        watch.wake_arrived();
        self.wakes.set(self.wakes.get() + 1);
    }

    fn release_source(&self, _origin: &ForkOrigin, fork: Incarnation) {
        self.released.borrow_mut().push(fork);
    }
}

struct Bench {
    shard: Shard,
    journal: Rc<TestJournal>,
    peers: Rc<TestPeers>,
    clock: ManualClock,
}

const NOW_MS: u64 = 1_800_000_000_000;

fn bench() -> Bench {
    bench_with(1 << 20, tables())
}

fn tables() -> Tables {
    Tables::new(Allocator::new([1; 16], 0), Graveyard::default())
}

fn bench_with(memory_bytes_max: u64, tables: Tables) -> Bench {
    let journal = Rc::new(TestJournal::default());
    let peers = Rc::new(TestPeers::default());
    let clock = ManualClock::new(NOW_MS);
    let shard = Shard::new(
        0,
        tables,
        journal.clone(),
        Rc::new(clock.clone()),
        Limits::default(),
        memory_bytes_max,
        peers.clone(),
    );
    Bench {
        shard,
        journal,
        peers,
        clock,
    }
}

fn key(name: &str) -> StreamKey {
    StreamKey::restored(name)
}

fn create(name: &str, lifetime: Lifetime) -> Request {
    Request::Create(CreateRequest {
        key: key(name),
        precondition: None,
        unless_any: false,
        content_type: Some(ContentType::octet_stream()),
        lifetime,
        closed: false,
        body: Bytes::new(),
        fork: None,
        inherited: None,
    })
}

fn append(name: &str, body: &'static [u8]) -> AppendRequest {
    AppendRequest {
        key: key(name),
        precondition: None,
        content_type: Some(ContentType::octet_stream()),
        malformed_type: false,
        body: Bytes::from_static(body),
        close: false,
        producer: None,
        seq: None,
    }
}

fn read(name: &str, live: Live) -> ReadRequest {
    ReadRequest {
        key: key(name),
        precondition: None,
        surface: Surface::Bucket,
        start: StartOffset::Beginning,
        bytes_max: 100,
        live,
    }
}

fn target(name: &str) -> Target {
    Target {
        key: key(name),
        precondition: None,
    }
}

/// The bytes of runs that are in memory.
fn gather(runs: &[Run]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for run in runs {
        match run {
            Run::Memory(piece) => bytes.extend_from_slice(piece),
            other => panic!("not in memory: {other:?}"),
        }
    }
    bytes
}

impl Bench {
    /// Makes everything staged durable.
    fn commit(&self) {
        let last = self.journal.records.borrow().len() as u64;
        self.journal.durable.set(last);
        self.shard.on_durable(BatchNumber(last));
    }

    /// Carries out a request and makes what it rests on durable.
    fn done(&self, request: Request) -> Result<Reply, Refusal> {
        let staged = self.shard.execute(request);
        self.commit();
        staged.outcome
    }

    fn body(&self, name: &str) -> Result<Vec<u8>, Refusal> {
        match self
            .shard
            .execute(Request::Read(read(name, Live::No), None))
            .outcome?
        {
            Reply::Read(reply) => Ok(gather(&reply.runs)),
            other => panic!("not a read: {other:?}"),
        }
    }

    fn must_wait<T: std::fmt::Debug>(&self, staged: Staged<T>) -> Staged<T> {
        assert!(
            !self.shard.is_durable(staged.after),
            "{staged:?} may be told at once"
        );
        staged
    }
}

#[test]
fn nothing_is_shown_before_it_is_durable() {
    let bench = bench();
    let created = bench.shard.execute(create("demo/a", Lifetime::Unlimited));
    let _ = bench.must_wait(created);
    assert_eq!(bench.body("demo/a"), Err(Refusal::StreamNotFound));
    bench.commit();
    assert_eq!(bench.body("demo/a"), Ok(vec![]));
    let appended = bench.shard.append(&append("demo/a", b"one"));
    let _ = bench.must_wait(appended);
    assert_eq!(bench.body("demo/a"), Ok(vec![]));
    bench.commit();
    assert_eq!(bench.body("demo/a"), Ok(b"one".to_vec()));
}

#[test]
fn refusals_and_repeats_decided_on_staged_state_wait_for_it() {
    let bench = bench();
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    let mut closing = append("demo/a", b"last");
    closing.close = true;
    closing.producer = Some(ProducerWrite {
        id: "w".into(),
        epoch: 0,
        seq: 0,
        digest: None,
    });
    let closed = bench.shard.append(&closing);
    let _ = bench.must_wait(closed);
    // A repeat, and a refusal because of the close: both rest on the close.
    let repeat = bench.must_wait(bench.shard.append(&closing));
    let receipt = repeat.outcome.unwrap().receipt;
    assert!(matches!(receipt, Some(Receipt::Repeated(_))), "{receipt:?}");
    let refused = bench.must_wait(bench.shard.append(&append("demo/a", b"more")));
    assert!(matches!(refused.outcome, Err(Refusal::Closed { tail: 4 })));
    bench.commit();
    // A 404 after a staged delete, and a create over it.
    let deleted = bench.shard.execute(Request::Delete(target("demo/a")));
    let _ = bench.must_wait(deleted);
    let missing = bench.must_wait(bench.shard.append(&append("demo/a", b"x")));
    assert!(matches!(missing.outcome, Err(Refusal::StreamNotFound)));
    assert_eq!(
        bench.body("demo/a"),
        Ok(b"last".to_vec()),
        "still there for readers"
    );
    let again = bench.shard.execute(create("demo/a", Lifetime::Unlimited));
    let _ = bench.must_wait(again);
    assert_eq!(
        bench.body("demo/a"),
        Ok(b"last".to_vec()),
        "the old one until both are durable"
    );
    bench.commit();
    assert_eq!(bench.body("demo/a"), Ok(vec![]));
}

#[test]
fn a_failed_journal_leaves_the_outcome_unknown_and_reads_going() {
    let bench = bench();
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    let staged = bench.shard.append(&append("demo/a", b"x"));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(bench.shard.poll_durable(staged.after, &cx).is_pending());
    bench.journal.health.set(Some(Health::Failed));
    bench.shard.on_failed();
    assert_eq!(
        bench.shard.poll_durable(staged.after, &cx),
        Poll::Ready(Err(Refusal::OutcomeUnknown))
    );
    // What comes now is not in doubt, though what the stream had before it is.
    let refused = bench.shard.append(&append("demo/a", b"y"));
    assert_eq!(
        bench.shard.poll_durable(refused.after, &cx),
        Poll::Ready(Ok(()))
    );
    let refused = refused.outcome;
    assert!(matches!(refused, Err(Refusal::ApplyStopped)), "{refused:?}");
    assert_eq!(bench.body("demo/a"), Ok(vec![]));
    let _ = &mut cx;
}

#[test]
fn a_full_disk_refuses_writes_and_applies_nothing() {
    let bench = bench();
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    bench.journal.health.set(Some(Health::DiskPressure));
    let refused = bench.shard.append(&append("demo/a", b"x")).outcome;
    assert!(matches!(refused, Err(Refusal::DiskPressure)), "{refused:?}");
    bench.journal.health.set(None);
    let appended = bench.shard.append(&append("demo/a", b"x")).outcome.unwrap();
    assert_eq!((appended.start, appended.tail), (0, 1));
}

#[test]
fn a_full_disk_takes_what_only_frees() {
    let bench = bench();
    let ttl = Lifetime::Ttl { seconds: 10 };
    bench
        .done(create("demo/deleted", Lifetime::Unlimited))
        .unwrap();
    bench
        .done(create("demo/purged", Lifetime::Unlimited))
        .unwrap();
    bench.done(create("demo/expired", ttl)).unwrap();
    bench.journal.health.set(Some(Health::DiskPressure));
    let refused = bench.done(create("demo/new", Lifetime::Unlimited));
    assert!(matches!(refused, Err(Refusal::DiskPressure)), "{refused:?}");
    let deleted = Target {
        key: key("demo/deleted"),
        precondition: None,
    };
    bench.done(Request::Delete(deleted)).unwrap();
    bench.clock.advance(Duration::from_secs(11));
    while bench.shard.sweep_expired() {}
    bench.commit();
    assert_eq!(bench.shard.streams(), 1);
    bench.done(Request::Fence("demo".into())).unwrap();
    purge::purge(&bench, Some("demo"));
    bench.commit();
    assert_eq!(bench.shard.streams(), 0);
}

#[test]
fn memory_is_bounded_and_given_back() {
    let bench = bench_with(4096, tables());
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    let start = bench.shard.memory().0;
    let body: &[u8] = &[b'x'; 1024];
    let mut request = append("demo/a", b"");
    request.body = Bytes::copy_from_slice(body);
    let mut held = 0;
    let refused = loop {
        match bench.done(Request::Append(request.clone())) {
            Ok(_) => held += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refused, Refusal::MemoryPressure);
    assert!((2..4).contains(&held), "{held}");
    bench.done(Request::Delete(target("demo/a"))).unwrap();
    assert_eq!(bench.shard.memory().0, 0, "of {start}");
    assert!(bench.done(create("demo/a", Lifetime::Unlimited)).is_ok());
}

/// A fork that is to begin behind very many messages is told where in many turns, none of which
/// counts all of them.
#[test]
fn messages_are_counted_in_turns() {
    const MESSAGES: u64 = 200_000;
    let bench = bench();
    let json = ContentType::parse(b"application/json").expect("a content type");
    let Request::Create(mut request) = create("demo/source", Lifetime::Unlimited) else {
        unreachable!()
    };
    request.content_type = Some(json);
    // One message is longer than what is looked at in a turn.
    let long = format!("\"{}\"\n", "x".repeat(300_000));
    let text = format!("1\n{long}{}", "1\n".repeat(MESSAGES as usize - 2));
    request.body = text.clone().into();
    bench.done(Request::Create(request)).expect("created");
    for (count, expected) in [
        (0, Ok(0)),
        (2, Ok(2 + long.len() as u64)),
        (MESSAGES - 1, Ok(text.len() as u64 - 2)),
        (MESSAGES, Ok(text.len() as u64)),
        (MESSAGES + 1, Err(())),
        (u64::MAX, Err(())),
    ] {
        let mut request = Request::Refer(ReferRequest {
            fork: ForkRequest {
                source: key("demo/source"),
                offset: Some(0),
                sub_offset: count,
            },
            key: key("demo/fork"),
            incarnation: Incarnation(1),
            counted: Cell::new(None),
        });
        let mut turns = 1;
        let outcome = loop {
            match bench.done(request) {
                Ok(Reply::Cold(cold)) => {
                    assert!(matches!(cold.lack, Lack::Turn), "{cold:?}");
                    request = cold.request;
                    turns += 1;
                }
                Ok(Reply::Referred(inherited)) => break Ok(inherited.origin.offset),
                Err(Refusal::InvalidForkOffset(_)) => break Err(()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(outcome, expected, "{count} messages");
        assert_eq!(turns > 3, count > 2, "{turns} turns for {count} messages");
    }
}

#[test]
fn a_sliding_window_slides_and_an_expired_name_is_free_at_once() {
    let bench = bench();
    let ttl = Lifetime::Ttl { seconds: 10 };
    bench.done(create("demo/a", ttl)).unwrap();
    bench.clock.advance(Duration::from_secs(9));
    assert!(bench.body("demo/a").is_ok());
    bench.clock.advance(Duration::from_secs(9));
    let head = bench.shard.execute(Request::Head(target("demo/a")));
    assert!(head.outcome.is_ok());
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(
        bench.body("demo/a"),
        Err(Refusal::StreamNotFound),
        "HEAD renewed nothing"
    );
    let again = bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    assert!(matches!(again, Reply::Created(created) if created.is_new));
    bench.clock.advance(Duration::from_secs(1000));
    bench.shard.sweep_expired();
    bench.commit();
    assert!(
        bench.body("demo/a").is_ok(),
        "the old one's timer touches nothing"
    );
}

const HOUR_MS: u64 = 3_600_000;

impl Bench {
    /// As after a restart: from the records alone.
    fn restarted(&self) -> Self {
        let mut tables = tables();
        for record in self.journal.records.borrow().iter() {
            tables.replay(record).expect("it was written here");
        }
        let bench = bench_with(1 << 20, tables);
        bench.clock.step_to(self.clock.now_ms());
        bench
    }

    fn step_back(&self, by_ms: u64) {
        self.clock.step_to(self.clock.now_ms() - by_ms);
    }
}

/// A clock set back shortens no life: what was renewed before lives on for as much longer, what is
/// renewed later lives from then on, and a fixed end comes when the clock shows it.
#[test]
fn a_clock_set_back_ends_nothing() {
    let bench = bench();
    let ttl = Lifetime::Ttl { seconds: 60 };
    let at = Lifetime::ExpiresAt {
        unix_ms: NOW_MS + 60_000,
    };
    bench.done(create("demo/ttl", ttl)).unwrap();
    bench.done(create("demo/at", at)).unwrap();
    bench.step_back(HOUR_MS);
    bench.done(create("demo/new", ttl)).unwrap();
    for bench in [&bench, &bench.restarted()] {
        while bench.shard.sweep_expired() {}
        for name in ["demo/ttl", "demo/at", "demo/new"] {
            assert!(bench.body(name).is_ok(), "{name}");
        }
        // Reads and writes restart the window from what was shown before, not from an hour ago.
        bench
            .done(Request::Append(append("demo/ttl", b"x")))
            .unwrap();
        bench.clock.advance(Duration::from_secs(59));
        assert!(bench.body("demo/ttl").is_ok());
        bench.clock.advance(Duration::from_secs(2));
        assert!(bench.body("demo/ttl").is_ok());
        bench.clock.advance(Duration::from_millis(HOUR_MS));
        for name in ["demo/ttl", "demo/at", "demo/new"] {
            assert_eq!(bench.body(name), Err(Refusal::StreamNotFound), "{name}");
        }
    }
}

/// A clock set forward ends the lives whose end it passes, once and for all, and nothing else: not
/// what has no end, nor what producers have written.
#[test]
fn a_clock_set_forward_ends_what_is_over_by_it() {
    let bench = bench();
    let ttl = |seconds| Lifetime::Ttl { seconds };
    bench.done(create("demo/short", ttl(60))).unwrap();
    bench.done(create("demo/long", ttl(7200))).unwrap();
    bench
        .done(create("demo/for-ever", Lifetime::Unlimited))
        .unwrap();
    let mut write = append("demo/for-ever", b"x");
    write.producer = Some(ProducerWrite {
        id: "w".into(),
        epoch: 0,
        seq: 0,
        digest: None,
    });
    bench.done(Request::Append(write.clone())).unwrap();
    bench.clock.step_to(NOW_MS + HOUR_MS);
    while bench.shard.sweep_expired() {}
    bench.commit();
    // Set right again, it brings nothing back; what was renewed meanwhile lives an hour longer.
    assert!(bench.body("demo/long").is_ok());
    bench.step_back(HOUR_MS);
    for bench in [&bench, &bench.restarted()] {
        assert_eq!(bench.body("demo/short"), Err(Refusal::StreamNotFound));
        assert!(bench.body("demo/long").is_ok());
        assert_eq!(bench.body("demo/for-ever"), Ok(b"x".to_vec()));
        let repeat = bench.done(Request::Append(write.clone())).unwrap();
        assert!(
            matches!(
                repeat,
                Reply::Appended(Appended {
                    receipt: Some(Receipt::Repeated(_)),
                    ..
                })
            ),
            "{repeat:?}"
        );
        let again = bench.done(create("demo/short", ttl(60))).unwrap();
        assert!(matches!(again, Reply::Created(created) if created.is_new));
    }
}

#[test]
fn the_sweep_deletes_what_nobody_asks_for() {
    let bench = bench();
    bench
        .done(create("demo/a", Lifetime::Ttl { seconds: 1 }))
        .unwrap();
    bench.done(create("demo/b", Lifetime::Unlimited)).unwrap();
    assert!(!bench.shard.sweep_expired());
    bench.clock.advance(Duration::from_secs(2));
    bench.shard.sweep_expired();
    bench.commit();
    assert_eq!(bench.shard.streams(), 1);
}

/// What the sweep could not delete while the clock was wrong is not forgotten until the clock shows
/// that time again.
#[test]
fn a_clock_set_right_again_delays_no_sweep() {
    let bench = bench();
    let ttl = Lifetime::Ttl { seconds: 10 };
    bench.done(create("demo/read", ttl)).unwrap();
    bench.done(create("demo/full", ttl)).unwrap();
    let tail = Request::Tail(read("demo/read", Live::Sse), Watch::new(0));
    let Ok(Reply::Watching(watching)) = bench.done(tail) else {
        panic!("not watching");
    };
    bench.clock.step_to(NOW_MS + HOUR_MS);
    // One has a reader, and the other's record cannot be written now.
    bench.journal.health.set(Some(Health::DirectoryGone));
    while bench.shard.sweep_expired() {}
    bench.journal.health.set(None);
    bench.step_back(HOUR_MS);
    let leave = Request::Leave {
        incarnation: watching.extent.incarnation,
        core: 0,
    };
    bench.done(leave).unwrap();
    for _ in 0..12 {
        bench.clock.advance(Duration::from_secs(1));
        while bench.shard.sweep_expired() {}
    }
    bench.commit();
    assert_eq!(bench.shard.streams(), 0);
}

#[test]
fn a_live_reader_holds_a_stream_and_hears_of_its_end() {
    let bench = bench();
    bench
        .done(create("demo/a", Lifetime::Ttl { seconds: 1 }))
        .unwrap();
    let watch = Watch::new(0);
    let tail = Request::Tail(read("demo/a", Live::Sse), watch.clone());
    let Ok(Reply::Watching(watching)) = bench.done(tail) else {
        panic!("not watching");
    };
    bench.clock.advance(Duration::from_secs(60));
    bench.shard.sweep_expired();
    bench.commit();
    let _ = bench.shard.append(&append("demo/a", b"x")).outcome.unwrap();
    assert_eq!(
        watch.state(),
        Watched::Open { tail: 0 },
        "not before it is durable"
    );
    bench.commit();
    assert_eq!(watch.state(), Watched::Open { tail: 1 });
    assert_eq!(bench.peers.wakes.get(), 1);
    let incarnation = watching.extent.incarnation;
    bench
        .done(Request::Leave {
            incarnation,
            core: 0,
        })
        .unwrap();
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.body("demo/a"), Err(Refusal::StreamNotFound));
}

#[test]
fn parts_that_no_commit_used_go_after_a_day() {
    let bench = bench();
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    let part = Blob::Memory(Bytes::from_static(b"part"));
    bench
        .done(Request::StagePart(target("demo/a"), "p".into(), part))
        .unwrap();
    let charged = bench.shard.memory().0;
    bench.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(bench.shard.sweep_parts(0), None);
    bench.commit();
    assert_eq!(bench.shard.memory().0, charged);
    bench.clock.advance(Duration::from_secs(1));
    bench.shard.sweep_parts(0);
    bench.commit();
    assert!(bench.shard.memory().0 < charged);
}

#[test]
fn records_add_up_to_the_same_state() {
    let bench = bench();
    bench
        .done(create("demo/a", Lifetime::Ttl { seconds: 50 }))
        .unwrap();
    bench
        .done(create("demo/gone", Lifetime::Unlimited))
        .unwrap();
    bench.done(Request::Delete(target("demo/gone"))).unwrap();
    let mut write = append("demo/a", b"0123456789");
    write.seq = Some("s1".into());
    write.producer = Some(ProducerWrite {
        id: "w".into(),
        epoch: 2,
        seq: 0,
        digest: Some([7; 32]),
    });
    bench.done(Request::Append(write.clone())).unwrap();
    let content_type = ContentType::parse(b"text/plain").unwrap();
    let mut digester = Digester::new(&content_type);
    digester.update(b"snap");
    let publish = PublishRequest {
        key: key("demo/a"),
        precondition: None,
        offset: 6,
        content_type,
        digest: digester.finish(),
    };
    let body = Blob::Memory(Bytes::from_static(b"snap"));
    bench.done(Request::Publish(publish, body)).unwrap();
    bench.done(Request::Retain(target("demo/a"), 4)).unwrap();
    bench.done(Request::Fence("bucket".into())).unwrap();

    let mut tables = tables();
    for record in bench.journal.records.borrow().iter() {
        tables.replay(record).unwrap();
    }
    let again = bench_with(1 << 20, tables);
    assert_eq!(again.shard.streams(), 1);
    assert_eq!(again.shard.memory(), bench.shard.memory());
    assert_eq!(again.shard.fenced(), [Box::from("bucket")]);
    let mut rest = read("demo/a", Live::No);
    rest.start = StartOffset::At(4);
    for bench in [&bench, &again] {
        let reply = bench
            .shard
            .execute(Request::Read(rest.clone(), None))
            .outcome
            .unwrap();
        assert!(matches!(reply, Reply::Read(reply) if gather(&reply.runs) == b"456789"));
        assert!(matches!(
            bench.body("demo/a"),
            Err(Refusal::OffsetGone { retained: 4, .. })
        ));
        let repeat = bench.shard.append(&write).outcome.unwrap();
        assert!(
            matches!(repeat.receipt, Some(Receipt::Repeated(_))),
            "{repeat:?}"
        );
        let snapshot = bench
            .shard
            .execute(Request::ReadSnapshot(target("demo/a"), 6));
        assert!(matches!(snapshot.outcome, Ok(Reply::Snapshot(_))));
        let head = bench
            .shard
            .execute(Request::Head(target("demo/a")))
            .outcome
            .unwrap();
        assert!(matches!(head, Reply::Head(head) if head.extent.tail == 10));
    }
}

#[test]
fn replay_refuses_records_that_do_not_fit() {
    let bench = bench();
    bench.done(create("demo/a", Lifetime::Unlimited)).unwrap();
    bench
        .done(Request::Append(append("demo/a", b"one")))
        .unwrap();
    let records = bench.journal.records.borrow();
    let mut twice = tables();
    twice.replay(&records[0]).unwrap();
    twice.replay(&records[1]).unwrap();
    assert!(
        twice.replay(&records[1]).is_err(),
        "an append that does not start at the tail"
    );
    assert!(
        twice.replay(&records[0]).is_err(),
        "a stream that is created twice"
    );
    assert!(twice.replay(b"").is_err());
}
