//! Batches on their way to the disk.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Place;
use super::batch::SealedBatch;
use crate::storage::disk::{Disk, DiskFile, write_whole};
use crate::storage::error::StorageError;

/// A batch on its way.
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// `None` once it has succeeded.
    pub(super) commit: Option<Commit>,
}

pub(super) type Commit = Pin<Box<dyn Future<Output = Result<(), StorageError>>>>;

/// Batches on their way, oldest first.
#[derive(Default)]
pub(super) struct Flights(VecDeque<Flight>);

impl Flights {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, flight: Flight) {
        self.0.push_back(flight);
    }

    /// Polls all; the first error. One that failed counts as done, so that polling can go on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), StorageError> {
        let mut outcome = Ok(());
        for flight in &mut self.0 {
            if let Some(commit) = &mut flight.commit
                && let Poll::Ready(result) = commit.as_mut().poll(cx)
            {
                flight.commit = None;
                outcome = outcome.and(result);
            }
        }
        outcome
    }

    /// The oldest, if it has succeeded.
    pub(super) fn pop_done(&mut self) -> Option<Flight> {
        self.0.pop_front_if(|flight| flight.commit.is_none())
    }

    pub(super) fn all_done(&self) -> bool {
        self.0.iter().all(|flight| flight.commit.is_none())
    }
}

/// Writes one batch and, if asked, syncs it. All of its pieces are on their way together.
pub(super) async fn commit<D: Disk>(
    place: Place<D>,
    batch: SealedBatch,
    sync: bool,
) -> Result<(), StorageError> {
    let Place { file, offset } = place;
    let mut at = offset;
    let mut pieces = batch.pieces.into_iter();
    let (first, rest) = (pieces.next(), pieces);
    let Some(first) = first else { return Ok(()) };
    let first_len = first.len() as u64;
    if rest.len() == 0 {
        write_whole(&file.file, &file.path, first, at).await?;
    } else {
        let mut writes: Vec<Write<'_>> =
            vec![Box::pin(write_whole(&file.file, &file.path, first, at))];
        at += first_len;
        for piece in rest {
            let len = piece.len() as u64;
            writes.push(Box::pin(write_whole(&file.file, &file.path, piece, at)));
            at += len;
        }
        all(writes).await?;
    }
    if sync {
        file.file
            .sync_data()
            .await
            .map_err(StorageError::io_at("sync", &file.path, offset))?;
    }
    Ok(())
}

type Write<'a> = Pin<Box<dyn Future<Output = Result<(), StorageError>> + 'a>>;

/// Waits for all; the first error in order, when all have finished.
async fn all(mut futures: Vec<Write<'_>>) -> Result<(), StorageError> {
    let mut results: Vec<Option<_>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
