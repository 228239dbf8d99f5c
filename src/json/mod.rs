//! JSON text in, JSON text out; this layer knows no streams.
//!
//! Guaranteed here, for the storage rule "JSON Message Text" of the protocol
//! extensions:
//!
//! - A body is accepted if and only if it is one RFC 8259 text in valid UTF-8
//!   without a byte order mark, no message of which is nested deeper than
//!   [`JSON_DEPTH_MAX`](crate::base::limits::JSON_DEPTH_MAX). Escapes of lone
//!   surrogates and numbers outside the range of a double are valid.
//! - What is stored is the body's own bytes, less the whitespace between
//!   tokens, one LF behind each message, the elements of a top-level array
//!   being one message each. Nothing is reordered, merged or rewritten.
//! - Stored text holds no LF but those that end messages, so boundaries are
//!   found by looking for LF alone, and the array view is the stored text with
//!   its LFs replaced.
//! - The answer does not depend on how a body was cut into pieces, nor on the
//!   CPU it was scanned on.
//! - No input makes anything here panic, recurse or allocate, other than for
//!   the output.
//!
//! [`normalise`] turns bodies into stored text and [`array_view`] turns stored
//! text into arrays. Below them, `grammar` decides from bit masks of 64 bytes
//! at a time, and `scan` makes those masks with the widest instructions that
//! the CPU has.

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
#![deny(unsafe_code)]

pub mod array_view;
pub mod normalise;

mod error;
mod grammar;
#[allow(
    unsafe_code,
    reason = "vector registers and spare capacity; each block argues its case"
)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "lanes of registers, offsets within a block, and lengths of slices that are in memory"
)]
mod scan;

#[cfg(test)]
mod tests;

pub use array_view::{ArrayView, array_view_len, first_boundary, last_boundary};
pub use error::JsonError;
pub use normalise::{Normaliser, normalise, normalise_on};
pub use scan::Kernel;
