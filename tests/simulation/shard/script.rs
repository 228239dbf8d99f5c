//! What the layer above might do in one life, and what it must be answered.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future::{or, yield_now};

use thalweg::base::rng::Rng;
use thalweg::base::time::Clock;
use thalweg::protocol::append::AppendRequest;
use thalweg::protocol::bootstrap::BootstrapRequest;
use thalweg::protocol::content_type::ContentType;
use thalweg::protocol::create::CreateRequest;
use thalweg::protocol::error::Refusal;
use thalweg::protocol::expiry::Lifetime;
use thalweg::protocol::fork::ForkRequest;
use thalweg::protocol::incarnation::Incarnation;
use thalweg::protocol::offset::StartOffset;
use thalweg::protocol::producer::ProducerWrite;
use thalweg::protocol::read::{Live, ReadRequest};
use thalweg::protocol::snapshot::{Digester, PublishRequest};
use thalweg::protocol::stream_key::{StreamKey, Surface};
use thalweg::shard::lookup::Lack;
use thalweg::shard::record::Record;
use thalweg::shard::request::{
    CommitRequest, Receipt, ReferRequest, Reply, Request, Staged, Target, Warm,
};
use thalweg::shard::run::Run;
use thalweg::shard::stream::{Blob, blob_key};
use thalweg::storage::disk::FaultPlan;
use thalweg::storage::segment::Segment;

use super::copy::Copying;
use super::life::{DISK_BYTES, Life};
use super::model::Stream;

/// Names that come and go.
const NAMES: [&str; 8] = [
    "aaaa/0", "aaaa/1", "aaaa/2", "aaaa/3", "bbbb/0", "bbbb/1", "bbbb/2", "bbbb/3",
];

/// Bytes that were promised, and what they must be.
struct Promise {
    runs: Vec<Run>,
    bytes: Vec<u8>,
}

fn key(name: &str) -> StreamKey {
    StreamKey::restored(name)
}

fn target(name: &str) -> Target {
    Target {
        key: key(name),
        precondition: None,
    }
}

fn content_type(text: &str) -> ContentType {
    ContentType::parse(text.as_bytes()).expect("a content type")
}

/// A body that differs from every other one, at every offset.
fn body(rng: &mut Rng, len: u64, json: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize + 20);
    if json {
        while (bytes.len() as u64) < len.max(1) {
            let left = len.saturating_sub(bytes.len() as u64).clamp(1, 5_000);
            let number = rng.next_u64().to_string();
            let digits = (1 + rng.below(left)) as usize;
            bytes.extend(number.bytes().cycle().take(digits));
            bytes.push(b'\n');
        }
        return bytes;
    }
    let mut word = rng.next_u64();
    while (bytes.len() as u64) < len {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(0x0101_0101_0000_0001);
    }
    bytes.truncate(len as usize);
    bytes
}

impl Life {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Carries out a request, bringing in the bytes that it lacks; `None` if those could not be
    /// read.
    async fn ask(&self, mut request: Request) -> Option<Staged<Reply>> {
        loop {
            self.recorder.fresh.borrow_mut().clear();
            let staged = self.shard.execute(request);
            let cold = match staged.outcome {
                Ok(Reply::Cold(cold)) => *cold,
                outcome => {
                    let after = staged.after;
                    assert!(
                        after <= self.journal_staged(),
                        "rests on what is not staged"
                    );
                    return Some(Staged { outcome, after });
                }
            };
            let miss = match cold.lack {
                Lack::Bytes(miss) => miss,
                Lack::Turn => {
                    request = cold.request;
                    continue;
                }
            };
            self.totals.borrow_mut().cold_decisions += 1;
            let bytes = self.resolve(vec![miss.run]).await?;
            request = Request::Warm(Box::new(Warm {
                incarnation: miss.incarnation,
                start: miss.start,
                bytes: Bytes::from(bytes),
                request: cold.request,
            }));
        }
    }

    fn journal_staged(&self) -> thalweg::storage::journal::BatchNumber {
        use thalweg::storage::journal::Stage;
        self.journal.staged()
    }

    /// The bytes of runs; `None` if a read failed, which only a fault may cause, or if the fork
    /// whose source is asked is gone.
    async fn resolve(&self, runs: Vec<Run>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut left: VecDeque<Run> = runs.into();
        while let Some(run) = left.pop_front() {
            match run {
                Run::Memory(piece) => bytes.extend_from_slice(&piece),
                Run::Block(run) => {
                    self.totals.borrow_mut().cold_reads += 1;
                    match self.reader.read(&[(run.place, run.key)]).await {
                        Ok(blocks) => {
                            bytes.extend_from_slice(&blocks[0][run.from as usize..run.to as usize]);
                        }
                        Err(error) => {
                            assert!(self.faulty.get(), "{error}");
                            self.totals.borrow_mut().failed_reads += 1;
                            return None;
                        }
                    }
                }
                Run::Inherited(run) => {
                    self.totals.borrow_mut().inherited_reads += 1;
                    let reply = self.shard.execute(Request::Inherit {
                        source: run.source,
                        start: run.start,
                        end: run.end,
                    });
                    match reply.outcome {
                        Ok(Reply::Inherited(Some(runs))) => {
                            for run in runs.into_iter().rev() {
                                left.push_front(run);
                            }
                        }
                        _ => return None,
                    }
                }
            }
        }
        Some(bytes)
    }

