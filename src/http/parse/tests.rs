//! Heads that are taken, heads that are refused, and that neither depends on how bytes arrive.

use super::{Framing, Head, HeadLimits, HeadParser, Lookup, Method, Parsed, Refusal, parse_head};
use crate::base::limits::{HEADERS_MAX, Limits};
use crate::base::rng::Rng;

const TYPICAL: &[u8] = b"POST /v1/stream/demo/hello?offset=-1 HTTP/1.1\r\nHost: 127.0.0.1:4437\r\n\
    User-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n";

/// Heads that are taken.
const TAKEN: &[&[u8]] = &[
    TYPICAL,
    b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET http://example.com:80/path HTTP/1.1\r\nHost: example.com\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"PATCH /x HTTP/1.1\r\nHost: a\r\nX-Odd: \t caf\xe9 \t\r\nX-Empty:\r\nX-Space: \t\r\n\r\n",
    b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue\r\n\r\n",
    b"PUT /\xc3\xa9 HTTP/1.1\r\nHost: [::1]:8080\r\nContent-Length: 18446744073709551615\r\n\r\n",
];

fn limits() -> HeadLimits {
    HeadLimits::from(&Limits::default())
}

fn complete(buf: &[u8]) -> Head {
    match parse_head(buf, &limits()) {
        Parsed::Complete(head) => head,
        other => panic!("{}: {other:?}", buf.escape_ascii()),
    }
}

/// A request of HTTP/1.1 with these field lines besides its Host.
fn with_fields(fields: &str) -> Vec<u8> {
    format!("POST /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes()
}

#[test]
fn a_typical_head_is_read_in_place() {
    let mut buf = TYPICAL.to_vec();
    buf.extend_from_slice(b"hello");
    let head = complete(&buf);
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.version_minor, 1);
    assert_eq!(head.target(&buf), b"/v1/stream/demo/hello?offset=-1");
    assert_eq!(head.framing, Framing::Length(5));
    assert!(head.keep_alive);
    assert!(!head.expect_continue);
    assert_eq!(head.consumed, TYPICAL.len());
    let fields: Vec<_> = head.headers(&buf).collect();
    assert_eq!(fields.len(), 5);
    assert_eq!(fields[1], (&b"User-Agent"[..], &b"curl/8.5.0"[..]));
    assert_eq!(head.find(&buf, "content-type"), Lookup::Once(b"text/plain"));
    assert_eq!(head.find(&buf, "stream-seq"), Lookup::Absent);
}

#[test]
fn values_lose_the_white_space_around_them_and_nothing_else() {
    let buf = with_fields("A: \t b \tc\t \r\nEmpty:\r\nBlank: \t \r\na: second\r\n");
    let head = complete(&buf);
    let values: Vec<_> = head.headers(&buf).map(|(_, value)| value).collect();
    assert_eq!(values, [&b"a"[..], b"b \tc", b"", b"", b"second"]);
    assert_eq!(head.find(&buf, "a"), Lookup::Repeated);
    assert_eq!(head.find(&buf, "empty"), Lookup::Once(b""));
}

#[test]
fn every_truncation_is_incomplete() {
    for &buf in TAKEN {
        let whole = complete(buf);
        let mut parser = HeadParser::default();
        let mut head = Head::default();
        for length in 0..buf.len() {
            let prefix = &buf[..length];
            assert_eq!(
                parse_head(prefix, &limits()),
                Parsed::Incomplete,
                "{}",
                prefix.escape_ascii()
            );
            assert_eq!(parser.parse(prefix, &limits(), &mut head), Ok(false));
        }
        assert_eq!(parser.parse(buf, &limits(), &mut head), Ok(true));
        assert_eq!(head, whole);
    }
}

#[test]
fn the_connection_lives_on_as_the_client_says() {
    for (request, keep_alive) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, CLOSE ,y\r\n\r\n",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: closed\r\n\r\n",
            true,
        ),
        ("GET / HTTP/1.0\r\n\r\n", false),
        ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
        (
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
            false,
        ),
    ] {
        assert_eq!(
            complete(request.as_bytes()).keep_alive,
            keep_alive,
            "{request}"
        );
    }
}

#[test]
fn a_100_is_expected_on_http_1_1_alone() {
    let head = complete(&with_fields(
        "Expect: 100-CONTINUE\r\nContent-Length: 1\r\n",
    ));
    assert!(head.expect_continue);
    let old = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    assert!(!complete(old).expect_continue);
}

