//! Request bodies, chunked and of a length, against a decoder of whole inputs.
//!
//! The first byte of an input says the framing, the second the limit, the rest is the body.

use thalweg::base::limits::{CHUNK_EXTENSION_BYTES_MAX, TRAILER_BYTES_MAX};
use thalweg::http::body::{BodyDecoder, BodyError};
use thalweg::http::encode::{chunk, last_chunk};
use thalweg::http::parse::Framing;

use super::{Target, chance, cuts, kind, magnitude, pipeline};

/// The target.
pub const BODY: Target = Target {
    name: "body",
    check,
    seeds,
    words: &[
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b";",
        b" ",
        b"\t",
        b"0\r\n",
        b"0\r\n\r\n",
        b"1\r\na\r\n",
        b"5\r\nhello\r\n",
        b"a;b=\"c\"\r\n",
        b"A: b\r\n",
        b":",
        b"FFFFFFFFFFFFFFFF",
        b"80000000",
        b"00000000000000001",
        b"0x",
        b"+1",
        b"\0",
        b"\x7f",
        b"\x80",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    let chunked: [&[u8]; 6] = [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;a=b\r\nhello\r\n01 \t;x\r\nx\r\n0;last\r\nA: b\r\nEmpty:\r\n\r\nGET / HTTP/1.1\r\n",
        b"80000000\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
        b"3\r\nhello",
        b"0\r\nXX",
    ];
    let long = [
        [
            b"1;",
            &[b'x'; CHUNK_EXTENSION_BYTES_MAX as usize][..],
            b"\r\n",
        ]
        .concat(),
        [b"0\r\nA:", &[b'x'; TRAILER_BYTES_MAX as usize][..], b"\r\n"].concat(),
    ];
    chunked
        .into_iter()
        .chain(long.iter().map(Vec::as_slice))
        .map(|body| [b"\x03\xff", body].concat())
        .chain([b"\x00\x0ahello".to_vec(), b"\x15\x0ahelloGET".to_vec()])
        .collect()
}

type Outcome = Result<(Vec<u8>, Option<usize>), BodyError>;

fn check(data: &[u8]) -> u64 {
    let [how, limit, input @ ..] = data else {
        return 0;
    };
    let framing = if how & 3 == 0 {
        Framing::Length(u64::from(*how) / 4)
    } else {
        Framing::Chunked
    };
    // Around what is there, so that a mutation passes it; and once no limit at all.
    let limit = match limit {
        0xff => u64::MAX,
        limit => u64::from(*limit),
    };
    let mut rng = chance(data);
    let whole = decode(framing, limit, input, &[input.len()]);
    let cuts = cuts(&mut rng, input.len());
    assert_eq!(
        decode(framing, limit, input, &cuts),
        whole,
        "cut at {cuts:?}"
    );
    match framing {
        Framing::Chunked => {
            let expected = chunked(input, limit);
            match (&whole, &expected) {
                (Ok(whole), Ok(expected)) => assert_eq!(whole, expected),
                (Err(_), Err(())) => {}
                _ => panic!("{whole:?}, expected {expected:?}"),
            }
        }
        Framing::Length(length) => {
            let taken = input.len().min(length as usize);
            let end = (taken as u64 == length).then_some(taken);
            let expected = Ok((input[..taken].to_vec(), end));
            assert_eq!(
                whole,
                if length > limit {
                    Err(BodyError::TooLarge)
                } else {
                    expected
                }
            );
        }
        Framing::None => {}
    }
    behind_a_head(framing, input, &mut rng);
    round_trip(input, &mut rng);
    let payload = whole
        .as_ref()
        .map(|(payload, end)| (magnitude(payload.len()), end.is_some()));
    kind((
        framing == Framing::Chunked,
        payload.map_err(|error| *error as u8),
    ))
}

/// Decodes `input`, of which at any time only what is before the next cut has come.
fn decode(framing: Framing, limit: u64, input: &[u8], cuts: &[usize]) -> Outcome {
    let mut decoder = BodyDecoder::new(framing, limit)?;
    let mut payload = Vec::new();
    let mut at = 0;
    for cut in cuts {
        while !decoder.is_done() && at < *cut {
            let available = &input[at..*cut];
            let step = decoder.decode(available)?;
            assert!(step.consumed > 0, "a step that takes nothing");
            assert_eq!(step.done, decoder.is_done());
            payload.extend_from_slice(&available[step.payload]);
            at += step.consumed;
        }
    }
    assert!(payload.len() as u64 <= limit);
    Ok((payload, decoder.is_done().then_some(at)))
}

/// The same bytes behind a head: a connection sees the payload, and what follows it.
fn behind_a_head(framing: Framing, input: &[u8], rng: &mut thalweg::base::rng::Rng) {
    let field = match framing {
        Framing::Length(length) => format!("Content-Length: {length}"),
        _ => "Transfer-Encoding: chunked".to_owned(),
    };
    let mut bytes = format!("POST /x HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n").into_bytes();
    bytes.extend_from_slice(input);
    let seen = pipeline::check(&bytes, rng);
    let first = seen.first().expect("something to see");
    match decode(framing, pipeline::BODY_BYTES_MAX, input, &[input.len()]) {
        Ok((payload, Some(_))) => {
            let expected = pipeline::Seen::Request(b"/x".to_vec(), Some(payload), false);
            assert_eq!(first, &expected);
        }
        Ok((_, None)) => assert_eq!(first, &pipeline::Seen::Truncated),
        Err(error) => {
            assert_eq!(
                seen,
                [pipeline::Seen::Refused(error.refusal())],
                "nothing follows"
            );
        }
    }
}

/// What is encoded decodes to itself.
fn round_trip(payload: &[u8], rng: &mut thalweg::base::rng::Rng) {
    let mut encoded = Vec::new();
    let mut from = 0;
    for to in cuts(rng, payload.len()) {
        chunk(&mut encoded, &payload[from..to]);
        from = to;
    }
    last_chunk(&mut encoded);
    let end = encoded.len();
    encoded.extend_from_slice(b"GET");
    let decoded = decode(
        Framing::Chunked,
        payload.len() as u64,
        &encoded,
        &[encoded.len()],
    );
    assert_eq!(decoded, Ok((payload.to_vec(), Some(end))));
}

/// Chunks as RFC 9112 section 7.1 has them, read from the front: the payload so far, and the end
/// if it is there; or that no continuation could be right.
fn chunked(input: &[u8], limit: u64) -> Result<(Vec<u8>, Option<usize>), ()> {
    let mut payload = Vec::new();
    let mut rest = input;
    let (mut extensions, mut trailers) = (0, 0);
    let mut total = 0;
    macro_rules! next {
        () => {
            match rest.split_first() {
                Some((byte, behind)) => {
                    rest = behind;
                    *byte
                }
                None => return Ok((payload, None)),
            }
        };
    }
    let is_text = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    let require = |is: bool| is.then_some(()).ok_or(());
    loop {
        let mut digits = String::new();
        let mut byte = next!();
        while byte.is_ascii_hexdigit() {
            digits.push(byte.into());
            require(digits.len() <= 16)?;
            byte = next!();
        }
        let size = u64::from_str_radix(&digits, 16).map_err(|_| ())?;
        let mut spaced = false;
        while byte == b' ' || byte == b'\t' {
            spaced = true;
            extensions += 1;
            require(extensions <= CHUNK_EXTENSION_BYTES_MAX)?;
            byte = next!();
        }
        if byte == b';' {
            while is_text(byte) {
                extensions += 1;
                require(extensions <= CHUNK_EXTENSION_BYTES_MAX)?;
                byte = next!();
            }
        } else {
            require(!spaced)?;
        }
        require(byte == b'\r')?;
        require(next!() == b'\n')?;
        if size == 0 {
            break;
        }
        total += u128::from(size);
        require(total <= u128::from(limit))?;
        for _ in 0..size {
            payload.push(next!());
        }
        require(next!() == b'\r')?;
        require(next!() == b'\n')?;
    }
    loop {
        let mut byte = next!();
        if byte == b'\r' {
            require(next!() == b'\n')?;
            return Ok((payload, Some(input.len() - rest.len())));
        }
        let mut count = |legal: bool| {
            trailers += 1;
            require(legal && trailers <= TRAILER_BYTES_MAX)
        };
        let mut named = false;
        while byte != b':' || !named {
            let legal = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            count(legal)?;
            named = true;
            byte = next!();
        }
        while byte != b'\r' {
            count(is_text(byte))?;
            byte = next!();
        }
        count(true)?;
        require(next!() == b'\n')?;
    }
}
