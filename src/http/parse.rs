//! Request heads: bytes in, a [`Head`] out.
//!
//! Guarantees:
//! - Every proper prefix of a head that would be taken is [`Parsed::Incomplete`], never refused,
//!   and the result does not depend on how the bytes were split on their way in (cases/http.md 9).
//! - Two servers cannot disagree about where a request that was taken here ends (RFC 9112
//!   section 11.2, cases/http.md 1): one Content-Length or one `chunked`, never both, never
//!   twice; digits only; no folded lines, no space before a colon, no bare CR or LF, no control
//!   byte in a value.
//! - A byte that has arrived is searched for the end of its line once ([`HeadParser`] remembers
//!   how far it went), and fields are parsed once, when the head is whole. A head that drips in
//!   byte by byte costs no more than one that arrives at once.
//! - Lengths are bounded by [`HeadLimits`] and are checked before what the bytes mean.
//!
//! The request line is parsed here, since a refusal of it must not wait for the fields
//! (HTTP/0.9, a TLS hello, the HTTP/2 preface); the fields are `httparse`'s, whose vector search
//! is what makes them cheap. `httparse` takes a bare LF as a line end; the line search does not
//! let one through.

#![forbid(unsafe_code)]

mod fields;
mod refusal;
#[cfg(test)]
mod tests;

use crate::base::limits::Limits;

pub use refusal::Refusal;

/// Bytes of empty lines tolerated before a request line, which makes two (RFC 9112 section 2.2
/// asks for at least one).
const EMPTY_LINES_BYTES_MAX: usize = 2 * b"\r\n".len();

/// The methods that some route may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Method {
    /// `GET`
    #[default]
    Get,
    /// `HEAD`
    Head,
    /// `PUT`
    Put,
    /// `POST`
    Post,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// A registered method that no route of ours serves: PATCH, TRACE, CONNECT, QUERY.
    Unserved,
    /// Any other token; methods are case-sensitive (RFC 9110 section 9.1).
    Other,
}

impl Method {
    fn from_token(token: &[u8]) -> Option<Self> {
        Some(match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"PUT" => Self::Put,
            b"POST" => Self::Post,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"PATCH" | b"TRACE" | b"CONNECT" | b"QUERY" => Self::Unserved,
            _ if !token.is_empty() && token.iter().all(|&byte| is_tchar(byte)) => Self::Other,
            _ => return None,
        })
    }
}

/// How the end of a request's body is known (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Framing {
    /// Neither field: there is no body.
    #[default]
    None,
    /// `Content-Length`, in bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

impl Framing {
    /// Whether body bytes follow the head.
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// Bounds of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Longest request line without its CR LF, in bytes (414 above).
    pub request_line_bytes_max: usize,
    /// Longest head from the request line to the empty line, both included, in bytes (431 above).
    pub head_bytes_max: usize,
}

impl From<&Limits> for HeadLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            request_line_bytes_max: limits.request_line_bytes_max,
            head_bytes_max: limits.head_bytes_max,
        }
    }
}

/// A piece of the buffer that the head was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        // A head is at most `head_bytes_max` long; a span that did not fit would read as empty.
        let narrow = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: narrow(start),
            end: narrow(end),
        }
    }

    /// The place of `part`, which lies in `buf`.
    fn of(buf: &[u8], part: &[u8]) -> Self {
        let start = part.as_ptr().addr().wrapping_sub(buf.as_ptr().addr());
        Self::new(start, start.saturating_add(part.len()))
    }

    fn get(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }
}

/// What [`Head::find`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<'b> {
    /// No such field.
    Absent,
    /// One such field, with this value.
    Once(&'b [u8]),
    /// More than one field line of that name.
    Repeated,
}

/// A whole request head. It holds places in the buffer, not bytes: pass the buffer that was
/// parsed, starting at the same byte.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub version_minor: u8,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the client lets the connection live on (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for a 100 before it sends the body; never on HTTP/1.0
    /// (RFC 9110 section 10.1.1).
    pub expect_continue: bool,
    /// Bytes from the start of the buffer to the end of the head; the body starts there.
    pub consumed: usize,
    target: Span,
    fields: Vec<(Span, Span)>,
}

impl Head {
    /// The request target, as sent: no space, no control character, not empty.
    pub fn target<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        self.target.get(buf)
    }

    /// Every field in order, names as sent, values without the white space around them.
    pub fn headers<'b>(&self, buf: &'b [u8]) -> impl Iterator<Item = (&'b [u8], &'b [u8])> {
        self.fields
            .iter()
            .map(move |(name, value)| (name.get(buf), value.get(buf)))
    }

    /// The field called `name`, whatever its case.
    pub fn find<'b>(&self, buf: &'b [u8], name: &str) -> Lookup<'b> {
        let mut found = Lookup::Absent;
        for (field, value) in self.headers(buf) {
            if field.len() == name.len() && field.eq_ignore_ascii_case(name.as_bytes()) {
                if found != Lookup::Absent {
                    return Lookup::Repeated;
                }
                found = Lookup::Once(value);
            }
        }
        found
    }

    /// Bytes of memory held besides the value itself.
    pub fn memory_bytes(&self) -> usize {
        self.fields
            .capacity()
            .saturating_mul(size_of::<(Span, Span)>())
    }

    fn reset(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self {
            fields,
            ..Self::default()
        };
    }
}

/// What became of the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole head; [`Head::consumed`] says where it ends.
    Complete(Head),
    /// More bytes are needed.
    Incomplete,
    /// No continuation of these bytes would be taken.
    Refused(Refusal),
}

