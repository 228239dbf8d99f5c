//! HTTP/1.1 answers as a client reads them, over byte slices; no sockets here.
//!
//! [`Parser`] takes bytes as they come, hands body bytes on without copying them, and says where the answer ends. It never
//! keeps input: what it did not consume (a head or chunk line whose end is not in sight) is presented again with more behind it.
//! Nothing is allocated. Whatever the bytes, the result is progress or [`Malformed`].

/// A head may have this many bytes; a server that sends more is refused.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 48;
/// A chunk's size line, with extensions.
const CHUNK_LINE_BYTES_MAX: usize = 1024;

/// Bytes that are no HTTP/1.1 answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The head of one answer.
#[derive(Debug)]
pub struct Head<'h, 'b> {
    /// The status code.
    pub status: u16,
    headers: &'h [httparse::Header<'b>],
}

impl<'b> Head<'_, 'b> {
    /// The first value of a header, by lower-case name.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
    }

    /// Whether a header is there with the value `true`, in any case.
    pub fn is_true(&self, name: &str) -> bool {
        self.header(name)
            .is_some_and(|value| value.eq_ignore_ascii_case(b"true"))
    }

    /// Whether the status is one of success.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// Who is told about an answer as it arrives.
pub trait Sink {
    /// The head, once.
    fn head(&mut self, head: &Head<'_, '_>);
    /// The next bytes of the body, unframed.
    fn body(&mut self, bytes: &[u8]);
}

/// How far one call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Whether the answer is complete.
    pub complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// So many body bytes to come.
    Length(u64),
    UntilClose,
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
}

/// Reads one answer after another.
#[derive(Clone, Copy, Debug)]
pub struct Parser {
    state: State,
    keep_alive: bool,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser {
            state: State::Head,
            keep_alive: true,
        }
    }
}

impl Parser {
    /// Whether the connection may carry another request after this answer.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the end of the connection here is the end of the answer.
    pub fn complete_at_close(&self) -> bool {
        self.state == State::UntilClose
    }

    /// Takes as much of `input` as belongs to the answer and can be understood.
    pub fn advance(&mut self, input: &[u8], sink: &mut impl Sink) -> Result<Progress, Malformed> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.state {
                State::Head => match self.head(rest, sink)? {
                    None => {
                        return Ok(Progress {
                            consumed: at,
                            complete: false,
                        });
                    }
                    Some((length, complete)) => {
                        at += length;
                        if complete {
                            return Ok(self.completed(at));
                        }
                    }
                },
                State::Length(left) => {
                    let taken = pass_on(rest, left, sink);
                    at += taken;
                    self.state = State::Length(left - taken as u64);
                    if left == taken as u64 {
                        return Ok(self.completed(at));
                    }
                    return Ok(Progress {
                        consumed: at,
                        complete: false,
                    });
                }
                State::UntilClose => {
                    let taken = pass_on(rest, u64::MAX, sink);
                    return Ok(Progress {
                        consumed: at + taken,
                        complete: false,
                    });
                }
                State::Chunk(left) => {
                    let taken = pass_on(rest, left, sink);
                    at += taken;
                    if (taken as u64) < left {
                        self.state = State::Chunk(left - taken as u64);
                        return Ok(Progress {
                            consumed: at,
                            complete: false,
                        });
                    }
                    self.state = State::ChunkEnd;
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer => match line(rest)? {
                    None => {
                        return Ok(Progress {
                            consumed: at,
                            complete: false,
                        });
                    }
                    Some((text, length)) => {
                        at += length;
                        if self.chunk_line(text)? {
                            return Ok(self.completed(at));
                        }
                    }
                },
            }
        }
    }

    fn completed(&mut self, consumed: usize) -> Progress {
        self.state = State::Head;
        Progress {
            consumed,
            complete: true,
        }
    }

    /// The bytes of a whole head and whether it is the whole answer.
    fn head(
        &mut self,
        input: &[u8],
        sink: &mut impl Sink,
    ) -> Result<Option<(usize, bool)>, Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(input) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
            _ => return Err(Malformed),
        };
        let status = response.code.ok_or(Malformed)?;
        if (100..200).contains(&status) {
            // An interim answer; the real one follows.
            return Ok(Some((length, false)));
        }
        self.keep_alive = response.version == Some(1);
        self.state = self.framing(status, response.headers)?;
        sink.head(&Head {
            status,
            headers: response.headers,
        });
        Ok(Some((length, self.state == State::Length(0))))
    }

    fn framing(
        &mut self,
        status: u16,
        headers: &[httparse::Header<'_>],
    ) -> Result<State, Malformed> {
        let mut length = None;
        let mut chunked = false;
        for header in headers {
            // The length first: it tells almost all headers apart without looking at their text.
            match header.name.len() {
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    self.keep_alive &= !header.value.eq_ignore_ascii_case(b"close");
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let text = std::str::from_utf8(header.value).map_err(|_| Malformed)?;
                    length = Some(text.parse::<u64>().map_err(|_| Malformed)?);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    chunked = header.value.eq_ignore_ascii_case(b"chunked");
                }
                _ => {}
            }
        }
        Ok(match length {
            _ if status == 204 || status == 304 => State::Length(0),
            _ if chunked => State::ChunkSize,
            Some(length) => State::Length(length),
            None => {
                self.keep_alive = false;
                State::UntilClose
            }
        })
    }

    /// Moves on past one line of the chunked framing; true at the end of the answer.
    fn chunk_line(&mut self, text: &[u8]) -> Result<bool, Malformed> {
        match self.state {
            State::ChunkSize => {
                let digits = text.split(|byte| *byte == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits.trim_ascii()).map_err(|_| Malformed)?;
                let size = u64::from_str_radix(digits, 16).map_err(|_| Malformed)?;
                self.state = if size == 0 {
                    State::Trailer
                } else {
                    State::Chunk(size)
                };
            }
            State::ChunkEnd if text.is_empty() => self.state = State::ChunkSize,
            State::ChunkEnd => return Err(Malformed),
            _ => return Ok(text.is_empty()),
        }
        Ok(false)
    }
}

