//! Why there is no backup, or no restored directory.

use std::{fmt, io, path::PathBuf};

use crate::storage::StorageError;

/// A backup or a restore that failed. Each says what happened, where, and what to do next.
#[derive(Debug)]
pub enum BackupError {
    /// The data directory cannot be read, or is in use.
    Storage(StorageError),
    /// A file of the copy.
    Io {
        /// What was being done, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The target has something in it.
    NotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// The target is a mount point, or `.`: no directory can be renamed to it.
    MountPoint {
        /// The target.
        path: PathBuf,
    },
    /// What is to be backed up is a backup.
    SourceIsBackup {
        /// The directory.
        path: PathBuf,
    },
    /// The target lies in the data directory.
    Inside {
        /// The target.
        path: PathBuf,
    },
    /// The target of a restore is in use.
    TargetInUse {
        /// The target.
        path: PathBuf,
        /// The process that has it, if its lock file says.
        pid: Option<u32>,
    },
    /// `DIR.partial` is not what a backup leaves behind.
    NotOurs {
        /// That directory.
        path: PathBuf,
    },
    /// Another backup writes there.
    Running {
        /// Where.
        path: PathBuf,
    },
    /// The admin plane cannot be reached.
    Admin {
        /// Its address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The admin plane refused.
    Refused {
        /// Its address.
        address: String,
        /// Its words.
        reason: String,
    },
    /// The hold ended before the copy did.
    Lost {
        /// Why.
        reason: String,
    },
    /// A signal said to stop.
    Interrupted {
        /// Its number.
        signal: i32,
    },
    /// The directory read is not the one that is served.
    OtherDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The copy does not verify.
    Unverified {
        /// What does not, a line each.
        problems: Vec<String>,
    },
    /// There is no backup.
    NotABackup {
        /// The file that should be there.
        path: PathBuf,
    },
    /// A file of the backup is not as it was written.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, as a clause.
        what: String,
    },
    /// What was restored is not what was read.
    Miswritten {
        /// The file.
        path: PathBuf,
    },
}

/// Problems named in one message.
const PROBLEMS_MAX: usize = 10;

impl BackupError {
    pub(super) fn io(
        operation: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

impl From<StorageError> for BackupError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(StorageError::Locked { dir, pid }) => {
                let dir = dir.display();
                match pid {
                    Some(pid) => write!(f, "{dir} is in use by process {pid}")?,
                    None => write!(f, "{dir} is in use by another process")?,
                }
                f.write_str(
                    ": to back it up while it is served, give --admin with the address of that \
                     server's admin plane",
                )
            }
            Self::Storage(error) => error.fmt(f),
            Self::Io {
                operation,
                path,
                source,
            } => {
                write!(f, "cannot {operation} {}: {source}", path.display())?;
                match source.raw_os_error() {
                    Some(libc::ENOSPC | libc::EDQUOT) => {
                        f.write_str("; free space there, or choose another file system")
                    }
                    Some(libc::EACCES | libc::EPERM) => {
                        f.write_str("; run it as the user that the server runs as")
                    }
                    Some(libc::ENOENT) => f.write_str("; make the directory that it is in"),
                    Some(libc::ENOTDIR) => {
                        f.write_str("; part of that path is a file, not a directory")
                    }
                    _ => Ok(()),
                }
            }
            Self::NotEmpty { path } => write!(
                f,
                "{} is not empty, and nothing is overwritten: choose a directory that does not \
                 exist yet, or empty this one",
                path.display()
            ),
            Self::MountPoint { path } => write!(
                f,
                "{} is a mount point or the current directory, and a directory that is whole is \
                 renamed to its name: choose one in it, such as {}",
                path.display(),
                path.join("backup").display()
            ),
            Self::SourceIsBackup { path } => write!(
                f,
                "{} is not a data directory but a backup: copy it as it is, or restore it first \
                 (`thalweg restore`) and back up what came of it",
                path.display()
            ),
            Self::Inside { path } => write!(
                f,
                "{} lies in the data directory: choose a place outside, best on another disk",
                path.display()
            ),
            Self::TargetInUse { path, pid } => {
                write!(f, "{} is in use by ", path.display())?;
                match pid {
                    Some(pid) => write!(f, "process {pid}")?,
                    None => f.write_str("another process")?,
                }
                f.write_str(": nothing is restored over it; choose an empty directory")
            }
            Self::NotOurs { path } => write!(
                f,
                "{} is in the way, and is not what an interrupted backup leaves behind: move it \
                 away, or choose another target",
                path.display()
            ),
            Self::Running { path } => write!(
                f,
                "another backup is writing {}: wait for it, or choose another target",
                path.display()
            ),
            Self::Admin { address, source } => write!(
                f,
                "the admin plane at {address} cannot be reached: {source}; it is what the server's \
                 --admin-listen says. For a directory that no server has, give --data-dir alone"
            ),
            Self::Refused { address, reason } => {
                write!(f, "the admin plane at {address} refused: {reason}")
            }
            Self::Lost { reason } => write!(
                f,
                "the backup was given up: {reason}. What was copied so far has been removed"
            ),
            Self::Interrupted { signal } => {
                let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a signal");
                write!(
                    f,
                    "stopped by {name}: what was made so far has been removed"
                )
            }
            Self::OtherDirectory { path } => write!(
                f,
                "{} is not the directory that this server serves: leave --data-dir out, or give \
                 the path under which the server's own is to be found here",
                path.display()
            ),
            Self::Unverified { problems } => {
                write!(
                    f,
                    "the copy does not verify, and was removed ({} problems; `thalweg inspect` on \
                     the data directory says whether they are its own):",
                    problems.len()
                )?;
                for problem in problems.iter().take(PROBLEMS_MAX) {
                    write!(f, "\n  {problem}")?;
                }
                if problems.len() > PROBLEMS_MAX {
                    f.write_str("\n  …")?;
                }
                Ok(())
            }
            Self::NotABackup { path } => write!(
                f,
                "{} is not there, so this is no backup, or one that never ended: take another",
                path.display()
            ),
            Self::Damaged { path, what } => write!(
                f,
                "{} is damaged: {what}; nothing was restored. Take another backup",
                path.display()
            ),
            Self::Miswritten { path } => write!(
                f,
                "{} does not read back as it was written; what was restored has been removed. \
                 Check the disk (dmesg, smartctl)",
                path.display()
            ),
        }
    }
}

impl std::error::Error for BackupError {}