/// Parses the head that `buf` starts with, from scratch.
pub fn parse_head(buf: &[u8], limits: &HeadLimits) -> Parsed {
    let mut head = Head::default();
    match HeadParser::default().parse(buf, limits, &mut head) {
        Ok(true) => Parsed::Complete(head),
        Ok(false) => Parsed::Incomplete,
        Err(refusal) => Parsed::Refused(refusal),
    }
}

/// How far a head that arrives in pieces was looked at.
#[derive(Clone, Debug, Default)]
pub struct HeadParser {
    /// Bytes searched for a line feed: everything before this was looked at.
    searched: usize,
    /// Start of the line that `searched` is in.
    line_start: usize,
    /// Start of the request line, after the empty lines before it.
    request_start: usize,
    /// End of the request line with its CR LF; 0 while it has not arrived.
    fields_start: usize,
}

impl HeadParser {
    /// Looks at the bytes that are new in `buf` since the last call; `buf` starts where it
    /// started then. `Ok(true)`: `head` is filled in, and the parser is ready for another head.
    ///
    /// # Errors
    /// The refusal, which is final: the same bytes with more behind them would give it again.
    pub fn parse(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
        head: &mut Head,
    ) -> Result<bool, Refusal> {
        let searched = self.searched;
        for line_feed in memchr::memchr_iter(b'\n', buf.get(searched..).unwrap_or_default()) {
            if self.end_line(buf, searched.saturating_add(line_feed), limits, head)? {
                fields::parse(buf, self.fields_start, self.line_start, head)?;
                *self = Self::default();
                return Ok(true);
            }
        }
        self.searched = buf.len();
        self.check_lengths(buf, buf.len(), limits)?;
        Ok(false)
    }

    /// Whether a byte of a request, and not only of an empty line before it, has arrived in
    /// `buf`.
    pub fn has_begun(&self, buf: &[u8]) -> bool {
        buf.get(self.request_start..)
            .is_some_and(|rest| !rest.is_empty() && rest != b"\r")
    }

    /// Takes the line that ends in the line feed at `end`. `Ok(true)`: it ended the head.
    fn end_line(
        &mut self,
        buf: &[u8],
        end: usize,
        limits: &HeadLimits,
        head: &mut Head,
    ) -> Result<bool, Refusal> {
        // Lengths first: how much of an overlong line has arrived must not change the answer.
        self.check_lengths(buf, end, limits)?;
        let line = buf.get(self.line_start..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").ok_or(Refusal::LINE_END)?;
        let next = end.saturating_add(1);
        let ended = match (self.fields_start, line) {
            (0, b"") => {
                self.request_start = next;
                if next > EMPTY_LINES_BYTES_MAX {
                    return Err(Refusal::REQUEST_LINE);
                }
                false
            }
            (0, line) => {
                head.reset();
                request_line(line, self.line_start, head)?;
                self.fields_start = next;
                false
            }
            (_, line) => line.is_empty(),
        };
        self.line_start = next;
        self.check_lengths(buf, next, limits)?;
        Ok(ended)
    }

    /// Checks what can be said of the line in hand when `buf[..end]` has arrived.
    fn check_lengths(&self, buf: &[u8], end: usize, limits: &HeadLimits) -> Result<(), Refusal> {
        if self.fields_start != 0 {
            let head_bytes = end.saturating_sub(self.request_start);
            return if head_bytes > limits.head_bytes_max {
                Err(Refusal::HEAD_TOO_LARGE)
            } else {
                Ok(())
            };
        }
        let line = buf.get(self.line_start..end).unwrap_or_default();
        // Whatever is no HTTP at all (a TLS hello) is refused at its first byte; a CR may begin
        // an empty line.
        if line
            .first()
            .is_some_and(|&byte| byte != b'\r' && !is_tchar(byte))
        {
            return Err(Refusal::REQUEST_LINE);
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line_bytes_max = limits.request_line_bytes_max.min(limits.head_bytes_max);
        if line.len() > line_bytes_max {
            Err(Refusal::LINE_TOO_LONG)
        } else {
            Ok(())
        }
    }
}

/// Parses a request line, without its CR LF, that starts at `line_start` of the buffer
/// (RFC 9112 section 3).
fn request_line(line: &[u8], line_start: usize, head: &mut Head) -> Result<(), Refusal> {
    let method_end = memchr::memchr(b' ', line).ok_or(Refusal::REQUEST_LINE)?;
    let version_space = memchr::memrchr(b' ', line).ok_or(Refusal::REQUEST_LINE)?;
    let (Some(method), Some(target), Some(version)) = (
        line.get(..method_end),
        line.get(method_end.saturating_add(1)..version_space),
        line.get(version_space.saturating_add(1)..),
    ) else {
        return Err(Refusal::REQUEST_LINE);
    };
    head.method = Method::from_token(method).ok_or(Refusal::REQUEST_LINE)?;
    // A fold, not `any`: without an early exit this loop becomes vector code.
    let unseemly = |bad, &byte: &u8| bad | (byte <= b' ') | (byte == 0x7f);
    if target.is_empty() || target.iter().fold(false, unseemly) {
        return Err(Refusal::REQUEST_LINE);
    }
    head.version_minor = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        // No HTTP/1.2 exists, so a higher minor version is refused like a higher major one.
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            return Err(Refusal::VERSION);
        }
        _ => return Err(Refusal::REQUEST_LINE),
    };
    let at = |offset: usize| line_start.saturating_add(offset);
    head.target = Span::new(at(method_end.saturating_add(1)), at(version_space));
    Ok(())
}

/// Whether `byte` may be in a token (RFC 9110 section 5.6.2).
pub(crate) fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether `value` is made of what a host and a port may hold (RFC 3986 section 3.2); it may be
/// empty (RFC 9110 section 7.2).
pub(crate) fn is_host(value: &[u8]) -> bool {
    value
        .iter()
        .all(|&byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte))
}
