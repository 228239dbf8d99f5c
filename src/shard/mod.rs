//! One owner core: the streams that hash to it, their live readers, and the
//! mailbox to the other cores. No locks.
//!
//! [`tables`] holds what is known and [`owner`] the path of a change; one file per
//! operation carries it out, named as in `protocol` (which decides) and
//! `http` (which translates). What crosses cores is in [`request`].

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

pub mod across;
mod append;
mod bootstrap;
pub mod checkpoint;
mod compaction;
mod create;
mod delete;
mod evictable;
mod expiry;
mod flush;
mod fork;
pub mod history;
pub mod hold;
pub mod hub;
mod index;
pub mod keeper;
pub mod live;
pub mod lookup;
pub mod mailbox;
mod moved;
pub mod owner;
pub mod placement;
pub mod purge;
mod read;
pub mod record;
pub mod recovery;
mod replay;
pub mod request;
mod retention;
pub mod run;
pub mod salvage;
mod slice;
mod snapshot;
mod snapshot_parts;
pub mod stream;
mod streams;
pub mod tables;
#[cfg(test)]
mod tests;
pub mod trip;

pub use replay::ReplayError;
