//! Appends: each connection goes round its lanes, one append in flight.
//!
//! Streams, connections and producers multiply out to lanes (see [`lanes`]): every stream has at least one, every connection at
//! least one, and a lane belongs to one connection for the whole run, so that the order of its messages is known.

use std::sync::Arc;

use super::lane::Lane;
use super::{Role, World};
use crate::args::RunArgs;
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;

/// Bytes of one append when filling streams, at most (or one message).
const FILL_BYTES_MAX: u32 = 1 << 20;
/// Connections that fill streams, at most.
const FILL_CONNECTIONS_MAX: u32 = 16;

/// How writers append.
#[derive(Clone, Copy, Debug)]
pub struct AppendOptions {
    /// Messages in one request.
    pub batch: u32,
    /// Idempotent producers of each stream; 0 sends no producer headers.
    pub producers: u32,
    /// Messages a lane sends before it is finished; `u32::MAX` for no end.
    pub messages_max: u32,
    /// Number of the first lane of each stream: writers of different phases are different lanes.
    pub first_lane: u16,
}

/// One appending connection.
#[derive(Debug)]
pub struct Append {
    world: Arc<World>,
    options: AppendOptions,
    lanes: Vec<Lane>,
    at: usize,
    ok: bool,
}

/// The slots of the append workload.
pub fn roles(world: &Arc<World>, connections: u32, args: &RunArgs) -> Vec<Role> {
    let options = AppendOptions {
        batch: args.batch,
        producers: args.producers,
        messages_max: u32::MAX,
        first_lane: 0,
    };
    clients(world, connections, options)
        .into_iter()
        .map(|client| Role {
            client: Box::new(client),
            paced: true,
        })
        .collect()
}

/// Clients that fill every stream with so many messages, in large appends, on a lane of their own.
pub fn fill(world: &Arc<World>, messages: u32, lane: u16) -> Vec<Box<dyn Client>> {
    let batch = (FILL_BYTES_MAX / (world.sent_bytes() as u32 + 1)).max(1);
    let options = AppendOptions {
        batch,
        producers: 0,
        messages_max: messages,
        first_lane: lane,
    };
    clients(world, world.streams.min(FILL_CONNECTIONS_MAX), options)
        .into_iter()
        .map(|client| Box::new(client) as Box<dyn Client>)
        .collect()
}

/// The clients of `connections` connections.
fn clients(world: &Arc<World>, connections: u32, options: AppendOptions) -> Vec<Append> {
    let mut clients: Vec<Append> = (0..connections)
        .map(|_| Append {
            world: world.clone(),
            options,
            lanes: Vec::new(),
            at: 0,
            ok: false,
        })
        .collect();
    for (index, (stream, number)) in
        lanes(world.streams, connections, options.producers).enumerate()
    {
        let lane = Lane::new(
            world.clone(),
            stream,
            options.first_lane + number,
            options.producers > 0,
        );
        clients[index % connections as usize].lanes.push(lane);
    }
    clients
}

/// Stream and number of every lane: as many a stream as it has producers, and as many more as keep every connection busy.
fn lanes(streams: u32, connections: u32, producers: u32) -> impl Iterator<Item = (u32, u16)> {
    let count = (streams * producers.max(1)).max(connections);
    (0..count).map(move |index| (index % streams, (index / streams) as u16))
}

impl Client for Append {
    fn request(&mut self, intended: u64, out: &mut Vec<u8>) -> Turn {
        let options = self.options;
        for _ in 0..self.lanes.len() {
            let lane = &mut self.lanes[self.at];
            let left = options.messages_max - lane.sent().min(options.messages_max);
            if left > 0 {
                lane.render(options.batch.min(left), intended, out);
                return Turn::Send;
            }
            self.at = (self.at + 1) % self.lanes.len();
        }
        Turn::Finished
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        self.ok = matches!(head.status, 200 | 204);
        if !self.ok {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, _bytes: &[u8], _clock: &Clock, _tally: &mut Tally) {}

    fn done(&mut self, times: Times, tally: &mut Tally) {
        if !self.ok {
            return self.failed();
        }
        let lane = &mut self.lanes[self.at];
        let messages = lane.acknowledged();
        let bytes = u64::from(messages) * self.world.sent_bytes();
        tally.record(Op::Append, times.intended, times.done, bytes);
        self.at = (self.at + 1) % self.lanes.len();
    }

    fn failed(&mut self) {
        self.lanes[self.at].doubtful();
        self.at = (self.at + 1) % self.lanes.len();
    }

    fn evidence(&mut self, evidence: &mut Evidence) {
        evidence
            .written
            .extend(self.lanes.iter_mut().map(Lane::written));
    }
}

#[cfg(test)]
mod tests {
    use super::lanes;

    #[test]
    fn every_stream_and_every_connection_has_a_lane() {
        assert_eq!(lanes(500, 64, 0).count(), 500);
        assert_eq!(
            lanes(1, 4, 0).collect::<Vec<_>>(),
            [(0, 0), (0, 1), (0, 2), (0, 3)]
        );
        assert_eq!(
            lanes(2, 1, 2).collect::<Vec<_>>(),
            [(0, 0), (1, 0), (0, 1), (1, 1)]
        );
    }
}
