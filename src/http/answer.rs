//! What all answers share: the fields every head carries, errors, and bodies
//! that are written piece by piece.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use crate::{
    base::limits::PIECE_BYTES,
    http::{
        cors::{self, AllowedOrigins},
        encode::{DATE_BYTES, ResponseHead},
        headers::{Field, Headers},
        multipart::MultipartWriter,
        parse::{self, Method},
    },
    json::array_view::ArrayView,
    protocol::error::{Refusal, error_body},
    shard::run::BlockRun,
    storage::blob::BlobFile,
};

/// Fields of every answer: stored bytes must never run as a page of our origin, and other origins
/// may read them (base protocol 12.7; decisions, Live reads, lifetimes, browsers).
const COMMON: &[u8] = b"X-Content-Type-Options: nosniff\r\n\
Cross-Origin-Resource-Policy: cross-origin\r\n";
/// The field of every answer when any origin may read it.
const ANY_ORIGIN: &[u8] = b"Access-Control-Allow-Origin: *\r\n";

/// What the answers of one core share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The fields that are the same in every answer of this second, rendered.
    lines: Vec<u8>,
    date: Option<[u8; DATE_BYTES]>,
    /// Who may read answers.
    origins: AllowedOrigins,
}

impl Shared {
    /// For answers at `date`, if it is known, which those of `origins` may read.
    #[must_use]
    pub fn new(origins: AllowedOrigins, date: Option<[u8; DATE_BYTES]>) -> Self {
        let mut shared = Self {
            lines: Vec::new(),
            date,
            origins,
        };
        shared.set_date(date);
        shared
    }

    /// The value of `Date`, if there is one.
    #[must_use]
    pub fn date(&self) -> Option<&[u8; DATE_BYTES]> {
        self.date.as_ref()
    }

    /// Sets the value of `Date`: once a second.
    pub fn set_date(&mut self, date: Option<[u8; DATE_BYTES]>) {
        self.date = date;
        self.lines.clear();
        if let Some(date) = &self.date {
            for part in [b"Date: ", &date[..], b"\r\n"] {
                self.lines.extend_from_slice(part);
            }
        }
        self.lines.extend_from_slice(COMMON);
        if self.origins == AllowedOrigins::Any {
            self.lines.extend_from_slice(ANY_ORIGIN);
        }
    }
}

/// What an answer must know of its request once that is gone.
#[derive(Clone, Debug, Default)]
pub struct Envelope {
    /// The request was a HEAD: no body.
    pub is_head: bool,
    /// The client speaks HTTP/1.0: no chunks, and it must be told that the connection stays.
    pub is_http10: bool,
    /// The connection closes after this answer.
    pub close: bool,
    /// `Origin`, if a browser sent one.
    pub origin: Option<Box<[u8]>>,
}

impl Envelope {
    /// The envelope for a request.
    #[must_use]
    pub fn new(method: Method, version_minor: u8, headers: &Headers<'_>) -> Self {
        Self {
            is_head: method == Method::Head,
            is_http10: version_minor == 0,
            close: false,
            origin: headers.single(Field::Origin).map(Into::into),
        }
    }

    /// Begins an answer with the fields that all have.
    pub fn begin<'o>(
        &self,
        shared: &Shared,
        out: &'o mut Vec<u8>,
        status: u16,
    ) -> ResponseHead<'o> {
        let mut head = ResponseHead::new(out, status);
        head.lines(&shared.lines);
        if let Some(allowed) = shared.origins.allow(self.origin.as_deref()) {
            if shared.origins != AllowedOrigins::Any {
                head.header("Access-Control-Allow-Origin", allowed);
            }
            if self.origin.is_some() {
                head.header("Access-Control-Expose-Headers", cors::EXPOSE_HEADERS);
            }
        }
        if shared.origins.vary() {
            head.header("Vary", b"Origin");
        }
        if self.close {
            head.close();
        } else if self.is_http10 {
            head.keep_alive();
        }
        head
    }
}

/// Writes an error answer (decisions, Errors): HEAD's has no body.
pub fn refuse(envelope: &Envelope, shared: &Shared, refusal: &Refusal, out: &mut Vec<u8>) {
    let body = refusal.body();
    let mut head = envelope.begin(shared, out, refusal.status());
    refusal.headers(&mut |name, value| {
        head.header(name, value);
    });
    finish_error(envelope, head, &body);
}

