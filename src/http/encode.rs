//! Response heads and chunk framing, appended to a byte vector.
//!
//! Guarantees:
//! - A head holds CR and LF only where this file puts them: what is not allowed in a field value
//!   goes out as a space (RFC 9110 section 5.5), whatever the caller passed.
//! - A head that was begun and not finished leaves nothing behind.
//! - Nothing is allocated but room in the vector.

#![forbid(unsafe_code)]

use std::time::{Duration, SystemTime};

use crate::base::hex;

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The chunk that ends a chunked body, with no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Length of a date in the form of RFC 9110 section 5.6.7, in bytes.
pub const DATE_BYTES: usize = 29;
/// Last second that has such a date: the end of the year 9999.
const DATE_SECONDS_MAX: u64 = 253_402_300_799;

/// The value of a `Date` field for a time in Unix seconds. Dates change once a second: keep it.
///
/// `None` past the year 9999, which has four digits: a clock that shows it does not know the time,
/// and a server without a clock sends no date (RFC 9110 section 6.6.1).
pub fn format_date(unix_seconds: u64) -> Option<[u8; DATE_BYTES]> {
    if unix_seconds > DATE_SECONDS_MAX {
        // `httpdate` would panic.
        return None;
    }
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds))?;
    let text = httpdate::fmt_http_date(time);
    let mut date = [b' '; DATE_BYTES];
    date.iter_mut()
        .zip(text.bytes())
        .for_each(|(to, from)| *to = from);
    Some(date)
}

/// A response head under way. Chain the fields, then call one `finish_…`.
#[must_use = "a head that is not finished is taken back"]
pub struct ResponseHead<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    finished: bool,
}

impl<'o> ResponseHead<'o> {
    /// Begins a head with its status line. Answers to HTTP/1.0 requests say HTTP/1.1 too
    /// (RFC 9110 section 2.5).
    pub fn new(out: &'o mut Vec<u8>, status: u16) -> Self {
        let start = out.len();
        if let Some(line) = status_line(status) {
            out.extend_from_slice(line);
        } else {
            // A phrase may be empty (RFC 9112 section 4).
            out.extend_from_slice(b"HTTP/1.1 ");
            push_u64(out, u64::from(status));
            out.extend_from_slice(b" \r\n");
        }
        Self {
            out,
            start,
            finished: false,
        }
    }

    /// Adds a field. `name` is ours, a token; `value` may hold any bytes.
    #[inline]
    pub fn header(&mut self, name: &'static str, value: &[u8]) -> &mut Self {
        self.name(name);
        push_value(self.out, value);
        self.end_line()
    }

    /// Adds fields that were rendered before: whole lines, each with its CR LF, from constants.
    pub(crate) fn lines(&mut self, lines: &[u8]) -> &mut Self {
        self.out.extend_from_slice(lines);
        self
    }

    /// Adds a field with a decimal value.
    #[inline]
    pub fn header_u64(&mut self, name: &'static str, value: u64) -> &mut Self {
        self.name(name);
        push_u64(self.out, value);
        self.end_line()
    }

    /// Adds a field with an offset: 20 digits, zero-padded (decisions.md, Tokens).
    #[inline]
    pub fn offset(&mut self, name: &'static str, offset: u64) -> &mut Self {
        self.name(name);
        push_offset(self.out, offset);
        self.end_line()
    }

    /// Adds `Date`; see [`format_date`].
    pub fn date(&mut self, date: &[u8; DATE_BYTES]) -> &mut Self {
        self.header("Date", date)
    }

    /// Says that the connection closes after this answer (RFC 9112 section 9.6).
    pub fn close(&mut self) -> &mut Self {
        self.header("Connection", b"close")
    }

    /// Says to an HTTP/1.0 client that asked for it that the connection stays.
    pub fn keep_alive(&mut self) -> &mut Self {
        self.header("Connection", b"keep-alive")
    }

    /// Ends the head of an answer whose body has `length` bytes. An answer to HEAD has the same
    /// head and no body (cases/http.md 7).
    pub fn finish_with_length(mut self, length: u64) {
        self.header_u64("Content-Length", length);
        self.finish();
    }

