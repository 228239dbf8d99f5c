//! The sweep: streams whose life is over are deleted, and staged parts that
//! no commit used are dropped, in small steps.
//!
//! Correctness does not rest on it: a request that meets an expired stream
//! deletes it on the spot. The sweep gives the space back of streams nobody
//! asks for. Each entry carries the incarnation it was made for, so a stream
//! of the same name that came later is never touched (cases/storage.md 8).

use std::cmp::Reverse;

use crate::shard::owner::Shard;

/// Entries looked at in one step.
const STEP_ENTRIES: usize = 256;

impl Shard {
    /// Looks at some of what may be over; true when more is due.
    pub fn sweep_expired(&self) -> bool {
        let now_ms = self.now_ms();
        for _ in 0..STEP_ENTRIES {
            let over = {
                let mut tables = self.tables.borrow_mut();
                let Some(Reverse((due_ms, incarnation))) = tables.expiries.peek().copied() else {
                    return false;
                };
                if due_ms > now_ms {
                    return false;
                }
                tables.expiries.pop();
                let slot = tables.slot_of(incarnation);
                let stream = slot.and_then(|slot| tables.streams.get(slot));
                match (slot, stream) {
                    (Some(slot), Some(stream)) if stream.is_over(now_ms) => {
                        (!stream.staged.soft_deleted).then_some((slot, incarnation))
                    }
                    // Renewed since, or held by a live reader: look again when it can be over.
                    (Some(_), Some(stream)) => {
                        let state = &stream.staged;
                        let end_ms = state.lifetime.expires_ms(state.renewed_ms);
                        let again_ms = end_ms.unwrap_or(u64::MAX).max(now_ms.saturating_add(1000));
                        tables.expiries.push(Reverse((again_ms, incarnation)));
                        None
                    }
                    _ => None,
                }
            };
            let Some((slot, incarnation)) = over else {
                continue;
            };
            if self.remove_stream(slot).is_err() {
                // No room for the record now: try again in a second.
                let mut tables = self.tables.borrow_mut();
                tables
                    .expiries
                    .push(Reverse((now_ms.saturating_add(1000), incarnation)));
                return false;
            }
        }
        true
    }

    /// Drops staged parts that no commit used within a day. `from` is where the last step ended;
    /// returns where the next one starts, or `None` at the end of the table.
    pub fn sweep_parts(&self, from: usize) -> Option<usize> {
        let now_ms = self.now_ms();
        let (old, end) = {
            let tables = self.tables.borrow();
            let end = from.saturating_add(STEP_ENTRIES);
            let mut old = Vec::new();
            for slot in from..end.min(tables.streams.capacity()) {
                let Some(stream) = tables.streams.get(slot).filter(|stream| !stream.deleted) else {
                    continue;
                };
                let Some(rare) = &stream.staged.rare else {
                    continue;
                };
                if rare.parts.commit_running {
                    continue;
                }
                let ids: Vec<Box<str>> = rare.parts.too_old(now_ms).map(Into::into).collect();
                if !ids.is_empty() {
                    old.push((slot, stream.staged.incarnation, ids));
                }
            }
            (old, (end < tables.streams.capacity()).then_some(end))
        };
        for (slot, incarnation, ids) in old {
            // Without room for the record they stay until the next round.
            let _ = self.stage_discard(slot, incarnation, ids);
        }
        end
    }
}
