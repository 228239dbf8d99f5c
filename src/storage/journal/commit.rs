//! Batches on their way to the disk.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Place;
use super::batch::SealedBatch;
use crate::storage::disk::{Disk, DiskFile, write_all_at};
use crate::storage::error::StorageError;

/// A batch on its way.
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// Where it ends: number of the file, and bytes.
    pub(super) end: (u64, u64),
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
    write_all_at(&file.file, &file.path, batch.pieces, offset).await?;
    if sync {
        file.file
            .sync_data()
            .await
            .map_err(StorageError::io_at("sync", &file.path, offset))?;
    }
    Ok(())
}
