//! `multipart/mixed` bodies (RFC 2046 section 5.1) for bootstrap answers (extensions 3.2).
//!
//! Guarantees:
//! - The length of a whole body is known before its first byte is written ([`BodyLength`]), so
//!   that it goes out with a Content-Length, in pieces, part bodies untouched.
//! - No stream content can contain the boundary but by guessing 128 random bits, which are fresh
//!   for every answer.
//!
//! ```text
//! --B CRLF Content-Type: t CRLF CRLF body            first part
//! CRLF --B CRLF Content-Type: t CRLF CRLF body       every other part
//! CRLF --B-- CRLF                                    the end
//! ```

#![forbid(unsafe_code)]

use crate::base::hex;
use crate::http::encode::push_value;

const PREFIX: &[u8; 18] = b"thalweg-bootstrap-";
const BOUNDARY_BYTES: usize = PREFIX.len() + 32;
const CONTENT_TYPE: &[u8] = b"Content-Type: ";
/// What the first part has around its content type and before its body, in bytes.
const FIRST_PART_BYTES: u64 =
    (b"--".len() + BOUNDARY_BYTES + b"\r\n".len() + CONTENT_TYPE.len() + b"\r\n\r\n".len()) as u64;
/// The same of every other part, in bytes.
const NEXT_PART_BYTES: u64 = FIRST_PART_BYTES + b"\r\n".len() as u64;
/// What follows the last part, in bytes.
const END_BYTES: u64 = (b"\r\n--".len() + BOUNDARY_BYTES + b"--\r\n".len()) as u64;

/// A boundary: `thalweg-bootstrap-` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary([u8; BOUNDARY_BYTES]);

impl Boundary {
    /// The boundary made of `random`, which must be unpredictable and used once.
    pub fn new(random: [u8; 16]) -> Self {
        let mut bytes = [b'0'; BOUNDARY_BYTES];
        let random = random.into_iter().flat_map(hex::digits);
        let content = PREFIX.iter().copied().chain(random);
        bytes
            .iter_mut()
            .zip(content)
            .for_each(|(to, from)| *to = from);
        Self(bytes)
    }

    /// The boundary as it stands in the Content-Type: nothing in it needs quotes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The Content-Type of the whole answer.
    pub fn content_type(&self) -> Vec<u8> {
        [b"multipart/mixed; boundary=", self.as_bytes()].concat()
    }
}

/// Writes the framing of a body. The owner writes each part's bytes behind its head.
#[derive(Clone, Debug)]
pub struct MultipartWriter {
    boundary: Boundary,
    begun: bool,
}

impl MultipartWriter {
    /// A writer of which nothing has been written.
    pub fn new(boundary: Boundary) -> Self {
        Self {
            boundary,
            begun: false,
        }
    }

    /// Appends what goes before the bytes of a part.
    pub fn part(&mut self, out: &mut Vec<u8>, content_type: &[u8]) {
        if self.begun {
            out.extend_from_slice(b"\r\n");
        }
        self.begun = true;
        out.extend_from_slice(b"--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(CONTENT_TYPE);
        push_value(out, content_type);
        out.extend_from_slice(b"\r\n\r\n");
    }

    /// Appends what goes behind the last part. At least one part must have been written: an
    /// answer without a snapshot has an empty first one (extensions 3.2).
    pub fn finish(self, out: &mut Vec<u8>) {
        debug_assert!(self.begun);
        out.extend_from_slice(b"\r\n--");
        out.extend_from_slice(self.boundary.as_bytes());
        out.extend_from_slice(b"--\r\n");
    }
}

/// Adds up the length of a body that [`MultipartWriter`] will frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyLength {
    bytes: u64,
    begun: bool,
}

impl BodyLength {
    /// Counts a part of `body_bytes` whose content type has `content_type_bytes`.
    pub fn part(&mut self, content_type_bytes: usize, body_bytes: u64) {
        let framing = if self.begun {
            NEXT_PART_BYTES
        } else {
            FIRST_PART_BYTES
        };
        self.begun = true;
        self.bytes = self
            .bytes
            .saturating_add(framing)
            .saturating_add(content_type_bytes as u64)
            .saturating_add(body_bytes);
    }

    /// Counts `count` parts, none of them the first of the body, that together have `body_bytes`.
    pub fn parts(&mut self, count: u64, content_type_bytes: usize, body_bytes: u64) {
        debug_assert!(self.begun);
        let framing = NEXT_PART_BYTES.saturating_add(content_type_bytes as u64);
        self.bytes = self
            .bytes
            .saturating_add(framing.saturating_mul(count))
            .saturating_add(body_bytes);
    }

    /// The length of the body, in bytes, with its end.
    pub fn total(self) -> u64 {
        self.bytes.saturating_add(END_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: [u8; 16] = [
        0x9f, 0x1c, 0x2e, 0x7a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa0, 0xff,
    ];
    const TOKEN: &str = "thalweg-bootstrap-9f1c2e7a00010203040506070809a0ff";

    fn body(parts: &[(&str, &[u8])]) -> (Vec<u8>, u64) {
        let mut writer = MultipartWriter::new(Boundary::new(RANDOM));
        let mut length = BodyLength::default();
        let mut out = Vec::new();
        for (content_type, bytes) in parts {
            length.part(content_type.len(), bytes.len() as u64);
            writer.part(&mut out, content_type.as_bytes());
            out.extend_from_slice(bytes);
        }
        writer.finish(&mut out);
        (out, length.total())
    }

    #[test]
    fn the_boundary_is_prefix_and_hex() {
        let boundary = Boundary::new(RANDOM);
        assert_eq!(boundary.as_bytes(), TOKEN.as_bytes());
        assert_eq!(
            boundary.content_type(),
            format!("multipart/mixed; boundary={TOKEN}").into_bytes()
        );
    }

    #[test]
    fn many_parts_are_as_long_as_each_of_them() {
        let (mut one_by_one, mut together) = (BodyLength::default(), BodyLength::default());
        for length in [&mut one_by_one, &mut together] {
            length.part(10, 3);
        }
        for bytes in [2, 0, 70] {
            one_by_one.part(16, bytes);
        }
        together.parts(3, 16, 72);
        assert_eq!(together, one_by_one);
        together.parts(0, 16, 0);
        assert_eq!(together, one_by_one);
    }

    #[test]
    fn a_body_byte_for_byte() {
        let (out, length) = body(&[
            ("application/octet-stream", b""),
            ("application/json", b"{\"a\":1}\n"),
        ]);
        let expected = format!(
            "--{TOKEN}\r\nContent-Type: application/octet-stream\r\n\r\n\
             \r\n--{TOKEN}\r\nContent-Type: application/json\r\n\r\n{{\"a\":1}}\n\
             \r\n--{TOKEN}--\r\n"
        );
        assert_eq!(
            out.escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
        assert_eq!(length, expected.len() as u64);
    }

    #[test]
    fn the_length_is_known_in_advance() {
        let parts: Vec<(&str, &[u8])> = vec![("text/plain", b"some bytes"); 7];
        for count in 1..=parts.len() {
            let (out, length) = body(&parts[..count]);
            assert_eq!(out.len() as u64, length, "{count} parts");
        }
    }

    #[test]
    fn a_content_type_cannot_add_lines() {
        let (out, length) = body(&[("a/b\r\nX: y", b"")]);
        assert!(out.windows(3).all(|window| window != b"\nX:"));
        assert_eq!(out.len() as u64, length);
    }
}
