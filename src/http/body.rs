//! Request bodies: framed bytes in, payload out, nothing copied.
//!
//! Guarantees:
//! - The payload does not depend on how the bytes were split: the decoder takes every byte it is
//!   given up to the end of the body, and needs none twice.
//! - A body above its limit is refused as soon as that is known: a Content-Length at once, a
//!   chunk when its size has been read, before its data (design.md, the life of an append).
//! - Chunk framing is strict (RFC 9112 section 7.1, cases/http.md 2 and 3): 1 to 16 hexadecimal
//!   digits, CR LF and nothing else as line end, no wrap-around.
//! - Bytes that are not payload are bounded: extensions of all chunks together by
//!   [`CHUNK_EXTENSION_BYTES_MAX`], trailers by [`TRAILER_BYTES_MAX`]; without extensions a chunk
//!   has at most 20 bytes of framing for at least one byte of payload, so that an endless row
//!   of tiny chunks ends at the payload limit.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::base::limits::{CHUNK_EXTENSION_BYTES_MAX, TRAILER_BYTES_MAX};
use crate::http::parse::{Framing, Refusal, is_tchar};
use crate::http::target::hex_digit;

/// Most hexadecimal digits in a chunk size: a u64 has no more.
const CHUNK_SIZE_DIGITS_MAX: u8 = 16;

/// Why a body was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// More payload than the limit.
    TooLarge,
    /// A chunk size that is no hexadecimal number of 1 to 16 digits.
    ChunkSize,
    /// A chunk-size line or extension with a control character or a wrong line end.
    ChunkLine,
    /// Chunk data that CR LF does not follow.
    ChunkEnd,
    /// A trailer line that is no field line.
    Trailer,
    /// More extension or trailer bytes than are tolerated.
    Overhead,
}

impl BodyError {
    /// The answer; the connection closes after it.
    pub fn refusal(self) -> Refusal {
        match self {
            Self::TooLarge => Refusal::BODY_TOO_LARGE,
            Self::ChunkSize => Refusal::CHUNK_SIZE,
            Self::ChunkLine => Refusal::CHUNK_LINE,
            Self::ChunkEnd => Refusal::CHUNK_END,
            Self::Trailer => Refusal::TRAILER,
            Self::Overhead => Refusal::BODY_OVERHEAD,
        }
    }
}

/// What [`BodyDecoder::decode`] made of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// Which of them are payload; may be empty.
    pub payload: Range<usize>,
    /// Whether the body is complete. What follows belongs to the next request.
    pub done: bool,
}

/// Where in the framing the next byte is. What is accepted in each is in [`BodyDecoder::frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Payload to the end of the body.
    Length,
    /// Digits of a chunk size, so many of them read.
    Size(u8),
    /// White space after a chunk size: an extension must follow.
    SizeSpace,
    /// Inside a chunk extension.
    Extension,
    /// After the CR of a chunk-size line.
    SizeLf,
    /// Payload of a chunk.
    Data,
    /// After the payload of a chunk.
    DataCr,
    /// After the CR behind the payload of a chunk.
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    /// In the name of a trailer field.
    TrailerName,
    /// In the value of a trailer field.
    TrailerValue,
    /// After the CR of a trailer line.
    TrailerLf,
    /// After the CR of the line that ends the body.
    EndLf,
    /// Past the end.
    Done,
}

/// Finds the payload of one request body.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: State,
    /// Payload bytes that are left: of the body, or of the chunk; while the size of a chunk is
    /// being read, that size.
    remaining: u64,
    /// Payload bytes that the limit still allows, those of the chunk in hand taken off.
    allowed: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
}

impl BodyDecoder {
    /// A decoder for a body of at most `limit` payload bytes.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`] when the framing says so already.
    pub fn new(framing: Framing, limit: u64) -> Result<Self, BodyError> {
        let (state, remaining) = match framing {
            Framing::None | Framing::Length(0) => (State::Done, 0),
            Framing::Length(length) => (State::Length, length),
            Framing::Chunked => (State::Size(0), 0),
        };
        if remaining > limit {
            return Err(BodyError::TooLarge);
        }
        Ok(Self {
            state,
            remaining,
            allowed: limit,
            extension_bytes: 0,
            trailer_bytes: 0,
        })
    }

