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

use crate::base::hex;
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
            out.extend_from_slice(&hex::digits(byte).map(|digit| digit.to_ascii_uppercase()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn path<'b>(path: &'b [u8], query: Option<&'b [u8]>) -> Result<Target<'b>, TargetError> {
        Ok(Target::Path {
            path,
            query,
            authority: None,
        })
    }

    #[test]
    fn origin_form() {
        assert_eq!(parse_target(b"/"), path(b"/", None));
        assert_eq!(parse_target(b"/a/b?c=d?e"), path(b"/a/b", Some(b"c=d?e")));
        assert_eq!(parse_target(b"/a?"), path(b"/a", Some(b"")));
        assert_eq!(parse_target(b"//a"), path(b"//a", None));
        assert_eq!(parse_target(b"*"), Ok(Target::Asterisk));
    }

    /// cases/http.md 4.
    #[test]
    fn absolute_form_is_the_same_path() {
        for (raw, expected) in [
            (&b"http://host/a/b?c"[..], path(b"/a/b", Some(b"c"))),
            (b"HTTP://127.0.0.1:4437/a", path(b"/a", None)),
            (b"https://[::1]/a", path(b"/a", None)),
            (b"http://host", path(b"/", None)),
            (b"http://host?c", path(b"/", Some(b"c"))),
        ] {
            let parsed = parse_target(raw).map(|target| match target {
                Target::Path {
                    path,
                    query,
                    authority,
                } => {
                    assert!(authority.is_some_and(|authority| !authority.is_empty()));
                    Target::Path {
                        path,
                        query,
                        authority: None,
                    }
                }
                target => target,
            });
            assert_eq!(parsed, expected, "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn no_target() {
        for raw in [
            "",
            "a",
            "host:80",
            "http:///a",
            "http://u@host/a",
            "ftp://host/a",
            "**",
        ] {
            assert_eq!(
                parse_target(raw.as_bytes()),
                Err(TargetError::Form),
                "{raw}"
            );
        }
        assert_eq!(parse_target(b"/a#b"), Err(TargetError::Fragment));
        assert_eq!(parse_target(b"http://host#b"), Err(TargetError::Fragment));
    }

    fn split(path: &[u8]) -> Result<Vec<String>, TargetError> {
        segments(path)
            .map(|segment| segment.map(Cow::into_owned))
            .collect()
    }

    #[test]
    fn segments_are_split_then_decoded_once() {
        for (raw, expected) in [
            (&b"/"[..], &[""][..]),
            (b"/a/b", &["a", "b"]),
            (b"/a//b/", &["a", "", "b", ""]),
            (b"/%61%2B+", &["a++"]),
            (b"/%252F", &["%2F"]),
            (b"/%C3%a9/\xc3\xa9", &["\u{e9}", "\u{e9}"]),
            (b"/./a.b.c", &[".", "a.b.c"]),
            (b"/a%3Fb%23", &["a?b#"]),
        ] {
            assert_eq!(split(raw).unwrap(), expected, "{}", raw.escape_ascii());
        }
        assert!(matches!(
            decode_segment(b"plain"),
            Ok(Cow::Borrowed("plain"))
        ));
    }

    #[test]
    fn segments_that_are_none() {
        for (raw, error) in [
            (&b"/a%2Fb"[..], TargetError::Slash),
            (b"/a/..", TargetError::DotDot),
            (b"/%2e%2E/x", TargetError::DotDot),
            (b"/a..b", TargetError::DotDot),
            (b"/%00", TargetError::Nul),
            (b"/%", TargetError::Escape),
            (b"/%4", TargetError::Escape),
            (b"/%4/a", TargetError::Escape),
            (b"/%zz", TargetError::Escape),
            (b"/%+1", TargetError::Escape),
            (b"/%ff", TargetError::Utf8),
            (b"/%c3/%a9", TargetError::Utf8),
            (b"/%ed%a0%80", TargetError::Utf8),
            (b"/%c0%af", TargetError::Utf8),
            (b"/\xff", TargetError::Utf8),
        ] {
            assert_eq!(split(raw), Err(error), "{}", raw.escape_ascii());
        }
    }

    fn pairs(query: &str) -> Result<Vec<(String, String)>, TargetError> {
        query_pairs(query.as_bytes())
            .map(|pair| pair.map(|(key, value)| (key.into_owned(), value.into_owned())))
            .collect()
    }

    #[test]
    fn queries() {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        };
        for (query, expected) in [
            ("", &[][..]),
            ("&&", &[]),
            ("offset=-1&live=sse", &[("offset", "-1"), ("live", "sse")]),
            ("a=1&a=2", &[("a", "1"), ("a", "2")]),
            ("a", &[("a", "")]),
            ("=b", &[("", "b")]),
            ("a=b=c", &[("a", "b=c")]),
            ("a=1+2%2B3", &[("a", "1 2+3")]),
            ("%6Fffset=%2541", &[("offset", "%41")]),
            ("a=x%26y%3Dz", &[("a", "x&y=z")]),
        ] {
            assert_eq!(pairs(query).unwrap(), owned(expected), "{query}");
        }
        assert_eq!(pairs("a=%"), Err(TargetError::Escape));
        assert_eq!(pairs("%ff=1"), Err(TargetError::Utf8));
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        let mut out = Vec::new();
        push_segment(&mut out, "a b/\u{e9}%\r\n~@");
        assert_eq!(out.escape_ascii().to_string(), "a%20b%2F%C3%A9%25%0D%0A~@");

        let seed = 0x7468_616e;
        println!("seed {seed}");
        let mut rng = Rng::from_seed(seed);
        for _ in 0..10_000 {
            let text: String = (0..rng.below(8))
                .filter_map(|_| char::from_u32(rng.below(0x250) as u32))
                .filter(|&c| c != '\0' && c != '/')
                .collect::<String>()
                .replace("..", ".");
            let mut raw = Vec::new();
            push_segment(&mut raw, &text);
            assert!(raw.is_ascii());
            assert_eq!(decode_segment(&raw).unwrap(), text);
        }
    }

    /// Nothing panics, whatever the bytes, and what comes out has nothing forbidden in it.
    #[test]
    fn random_targets() {
        let seed = 0x7468_616f;
        println!("seed {seed}");
        let mut rng = Rng::from_seed(seed);
        let alphabet = b"/%?#&=+.*:@02Fefah\xc3\xa9\xff\0";
        for _ in 0..50_000 {
            let raw: Vec<u8> = (0..rng.below(24))
                .map(|_| alphabet[rng.below(alphabet.len() as u64) as usize])
                .collect();
            let Ok(Target::Path { path, query, .. }) = parse_target(&raw) else {
                continue;
            };
            assert_eq!(path.first(), Some(&b'/'));
            for segment in segments(path).flatten() {
                assert!(!segment.contains(['/', '\0']) && !segment.contains(".."));
            }
            let _ = query_pairs(query.unwrap_or_default()).count();
        }
    }
}