    /// The same, with the whole body behind it.
    pub(crate) fn finish_with_body(mut self, body: &[u8]) {
        self.header_u64("Content-Length", body.len() as u64);
        self.out.extend_from_slice(b"\r\n");
        self.out.extend_from_slice(body);
        self.finished = true;
    }

    /// Ends the head of an answer with a chunked body; not for HTTP/1.0 clients.
    pub fn finish_chunked(mut self) {
        self.header("Transfer-Encoding", b"chunked");
        self.finish();
    }

    /// Ends the head of an answer that has no body by its nature: 204 or 304, or an answer to
    /// HEAD whose length is not known (RFC 9110 section 8.6).
    pub fn finish_no_body(self) {
        self.finish();
    }

    /// Ends the head of an answer whose body ends with the connection: how an HTTP/1.0 client
    /// gets a body whose length is not known.
    pub fn finish_until_close(mut self) {
        self.close();
        self.finish();
    }

    fn finish(mut self) {
        self.out.extend_from_slice(b"\r\n");
        self.finished = true;
    }

    // Inlined with its caller, a name is a constant, and copied without a call.
    #[inline]
    fn name(&mut self, name: &'static str) {
        debug_assert!(name.bytes().all(crate::http::parse::is_tchar));
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
    }

    #[inline]
    fn end_line(&mut self) -> &mut Self {
        self.out.extend_from_slice(b"\r\n");
        self
    }
}

impl Drop for ResponseHead<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.out.truncate(self.start);
        }
    }
}

/// Appends a field value; what may not be in one becomes a space.
pub(crate) fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    let is_illegal = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7f;
    let start = out.len();
    out.extend_from_slice(value);
    // A fold, not `any`: without an early exit this loop becomes vector code.
    if value
        .iter()
        .fold(false, |bad, &byte| bad | is_illegal(byte))
    {
        let added = out.iter_mut().skip(start);
        added
            .filter(|byte| is_illegal(**byte))
            .for_each(|byte| *byte = b' ');
    }
}

/// Appends `value` in decimal.
pub fn push_u64(out: &mut Vec<u8>, value: u64) {
    let (digits, start) = decimal(value);
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Appends `offset` as 20 decimal digits.
pub fn push_offset(out: &mut Vec<u8>, offset: u64) {
    out.extend_from_slice(&decimal(offset).0);
}

/// The 20 decimal digits of `value` (no u64 has more), and where the first that counts is.
fn decimal(mut value: u64) -> ([u8; 20], usize) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' | (value % 10) as u8;
        start = at;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    (digits, start)
}

/// Appends the line before the data of a chunk of `length` bytes; [`chunk_end`] goes behind the
/// data. An empty chunk would end the body: `length` must not be 0.
pub fn chunk_start(out: &mut Vec<u8>, length: u64) {
    debug_assert!(length > 0);
    hex::push(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Appends what follows the data of a chunk.
pub fn chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Appends `data` as one chunk, or nothing if it is empty.
pub fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        chunk_start(out, data.len() as u64);
        out.extend_from_slice(data);
        chunk_end(out);
    }
}

/// Appends [`LAST_CHUNK`].
pub fn last_chunk(out: &mut Vec<u8>) {
    out.extend_from_slice(LAST_CHUNK);
}

macro_rules! status_lines {
    ($($status:literal $reason:literal,)+) => {
        /// The status line of a status that this server sends (RFC 9110 section 15, RFC 6585).
        fn status_line(status: u16) -> Option<&'static [u8]> {
            Some(match status {
                $($status => concat!("HTTP/1.1 ", $status, " ", $reason, "\r\n").as_bytes(),)+
                _ => return None,
            })
        }
    };
}

