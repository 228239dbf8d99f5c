//! What is asked: one file a workload, each with the clients that make it up.
//!
//! A workload never counts its own requests' errors twice: what the engine sees (connection, time limit, malformed answer) the
//! engine counts; what an answer says (status, faults) the client counts.

pub mod append;
pub mod bootstrap;
mod checks;
pub mod create;
mod lane;
pub mod long_poll;
pub mod mixed;
pub mod read;
pub mod snapshot;
pub mod tail;

use std::sync::Arc;

use crate::args::{RunArgs, Workload};
use crate::client::{Client, Clock};
use crate::record::{Form, INDENT_BYTES};
use crate::target::Target;
use crate::verify::{Ledger, StreamVerifier};

/// What all clients of a run share.
#[derive(Debug)]
pub struct World {
    /// The server.
    pub target: Target,
    /// How messages are written.
    pub form: Form,
    /// Bytes of one message as readers get it.
    pub payload_bytes: u32,
    /// Whether JSON is sent indented, which makes it longer by [`INDENT_BYTES`].
    pub is_indented: bool,
    /// What the run's hash chains and filler grow from.
    pub seed: u64,
    /// Filler of all messages.
    pub filler: Arc<[u8]>,
    /// What was acknowledged.
    pub ledger: Ledger,
    /// How many streams there are.
    pub streams: u32,
    /// The run's clock.
    pub clock: Clock,
    /// Whether catch-up readers look at message bytes, or only at heads and lengths.
    pub check_content: bool,
}

impl World {
    /// A verifier for a stream read from its start.
    pub fn verifier(&self, stream: u32) -> StreamVerifier {
        StreamVerifier::new(self.form, self.seed, stream, self.filler.clone())
    }

    /// Bytes of one message as it is sent.
    pub fn sent_bytes(&self) -> u64 {
        let indent = if self.is_indented { INDENT_BYTES } else { 0 };
        u64::from(self.payload_bytes) + indent as u64
    }
}

/// One slot of the measured phase.
pub struct Role {
    /// What it asks.
    pub client: Box<dyn Client>,
    /// Whether it takes part in the fixed rate.
    pub paced: bool,
}

/// What a workload is like unless flags say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Streams.
    pub streams: u32,
    /// Driving connections.
    pub connections: u32,
    /// Whether it needs the snapshot extensions.
    pub snapshots: bool,
    /// Whether all streams are read back after the run.
    pub read_back: bool,
}

/// The defaults of a workload.
pub fn defaults(workload: &Workload) -> Defaults {
    let (streams, connections, snapshots, read_back) = match workload {
        Workload::Append(_) => (500, 64, false, true),
        Workload::Read(_) => (50, 4, false, false),
        Workload::Tail(_) | Workload::LongPoll(_) => (1, 1, false, true),
        Workload::Bootstrap(_) => (50, 4, true, false),
        Workload::Snapshot(_) => (16, 16, true, true),
        Workload::Mixed(_) => (100, 32, false, true),
    };
    Defaults {
        streams,
        connections,
        snapshots,
        read_back,
    }
}

/// The clients of each preparing phase, after the streams have been created.
pub fn preparation(
    workload: &Workload,
    args: &RunArgs,
    world: &Arc<World>,
) -> Vec<(&'static str, Vec<Box<dyn Client>>)> {
    match workload {
        Workload::Read(_) => vec![("fill", append::fill(world, args.messages, 0))],
        Workload::Bootstrap(_) => bootstrap::preparation(world, args),
        _ => Vec::new(),
    }
}

/// The slots of the measured phase.
pub fn roles(
    workload: &Workload,
    args: &RunArgs,
    connections: u32,
    world: &Arc<World>,
) -> Vec<Role> {
    match workload {
        Workload::Append(_) => append::roles(world, connections, args),
        Workload::Read(_) => read::roles(world, connections),
        Workload::Tail(_) => append::roles(world, connections, args)
            .into_iter()
            .chain(tail::roles(world, args.subscribers))
            .collect(),
        Workload::LongPoll(_) => append::roles(world, connections, args)
            .into_iter()
            .chain(long_poll::roles(world, args.subscribers))
            .collect(),
        Workload::Bootstrap(_) => bootstrap::roles(world, connections, args),
        Workload::Snapshot(_) => snapshot::roles(world, connections, args),
        Workload::Mixed(_) => mixed::roles(world, connections, args),
    }
}

/// All streams, spread over at most `parts_max` parts.
pub fn shares(streams: u32, parts_max: u32) -> Vec<Vec<u32>> {
    let parts = streams.min(parts_max).max(1);
    (0..parts)
        .map(|part| (part..streams).step_by(parts as usize).collect())
        .collect()
}

/// Appends a number in decimal.
fn push_decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn decimals_are_plain() {
        for value in [0, 9, 10, 256, u64::MAX] {
            let mut out = Vec::new();
            super::push_decimal(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