    /// Waits for what is staged, as long as that takes; gives up when space may be missing.
    async fn wait(&self, batch: thalweg::shard::request::BatchNumber) {
        let durable = async {
            let _ = poll_fn(|cx| self.shard.poll_durable(batch, cx)).await;
        };
        or(durable, turns(300)).await;
    }

    /// Sorts a refusal that any write may meet; panics on any other.
    fn pressure(&self, refusal: &Refusal) {
        let mut totals = self.totals.borrow_mut();
        match refusal {
            Refusal::DiskPressure => totals.refused_for_space += 1,
            Refusal::MemoryPressure => totals.refused_for_memory += 1,
            Refusal::ApplyStopped => assert!(self.failed.get()),
            other => panic!("refused: {other:?}"),
        }
    }

    /// A refusal that says that there is no such stream, or a pressure.
    fn missing(&self, name: &str, staged: Option<&Stream>, refusal: &Refusal) {
        match refusal {
            Refusal::BucketErased => {
                assert!(self.recorder.staged.borrow().is_fenced(name));
            }
            Refusal::StreamNotFound => {
                let over = staged.is_none_or(|stream| stream.may_be_over(self.now_ms()));
                assert!(over, "{name} is not found");
            }
            Refusal::SoftDeleted | Refusal::SourceDeleted => {
                let gone = staged
                    .is_some_and(|stream| stream.soft_deleted || stream.may_be_over(self.now_ms()));
                assert!(gone, "{name} is not deleted");
            }
            other => self.pressure(other),
        }
    }

    /// The stream of this name on staged state, as it was before a request.
    fn staged(&self, name: &str) -> Option<(u64, Stream)> {
        let staged = self.recorder.staged.borrow();
        staged
            .find(name)
            .map(|(token, stream)| (token, stream.clone()))
    }

