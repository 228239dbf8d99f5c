//! Why there is no configuration: what was wrong, where it was written, what would be right.

use std::{error, fmt, io, net::SocketAddr, path::PathBuf};

use super::{Named, Source};
use crate::base::{amount::Amount, limits::LimitsError};

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file named by `--config` cannot be read.
    FileUnreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// The file is no TOML.
    FileSyntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The parser's reason.
        message: String,
    },
    /// A key of the file that names no setting.
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As written.
        key: String,
        /// The setting whose name is nearest, if one is near.
        nearest: Option<&'static str>,
    },
    /// A setting given twice in the file, once with dashes and once with underscores.
    RepeatedKey {
        /// The file.
        path: PathBuf,
        /// Of the second, counted from 1.
        line: usize,
        /// The setting.
        setting: &'static str,
    },
    /// A value that its setting cannot have.
    BadValue {
        /// The setting.
        setting: &'static str,
        /// As written.
        value: String,
        /// What would have been right.
        wanted: String,
        /// Where it was written.
        source: Source,
    },
    /// A number that its setting cannot have.
    OutOfRange {
        /// The setting.
        setting: Named,
        /// The number.
        have: Amount,
        /// The smallest allowed.
        least: Amount,
        /// The largest allowed, if there is one.
        most: Option<Amount>,
    },
    /// Data plane and admin plane on one port.
    SameAddress {
        /// The data plane's.
        listen: SocketAddr,
        /// The admin plane's.
        admin_listen: SocketAddr,
    },
    /// A limit that cannot work, by itself or beside the others.
    Limits {
        /// The setting.
        setting: Named,
        /// What is wrong with it.
        error: LimitsError,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileUnreadable { path, error } => write!(
                f,
                "cannot read the configuration file {}: {error}; \
                 name a readable file with --config, or leave it out",
                path.display()
            ),
            Self::FileSyntax {
                path,
                line,
                message,
            } => {
                write!(
                    f,
                    "{}:{line}: not valid TOML: {}; write one `name = value` a line, each name once, \
                     text in quotes, as listen = \"127.0.0.1:4437\"",
                    path.display(),
                    message.trim_end()
                )
            }
            Self::UnknownKey {
                path,
                line,
                key,
                nearest,
            } => {
                write!(
                    f,
                    "{}:{line}: there is no setting `{key}`; ",
                    path.display()
                )?;
                match nearest {
                    Some(name) => write!(f, "did you mean `{name}`?"),
                    None => f.write_str("`thalweg serve --print-config` lists them"),
                }
            }
            Self::RepeatedKey {
                path,
                line,
                setting,
            } => {
                write!(
                    f,
                    "{}:{line}: `{setting}` is set twice; keep one",
                    path.display()
                )
            }
            Self::BadValue {
                setting,
                value,
                wanted,
                source,
            } => {
                write!(
                    f,
                    "{source}: `{value}` is no value for {setting}; write {wanted}"
                )
            }
            Self::OutOfRange {
                setting,
                have,
                least,
                most,
            } => {
                write!(f, "{setting} is {have}, and must be ")?;
                match most {
                    None => write!(f, "at least {least}"),
                    Some(most) => write!(f, "from {least} to {most}"),
                }
            }
            Self::SameAddress {
                listen,
                admin_listen,
            } => write!(
                f,
                "--listen {listen} and --admin-listen {admin_listen} share a port; \
                 give the admin plane another"
            ),
            Self::Limits { setting, error } => {
                let (have, wanted) = (error.have(), error.wanted());
                write!(f, "{setting} is {have}, and {wanted}")
            }
        }
    }
}

impl error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::FileUnreadable { error, .. } => Some(error),
            Self::Limits { error, .. } => Some(error),
            _ => None,
        }
    }
}
