//! The rules: pure decisions over a stream's state, a request and the time.
//!
//! Nothing here does I/O, awaits, or reads a clock. Each file holds one rule
//! of the protocol and is named after it; `(state, request, now)` goes in, a
//! decision or a [`Refusal`](error::Refusal) comes out, and the shard carries
//! the decision out. That is what makes the same request behave the same on
//! whichever core it arrives, live or in replay.

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

pub mod append;
pub mod bootstrap;
pub mod byte_range;
pub mod caching;
pub mod content_type;
pub mod create;
pub mod cursor;
pub mod error;
pub mod expiry;
pub mod fork;
pub mod incarnation;
pub mod offset;
pub mod producer;
pub mod read;
pub mod retention;
pub mod snapshot;
pub mod sse;
pub mod state;
pub mod stream_key;
