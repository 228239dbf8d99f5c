//! Which origins may read answers, and what a preflight is told (decisions,
//! Live reads, lifetimes, browsers).

/// The methods of the protocol.
pub const ALLOW_METHODS: &[u8] = b"GET, HEAD, PUT, POST, DELETE, OPTIONS";

/// The request headers that a client may send.
pub const ALLOW_HEADERS: &[u8] = b"Content-Type, Authorization, If-None-Match, If-Range, Range, \
Producer-Id, Producer-Epoch, Producer-Seq, Producer-Digest, Stream-Closed, Stream-Expires-At, \
Stream-Fork-Offset, Stream-Fork-Sub-Offset, Stream-Forked-From, Stream-Incarnation, Stream-Seq, \
Stream-Snapshot-Digest, Stream-Snapshot-Parts, Stream-TTL";

/// The answer headers that a client must be able to read.
pub const EXPOSE_HEADERS: &[u8] = b"Accept-Ranges, Allow, Content-Range, ETag, Location, \
Retry-After, Producer-Closed-Epoch, Producer-Closed-Seq, Producer-Epoch, Producer-Expected-Seq, \
Producer-Outcome, Producer-Received-Seq, Producer-Seq, Stream-Closed, Stream-Cursor, \
Stream-Data-Content-Type, Stream-Expires-At, Stream-Incarnation, Stream-Last-Seq, \
Stream-Next-Offset, Stream-Offset, Stream-Retained-Offset, Stream-SSE-Data-Encoding, \
Stream-Snapshot-Digest, Stream-Snapshot-Offset, Stream-Snapshot-Part, Stream-TTL, \
Stream-Up-To-Date, Ursula-Max-Request-Bytes, Ursula-Max-Snapshot-Bytes, Ursula-Max-Staged-Bytes, \
Ursula-Max-Staged-Parts";

/// How long a browser may keep a preflight's answer, in seconds.
pub const MAX_AGE: &[u8] = b"86400";

/// Which origins may read answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// Any.
    Any,
    /// These.
    List(Box<[Box<str>]>),
}

impl AllowedOrigins {
    /// From the setting: an empty list allows any origin.
    #[must_use]
    pub fn new(origins: &[String]) -> Self {
        if origins.is_empty() {
            Self::Any
        } else {
            Self::List(
                origins
                    .iter()
                    .map(|origin| origin.as_str().into())
                    .collect(),
            )
        }
    }

    /// The value of `Access-Control-Allow-Origin` for a request from `origin`, if any.
    #[must_use]
    pub fn allow<'b>(&self, origin: Option<&'b [u8]>) -> Option<&'b [u8]> {
        match self {
            Self::Any => Some(b"*"),
            Self::List(origins) => {
                origin.filter(|origin| origins.iter().any(|known| known.as_bytes() == *origin))
            }
        }
    }

    /// Whether answers differ by origin, so that caches must be told.
    #[must_use]
    pub fn vary(&self) -> bool {
        matches!(self, Self::List(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_admits_its_own_and_no_other() {
        let list = AllowedOrigins::new(&["https://a.example".into()]);
        assert_eq!(
            list.allow(Some(b"https://a.example")),
            Some(&b"https://a.example"[..])
        );
        assert_eq!(list.allow(Some(b"https://b.example")), None);
        assert_eq!(list.allow(None), None);
        assert!(list.vary());
        assert_eq!(AllowedOrigins::new(&[]).allow(None), Some(&b"*"[..]));
    }
}
