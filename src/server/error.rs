//! Why the server could not start.

use std::{fmt, io, net::SocketAddr};

use crate::storage::StorageError;

/// A start that failed. Each says what happened, where, and what to do next.
#[derive(Debug)]
pub enum StartError {
    /// The data directory or a journal.
    Storage(StorageError),
    /// A listener.
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An executor.
    Executor {
        /// Which shard's.
        shard: usize,
        /// What glommio said.
        reason: String,
    },
    /// Signal handlers.
    Signals(io::Error),
}

impl From<StorageError> for StartError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(error) => error.fmt(f),
            Self::Listen { address, source } => write!(
                f,
                "cannot listen on {address}: {source}; choose another address with --listen or \
                 --admin-listen, or stop what listens there"
            ),
            Self::Executor { shard, reason } => write!(
                f,
                "cannot start the executor of shard {shard}: {reason}; `thalweg doctor` says what \
                 this machine lacks"
            ),
            Self::Signals(source) => write!(f, "cannot handle signals: {source}"),
        }
    }
}

impl std::error::Error for StartError {}
