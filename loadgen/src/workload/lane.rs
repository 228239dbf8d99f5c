//! One writer of one stream: renders its appends and remembers which of them were acknowledged.
//!
//! At most one append of a lane is in flight, so its messages have one order. An append whose fate is unknown leaves its messages
//! *uncertain*: a reader may or may not meet them. With producer headers the same append is sent again, unchanged, until it is
//! acknowledged, and must then be there exactly once.

use std::sync::Arc;

use super::{World, push_decimal};
use crate::record::{self, Fields, Form};
use crate::verify::Written;

/// See the module.
#[derive(Debug)]
pub struct Lane {
    world: Arc<World>,
    /// The stream's number.
    pub stream: u32,
    number: u16,
    head: Vec<u8>,
    producer: bool,
    batches: u64,
    seq: u32,
    chain: u64,
    in_flight: Option<InFlight>,
    uncertain: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    sent_ns: u64,
    count: u32,
    chain_after: u64,
}

impl Lane {
    /// The lane `number` of `stream`, with idempotent-producer headers or without.
    pub fn new(world: Arc<World>, stream: u32, number: u16, producer: bool) -> Lane {
        let mut head = world
            .target
            .request_head("POST", &world.target.path(stream));
        head.push_str(&format!("Content-Type: {}\r\n", world.form.content_type()));
        if producer {
            head.push_str(&format!(
                "Producer-Id: lane-{number}\r\nProducer-Epoch: 0\r\nProducer-Seq: "
            ));
        } else {
            head.push_str("Content-Length: ");
        }
        let chain = record::chain_seed(world.seed, stream, number);
        Lane {
            world,
            stream,
            number,
            head: head.into_bytes(),
            producer,
            batches: 0,
            seq: 0,
            chain,
            in_flight: None,
            uncertain: Vec::new(),
        }
    }

    /// Messages sent so far, those in flight included once they are settled.
    pub fn sent(&self) -> u32 {
        self.seq
    }

    /// Renders an append of `count` messages meant to be sent at `sent_ns`, or the one that has to be sent again.
    pub fn render(&mut self, count: u32, sent_ns: u64, out: &mut Vec<u8>) {
        let (count, sent_ns) = self
            .in_flight
            .map_or((count, sent_ns), |again| (again.count, again.sent_ns));
        let len = self.world.payload_bytes;
        out.extend_from_slice(&self.head);
        if self.producer {
            push_decimal(out, self.batches);
            out.extend_from_slice(b"\r\nContent-Length: ");
        }
        let array = self.world.form == Form::Json && count > 1;
        let framing = if array { u64::from(count) + 1 } else { 0 };
        push_decimal(out, u64::from(count) * self.world.sent_bytes() + framing);
        out.extend_from_slice(b"\r\n\r\n");
        let mut chain = self.chain;
        for seq in self.seq..self.seq + count {
            if array {
                out.push(if seq == self.seq { b'[' } else { b',' });
            }
            let mut fields = Fields {
                lane: self.number,
                seq,
                sent_ns,
                chain: 0,
                len,
            };
            chain = record::chain_step(chain, &fields);
            fields.chain = chain;
            if self.world.is_indented {
                record::render_indented(&fields, &self.world.filler, out);
            } else {
                record::render(self.world.form, &fields, &self.world.filler, out);
            }
        }
        if array {
            out.push(b']');
        }
        self.in_flight = Some(InFlight {
            sent_ns,
            count,
            chain_after: chain,
        });
    }

    /// The append was acknowledged: how many messages that are.
    pub fn acknowledged(&mut self) -> u32 {
        let count = self.settle();
        self.world.ledger.acknowledge(self.stream, u64::from(count));
        count
    }

    /// The append was refused, or its answer never came.
    pub fn doubtful(&mut self) {
        if !self.producer {
            let from = self.seq;
            let count = self.settle();
            self.uncertain.extend(from..from + count);
        }
    }

    /// What the lane's writer knows. What is in flight counts as sent and uncertain.
    pub fn written(&mut self) -> Written {
        let from = self.seq;
        let count = self.settle();
        self.uncertain.extend(from..from + count);
        Written {
            stream: self.stream,
            lane: self.number,
            sent: self.seq,
            uncertain: self.uncertain.clone(),
        }
    }

    fn settle(&mut self) -> u32 {
        let Some(append) = self.in_flight.take() else {
            return 0;
        };
        self.seq += append.count;
        self.chain = append.chain_after;
        self.batches += 1;
        append.count
    }
}
