//! Group commit: staging on one side, batches to the disk on the other.
//!
//! No timer and no linger: a batch is issued as soon as one of the
//! `in_flight_max` places is free and there is something to issue, with
//! whatever was staged by then. Under load a batch therefore holds what
//! arrived while its predecessors were on their way.
//!
//! Batches may finish in any order; they are made durable in order. When one
//! fails, none that is under way is acknowledged any more, not even an older
//! one whose own sync succeeds: syncs of one file overlap, and the kernel tells
//! an error of writing back to one of them only. Those under way are waited
//! for, since the disk still reads from their memory, and forgotten.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use super::batch::{OpenBatch, SealedBatch};
use super::commit::{Commit, Flight, Flights, commit};
use super::format::{BatchHeader, FILE_HEADER_BYTES};
use super::reader::Span;
use super::{
    BatchNumber, ClosedBatch, Durability, Health, Inner, Journal, Place, Purpose, Queue,
    StageError, SyncMethod,
};
use crate::storage::disk::Disk;
use crate::storage::error::StorageError;

impl<D: Disk> Inner<D> {
    pub(super) fn stage(
        &self,
        purpose: Purpose,
        parts: &[&[u8]],
    ) -> Result<BatchNumber, StageError> {
        if self.latched.get() || self.closing.get() {
            return Err(StageError::Latched);
        }
        let payload = parts.iter().map(|part| part.len()).sum::<usize>();
        if payload > self.options.record_bytes_max {
            return Err(StageError::TooLarge);
        }
        let mut queue = self.queue.borrow_mut();
        let queue = &mut *queue;
        if queue
            .open
            .as_ref()
            .is_some_and(|open| open.padded_with(payload) > self.options.batch_limit())
        {
            self.close_open(queue);
        }
        let has_room = match (self.lack.get(), purpose) {
            (Health::Ok, _) => queue.has_room(payload, &self.options, purpose),
            // The reserve was not kept whole for nothing, but is it still there?
            (Health::DiskPressure, Purpose::Free) => {
                queue.has_prepared(payload, &self.options, purpose)
                    || (queue.has_room(payload, &self.options, purpose)
                        && self.observed.free_bytes.get() >= self.options.file_bytes)
            }
            _ => false,
        };
        if !has_room {
            self.count(|stats| stats.refused = stats.refused.saturating_add(1));
            self.roll.raise();
            return Err(StageError::DiskPressure);
        }
        let open = queue.open.get_or_insert_with(|| {
            let number = queue.next_number;
            queue.next_number = number.saturating_add(1);
            OpenBatch::new(
                &self.disk,
                self.options.batch_limit(),
                number,
                queue.next_record,
            )
        });
        open.push(&self.disk, parts, payload as u32);
        queue.next_record = queue.next_record.saturating_add(1);
        let number = open.number();
        self.count(|stats| {
            stats.records = stats.records.saturating_add(1);
            stats.record_bytes = stats.record_bytes.saturating_add(payload as u64);
        });
        if self.in_flight.get() < self.options.in_flight_max {
            self.work.raise();
        }
        Ok(BatchNumber(number))
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut super::JournalStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Ends the filling of the open batch, if there is one.
    fn close_open(&self, queue: &mut Queue<D>) {
        let Some(batch) = queue.open.take() else {
            return;
        };
        let place = match queue.closed.back() {
            Some(ClosedBatch { place: None, .. }) => None,
            _ => self.place(queue, &batch),
        };
        if place.is_none() {
            queue.unplaced_bytes = queue.unplaced_bytes.saturating_add(batch.padded());
            self.roll.raise();
        }
        queue.closed.push_back(ClosedBatch { batch, place });
    }

    /// Takes the batch's place in the file in use or the next one; `None` if there is no next.
    pub(super) fn place(&self, queue: &mut Queue<D>, batch: &OpenBatch) -> Option<Place<D>> {
        let bytes = batch.padded();
        if queue.active.room_at(queue.active_offset) < bytes {
            queue.active = queue.ready.pop_front()?;
            queue.active_offset = FILE_HEADER_BYTES;
            assert!(
                bytes <= queue.active.room_at(FILE_HEADER_BYTES),
                "a batch fits a file"
            );
            let span = Span {
                first_number: batch.number(),
                first_record: batch.first_record(),
            };
            queue.spans.push_back((queue.active.number(), span));
            self.count(|stats| stats.rolls = stats.rolls.saturating_add(1));
            self.roll.raise();
        }
        let place = Place {
            file: queue.active.clone(),
            offset: queue.active_offset,
        };
        queue.active_offset = queue.active_offset.saturating_add(bytes);
        Some(place)
    }

    /// The next batch to issue, complete, and where it goes.
    fn next_batch(&self) -> Option<(Place<D>, SealedBatch)> {
        let mut queue = self.queue.borrow_mut();
        let queue = &mut *queue;
        if queue.closed.is_empty() {
            self.close_open(queue);
        }
        let mut first = queue.closed.pop_front()?;
        if first.place.is_none() {
            first.place = self.place(queue, &first.batch);
            if first.place.is_some() {
                let bytes = first.batch.padded();
                queue.unplaced_bytes = queue.unplaced_bytes.saturating_sub(bytes);
            }
        }
        match first.place {
            Some(place) => {
                let batch = first.batch.seal(self.header(0, &place));
                Some((place, batch))
            }
            None => {
                queue.closed.push_front(first);
                None
            }
        }
    }

    /// What a batch's header says about where and when it is written.
    pub(super) fn header(&self, flags: u32, place: &Place<D>) -> BatchHeader {
        BatchHeader {
            flags,
            journal_id: self.home.journal_id,
            epoch: self.options.epoch,
            durable: self.proven.get(),
            file_number: place.file.number(),
            offset: place.offset,
            number: 0,
            first_record: 0,
            body_bytes: 0,
            record_count: 0,
            body_checksum: 0,
        }
    }

    fn is_idle(&self) -> bool {
        let queue = self.queue.borrow();
        self.in_flight.get() == 0 && queue.open.is_none() && queue.closed.is_empty()
    }
}

impl<D: Disk> Queue<D> {
    /// True if a record of `payload` bytes can be staged: its batch has a place in files that
    /// exist, or what has no place yet fits the reserve that the file system keeps free for it.
    fn has_room(&self, payload: usize, options: &super::Options, purpose: Purpose) -> bool {
        let batch = self.batch_with(payload);
        self.has_prepared(payload, options, purpose)
            || self.unplaced_bytes.saturating_add(batch) <= options.reserve_bytes
    }