    /// The last record that the running request has staged.
    fn last_record<T>(&self, look: impl FnOnce(Record<'_>) -> T) -> T {
        let fresh = self.recorder.fresh.borrow();
        let record = fresh.last().expect("a record was staged");
        look(Record::decode(record).expect("a record"))
    }

    /// Whether the request may have changed nothing but the end of a life.
    fn assert_unchanged(&self) {
        for record in self.recorder.fresh.borrow().iter() {
            let record = Record::decode(record).expect("a record");
            assert!(matches!(record, Record::Delete { .. }), "{record:?}");
            self.totals.borrow_mut().expiries += 1;
        }
    }

    /// Hands releases of forks on to the sources.
    fn release(&self) {
        let releases = self.releases.0.take();
        for (origin, fork) in releases {
            let reply = self.shard.execute(Request::Release {
                source: origin.incarnation,
                fork,
            });
            // Without room for the record the next start does it.
            let _ = reply.outcome;
        }
    }
}

pub async fn turns(count: u64) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// Some operations, one after the other; the keeper and the journal work beside them.
pub async fn script(rng: &mut Rng, life: &Life) {
    let mut promises: VecDeque<Promise> = VecDeque::new();
    let mut copying: Option<Copying> = None;
    for _ in 0..rng.below(life.settings.operations) {
        life.release();
        let name = NAMES[rng.below(life.settings.names) as usize];
        let pick = match life.settings.churns && rng.below(3) == 0 {
            true => [25, 25, 45, 48, 50, 39][rng.below(6) as usize],
            false => rng.below(65),
        };
        match pick {
            0..5 => create(rng, life, name).await,
            5..25 => {
                for _ in 0..1 + rng.below(4) {
                    append(rng, life, name).await;
                }
            }
            25 => delete(rng, life, name).await,
            26..34 => promises.extend(read(rng, life, name).await),
            34..38 => turns(rng.below(40)).await,
            38 => life.wait(life.journal_staged()).await,
            39..42 => {
                life.disk.advance(Duration::from_secs(1));
                turns(rng.below(60)).await;
            }
            42..44 => {
                life.shard.ask_checkpoint();
                turns(rng.below(200)).await;
            }
            44 => {
                let bytes = if rng.below(3) == 0 { 0 } else { DISK_BYTES };
                life.disk.set_capacity(bytes);
                life.disk.advance(Duration::from_secs(1));
            }
            45..48 => publish(rng, life, name).await,
            48 | 49 => retain(rng, life, name).await,
            50 | 51 => fork(rng, life, name).await,
            52 | 53 => part(rng, life, name).await,
            54 => commit(rng, life, name).await,
            55 => discard(life, name).await,
            56 => purge(rng, life).await,
            57 => {
                life.clock.advance(Duration::from_millis(rng.below(5_000)));
                if rng.below(40) == 0 {
                    life.clock.advance(Duration::from_secs(24 * 3600));
                    sweep_parts(life);
                }
                if rng.below(4) == 0 {
                    // Somebody sets the clock, up to an hour or a month in either direction.
                    let hour_ms = 3_600_000;
                    let most_ms = [hour_ms, hour_ms, hour_ms, 30 * 24 * hour_ms];
                    let most_ms = most_ms[rng.below(4) as usize];
                    let from_ms = life.now_ms() - most_ms;
                    life.clock.step_to(from_ms + rng.below(2 * most_ms));
                }
                life.recorder.fresh.borrow_mut().clear();
                while life.shard.sweep_expired() {}
                life.assert_unchanged();
            }
            58 => snapshot(rng, life, name).await,
            59 => bootstrap(life, name).await,
            60 | 61 => match copying.take() {
                None => copying = Some(Copying::begin(life)),
                Some(begun) => begun.finish(rng, life).await,
            },
            _ => keep_promises(life, &mut promises).await,
        }
        if promises.len() > 6 {
            keep_promises(life, &mut promises).await;
        }
    }
    keep_promises(life, &mut promises).await;
    if let Some(begun) = copying {
        begun.finish(rng, life).await;
    }
    match rng.below(8) {
        0 => quiet(life).await,
        1 => stop(life).await,
        2 => verify(life).await,
        _ => {}
    }
}

async fn keep_promises(life: &Life, promises: &mut VecDeque<Promise>) {
    while let Some(promise) = promises.pop_front() {
        if let Some(bytes) = life.resolve(promise.runs).await {
            assert!(bytes == promise.bytes, "a read returned other bytes");
        }
    }
}

async fn create(rng: &mut Rng, life: &Life, name: &str) {
    let before = life.staged(name);
    let json = rng.below(3) == 0;
    let kind = if json {
        "application/json"
    } else {
        "application/octet-stream"
    };
    let lifetime = match rng.below(6) {
        0 => Lifetime::Ttl {
            seconds: 1 + rng.below(20),
        },
        1 => Lifetime::ExpiresAt {
            unix_ms: life.now_ms() + 1 + rng.below(20_000),
        },
        _ => Lifetime::Unlimited,
    };
    let len = rng.below(200);
    let bytes = if rng.below(2) == 0 {
        Vec::new()
    } else {
        body(rng, len, json)
    };
    let request = CreateRequest {
        key: key(name),
        precondition: None,
        unless_any: false,
        content_type: Some(content_type(kind)),
        lifetime,
        closed: rng.below(12) == 0,
        body: Bytes::from(bytes.clone()),
        fork: None,
        inherited: None,
    };
    let closes = request.closed;
    let Some(reply) = life.ask(Request::Create(request)).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Created(created)) if created.is_new => {
            if let Some((token, stream)) = &before {
                assert!(stream.may_be_over(life.now_ms()), "{name} is there twice");
                assert_ne!(*token, created.incarnation.0);
            }
            life.last_record(|record| match record {
                Record::Create {
                    incarnation,
                    key,
                    content_type,
                    closed,
                    body,
                    ..
                } => {
                    assert_eq!((key.as_str(), body), (name, &bytes[..]));
                    assert_eq!((content_type.as_str(), closed), (kind, closes));
                    assert_eq!(incarnation, created.incarnation);
                }
                other => panic!("{other:?}"),
            });
        }
        Ok(Reply::Created(created)) => {
            let (token, stream) = before.expect("there before");
            assert_eq!(created.incarnation.0, token);
            assert_eq!(created.tail, stream.tail());
            life.assert_unchanged();
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::AlreadyExists) => assert!(before.is_some()),
        Err(refusal) => {
            life.missing(name, before.as_ref().map(|(_, stream)| stream), &refusal);
            life.assert_unchanged();
        }
    }
}

async fn append(rng: &mut Rng, life: &Life, name: &str) {
    let before = life.staged(name);
    let stream = before.as_ref().map(|(_, stream)| stream);
    let json = stream.is_some_and(Stream::is_json);
    let max = life.settings.body_bytes;
    let most = if rng.below(4) == 0 { max } else { max.min(200) };
    let len = 1 + rng.below(most);
    let close = rng.below(40) == 0;
    let bytes = body(rng, len, json);
    let producer = (rng.below(3) == 0).then(|| producer(rng, stream));
    let request = AppendRequest {
        key: key(name),
        precondition: None,
        content_type: stream.map(|stream| content_type(&stream.content_type)),
        malformed_type: false,
        body: Bytes::from(bytes.clone()),
        close,
        producer: producer.clone(),
        seq: None,
    };
    let Some(reply) = life.ask(Request::Append(request)).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Appended(appended)) => {
            let (token, stream) = before.expect("there before");
            assert_eq!(appended.incarnation.0, token);
            if let Some(Receipt::Repeated(repeat)) = appended.receipt {
                let write = producer.expect("a producer's write");
                let known = stream.producers.get(write.id.as_ref());
                let known = known.expect("a producer that is known");
                assert_eq!((known.epoch, known.seq), (repeat.epoch, repeat.seq));
                assert!(write.epoch == known.epoch && write.seq <= known.seq);
                if let Some(range) = repeat.range {
                    assert_eq!(range, known.range);
                }
                life.assert_unchanged();
                life.totals.borrow_mut().repeats += 1;
                return;
            }
            assert!(!stream.closed);
            assert_eq!(appended.start, stream.tail());
            assert_eq!(appended.tail, stream.tail() + bytes.len() as u64);
            assert_eq!(appended.closed, close);
            if let Some(write) = &producer {
                assert!(is_next(&stream, write), "{write:?} came out of order");
            }
            life.last_record(|record| match record {
                Record::Append {
                    incarnation, body, ..
                } => {
                    assert_eq!((incarnation.0, body), (token, &bytes[..]));
                }
                other => panic!("{other:?}"),
            });
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::Closed { tail }) => {
            let stream = stream.expect("there before");
            assert_eq!((stream.closed, stream.tail()), (true, tail));
            life.assert_unchanged();
        }
        Err(Refusal::Producer(_)) => {
            let write = producer.expect("a producer's write");
            assert!(!is_next(stream.expect("there before"), &write), "{write:?}");
            life.assert_unchanged();
        }
        Err(Refusal::MissingContentType) => assert!(stream.is_none()),
        Err(refusal) => {
            life.missing(name, stream, &refusal);
            life.assert_unchanged();
        }
    }
}

