//! Stream keys: which stream a path names (extensions 1.1, 1.6; decisions,
//! Two surfaces).
//!
//! A key is the path's decoded segments joined by `/`. No segment holds a
//! `/`, a NUL or `..`, so a key has exactly one split and the two surfaces
//! name one store: `/v1/stream/demo/hello` and `/demo/hello` are the same
//! stream.

use std::fmt;

use arcstr::ArcStr;

use crate::{
    base::limits::{KEY_BYTES_MAX, STREAM_ID_BYTES_MAX},
    protocol::error::Refusal,
};

/// First segment under which the base protocol keeps its subscription API (base protocol 6).
pub const RESERVED_SEGMENT: &str = "__ds";

/// Which profile a request speaks (decisions, Two surfaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Surface {
    /// `/{bucket}/{stream}`: the extensions.
    Bucket,
    /// `/v1/stream/{path}`: the base protocol.
    Base,
}

/// The name of a stream. Cheap to clone and to send to another core; one word, since millions are
/// kept.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(ArcStr);

impl StreamKey {
    /// The key of `/{bucket}/{stream}`.
    ///
    /// # Errors
    /// [`Refusal::InvalidBucketId`] or [`Refusal::InvalidStreamId`], naming the rule of
    /// extensions 1.1 that is broken.
    pub fn bucket_surface(bucket: &str, stream: &str) -> Result<Self, Refusal> {
        check_stream_id(bucket, stream)?;
        check_segment(stream)?;
        Ok(Self([bucket, "/", stream].concat().into()))
    }

