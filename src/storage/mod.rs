//! Bytes that survive.
//!
//! What is assumed of the medium: a 512-byte sector is written as a whole or
//! not at all; a write that completed and was then synced stays; anything else
//! may be lost, torn or reordered. Bytes may decay, and files may be removed or
//! lengthened by hand: that is found by checksums and sequence numbers, and
//! refused rather than guessed at ([`error`] has every case).
//!
//! What an acknowledgement means: with `--durability sync`, that the record's
//! batch is on the medium and every start from now on will hand it out, once,
//! in order, or refuse to start. With `--durability os`, that the operating
//! system has it.
//!
//! ```text
//! data_dir   who may use the directory, which layout rules, the epoch of this start
//!   manifest   the one file that says so, replaced as a whole
//! journal    records of one shard: group commit, recovery, repair
//!   format     every byte of it
//! disk       what both ask of a disk; glommio's, and one that fails as a seed says
//! ```
//!
//! One thread per shard: nothing here is shared between executors but the
//! directory, and each shard has its own.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::todo,
        clippy::unreachable,
        clippy::unwrap_used,
    )
)]

pub mod blob;
pub mod checkpoint;
pub mod data_dir;
pub mod disk;
pub mod error;
mod fields;
pub mod journal;
pub mod manifest;
pub mod segment;

pub use error::{ApplyError, StorageError};