fn pass_on(input: &[u8], left: u64, sink: &mut impl Sink) -> usize {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
    if taken > 0 {
        sink.body(&input[..taken]);
    }
    taken
}

/// One line without its end, and the bytes it takes with it.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    match memchr::memchr(b'\n', input) {
        Some(end) if end <= CHUNK_LINE_BYTES_MAX => {
            let text = input[..end].strip_suffix(b"\r").ok_or(Malformed)?;
            Ok(Some((text, end + 1)))
        }
        None if input.len() <= CHUNK_LINE_BYTES_MAX => Ok(None),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::{Head, Malformed, Parser, Sink};

    #[derive(Default, Debug, PartialEq, Eq)]
    struct Seen {
        statuses: Vec<u16>,
        body: Vec<u8>,
    }

    impl Sink for Seen {
        fn head(&mut self, head: &Head<'_, '_>) {
            self.statuses.push(head.status);
        }
        fn body(&mut self, bytes: &[u8]) {
            self.body.extend_from_slice(bytes);
        }
    }

    /// Feeds `text` in two pieces, presenting again what was not consumed.
    fn read(text: &[u8], cut: usize) -> Result<(Seen, bool), Malformed> {
        let mut parser = Parser::default();
        let mut seen = Seen::default();
        let first = parser.advance(&text[..cut], &mut seen)?;
        if first.complete {
            return Ok((seen, true));
        }
        let second = parser.advance(&text[first.consumed..], &mut seen)?;
        Ok((seen, second.complete))
    }

    #[test]
    fn every_cut_gives_the_same_answer() {
        let answers: [&[u8]; 4] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: v\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 204 No Content\r\n\r\n",
        ];
        for text in answers {
            for cut in 0..=text.len() {
                let (seen, complete) = read(text, cut).expect("well formed");
                assert!(complete, "cut at {cut}");
                assert_eq!(seen.statuses.len(), 1);
                assert_eq!(
                    seen.body,
                    if seen.statuses[0] == 204 {
                        b"".as_slice()
                    } else {
                        b"hello"
                    }
                );
            }
            for end in 0..text.len() {
                assert!(!read(&text[..end], end).expect("a truncation").1);
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let wrong: [&[u8]; 5] = [
            b"FTP 200\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\nab",
        ];
        for text in wrong {
            assert_eq!(
                read(text, text.len()),
                Err(Malformed),
                "{}",
                String::from_utf8_lossy(text)
            );
        }
        assert_eq!(read(&[b'H'; 20_000], 20_000), Err(Malformed));
    }

    #[test]
    fn an_answer_without_length_ends_with_the_connection() {
        let mut parser = Parser::default();
        let mut seen = Seen::default();
        let text = b"HTTP/1.1 200 OK\r\n\r\nsome";
        assert!(
            !parser
                .advance(text, &mut seen)
                .expect("well formed")
                .complete
        );
        assert!(parser.complete_at_close() && !parser.keep_alive());
    }
}
