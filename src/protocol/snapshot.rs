//! Snapshots: publish, supersede, conflict, staged parts and their commit
//! (extensions 2.2, 2.5; source 1, Publish a snapshot and the parts requests).

use std::collections::HashMap;

use crate::{
    base::{
        self,
        limits::{COMMIT_PARTS_MAX, STAGED_BYTES_MAX, STAGED_PART_AGE_MAX, STAGED_PARTS_MAX},
    },
    protocol::{
        content_type::ContentType,
        error::{NumberBuffer, Refusal},
        incarnation::Incarnation,
        offset,
        producer::Digest,
        state::StreamState,
        stream_key::StreamKey,
    },
};

/// A published snapshot, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The offset it summarizes the stream up to, excluded.
    pub offset: u64,
    /// [`digest`](Digester) of content type and body.
    pub digest: Digest,
    /// Its own content type.
    pub content_type: ContentType,
    /// Bytes of its body.
    pub len: u64,
}

impl SnapshotMeta {
    /// Emits offset and digest, as publish and conflict answers carry them.
    pub fn headers(&self, emit: &mut dyn FnMut(&'static str, &[u8])) {
        emit("Stream-Snapshot-Offset", &offset::digits(self.offset));
        emit("Stream-Snapshot-Digest", &hex(&self.digest));
    }

    /// Emits the headers of every read of the snapshot: 200, 206, 304 and 416 (extensions 2.5).
    pub fn read_headers(
        &self,
        incarnation: Incarnation,
        up_to_date: bool,
        emit: &mut dyn FnMut(&'static str, &[u8]),
    ) {
        self.headers(emit);
        emit("Stream-Next-Offset", &offset::digits(self.offset));
        emit(
            "Stream-Incarnation",
            NumberBuffer::default().write(incarnation.0),
        );
        if up_to_date {
            emit("Stream-Up-To-Date", b"true");
        }
        emit("ETag", self.etag().as_bytes());
        emit("Accept-Ranges", b"bytes");
    }

    /// The entity tag: the digest in quotes.
    #[must_use]
    pub fn etag(&self) -> String {
        let digest = hex(&self.digest);
        format!("\"{}\"", String::from_utf8_lossy(&digest))
    }
}

/// Lower-case hex.
#[must_use]
pub fn hex(digest: &Digest) -> [u8; 64] {
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&base::hex::digits(*byte));
    }
    text
}

/// Computes a snapshot's digest piece by piece: BLAKE3 of the content type's length in bytes as
/// `u64` little-endian, the content type, the body (decisions, Tokens).
pub struct Digester(blake3::Hasher);

impl Digester {
    /// A digester for a body of type `content_type`.
    #[must_use]
    pub fn new(content_type: &ContentType) -> Self {
        let text = content_type.as_str().as_bytes();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text);
        Self(hasher)
    }

    /// Takes the next piece of the body.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The digest.
    #[must_use]
    pub fn finish(&self) -> Digest {
        *self.0.finalize().as_bytes()
    }
}

/// A PUT of a whole snapshot.
#[derive(Clone, Debug)]
pub struct PublishRequest {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
    /// The offset in the path.
    pub offset: u64,
    /// `Content-Type`.
    pub content_type: ContentType,
    /// The digest of type and body, computed where the body arrived.
    pub digest: Digest,
}

/// What a publish comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishDecision {
    /// Publish it; it replaces any earlier one.
    Publish,
    /// This very snapshot is the latest already.
    Repeat,
}

