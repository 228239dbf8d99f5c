//! Request targets, paths, queries and routes, against a decoder that builds strings.

use std::borrow::Cow;

use thalweg::http::parse::Method;
use thalweg::http::query::{ReadQuery, check_bootstrap};
use thalweg::http::route::{Route, fork_source, route};
use thalweg::http::target::{Target as Parts, parse_target, push_segment, query_pairs, segments};
use thalweg::protocol::stream_key::Surface;

use super::{Target, kind, magnitude, to_vecs};

/// The target.
pub const TARGET: Target = Target {
    name: "target",
    check,
    seeds,
    words: &[
        b"/",
        b"//",
        b"?",
        b"&",
        b"=",
        b"#",
        b"*",
        b"+",
        b".",
        b"..",
        b"%",
        b"%2F",
        b"%2e%2e",
        b"%00",
        b"%25",
        b"%C3%A9",
        b"\xc3\xa9",
        b"%ff",
        b"%ed%a0%80",
        b"http://",
        b"https://h:1",
        b"[::1]",
        b"/v1/stream/",
        b"/demo/s",
        b"__ds",
        b"$",
        b"streams",
        b"/snapshot/",
        b"/parts",
        b"/retention/5",
        b"/bootstrap",
        b"offset=",
        b"-1",
        b"now",
        b"00000000000000000005",
        b"18446744073709551616",
        b"live=sse",
        b"live=long-poll",
        b"cursor=1",
        b"max_bytes=",
        b"timeout_ms=0",
        b"consistency=leader",
        b"record=1",
        b"incarnation=1",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    to_vecs(&[
        b"*",
        b"/",
        b"/demo/hello?offset=-1&live=sse&cursor=5",
        b"/v1/stream/a/b%20c/%C3%A9?offset=now&live=long-poll&timeout_ms=99999999",
        b"http://host:80/v1/stream/x?consistency=leader&max_bytes=10",
        b"http://host?offset=1",
        b"/demo/s/snapshot/00000000000000000005",
        b"/demo/s/snapshot/5/parts",
        b"/demo/s/snapshot/parts",
        b"/demo/s/retention/5",
        b"/demo/s/bootstrap?live=1",
        b"/v1/stream/a..b",
        b"/%2e%2E/x?a=%",
        b"/demo/a%2Fb?a=1+2&a=1%2B2&&=",
    ])
}

fn check(data: &[u8]) -> u64 {
    let split = parse_target(data);
    if let Ok(Parts::Path {
        path,
        query,
        authority,
    }) = &split
    {
        check_forms(data, path, *query, *authority);
        let decoded: Vec<_> = segments(path).map(Result::ok).collect();
        let raw = path[1..].split(|byte| *byte == b'/');
        let expected: Vec<_> = raw.map(plain_segment).collect();
        assert_eq!(decoded, expected);
        for segment in decoded.iter().flatten() {
            let mut raw = Vec::new();
            push_segment(&mut raw, segment);
            let safe = raw.iter().all(|byte| (b'!'..=b'~').contains(byte));
            assert!(safe && !raw.contains(&b'/'));
            let again: Vec<_> = segments(&raw).collect();
            assert_eq!(
                again,
                [Ok(segment.clone())],
                "what is encoded decodes to itself"
            );
        }
        check_query(query.unwrap_or_default());
    }
    let routed = [
        Method::Get,
        Method::Head,
        Method::Put,
        Method::Post,
        Method::Delete,
        Method::Options,
        Method::Other,
    ]
    .map(|method| check_route(method, data));
    // A fork's source is a stream by the same names, or refused.
    if let Ok(key) = fork_source(data) {
        let routed = route(Method::Head, data)
            .expect("it routes by itself")
            .route;
        assert!(matches!(routed, Route::Stream(routed, ..) if routed == key));
    }
    kind((
        split
            .map(|split| matches!(split, Parts::Asterisk))
            .map_err(|e| e as u8),
        routed,
    ))
}

/// Origin form and absolute form name the same thing (cases/http.md 4).
fn check_forms(raw: &[u8], path: &[u8], query: Option<&[u8]>, authority: Option<&[u8]>) {
    assert_eq!(path.first(), Some(&b'/'));
    assert!(!path.contains(&b'?') && !raw.contains(&b'#'));
    let mut origin = path.to_vec();
    if let Some(query) = query {
        origin.push(b'?');
        origin.extend_from_slice(query);
    }
    let parts = |authority| {
        Ok(Parts::Path {
            path,
            query,
            authority,
        })
    };
    assert_eq!(parse_target(&origin), parts(None));
    if authority.is_none() {
        assert_eq!(origin, raw, "nothing is added or lost");
    }
    let absolute = [b"HTTP://h:80", &origin[..]].concat();
    assert_eq!(parse_target(&absolute), parts(Some(b"h:80")));
}

/// The decoded text of a segment, if it is one.
fn plain_segment(raw: &[u8]) -> Option<Cow<'_, str>> {
    let text = plain_decode(raw, false)?;
    let legal = !text.contains(['/', '\0']) && !text.contains("..");
    legal.then_some(Cow::Owned(text))
}