    /// A decoder that expects nothing.
    pub fn complete() -> Self {
        Self {
            state: State::Done,
            remaining: 0,
            allowed: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// Whether the whole body has been taken.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Payload bytes that are still to come, where the framing says (never for chunks, until
    /// they are done).
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length => Some(self.remaining),
            State::Done => Some(0),
            _ => None,
        }
    }

    /// Takes bytes of the input up to the end of one run of payload. Call again with the rest
    /// until `consumed` is 0 or the body is `done`.
    ///
    /// # Errors
    /// The first violation. The decoder is then of no further use: where the body ends is unknown.
    pub fn decode(&mut self, input: &[u8]) -> Result<Step, BodyError> {
        let mut at = 0;
        loop {
            match self.state {
                State::Length | State::Data => return Ok(self.payload(input, at)),
                State::Done => break,
                _ => {}
            }
            let Some(&byte) = input.get(at) else { break };
            self.state = self.frame(byte)?;
            at = at.saturating_add(1);
        }
        Ok(Step {
            consumed: at,
            payload: at..at,
            done: self.is_done(),
        })
    }

    /// Takes payload from `input[at..]`.
    fn payload(&mut self, input: &[u8], at: usize) -> Step {
        let available = input.len().saturating_sub(at);
        let taken = usize::try_from(self.remaining)
            .unwrap_or(usize::MAX)
            .min(available);
        self.take_payload(taken as u64);
        let end = at.saturating_add(taken);
        Step {
            consumed: end,
            payload: at..end,
            done: self.is_done(),
        }
    }

    /// Counts `bytes` of payload that went to their place without passing through here; only for
    /// a body whose [`Self::remaining`] is known, which must not be exceeded.
    pub fn take_payload(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.remaining);
        self.remaining = self.remaining.saturating_sub(bytes);
        if self.remaining == 0 {
            self.state = match self.state {
                State::Length => State::Done,
                State::Data => State::DataCr,
                other => other,
            };
        }
    }

    /// The state after one byte of framing.
    fn frame(&mut self, byte: u8) -> Result<State, BodyError> {
        match (self.state, byte) {
            (State::Size(digits), b'\r') if digits > 0 => Ok(State::SizeLf),
            (State::Size(digits), b';') if digits > 0 => self.extension(State::Extension),
            (State::Size(digits), b' ' | b'\t') if digits > 0 => self.extension(State::SizeSpace),
            (State::Size(digits), _) => self.size_digit(digits, byte),
            (State::SizeSpace, b';') => self.extension(State::Extension),
            (State::SizeSpace, b' ' | b'\t') => self.extension(State::SizeSpace),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, byte) if is_text(byte) => self.extension(State::Extension),
            (State::SizeLf, b'\n') => self.chunk(),
            (State::SizeSpace | State::Extension | State::SizeLf, _) => Err(BodyError::ChunkLine),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => {
                self.remaining = 0;
                Ok(State::Size(0))
            }
            (State::DataCr | State::DataLf, _) => Err(BodyError::ChunkEnd),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerStart | State::TrailerName, byte) if is_tchar(byte) => {
                self.trailer(State::TrailerName)
            }
            (State::TrailerName, b':') => self.trailer(State::TrailerValue),
            (State::TrailerValue, b'\r') => self.trailer(State::TrailerLf),
            (State::TrailerValue, byte) if is_text(byte) => self.trailer(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::EndLf, b'\n') => Ok(State::Done),
            (
                State::TrailerStart
                | State::TrailerName
                | State::TrailerValue
                | State::TrailerLf
                | State::EndLf,
                _,
            ) => Err(BodyError::Trailer),
            // `decode` frames no byte in these.
            (state @ (State::Length | State::Data | State::Done), _) => Ok(state),
        }
    }

    fn size_digit(&mut self, digits: u8, byte: u8) -> Result<State, BodyError> {
        let digit = hex_digit(byte).ok_or(BodyError::ChunkSize)?;
        if digits >= CHUNK_SIZE_DIGITS_MAX {
            return Err(BodyError::ChunkSize);
        }
        // Sixteen digits of four bits: nothing is shifted out.
        self.remaining = (self.remaining << 4) | u64::from(digit);
        Ok(State::Size(digits.saturating_add(1)))
    }

    /// The size of a chunk is known.
    fn chunk(&mut self) -> Result<State, BodyError> {
        if self.remaining == 0 {
            return Ok(State::TrailerStart);
        }
        self.allowed = self
            .allowed
            .checked_sub(self.remaining)
            .ok_or(BodyError::TooLarge)?;
        Ok(State::Data)
    }

    fn extension(&mut self, next: State) -> Result<State, BodyError> {
        self.extension_bytes = self.extension_bytes.saturating_add(1);
        if self.extension_bytes > CHUNK_EXTENSION_BYTES_MAX {
            return Err(BodyError::Overhead);
        }
        Ok(next)
    }

    fn trailer(&mut self, next: State) -> Result<State, BodyError> {
        self.trailer_bytes = self.trailer_bytes.saturating_add(1);
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(BodyError::Overhead);
        }
        Ok(next)
    }
}

