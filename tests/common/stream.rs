//! Streams with names of their own, on either surface.

use std::sync::atomic::{AtomicU64, Ordering};

use super::http::{Request, Response};
use super::server::Server;
use super::sse::EventSource;

/// The two views of the one set of streams (`decisions.md`, Two surfaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// `/v1/stream/{path}`: the base protocol.
    Base,
    /// `/{bucket}/{stream}`: the extensions.
    Bucket,
}

/// Both, for rules that hold on both.
pub const SURFACES: [Surface; 2] = [Surface::Base, Surface::Bucket];

/// The bucket tests use when its name does not matter.
pub const BUCKET: &str = "blackbox";

/// Content types the tests use most.
pub const OCTETS: &str = "application/octet-stream";
/// See [`OCTETS`].
pub const TEXT: &str = "text/plain";
/// See [`OCTETS`].
pub const JSON: &str = "application/json";

/// The token of byte position `position` (`decisions.md`, Tokens).
pub fn offset(position: usize) -> String {
    format!("{position:020}")
}

/// A name no other test of any run on this machine uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// A stream's address on one surface.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    server: &'a Server,
    key: String,
    surface: Surface,
}

impl<'a> Stream<'a> {
    /// An address no stream lives at yet.
    pub fn absent(server: &'a Server, surface: Surface) -> Self {
        Self::at(server, surface, &format!("{BUCKET}/{}", unique("s")))
    }

    /// The stream whose key is `key`.
    pub fn at(server: &'a Server, surface: Surface, key: &str) -> Self {
        Self {
            server,
            key: key.to_owned(),
            surface,
        }
    }

    /// Creates an empty stream.
    #[track_caller]
    pub fn create(server: &'a Server, surface: Surface, content_type: &str) -> Self {
        let stream = Self::absent(server, surface);
        stream
            .put()
            .header("Content-Type", content_type)
            .send()
            .expect(201);
        stream
    }

    /// Creates a stream that holds `body`.
    #[track_caller]
    pub fn with_body(
        server: &'a Server,
        surface: Surface,
        content_type: &str,
        body: impl AsRef<[u8]>,
    ) -> Self {
        let stream = Self::absent(server, surface);
        stream
            .put()
            .header("Content-Type", content_type)
            .body(body)
            .send()
            .expect(201);
        stream
    }

    /// The same stream on the other surface.
    pub fn on(&self, surface: Surface) -> Self {
        Self {
            surface,
            ..self.clone()
        }
    }

    /// The server it lives on.
    pub fn server(&self) -> &'a Server {
        self.server
    }

    /// `bucket/stream`.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its path.
    pub fn path(&self) -> String {
        match self.surface {
            Surface::Base => format!("/v1/stream/{}", self.key),
            Surface::Bucket => format!("/{}", self.key),
        }
    }

    /// `method` on the stream itself, or on what `suffix` adds to its path.
    pub fn request(&self, method: &str, suffix: &str) -> Request {
        Request::new(self.server, method, format!("{}{suffix}", self.path()))
    }

    /// PUT.
    pub fn put(&self) -> Request {
        self.request("PUT", "")
    }

    /// POST.
    pub fn post(&self) -> Request {
        self.request("POST", "")
    }

    /// GET with a query (without `?`), which may be empty.
    pub fn get(&self, query: &str) -> Request {
        let mark = if query.is_empty() { "" } else { "?" };
        self.request("GET", &format!("{mark}{query}"))
    }

    /// HEAD.
    pub fn head(&self) -> Request {
        self.request("HEAD", "")
    }

    /// DELETE.
    pub fn delete(&self) -> Request {
        self.request("DELETE", "")
    }

    /// Appends `body`, which must succeed.
    #[track_caller]
    pub fn append(&self, content_type: &str, body: impl AsRef<[u8]>) -> Response {
        self.post()
            .header("Content-Type", content_type)
            .body(body)
            .send()
            .expect(204)
    }

    /// Closes it without a body, which must succeed.
    #[track_caller]
    pub fn close(&self) -> Response {
        self.post()
            .header("Stream-Closed", "true")
            .send()
            .expect(204)
    }

    /// Everything it holds, read to the tail over as many answers as it takes.
    #[track_caller]
    pub fn read_all(&self) -> Vec<u8> {
        self.read_from("-1")
    }

    /// As [`Stream::read_all`], from `offset`.
    #[track_caller]
    pub fn read_from(&self, offset: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut offset = offset.to_owned();
        loop {
            let answer = self.get(&format!("offset={offset}")).send().expect(200);
            bytes.extend_from_slice(&answer.body);
            if answer.header("stream-up-to-date") == Some("true") {
                return bytes;
            }
            let next = answer.next_offset();
            assert_ne!(next, offset, "neither data nor the tail: {answer}");
            offset = next;
        }
    }

    /// Opens SSE at `offset`.
    #[track_caller]
    pub fn sse(&self, offset: &str) -> EventSource {
        EventSource::open(&self.get(&format!("offset={offset}&live=sse")))
    }
}
