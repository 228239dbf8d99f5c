//! Snapshots: append a message, publish a snapshot at its end, read the snapshot back.
//!
//! A snapshot goes whole in one request, or staged in parts and committed with its digest. Every one differs; the digest an answer
//! names and the body that is read back must be those of the one just published. A stream belongs to one connection, so that no two
//! publish past each other.

use std::sync::Arc;

use super::lane::Lane;
use super::{Role, World, push_decimal};
use crate::args::RunArgs;
use crate::client::{Client, Clock, Evidence, Times, Turn};
use crate::error::ErrorKind;
use crate::histogram::{Op, Tally};
use crate::http::Head;
use crate::record;
use crate::verify::Fault;

/// Content type of the snapshots; unlike that of any stream here.
pub const SNAPSHOT_TYPE: &str = "application/x-loadgen-snapshot";

/// Appends the snapshot of this version of a stream: `bytes` bytes that no other has.
pub fn snapshot_body(seed: u64, stream: u32, version: u64, bytes: u32, out: &mut Vec<u8>) {
    let end = out.len() + bytes as usize;
    let mut state = record::chain_seed(seed ^ version, stream, u16::MAX);
    while out.len() < end {
        state = record::mix(state);
        let word = state.to_le_bytes();
        out.extend_from_slice(&word[..word.len().min(end - out.len())]);
    }
}

/// The digest servers compute: BLAKE3 over the content type's length, the content type and the body.
fn digest(content_type: &str, body: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(content_type.len() as u64).to_le_bytes());
    hasher.update(content_type.as_bytes());
    hasher.update(body);
    hasher.finalize().to_hex().to_string()
}

/// The slots of the snapshot workload: streams are dealt out to at most as many connections.
pub fn roles(world: &Arc<World>, connections: u32, args: &RunArgs) -> Vec<Role> {
    super::shares(world.streams, connections)
        .into_iter()
        .map(|streams| Role {
            client: Box::new(Snapshots::new(world, &streams, args)),
            paced: true,
        })
        .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Append,
    Publish,
    Stage(u32),
    Commit,
    Read,
}

#[derive(Debug)]
struct Snapshots {
    world: Arc<World>,
    lanes: Vec<Lane>,
    at: usize,
    step: Step,
    snapshot_bytes: u32,
    parts: u32,
    version: u64,
    body: Vec<u8>,
    digest: String,
    offset: Vec<u8>,
    part_ids: Vec<u8>,
    ok: bool,
    /// Bytes of the snapshot read back so far that matched.
    matched: usize,
    differs: bool,
}

impl Snapshots {
    fn new(world: &Arc<World>, streams: &[u32], args: &RunArgs) -> Snapshots {
        Snapshots {
            world: world.clone(),
            lanes: streams
                .iter()
                .map(|stream| Lane::new(world.clone(), *stream, 0, false))
                .collect(),
            at: 0,
            step: Step::Append,
            snapshot_bytes: args.snapshot_bytes,
            parts: args.parts,
            version: 0,
            body: Vec::new(),
            digest: String::new(),
            offset: Vec::new(),
            part_ids: Vec::new(),
            ok: false,
            matched: 0,
            differs: false,
        }
    }

    fn stream(&self) -> u32 {
        self.lanes[self.at].stream
    }

    fn snapshot_path(&self) -> String {
        let path = self.world.target.path(self.stream());
        format!("{path}/snapshot/{}", String::from_utf8_lossy(&self.offset))
    }

    /// The bytes of one part: all of one size but the last.
    fn part(&self, index: u32) -> &[u8] {
        let size = self.body.len().div_ceil(self.parts.max(1) as usize);
        let from = (index as usize * size).min(self.body.len());
        &self.body[from..(from + size).min(self.body.len())]
    }

    fn start_over(&mut self) {
        self.step = Step::Append;
        self.at = (self.at + 1) % self.lanes.len();
    }

    fn advance(&mut self, times: Times, tally: &mut Tally) {
        let all = self.body.len() as u64;
        let (op, bytes, next) = match self.step {
            Step::Append => {
                let messages = u64::from(self.lanes[self.at].acknowledged());
                self.new_version();
                let next = if self.parts == 0 {
                    Step::Publish
                } else {
                    Step::Stage(0)
                };
                (Op::Append, messages * self.world.sent_bytes(), next)
            }
            Step::Publish => (Op::Publish, all, Step::Read),
            Step::Stage(index) => {
                let next = if index + 1 < self.parts {
                    Step::Stage(index + 1)
                } else {
                    Step::Commit
                };
                (Op::Stage, self.part(index).len() as u64, next)
            }
            Step::Commit => (Op::Commit, all, Step::Read),
            Step::Read => {
                if self.differs || self.matched != self.body.len() {
                    tally.fault(Fault::WrongSnapshot);
                }
                (Op::SnapshotRead, all, Step::Append)
            }
        };
        tally.record(op, times.intended, times.done, bytes);
        if next == Step::Append {
            self.start_over();
        } else {
            self.step = next;
        }
    }

