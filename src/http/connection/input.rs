//! The bytes a connection has received and not yet let go of.
//!
//! ```text
//! 0 ≤ kept.start ≤ kept.end ≤ next ≤ end ≤ bytes.len()
//!     [ kept head )           [ pending )  [ room )
//! ```
//!
//! Guarantees: the kept head stays readable while the body behind it comes and goes; the buffer
//! never exceeds the bound that [`Input::space`] is given; it grows only for a client that fills
//! it, not for one that announces much.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::base::limits::KIB;

/// First size of the buffer, in bytes: a common head with a small body.
pub(super) const INPUT_BYTES_MIN: usize = 4 * KIB;
/// Less room than this is not worth a read, in bytes, while the buffer may grow or move.
const ROOM_BYTES_MIN: usize = KIB;

#[derive(Debug, Default)]
pub(super) struct Input {
    /// Initialised throughout, so that a read has somewhere to go.
    bytes: Vec<u8>,
    /// The head in hand; empty while there is none.
    kept: Range<usize>,
    /// First byte that nothing has taken.
    next: usize,
    /// End of what has been received.
    end: usize,
}

impl Input {
    /// What has been received and not taken.
    pub(super) fn pending(&self) -> &[u8] {
        self.bytes.get(self.next..self.end).unwrap_or_default()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.next < self.end
    }

    /// Bytes of the head in hand and of what is pending.
    pub(super) fn held_bytes(&self) -> usize {
        self.kept.len().saturating_add(self.pending().len())
    }

    /// The head in hand.
    pub(super) fn kept(&self) -> &[u8] {
        self.bytes.get(self.kept.clone()).unwrap_or_default()
    }

    /// Takes `count` pending bytes and keeps them readable until [`Self::forget`].
    pub(super) fn keep(&mut self, count: usize) {
        let start = self.next;
        self.advance(count);
        self.kept = start..self.next;
    }

    /// Lets go of the head in hand.
    pub(super) fn forget(&mut self) {
        self.kept = self.next..self.next;
    }

    /// Takes `count` pending bytes and shows those of them that `part` names.
    pub(super) fn take(&mut self, count: usize, part: Range<usize>) -> &[u8] {
        let start = self.next;
        self.advance(count);
        let taken = self.bytes.get(start..self.next).unwrap_or_default();
        taken.get(part).unwrap_or_default()
    }

    /// Takes and drops everything that is pending; says how much that was.
    pub(super) fn discard(&mut self) -> usize {
        let bytes = self.end.saturating_sub(self.next);
        (self.kept, self.next, self.end) = (0..0, 0, 0);
        bytes
    }

    /// Room for a read, in a buffer of at most `bytes_max`; it grows only if it `may_grow`.
    pub(super) fn space(&mut self, may_grow: bool, bytes_max: usize) -> &mut [u8] {
        // A read that filled the buffer says that more is on its way; one that did not says that
        // this client needs no larger one.
        let was_filled = self.end == self.bytes.len();
        let is_short = |input: &Self| input.room() < ROOM_BYTES_MIN;
        if was_filled || is_short(self) {
            self.compact();
            if may_grow && (was_filled || is_short(self)) {
                let doubled = self.bytes.len().saturating_mul(2).max(INPUT_BYTES_MIN);
                self.bytes
                    .resize(doubled.min(bytes_max).max(self.bytes.len()), 0);
            }
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// `count` bytes were read into [`Self::space`].
    pub(super) fn received(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.end = self.end.saturating_add(count).min(self.bytes.len());
    }

    /// Gives the buffer back; what is in it is no longer of use.
    pub(super) fn release(&mut self) -> Vec<u8> {
        std::mem::take(self).bytes
    }

    /// Takes over a buffer, initialised throughout, unless it has one.
    pub(super) fn lend(&mut self, bytes: Vec<u8>) {
        if self.bytes.is_empty() {
            self.bytes = bytes;
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn room(&self) -> usize {
        self.bytes.len().saturating_sub(self.end)
    }

    fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.end.saturating_sub(self.next));
        self.next = self.next.saturating_add(count).min(self.end);
    }

    /// Moves the kept head to the front and what is pending behind it.
    fn compact(&mut self) {
        let kept = self.kept.len();
        let pending = self.end.saturating_sub(self.next);
        // Both move down, and the first ends before the second starts: nothing is overwritten
        // before it has moved.
        self.bytes.copy_within(self.kept.clone(), 0);
        self.bytes.copy_within(self.next..self.end, kept);
        self.kept = 0..kept;
        self.next = kept;
        self.end = kept.saturating_add(pending);
    }
}
