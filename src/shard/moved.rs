//! Places that were given up for others: they go when a checkpoint rules that
//! names the others.

use crate::{base::queue::Queue, storage::segment::Place};

/// Those that were given up since a checkpoint began.
#[derive(Debug, Default)]
pub(super) struct Moved {
    places: Queue<Place>,
    /// Bytes of their blocks.
    bytes: u64,
}

impl Moved {
    /// Bytes of their blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, place: Place) {
        self.bytes = self.bytes.saturating_add(place.bytes());
        self.places.push_back(place);
    }

    pub(super) fn pop(&mut self) -> Option<Place> {
        let place = self.places.pop_front()?;
        self.bytes = self.bytes.saturating_sub(place.bytes());
        Some(place)
    }

    /// Adds those that were given up before.
    pub(super) fn put_back(&mut self, before: Self) {
        self.bytes = self.bytes.saturating_add(before.bytes);
        let since = std::mem::replace(&mut self.places, before.places);
        self.places.append(since);
    }
}