/// Whether `byte` may be in a field value or a chunk extension (RFC 9110 section 5.5).
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    const LIMIT: u64 = 1 << 20;

    /// What became of a body: its payload, and where it ended, if it did.
    type Outcome = Result<(Vec<u8>, Option<usize>), BodyError>;

    /// Decodes `input`, of which at any time only what is before the next of `cuts` is there.
    fn decode(framing: Framing, limit: u64, input: &[u8], cuts: &[usize]) -> Outcome {
        let mut decoder = BodyDecoder::new(framing, limit)?;
        let mut payload = Vec::new();
        let mut at = 0;
        for &cut in cuts.iter().chain([&input.len()]) {
            while !decoder.is_done() && at < cut {
                let available = &input[at..cut];
                let step = decoder.decode(available)?;
                assert!(step.consumed > 0, "a step that takes nothing");
                payload.extend_from_slice(&available[step.payload]);
                at += step.consumed;
            }
        }
        Ok((payload, decoder.is_done().then_some(at)))
    }

    fn chunked(input: &[u8]) -> Outcome {
        decode(Framing::Chunked, LIMIT, input, &[])
    }

    /// Every way to cut `input` in two, and byte by byte.
    fn for_every_split(input: &[u8], mut check: impl FnMut(&[usize])) {
        for cut in 0..=input.len() {
            check(&[cut]);
        }
        check(&(0..=input.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_length_takes_so_many_bytes_and_no_more() {
        for cut in 0..8 {
            let outcome = decode(Framing::Length(5), 5, b"helloGET", &[cut]);
            assert_eq!(outcome, Ok((b"hello".to_vec(), Some(5))), "{cut}");
        }
        assert_eq!(
            decode(Framing::Length(5), 5, b"hell", &[]),
            Ok((b"hell".to_vec(), None))
        );
    }

    #[test]
    fn no_body_is_done_at_once() {
        for framing in [Framing::None, Framing::Length(0)] {
            let mut decoder = BodyDecoder::new(framing, 0).unwrap();
            assert!(decoder.is_done());
            let step = decoder.decode(b"GET").unwrap();
            assert_eq!(
                step,
                Step {
                    consumed: 0,
                    payload: 0..0,
                    done: true
                }
            );
        }
    }

    #[test]
    fn chunks_with_extensions_and_trailers() {
        let input = b"5;a=b;c=\"d e\"\r\nhello\r\n0005 \t;x\r\n worl\r\n1\r\nd\r\n00;last\r\n\
            Trailer: one\r\nEmpty:\r\n\r\nGET / HTTP/1.1\r\n";
        let end = input.len() - b"GET / HTTP/1.1\r\n".len();
        for_every_split(input, |cuts| {
            let outcome = decode(Framing::Chunked, LIMIT, input, cuts);
            assert_eq!(
                outcome,
                Ok((b"hello world".to_vec(), Some(end))),
                "{cuts:?}"
            );
        });
        for length in 0..end {
            let (_, done) = chunked(&input[..length]).unwrap();
            assert_eq!(done, None, "the first {length} bytes");
        }
    }

    /// cases/http.md 2 and 3, and what else could be framed in two ways.
    #[test]
    fn chunk_framing_is_strict() {
        let cases: &[(&[u8], BodyError)] = &[
            // 2: a bare LF ends a chunk-size line or an extension.
            (b"5\nhello\r\n0\r\n\r\n", BodyError::ChunkSize),
            (b"5;ext\nhello\r\n0\r\n\r\n", BodyError::ChunkLine),
            (b"5;\n", BodyError::ChunkLine),
            (b"5 \n", BodyError::ChunkLine),
            (b"5\r\nhello\n0\r\n\r\n", BodyError::ChunkEnd),
            (b"0\n\r\n", BodyError::ChunkSize),
            // 3: sizes, and data that CR LF does not follow.
            (b"80000000\r\n", BodyError::TooLarge),
            (b"FFFFFFFFFFFFFFFF\r\n", BodyError::TooLarge),
            (b"FFFFFFFFFFFFFFFFF", BodyError::ChunkSize),
            (b"00000000000000001", BodyError::ChunkSize),
            (b"3\r\nhello", BodyError::ChunkEnd),
            (b"3\r\nabc\rX", BodyError::ChunkEnd),
            (b"5\r\nhel\r\n0\r\n\r\n", BodyError::ChunkEnd),
            (b"0\r\nXX", BodyError::Trailer),
            // What some parser takes for a size.
            (b"\r\n", BodyError::ChunkSize),
            (b";ext\r\n", BodyError::ChunkSize),
            (b" 5\r\n", BodyError::ChunkSize),
            (b"+5\r\n", BodyError::ChunkSize),
            (b"-5\r\n", BodyError::ChunkSize),
            (b"0x5\r\n", BodyError::ChunkSize),
            (b"5_\r\n", BodyError::ChunkSize),
            (b"g\r\n", BodyError::ChunkSize),
            (b"5 \r\n", BodyError::ChunkLine),
            (b"5 5\r\n", BodyError::ChunkLine),
            (b"5\rX", BodyError::ChunkLine),
            (b"5;a\rb\r\n", BodyError::ChunkLine),
            (b"5;a\0b\r\n", BodyError::ChunkLine),
            // Trailers are field lines.
            (b"0\r\nA: b\n\r\n", BodyError::Trailer),
            (b"0\r\nA : b\r\n\r\n", BodyError::Trailer),
            (b"0\r\n A: b\r\n\r\n", BodyError::Trailer),
            (b"0\r\nA: b\r\n c\r\n\r\n", BodyError::Trailer),
            (b"0\r\nA: b\0\r\n\r\n", BodyError::Trailer),
            (b"0\r\n: b\r\n\r\n", BodyError::Trailer),
            (b"0\r\nA: b\rC\r\n\r\n", BodyError::Trailer),
            (b"0\r\n\n", BodyError::Trailer),
            (b"0\r\n\rX", BodyError::Trailer),
        ];
        for (bad, error) in cases {
            for prefix in [&b""[..], b"2;x\r\nok\r\n"] {
                let input = [prefix, bad].concat();
                // Some are not seen for what they are before the line ends.
                let padded = [&input[..], b"\r\n"].concat();
                for_every_split(&padded, |cuts| {
                    let outcome = decode(Framing::Chunked, LIMIT, &padded, cuts);
                    assert_eq!(outcome, Err(*error), "{} {cuts:?}", input.escape_ascii());
                });
            }
        }
    }

    #[test]
    fn too_large_is_known_before_the_data() {
        assert_eq!(
            BodyDecoder::new(Framing::Length(6), 5).err(),
            Some(BodyError::TooLarge)
        );
        assert!(BodyDecoder::new(Framing::Length(5), 5).is_ok());
        let chunked = |limit, input: &[u8]| decode(Framing::Chunked, limit, input, &[]);
        assert!(chunked(5, b"5\r\nhello\r\n0\r\n\r\n").is_ok());
        assert_eq!(chunked(4, b"5\r\n"), Err(BodyError::TooLarge));
        assert_eq!(chunked(5, b"3\r\nabc\r\n3\r\n"), Err(BodyError::TooLarge));
        // No sum wraps around.
        let most = b"1\r\na\r\nFFFFFFFFFFFFFFFF\r\n";
        assert_eq!(chunked(u64::MAX, most), Err(BodyError::TooLarge));
        let most = b"FFFFFFFFFFFFFFFF\r\nabc";
        assert_eq!(chunked(u64::MAX, most), Ok((b"abc".to_vec(), None)));
    }

    #[test]
    fn overhead_is_bounded() {
        let extension = |bytes: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(bytes - 1));
        let most = CHUNK_EXTENSION_BYTES_MAX as usize;
        assert!(chunked(extension(most).as_bytes()).is_ok());
        assert_eq!(
            chunked(extension(most + 1).as_bytes()),
            Err(BodyError::Overhead)
        );
        // Over all chunks, not for each.
        let many = "1;xxx\r\na\r\n".repeat(most / 4 + 1);
        assert_eq!(chunked(many.as_bytes()), Err(BodyError::Overhead));

        // `A:` and the CR count, the LF does not.
        let trailer = |bytes: usize| format!("0\r\nA:{}\r\n\r\n", "x".repeat(bytes - 3));
        let most = TRAILER_BYTES_MAX as usize;
        assert!(chunked(trailer(most).as_bytes()).is_ok());
        assert_eq!(
            chunked(trailer(most + 1).as_bytes()),
            Err(BodyError::Overhead)
        );

        // Tiny chunks end at the payload limit.
        let endless = "1\r\na\r\n".repeat(11);
        let outcome = decode(Framing::Chunked, 10, endless.as_bytes(), &[]);
        assert_eq!(outcome, Err(BodyError::TooLarge));
    }

    #[test]
    fn payload_can_pass_by() {
        let mut decoder = BodyDecoder::new(Framing::Length(10), 10).unwrap();
        assert_eq!(decoder.decode(b"abc").unwrap().payload, 0..3);
        assert_eq!(decoder.remaining(), Some(7));
        decoder.take_payload(7);
        assert!(decoder.is_done());
    }

    /// Mutated chunked bodies: nothing panics, and no split changes what comes out.
    #[test]
    fn no_split_changes_the_result() {
        let seed = 0x7468_616d;
        println!("seed {seed}");
        let mut rng = Rng::from_seed(seed);
        let interesting = b"\r\n;0123456789abcdefF \t:A\0\x80";
        for round in 0..50_000 {
            let mut input =
                b"5;a=b\r\nhello\r\n01\r\nx\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.1".to_vec();
            for _ in 0..rng.below(4) {
                let at = rng.below(input.len() as u64) as usize;
                let byte = interesting[rng.below(interesting.len() as u64) as usize];
                match rng.below(3) {
                    0 => input[at] = byte,
                    1 => input.insert(at, byte),
                    _ => drop(input.remove(at)),
                }
            }
            let framing = match rng.below(4) {
                0 => Framing::Length(rng.below(60)),
                _ => Framing::Chunked,
            };
            let limit = rng.below(30);
            let whole = decode(framing, limit, &input, &[]);
            let mut cuts: Vec<_> = (0..rng.below(6))
                .map(|_| rng.below(input.len() as u64) as usize)
                .collect();
            cuts.sort_unstable();
            let shown = input.escape_ascii();
            assert_eq!(
                decode(framing, limit, &input, &cuts),
                whole,
                "seed {seed} round {round} cuts {cuts:?} of {shown}"
            );
            let bytewise: Vec<_> = (0..input.len()).collect();
            assert_eq!(
                decode(framing, limit, &input, &bytewise),
                whole,
                "round {round}: {shown}"
            );
        }
    }
}