/// Writes the answer to what is no request; the connection closes after it.
pub fn refuse_framing(shared: &Shared, refusal: &parse::Refusal, limit: u64, out: &mut Vec<u8>) {
    let envelope = Envelope {
        close: true,
        ..Envelope::default()
    };
    let body = error_body(refusal.code, refusal.message);
    let mut head = envelope.begin(shared, out, refusal.status);
    if refusal.status == 413 {
        head.header_u64("Ursula-Max-Request-Bytes", limit);
    }
    finish_error(&envelope, head, &body);
}

fn finish_error(envelope: &Envelope, mut head: ResponseHead<'_>, body: &str) {
    head.header("Cache-Control", b"no-store");
    if envelope.is_head {
        head.finish_no_body();
        return;
    }
    head.header("Content-Type", b"application/json");
    head.finish_with_body(body.as_bytes());
}

/// Writes the answer to a preflight.
pub fn preflight(envelope: &Envelope, shared: &Shared, out: &mut Vec<u8>) {
    let mut head = envelope.begin(shared, out, 204);
    head.header("Allow", cors::ALLOW_METHODS);
    head.header("Access-Control-Allow-Methods", cors::ALLOW_METHODS);
    head.header("Access-Control-Allow-Headers", cors::ALLOW_HEADERS);
    head.header("Access-Control-Max-Age", cors::MAX_AGE);
    head.finish_no_body();
}

/// The rest of an answer, to be written after its head.
pub enum Body {
    /// Nothing more.
    None,
    /// Bytes as they are stored.
    Stored(VecDeque<Source>),
    /// Stored messages as one JSON array.
    Array(VecDeque<Source>, ArrayView),
    /// The parts of a bootstrap.
    Multipart(Box<Multipart>),
}

/// Where bytes of a body are.
#[derive(Clone, Debug)]
pub enum Source {
    /// In memory.
    Memory(Bytes),
    /// In a blob's file, from the first offset to before the second.
    File(Arc<BlobFile>, u64, u64),
    /// In a block of a segment.
    Block(BlockRun),
}

impl Source {
    /// The block it is in, if it is in one.
    #[must_use]
    pub fn block(&self) -> Option<&BlockRun> {
        match self {
            Self::Block(run) => Some(run),
            Self::Memory(_) | Self::File(..) => None,
        }
    }

    /// Bytes in it.
    fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(_, start, end) => end.saturating_sub(*start),
            Self::Block(run) => u64::from(run.to.saturating_sub(run.from)),
        }
    }
}

/// The next piece of a body.
pub enum Piece {
    /// These bytes.
    Shared(Bytes),
    /// This part of a blob's file.
    File(Arc<BlobFile>, u64, u64),
    /// The next block of a segment: read it and give it to [`Body::fetched`].
    Fetch,
    /// What was written to the buffer.
    Buffered,
    /// There is none.
    Done,
}

impl From<Source> for Piece {
    fn from(source: Source) -> Self {
        match source {
            Source::Memory(bytes) => Self::Shared(bytes),
            Source::File(file, start, end) => Self::File(file, start, end),
            Source::Block(_) => Self::Fetch,
        }
    }
}

impl Body {
    /// Bytes as they are stored, for a GET.
    #[must_use]
    pub fn stored(envelope: &Envelope, sources: VecDeque<Source>) -> Self {
        if envelope.is_head {
            Self::None
        } else {
            Self::Stored(sources)
        }
    }

    /// The blocks it needs, in the order in which [`next`](Self::next) asks for them.
    #[must_use]
    pub fn blocks(&self) -> Vec<BlockRun> {
        let sources = match self {
            Self::Stored(sources) | Self::Array(sources, _) => sources,
            Self::Multipart(parts) => match &parts.snapshot {
                Some((_, sources)) => sources,
                None => return Vec::new(),
            },
            Self::None => return Vec::new(),
        };
        sources.iter().filter_map(Source::block).cloned().collect()
    }

    /// Whether more than `bytes` are yet to come that are written as they are.
    #[must_use]
    pub fn is_longer_than(&self, bytes: usize) -> bool {
        let Self::Stored(sources) = self else {
            return false;
        };
        let mut rest = bytes as u64;
        let mut fits = |source: &Source| {
            let after = rest.checked_sub(source.len());
            after.map(|after| rest = after).is_some()
        };
        !sources.iter().all(&mut fits)
    }

