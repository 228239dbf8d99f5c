//! What a message carries, so that whoever reads it can prove where it belongs.
//!
//! Every message has a fixed-width header of 48 hexadecimal digits:
//!
//! ```text
//! lane (4) | seq (8) | sent_ns (14) | chain (16) | len (6)
//! ```
//!
//! A *lane* is one writer of one stream; `seq` counts its messages from 0. `sent_ns` is the time the message was *meant* to be
//! sent, in nanoseconds of the run's clock, so a subscriber in the same process measures delivery without coordinated omission.
//! `chain` is a hash over the previous message's chain and this header, seeded by run, stream and lane: a message that was lost,
//! repeated, swapped, altered or taken from another stream breaks it. `len` is the length of the whole message in bytes. The
//! rest is filler every message of a run shares, compared byte for byte.
//!
//! As bytes: `#` header filler LF. As JSON: `{"a":"header","f":"filler"}`, with members in sorted order and nothing to escape, so
//! that servers which re-serialise JSON keep it byte for byte. Indented JSON is the same message with white space around its
//! tokens ([`render_indented`]); readers are expected to get it back without.

use std::sync::Arc;

/// Hexadecimal digits of a header.
pub const HEADER_CHARS: usize = 48;
/// The smallest message, in bytes, that holds a header in either form.
pub const MESSAGE_BYTES_MIN: usize = 64;
/// The largest message, in bytes: what six hexadecimal digits can say.
pub const MESSAGE_BYTES_MAX: usize = (1 << 24) - 1;

const JSON_OPEN: &[u8] = b"{\"a\":\"";
const JSON_MIDDLE: &[u8] = b"\",\"f\":\"";
const JSON_CLOSE: &[u8] = b"\"}";
const INDENTED_OPEN: &[u8] = b"{\n    \"a\": \"";
const INDENTED_MIDDLE: &[u8] = b"\",\n    \"f\": \"";
const INDENTED_CLOSE: &[u8] = b"\"\n}\n";
/// Bytes that indentation adds to a message.
pub const INDENT_BYTES: usize = INDENTED_OPEN.len() + INDENTED_MIDDLE.len() + INDENTED_CLOSE.len()
    - JSON_OPEN.len()
    - JSON_MIDDLE.len()
    - JSON_CLOSE.len();