/// Everything here is refused, and the rest of the connection with it: cases/http.md 1, and the
/// vectors of issue 1 (HTTP/1.1).
#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let lines = [
        // Both framings, in both orders.
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            Refusal::LENGTH_AND_CODING,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            Refusal::LENGTH_AND_CODING,
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n",
            Refusal::LENGTH_AND_CODING,
        ),
        // More than one length.
        (
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            Refusal::LENGTH,
        ),
        (
            "Content-Length: 5\r\ncontent-length: 5\r\n",
            Refusal::LENGTH,
        ),
        ("Content-Length: 5, 5\r\n", Refusal::LENGTH),
        // What some parser takes for a number.
        ("Content-Length: +10\r\n", Refusal::LENGTH),
        ("Content-Length: -1\r\n", Refusal::LENGTH),
        ("Content-Length: 1_0\r\n", Refusal::LENGTH),
        ("Content-Length: 0x1\r\n", Refusal::LENGTH),
        ("Content-Length: 1 0\r\n", Refusal::LENGTH),
        ("Content-Length: 1.0\r\n", Refusal::LENGTH),
        ("Content-Length:\r\n", Refusal::LENGTH),
        ("Content-Length: \u{661}\r\n", Refusal::LENGTH),
        (
            "Content-Length: 18446744073709551616\r\n",
            Refusal::BODY_TOO_LARGE,
        ),
        (
            "Content-Length: 99999999999999999999999\r\n",
            Refusal::BODY_TOO_LARGE,
        ),
        // What some parser takes for `chunked`.
        ("Transfer-Encoding: xchunked\r\n", Refusal::UNKNOWN_CODING),
        (
            "Transfer-Encoding: \"chunked\"\r\n",
            Refusal::UNKNOWN_CODING,
        ),
        (
            "Transfer-Encoding: chunked;q=1\r\n",
            Refusal::UNKNOWN_CODING,
        ),
        ("Transfer-Encoding: gzip\r\n", Refusal::UNKNOWN_CODING),
        ("Transfer-Encoding: identity\r\n", Refusal::UNKNOWN_CODING),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            Refusal::UNKNOWN_CODING,
        ),
        ("Transfer-Encoding: chunked, chunked\r\n", Refusal::CODING),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Refusal::CODING,
        ),
        ("Transfer-Encoding: chunked, identity\r\n", Refusal::CODING),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            Refusal::CODING,
        ),
        ("Transfer-Encoding: ,chunked\r\n", Refusal::CODING),
        ("Transfer-Encoding:\r\n", Refusal::CODING),
        ("Transfer-Encoding: \u{b}chunked\r\n", Refusal::FIELD_LINE),
        // Field lines that hide a field.
        ("Content-Length : 1\r\n", Refusal::FIELD_LINE),
        ("Content-Length\t: 1\r\n", Refusal::FIELD_LINE),
        (" Content-Length: 1\r\n", Refusal::FIELD_LINE),
        ("X: a\r\n folded\r\n", Refusal::FIELD_LINE),
        ("X: a\r\n\tContent-Length: 1\r\n", Refusal::FIELD_LINE),
        ("Content-Length\r\n", Refusal::FIELD_LINE),
        (": 1\r\n", Refusal::FIELD_LINE),
        ("X: a\0b\r\n", Refusal::FIELD_LINE),
        ("X: a\u{7f}b\r\n", Refusal::FIELD_LINE),
        ("X: a\u{1b}b\r\n", Refusal::FIELD_LINE),
        ("X: a\rContent-Length: 1\r\n", Refusal::FIELD_LINE),
        ("X\u{e9}: a\r\n", Refusal::FIELD_LINE),
        ("X: a\nContent-Length: 1\r\n", Refusal::LINE_END),
        ("X: a\n\r\n", Refusal::LINE_END),
        // Whose request is this?
        ("Host: b\r\n", Refusal::HOST),
        ("Expect: 200-ok\r\n", Refusal::EXPECTATION),
    ];
    for (fields, refusal) in lines {
        let parsed = parse_head(&with_fields(fields), &limits());
        assert_eq!(
            parsed,
            Parsed::Refused(refusal),
            "{}",
            fields.escape_debug()
        );
    }
}