    fn new_version(&mut self) {
        self.version += 1;
        self.body.clear();
        snapshot_body(
            self.world.seed,
            self.stream(),
            self.version,
            self.snapshot_bytes,
            &mut self.body,
        );
        self.digest = digest(SNAPSHOT_TYPE, &self.body);
        self.part_ids.clear();
    }
}

impl Client for Snapshots {
    fn request(&mut self, intended: u64, out: &mut Vec<u8>) -> Turn {
        if self.step == Step::Append {
            self.lanes[self.at].render(1, intended, out);
            return Turn::Send;
        }
        let path = self.snapshot_path();
        let target = &self.world.target;
        let (head, body) = match self.step {
            Step::Append | Step::Publish => {
                (target.request_head("PUT", &path), self.body.as_slice())
            }
            Step::Stage(index) => (
                target.request_head("POST", &format!("{path}/parts")),
                self.part(index),
            ),
            Step::Commit => {
                let mut head = target.request_head("PUT", &path);
                head.push_str(&format!("Stream-Snapshot-Parts: {}\r\n", self.parts));
                head.push_str(&format!("Stream-Snapshot-Digest: {}\r\n", self.digest));
                (head, self.part_ids.as_slice())
            }
            Step::Read => {
                out.extend_from_slice(format!("GET {path}").as_bytes());
                out.extend_from_slice(&target.request_tail());
                self.matched = 0;
                self.differs = false;
                return Turn::Send;
            }
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(
            format!("Content-Type: {SNAPSHOT_TYPE}\r\nContent-Length: ").as_bytes(),
        );
        push_decimal(out, body.len() as u64);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(body);
        Turn::Send
    }

    fn head(&mut self, head: &Head<'_, '_>, tally: &mut Tally) {
        self.ok = head.succeeded();
        if !self.ok {
            return tally.error(ErrorKind::Status(head.status));
        }
        match self.step {
            Step::Append => {
                self.offset.clear();
                self.offset
                    .extend_from_slice(head.header("stream-next-offset").unwrap_or_default());
            }
            Step::Stage(_) => {
                self.part_ids
                    .extend_from_slice(head.header("stream-snapshot-part").unwrap_or_default());
                self.part_ids.push(b'\n');
            }
            Step::Publish | Step::Commit | Step::Read => {
                if head.header("stream-snapshot-digest") != Some(self.digest.as_bytes()) {
                    tally.fault(Fault::WrongSnapshot);
                }
            }
        }
    }

    fn body(&mut self, bytes: &[u8], _clock: &Clock, _tally: &mut Tally) {
        if self.ok && self.step == Step::Read {
            self.differs |= !self.body[self.matched..].starts_with(bytes);
            self.matched = (self.matched + bytes.len()).min(self.body.len());
        }
    }

    fn done(&mut self, times: Times, tally: &mut Tally) {
        if self.ok {
            self.advance(times, tally);
        } else {
            self.failed();
        }
    }

    fn failed(&mut self) {
        if self.step == Step::Append {
            self.lanes[self.at].doubtful();
        }
        self.start_over();
    }

    fn evidence(&mut self, evidence: &mut Evidence) {
        evidence
            .written
            .extend(self.lanes.iter_mut().map(Lane::written));
    }
}

#[cfg(test)]
mod tests {
    use super::{digest, snapshot_body};

    #[test]
    fn the_digest_is_the_one_a_real_server_gave() {
        // From an answer of Ursula 0.11.5.
        assert_eq!(
            digest("text/plain", b"snapshot body 0123456789"),
            "5b08468f3dcc61c6fb91762c36ae97c6201a63e15d5ea4f66726ff35508c2e6b"
        );
    }

    #[test]
    fn bodies_differ_by_stream_and_version() {
        let body = |stream, version| {
            let mut out = Vec::new();
            snapshot_body(1, stream, version, 100, &mut out);
            out
        };
        assert_eq!(body(1, 1).len(), 100);
        assert_eq!(body(1, 1), body(1, 1));
        assert_ne!(body(1, 1), body(1, 2));
        assert_ne!(body(1, 1), body(2, 1));
    }
}