fn plain_decode(raw: &[u8], plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = raw;
    while let [first, behind @ ..] = rest {
        rest = behind;
        match first {
            b'%' => {
                let digits = rest.get(..2)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                let digits = str::from_utf8(digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            b'+' if plus_is_space => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

fn check_query(query: &[u8]) {
    let pairs: Vec<_> = query_pairs(query).map(Result::ok).collect();
    let raw: Vec<&[u8]> = query
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .collect();
    let expected: Vec<_> = raw
        .iter()
        .map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=');
            let (key, value) = equals.map_or((*pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
            let decoded = (plain_decode(key, false)?, plain_decode(value, true)?);
            Some((Cow::Owned(decoded.0), Cow::Owned(decoded.1)))
        })
        .collect();
    assert_eq!(pairs, expected);
    // The order of different parameters means nothing.
    let read = ReadQuery::parse(Some(query));
    let backwards: Vec<&[u8]> = raw.into_iter().rev().collect();
    let backwards = backwards.join(&b'&');
    let again = ReadQuery::parse(Some(&backwards));
    assert_eq!(read.clone().ok(), again.ok());
    assert_eq!(
        check_bootstrap(Some(query)).is_ok(),
        check_bootstrap(Some(&backwards)).is_ok()
    );
    if let Ok(read) = read {
        assert!(
            pairs.iter().all(Option::is_some),
            "taken though malformed: {read:?}"
        );
        assert!(read.timeout_ms.is_none_or(|ms| (1..=60_000).contains(&ms)));
    }
}

/// Where a target goes, it goes by its encoded name too; says which way that was.
fn check_route(method: Method, raw: &[u8]) -> (u8, u32) {
    let routed = match route(method, raw) {
        Ok(routed) => routed.route,
        Err(refusal) => {
            let answer = kind(format!("{refusal:?}").split(['(', '{']).next());
            return (0, (answer % 1000) as u32);
        }
    };
    let (key, prefix, way) = match &routed {
        Route::Preflight => return (1, 0),
        Route::PutBucket => return (2, 0),
        Route::Stream(key, Surface::Base, _) => (key, "/v1/stream", 3),
        Route::Stream(key, Surface::Bucket, _) => (key, "", 4),
        Route::Snapshot(key, ..) => (key, "", 5),
        Route::StagePart(key) => (key, "", 6),
        Route::DiscardParts(key) => (key, "", 7),
        Route::Retention(key, _) => (key, "", 8),
        Route::Bootstrap(key) => (key, "", 9),
    };
    let name = key.as_str();
    assert!(!name.contains("..") && !name.contains('\0'));
    let mut encoded = prefix.as_bytes().to_vec();
    for segment in name.split('/') {
        encoded.push(b'/');
        push_segment(&mut encoded, segment);
    }
    if let Route::Stream(..) = routed {
        let again = route(method, &encoded).expect("its own name routes").route;
        assert_eq!(again, routed);
    }
    // Both surfaces name one store: what the bucket surface names, the base surface does too.
    if prefix.is_empty() {
        let base = [b"/v1/stream", &encoded[..]].concat();
        let again = route(Method::Get, &base).expect("a base name").route;
        assert!(matches!(again, Route::Stream(again, Surface::Base, _) if again == *key));
    }
    (way, magnitude(name.len()))
}