/// A producer's write: mostly the next one, else a repeat, a gap or another epoch.
fn producer(rng: &mut Rng, stream: Option<&Stream>) -> ProducerWrite {
    let id = ["one", "two", "three"][rng.below(3) as usize];
    let known = stream.and_then(|stream| stream.producers.get(id));
    let (epoch, seq) = known.map_or((0, None), |known| (known.epoch, Some(known.seq)));
    let (epoch, seq) = match rng.below(8) {
        0 => (epoch, seq.unwrap_or(0)),
        1 => (epoch, rng.below(4)),
        2 => (epoch + rng.below(2), 0),
        3 => (epoch, seq.unwrap_or(0) + 2),
        _ => (epoch, seq.map_or(0, |seq| seq + 1)),
    };
    ProducerWrite {
        id: id.into(),
        epoch,
        seq,
        digest: None,
    }
}

fn is_next(stream: &Stream, write: &ProducerWrite) -> bool {
    match stream.producers.get(write.id.as_ref()) {
        None => write.seq == 0,
        Some(known) if write.epoch == known.epoch => write.seq == known.seq + 1,
        Some(known) => write.epoch > known.epoch && write.seq == 0,
    }
}

async fn delete(rng: &mut Rng, life: &Life, name: &str) {
    if rng.below(2) == 0 {
        return;
    }
    let before = life.staged(name);
    life.recorder.deleting.set(true);
    let reply = life.ask(Request::Delete(target(name))).await;
    life.recorder.deleting.set(false);
    let Some(reply) = reply else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Done(incarnation)) => {
            let (token, _) = before.expect("there before");
            assert_eq!(incarnation.0, token);
            life.last_record(|record| match record {
                Record::Delete { incarnation, .. } => assert_eq!(incarnation.0, token),
                other => panic!("{other:?}"),
            });
            life.totals.borrow_mut().deletions += 1;
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => life.missing(name, before.as_ref().map(|(_, stream)| stream), &refusal),
    }
}

/// Reads a part of a stream; what it was promised may be looked at later.
async fn read(rng: &mut Rng, life: &Life, name: &str) -> Option<Promise> {
    let (start, most) = {
        let visible = life.visible.borrow();
        let tail = visible.find(name).map_or(0, |(_, stream)| stream.tail());
        let start = match rng.below(4) {
            0 => None,
            _ => Some(rng.below(tail + 2)),
        };
        (start, [50, 5_000, 1 << 20][rng.below(3) as usize])
    };
    let surface = match rng.below(3) {
        0 => Surface::Base,
        _ => Surface::Bucket,
    };
    let start = start.map_or(StartOffset::Beginning, StartOffset::At);
    read_at(life, name, start, 1 + rng.below(most), surface).await
}

