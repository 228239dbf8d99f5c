//! What a shard should hold: streams as plain vectors of bytes.
//!
//! The model learns of every change from the record that was staged for it,
//! which says what the change is; whether the record is the one that a request
//! asked for is checked where the request is made.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thalweg::protocol::expiry::Lifetime;
use thalweg::protocol::incarnation::Incarnation;
use thalweg::protocol::producer::Digest;
use thalweg::shard::record::{BlobRecord, Record};
use thalweg::shard::stream::Stream as RealStream;
use thalweg::shard::tables::Tables;

/// All streams of a shard.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub streams: BTreeMap<u64, Stream>,
    pub fenced: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub key: String,
    pub content_type: String,
    pub lifetime: Lifetime,
    /// As records have it; reads may have renewed it since.
    pub renewed_ms: u64,
    /// Every byte from offset 0 on, those let go included.
    pub data: Rc<Vec<u8>>,
    pub closed: bool,
    pub soft_deleted: bool,
    pub retained: u64,
    pub producers: BTreeMap<String, Producer>,
    pub snapshot: Option<Snapshot>,
    pub parts: BTreeMap<String, Rc<Vec<u8>>>,
    pub forks: BTreeMap<u64, u64>,
    /// The source of a fork.
    pub source: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    pub epoch: u64,
    pub seq: u64,
    pub range: (u64, u64),
    pub closes: bool,
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub offset: u64,
    pub digest: Digest,
    pub body: Rc<Vec<u8>>,
}

impl Stream {
    pub fn tail(&self) -> u64 {
        self.data.len() as u64
    }

    pub fn is_json(&self) -> bool {
        self.content_type == "application/json"
    }

    /// Whether an offset lies between two messages; true for streams without messages.
    pub fn is_boundary(&self, offset: u64) -> bool {
        !self.is_json()
            || offset == 0
            || offset == self.retained
            || self.data.get(offset as usize - 1) == Some(&b'\n')
    }

    /// Whether it may be over: nobody may have renewed it since.
    pub fn may_be_over(&self, now_ms: u64) -> bool {
        self.lifetime.is_over(self.renewed_ms, now_ms)
    }

    fn renew(&mut self, at_ms: u64) {
        self.renewed_ms = self.renewed_ms.max(at_ms);
    }
}

impl Model {
    /// The stream of this name, with its token.
    pub fn find(&self, key: &str) -> Option<(u64, &Stream)> {
        let mut named = self.streams.iter().filter(|(_, stream)| stream.key == key);
        let found = named.next().map(|(token, stream)| (*token, stream));
        assert!(named.next().is_none(), "two streams are named {key}");
        found
    }

    pub fn is_fenced(&self, key: &str) -> bool {
        self.fenced.contains(bucket(key))
    }

    fn stream(&mut self, incarnation: Incarnation) -> &mut Stream {
        let stream = self.streams.get_mut(&incarnation.0);
        stream.expect("a record of a stream that exists")
    }

