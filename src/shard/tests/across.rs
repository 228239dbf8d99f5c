//! A fork across shards while a copy begins: whatever comes between their steps, the copy has no
//! fork without its reference.

use std::{future::poll_fn, pin::pin};

use futures_lite::future::yield_now;

use super::{Bench, bench_with, create, key};
use super::{
    Bytes, Cell, Context, CreateRequest, Graveyard, Incarnation, Lifetime, Poll, RefCell, Refusal,
    Reply, Request, StreamKey, Tables, Waker,
};
use crate::{
    base::rng::Rng,
    protocol::{fork::ForkRequest, incarnation::Allocator},
    shard::{
        across::{self, Cores},
        hold::Hold,
    },
};

const SOURCE: &str = "demo/source";
const FORK: &str = "demo/fork";

fn tables(shard: usize) -> Tables {
    let allocator = Allocator::new([1; 16], shard as u64);
    Tables::new(allocator, Graveyard::default())
}

/// Two shards, one with the source and one with the fork.
struct World {
    benches: [Bench; 2],
    hold: Hold,
    /// Whether anybody minds the gate.
    is_minded: bool,
    /// How often somebody waited at it.
    waits: Cell<usize>,
    /// How many records of each shard its cut has.
    cuts: RefCell<[usize; 2]>,
}

impl World {
    fn new(is_minded: bool) -> Self {
        Self {
            benches: [0, 1].map(|shard| bench_with(1 << 20, tables(shard))),
            hold: Hold::default(),
            is_minded,
            waits: Cell::new(0),
            cuts: RefCell::default(),
        }
    }

    async fn ask_shard(&self, shard: usize, request: Request) -> Result<Reply, Refusal> {
        // In the mailbox.
        yield_now().await;
        let bench = &self.benches[shard];
        if matches!(request, Request::Cut(_)) {
            self.cuts.borrow_mut()[shard] = bench.journal.durable.get() as usize;
        }
        let staged = bench.shard.execute(request);
        poll_fn(|_| match bench.shard.is_durable(staged.after) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        staged.outcome
    }

    /// What a start makes of the copy.
    fn copy(&self) -> [Tables; 2] {
        let cuts = *self.cuts.borrow();
        [0, 1].map(|shard| {
            let mut tables = tables(shard);
            let records = self.benches[shard].journal.records.borrow();
            for record in &records[..cuts[shard]] {
                tables.replay(record).expect("it was written here");
            }
            tables
        })
    }
}

impl Cores for World {
    async fn call(&self, key: &StreamKey, request: Request) -> Result<Reply, Refusal> {
        let shard = usize::from(key.as_str() == FORK);
        self.ask_shard(shard, request).await
    }

    async fn ask(&self, key: &StreamKey, request: Request) -> Result<Reply, Refusal> {
        self.call(key, request).await
    }

    fn notify(&self, _: &StreamKey, request: Request) {
        panic!("nothing is taken back: {request:?}");
    }

    fn allocate_incarnation(&self) -> Result<Incarnation, Refusal> {
        self.benches[1].shard.allocate_incarnation()
    }

    async fn pass_gate(&self) {
        while self.is_minded && self.hold.is_gated() {
            self.waits.set(self.waits.get() + 1);
            yield_now().await;
        }
    }
}

fn fork() -> CreateRequest {
    CreateRequest {
        key: key(FORK),
        precondition: None,
        unless_any: false,
        content_type: None,
        lifetime: Lifetime::Unlimited,
        closed: false,
        body: Bytes::new(),
        fork: Some(ForkRequest {
            source: key(SOURCE),
            offset: None,
            sub_offset: 0,
        }),
        inherited: None,
    }
}

/// What the copy has of the fork.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    Nothing,
    /// The reference alone: the next start drops it.
    Reference,
    Both,
    /// The fork alone: its bytes would be missing.
    Orphan,
}

/// One order of events, chosen by `seed`; also, whether the fork had to wait at the gate.
fn play(seed: u64, is_minded: bool) -> (Copied, bool) {
    let world = World::new(is_minded);
    let source = world.benches[0].done(create(SOURCE, Lifetime::Unlimited));
    source.expect("a stream");
    let mut rng = Rng::from_seed(seed);
    let mut forking = pin!(across::create(&world, fork()));
    let mut copying = pin!(async {
        let number = world.hold.begin().expect("there is no other");
        let ask =
            async |shard, request: &dyn Fn() -> Request| world.ask_shard(shard, request()).await;
        across::cut_all(&world.hold, number, 2, ask).await
    });
    let mut cx = Context::from_waker(Waker::noop());
    let (mut created, mut cuts) = (None, None);
    while created.is_none() || cuts.is_none() {
        match rng.below(5) {
            0 | 1 if created.is_none() => {
                if let Poll::Ready(outcome) = forking.as_mut().poll(&mut cx) {
                    created = Some(outcome.expect("a fork"));
                }
            }
            2 if cuts.is_none() => {
                if let Poll::Ready(outcome) = copying.as_mut().poll(&mut cx) {
                    cuts = Some(outcome.expect("cuts"));
                }
            }
            3 => world.benches[0].commit(),
            _ => world.benches[1].commit(),
        }
    }
    let [sources, forks] = world.copy();
    let created = created.expect("a fork");
    let is_there = forks.stream(created.incarnation).is_some();
    let is_referred = sources.all_streams().any(|stream| {
        let rare = stream.staged.rare.as_ref();
        rare.is_some_and(|rare| rare.forks.contains(created.incarnation))
    });
    let copied = match (is_referred, is_there) {
        (false, false) => Copied::Nothing,
        (true, false) => Copied::Reference,
        (true, true) => Copied::Both,
        (false, true) => Copied::Orphan,
    };
    (copied, world.waits.get() > 0)
}

#[test]
fn no_order_of_events_copies_a_fork_without_its_reference() {
    let (mut nothing, mut reference, mut both, mut waited) = (0, 0, 0, 0);
    for seed in 0..5_000 {
        let (copied, has_waited) = play(seed, true);
        match copied {
            Copied::Nothing => nothing += 1,
            Copied::Reference => reference += 1,
            Copied::Both => both += 1,
            Copied::Orphan => panic!("seed {seed}: a fork without its reference"),
        }
        waited += usize::from(has_waited);
    }
    let reached = [nothing, reference, both, waited];
    assert!(reached.iter().all(|count| *count > 50), "{reached:?}");
}

/// The gate is what does it: without it, some of the same orders do copy one.
#[test]
fn without_the_gate_a_fork_is_copied_without_its_reference() {
    let orphans = (0..5_000).filter(|seed| play(*seed, false).0 == Copied::Orphan);
    assert!(orphans.count() > 0);
}
