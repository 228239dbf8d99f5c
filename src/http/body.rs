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

use crate::http::parse::{Framing, Refusal, is_tchar};
use crate::http::target::hex_digit;

/// Most bytes of chunk extensions in one body; they are dropped.
pub const CHUNK_EXTENSION_BYTES_MAX: u32 = 16 << 10;
/// Most bytes of trailer fields in one body; they are dropped.
pub const TRAILER_BYTES_MAX: u32 = 16 << 10;
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
