//! Stored bytes on their way to an answer: from wherever they are to this core.
//!
//! What is in memory came with the owner's reply. What a fork inherits is asked
//! of its source's owner. What is in segments this core reads itself, with
//! several reads under way ahead of what the client takes ([`ReadAhead`]); a
//! response in progress keeps the files it reads from.
//!
//! Here too a request comes back whose decision needs bytes that are not in
//! memory ([`Core::ask`]): they are loaded, and it is sent again with them. One
//! that has had its turn is sent again after others.

use std::{collections::VecDeque, rc::Rc};

use bytes::Bytes;
use futures_lite::future;
use glommio::Task;

use crate::{
    base::limits::{DISK_IO_BYTES_MAX, READ_AHEAD_MAX},
    http::answer::Source,
    protocol::{error::Refusal, stream_key::StreamKey},
    server::{budget::Charge, core::Core, read_turns::ReadTurns, turnstile::Share},
    shard::{
        lookup::Lack,
        request::{Reply, Request, Warm},
        run::{BlockRun, Run},
    },
    storage::{
        StorageError,
        disk::GlommioDisk,
        segment::{BlockBytes, BlockKey, BlockReader, Place, reads},
    },
};

/// Sources of a fork that are asked before others have their turn.
const SOURCES_PER_TURN: usize = 256;

impl Core {
    /// Asks the owner of `key`, as [`call`](Self::call) does, and brings what its decision needs.
    ///
    /// # Errors
    /// The refusal; nothing was staged then.
    pub async fn ask(&self, key: &StreamKey, request: Request) -> Result<Reply, Refusal> {
        self.ask_shard(self.placement.owner(key), request).await
    }

    /// The same for shard `owner`.
    ///
    /// # Errors
    /// The refusal; nothing was staged then.
    pub async fn ask_shard(&self, owner: usize, request: Request) -> Result<Reply, Refusal> {
        let reply = self.call_shard(owner, request).await?;
        self.decided(owner, reply).await
    }

    /// What `reply` of shard `owner` comes to once it has what its decision needs.
    ///
    /// # Errors
    /// The refusal; nothing was staged then.
    pub async fn decided(&self, owner: usize, mut reply: Reply) -> Result<Reply, Refusal> {
        loop {
            let cold = match reply {
                Reply::Cold(cold) => *cold,
                reply => return Ok(reply),
            };
            let request = match cold.lack {
                Lack::Bytes(miss) => Request::Warm(Box::new(Warm {
                    incarnation: miss.incarnation,
                    start: miss.start,
                    bytes: join(self.load(vec![miss.run]).await?),
                    request: cold.request,
                })),
                Lack::Turn => {
                    self.turnstile.pass(Share::Piece).await;
                    cold.request
                }
            };
            reply = self.call_shard(owner, request).await?;
        }
    }

    /// The same runs without inherited ones: their sources' owners say where those are.
    ///
    /// # Errors
    /// [`Refusal::Internal`] when a source no longer has what it should.
    pub async fn sources(&self, runs: Vec<Run>) -> Result<VecDeque<Source>, Refusal> {
        let mut sources = VecDeque::with_capacity(runs.len());
        let mut left = VecDeque::from(runs);
        let mut asked = 0usize;
        while let Some(run) = left.pop_front() {
            match run {
                Run::Memory(bytes) => sources.push_back(Source::Memory(bytes)),
                Run::Block(run) => sources.push_back(Source::Block(run)),
                Run::Inherited(run) => {
                    let inherit = Request::Inherit {
                        source: run.source,
                        start: run.start,
                        end: run.end,
                    };
                    let owner = self.placement.owner(&run.key);
                    // A fork of a fork of a fork, and so on: this core may own them all.
                    asked = asked.saturating_add(1);
                    if asked.is_multiple_of(SOURCES_PER_TURN) {
                        future::yield_now().await;
                    }
                    match self.call_shard(owner, inherit).await? {
                        // They come in its place.
                        Reply::Inherited(Some(runs)) => {
                            runs.into_iter().rev().for_each(|run| left.push_front(run));
                        }
                        _ => return Err(Refusal::Internal),
                    }
                }
            }
        }
        Ok(sources)
    }

    /// The bytes of runs, in memory: for few bytes, or for as many as are charged.
    ///
    /// # Errors
    /// [`Refusal::Internal`]; the log says why.
    pub async fn load(&self, runs: Vec<Run>) -> Result<Vec<Bytes>, Refusal> {
        let sources = self.sources(runs).await?;
        let in_memory = self.in_memory(sources).await?;
        let bytes = in_memory.into_iter().map(|source| match source {
            Source::Memory(bytes) => Ok(bytes),
            Source::Block(_) | Source::File(..) => Err(Refusal::Internal),
        });
        bytes.collect()
    }

    /// The same sources, with the bytes of blocks in memory.
    ///
    /// # Errors
    /// [`Refusal::Internal`]; the log says why.
    pub async fn in_memory(
        &self,
        mut sources: VecDeque<Source>,
    ) -> Result<VecDeque<Source>, Refusal> {
        let blocks: Vec<BlockRun> = sources.iter().filter_map(Source::block).cloned().collect();
        if blocks.is_empty() {
            return Ok(sources);
        }
        let mut ahead = ReadAhead::new(self, &blocks, 1);
        for source in &mut sources {
            if source.block().is_some() {
                let block = ahead.next().await?;
                *source = Source::Memory(Bytes::copy_from_slice(&block));
            }
        }
        Ok(sources)
    }

