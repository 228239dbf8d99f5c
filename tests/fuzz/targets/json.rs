//! JSON bodies, against parsers that each know one side of the rule: serde_json the grammar,
//! simdutf8 the encoding, a count the depth. Every kernel of this CPU, whole and in pieces.

use serde::de::IgnoredAny;
use thalweg::base::limits::JSON_DEPTH_MAX;
use thalweg::json::{ArrayView, JsonError, Kernel, Normaliser, array_view_len, normalise_on};

use super::{Target, chance, cuts, kind, magnitude, to_vecs};

/// The target.
pub const JSON: Target = Target {
    name: "json",
    check,
    seeds,
    words: &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"\\\"",
        b"\\u",
        b"\\uD83D\\uDE00",
        b"\\ud800",
        b"true",
        b"false",
        b"null",
        b"-0",
        b"01",
        b"1.5e+3",
        b"1e400",
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        b"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
        b"{\"a\":",
        b"                                                                ",
        b"\n",
        b"\r\n\t",
        b"\x0b",
        b"\x1f",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xe2\x82\xac",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\x80",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = to_vecs(&[
        b"",
        b"[]",
        b"null",
        br#"[{"key":"v\u00e9\\\"\xc3","n":-12.50E+30,"t":true,"f":false,"z":null},[],{},"",0]"#,
        b"  {\"a\" : [ 1 , 2.5 , { \"b\" : null } ] , \"c\" : \"\\ud800\" }  \r\n",
        br#"{"long":"0123456789012345678901234567890123456789012345678901234567890123456789\\"}"#,
        br#"[1,2,nul]"#,
        br#"{"a":1,"b":[1,2}"#,
        b"[\"\xe2\x82\xac\xf0\x9f\x98\x80\",\"\xe2\x82\"]",
    ]);
    for depth in [JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1, JSON_DEPTH_MAX + 2] {
        seeds.push(["[".repeat(depth), "]".repeat(depth)].concat().into());
        seeds.push(
            ["{\"a\":".repeat(depth), "1".into(), "}".repeat(depth)]
                .concat()
                .into(),
        );
    }
    seeds
}

type Stored = Result<(Vec<u8>, u64), JsonError>;

fn check(data: &[u8]) -> u64 {
    let mut rng = chance(data);
    let accepted = accepts(data);
    let mut first: Option<Stored> = None;
    for kernel in Kernel::available() {
        let name = kernel.name();
        let whole = appended(|out| normalise_on(kernel, data, out));
        let cuts = cuts(&mut rng, data.len());
        let pieces = appended(|out| {
            let mut normaliser = Normaliser::with_kernel(kernel);
            let mut from = 0;
            for to in &cuts {
                normaliser.feed(&data[from..*to], out)?;
                from = *to;
            }
            normaliser.finish(out)
        });
        assert_eq!(pieces, whole, "{name}, cut at {cuts:?}");
        assert_eq!(whole.is_ok(), accepted, "{name}: {whole:?}");
        if let Some(first) = &first {
            assert_eq!(&whole, first, "{name} against the first kernel");
        }
        first = Some(whole);
    }
    match first.expect("a kernel") {
        Ok((text, messages)) => {
            assert_eq!(text, stored(data));
            check_stored(&text, messages);
            kind((
                magnitude(text.len()),
                magnitude(messages as usize),
                depth(data) / 16,
            ))
        }
        Err(error) => match error {
            JsonError::Syntax { at, what } => {
                assert!(at < data.len() as u64);
                kind((what, at % 64 / 8))
            }
            JsonError::Utf8 { at } => {
                let tail = &data[at as usize..];
                let valid = simdutf8::basic::from_utf8(&data[..at as usize]).is_ok();
                let broken = std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0);
                assert!(valid && broken, "not the first bad sequence: {at}");
                kind((1, at % 64 / 8))
            }
            JsonError::Depth { at } => {
                assert!(matches!(data[at as usize], b'[' | b'{'));
                2
            }
            JsonError::Truncated => 3,
            JsonError::Empty => {
                assert!(data.iter().all(|byte| b" \t\r\n".contains(byte)));
                4
            }
        },
    }
}

/// Stored text is stored as itself, message by message and as one array.
fn check_stored(text: &[u8], messages: u64) {
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len() as u64, messages, "one LF per message");
    for line in lines.into_iter().filter(|line| !line.starts_with(b"[")) {
        let again = appended(|out| normalise_on(Kernel::best(), line, out));
        assert_eq!(again, Ok((line.to_vec(), 1)));
    }
    let mut array = Vec::new();
    let mut view = ArrayView::new(text.len() as u64);
    view.push(text, &mut array);
    view.finish(&mut array);
    assert_eq!(array.len() as u64, array_view_len(text.len() as u64));
    let again = appended(|out| normalise_on(Kernel::best(), &array, out));
    assert_eq!(
        again,
        Ok((text.to_vec(), messages)),
        "the array view means the same"
    );
}

fn appended(append: impl FnOnce(&mut Vec<u8>) -> Result<u64, JsonError>) -> Stored {
    let mut out = b"before\n".to_vec();
    let result = append(&mut out);
    assert!(out.starts_with(b"before\n"), "what was there is kept");
    result.map(|messages| (out.split_off(7), messages))
}

fn accepts(data: &[u8]) -> bool {
    let mut parser = serde_json::Deserializer::from_slice(data);
    let grammatical = serde::Deserialize::deserialize(&mut parser)
        .and_then(|IgnoredAny| parser.end())
        .is_ok();
    grammatical && simdutf8::basic::from_utf8(data).is_ok() && depth(data) <= JSON_DEPTH_MAX
}

/// Each byte with its depth, and whether it is inside a string.
fn walk(data: &[u8]) -> impl Iterator<Item = (u8, usize, bool)> {
    let (mut depth, mut inside, mut escaped) = (0_usize, false, false);
    data.iter().map(move |&byte| {
        let was_inside = inside;
        if inside {
            inside = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else {
            match byte {
                b'"' => inside = true,
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        (byte, depth, was_inside)
    })
}

fn is_array(data: &[u8]) -> bool {
    let space = |byte: &&u8| b" \t\r\n".contains(byte);
    data.iter().find(|byte| !space(byte)) == Some(&b'[')
}

/// Depth of the deepest message.
fn depth(data: &[u8]) -> usize {
    let deepest = walk(data).map(|(_, depth, _)| depth).max();
    deepest.unwrap_or(0).saturating_sub(is_array(data).into())
}

/// The stored text of a valid body, byte by byte.
fn stored(data: &[u8]) -> Vec<u8> {
    let array = is_array(data);
    let mut out = Vec::new();
    for (byte, depth, inside) in walk(data) {
        match byte {
            _ if inside => out.push(byte),
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'[' if array && depth == 1 => {}
            b']' if array && depth == 0 => {}
            b',' if array && depth == 1 => out.push(b'\n'),
            _ => out.push(byte),
        }
    }
    if !out.is_empty() {
        out.push(b'\n');
    }
    out
}