    /// True if the batch of a record of `payload` bytes has a place in files that exist, and what
    /// must be left for others is left.
    fn has_prepared(&self, payload: usize, options: &super::Options, purpose: Purpose) -> bool {
        let batch = self.batch_with(payload);
        let active = self.active.room_at(self.active_offset);
        let ready = (self.ready.len() as u64)
            .saturating_mul(options.file_bytes.saturating_sub(FILE_HEADER_BYTES));
        let left = match active.checked_sub(batch) {
            Some(left) => Some(left.saturating_add(ready)),
            // It goes to the next file.
            None => ready.checked_sub(batch),
        };
        let kept = match purpose {
            Purpose::Store => options.freeing_bytes,
            Purpose::Free => 0,
        };
        self.unplaced_bytes == 0 && left.is_some_and(|left| left >= kept)
    }

    /// Bytes of the open batch with a record of `payload` bytes more.
    fn batch_with(&self, payload: usize) -> u64 {
        match &self.open {
            Some(open) => open.padded_with(payload),
            None => OpenBatch::padded_alone(payload),
        }
    }
}

impl<D: Disk> Journal<D> {
    /// Commits what is staged, and makes files ahead, until [`Self::close`] or a failure.
    ///
    /// `on_durable` is called after each batch that becomes durable, in order. `on_failed` is
    /// called once if the journal latches. Both may stage and ask, but must not wait.
    pub async fn run(&self, on_durable: impl Fn(BatchNumber), on_failed: impl Fn(&StorageError)) {
        let inner = &*self.0;
        let mut flights = Flights::default();
        let mut space = pin!(inner.keep_space());
        poll_fn(|cx| {
            while inner.work.poll_take(cx).is_ready() {}
            if let Some(error) = inner.broken.take() {
                inner.latch(&error, &on_failed);
            }
            let Poll::Pending = space.as_mut().poll(cx);
            loop {
                let issued = inner.issue(&mut flights);
                if let Err(error) = flights.poll(cx) {
                    inner.latch(&error, &on_failed);
                }
                if inner.latched.get() {
                    return if flights.all_done() {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    };
                }
                let landed = inner.land(&mut flights, &on_durable);
                if inner.closing.get() && inner.is_idle() {
                    return Poll::Ready(());
                }
                if !issued && !landed {
                    return Poll::Pending;
                }
            }
        })
        .await;
        inner.in_flight.set(0);
        inner.ended.set(true);
        inner.end.raise();
    }
}

impl<D: Disk> Inner<D> {
    /// Issues batches while there are free places; true if one was issued.
    fn issue(&self, flights: &mut Flights) -> bool {
        let mut issued = false;
        while flights.len() < self.options.in_flight_max && !self.latched.get() {
            let Some((place, batch)) = self.next_batch() else {
                break;
            };
            let (number, bytes) = (batch.header.number, batch.header.batch_bytes());
            let end = (place.file.number(), place.offset.saturating_add(bytes));
            let sync = self.options.syncs();
            self.observed.issued(number);
            self.count(|stats| {
                stats.writes = stats.writes.saturating_add(batch.pieces.len() as u64);
                stats.syncs = stats.syncs.saturating_add(u64::from(sync));
            });
            let commit: Commit = Box::pin(commit(place, batch, sync));
            flights.push(Flight {
                number,
                bytes,
                end,
                commit: Some(commit),
            });
            issued = true;
        }
        self.in_flight.set(flights.len());
        issued
    }

    /// Makes finished batches durable, in order; true if there was one.
    fn land(&self, flights: &mut Flights, on_durable: &impl Fn(BatchNumber)) -> bool {
        let mut landed = false;
        while let Some(flight) = flights.pop_done() {
            let Flight {
                number, bytes, end, ..
            } = flight;
            let next = self.durable.get().saturating_add(1);
            assert_eq!(number, next, "batches land in order");
            landed = true;
            self.in_flight.set(flights.len());
            self.durable.set(number);
            self.durable_end.set(end);
            self.observed.landed(number);
            if self.options.durability == Durability::Sync {
                self.proven.set(number);
            }
            self.count(|stats| {
                stats.batches = stats.batches.saturating_add(1);
                stats.batch_bytes = stats.batch_bytes.saturating_add(bytes);
            });
            on_durable(BatchNumber(number));
        }
        landed
    }

    fn latch(&self, error: &StorageError, on_failed: &impl Fn(&StorageError)) {
        if self.latched.replace(true) {
            return;
        }
        tracing::error!(
            shard = self.home.shard,
            %error,
            "the journal has stopped: what was not acknowledged is in doubt, writes are refused, \
             reads go on; mend the disk and restart"
        );
        on_failed(error);
    }
}

impl super::Options {
    /// True if a batch is followed by a sync of its own.
    fn syncs(&self) -> bool {
        self.durability == Durability::Sync && self.sync_method == SyncMethod::Fdatasync
    }
}