    /// Applies a staged record.
    pub fn apply(&mut self, bytes: &[u8]) {
        match Record::decode(bytes).expect("a record") {
            Record::Create {
                incarnation,
                at_ms,
                key,
                content_type,
                lifetime,
                closed,
                origin,
                body,
            } => {
                let mut data = Vec::new();
                if let Some(origin) = &origin {
                    let source = self.stream(origin.incarnation);
                    assert!(source.forks.contains_key(&incarnation.0), "not referred to");
                    data.extend_from_slice(&source.data[..origin.offset as usize]);
                }
                data.extend_from_slice(body);
                assert!(self.find(key.as_str()).is_none(), "the name is taken");
                let stream = Stream {
                    key: key.as_str().to_owned(),
                    content_type: content_type.as_str().to_owned(),
                    lifetime,
                    renewed_ms: at_ms,
                    data: Rc::new(data),
                    closed,
                    soft_deleted: false,
                    retained: origin.as_ref().map_or(0, |origin| origin.start),
                    producers: BTreeMap::new(),
                    snapshot: None,
                    parts: BTreeMap::new(),
                    forks: BTreeMap::new(),
                    source: origin.map(|origin| origin.incarnation.0),
                };
                let before = self.streams.insert(incarnation.0, stream);
                assert!(before.is_none(), "a token is used twice");
            }
            Record::Append {
                incarnation,
                at_ms,
                start,
                close,
                producer,
                body,
                ..
            } => {
                let stream = self.stream(incarnation);
                assert!(!stream.closed && !stream.soft_deleted);
                assert_eq!(start, stream.tail());
                Rc::make_mut(&mut stream.data).extend_from_slice(body);
                stream.closed = close;
                stream.renew(at_ms);
                let range = (start, stream.tail());
                if let Some(write) = producer {
                    let producer = Producer {
                        epoch: write.epoch,
                        seq: write.seq,
                        range,
                        closes: close,
                    };
                    stream.producers.insert(write.id.into(), producer);
                }
            }
            Record::Delete { incarnation, soft } => {
                let stream = self.stream(incarnation);
                assert_eq!(soft, !stream.forks.is_empty());
                if soft {
                    stream.soft_deleted = true;
                } else {
                    self.streams.remove(&incarnation.0);
                }
            }
            Record::Retain {
                incarnation,
                at_ms,
                offset,
            } => {
                let stream = self.stream(incarnation);
                assert!(offset > stream.retained && offset <= stream.tail());
                stream.retained = offset;
                stream.renew(at_ms);
            }
            Record::Publish {
                incarnation,
                at_ms,
                offset,
                digest,
                body,
                ..
            } => {
                let body = inline(body);
                let stream = self.stream(incarnation);
                stream.renew(at_ms);
                stream.snapshot = Some(Snapshot {
                    offset,
                    digest,
                    body,
                });
            }
            Record::StagePart {
                incarnation,
                at_ms,
                id,
                body,
            } => {
                let body = inline(body);
                let stream = self.stream(incarnation);
                stream.renew(at_ms);
                stream.parts.insert(id.into(), body);
            }
            Record::CommitParts {
                incarnation,
                at_ms,
                offset,
                digest,
                ids,
                ..
            } => {
                let stream = self.stream(incarnation);
                stream.renew(at_ms);
                let mut body = Vec::new();
                for id in &ids {
                    let part = stream.parts.remove(id.as_ref());
                    body.extend_from_slice(&part.expect("a staged part"));
                }
                stream.snapshot = Some(Snapshot {
                    offset,
                    digest,
                    body: Rc::new(body),
                });
            }
            Record::DiscardParts { incarnation, ids } => {
                let stream = self.stream(incarnation);
                if ids.is_empty() {
                    stream.parts.clear();
                }
                for id in &ids {
                    stream.parts.remove(id.as_ref());
                }
            }
            Record::Refer {
                incarnation,
                fork,
                start,
                ..
            } => {
                self.stream(incarnation).forks.insert(fork.0, start);
            }
            Record::Release { incarnation, fork } => {
                let before = self.stream(incarnation).forks.remove(&fork.0);
                assert!(before.is_some());
            }
            Record::Fence { bucket } => {
                self.fenced.insert(bucket.into());
            }
        }
    }

    /// Whether tables hold about what the model does: which streams, and how far they go.
    pub fn matches(&self, tables: &Tables) -> bool {
        let mut found = 0;
        let same = tables.all_streams().all(|stream| {
            found += 1;
            let state = &stream.staged;
            self.streams.get(&state.incarnation.0).is_some_and(|model| {
                model.tail() == state.tail
                    && model.retained == state.retained
                    && model.closed == state.closed
            })
        });
        same && found == self.streams.len()
    }

