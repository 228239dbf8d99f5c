//! A small HTTP/1.1 client over `TcpStream`.
//!
//! It keeps what arrived: the status, every header field in its order, and
//! the body with its framing removed but never decoded further. It is strict
//! where a lax client would hide a server's fault: bad framing, bytes after
//! an answer that closes, or a missing length are panics that show the bytes.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;
use ursula_headers::{ErrorBody, ErrorCode};

use super::PATIENCE;
use super::server::Server;

/// A request that is being put together; [`Request::send`] uses a connection
/// of its own, so on a server with several cores any of them may take it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Request {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    /// `method target` for `server`.
    pub fn new(server: &Server, method: &str, target: impl Into<String>) -> Self {
        Self::to(server.address(), method, target)
    }

    /// `method target` for whoever listens on `address`.
    pub fn to(address: SocketAddr, method: &str, target: impl Into<String>) -> Self {
        let (method, target) = (method.to_owned(), target.into());
        Self {
            address,
            method,
            target,
            headers: Vec::new(),
            body: None,
        }
    }

    /// Adds a header field; the same name may be added again.
    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the body, sent with `Content-Length`.
    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\n",
            self.method, self.target, self.address
        );
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let needs_length = matches!(self.method.as_str(), "PUT" | "POST" | "PATCH");
        if self.body.is_some() || needs_length {
            let length = self.body.as_ref().map_or(0, Vec::len);
            let _ = write!(head, "Content-Length: {length}\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }

    /// Sends it on a new connection and reads the whole answer.
    #[track_caller]
    pub fn send(&self) -> Response {
        let mut connection = self.open();
        connection.read_response(&self.method)
    }

    /// Sends it on a new connection and gives the connection, for answers
    /// that are read as they arrive.
    #[track_caller]
    pub fn open(&self) -> Connection {
        let mut connection = Connection::open(self.address);
        connection.write_if_open(&self.encode());
        connection
    }

    /// As [`Request::send`], for a server that may be gone: `None` when no whole answer arrives.
    pub fn try_send(&self) -> Option<Response> {
        Connection::try_open(self.address)?.exchange(self)
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Every field, in order.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of `name`; panics when the field is repeated.
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self
            .headers
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} is repeated in {self}");
        value
    }

    /// The value of `name`, which must be there.
    #[track_caller]
    pub fn expect_header(&self, name: &str) -> &str {
        self.header(name)
            .unwrap_or_else(|| panic!("no {name} in {self}"))
    }

    /// Asserts the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert!(self.status == status, "expected {status}, got {self}");
        self
    }

    /// Asserts an error answer: its status, the typed body that
    /// `ursula-headers` parses, and the code.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: ErrorCode) -> Self {
        let response = self.expect(status);
        let body = response.error_body();
        assert!(body.code == code, "expected {code}, got {response}");
        response
    }

    /// The typed error body.
    #[track_caller]
    pub fn error_body(&self) -> ErrorBody {
        assert_eq!(
            self.header("content-type"),
            Some(ErrorBody::CONTENT_TYPE),
            "of {self}"
        );
        let body = ErrorBody::parse(&self.body)
            .unwrap_or_else(|error| panic!("no error body ({error}): {self}"));
        assert!(!body.message.is_empty(), "the message says nothing: {self}");
        body
    }

    /// Asserts the value of `name`.
    #[track_caller]
    pub fn expect_field(self, name: &str, value: &str) -> Self {
        assert!(
            self.header(name) == Some(value),
            "expected {name}: {value}, got {self}"
        );
        self
    }

    /// Asserts that `name` is absent.
    #[track_caller]
    pub fn expect_no_field(self, name: &str) -> Self {
        assert!(self.header(name).is_none(), "unexpected {name} in {self}");
        self
    }

    /// Asserts the body.
    #[track_caller]
    pub fn expect_body(self, body: impl AsRef<[u8]>) -> Self {
        assert!(
            self.body == body.as_ref(),
            "expected the body {:?}, got {self}",
            String::from_utf8_lossy(body.as_ref())
        );
        self
    }

    /// The body as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|_| panic!("no UTF-8: {self}"))
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// `Stream-Next-Offset`.
    #[track_caller]
    pub fn next_offset(&self) -> String {
        self.expect_header("stream-next-offset").to_owned()
    }

    /// `Stream-Incarnation`.
    #[track_caller]
    pub fn incarnation(&self) -> String {
        self.expect_header("stream-incarnation").to_owned()
    }

    /// The fields in the form `ursula-headers` parses.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
    }
}

