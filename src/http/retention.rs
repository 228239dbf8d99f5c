//! PUT of a retention offset: answer out (extensions 2.2; source 1, Advance
//! retention).

use crate::{
    http::answer::{Envelope, Shared},
    protocol::incarnation::Incarnation,
};

/// Writes the answer: the retained offset in force.
pub fn answer(
    envelope: &Envelope,
    shared: &Shared,
    retained: u64,
    incarnation: Incarnation,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 204);
    head.offset("Stream-Retained-Offset", retained);
    head.header_u64("Stream-Incarnation", incarnation.0);
    head.finish_no_body();
}
