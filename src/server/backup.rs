//! `thalweg backup` and `thalweg restore`: a copy of a data directory, taken
//! while the server serves, and a data directory made from one.
//!
//! ```text
//! thalweg backup                      the server (hold)
//!   POST /__ursula/backup ──────────> nothing that is needed is removed from now on;
//!        <── each shard's cut ─────── which checkpoint, which files, up to where
//!   copies the files, piece by piece, with its own reads
//!   DELETE /__ursula/backup ────────> was the hold in force all the time? it ends
//!   reads the copy as `inspect` does
//!   DIR.partial ──rename──> DIR
//! ```
//!
//! What is guaranteed of a backup:
//! - Every stream is in it as it was at one moment of its shard's durable
//!   journal, after the backup began: nothing is missing that was acknowledged
//!   before. The shards' moments are milliseconds apart, and together a state
//!   that a crash could have left ([`shard::hold`](crate::shard::hold)).
//! - It has its name only when it is whole: all files are written and synced
//!   under another name, then read back and verified as `inspect` does, then
//!   [`contents`] lists them with lengths and digests, then one rename. Killed
//!   before that, it leaves `DIR.partial`, which the next backup to `DIR`
//!   removes and which `restore` and `serve` refuse; SIGINT and SIGTERM leave
//!   nothing ([`interrupt`]).
//! - The hold ends with the connection that asked for it, so with the process,
//!   and when that says nothing for [`HOLD_TIMEOUT`]. When the server ends or
//!   breaks the hold, the backup fails.
//! - A directory that no server has is locked and copied as it lies.
//!
//! And of a restore: what it reads is what the backup wrote, by every file's
//! digest, checked before the first byte is written and again in what was
//! written. Until it is whole, the target is marked, and `serve` refuses it.
//!
//! The server does nothing for it but hold; reading, hashing and writing are
//! this process's, so its executors never wait for the copy.

use std::{fmt, path::Path, path::PathBuf, process::ExitCode, time::Duration};

pub mod contents;
mod copy;
mod error;
pub mod held;
mod interrupt;
mod operator;
mod restore;
mod take;

pub use self::error::BackupError;

/// A hold ends when its connection has said nothing for this long.
pub const HOLD_TIMEOUT: Duration = Duration::from_secs(60);
/// A server that goes down waits this long for the backup to ask after its hold and hear that it is
/// over; one that is stopped or hangs does not ask.
pub const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// What to back up, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupOptions {
    /// Address and port of the serving server's admin plane; `None` when no server has it.
    pub admin: Option<String>,
    /// The data directory; the server's own word for it if `None`.
    pub data_dir: Option<PathBuf>,
    /// The directory to make.
    pub to: PathBuf,
}

/// Takes a backup, and says so.
#[must_use]
pub fn backup(options: &BackupOptions) -> ExitCode {
    tell(take::take(options))
}

/// Makes a data directory in `to` from the backup in `from`, and says so.
#[must_use]
pub fn restore(from: &Path, to: &Path) -> ExitCode {
    tell(restore::restore(from, to))
}

fn tell(outcome: Result<impl fmt::Display, BackupError>) -> ExitCode {
    match outcome {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("thalweg: {error}");
            if let BackupError::Interrupted { signal } = error {
                interrupt::end_by(signal);
            }
            ExitCode::FAILURE
        }
    }
}