/// Decides a publish of a snapshot with `digest` at `offset` (decisions, Where the sources
/// differ: the latest snapshot comes before the boundary check and before the 410 of retention).
///
/// `is_boundary` says whether an offset of a JSON stream lies between two messages.
///
/// # Errors
/// [`Refusal::SnapshotConflict`], [`Refusal::OffsetGone`], [`Refusal::NotJsonBoundary`].
pub fn decide_publish(
    state: &StreamState,
    offset: u64,
    digest: &Digest,
    content_type: &ContentType,
    is_boundary: impl FnOnce(u64) -> bool,
) -> Result<PublishDecision, Refusal> {
    if let Some(latest) = state.snapshot().filter(|latest| offset <= latest.offset) {
        let same = offset == latest.offset
            && latest.digest == *digest
            && latest.content_type == *content_type;
        return if same {
            Ok(PublishDecision::Repeat)
        } else {
            Err(Refusal::SnapshotConflict {
                latest: Some(latest.clone()),
                tail: state.tail,
            })
        };
    }
    if offset > state.tail {
        return Err(Refusal::SnapshotConflict {
            latest: None,
            tail: state.tail,
        });
    }
    if offset < state.retained {
        return Err(Refusal::OffsetGone {
            retained: state.retained,
            incarnation: state.incarnation,
        });
    }
    if state.content_type.is_json() && !is_boundary(offset) {
        return Err(Refusal::NotJsonBoundary { tail: state.tail });
    }
    Ok(PublishDecision::Publish)
}

/// Parts of a snapshot to come.
#[derive(Clone, Debug, Default)]
pub struct StagedParts {
    parts: HashMap<Box<str>, StagedPart>,
    bytes: u64,
    /// Whether a commit is reading them.
    pub commit_running: bool,
}

/// One staged part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPart {
    /// Bytes of its body.
    pub len: u64,
    /// When it was staged, in Unix milliseconds.
    pub at_ms: u64,
}

impl StagedParts {
    /// Whether one more part of `len` bytes may be staged.
    ///
    /// # Errors
    /// [`Refusal::StagedPartsLimit`] or [`Refusal::StagedBytesLimit`].
    pub fn check_room(&self, len: u64) -> Result<(), Refusal> {
        if self.parts.len() >= STAGED_PARTS_MAX {
            return Err(Refusal::StagedPartsLimit);
        }
        if self.bytes.saturating_add(len) > STAGED_BYTES_MAX {
            return Err(Refusal::StagedBytesLimit);
        }
        Ok(())
    }

    /// Adds a part.
    pub fn insert(&mut self, id: Box<str>, part: StagedPart) {
        self.bytes = self.bytes.saturating_add(part.len);
        if let Some(replaced) = self.parts.insert(id, part) {
            self.bytes = self.bytes.saturating_sub(replaced.len);
        }
    }

    /// Takes a part out: a commit used it, or it was discarded.
    pub fn remove(&mut self, id: &str) {
        if let Some(part) = self.parts.remove(id) {
            self.bytes = self.bytes.saturating_sub(part.len);
        }
    }

    /// The part with this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&StagedPart> {
        self.parts.get(id)
    }

    /// Their ids.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.parts.keys().map(AsRef::as_ref)
    }

    /// Ids of parts that no commit used within a day (source 1, Stage a part).
    pub fn too_old(&self, now_ms: u64) -> impl Iterator<Item = &str> {
        // A day in milliseconds fits in 64 bits.
        let age_max = STAGED_PART_AGE_MAX.as_millis() as u64;
        self.parts
            .iter()
            .filter(move |(_, part)| now_ms.saturating_sub(part.at_ms) > age_max)
            .map(|(id, _)| id.as_ref())
    }

    /// Whether nothing is staged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Reads `Stream-Snapshot-Parts`: the number of parts of a commit.
///
/// # Errors
/// [`Refusal::InvalidPartsCommit`].
pub fn parse_parts_count(count: &[u8]) -> Result<usize, Refusal> {
    let canonical = count.first() != Some(&b'0');
    offset::decimal(count)
        .filter(|_| canonical)
        .and_then(|count| usize::try_from(count).ok())
        .filter(|count| (1..=COMMIT_PARTS_MAX).contains(count))
        .ok_or(Refusal::InvalidPartsCommit(
            "Stream-Snapshot-Parts must be a decimal integer from 1 to 4096",
        ))
}