    /// Takes the bytes of the block that [`Piece::Fetch`] asked for. True if they are to be written
    /// as they are; otherwise what becomes of them is in `out`.
    #[must_use]
    pub fn fetched(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Self::Array(sources, view) = self else {
            return true;
        };
        view.push(bytes, out);
        if sources.is_empty() {
            view.finish(out);
        }
        false
    }

    /// Whether [`Self::next`] will ask for another block whose bytes are written as they are.
    #[must_use]
    pub fn is_stored_block_next(&self) -> bool {
        matches!(self, Self::Stored(sources) if matches!(sources.front(), Some(Source::Block(_))))
    }

    /// Takes the next piece: a shared one, or one of about [`PIECE_BYTES`] written to `out`.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Piece {
        match self {
            Self::None => Piece::Done,
            Self::Stored(sources) => sources.pop_front().map_or(Piece::Done, Piece::from),
            Self::Array(sources, view) => {
                let mut piece = match sources.pop_front() {
                    None => {
                        *self = Self::None;
                        return Piece::Done;
                    }
                    Some(Source::Memory(piece)) => piece,
                    Some(other) => return other.into(),
                };
                let rest = piece.split_off(piece.len().min(PIECE_BYTES));
                view.push(&piece, out);
                if !rest.is_empty() {
                    sources.push_front(Source::Memory(rest));
                } else if sources.is_empty() {
                    view.finish(out);
                }
                Piece::Buffered
            }
            Self::Multipart(parts) => parts.next(out),
        }
    }
}

/// A bootstrap's body on its way out.
pub struct Multipart {
    writer: Option<MultipartWriter>,
    snapshot: Option<(Box<[u8]>, VecDeque<Source>)>,
    snapshot_begun: bool,
    update_type: Box<[u8]>,
    per_message: bool,
    updates: VecDeque<Bytes>,
    in_part: bool,
}

impl Multipart {
    /// The parts: the snapshot's type and body, then the updates of type `update_type`; one part
    /// for each message when `per_message`, else one part for all.
    #[must_use]
    pub fn new(
        writer: MultipartWriter,
        snapshot_type: &[u8],
        snapshot: VecDeque<Source>,
        update_type: &[u8],
        updates: Vec<Bytes>,
        per_message: bool,
    ) -> Self {
        Self {
            writer: Some(writer),
            snapshot: Some((snapshot_type.into(), snapshot)),
            snapshot_begun: false,
            update_type: update_type.into(),
            per_message,
            updates: updates.into(),
            in_part: false,
        }
    }

    fn next(&mut self, out: &mut Vec<u8>) -> Piece {
        let Some(writer) = &mut self.writer else {
            return Piece::Done;
        };
        if let Some((content_type, pieces)) = &mut self.snapshot {
            if !self.snapshot_begun {
                self.snapshot_begun = true;
                writer.part(out, content_type);
                return Piece::Buffered;
            }
            match pieces.pop_front() {
                Some(source) => return source.into(),
                None => self.snapshot = None,
            }
        }
        if !self.per_message {
            if !self.in_part && !self.updates.is_empty() {
                self.in_part = true;
                writer.part(out, &self.update_type);
                return Piece::Buffered;
            }
            if let Some(piece) = self.updates.pop_front() {
                return Piece::Shared(piece);
            }
        }
        while let Some(piece) = self.updates.front_mut() {
            if out.len() >= PIECE_BYTES {
                return Piece::Buffered;
            }
            if !self.in_part {
                self.in_part = true;
                writer.part(out, &self.update_type);
            }
            // A part holds one stored message, its LF included: the parts together are exactly
            // the bytes of the range (extensions 3.2, Completeness).
            match memchr::memchr(b'\n', piece) {
                Some(end) => {
                    out.extend_from_slice(&piece.split_to(end.saturating_add(1)));
                    self.in_part = false;
                }
                None => out.extend_from_slice(&std::mem::take(piece)),
            }
            if piece.is_empty() {
                self.updates.pop_front();
            }
        }
        if let Some(writer) = self.writer.take() {
            writer.finish(out);
        }
        Piece::Buffered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_longer_than_what_is_before_its_last_byte() {
        let piece = |bytes: &'static [u8]| Source::Memory(Bytes::from_static(bytes));
        let body = Body::Stored([piece(b"abc"), piece(b"defg")].into());
        assert!(body.is_longer_than(0));
        assert!(body.is_longer_than(6));
        assert!(!body.is_longer_than(7));
        assert!(!Body::None.is_longer_than(0));
    }
}