    /// The bytes of runs, in memory, charged to what clients have yet to take if they were not in
    /// memory anyway.
    ///
    /// # Errors
    /// [`Refusal::BodyBudget`] when there is no memory for them, [`Refusal::Internal`].
    pub async fn load_charged(&self, runs: Vec<Run>) -> Result<Vec<Bytes>, Refusal> {
        let is_cold = |run: &Run| !matches!(run, Run::Memory(_));
        if !runs.iter().any(is_cold) {
            return self.load(runs).await;
        }
        let len: u64 = runs.iter().map(Run::len).sum();
        let mut charge = self.unsent.charge();
        charge.set(len).map_err(|_| Refusal::BodyBudget)?;
        let loaded = self.load(runs).await?;
        Ok(vec![charge.with(loaded.concat())])
    }
}

fn join(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}

/// One part of a block that was read.
pub struct Loaded {
    block: BlockBytes,
    from: usize,
    to: usize,
}

impl std::ops::Deref for Loaded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.get(self.from..self.to).unwrap_or_default()
    }
}

/// Parts of blocks that one read brings.
type Group = Vec<BlockRun>;
/// A read under way.
type Reading = Task<Result<Vec<BlockBytes>, StorageError>>;

/// Reads the blocks of one answer in order, several reads ahead.
pub struct ReadAhead {
    reader: BlockReader<GlommioDisk>,
    turns: Rc<ReadTurns>,
    plan: VecDeque<Group>,
    under_way: VecDeque<(Group, Reading)>,
    ready: VecDeque<Loaded>,
    depth: usize,
    _charge: Option<Charge>,
}

impl ReadAhead {
    /// Plans the reads of `blocks`, at most `depth` of them at once, each of at most 1 MiB.
    #[must_use]
    pub fn new(core: &Core, blocks: &[BlockRun], depth: usize) -> Self {
        Self {
            reader: core.blocks.clone(),
            turns: core.read_turns.clone(),
            plan: reads(blocks, DISK_IO_BYTES_MAX, |run| run.place)
                .map(<[_]>::to_vec)
                .collect(),
            under_way: VecDeque::new(),
            ready: VecDeque::new(),
            depth,
            _charge: None,
        }
    }

    /// The same for an answer that is streamed, charged to what clients have yet to take: with less
    /// ahead when there is little room.
    ///
    /// # Errors
    /// [`Refusal::BodyBudget`] when there is no room for a single read.
    pub fn charged(core: &Rc<Core>, blocks: &[BlockRun]) -> Result<Self, Refusal> {
        let mut ahead = Self::new(core, blocks, READ_AHEAD_MAX);
        let mut charge = core.unsent.charge();
        ahead.depth = ahead.depth.min(ahead.plan.len()).max(1);
        while charge
            .set(ahead.depth.saturating_mul(DISK_IO_BYTES_MAX) as u64)
            .is_err()
        {
            if ahead.depth == 1 {
                return Err(Refusal::BodyBudget);
            }
            ahead.depth = 1;
        }
        ahead._charge = Some(charge);
        Ok(ahead)
    }

    /// What the next read brings: less at once while others wait for the disk.
    fn next_group(&mut self) -> Option<Group> {
        let mut group = self.plan.pop_front()?;
        let bytes_max = self.turns.bytes_max();
        let first = reads(&group, bytes_max, |run| run.place).next()?.len();
        let rest = group.split_off(first);
        if !rest.is_empty() {
            self.plan.push_front(rest);
        }
        Some(group)
    }

    /// Whether the next block's part waits for a read.
    #[must_use]
    pub fn is_read_next(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next block's part if the last read brought it too.
    pub fn next_at_once(&mut self) -> Option<Loaded> {
        self.ready.pop_front()
    }

    /// The next block's part.
    ///
    /// # Errors
    /// [`Refusal::Internal`]; the log says why.
    pub async fn next(&mut self) -> Result<Loaded, Refusal> {
        loop {
            if let Some(loaded) = self.ready.pop_front() {
                return Ok(loaded);
            }
            while self.under_way.len() < self.depth
                && let Some(group) = self.next_group()
            {
                let wanted: Vec<(Place, BlockKey)> =
                    group.iter().map(|run| (run.place, run.key)).collect();
                let reader = self.reader.clone();
                let turns = self.turns.clone();
                let read = glommio::spawn_local(async move {
                    let _turn = turns.take().await;
                    reader.read(&wanted).await
                });
                self.under_way.push_back((group, read));
            }
            let Some((group, read)) = self.under_way.pop_front() else {
                return Err(Refusal::Internal);
            };
            let blocks = read.await.map_err(|error| {
                tracing::error!("{error}");
                Refusal::Internal
            })?;
            let parts = group.iter().zip(blocks).map(|(run, block)| Loaded {
                block,
                from: run.from as usize,
                to: run.to as usize,
            });
            self.ready.extend(parts);
        }
    }
}
