//! The heads of our answers, read back by `httparse`: no value adds a line.
//!
//! Input: the value of a field.

use thalweg::http::encode::ResponseHead;

use super::{Target, chance, kind, magnitude, to_vecs};

/// The target.
pub const ANSWER: Target = Target {
    name: "answer",
    seeds,
    words: &[
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b": ",
        b" ",
        b"\t",
        b"\x7f",
        b"\x80",
        b"HTTP/1.1 ",
    ],
    check,
};

fn seeds() -> Vec<Vec<u8>> {
    to_vecs(&[
        b"plain",
        b"a\r\nX: y\r\n\r\nHTTP/1.1 200",
        b" \tcaf\xc3\xa9\0\x7f\x1b ",
        b"",
    ])
}

fn check(input: &[u8]) -> u64 {
    let mut rng = chance(input);
    let number = rng.next_u64() >> rng.below(64);
    let status = [200, 204, 304, 400, 404, 409, 413, 416, 503, 599][rng.below(10) as usize];
    let mut out = b"before".to_vec();
    let mut dropped = ResponseHead::new(&mut out, status);
    dropped.header("X-Value", input);
    drop(dropped);
    assert_eq!(out, b"before", "a head that is not finished leaves nothing");

    let mut head = ResponseHead::new(&mut out, status);
    head.header("X-Value", input)
        .header_u64("X-Number", number)
        .offset("X-Offset", number);
    head.finish_with_length(number);
    let bytes = &out[b"before".len()..];
    let mut fields = [httparse::EMPTY_HEADER; 8];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes);
    assert_eq!(parsed, Ok(httparse::Status::Complete(bytes.len())));
    assert_eq!((response.version, response.code), (Some(1), Some(status)));
    let legal = |&byte: &u8| {
        if matches!(byte, 0..=8 | 10..=31 | 127) {
            b' '
        } else {
            byte
        }
    };
    let value: Vec<u8> = input.iter().map(legal).collect();
    let is_space = |byte: &u8| b" \t".contains(byte);
    let start = value.iter().position(|byte| !is_space(byte));
    let end = value.iter().rposition(|byte| !is_space(byte));
    let value = start.zip(end).map(|(start, end)| &value[start..=end]);
    let expected = [
        ("X-Value", value.unwrap_or_default().to_vec()),
        ("X-Number", number.to_string().into_bytes()),
        ("X-Offset", format!("{number:020}").into_bytes()),
        ("Content-Length", number.to_string().into_bytes()),
    ];
    let found: Vec<_> = response
        .headers
        .iter()
        .map(|field| (field.name, field.value.to_vec()))
        .collect();
    assert_eq!(found, expected);
    let illegal = input.iter().filter(|byte| legal(byte) != **byte).count();
    kind((magnitude(illegal), magnitude(input.len())))
}