status_lines! {
    200 "OK",
    201 "Created",
    204 "No Content",
    206 "Partial Content",
    304 "Not Modified",
    400 "Bad Request",
    403 "Forbidden",
    404 "Not Found",
    405 "Method Not Allowed",
    408 "Request Timeout",
    409 "Conflict",
    410 "Gone",
    411 "Length Required",
    412 "Precondition Failed",
    413 "Content Too Large",
    414 "URI Too Long",
    415 "Unsupported Media Type",
    416 "Range Not Satisfiable",
    417 "Expectation Failed",
    429 "Too Many Requests",
    431 "Request Header Fields Too Large",
    500 "Internal Server Error",
    501 "Not Implemented",
    503 "Service Unavailable",
    505 "HTTP Version Not Supported",
    507 "Insufficient Storage",
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_head_byte_for_byte() {
        let written = text(|out| {
            let mut head = ResponseHead::new(out, 201);
            head.date(b"Sun, 06 Nov 1994 08:49:37 GMT")
                .header("Content-Type", b"text/plain; charset=utf-8")
                .offset("Stream-Next-Offset", 42)
                .header_u64("Stream-Incarnation", 9_007_199_254_740_991)
                .close();
            head.finish_with_length(0);
        });
        assert_eq!(
            written,
            "HTTP/1.1 201 Created\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\
             Stream-Next-Offset: 00000000000000000042\r\n\
             Stream-Incarnation: 9007199254740991\r\nConnection: close\r\n\
             Content-Length: 0\r\n\r\n"
        );
    }

    #[test]
    fn every_way_to_end_a_head() {
        type Finish = fn(ResponseHead<'_>);
        let cases: [(u16, Finish, &str); 4] = [
            (
                200,
                |head| head.finish_with_length(8_388_608),
                "OK\r\nContent-Length: 8388608\r\n\r\n",
            ),
            (
                200,
                |head| head.finish_chunked(),
                "OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            ),
            (204, |head| head.finish_no_body(), "No Content\r\n\r\n"),
            (
                200,
                |head| head.finish_until_close(),
                "OK\r\nConnection: close\r\n\r\n",
            ),
        ];
        for (status, finish, end) in cases {
            let written = text(|out| finish(ResponseHead::new(out, status)));
            assert_eq!(written, format!("HTTP/1.1 {status} {end}"));
        }
    }

    #[test]
    fn no_value_adds_a_line() {
        let written = text(|out| {
            let mut head = ResponseHead::new(out, 200);
            head.header("Content-Type", b"a\r\nSet-Cookie: b\0\x7f\tc");
            head.finish_no_body();
        });
        assert_eq!(
            written,
            "HTTP/1.1 200 OK\r\nContent-Type: a  Set-Cookie: b  \tc\r\n\r\n"
        );
        let mut out = Vec::new();
        ResponseHead::new(&mut out, 200).header("X", "é".as_bytes());
        assert!(out.is_empty());
    }

    #[test]
    fn an_unfinished_head_leaves_nothing() {
        let written = text(|out| {
            out.extend_from_slice(b"before");
            ResponseHead::new(out, 500).header("X", b"y");
        });
        assert_eq!(written, "before");
    }

    #[test]
    fn an_unknown_status_has_an_empty_reason() {
        let written = text(|out| ResponseHead::new(out, 299).finish_no_body());
        assert_eq!(written, "HTTP/1.1 299 \r\n\r\n");
    }

    #[test]
    fn numbers() {
        for value in [0, 1, 9, 10, 99, 1_000_000_007, u64::MAX] {
            assert_eq!(text(|out| push_u64(out, value)), value.to_string());
            assert_eq!(text(|out| push_offset(out, value)), format!("{value:020}"));
        }
        for length in [1, 9, 10, 15, 16, 255, 4096, 0x00ab_cdef, u64::MAX] {
            assert_eq!(
                text(|out| chunk_start(out, length)),
                format!("{length:x}\r\n")
            );
        }
    }

    #[test]
    fn chunks() {
        let written = text(|out| {
            chunk(out, b"hello");
            chunk(out, b"");
            chunk_start(out, 16);
            out.extend_from_slice(b"0123456789abcdef");
            chunk_end(out);
            last_chunk(out);
        });
        assert_eq!(written, "5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    }

    #[test]
    fn dates() {
        let date = |seconds| {
            let date = format_date(seconds)?;
            Some(String::from_utf8(date.to_vec()).unwrap())
        };
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (DATE_SECONDS_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(date(seconds).as_deref(), Some(text));
        }
        for seconds in [DATE_SECONDS_MAX + 1, u64::MAX / 1000, u64::MAX] {
            assert_eq!(date(seconds), None);
        }
    }
}
