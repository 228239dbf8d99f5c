//! `multipart/mixed` answers, read back by the strict reader of the black-box tests.
//!
//! An input is parts: a byte for the length of the content type, one for the length of the body,
//! then both.

use thalweg::http::multipart::{BodyLength, Boundary, MultipartWriter};

use super::{Target, chance, kind, magnitude, mixed};

/// The target.
pub const MULTIPART: Target = Target {
    name: "multipart",
    check,
    seeds,
    words: &[
        b"\x00\x00",
        b"\x03\x02a/bxy",
        b"\r\n",
        b"\r\n\r\n",
        b"--",
        b"\r\n--",
        b"--thalweg-bootstrap-",
        b"--\r\n",
        b"Content-Type: ",
        b"text/plain",
        b"\0",
        b"\x7f",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    super::to_vecs(&[
        b"",
        b"\x03\x05a/bhello",
        b"\x18\x00application/octet-stream\x10\x08application/json{\"a\":1}\n",
        b"\x0a\x10a/b\r\nX: y!\r\n--thalweg-boo\r\n",
    ])
}

fn check(data: &[u8]) -> u64 {
    let mut parts = Vec::new();
    let mut rest = data;
    while let [type_bytes, body_bytes, behind @ ..] = rest {
        let (content_type, behind) = behind.split_at(behind.len().min((*type_bytes).into()));
        let (body, behind) = behind.split_at(behind.len().min((*body_bytes).into()));
        parts.push((content_type, body));
        rest = behind;
    }
    if parts.is_empty() {
        parts.push((b"", b""));
    }
    let boundary = Boundary::new(chance(data).unguessable());
    let mut writer = MultipartWriter::new(boundary);
    let mut length = BodyLength::default();
    let mut out = b"before".to_vec();
    for (content_type, body) in &parts {
        length.part(content_type.len(), body.len() as u64);
        writer.part(&mut out, content_type);
        out.extend_from_slice(body);
    }
    writer.finish(&mut out);
    let out = out.strip_prefix(b"before").expect("what was there is kept");
    assert_eq!(
        out.len() as u64,
        length.total(),
        "the length is known before"
    );
    read_back(&boundary, out, &parts);
    let sizes: Vec<_> = parts
        .iter()
        .map(|(content_type, body)| (magnitude(content_type.len()), magnitude(body.len())))
        .collect();
    kind(sizes)
}

/// Bodies come back byte for byte, content types with what cannot stand in a field as spaces.
fn read_back(boundary: &Boundary, out: &[u8], parts: &[(&[u8], &[u8])]) {
    // The reader takes its heads as text: check those that are not for their bodies alone.
    let is_text = parts
        .iter()
        .all(|(content_type, _)| content_type.is_ascii());
    if !is_text {
        return;
    }
    let header = String::from_utf8(boundary.content_type()).expect("a boundary is ASCII");
    let read = mixed::parse(&header, out);
    assert_eq!(read.len(), parts.len());
    for (read, (content_type, body)) in read.iter().zip(parts) {
        let printable = |byte: &u8| match byte {
            b'\t' | b' '..=b'~' => char::from(*byte),
            _ => ' ',
        };
        let expected: String = content_type.iter().map(printable).collect();
        assert_eq!(
            (&read.content_type, read.body.as_slice()),
            (&expected, *body)
        );
    }
}
