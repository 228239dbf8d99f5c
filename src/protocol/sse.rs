//! Server-sent events: how stream bytes become event text (base protocol 5.8;
//! extensions 9.4, 9.5; decisions, Live reads).
//!
//! No stream content can forge an event: every line of a payload is written
//! behind `data:`, and every line ending the format knows ends a line here
//! too. Offsets always count stored bytes, whatever the text form.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::protocol::{content_type::Kind, offset, stream_key::Surface};

/// A frame that keeps an idle connection open.
pub const HEARTBEAT: &[u8] = b": keep-alive\n\n";

/// How a stream's bytes are written into `data:` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Stored lines; a final empty line keeps the last LF.
    Lines,
    /// One JSON array across lines, `[`, the messages, `]`.
    JsonArray,
    /// Text: any line ending arrives as LF, invalid UTF-8 as U+FFFD.
    Text,
    /// Base64, on one line.
    Base64,
}

impl Framing {
    /// The framing of a stream of `kind` on `surface`.
    #[must_use]
    pub fn of(kind: Kind, surface: Surface) -> Self {
        match (kind, surface) {
            (Kind::Json, Surface::Bucket) => Self::Lines,
            (Kind::Json, Surface::Base) => Self::JsonArray,
            (Kind::Text, _) => Self::Text,
            (Kind::Binary, _) => Self::Base64,
        }
    }
}

/// Writes one `data` event that carries `bytes`.
///
/// `after_cr` says that the stored byte before `bytes` is a CR: an LF that completes it was
/// already delivered as that line's end. Returns whether an event was written (a lone such LF
/// leaves nothing to say).
pub fn data_event(framing: Framing, bytes: &[u8], after_cr: bool, out: &mut Vec<u8>) -> bool {
    let bytes = match (framing, after_cr, bytes) {
        (Framing::Text, true, [b'\n', rest @ ..]) => rest,
        _ => bytes,
    };
    if bytes.is_empty() {
        return false;
    }
    out.extend_from_slice(b"event: data\n");
    match framing {
        Framing::Lines => {
            let mut start = 0;
            for end in memchr::memchr_iter(b'\n', bytes) {
                line(bytes.get(start..end).unwrap_or_default(), out);
                start = end.saturating_add(1);
            }
            line(bytes.get(start..).unwrap_or_default(), out);
        }
        Framing::JsonArray => json_array(bytes, out),
        Framing::Text => text(bytes, out),
        Framing::Base64 => {
            out.extend_from_slice(b"data:");
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.push(b'\n');
        }
    }
    out.push(b'\n');
    true
}

/// `bytes` are whole stored messages.
fn json_array(bytes: &[u8], out: &mut Vec<u8>) {
    let messages = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    out.extend_from_slice(b"data:[\n");
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', messages) {
        out.extend_from_slice(b"data:");
        out.extend_from_slice(messages.get(start..end).unwrap_or_default());
        out.extend_from_slice(b",\n");
        start = end.saturating_add(1);
    }
    line(messages.get(start..).unwrap_or_default(), out);
    out.extend_from_slice(b"data:]\n");
}

fn text(bytes: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.as_bytes();
    while let Some(end) = memchr::memchr2(b'\r', b'\n', rest) {
        let (content, ending) = rest.split_at(end);
        line(content, out);
        let ending_len = if ending.starts_with(b"\r\n") { 2 } else { 1 };
        rest = ending.get(ending_len..).unwrap_or_default();
    }
    line(rest, out);
}

fn line(content: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"data:");
    if content.first() == Some(&b' ') {
        // The format strips one space after the colon; this one keeps the content's own.
        out.push(b' ');
    }
    out.extend_from_slice(content);
    out.push(b'\n');
}

/// What a control event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// `streamNextOffset`.
    pub next: u64,
    /// `streamCursor`; left out once the stream is closed.
    pub cursor: u64,
    /// `upToDate`.
    pub up_to_date: bool,
    /// `streamClosed`.
    pub closed: bool,
}

/// Writes one `control` event.
pub fn control_event(control: &Control, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: control\ndata:{\"streamNextOffset\":\"");
    out.extend_from_slice(&offset::digits(control.next));
    out.push(b'"');
    if !control.closed {
        out.extend_from_slice(b",\"streamCursor\":\"");
        let mut number = super::error::NumberBuffer::default();
        out.extend_from_slice(number.write(control.cursor));
        out.push(b'"');
    }
    if control.up_to_date {
        out.extend_from_slice(b",\"upToDate\":true");
    }
    if control.closed {
        out.extend_from_slice(b",\"streamClosed\":true");
    }
    out.extend_from_slice(b"}\n\n");
}

