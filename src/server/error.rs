//! Why the server could not start.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

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
    /// A fork's source lacks bytes that the fork inherits.
    LostSource {
        /// The source's key.
        source: String,
        /// Up to which offset.
        offset: u64,
    },
    /// A repair found no batch that verifies, in no journal.
    NothingLeft {
        /// The data directory.
        data_dir: PathBuf,
    },
    /// A repair could not make sense of what is left.
    Repair {
        /// Why.
        reason: String,
    },
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
            Self::NothingLeft { data_dir } => write!(
                f,
                "nothing in the journals of {} verifies, so there is nothing to repair: restore it \
                 from a copy, or choose an empty data directory",
                data_dir.display()
            ),
            Self::Repair { reason } => write!(
                f,
                "the repair failed: {reason}; nothing was switched: keep the directory and report \
                 this"
            ),
            Self::Signals(source) => write!(f, "cannot handle signals: {source}"),
            Self::LostSource { source, offset } => write!(
                f,
                "stream {source:?} lacks bytes before offset {offset} that a fork inherits: its \
                 records are damaged or gone; `thalweg inspect` says which, and `--repair` starts \
                 the fork at its own bytes"
            ),
        }
    }
}

impl std::error::Error for StartError {}
