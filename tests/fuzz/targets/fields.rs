//! The values of request fields that the protocol gives a meaning.
//!
//! Input: one value, tried as each of them.

use thalweg::base::limits::JS_INTEGER_MAX;
use thalweg::base::time::{format_rfc3339, parse_rfc3339};
use thalweg::http::headers::{Field, Headers};
use thalweg::protocol::content_type::ContentType;
use thalweg::protocol::cursor::{cursor, of_client};
use thalweg::protocol::expiry::{TTL_S_MAX, parse_ttl};
use thalweg::protocol::fork::{parse_offset, parse_sub_offset};
use thalweg::protocol::incarnation::Incarnation;
use thalweg::protocol::producer::{ProducerWrite, parse_digest};
use thalweg::protocol::snapshot::{hex, parse_manifest, parse_parts_count};

use super::{Target, kind, to_vecs};

/// The target.
pub const FIELDS: Target = Target {
    name: "fields",
    seeds,
    words: &[
        b"0",
        b"1",
        b"9",
        b"+",
        b"-",
        b".",
        b"e",
        b"_",
        b"/",
        b";",
        b"=",
        b"\n",
        b" ",
        b"Z",
        b"T",
        b":",
        b"application/json",
        b"text/",
        b"charset",
        b"\xc3\xa9",
        b"\0",
        b"-00:00",
        b"59",
        b"99999999999999999999",
        b"a",
        b"f",
    ],
    check,
};

/// A decimal as text functions read it.
fn decimal(input: &[u8]) -> Option<u64> {
    let legal = input.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(input)
        .ok()?
        .parse()
        .ok()
        .filter(|_| legal)
}

fn seeds() -> Vec<Vec<u8>> {
    to_vecs(&[
        b"60",
        b"18446744073709551615",
        b"9007199254740991",
        b"060",
        b"2099-01-02T03:04:05.678+01:00",
        b"2024-02-30T24:00:60Z",
        b"application/json; charset=utf-8",
        b"text/",
        b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        b"part-1\npart-2\n",
        b"0000000000000000_0000000000000000",
        b"true",
    ])
}

fn check(input: &[u8]) -> u64 {
    let number = decimal(input);
    let canonical = number.filter(|number| number.to_string().as_bytes() == input);

    let ttl = canonical.filter(|&seconds| seconds <= TTL_S_MAX);
    assert_eq!(parse_ttl(input).ok(), ttl);
    let token = canonical.filter(|token| (1..=JS_INTEGER_MAX).contains(token));
    assert_eq!(Incarnation::parse(input).ok(), token.map(Incarnation));
    assert_eq!(parse_sub_offset(input).ok(), canonical);
    let offset = number.filter(|_| input.len() <= 20);
    let foreign = (input == b"0000000000000000_0000000000000000").then_some(0);
    assert_eq!(parse_offset(input).ok(), offset.or(foreign));
    let count = canonical.filter(|count| (1..=4096).contains(count));
    assert_eq!(
        parse_parts_count(input).ok(),
        count.map(|count| count as usize)
    );

    let digest = parse_digest(input);
    let hexadecimal = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    assert_eq!(
        digest.is_some(),
        input.len() == 64 && input.iter().all(hexadecimal)
    );
    if let Some(digest) = digest {
        assert_eq!(hex(&digest), input);
    }

    let now_ms = 1_900_000_000_000;
    let own = cursor(now_ms, None, 7);
    let next = cursor(now_ms, of_client(input), 7);
    match number.filter(|&client| client < JS_INTEGER_MAX && client >= own) {
        Some(client) => assert!(next > client, "a cursor moves on"),
        None => assert_eq!(next, own),
    }

    check_producer(input);
    check_headers(input);
    kind((
        [number, ttl, offset, canonical].map(|number| number.map(|number| number.checked_ilog2())),
        digest.is_some(),
        check_content_type(input),
        check_time(input),
        check_manifest(input),
    ))
}

fn check_content_type(input: &[u8]) -> bool {
    let Some(parsed) = ContentType::parse(input) else {
        return false;
    };
    assert_eq!(parsed.as_str().as_bytes(), input);
    assert!(
        !input
            .iter()
            .any(|&byte| (byte < b' ' && byte != b'\t') || byte >= 0x7f)
    );
    assert!(parsed.matches(&parsed));
    let shouted = ContentType::parse(&input.to_ascii_uppercase()).expect("case means nothing");
    assert!(parsed.matches(&shouted) && shouted.matches(&parsed));
    assert_eq!(parsed.kind(), shouted.kind());
    true
}

fn check_time(input: &[u8]) -> bool {
    let text = std::str::from_utf8(input);
    let unix_ms = text.ok().and_then(parse_rfc3339);
    if let (Ok(text), Some(unix_ms)) = (text, unix_ms) {
        assert!(text.len() >= "2099-01-02T03:04:05Z".len() && text.is_ascii());
        assert_eq!(parse_rfc3339(&format_rfc3339(unix_ms)), Some(unix_ms));
    }
    unix_ms.is_some()
}

fn check_producer(input: &[u8]) {
    let integer = decimal(input).filter(|&integer| integer <= JS_INTEGER_MAX);
    for place in 0..3 {
        let mut fields = [&b"1"[..]; 3];
        fields[place] = input;
        let [id, epoch, seq] = fields;
        let parsed = ProducerWrite::parse(Some(id), Some(epoch), Some(seq), None);
        let legal_id = (1..=256).contains(&id.len()) && std::str::from_utf8(id).is_ok();
        let legal = if place == 0 {
            legal_id
        } else {
            integer.is_some()
        };
        assert_eq!(parsed.is_ok(), legal);
        let Ok(Some(parsed)) = parsed else { continue };
        assert_eq!(parsed.id.as_bytes(), id);
        assert_eq!(Some(parsed.epoch), decimal(epoch));
        assert_eq!(Some(parsed.seq), decimal(seq));
    }
    assert!(ProducerWrite::parse(Some(input), None, None, None).is_err());
}

fn check_manifest(input: &[u8]) -> usize {
    let lines = input.iter().filter(|&&byte| byte == b'\n').count();
    let Ok(ids) = parse_manifest(lines.to_string().as_bytes(), input) else {
        return 0;
    };
    let again: String = ids.iter().map(|id| format!("{id}\n")).collect();
    assert_eq!(again.as_bytes(), input);
    assert!(ids.iter().all(|id| (1..=64).contains(&id.len())));
    ids.len()
}

fn check_headers(input: &[u8]) {
    let once =
        Headers::collect([(&b"STREAM-SEQ"[..], input), (b"stream-closed", input)].into_iter());
    let visible = |byte: &u8| (0x20..=0x7e).contains(byte);
    let legal = (1..=256).contains(&input.len()) && input.iter().all(visible);
    let seq = once.stream_seq();
    assert_eq!(seq.is_ok(), legal);
    if let Ok(seq) = seq {
        assert_eq!(seq.as_deref().map(str::as_bytes), Some(input));
    }
    assert_eq!(
        once.stream_closed(),
        Ok(input.eq_ignore_ascii_case(b"true"))
    );
    let twice = Headers::collect([(&b"host"[..], input), (b"Host", input)].into_iter());
    assert!(twice.once(Field::Host).is_err() && twice.single(Field::Host).is_none());
    // A name that is not known is passed over, whatever it is.
    let known = Headers::collect([(input, &b"1"[..])].into_iter()).once(Field::StreamTtl);
    assert_eq!(
        known == Ok(Some(b"1")),
        input.eq_ignore_ascii_case(b"stream-ttl")
    );
}
