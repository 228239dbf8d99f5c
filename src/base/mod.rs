//! What every layer may use: limits, amounts, time, randomness, checksums.
//!
//! Standard library and pure computation only: nothing here does I/O or
//! knows a stream. Time and randomness are values that are passed in, so
//! that every rule above runs in a test on a manual clock.

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

pub mod amount;
pub mod checksum;
pub mod hex;
pub mod limits;
pub mod queue;
pub mod rng;
pub mod signal;
pub mod time;