impl std::fmt::Display for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.body[..self.body.len().min(400)];
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {value}")?;
        }
        write!(
            f,
            "\n{:?} ({} bytes)",
            String::from_utf8_lossy(shown),
            self.body.len()
        )
    }
}

/// A head, and how the body after it is framed.
#[derive(Clone, Debug)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// Every field, in order.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of the first field called `name`.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.headers.iter();
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        Some(found.1.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    }

    fn has_body(&self, method: &str) -> bool {
        method != "HEAD" && self.status >= 200 && !matches!(self.status, 204 | 304)
    }
}

/// One connection, for pipelining, raw bytes and answers read as they arrive.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Why no answer could be read.
#[derive(Debug)]
pub struct ReadFailure(String);

impl Connection {
    /// Connects.
    #[track_caller]
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address)
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        Self::new(stream).expect("a fresh socket takes options")
    }

    /// Connects to where `server` serves streams.
    #[track_caller]
    pub fn to(server: &Server) -> Self {
        Self::open(server.address())
    }

    /// Over a socket that is connected.
    #[track_caller]
    pub fn over(stream: TcpStream) -> Self {
        Self::new(stream).expect("the socket takes options")
    }

    /// Connects, unless nobody listens.
    pub fn try_open(address: SocketAddr) -> Option<Self> {
        Self::new(TcpStream::connect(address).ok()?).ok()
    }

    /// Sends `request` and reads its answer; `None` when the server goes away before the whole
    /// answer was here.
    pub fn exchange(&mut self, request: &Request) -> Option<Response> {
        self.stream.write_all(&request.encode()).ok()?;
        self.try_read_response(&request.method).ok()
    }

    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
        })
    }

    /// Another handle to write with, for a thread of its own.
    #[track_caller]
    pub fn writer(&self) -> TcpStream {
        self.stream.try_clone().expect("a descriptor is free")
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream
            .write_all(bytes.as_ref())
            .expect("the server takes what is sent");
    }

    /// Sends bytes to a server that may answer and close before it has read
    /// them all; its answer is still there to be read.
    pub fn write_if_open(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends `bytes`; false when the server takes no more.
    pub fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Ends our half of the connection.
    pub fn finish_writing(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads the whole answer to a request made with `method`.
    #[track_caller]
    pub fn read_response(&mut self, method: &str) -> Response {
        match self.try_read_response(method) {
            Ok(response) => response,
            Err(failure) => panic!("{}", failure.0),
        }
    }

    /// As [`Connection::read_response`], for a server that may die.
    pub fn try_read_response(&mut self, method: &str) -> Result<Response, ReadFailure> {
        let head = loop {
            let head = self.try_read_head()?;
            if head.status >= 200 {
                break head;
            }
        };
        let mut body = Vec::new();
        while let Some(piece) = self.try_read_piece(method, &head, body.len())? {
            body.extend_from_slice(&piece);
        }
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
        })
    }

    /// Reads the next head, an interim one (1xx) too.
    #[track_caller]
    pub fn read_head(&mut self) -> Head {
        self.try_read_head()
            .unwrap_or_else(|failure| panic!("{}", failure.0))
    }

    /// As [`Connection::read_head`], for a server that may close.
    pub fn try_read_head(&mut self) -> Result<Head, ReadFailure> {
        let end = loop {
            if let Some(at) = self
                .buffer
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            {
                break at + 4;
            }
            if !self.fill()? {
                return Err(self.failure("the connection closed before a whole answer"));
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let text = String::from_utf8_lossy(&head).into_owned();
        parse_head(&text).ok_or_else(|| ReadFailure(format!("not a head: {text:?}")))
    }

    /// The next piece of the body after `head`: one chunk, or what arrived of
    /// a body with a length (`taken` bytes of it were given before). `None`
    /// at its end.
    pub fn try_read_piece(
        &mut self,
        method: &str,
        head: &Head,
        taken: usize,
    ) -> Result<Option<Vec<u8>>, ReadFailure> {
        if !head.has_body(method) {
            return Ok(None);
        }
        if head.is_chunked() {
            return self.try_read_chunk();
        }
        let length = match head.header("content-length") {
            Some(length) => length
                .parse::<usize>()
                .map_err(|_| ReadFailure(format!("Content-Length: {length}")))?,
            None => usize::MAX,
        };
        if taken == length {
            return Ok(None);
        }
        if self.buffer.is_empty() && !self.fill()? {
            return match length {
                usize::MAX => Ok(None),
                _ => Err(self.failure(&format!("closed after {taken} of {length} bytes"))),
            };
        }
        let piece = self.buffer.len().min(length - taken);
        Ok(Some(self.buffer.drain(..piece).collect()))
    }

    /// The next chunk of a chunked body; `None` for the last one.
    #[track_caller]
    pub fn read_chunk(&mut self) -> Option<Vec<u8>> {
        self.try_read_chunk()
            .unwrap_or_else(|failure| panic!("{}", failure.0))
    }

    fn try_read_chunk(&mut self) -> Result<Option<Vec<u8>>, ReadFailure> {
        let line = self.read_line()?;
        let size = usize::from_str_radix(&line, 16)
            .map_err(|_| ReadFailure(format!("not a chunk size: {line:?}")))?;
        while self.buffer.len() < size + 2 {
            if !self.fill()? {
                return Err(self.failure("the connection closed inside a chunk"));
            }
        }
        let mut chunk: Vec<u8> = self.buffer.drain(..size + 2).collect();
        if !chunk.ends_with(b"\r\n") {
            return Err(ReadFailure(format!(
                "no CRLF after a chunk of {size} bytes"
            )));
        }
        chunk.truncate(size);
        Ok((size > 0).then_some(chunk))
    }

    fn read_line(&mut self) -> Result<String, ReadFailure> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..at + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.fill()? {
                return Err(self.failure("the connection closed inside a line"));
            }
        }
    }

    /// Reads what there is; `false` when the peer has closed.
    fn fill(&mut self) -> Result<bool, ReadFailure> {
        let mut piece = vec![0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(read) => {
                self.buffer.extend_from_slice(&piece[..read]);
                Ok(read > 0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(self.failure(&format!("no more bytes ({error})"))),
        }
    }

    /// Asserts that the server closes without sending another byte.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        match self.fill() {
            Ok(false) => assert!(self.buffer.is_empty(), "{}", self.failure("more bytes").0),
            Ok(true) => panic!(
                "{}",
                self.failure("the server sent more instead of closing").0
            ),
            // A reset is a close as well.
            Err(failure) => assert!(
                failure.0.contains("reset"),
                "the connection stays open: {}",
                failure.0
            ),
        }
    }

    fn failure(&self, what: &str) -> ReadFailure {
        let shown = &self.buffer[..self.buffer.len().min(400)];
        ReadFailure(format!(
            "{what}; received: {:?}",
            String::from_utf8_lossy(shown)
        ))
    }
}

/// Parses a status line and its fields, which end with an empty line.
fn parse_head(text: &str) -> Option<Head> {
    let mut lines = text.split("\r\n");
    let mut status_line = lines.next()?.splitn(3, ' ');
    if status_line.next()? != "HTTP/1.1" {
        return None;
    }
    let status = status_line.next()?.parse().ok()?;
    let headers = lines
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Head { status, headers })
}
