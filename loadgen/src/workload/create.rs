//! Setting up: a client that creates its share of the streams, one after another.

use std::sync::Arc;

use super::World;
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;

/// Creates streams.
#[derive(Debug)]
pub struct Create {
    world: Arc<World>,
    streams: Vec<u32>,
    at: usize,
    created: bool,
}

impl Create {
    /// For these streams.
    pub fn new(world: Arc<World>, streams: Vec<u32>) -> Create {
        Create {
            world,
            streams,
            at: 0,
            created: false,
        }
    }
}

impl Client for Create {
    fn request(&mut self, _intended: u64, out: &mut Vec<u8>) -> Turn {
        let Some(stream) = self.streams.get(self.at) else {
            return Turn::Finished;
        };
        let head = self
            .world
            .target
            .request_head("PUT", &self.world.target.path(*stream));
        out.extend_from_slice(head.as_bytes());
        let content_type = self.world.form.content_type();
        out.extend_from_slice(
            format!("Content-Type: {content_type}\r\nContent-Length: 0\r\n\r\n").as_bytes(),
        );
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        self.created = matches!(head.status, 200 | 201 | 204);
        if !self.created {
            tally.error(ErrorKind::Status(head.status));
        }
    }

    fn body(&mut self, _bytes: &[u8], _clock: &Clock, _tally: &mut Tally) {}

    fn done(&mut self, times: Times, tally: &mut Tally) {
        if self.created {
            tally.record(Op::Create, times.intended, times.done, 0);
        }
        self.at += 1;
    }

    fn failed(&mut self) {
        self.at += 1;
    }

    fn evidence(&mut self, _evidence: &mut Evidence) {}
}
