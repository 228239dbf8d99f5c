//! The sweep: streams whose life is over are deleted, and staged parts that
//! no commit used are dropped, in small steps.
//!
//! Correctness does not rest on it: a request that meets an expired stream
//! deletes it on the spot. The sweep gives the space back of streams nobody
//! asks for. What is over by the wall clock is looked at when that shows so;
//! what could not be deleted then, again a second later by the monotonic clock:
//! a step of the wall clock, or its being set right, delays nothing.
//!
//! Each entry carries the incarnation it was made for, so a stream
//! of the same name that came later is never touched (cases/storage.md 8).

use crate::{
    protocol::incarnation::Incarnation,
    shard::{owner::Shard, tables::Tables},
};

/// Entries looked at in one step.
const STEP_ENTRIES: usize = 256;
/// What could not be deleted is looked at again after this, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;

impl Tables {
    /// The next stream that may be over, taken off the lists.
    fn next_expiry(&mut self, now_ms: u64, now_ns: u64) -> Option<Incarnation> {
        if let Some((due_ns, incarnation)) = self.overdue.front().copied()
            && due_ns <= now_ns
        {
            self.overdue.pop_front();
            return Some(incarnation);
        }
        let (due_ms, incarnation) = self.expiries.first().copied()?;
        if due_ms > now_ms {
            return None;
        }
        self.expiries.pop_first();
        Some(incarnation)
    }

    fn look_again(&mut self, now_ns: u64, incarnation: Incarnation) {
        let due_ns = now_ns.saturating_add(AGAIN_NS);
        self.overdue.push_back((due_ns, incarnation));
    }
}

impl Shard {
    /// Looks at some of what may be over; true when more is due.
    pub fn sweep_expired(&self) -> bool {
        let (now_ms, now_ns) = (self.now_ms(), self.clock.monotonic_ns());
        for _ in 0..STEP_ENTRIES {
            let over = {
                let mut tables = self.tables.borrow_mut();
                let Some(incarnation) = tables.next_expiry(now_ms, now_ns) else {
                    return false;
                };
                let slot = tables.slot_of(incarnation);
                let stream = slot.and_then(|slot| tables.streams.get(slot));
                match (slot, stream) {
                    (Some(slot), Some(stream)) if stream.is_over(now_ms) => {
                        (!stream.staged.soft_deleted).then_some((slot, incarnation))
                    }
                    (Some(_), Some(stream)) => {
                        let state = &stream.staged;
                        match state.lifetime.expires_ms(state.renewed_ms) {
                            // Renewed since, or the clock was set back.
                            Some(end_ms) if end_ms > now_ms => {
                                tables.expiries.insert((end_ms, incarnation));
                            }
                            // Held by a live reader.
                            Some(_) => tables.look_again(now_ns, incarnation),
                            None => {}
                        }
                        None
                    }
                    _ => None,
                }
            };
            let Some((slot, incarnation)) = over else {
                continue;
            };
            if self.remove_stream(slot).is_err() {
                // No room for the record now.
                self.tables.borrow_mut().look_again(now_ns, incarnation);
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
                let Some(stream) = tables
                    .streams
                    .get(slot)
                    .filter(|stream| !stream.is_deleted())
                else {
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
