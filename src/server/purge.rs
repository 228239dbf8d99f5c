//! Bucket purge over all shards (extensions 1.2; design, Operations across
//! shards).
//!
//! The fence is durable on every shard before any stream goes, so that a
//! purge that was interrupted is finished by the next start.

use std::{rc::Rc, time::Duration};

use futures_lite::future;
use glommio::timer::Timer;

use crate::{
    protocol::error::Refusal,
    server::core::Core,
    shard::{
        purge::Purged,
        request::{Reply, Request},
    },
};

/// Left to the shards between two rounds to tell each other which forks are gone.
const RELEASE_PAUSE: Duration = Duration::from_millis(5);

/// Fences a bucket on every shard, then removes what it held. Answers when nothing is left but
/// what forks in other buckets inherited: how many streams went, and how many bytes stay.
///
/// # Errors
/// What a shard refuses a write for. What went is gone then; asked again, it goes on.
pub async fn purge(core: &Rc<Core>, shards: usize, bucket: &str) -> Result<(u64, u64), Refusal> {
    let shards = 0..shards;
    let fences: Vec<_> = shards
        .clone()
        .map(|shard| core.call_shard(shard, Request::Fence(bucket.into())))
        .collect();
    for fence in fences {
        fence.await?;
    }
    let mut streams = 0_u64;
    let mut kept_before = None;
    // A source is kept by forks that are in the bucket, too, until they have gone and their shards
    // have told its shard: what stays is known when two rounds agree.
    loop {
        let mut round = Purged::default();
        for shard in shards.clone() {
            round.add(sweep(core, shard, Some(bucket)).await?);
        }
        streams = round.streams.saturating_add(streams);
        let kept = round.inherited_bytes;
        if round.streams == 0 && (kept == 0 || kept_before == Some(kept)) {
            return Ok((streams, kept));
        }
        kept_before = Some(kept);
        if kept > 0 {
            Timer::new(RELEASE_PAUSE).await;
        }
    }
}

/// Finishes the purges that this core's shard was not done with when the process ended before.
pub async fn resume(core: Rc<Core>) {
    if !core.shard.fenced().is_empty() {
        // Refused, it is for the next start or the operator: the fences stand.
        let _ = sweep(&core, core.id, None).await;
    }
}

/// Has one shard go over its table, slice by slice.
async fn sweep(core: &Rc<Core>, shard: usize, bucket: Option<&str>) -> Result<Purged, Refusal> {
    let mut all = Purged::default();
    let mut from = Some(0);
    while let Some(slot) = from {
        let slice = Request::PurgeSlice {
            bucket: bucket.map(Into::into),
            from: slot,
        };
        let Reply::Purged(slice) = core.call_shard(shard, slice).await? else {
            return Err(Refusal::Internal);
        };
        from = slice.next;
        all.add(slice);
        future::yield_now().await;
    }
    Ok(all)
}