/// Writes one `error` event; the response ends after it (decisions, Errors).
pub fn error_event(body: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: error\ndata:");
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Bytes of `bytes` that a text event may carry without splitting a character: all but an
/// incomplete UTF-8 sequence at the end that later bytes could complete.
#[must_use]
pub fn whole_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len().saturating_sub(back);
        let Some(lead) = bytes.get(at) else { break };
        let want = match lead {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return bytes.len(),
        };
        if want <= back {
            return bytes.len();
        }
        // Incomplete only if what is there is a valid prefix; else it is invalid already.
        let tail = bytes.get(at..).unwrap_or_default();
        return match std::str::from_utf8(tail) {
            Err(error) if error.error_len().is_none() => at,
            _ => bytes.len(),
        };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(framing: Framing, bytes: &[u8]) -> String {
        let mut out = Vec::new();
        data_event(framing, bytes, false, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_on_both_surfaces() {
        assert_eq!(
            event(Framing::Lines, b"{\"a\":1}\n{\"b\":2}\n"),
            "event: data\ndata:{\"a\":1}\ndata:{\"b\":2}\ndata:\n\n"
        );
        assert_eq!(
            event(Framing::Lines, b"{\"a\""),
            "event: data\ndata:{\"a\"\n\n"
        );
        assert_eq!(
            event(Framing::JsonArray, b"1\n[2]\n"),
            "event: data\ndata:[\ndata:1,\ndata:[2]\ndata:]\n\n"
        );
    }

    /// cases/protocol.md 9.
    #[test]
    fn text_cannot_forge_an_event() {
        let payload = "a\r\nevent: x\rdata: y\n\n : z\u{85}\u{2028}".as_bytes();
        assert_eq!(
            event(Framing::Text, payload),
            "event: data\ndata:a\ndata:event: x\ndata:data: y\ndata:\ndata:  : z\u{85}\u{2028}\n\n"
        );
    }

    #[test]
    fn a_crlf_split_between_events_is_one_line_ending() {
        let mut out = Vec::new();
        assert!(data_event(Framing::Text, b"\nb", true, &mut out));
        assert_eq!(out, b"event: data\ndata:b\n\n");
        out.clear();
        assert!(!data_event(Framing::Text, b"\n", true, &mut out));
        assert!(out.is_empty());
    }

    #[test]
    fn binary_is_base64() {
        assert_eq!(
            event(Framing::Base64, &[0, 255]),
            "event: data\ndata:AP8=\n\n"
        );
    }

    #[test]
    fn characters_are_never_split() {
        for text in ["a", "é", "€", "😀", "a€", "€😀"] {
            let bytes = text.as_bytes();
            assert_eq!(whole_characters(bytes), bytes.len());
            let last = text.char_indices().last().unwrap().0;
            for cut in last + 1..bytes.len() {
                assert_eq!(whole_characters(&bytes[..cut]), last, "{text} cut at {cut}");
            }
        }
        // Invalid already: nothing can complete it.
        for bad in [
            &b"\xff"[..],
            b"a\x80",
            b"\xc0",
            b"\xe0\x80",
            b"\xed\xa0",
            b"\xf4\x90\x80",
        ] {
            assert_eq!(whole_characters(bad), bad.len(), "{bad:?}");
        }
        assert_eq!(whole_characters(b""), 0);
    }

    #[test]
    fn control_leaves_the_cursor_out_once_closed() {
        let mut out = Vec::new();
        let mut control = Control {
            next: 5,
            cursor: 7,
            up_to_date: true,
            closed: false,
        };
        control_event(&control, &mut out);
        assert_eq!(
            out,
            b"event: control\ndata:{\"streamNextOffset\":\"00000000000000000005\",\"streamCursor\":\"7\",\"upToDate\":true}\n\n"
        );
        out.clear();
        control.closed = true;
        control_event(&control, &mut out);
        assert_eq!(
            out,
            b"event: control\ndata:{\"streamNextOffset\":\"00000000000000000005\",\"upToDate\":true,\"streamClosed\":true}\n\n"
        );
    }
}