    /// Compares the tables that a recovery put together.
    pub fn check_tables(&self, tables: &Tables) {
        let mut found = 0;
        for stream in tables.all_streams() {
            found += 1;
            let token = stream.staged.incarnation.0;
            let model = self.streams.get(&token);
            let model = model
                .unwrap_or_else(|| panic!("{token} ({:?}) should not be there", stream.staged.key));
            model.check(stream);
        }
        for (token, stream) in &self.streams {
            let there = tables.stream(Incarnation(*token)).is_some();
            assert!(there, "{token} ({}) is lost", stream.key);
        }
        assert_eq!(found, self.streams.len(), "streams");
        let fenced: BTreeSet<String> = tables.fenced_buckets().map(str::to_owned).collect();
        assert_eq!(fenced, self.fenced);
    }
}

impl Stream {
    fn check(&self, real: &RealStream) {
        let state = &real.staged;
        let name = format!("{} ({})", self.key, state.incarnation.0);
        assert_eq!(state.key.as_str(), self.key, "{name}");
        assert_eq!(state.content_type.as_str(), self.content_type, "{name}");
        assert_eq!(state.lifetime, self.lifetime, "{name}");
        assert!(state.renewed_ms >= self.renewed_ms, "{name}");
        assert_eq!(state.tail, self.tail(), "{name}: tail");
        assert_eq!(state.retained, self.retained, "{name}: retained");
        assert_eq!(state.closed, self.closed, "{name}: closed");
        assert_eq!(state.soft_deleted, self.soft_deleted, "{name}: deleted");
        assert!(real.visible.exists);
        let visible = &real.visible;
        let shown = (
            visible.tail,
            visible.retained,
            visible.closed,
            visible.soft_deleted,
        );
        let staged = (state.tail, state.retained, state.closed, state.soft_deleted);
        assert_eq!(shown, staged, "{name}: everything recovered is visible");
        assert_eq!(
            state.origin().map(|origin| origin.incarnation.0),
            self.source,
            "{name}: source"
        );
        let rare = state.rare.as_deref();
        let producers: BTreeMap<String, Producer> = rare
            .iter()
            .flat_map(|rare| &rare.producers)
            .map(|(id, known)| {
                let producer = Producer {
                    epoch: known.epoch,
                    seq: known.seq,
                    range: (known.start, known.end),
                    closes: known.closes,
                };
                (String::from(id.as_ref()), producer)
            })
            .collect();
        assert_eq!(producers, self.producers, "{name}: producers");
        let forks: BTreeMap<u64, u64> = rare
            .iter()
            .flat_map(|rare| rare.forks.iter())
            .map(|(fork, reference)| (fork.0, reference.start))
            .collect();
        assert_eq!(forks, self.forks, "{name}: forks");
        let parts: BTreeMap<String, u64> = rare
            .iter()
            .flat_map(|rare| {
                let parts = &rare.parts;
                parts.ids().map(|id| (id.to_owned(), parts.get(id)))
            })
            .map(|(id, part)| (id, part.map_or(0, |part| part.len)))
            .collect();
        let expected: BTreeMap<String, u64> = self
            .parts
            .iter()
            .map(|(id, body)| (id.clone(), body.len() as u64))
            .collect();
        assert_eq!(parts, expected, "{name}: parts");
        let snapshot = state
            .snapshot()
            .map(|meta| (meta.offset, meta.digest, meta.len));
        let expected = self
            .snapshot
            .as_ref()
            .map(|snapshot| (snapshot.offset, snapshot.digest, snapshot.body.len() as u64));
        assert_eq!(snapshot, expected, "{name}: snapshot");
        assert_eq!(real.history.end(), self.tail(), "{name}: end of its bytes");
    }
}

fn inline(body: BlobRecord<'_>) -> Rc<Vec<u8>> {
    match body {
        BlobRecord::Inline(bytes) => Rc::new(bytes.to_vec()),
        other => panic!("not in the record: {other:?}"),
    }
}

/// The bucket of a name.
pub fn bucket(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}