async fn read_at(
    life: &Life,
    name: &str,
    start: StartOffset,
    bytes_max: u64,
    surface: Surface,
) -> Option<Promise> {
    let request = ReadRequest {
        key: key(name),
        precondition: None,
        surface,
        start,
        bytes_max,
        live: Live::No,
    };
    let reply = life.ask(Request::Read(request, None)).await?;
    life.assert_unchanged();
    life.totals.borrow_mut().reads += 1;
    let visible = life.visible.borrow();
    let found = visible.find(name);
    let start = match start {
        StartOffset::At(offset) => offset,
        _ => 0,
    };
    match reply.outcome {
        Ok(Reply::Read(reply)) => {
            let (token, stream) = found.expect("it is there");
            assert_eq!(reply.incarnation.0, token);
            assert!(!stream.soft_deleted);
            let window = reply.window;
            assert_eq!((window.tail, window.closed), (stream.tail(), stream.closed));
            assert_eq!(window.start, start);
            assert!(start >= stream.retained);
            let end = (start + bytes_max).min(stream.tail());
            if surface == Surface::Bucket || !stream.is_json() {
                assert_eq!(window.end, end);
            } else {
                assert!(stream.is_boundary(start));
                assert!(window.end == stream.tail() || stream.is_boundary(window.end));
                assert!(window.end > start || start == stream.tail());
            }
            Some(Promise {
                runs: reply.runs,
                bytes: stream.data[start as usize..window.end as usize].to_vec(),
            })
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::OffsetGone { retained, .. }) => {
            let (_, stream) = found.expect("it is there");
            assert_eq!(stream.retained, retained);
            assert!(start < retained);
            None
        }
        Err(Refusal::OffsetOutOfRange { tail, .. }) => {
            let (_, stream) = found.expect("it is there");
            assert_eq!(stream.tail(), tail);
            assert!(start > tail);
            None
        }
        Err(Refusal::NotJsonBoundary { .. }) => {
            let (_, stream) = found.expect("it is there");
            assert!(!stream.is_boundary(start));
            None
        }
        Err(Refusal::StreamNotFound) => {
            let over = found.is_none_or(|(_, stream)| stream.may_be_over(life.now_ms()));
            assert!(
                over,
                "{name} is not found: {:?}, staged {:?}, now {}",
                found.map(|(token, stream)| (token, stream.lifetime, stream.renewed_ms)),
                life.staged(name).map(|(token, stream)| (
                    token,
                    stream.lifetime,
                    stream.renewed_ms
                )),
                life.now_ms(),
            );
            None
        }
        Err(Refusal::SoftDeleted) => {
            let (_, stream) = found.expect("it is there");
            assert!(stream.soft_deleted);
            None
        }
        Err(Refusal::BucketErased) => {
            assert!(life.recorder.staged.borrow().is_fenced(name));
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// An offset between two messages from `low` to the tail, or any.
fn some_boundary(rng: &mut Rng, stream: &Stream, low: u64) -> u64 {
    let mut offset = low + rng.below(stream.tail() - low.min(stream.tail()) + 1);
    if rng.below(8) > 0 {
        while offset < stream.tail() && !stream.is_boundary(offset) {
            offset += 1;
        }
    }
    offset
}

fn digest(kind: &ContentType, body: &[u8]) -> [u8; 32] {
    let mut digester = Digester::new(kind);
    digester.update(body);
    digester.finish()
}

async fn publish(rng: &mut Rng, life: &Life, name: &str) {
    let before = life.staged(name);
    let stream = before.as_ref().map(|(_, stream)| stream);
    let low = stream.map_or(0, |stream| {
        let latest = stream.snapshot.as_ref();
        latest.map_or(stream.retained, |snapshot| snapshot.offset)
    });
    let offset = stream.map_or(0, |stream| some_boundary(rng, stream, low));
    let kind = content_type("text/plain");
    let len = 10 + rng.below(5_000);
    let bytes = body(rng, len, false);
    let digest = digest(&kind, &bytes);
    let request = PublishRequest {
        key: key(name),
        precondition: None,
        offset,
        content_type: kind,
        digest,
    };
    let blob = Blob::Memory(Bytes::from(bytes.clone()));
    let Some(reply) = life.ask(Request::Publish(request, blob)).await else {
        return;
    };
    let published = matches!(reply.outcome, Ok(Reply::Published(..)));
    judge_publish(life, name, stream, offset, reply.outcome);
    if published {
        let after = life.staged(name).expect("it is there").1;
        let snapshot = after.snapshot.expect("a snapshot");
        assert_eq!((snapshot.offset, snapshot.digest), (offset, digest));
        assert!(*snapshot.body == bytes);
        life.totals.borrow_mut().snapshots += 1;
    }
}

fn judge_publish(
    life: &Life,
    name: &str,
    stream: Option<&Stream>,
    offset: u64,
    outcome: Result<Reply, Refusal>,
) {
    match outcome {
        Ok(Reply::Published(meta, _)) => {
            let stream = stream.expect("it is there");
            assert_eq!(meta.offset, offset);
            assert!(offset <= stream.tail());
            assert!(stream.is_boundary(offset) || offset == stream.tail());
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::SnapshotConflict { .. }) => {
            let stream = stream.expect("it is there");
            let latest = stream.snapshot.as_ref();
            assert!(latest.is_some_and(|latest| offset <= latest.offset) || offset > stream.tail());
            life.assert_unchanged();
        }
        Err(Refusal::NotJsonBoundary { .. }) => {
            let stream = stream.expect("it is there");
            let around = &stream.data[offset.saturating_sub(5) as usize..];
            let around = &around[..around.len().min(10)];
            let tail = stream.tail();
            assert!(
                !stream.is_boundary(offset),
                "{offset} of {}..{tail}, {around:?}, source {:?}, {:?}",
                stream.retained,
                stream.source,
                life.shard.memory(),
            );
            life.assert_unchanged();
        }
        Err(Refusal::OffsetGone { .. }) => {
            assert!(offset < stream.expect("it is there").retained);
            life.assert_unchanged();
        }
        Err(refusal) => {
            life.missing(name, stream, &refusal);
            life.assert_unchanged();
        }
    }
}

async fn retain(rng: &mut Rng, life: &Life, name: &str) {
    let Some((_, stream)) = life.staged(name) else {
        return;
    };
    let offset = match &stream.snapshot {
        Some(snapshot) if rng.below(6) > 0 => {
            let offset = rng.below(snapshot.offset + 1);
            let whole = (offset..=snapshot.offset).find(|offset| stream.is_boundary(*offset));
            whole.unwrap_or(snapshot.offset)
        }
        _ => rng.below(stream.tail() + 2),
    };
    let Some(reply) = life.ask(Request::Retain(target(name), offset)).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Retained(now, _)) => {
            assert_eq!(now, offset.max(stream.retained));
            if offset > stream.retained {
                life.last_record(|record| match record {
                    Record::Retain { offset: at, .. } => assert_eq!(at, offset),
                    other => panic!("{other:?}"),
                });
                life.totals.borrow_mut().retains += 1;
            }
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::InvalidRetention) => {
            let latest = stream.snapshot.as_ref();
            assert!(latest.is_none_or(|latest| offset > latest.offset));
        }
        Err(Refusal::NotJsonBoundary { .. }) => assert!(!stream.is_boundary(offset)),
        Err(refusal) => {
            life.missing(name, Some(&stream), &refusal);
            life.assert_unchanged();
        }
    }
}

/// Forks one of the names from another.
async fn fork(rng: &mut Rng, life: &Life, name: &str) {
    let source = NAMES[rng.below(life.settings.names) as usize];
    let Some((source_token, stream)) = life.staged(source) else {
        return;
    };
    let before = life.staged(name);
    if before.is_some() || life.recorder.staged.borrow().is_fenced(name) {
        return;
    }
    let offset = (rng.below(3) > 0).then(|| some_boundary(rng, &stream, stream.retained));
    let anchor = offset.unwrap_or(stream.tail());
    let sub_offset = if rng.below(4) == 0 { rng.below(4) } else { 0 };
    let request = ForkRequest {
        source: key(source),
        offset,
        sub_offset,
    };
    let Ok(incarnation) = life.shard.allocate_incarnation() else {
        return;
    };
    let refer = Request::Refer(ReferRequest {
        fork: request.clone(),
        key: key(name),
        incarnation,
        counted: std::cell::Cell::new(None),
    });
    let Some(reply) = life.ask(refer).await else {
        return;
    };
    let inherited = match reply.outcome {
        Ok(Reply::Referred(inherited)) => *inherited,
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::InvalidForkOffset(_)) => {
            assert!(sub_offset > 0, "from {anchor} of {}", stream.tail());
            return;
        }
        Err(Refusal::NotJsonBoundary { .. }) => {
            assert!(!stream.is_boundary(anchor));
            return;
        }
        Err(refusal) => return life.missing(source, Some(&stream), &refusal),
    };
    assert_eq!(inherited.origin.incarnation.0, source_token);
    let at = if stream.is_json() {
        let mut at = anchor;
        for _ in 0..sub_offset {
            at += 1;
            while !stream.is_boundary(at) {
                at += 1;
            }
        }
        at
    } else {
        anchor + sub_offset
    };
    assert_eq!(inherited.origin.offset, at);
    // Between the two steps anything may happen.
    if rng.below(3) == 0 {
        turns(rng.below(30)).await;
    }
    let json = inherited.content_type.is_json();
    let len = rng.below(100);
    let request = CreateRequest {
        key: key(name),
        precondition: None,
        unless_any: false,
        content_type: None,
        lifetime: Lifetime::Unlimited,
        closed: false,
        body: Bytes::from(body(rng, len, json)),
        fork: Some(request),
        inherited: Some(inherited),
    };
    let Some(reply) = life.ask(Request::Create(request)).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Created(created)) => {
            assert!(created.is_new);
            assert_eq!(created.incarnation, incarnation);
            life.totals.borrow_mut().forks += 1;
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => {
            life.pressure(&refusal);
            // As whoever made the reference does.
            let _ = life.shard.execute(Request::Release {
                source: Incarnation(source_token),
                fork: incarnation,
            });
        }
    }
}