/// Reads the body of a parts commit: `count` distinct ids, each followed by one LF and nothing
/// else.
///
/// # Errors
/// [`Refusal::InvalidPartsCommit`], saying what is wrong.
pub fn parse_manifest(count: &[u8], body: &[u8]) -> Result<Vec<Box<str>>, Refusal> {
    let invalid = |text: &'static str| Refusal::InvalidPartsCommit(text);
    let count = parse_parts_count(count)?;
    let text = body.strip_suffix(b"\n").ok_or(invalid(
        "the body must be part ids, each followed by one newline",
    ))?;
    let mut ids = Vec::with_capacity(count);
    let mut seen = std::collections::HashSet::with_capacity(count);
    for line in text.split(|byte| *byte == b'\n') {
        let visible = (1..=64).contains(&line.len()) && line.iter().all(u8::is_ascii_graphic);
        let id = std::str::from_utf8(line).ok().filter(|_| visible);
        let id = id.ok_or(invalid("a part id is 1 to 64 visible ASCII characters"))?;
        if !seen.insert(id) {
            return Err(invalid("each part id may be listed once"));
        }
        if ids.len() == count {
            return Err(invalid(
                "the body must list exactly Stream-Snapshot-Parts ids",
            ));
        }
        ids.push(id.into());
    }
    if ids.len() == count {
        Ok(ids)
    } else {
        Err(invalid(
            "the body must list exactly Stream-Snapshot-Parts ids",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests that the peer answered (peers/ursula-0.11.5-answers.txt, 12).
    #[test]
    fn digests_are_the_peers() {
        let text = ContentType::parse(b"text/plain").unwrap();
        let mut digester = Digester::new(&text);
        digester.update(b"snapshot body ");
        digester.update(b"0123456789");
        assert_eq!(
            &hex(&digester.finish()),
            b"5b08468f3dcc61c6fb91762c36ae97c6201a63e15d5ea4f66726ff35508c2e6b"
        );
    }

    #[test]
    fn manifests_list_exactly_what_they_say() {
        let ids = |count: &str, body: &str| parse_manifest(count.as_bytes(), body.as_bytes());
        assert_eq!(ids("2", "a\nb\n").unwrap(), ["a", "b"].map(Box::from));
        for (count, body) in [
            ("0", "\n"),
            ("02", "a\nb\n"),
            ("4097", "a\n"),
            ("1", "a"),
            ("1", ""),
            ("1", "\n"),
            ("2", "a\n"),
            ("1", "a\nb\n"),
            ("2", "a\na\n"),
            ("1", "a\n\n"),
            ("1", "a\r\n"),
            ("x", "a\n"),
            ("-1", "a\n"),
        ] {
            assert!(ids(count, body).is_err(), "{count:?} {body:?}");
        }
    }

    #[test]
    fn staged_parts_are_bounded_and_age() {
        let mut parts = StagedParts::default();
        assert!(parts.check_room(STAGED_BYTES_MAX).is_ok());
        parts.insert("a".into(), StagedPart { len: 5, at_ms: 0 });
        assert_eq!(
            parts.check_room(STAGED_BYTES_MAX),
            Err(Refusal::StagedBytesLimit)
        );
        let day_ms = STAGED_PART_AGE_MAX.as_millis() as u64;
        assert_eq!(parts.too_old(day_ms).count(), 0);
        assert_eq!(parts.too_old(day_ms + 1).count(), 1);
        parts.remove("a");
        assert!(parts.check_room(STAGED_BYTES_MAX).is_ok());
        for index in 0..STAGED_PARTS_MAX {
            parts.insert(index.to_string().into(), StagedPart { len: 0, at_ms: 0 });
        }
        assert_eq!(parts.check_room(0), Err(Refusal::StagedPartsLimit));
    }
}
