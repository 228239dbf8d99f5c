//! Others' judgement of a body, and a slow way to its stored text.

use serde::de::IgnoredAny;

use crate::base::limits::JSON_DEPTH_MAX;

/// Whether the rule accepts `body`, by parts that each judge one side of it: serde_json the
/// grammar, simdutf8 the encoding, a count the depth.
pub(super) fn accepts(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
        && simdutf8::basic::from_utf8(body).is_ok()
        && depth(body) <= JSON_DEPTH_MAX
}

/// Whether simd-json accepts it. It refuses some that the rule accepts, never the other way.
pub(super) fn simd_json_accepts(body: &[u8]) -> bool {
    let mut copy = body.to_vec();
    simd_json::to_tape(&mut copy).is_ok()
}

/// Each byte of a valid text with its depth, and whether it is inside a string, in order.
fn walk(body: &[u8]) -> impl Iterator<Item = (u8, usize, bool)> {
    let (mut depth, mut inside, mut escaped) = (0_usize, false, false);
    body.iter().map(move |&byte| {
        let was_inside = inside;
        if inside {
            inside = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else {
            match byte {
                b'"' => inside = true,
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        (byte, depth, was_inside)
    })
}

fn is_array(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"[")
}

/// Depth of the deepest message of a valid body.
fn depth(body: &[u8]) -> usize {
    let deepest = walk(body).map(|(_, depth, _)| depth).max().unwrap_or(0);
    deepest - usize::from(is_array(body))
}

/// The stored text of a valid body, byte by byte.
pub(super) fn stored(body: &[u8]) -> Vec<u8> {
    let array = is_array(body);
    let mut out = Vec::new();
    for (byte, depth, inside) in walk(body) {
        if inside {
            out.push(byte);
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'[' if array && depth == 1 => {}
            b']' if array && depth == 0 => {}
            b',' if array && depth == 1 => out.push(b'\n'),
            _ => out.push(byte),
        }
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out
}
