//! Request targets: which path, which query.
//!
//! Guarantees:
//! - `GET http://host/path` and `GET /path` give the same path (RFC 9112 section 3.2.2,
//!   cases/http.md 4).
//! - The path is split on raw `/` before anything is decoded, and each segment is decoded exactly
//!   once: `%2F` never makes a segment, `%252F` is the three characters `%2F`.
//! - A decoded segment is UTF-8 and holds no `/`, no NUL and no `..` (decisions.md, Two surfaces):
//!   no name can leave the place it was put in.
//! - What needs no decoding is borrowed; nothing is allocated for it.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::http::encode::hex_digits;
use crate::http::parse::is_host;

/// Why a target is no target. Each is a 400 for the request; the connection may live on, since
/// the framing is not in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// Neither a path, nor an `http` URI, nor `*`.
    Form,
    /// A `#`: fragments are never sent (RFC 9112 section 3.2).
    Fragment,
    /// A `%` that two hexadecimal digits do not follow.
    Escape,
    /// Bytes that are not UTF-8 once decoded.
    Utf8,
    /// A decoded segment with a NUL in it.
    Nul,
    /// A decoded segment with a `/` in it.
    Slash,
    /// A decoded segment with `..` in it.
    DotDot,
}

/// A request target, split but not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// `*`: the server as a whole (`OPTIONS *`).
    Asterisk,
    /// Origin form or absolute form.
    Path {
        /// Raw path; starts with `/`.
        path: &'b [u8],
        /// Raw query without its `?`; `None` without a `?`.
        query: Option<&'b [u8]>,
        /// Host and port of an absolute form; they overrule `Host`.
        authority: Option<&'b [u8]>,
    },
}

/// Splits `raw`, the target of a request line.
///
/// # Errors
/// [`TargetError::Form`] or [`TargetError::Fragment`]. CONNECT's `host:port` is
/// [`TargetError::Form`]; route by method first where that matters.
pub fn parse_target(raw: &[u8]) -> Result<Target<'_>, TargetError> {
    if memchr::memchr(b'#', raw).is_some() {
        return Err(TargetError::Fragment);
    }
    if raw == b"*" {
        return Ok(Target::Asterisk);
    }
    if raw.first() == Some(&b'/') {
        return Ok(split_query(raw, None));
    }
    let rest = strip_scheme(raw).ok_or(TargetError::Form)?;
    let authority_end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (authority, path) = rest
        .split_at_checked(authority_end)
        .ok_or(TargetError::Form)?;
    if authority.is_empty() || !is_host(authority) {
        return Err(TargetError::Form);
    }
    let target = split_query(path, Some(authority));
    Ok(match target {
        // An absolute form without a path means `/` (RFC 3986 section 6.2.3).
        Target::Path {
            path: b"",
            query,
            authority,
        } => Target::Path {
            path: b"/",
            query,
            authority,
        },
        target => target,
    })
}

fn strip_scheme(raw: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"]
        .into_iter()
        .find_map(|scheme| {
            let (start, rest) = raw.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        })
}

fn split_query<'b>(raw: &'b [u8], authority: Option<&'b [u8]>) -> Target<'b> {
    let (path, query) = split_once(raw, b'?');
    Target::Path {
        path,
        query,
        authority,
    }
}

/// What is before and after the first `separator`; `None` without one.
fn split_once(bytes: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(separator, bytes) {
        Some(at) => (
            bytes.get(..at).unwrap_or_default(),
            Some(bytes.get(at.saturating_add(1)..).unwrap_or_default()),
        ),
        None => (bytes, None),
    }
}

/// The decoded segments of a raw path: `/a/b` has two, `/a/` has `a` and an empty one, `/` has
/// one empty one. A leading `/` is dropped; a path without one has its first segment at once.
pub fn segments(path: &[u8]) -> impl Iterator<Item = Result<Cow<'_, str>, TargetError>> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.split(|&byte| byte == b'/').map(decode_segment)
}

/// Decodes one raw segment, once.
///
/// # Errors
/// Every [`TargetError`] but the two of [`parse_target`].
pub fn decode_segment(raw: &[u8]) -> Result<Cow<'_, str>, TargetError> {
    let segment = decode(raw, false)?;
    let bytes = segment.as_bytes();
    if memchr::memchr(0, bytes).is_some() {
        return Err(TargetError::Nul);
    }
    if memchr::memchr(b'/', bytes).is_some() {
        return Err(TargetError::Slash);
    }
    if bytes.windows(2).any(|pair| pair == b"..") {
        return Err(TargetError::DotDot);
    }
    Ok(segment)
}

/// The decoded key-value pairs of a raw query, in order. Empty pairs (`a=1&&b=2`) are passed
/// over; a pair without `=` has an empty value; `+` is a space in values. Repeated keys are the
/// caller's to judge.
pub fn query_pairs(
    query: &[u8],
) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), TargetError>> {
    query
        .split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = split_once(pair, b'=');
            Ok((
                decode(key, false)?,
                decode(value.unwrap_or_default(), true)?,
            ))
        })
}

/// Percent-decodes `raw` once.
fn decode(raw: &[u8], plus_is_space: bool) -> Result<Cow<'_, str>, TargetError> {
    let is_coded = |&byte: &u8| byte == b'%' || (plus_is_space && byte == b'+');
    let Some(plain) = raw.iter().position(is_coded) else {
        return str::from_utf8(raw)
            .map(Cow::Borrowed)
            .map_err(|_| TargetError::Utf8);
    };
    let mut decoded = Vec::with_capacity(raw.len());
    decoded.extend_from_slice(raw.get(..plain).unwrap_or_default());
    let mut bytes = raw.get(plain..).unwrap_or_default().iter();
    while let Some(&byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = bytes.next().and_then(|&digit| hex_digit(digit));
                let low = bytes.next().and_then(|&digit| hex_digit(digit));
                let (Some(high), Some(low)) = (high, low) else {
                    return Err(TargetError::Escape);
                };
                (high << 4) | low
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(decoded)
        .map(Cow::Owned)
        .map_err(|_| TargetError::Utf8)
}

/// The value of a hexadecimal digit of either case.
pub(crate) fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a').wrapping_add(10)),
        b'A'..=b'F' => Some(digit.wrapping_sub(b'A').wrapping_add(10)),
        _ => None,
    }
}

/// Appends `segment` so that [`decode_segment`] gives it back: unreserved characters and those
/// that need no escape in a path stay (RFC 3986 section 3.3). For `Location`.
pub fn push_segment(out: &mut Vec<u8>, segment: &str) {
    for &byte in segment.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            out.push(b'%');
            out.extend_from_slice(&hex_digits(byte).map(|digit| digit.to_ascii_uppercase()));
        }
    }
}