    /// The key of a path on `surface` as it was sent, without what comes before the first segment,
    /// if it is one as most are: nothing to decode, nothing to refuse. `None` says nothing about
    /// the others, which go through [`Self::bucket_surface`] and [`Self::base_surface`].
    #[must_use]
    pub fn plain(surface: Surface, path: &[u8]) -> Option<Self> {
        // As if a '/' came before it and behind it.
        let mut before = b'/';
        for &byte in path {
            let is_plain = match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => true,
                b'/' => before != b'/',
                // Neither a segment '.' nor '..' in one.
                b'.' => before != b'/' && before != b'.',
                _ => false,
            };
            if !is_plain {
                return None;
            }
            before = byte;
        }
        if before == b'/' {
            return None;
        }
        let text = str::from_utf8(path).ok()?;
        let is_legal = match surface {
            Surface::Base => !text.starts_with(RESERVED_SEGMENT) && text.len() <= KEY_BYTES_MAX,
            Surface::Bucket => {
                let (bucket, stream) = text.split_once('/')?;
                !stream.contains('/') && check_stream_id(bucket, stream).is_ok()
            }
        };
        is_legal.then(|| Self(text.into()))
    }

    /// The key of `/v1/stream/{path}`, from the path's decoded segments.
    ///
    /// # Errors
    /// [`Refusal::InvalidStreamId`] for an empty path or segment, a segment with a `/`, NUL or
    /// `..`, or a key over [`KEY_BYTES_MAX`] bytes; [`Refusal::NotFound`] under the reserved
    /// first segment.
    pub fn base_surface<'a>(segments: impl Iterator<Item = &'a str>) -> Result<Self, Refusal> {
        let mut key = String::new();
        for (index, segment) in segments.enumerate() {
            if index == 0 && segment == RESERVED_SEGMENT {
                return Err(Refusal::NotFound);
            }
            if segment.is_empty() || segment == "." {
                return Err(Refusal::InvalidStreamId(
                    "a path segment must not be empty or '.'".into(),
                ));
            }
            check_segment(segment)?;
            if index > 0 {
                key.push('/');
            }
            key.push_str(segment);
        }
        if key.is_empty() {
            return Err(Refusal::InvalidStreamId("the stream path is empty".into()));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Refusal::InvalidStreamId(format!(
                "a stream path must not exceed {KEY_BYTES_MAX} bytes, got {} bytes",
                key.len()
            )));
        }
        Ok(Self(key.into()))
    }

    /// A key read back from disk, where only keys that passed a check were written.
    #[must_use]
    pub fn restored(key: &str) -> Self {
        Self(key.into())
    }

    /// The joined segments.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket the key belongs to: its first segment.
    #[must_use]
    pub fn bucket(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Checks a bucket id against `^[a-z0-9_-]{4,64}$` and the reserved `__` prefix.
///
/// # Errors
/// [`Refusal::InvalidBucketId`], saying which rule is broken.
pub fn check_bucket(bucket: &str) -> Result<(), Refusal> {
    if !(4..=64).contains(&bucket.len()) {
        return Err(Refusal::InvalidBucketId(format!(
            "bucket_id must be 4 to 64 bytes, got {} bytes",
            bucket.len()
        )));
    }
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if !bucket.bytes().all(legal) {
        return Err(Refusal::InvalidBucketId(
            "bucket_id must match ^[a-z0-9_-]{4,64}$".into(),
        ));
    }
    if bucket.starts_with("__") {
        return Err(Refusal::InvalidBucketId(
            "bucket_id must not start with '__'".into(),
        ));
    }
    Ok(())
}

/// Checks the rules of extensions 1.1 for a stream's two names, but for what no segment may hold.
fn check_stream_id(bucket: &str, stream: &str) -> Result<(), Refusal> {
    check_bucket(bucket)?;
    let invalid = |what: &str| Err(Refusal::InvalidStreamId(what.into()));
    match stream {
        "" => return invalid("stream_id must not be empty"),
        "." => return invalid("stream_id must not be '.'"),
        "streams" => return invalid("stream_id 'streams' is reserved"),
        _ => {}
    }
    if stream.starts_with('$') {
        return invalid("stream_id must not start with '$'");
    }
    if stream.len() > STREAM_ID_BYTES_MAX {
        return Err(Refusal::InvalidStreamId(format!(
            "stream_id must not exceed {STREAM_ID_BYTES_MAX} bytes, got {} bytes",
            stream.len()
        )));
    }
    let len = bucket.len().saturating_add(1).saturating_add(stream.len());
    if len > STREAM_ID_BYTES_MAX {
        return Err(Refusal::InvalidStreamId(format!(
            "bucket/stream must not exceed {STREAM_ID_BYTES_MAX} bytes, got {len} bytes"
        )));
    }
    Ok(())
}

fn check_segment(segment: &str) -> Result<(), Refusal> {
    if segment.contains(['/', '\0']) || segment.contains("..") {
        return Err(Refusal::InvalidStreamId(
            "stream_id must not contain '/', NUL, or '..'".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_surfaces_name_one_stream() {
        let bucket = StreamKey::bucket_surface("demo", "hello").unwrap();
        let base = StreamKey::base_surface(["demo", "hello"].into_iter()).unwrap();
        assert_eq!(bucket, base);
        assert_eq!(base.bucket(), "demo");
    }

    #[test]
    fn bucket_rules() {
        for bad in [
            "",
            "abc",
            "ABCD",
            "a.bc",
            "__ursula",
            "a bcd",
            &"a".repeat(65),
        ] {
            assert!(check_bucket(bad).is_err(), "{bad:?}");
        }
        for good in ["demo", "-dem", "_dem", "d3-_", &"a".repeat(64)] {
            assert!(check_bucket(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn stream_rules() {
        for bad in [
            "",
            ".",
            "..",
            "a..b",
            "a/b",
            "a\0b",
            "$x",
            "streams",
            &"a".repeat(123),
        ] {
            assert!(StreamKey::bucket_surface("demo", bad).is_err(), "{bad:?}");
        }
        for good in ["snapshot", "bootstrap", "é b", &"a".repeat(117)] {
            assert!(StreamKey::bucket_surface("demo", good).is_ok(), "{good:?}");
        }
        assert!(StreamKey::bucket_surface("demo", &"a".repeat(118)).is_err());
    }

    /// What `plain` takes is what the rules make of the same path; what they refuse, and whatever
    /// would have to be decoded, it leaves to them.
    #[test]
    fn plain_paths_are_the_same_keys() {
        let parts = [
            "demo", "v1", "a", "a.b", ".", "..", "", "streams", "__ds", "__dsx", "$x", "é", "%41",
            "DEMO", "-_9", "a..b", ".a", "a.", "a b", "a+b",
        ];
        let long = ["a".repeat(119), "a".repeat(KEY_BYTES_MAX)];
        let parts: Vec<&str> = parts
            .into_iter()
            .chain(long.iter().map(String::as_str))
            .collect();
        let mut plain_keys = 0;
        for first in &parts {
            for second in &parts {
                let path = [*first, *second].join("/");
                let by_rules = [
                    (Surface::Bucket, StreamKey::bucket_surface(first, second)),
                    (
                        Surface::Base,
                        StreamKey::base_surface([*first, *second].into_iter()),
                    ),
                ];
                for (surface, key) in by_rules {
                    if let Some(plain) = StreamKey::plain(surface, path.as_bytes()) {
                        assert_eq!(key, Ok(plain), "{path}");
                        plain_keys += 1;
                    }
                }
            }
        }
        assert!(plain_keys > 50, "{plain_keys}");
        let plain = |path: &str| StreamKey::plain(Surface::Bucket, path.as_bytes());
        assert_eq!(plain("demo"), None);
        assert_eq!(plain("demo/a/b"), None);
        assert_eq!(StreamKey::plain(Surface::Base, b"a%2Fb"), None);
        let deep = StreamKey::base_surface(["a", "b", "c"].into_iter());
        assert_eq!(StreamKey::plain(Surface::Base, b"a/b/c"), deep.ok());
    }

    #[test]
    fn base_paths() {
        let key = |segments: &[&str]| StreamKey::base_surface(segments.iter().copied());
        assert!(key(&["a", "b", "c"]).is_ok());
        assert_eq!(key(&["__ds", "x"]), Err(Refusal::NotFound));
        for bad in [
            &[][..],
            &[""],
            &["a", ""],
            &["a", "", "b"],
            &["a", ".."],
            &["a/b"],
        ] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }
}
