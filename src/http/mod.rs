//! HTTP/1.1 over bytes: requests in, answers out. Opens no socket and reads
//! no clock.
//!
//! [`parse`], [`body`], [`target`], [`encode`], [`multipart`] and
//! [`connection`] are the protocol itself; [`route`], [`headers`] and
//! [`query`] turn a request into what the shard is asked, and the file of
//! each operation writes its answers. [`answer`] holds what all answers share.

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
#![forbid(unsafe_code)]

pub mod answer;
pub mod append;
pub mod body;
pub mod bootstrap;
pub mod connection;
pub mod cors;
pub mod create;
pub mod encode;
pub mod head;
pub mod headers;
pub mod multipart;
pub mod operation;
pub mod parse;
pub mod query;
pub mod read;
pub mod retention;
pub mod route;
pub mod snapshot;
pub mod stored_body;
pub mod target;
