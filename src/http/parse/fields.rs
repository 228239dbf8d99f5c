//! Header fields, and what they say about the body and the connection.
//!
//! Guarantees: no two readings of the same head. Where RFC 9112 section 6.3 lets a server repair
//! an ambiguous length, this one refuses (section 11.2: request smuggling).

#![forbid(unsafe_code)]

use super::{Framing, Head, Refusal, Span, is_host};
use crate::base::limits::HEADERS_MAX;

/// Fields that the common request does not exceed: clearing this many slots is cheaper than
/// clearing [`HEADERS_MAX`].
const FIELDS_COMMON: usize = 16;

/// Parses the fields in `buf[start..end]`, the empty line included, and what follows from them.
pub(super) fn parse(buf: &[u8], start: usize, end: usize, head: &mut Head) -> Result<(), Refusal> {
    let lines = buf.get(start..end).unwrap_or_default();
    let mut common = [httparse::EMPTY_HEADER; FIELDS_COMMON];
    let mut all;
    let parsed = match httparse::parse_headers(lines, &mut common) {
        Err(httparse::Error::TooManyHeaders) => {
            all = [httparse::EMPTY_HEADER; HEADERS_MAX];
            httparse::parse_headers(lines, &mut all)
        }
        parsed => parsed,
    };
    let fields = match parsed {
        Ok(httparse::Status::Complete((consumed, fields))) if consumed == lines.len() => fields,
        // The line search found the end of the head; had httparse found another one, the two
        // would disagree about the framing.
        Ok(_) => return Err(Refusal::FIELD_LINE),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::HEAD_TOO_LARGE),
        Err(_) => return Err(Refusal::FIELD_LINE),
    };
    let mut semantics = Semantics::default();
    head.fields.reserve(fields.len());
    for field in fields {
        semantics.field(field.name.as_bytes(), field.value)?;
        head.fields.push((
            Span::of(buf, field.name.as_bytes()),
            Span::of(buf, field.value),
        ));
    }
    head.consumed = end;
    semantics.apply(head)
}

/// The fields that decide about framing and the connection, gathered from all field lines.
#[derive(Default)]
struct Semantics {
    hosts: u32,
    length: Option<u64>,
    length_too_large: bool,
    coding_lines: u32,
    chunked: bool,
    unknown_coding: bool,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
    expect_other: bool,
}

impl Semantics {
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        // By length first: most fields are none of these.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host(value),
            6 if name.eq_ignore_ascii_case(b"expect") => {
                if value.eq_ignore_ascii_case(b"100-continue") {
                    self.expect_continue = true;
                } else {
                    self.expect_other = true;
                }
                Ok(())
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in value.split(|&byte| byte == b',') {
                    let option = option.trim_ascii();
                    self.close |= option.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
                Ok(())
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => self.content_length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.transfer_encoding(value),
            _ => Ok(()),
        }
    }

    fn host(&mut self, value: &[u8]) -> Result<(), Refusal> {
        self.hosts = self.hosts.saturating_add(1);
        if is_host(value) {
            Ok(())
        } else {
            Err(Refusal::HOST)
        }
    }

    /// RFC 9110 section 8.6. A list of equal values, which it lets a server repair, is refused.
    fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return Err(Refusal::LENGTH);
        }
        let length = value.iter().try_fold(0u64, |length, &digit| {
            length
                .checked_mul(10)?
                .checked_add(u64::from(digit.wrapping_sub(b'0')))
        });
        // Too large to count is too large to take; malformed fields still come first.
        self.length_too_large = length.is_none();
        self.length = Some(length.unwrap_or(u64::MAX));
        Ok(())
    }

    /// RFC 9112 section 6.1 and 7: `chunked` must be last and must not be repeated.
    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        self.coding_lines = self.coding_lines.saturating_add(1);
        for coding in value.split(|&byte| byte == b',') {
            let coding = coding.trim_ascii();
            if coding.is_empty() || self.chunked {
                return Err(Refusal::CODING);
            }
            if coding.eq_ignore_ascii_case(b"chunked") {
                self.chunked = true;
            } else {
                self.unknown_coding = true;
            }
        }
        Ok(())
    }

    fn apply(self, head: &mut Head) -> Result<(), Refusal> {
        if self.hosts > 1 || (self.hosts == 0 && head.version_minor == 1) {
            return Err(Refusal::HOST);
        }
        head.framing = match (self.length, self.coding_lines) {
            (None, 0) => Framing::None,
            (Some(_), 0) if self.length_too_large => return Err(Refusal::BODY_TOO_LARGE),
            (Some(length), 0) => Framing::Length(length),
            (Some(_), _) => return Err(Refusal::LENGTH_AND_CODING),
            // A 1.0 hop may have passed the field on without knowing it (RFC 9112 section 6.1).
            (None, _) if head.version_minor == 0 => return Err(Refusal::CODING),
            (None, _) if self.unknown_coding => return Err(Refusal::UNKNOWN_CODING),
            (None, _) => Framing::Chunked,
        };
        if self.expect_other {
            return Err(Refusal::EXPECTATION);
        }
        head.expect_continue = self.expect_continue && head.version_minor == 1;
        head.keep_alive = !self.close && (head.version_minor == 1 || self.keep_alive);
        Ok(())
    }
}