const HEX: &[u8; 16] = b"0123456789abcdef";
/// The value of each digit; 255 for what is none.
const HEX_VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut digit = 0;
    while digit < HEX.len() {
        values[HEX[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};
const FILLER_ALPHABET: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/octet-stream`; messages follow each other without separators.
    Bytes,
    /// `application/json`; one object a message.
    Json,
}

impl Form {
    /// The content type of a stream of such messages.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::Bytes => "application/octet-stream",
            Form::Json => "application/json",
        }
    }

    /// The first byte of a message; it occurs nowhere else in one.
    pub fn start(self) -> u8 {
        match self {
            Form::Bytes => b'#',
            Form::Json => b'{',
        }
    }

    /// Bytes up to and including the header.
    pub fn head_bytes(self) -> usize {
        match self {
            Form::Bytes => 1 + HEADER_CHARS,
            Form::Json => JSON_OPEN.len() + HEADER_CHARS,
        }
    }

    /// Bytes a server stores for a message of `len` bytes (JSON text is stored with one LF).
    pub fn stored_bytes(self, len: u32) -> u64 {
        match self {
            Form::Bytes => u64::from(len),
            Form::Json => u64::from(len) + 1,
        }
    }
}

/// The header of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Which writer of the stream.
    pub lane: u16,
    /// Its message number, from 0.
    pub seq: u32,
    /// Intended send time, nanoseconds of the run's clock, below 2^56.
    pub sent_ns: u64,
    /// The chain up to and including this message.
    pub chain: u64,
    /// Length of the whole message in bytes.
    pub len: u32,
}

/// Where the chain of a lane starts.
pub fn chain_seed(run_seed: u64, stream: u32, lane: u16) -> u64 {
    mix(run_seed ^ (u64::from(stream) << 16) ^ u64::from(lane))
}

/// The chain after a message, given the chain before it. `fields.chain` is not looked at.
pub fn chain_step(before: u64, fields: &Fields) -> u64 {
    let numbers = (u64::from(fields.seq) << 32)
        | (u64::from(fields.len) << 8)
        | u64::from(fields.lane & 0xff);
    mix(mix(before ^ numbers) ^ fields.sent_ns)
}

/// splitmix64's finaliser.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The filler all messages of a run share, at least `bytes` long.
pub fn filler(run_seed: u64, bytes: usize) -> Arc<[u8]> {
    let mut state = run_seed;
    (0..bytes)
        .map(|_| {
            state = mix(state);
            FILLER_ALPHABET[(state & 63) as usize]
        })
        .collect()
}

/// Appends one message of `fields.len` bytes to `out`.
pub fn render(form: Form, fields: &Fields, filler: &[u8], out: &mut Vec<u8>) {
    let len = fields.len as usize;
    debug_assert!((MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&len));
    match form {
        Form::Bytes => {
            out.push(b'#');
            render_header(fields, out);
            out.extend_from_slice(&filler[..len - HEADER_CHARS - 2]);
            out.push(b'\n');
        }
        Form::Json => {
            out.extend_from_slice(JSON_OPEN);
            render_header(fields, out);
            out.extend_from_slice(JSON_MIDDLE);
            out.extend_from_slice(&filler[..len - json_frame_bytes()]);
            out.extend_from_slice(JSON_CLOSE);
        }
    }
}

/// Appends one JSON message of `fields.len` bytes to `out`, and [`INDENT_BYTES`] of white space in it.
pub fn render_indented(fields: &Fields, filler: &[u8], out: &mut Vec<u8>) {
    let len = fields.len as usize;
    debug_assert!((MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&len));
    out.extend_from_slice(INDENTED_OPEN);
    render_header(fields, out);
    out.extend_from_slice(INDENTED_MIDDLE);
    out.extend_from_slice(&filler[..len - json_frame_bytes()]);
    out.extend_from_slice(INDENTED_CLOSE);
}

/// The header at the start of `bytes`, which holds at least `form.head_bytes()`; `None` if that is no message of ours.
pub fn parse_head(form: Form, bytes: &[u8]) -> Option<Fields> {
    let open: &[u8] = match form {
        Form::Bytes => b"#",
        Form::Json => JSON_OPEN,
    };
    let hex = bytes.strip_prefix(open)?.get(..HEADER_CHARS)?;
    let fields = Fields {
        lane: read_hex(&hex[..4])? as u16,
        seq: read_hex(&hex[4..12])? as u32,
        sent_ns: read_hex(&hex[12..26])?,
        chain: read_hex(&hex[26..42])?,
        len: read_hex(&hex[42..48])? as u32,
    };
    (fields.len as usize >= MESSAGE_BYTES_MIN).then_some(fields)
}

/// Whether everything after the header of a whole message is as it was written.
pub fn body_intact(form: Form, message: &[u8], filler: &[u8]) -> bool {
    let rest = &message[form.head_bytes()..];
    match form {
        Form::Bytes => rest
            .split_last()
            .is_some_and(|(last, text)| *last == b'\n' && filler.starts_with(text)),
        Form::Json => rest
            .strip_prefix(JSON_MIDDLE)
            .and_then(|rest| rest.strip_suffix(JSON_CLOSE))
            .is_some_and(|text| filler.starts_with(text)),
    }
}

fn json_frame_bytes() -> usize {
    JSON_OPEN.len() + HEADER_CHARS + JSON_MIDDLE.len() + JSON_CLOSE.len()
}

fn render_header(fields: &Fields, out: &mut Vec<u8>) {
    let mut hex = [0u8; HEADER_CHARS];
    write_hex(&mut hex[..4], u64::from(fields.lane));
    write_hex(&mut hex[4..12], u64::from(fields.seq));
    write_hex(&mut hex[12..26], fields.sent_ns);
    write_hex(&mut hex[26..42], fields.chain);
    write_hex(&mut hex[42..], u64::from(fields.len));
    out.extend_from_slice(&hex);
}

fn write_hex(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = HEX[(value & 15) as usize];
        value >>= 4;
    }
}

fn read_hex(digits: &[u8]) -> Option<u64> {
    let mut value = 0;
    let mut all = 0;
    for digit in digits {
        let number = HEX_VALUES[usize::from(*digit)];
        all |= number;
        value = value << 4 | u64::from(number & 15);
    }
    (all < 16).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::{
        Fields, Form, INDENT_BYTES, MESSAGE_BYTES_MIN, body_intact, chain_seed, chain_step, filler,
        parse_head, render, render_indented,
    };

    const FIELDS: Fields = Fields {
        lane: 1,
        seq: 2,
        sent_ns: 3,
        chain: 4,
        len: 200,
    };

    #[test]
    fn what_is_rendered_parses_back_in_both_forms() {
        let filler = filler(7, 1024);
        for form in [Form::Bytes, Form::Json] {
            for len in [MESSAGE_BYTES_MIN, 65, 256, 1024] {
                let fields = Fields {
                    lane: 513,
                    seq: 77,
                    sent_ns: 123_456_789_012,
                    chain: u64::MAX - 5,
                    len: len as u32,
                };
                let mut out = Vec::new();
                render(form, &fields, &filler, &mut out);
                assert_eq!(out.len(), len);
                assert_eq!(parse_head(form, &out), Some(fields));
                assert!(body_intact(form, &out, &filler));
                let last_filler = out.len() - 4;
                out[last_filler] ^= 1;
                assert!(!body_intact(form, &out, &filler));
            }
        }
    }

    #[test]
    fn json_form_is_json_and_survives_a_reserialising_server() {
        let mut out = Vec::new();
        render(Form::Json, &FIELDS, &filler(1, 256), &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).expect("valid JSON");
        assert_eq!(serde_json::to_vec(&value).expect("serialises"), out);
    }

    #[test]
    fn indented_json_is_the_same_value_and_as_much_longer_as_it_says() {
        let filler = filler(1, 256);
        let (mut plain, mut indented) = (Vec::new(), Vec::new());
        render(Form::Json, &FIELDS, &filler, &mut plain);
        render_indented(&FIELDS, &filler, &mut indented);
        assert_eq!(indented.len(), plain.len() + INDENT_BYTES);
        let value: serde_json::Value = serde_json::from_slice(&indented).expect("valid JSON");
        assert_eq!(serde_json::to_vec(&value).expect("serialises"), plain);
    }

    #[test]
    fn the_chain_tells_streams_lanes_and_neighbours_apart() {
        assert_ne!(chain_seed(1, 0, 1), chain_seed(1, 1, 0));
        assert_ne!(chain_seed(1, 0, 0), chain_seed(2, 0, 0));
        let first = Fields {
            lane: 0,
            seq: 0,
            sent_ns: 9,
            chain: 0,
            len: 256,
        };
        let second = Fields { seq: 1, ..first };
        assert_ne!(chain_step(5, &first), chain_step(5, &second));
        assert_ne!(chain_step(5, &first), chain_step(6, &first));
    }
}
