//! The server's side: a hold for as long as a connection of the admin plane
//! lasts.

use std::{path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use futures_lite::FutureExt as _;
use glommio::timer::Timer;
use serde::{Deserialize, Serialize};

use crate::{
    protocol::error::Refusal,
    server::{core::Core, worker::Process},
    shard::{
        across,
        hold::{Cut, Hold},
        request::{Reply, Request},
    },
    storage::{
        checkpoint::Current,
        journal::{Extent, Position},
    },
};

/// How long the shards may take to make their cuts; forks wait as long.
const CUT_PATIENCE: Duration = Duration::from_secs(5);
/// How often a full mailbox is tried.
const RETRY: Duration = Duration::from_millis(1);

/// A hold; it ends with this.
#[derive(Debug)]
pub struct Holding(Arc<Hold>);

impl Holding {
    /// Whether it is in force.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        !self.0.is_broken()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.end();
        tracing::info!("the hold for a backup has ended");
    }
}

/// What is held: how the admin plane answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldDirectory {
    /// Where it is, as the server sees it.
    pub data_dir: PathBuf,
    /// Its identity, see [`Manifest::identity`](crate::storage::manifest::Manifest::identity).
    pub identity: String,
    /// The layout that rules.
    pub layout: u64,
    /// Number of the server's start.
    pub epoch: u64,
    /// What is needed of each shard, in order.
    pub shards: Vec<HeldShard>,
}

/// What is needed of a shard.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldShard {
    /// Its checkpoint.
    pub checkpoint: Option<HeldCheckpoint>,
    /// Number of the first journal file.
    pub first_file: u64,
    /// Number of the last.
    pub last_file: u64,
    /// Bytes of the last.
    pub end: u64,
}

/// A checkpoint that rules.
#[derive(Debug, Serialize, Deserialize)]
pub struct HeldCheckpoint {
    /// Its number.
    pub number: u64,
    /// Position of the first record that is not in it.
    pub replay_from: u64,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

impl From<&Cut> for HeldShard {
    fn from(cut: &Cut) -> Self {
        let Extent {
            first_file,
            last_file,
            end,
        } = cut.journal;
        let checkpoint = cut.checkpoint.as_ref().map(|current| HeldCheckpoint {
            number: current.number,
            replay_from: current.replay_from.0,
            entries: current.entries,
            bytes: current.bytes,
        });
        Self {
            checkpoint,
            first_file,
            last_file,
            end,
        }
    }
}

impl From<&HeldShard> for Cut {
    fn from(shard: &HeldShard) -> Self {
        let checkpoint = shard.checkpoint.as_ref().map(|held| Current {
            number: held.number,
            replay_from: Position(held.replay_from),
            entries: held.entries,
            bytes: held.bytes,
        });
        Self {
            checkpoint,
            journal: Extent {
                first_file: shard.first_file,
                last_file: shard.last_file,
                end: shard.end,
            },
        }
    }
}

/// Why there is no hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHold {
    /// There is one already.
    Taken,
    /// A core did not answer in time.
    Busy,
}

impl From<Refusal> for NoHold {
    fn from(_: Refusal) -> Self {
        Self::Busy
    }
}

/// Begins a hold.
///
/// # Errors
/// [`NoHold`]; nothing is held then.
pub async fn hold(
    process: &Arc<Process>,
    core: &Rc<Core>,
) -> Result<(Holding, HeldDirectory), NoHold> {
    let number = process.hold.begin().ok_or(NoHold::Taken)?;
    // Dropped on every way out of here but the last.
    let holding = Holding(process.hold.clone());
    let late = async {
        Timer::new(CUT_PATIENCE).await;
        Err(NoHold::Busy)
    };
    let shards = process.config.shards;
    let cuts = across::cut_all(&process.hold, number, shards, async |shard, request| {
        ask(core, shard, request).await
    });
    let cuts = cuts.or(late).await?;
    tracing::info!("held for a backup: no space is given back until it ends");
    let data_dir = &process.config.data_dir;
    let held = HeldDirectory {
        data_dir: std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.clone()),
        identity: process.identity.clone(),
        layout: process.layout.number,
        epoch: process.options.first().map_or(0, |options| options.epoch),
        shards: cuts.iter().map(HeldShard::from).collect(),
    };
    Ok((holding, held))
}

async fn ask(
    core: &Rc<Core>,
    shard: usize,
    request: &dyn Fn() -> Request,
) -> Result<Reply, NoHold> {
    loop {
        match core.call_shard(shard, request()).await {
            Ok(reply) => return Ok(reply),
            Err(Refusal::MailboxFull) => Timer::new(RETRY).await,
            Err(refusal) => return Err(refusal.into()),
        };
    }
}