#[test]
fn what_is_no_request_is_refused_at_once() {
    for (request, refusal) in [
        (&b"GET / HTTP/2.0\r\n"[..], Refusal::VERSION),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::VERSION),
        (b"GET / HTTP/0.9\r\n", Refusal::VERSION),
        (b"GET / HTTP/1.2\r\n", Refusal::VERSION),
        (b"GET / HTTP/1.10\r\n", Refusal::REQUEST_LINE),
        (b"GET / http/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET / HTTP/1.1 \r\n", Refusal::REQUEST_LINE),
        (b"GET /\r\n", Refusal::REQUEST_LINE),
        (b"GET\r\n", Refusal::REQUEST_LINE),
        (b"GET  HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET /a b HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET  / HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET /\0 HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET /\x7f HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET /\rX HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"G(T / HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET / HTTP/1.1\n", Refusal::LINE_END),
        (b" ", Refusal::REQUEST_LINE),
        (b"\x16\x03\x01\x02", Refusal::REQUEST_LINE),
        (b"\n", Refusal::LINE_END),
        (b"\r\n\r\n\r\n", Refusal::REQUEST_LINE),
        (b"\rGET / HTTP/1.1\r\n", Refusal::REQUEST_LINE),
        (b"GET / HTTP/1.1\r\n\r\n", Refusal::HOST),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Refusal::HOST),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", Refusal::HOST),
        (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", Refusal::HOST),
        (
            b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
            Refusal::HOST,
        ),
        (
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            Refusal::CODING,
        ),
    ] {
        let parsed = parse_head(request, &limits());
        assert_eq!(
            parsed,
            Parsed::Refused(refusal),
            "{}",
            request.escape_ascii()
        );
    }
}

#[test]
fn limits_hold_to_the_byte() {
    let line = "GET /1234567890 HTTP/1.1";
    let whole = format!("\r\n{line}\r\nHost: a\r\n\r\n");
    let with = |request_line_bytes_max, head_bytes_max| {
        let limits = HeadLimits {
            request_line_bytes_max,
            head_bytes_max,
        };
        match parse_head(whole.as_bytes(), &limits) {
            Parsed::Refused(refusal) => Err(refusal),
            other => Ok(other),
        }
    };
    // The empty line before the request line counts for neither.
    let head_bytes = whole.len() - 2;
    assert!(with(line.len(), head_bytes).is_ok());
    assert_eq!(
        with(line.len() - 1, head_bytes),
        Err(Refusal::LINE_TOO_LONG)
    );
    assert_eq!(
        with(line.len(), head_bytes - 1),
        Err(Refusal::HEAD_TOO_LARGE)
    );

    // Known before the line or the head has ended.
    let tight = HeadLimits {
        request_line_bytes_max: 8,
        head_bytes_max: 64,
    };
    let endless = parse_head(b"GET /4567", &tight);
    assert_eq!(endless, Parsed::Refused(Refusal::LINE_TOO_LONG));
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(64));
    let parsed = parse_head(
        endless.as_bytes(),
        &HeadLimits {
            head_bytes_max: 64,
            ..limits()
        },
    );
    assert_eq!(parsed, Parsed::Refused(Refusal::HEAD_TOO_LARGE));
}

#[test]
fn fields_are_counted() {
    let fields = |count: usize| with_fields(&"X: y\r\n".repeat(count - 1));
    assert_eq!(
        complete(&fields(HEADERS_MAX)).headers(&[]).count(),
        HEADERS_MAX
    );
    let parsed = parse_head(&fields(HEADERS_MAX + 1), &limits());
    assert_eq!(parsed, Parsed::Refused(Refusal::HEAD_TOO_LARGE));
}

/// Feeds `buf` in pieces that end at `cuts`, then whole.
fn parse_in_pieces(buf: &[u8], cuts: &[usize], limits: &HeadLimits) -> Parsed {
    let mut parser = HeadParser::default();
    let mut head = Head::default();
    for &cut in cuts.iter().chain([&buf.len()]) {
        match parser.parse(&buf[..cut], limits, &mut head) {
            Ok(true) => return Parsed::Complete(head),
            Ok(false) => {}
            Err(refusal) => return Parsed::Refused(refusal),
        }
    }
    Parsed::Incomplete
}

/// Mutated heads: nothing panics, and no split changes what comes out.
#[test]
fn no_split_changes_the_result() {
    let seed = 0x7468_616c;
    println!("seed {seed}");
    let mut rng = Rng::from_seed(seed);
    let interesting = b"\r\n \t:,\0/%Ae1\x7f\x80";
    for round in 0..20_000 {
        let mut buf = TAKEN[rng.below(TAKEN.len() as u64) as usize].to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(buf.len() as u64) as usize;
            let byte = interesting[rng.below(interesting.len() as u64) as usize];
            match rng.below(3) {
                0 => buf[at] = byte,
                1 => buf.insert(at, byte),
                _ => drop(buf.remove(at)),
            }
        }
        buf.extend_from_slice(TYPICAL);
        let tight = HeadLimits {
            request_line_bytes_max: rng.below(80) as usize,
            head_bytes_max: rng.below(200) as usize,
        };
        for limits in [limits(), tight] {
            let whole = parse_head(&buf, &limits);
            let mut cuts: Vec<_> = (0..rng.below(6))
                .map(|_| rng.below(buf.len() as u64) as usize)
                .collect();
            cuts.sort_unstable();
            assert_eq!(
                parse_in_pieces(&buf, &cuts, &limits),
                whole,
                "seed {seed} round {round} cuts {cuts:?} of {}",
                buf.escape_ascii()
            );
            let bytewise: Vec<_> = (0..buf.len()).collect();
            assert_eq!(
                parse_in_pieces(&buf, &bytewise, &limits),
                whole,
                "round {round}"
            );
        }
    }
}
