//! The way of one request to its owner and back, in moments: what a profile
//! needs to tell the stages of a wait apart.

use crate::storage::journal::BatchTimes;

/// Moments of one request, in nanoseconds of
/// [`Clock::monotonic_ns`](crate::base::time::Clock::monotonic_ns), which all cores share; 0 for
/// what did not happen or is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trip {
    /// The owner took it from its mailbox; 0 when it came from the owner's own connection.
    pub received_ns: u64,
    /// The owner had decided it and, if it is a write, staged it.
    pub decided_ns: u64,
    /// The batch it rests on was issued; 0 when that was durable already.
    pub issued_ns: u64,
    /// The batch it rests on became durable; 0 when it was already.
    pub durable_ns: u64,
    /// The answer arrived at the core that asked; 0 when it never left it.
    pub returned_ns: u64,
}

impl Trip {
    /// A request decided at `decided_ns` by the core that asked.
    #[must_use]
    pub fn local(decided_ns: u64) -> Self {
        Self {
            decided_ns,
            ..Self::default()
        }
    }

    /// The same request once the batch it waited for is durable.
    #[must_use]
    pub fn committed(self, times: BatchTimes) -> Self {
        Self {
            issued_ns: times.issued_ns,
            durable_ns: times.durable_ns,
            ..self
        }
    }

    /// The same request once its answer has come back.
    #[must_use]
    pub fn returned(self, returned_ns: u64) -> Self {
        Self {
            returned_ns,
            ..self
        }
    }
}