async fn part(rng: &mut Rng, life: &Life, name: &str) {
    let before = life.staged(name);
    let id = ["p", "q", "r"][rng.below(3) as usize];
    let len = 10 + rng.below(3_000);
    let bytes = body(rng, len, false);
    let blob = Blob::Memory(Bytes::from(bytes.clone()));
    // An id that is taken is refused above.
    if before
        .as_ref()
        .is_some_and(|(_, stream)| stream.parts.contains_key(id))
    {
        return;
    }
    let request = Request::StagePart(target(name), id.into(), blob);
    let Some(reply) = life.ask(request).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Done(_)) => {
            let after = life.staged(name).expect("it is there").1;
            assert!(**after.parts.get(id).expect("the part") == bytes);
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => {
            life.missing(name, before.as_ref().map(|(_, stream)| stream), &refusal);
            life.assert_unchanged();
        }
    }
}

async fn commit(rng: &mut Rng, life: &Life, name: &str) {
    let Some((token, stream)) = life.staged(name) else {
        return;
    };
    if stream.parts.is_empty() {
        return;
    }
    let mut ids: Vec<Box<str>> = stream.parts.keys().map(|id| id.as_str().into()).collect();
    if rng.below(2) == 0 {
        ids.reverse();
    }
    if rng.below(3) == 0 {
        ids.pop();
    }
    if ids.is_empty() {
        return;
    }
    let whole: Vec<u8> = ids
        .iter()
        .flat_map(|id| stream.parts.get(id.as_ref()).expect("a part").to_vec())
        .collect();
    let low = stream
        .snapshot
        .as_ref()
        .map_or(stream.retained, |snapshot| snapshot.offset);
    let offset = some_boundary(rng, &stream, low);
    let kind = content_type("text/plain");
    let request = CommitRequest {
        target: target(name),
        offset,
        content_type: kind.clone(),
        digest: digest(&kind, &whole),
        ids: ids.into(),
        bytes_max: 1 << 30,
    };
    let Some(reply) = life.ask(Request::BeginCommit(request.clone())).await else {
        return;
    };
    let (blobs, pins, incarnation) = match reply.outcome {
        Ok(Reply::Parts(blobs, pins, incarnation)) => (blobs, pins, incarnation),
        outcome => return judge_publish(life, name, Some(&stream), offset, outcome),
    };
    assert_eq!(incarnation.0, token);
    turns(rng.below(60)).await;
    let bytes = bytes_of(life, incarnation, &blobs, pins).await;
    if let Some(bytes) = &bytes {
        assert!(*bytes == whole, "parts have other bytes");
    }
    let stream = life.staged(name).map(|(_, stream)| stream);
    let matches = bytes.is_some() && rng.below(6) > 0;
    let Some(reply) = life.ask(Request::EndCommit(request, matches)).await else {
        return;
    };
    match reply.outcome {
        Err(Refusal::SnapshotDigestMismatch) => assert!(!matches),
        outcome => {
            let done = matches!(outcome, Ok(Reply::Published(..)));
            judge_publish(life, name, stream.as_ref(), offset, outcome);
            if done {
                let after = life.staged(name).expect("it is there").1;
                assert!(*after.snapshot.expect("a snapshot").body == whole);
                life.totals.borrow_mut().commits += 1;
            }
        }
    }
}

