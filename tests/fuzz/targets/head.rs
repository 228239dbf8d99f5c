//! Request heads, against a parser that knows the rules and no tricks.

use thalweg::base::limits::{HEADERS_MAX, Limits};
use thalweg::http::parse::{Framing, Head, HeadLimits, HeadParser, Method, Parsed, parse_head};

use super::{Target, chance, cuts, kind, magnitude, pipeline, to_vecs};

/// The target.
pub const HEAD: Target = Target {
    name: "head",
    check,
    seeds,
    words: &[
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b",",
        b"\0",
        b"\x7f",
        b"\x80",
        b"GET ",
        b"HEAD ",
        b"PUT ",
        b"POST ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"/",
        b"*",
        b"http://h/",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b" HTTP/2.0\r\n",
        b"Host: h\r\n",
        b"host:\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"chunked",
        b"identity",
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Expect: 100-continue\r\n",
        b"A: b\r\n",
        b"A:\r\n",
        b" folded\r\n",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = to_vecs(&[
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\r\n\r\nPOST /a/b?c=d HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 5\r\n\r\nhello",
        b"PUT http://h/x HTTP/1.1\r\nhost:h\r\nTransfer-Encoding:\tchunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"DELETE /x HTTP/1.0\r\nConnection: keep-alive, x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost:\r\nExpect: 100-Continue\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        // A refused body that a client asked about first, and that has begun or not.
        b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 51616\r\n\r\nabc",
        b"HEAD /c HTTP/1.1\r\nHost: h\r\n\r\n\r\nGET /d HTTP/1.1\r\nHost: h\r\nX: \xe9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ]);
    let many = |count: usize| {
        let fields = "A: b\r\n".repeat(count);
        format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes()
    };
    seeds.extend([many(HEADERS_MAX - 1), many(HEADERS_MAX)]);
    seeds
}

fn check(data: &[u8]) -> u64 {
    let mut rng = chance(data);
    let tight = HeadLimits {
        request_line_bytes_max: 40,
        head_bytes_max: 120,
    };
    let usual = HeadLimits::from(&Limits::default());
    let mut kinds = Vec::new();
    for limits in [usual, tight] {
        let whole = parse_head(data, &limits);
        let cuts = cuts(&mut rng, data.len());
        assert_eq!(in_pieces(data, &limits, &cuts), whole, "cut at {cuts:?}");
        match &whole {
            Parsed::Complete(head) => {
                let length = head.consumed as u64;
                for _ in 0..8 {
                    let prefix = &data[..rng.below(length) as usize];
                    assert_eq!(parse_head(prefix, &limits), Parsed::Incomplete);
                }
                // What lies behind a head has no say in it.
                let alone = parse_head(&data[..head.consumed], &limits);
                assert_eq!(alone, whole);
            }
            Parsed::Refused(_) => {
                let longer = [data, b"\r\n\r\n"].concat();
                assert_eq!(parse_head(&longer, &limits), whole, "a refusal is final");
            }
            Parsed::Incomplete => {}
        }
        let expected = plain(data, &limits);
        match (&whole, expected) {
            (Parsed::Complete(head), Some(expected)) => assert_eq!(seen(head, data), expected),
            (Parsed::Complete(head), None) => panic!("taken: {head:?}"),
            (_, Some(expected)) => panic!("{whole:?}, not taken: {expected:?}"),
            (_, None) => {}
        }
        kinds.push(match whole {
            Parsed::Complete(head) => {
                let fields = magnitude(head.headers(data).count());
                let framing = std::mem::discriminant(&head.framing);
                kind((
                    head.method as u8,
                    head.keep_alive,
                    head.expect_continue,
                    framing,
                    fields,
                ))
            }
            Parsed::Incomplete => magnitude(data.len()).into(),
            Parsed::Refused(refusal) => kind((refusal.status, refusal.message)),
        });
    }
    let seen = pipeline::check(data, &mut rng);
    kind((
        kinds,
        seen.iter().map(pipeline::Seen::kind).collect::<Vec<_>>(),
    ))
}

fn in_pieces(data: &[u8], limits: &HeadLimits, cuts: &[usize]) -> Parsed {
    let (mut parser, mut head) = (HeadParser::default(), Head::default());
    for cut in cuts {
        match parser.parse(&data[..*cut], limits, &mut head) {
            Ok(false) => {}
            Ok(true) => return Parsed::Complete(head),
            Err(refusal) => return Parsed::Refused(refusal),
        }
    }
    Parsed::Incomplete
}

/// Everything that a head says.
#[derive(Debug, PartialEq, Eq)]
struct Seen<'b> {
    method: Method,
    target: &'b [u8],
    version_minor: u8,
    fields: Vec<(&'b [u8], &'b [u8])>,
    framing: Framing,
    keep_alive: bool,
    expect_continue: bool,
    consumed: usize,
}

fn seen<'b>(head: &Head, data: &'b [u8]) -> Seen<'b> {
    Seen {
        method: head.method,
        target: head.target(data),
        version_minor: head.version_minor,
        fields: head.headers(data).collect(),
        framing: head.framing,
        keep_alive: head.keep_alive,
        expect_continue: head.expect_continue,
        consumed: head.consumed,
    }
}

