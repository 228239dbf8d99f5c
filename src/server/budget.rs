//! Memory that clients can make a core hold: charged before it is held, given
//! back when dropped, and never more than its bound.
//!
//! Atomic only so that a charge may travel with shared bytes; each budget
//! belongs to one core.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::base::limits::UNSENT_SMALL_BYTES;

/// A bound on bytes held.
#[derive(Clone, Debug)]
pub struct Budget(Arc<State>);

#[derive(Debug)]
struct State {
    held: AtomicU64,
    bytes_max: u64,
}

/// The budget is used up.
#[derive(Debug, PartialEq, Eq)]
pub struct Exceeded;

impl Budget {
    /// A budget of `bytes_max`.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(State {
            held: AtomicU64::new(0),
            bytes_max,
        }))
    }

    /// Bytes held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Its bound, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.0.bytes_max
    }

    /// Whether half of it or more is held.
    #[must_use]
    pub fn is_half_used(&self) -> bool {
        self.held() >= self.0.bytes_max / 2
    }

    /// A charge of nothing yet.
    #[must_use]
    pub fn charge(&self) -> Charge {
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }
}

/// Bytes that one holder is charged; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// Changes the charge to `bytes`. Less is always possible.
    ///
    /// # Errors
    /// [`Exceeded`]; the charge is what it was.
    pub fn set(&mut self, bytes: u64) -> Result<(), Exceeded> {
        let state = &self.budget.0;
        if let Some(more) = bytes.checked_sub(self.bytes) {
            let held = state.held.fetch_add(more, Ordering::Relaxed);
            if held.saturating_add(more) > state.bytes_max && more > 0 {
                state.held.fetch_sub(more, Ordering::Relaxed);
                return Err(Exceeded);
            }
        } else {
            let less = self.bytes.saturating_sub(bytes);
            state.held.fetch_sub(less, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Charges `bytes` that a client has yet to take; up to [`UNSENT_SMALL_BYTES`] they may be kept
    /// whatever the budget says.
    ///
    /// # Errors
    /// [`Exceeded`]; the charge is what it was.
    pub fn keep(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let bytes = bytes as u64;
        self.set(bytes).or_else(|exceeded| {
            if bytes <= UNSENT_SMALL_BYTES {
                Ok(())
            } else {
                Err(exceeded)
            }
        })
    }

    /// Ties the charge to `text`: it is given back with the last reference.
    #[must_use]
    pub fn with(self, text: Vec<u8>) -> Bytes {
        Bytes::from_owner(Charged {
            text,
            _charge: self,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Charged {
    text: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_never_pass_the_bound_and_are_given_back() {
        let budget = Budget::new(10);
        let (mut a, mut b) = (budget.charge(), budget.charge());
        assert_eq!(a.set(6), Ok(()));
        assert_eq!(b.set(5), Err(Exceeded));
        assert_eq!(b.set(4), Ok(()));
        assert_eq!(a.set(7), Err(Exceeded));
        assert_eq!(a.set(2), Ok(()));
        assert_eq!(budget.held(), 6);
        drop(a);
        assert_eq!(budget.held(), 4);
        assert_eq!(b.keep(UNSENT_SMALL_BYTES as usize), Ok(()));
        assert_eq!(b.keep(UNSENT_SMALL_BYTES as usize + 1), Err(Exceeded));
        assert_eq!(budget.held(), 4);
        let text = b.with(vec![0; 4]);
        let shared = text.clone();
        drop(text);
        assert_eq!(budget.held(), 4);
        drop(shared);
        assert_eq!(budget.held(), 0);
    }
}
