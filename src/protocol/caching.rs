//! ETags, `If-None-Match` and `Cache-Control` of stream reads (base protocol
//! 10.1; decisions, Tokens).

use std::borrow::Cow;

use crate::{
    base::{hex, time::Clock},
    protocol::{error::NumberBuffer, expiry::Lifetime, incarnation::Incarnation, read::Window},
};

/// `Cache-Control` of what must not be stored.
pub const NO_STORE: &str = "no-store";

/// The entity tag of a read, quotes included.
///
/// It varies with the incarnation, the range, closure, and whether the range reached the tail: a
/// full chunk that stops being the tail must not be answered 304 from a cached up-to-date one.
#[must_use]
pub fn etag(incarnation: Incarnation, window: &Window) -> Vec<u8> {
    let mut tag = Vec::with_capacity(64);
    let mut digits = NumberBuffer::default();
    tag.push(b'"');
    hex::push(&mut tag, incarnation.0);
    for offset in [window.start, window.end] {
        tag.push(b'-');
        tag.extend_from_slice(digits.write(offset));
    }
    if window.is_up_to_date() {
        tag.extend_from_slice(b"-u");
    }
    if window.is_final() {
        tag.extend_from_slice(b"-c");
    }
    tag.push(b'"');
    tag
}

/// Whether an `If-None-Match` value names what has `etag`: in a list, weakly, or as `*`, which
/// names whatever is there (RFC 9110 13.1.2).
#[must_use]
pub fn if_none_match(value: &[u8], etag: &[u8]) -> bool {
    // Tags may hold commas, ours never do: a piece of another one never looks like one of ours.
    is_any(value)
        || value.split(|byte| *byte == b',').any(|candidate| {
            let candidate = candidate.trim_ascii();
            candidate.strip_prefix(b"W/").unwrap_or(candidate) == etag
        })
}

/// Whether an `If-None-Match` value is `*`: true of nothing but what is not there.
#[must_use]
pub fn is_any(value: &[u8]) -> bool {
    value.trim_ascii() == b"*"
}

/// `Cache-Control` of a catch-up read on the base surface: never fresh for longer than the stream
/// is sure to live. Looks at the clock only if that matters.
#[must_use]
pub fn cache_control(lifetime: Lifetime, renewed_ms: u64, clock: &dyn Clock) -> Cow<'static, str> {
    let left_s = lifetime
        .expires_ms(renewed_ms)
        .map_or(60, |end| end.saturating_sub(clock.now_ms()) / 1000);
    match left_s {
        60.. => Cow::Borrowed("public, max-age=60, stale-while-revalidate=300"),
        left => format!("public, max-age={left}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::ManualClock;

    fn window(start: u64, end: u64, tail: u64, closed: bool) -> Window {
        Window {
            start,
            end,
            tail,
            closed,
        }
    }

    #[test]
    fn tags_vary_with_everything_a_reader_must_not_miss() {
        let base = etag(Incarnation(255), &window(0, 8, 8, false));
        assert_eq!(base, b"\"ff-0-8-u\"");
        for other in [
            etag(Incarnation(254), &window(0, 8, 8, false)),
            etag(Incarnation(255), &window(0, 8, 9, false)),
            etag(Incarnation(255), &window(0, 8, 8, true)),
            etag(Incarnation(255), &window(1, 8, 8, false)),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn lists_and_weak_forms_match() {
        assert!(if_none_match(b"\"a\"", b"\"a\""));
        assert!(if_none_match(b"W/\"a\"", b"\"a\""));
        assert!(if_none_match(b"\"x\", W/\"a\" ,\"b\"", b"\"a\""));
        assert!(if_none_match(b"*", b"\"a\""));
        assert!(if_none_match(b" * ", b"\"a\""));
        assert!(!if_none_match(b"\"*\"", b"\"a\""));
        assert!(!if_none_match(b"*, \"b\"", b"\"a\""));
        // A tag may hold any byte from 0x80 on.
        assert!(if_none_match(b"\"\xff\", \"a\"", b"\"a\""));
        assert!(!if_none_match(b"\"b\"", b"\"a\""));
    }

    #[test]
    fn nothing_is_fresh_past_its_expiry() {
        let cache_control = |lifetime, renewed_ms, now_ms| {
            super::cache_control(lifetime, renewed_ms, &ManualClock::new(now_ms))
        };
        let at = Lifetime::ExpiresAt { unix_ms: 10_000 };
        assert_eq!(cache_control(at, 0, 3_000), "public, max-age=7");
        assert_eq!(
            cache_control(Lifetime::Unlimited, 0, 3_000),
            "public, max-age=60, stale-while-revalidate=300"
        );
        // Renewed before the clock was set back, or forward past its end.
        let ttl = Lifetime::Ttl { seconds: 60 };
        assert_eq!(
            cache_control(ttl, 3_600_000, 0),
            "public, max-age=60, stale-while-revalidate=300"
        );
        assert_eq!(cache_control(ttl, 0, 3_600_000), "public, max-age=0");
    }
}
