//! Bytes that survive.

pub mod data_dir;
pub mod disk;
pub mod error;
pub mod journal;
pub mod manifest;

pub use error::{ApplyError, StorageError};