/// The head that `data` begins with, if it is one that must be taken.
fn plain<'b>(data: &'b [u8], limits: &HeadLimits) -> Option<Seen<'b>> {
    let start = match data {
        [b'\r', b'\n', b'\r', b'\n', ..] => 4,
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    let end = data[start..]
        .windows(4)
        .position(|four| four == b"\r\n\r\n")?;
    let consumed = start + end + 4;
    let mut lines = lines(&data[start..start + end])?;
    let line = lines.remove(0);
    let line_max = limits.request_line_bytes_max.min(limits.head_bytes_max);
    if line.len() > line_max || consumed - start > limits.head_bytes_max {
        return None;
    }
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else {
        return None;
    };
    let version_minor = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return None,
    };
    let seemly = target.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    if target.is_empty() || !seemly || !is_token(method) {
        return None;
    }
    let fields: Vec<_> = lines.into_iter().map(field).collect::<Option<_>>()?;
    if fields.len() > HEADERS_MAX {
        return None;
    }
    let values = |wanted: &str| -> Vec<&[u8]> {
        let named = |(name, _): &&(&[u8], &[u8])| name.eq_ignore_ascii_case(wanted.as_bytes());
        fields
            .iter()
            .filter(named)
            .map(|(_, value)| *value)
            .collect()
    };
    match values("host")[..] {
        [] if version_minor == 0 => {}
        [host] if host.iter().all(|byte| is_host(*byte)) => {}
        _ => return None,
    }
    let framing = match (
        &values("content-length")[..],
        &values("transfer-encoding")[..],
    ) {
        ([], []) => Framing::None,
        ([length], []) if length.iter().all(u8::is_ascii_digit) => {
            Framing::Length(str::from_utf8(length).ok()?.parse().ok()?)
        }
        ([], [coding]) if version_minor == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Framing::Chunked
        }
        _ => return None,
    };
    let expected = values("expect");
    if expected
        .iter()
        .any(|value| !value.eq_ignore_ascii_case(b"100-continue"))
    {
        return None;
    }
    let options: Vec<String> = values("connection")
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|option| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase())
        .collect();
    let says = |option: &str| options.iter().any(|said| said == option);
    Some(Seen {
        method: match method {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"PUT" => Method::Put,
            b"POST" => Method::Post,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"PATCH" | b"TRACE" | b"CONNECT" | b"QUERY" => Method::Unserved,
            _ => Method::Other,
        },
        target,
        version_minor,
        framing,
        keep_alive: !says("close") && (version_minor == 1 || says("keep-alive")),
        expect_continue: !expected.is_empty() && version_minor == 1,
        fields,
        consumed,
    })
}

/// The lines of `text`, which are parted by CR LF and hold neither.
fn lines(text: &[u8]) -> Option<Vec<&[u8]>> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    lines.push(rest);
    let bare = |line: &&[u8]| line.contains(&b'\r') || line.contains(&b'\n');
    (!lines.iter().any(bare)).then_some(lines)
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let legal = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    (is_token(name) && value.iter().all(legal)).then(|| (name, trim(value)))
}

/// Without the spaces and tabs around it.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_token(text: &[u8]) -> bool {
    let legal = |byte: &u8| {
        matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(byte)
    };
    !text.is_empty() && text.iter().all(legal)
}

fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}
