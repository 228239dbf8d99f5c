//! Content types: what a stream was created with, and how it is read.
//!
//! Two content types match when their media types are equal without regard to
//! case; parameters are kept and returned but do not distinguish (base
//! protocol 5.2: "match"; both the reference server and browsers add
//! parameters of their own). A stream of type `application/json`, with or
//! without parameters, stores JSON message text (extensions, JSON Message
//! Text).

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::base::limits::CONTENT_TYPE_BYTES_MAX;

/// How the bytes of a content type are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `application/json`: messages, each one LF-terminated line.
    Json,
    /// `text/*`: UTF-8 text on SSE.
    Text,
    /// Anything else: base64 on SSE.
    Binary,
}

/// A valid content type, as it was first given.
#[derive(Clone, Debug)]
pub struct ContentType(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    text: Box<str>,
    kind: Kind,
}

impl ContentType {
    /// The type of a stream or snapshot created without one (base protocol 5.1).
    #[must_use]
    pub fn octet_stream() -> Self {
        Self(Arc::new(Inner {
            text: "application/octet-stream".into(),
            kind: Kind::Binary,
        }))
    }

    /// Reads a `Content-Type` header; `None` when it is not `type/subtype` with optional
    /// parameters in visible ASCII of at most [`CONTENT_TYPE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.len() > CONTENT_TYPE_BYTES_MAX {
            return None;
        }
        let text = std::str::from_utf8(value).ok()?;
        let printable = |byte: u8| byte == b'\t' || (0x20..=0x7e).contains(&byte);
        let essence = essence(text);
        let (top, sub) = essence.split_once('/')?;
        if !is_token(top) || !is_token(sub) || !text.bytes().all(printable) {
            return None;
        }
        Some(Self(Arc::new(Inner {
            kind: kind_of(essence),
            text: text.into(),
        })))
    }

    /// As it was given, parameters included.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// How it is framed.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Whether a stream of this type stores JSON message text.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.0.kind == Kind::Json
    }

    /// Whether a write of type `other` fits a stream of this type.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        essence(&self.0.text).eq_ignore_ascii_case(essence(&other.0.text))
    }
}

impl PartialEq for ContentType {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ContentType {}

impl Hash for ContentType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

/// The media type without parameters.
fn essence(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

fn kind_of(essence: &str) -> Kind {
    if essence.eq_ignore_ascii_case("application/json") {
        Kind::Json
    } else if essence
        .get(..5)
        .is_some_and(|top| top.eq_ignore_ascii_case("text/"))
    {
        Kind::Text
    } else {
        Kind::Binary
    }
}

/// RFC 9110 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ContentType {
        ContentType::parse(text.as_bytes()).expect("valid content type")
    }

    #[test]
    fn kinds() {
        assert_eq!(parse("application/json").kind(), Kind::Json);
        assert_eq!(parse("Application/JSON; charset=utf-8").kind(), Kind::Json);
        assert_eq!(parse("text/plain").kind(), Kind::Text);
        assert_eq!(parse("application/ndjson").kind(), Kind::Binary);
        assert_eq!(parse("application/json-patch").kind(), Kind::Binary);
    }

    #[test]
    fn match_ignores_case_and_parameters() {
        assert!(parse("text/plain").matches(&parse("TEXT/Plain; charset=utf-8")));
        assert!(!parse("text/plain").matches(&parse("text/html")));
    }

    #[test]
    fn malformed_types_are_refused() {
        for bad in [
            "",
            "text",
            "text/",
            "/plain",
            "te xt/plain",
            "a/b\r\nX: y",
            "a/b\u{e9}",
        ] {
            assert!(ContentType::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
        assert!(ContentType::parse(&[b'a'; CONTENT_TYPE_BYTES_MAX + 1]).is_none());
    }
}