/// The bytes of a body.
async fn bytes_of(
    life: &Life,
    incarnation: Incarnation,
    blobs: &[Blob],
    pins: Vec<Arc<Segment>>,
) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for blob in blobs {
        match blob {
            Blob::Memory(piece) => bytes.extend_from_slice(piece),
            Blob::Block(place) => {
                assert!(pins.iter().any(|segment| segment.id == place.segment));
                life.totals.borrow_mut().cold_snapshots += 1;
                let key = blob_key(incarnation);
                match life.reader.read(&[(*place, key)]).await {
                    Ok(blocks) => bytes.extend_from_slice(&blocks[0]),
                    Err(error) => {
                        assert!(life.faulty.get(), "{error}");
                        life.totals.borrow_mut().failed_reads += 1;
                        return None;
                    }
                }
            }
            Blob::File(_) => panic!("no file was made"),
        }
    }
    Some(bytes)
}

async fn discard(life: &Life, name: &str) {
    let before = life.staged(name);
    let Some(reply) = life.ask(Request::DiscardParts(target(name))).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Done(_)) => {
            let after = life.staged(name).expect("it is there").1;
            assert!(after.parts.is_empty());
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => {
            life.missing(name, before.as_ref().map(|(_, stream)| stream), &refusal);
            life.assert_unchanged();
        }
    }
}

/// Makes a stream in a bucket of its own, now and then, or erases that bucket.
async fn purge(rng: &mut Rng, life: &Life) {
    let number = life.recorder.staged.borrow().fenced.len();
    let bucket = format!("erased{number}");
    let name = format!("{bucket}/{}", rng.below(3));
    if rng.below(3) > 0 {
        create(rng, life, &name).await;
        append(rng, life, &name).await;
        return;
    }
    let fence = Request::Fence(bucket.as_str().into());
    let Some(reply) = life.ask(fence).await else {
        return;
    };
    if let Err(refusal) = reply.outcome {
        return life.pressure(&refusal);
    }
    turns(rng.below(20)).await;
    let mut from = Some(0);
    while let Some(slot) = from {
        let slice = Request::PurgeSlice {
            bucket: Some(bucket.as_str().into()),
            from: slot,
        };
        let Some(reply) = life.ask(slice).await else {
            return;
        };
        match reply.outcome {
            Ok(Reply::Purged(slice)) => from = slice.next,
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => return life.pressure(&refusal),
        }
    }
    let staged = life.recorder.staged.borrow();
    let left = staged.streams.values();
    let mut left = left.filter(|stream| stream.key.starts_with(&bucket));
    assert!(left.all(|stream| stream.soft_deleted));
    life.totals.borrow_mut().purges += 1;
}

/// Reads the latest snapshot.
async fn snapshot(rng: &mut Rng, life: &Life, name: &str) {
    let expected = {
        let visible = life.visible.borrow();
        let Some((_, stream)) = visible.find(name) else {
            return;
        };
        stream.snapshot.clone()
    };
    let Some(expected) = expected else {
        return;
    };
    let request = Request::ReadSnapshot(target(name), expected.offset);
    let Some(reply) = life.ask(request).await else {
        return;
    };
    match reply.outcome {
        Ok(Reply::Snapshot(reply)) => {
            assert_eq!(reply.snapshot.meta.digest, expected.digest);
            turns(rng.below(60)).await;
            let body = &reply.snapshot.body;
            let bytes = bytes_of(life, reply.incarnation, body, reply.segments).await;
            if let Some(bytes) = bytes {
                assert!(bytes == *expected.body, "a snapshot has other bytes");
            }
        }
        Ok(other) => panic!("{other:?}"),
        Err(Refusal::BucketErased) => {
            assert!(life.recorder.staged.borrow().is_fenced(name));
        }
        Err(Refusal::StreamNotFound | Refusal::SoftDeleted) => {
            let visible = life.visible.borrow();
            let (_, stream) = visible.find(name).expect("it is there");
            assert!(stream.soft_deleted || stream.may_be_over(life.now_ms()));
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Drops parts that nobody used within a day, and no others.
fn sweep_parts(life: &Life) {
    life.recorder.fresh.borrow_mut().clear();
    let mut from = Some(0);
    while let Some(at) = from {
        from = life.shard.sweep_parts(at);
    }
    let fresh = life.recorder.fresh.borrow();
    for record in fresh.iter() {
        let record = Record::decode(record).expect("a record");
        assert!(matches!(record, Record::DiscardParts { .. }), "{record:?}");
        life.totals.borrow_mut().old_parts += 1;
    }
}

/// The latest snapshot and what follows it.
async fn bootstrap(life: &Life, name: &str) {
    let request = BootstrapRequest {
        key: key(name),
        precondition: None,
    };
    let Some(reply) = life.ask(Request::Bootstrap(request)).await else {
        return;
    };
    let visible = life.visible.borrow().clone();
    let found = visible.find(name);
    match reply.outcome {
        Ok(Reply::Bootstrap(reply)) => {
            let (token, stream) = found.expect("it is there");
            assert_eq!(reply.incarnation.0, token);
            let latest = stream.snapshot.as_ref();
            let start = latest.map_or(stream.retained, |latest| latest.offset);
            let window = reply.window;
            assert_eq!((window.start, window.tail), (start, stream.tail()));
            let expected = &stream.data[start as usize..window.end as usize];
            if let Some(bytes) = life.resolve(reply.runs).await {
                assert!(bytes == expected, "a bootstrap has other bytes");
            }
            assert_eq!(reply.snapshot.is_some(), latest.is_some());
            if let (Some(found), Some(latest)) = (reply.snapshot, latest) {
                let body = bytes_of(life, reply.incarnation, &found.body, reply.segments).await;
                assert!(body.is_none_or(|body| body == *latest.body));
            }
            life.totals.borrow_mut().bootstraps += 1;
        }
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => life.missing(name, found.map(|(_, stream)| stream), &refusal),
    }
}

/// Reads everything that is visible.
pub async fn verify(life: &Life) {
    let names: Vec<(String, u64, u64, bool)> = {
        let visible = life.visible.borrow();
        let streams = visible.streams.values();
        streams
            .map(|stream| {
                let has_snapshot = stream.snapshot.is_some();
                (
                    stream.key.clone(),
                    stream.retained,
                    stream.tail(),
                    has_snapshot,
                )
            })
            .collect()
    };
    let mut rng = Rng::from_seed(life.now_ms());
    for (name, retained, tail, has_snapshot) in names {
        let mut at = retained;
        while at < tail {
            let start = StartOffset::At(at);
            let Some(promise) = read_at(life, &name, start, 1 << 20, Surface::Bucket).await else {
                break;
            };
            if promise.bytes.is_empty() {
                // Another stream of that name by now.
                break;
            }
            at += promise.bytes.len() as u64;
            if let Some(bytes) = life.resolve(promise.runs).await {
                assert!(bytes == promise.bytes, "{name}: other bytes");
            }
        }
        if has_snapshot {
            snapshot(&mut rng, life, &name).await;
        }
    }
}

/// Lets the keeper come to rest and looks at the space that segments take.
async fn quiet(life: &Life) {
    life.disk.plan(FaultPlan::default());
    life.disk.set_capacity(DISK_BYTES);
    let mut last = life.keeper.get();
    for round in 0..40 {
        if life.failed.get() {
            return;
        }
        life.shard.ask_checkpoint();
        life.disk.advance(Duration::from_secs(1));
        turns(300).await;
        let now = life.keeper.get();
        let idle =
            now.compacted_bytes == last.compacted_bytes && now.punched_bytes == last.punched_bytes;
        last = now;
        if idle && round > 5 {
            break;
        }
    }
    let held = life.shard.held();
    life.totals.borrow_mut().quiet_moments += 1;
    // What is too little to be worth a hole or a move, of each.
    let slack = held.segments * (40 << 10) + life.settings.segment_bytes;
    let bound = held.segment_live_bytes * 13 / 10 + slack;
    assert!(
        held.segment_taken_bytes <= bound,
        "{held:?}, {:?}",
        life.settings
    );
}

/// An orderly end.
async fn stop(life: &Life) {
    life.disk.plan(FaultPlan::default());
    life.disk.set_capacity(DISK_BYTES);
    life.shard.stop_keeper();
    or(life.journal.close(), async {
        loop {
            life.disk.advance(Duration::from_secs(1));
            yield_now().await;
        }
    })
    .await;
    if life.failed.get() {
        return;
    }
    let (staged, visible) = (life.recorder.staged.borrow(), life.visible.borrow());
    assert_eq!(staged.streams.len(), visible.streams.len());
    life.totals.borrow_mut().stopped += 1;
    let _ = Rc::strong_count(&life.shard);
}
