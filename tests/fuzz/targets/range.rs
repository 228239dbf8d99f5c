//! `Range` values. The first eight bytes of an input are the length of the body, the rest is the
//! value.

use thalweg::protocol::byte_range::{ByteRange, parse};

use super::{Target, kind};

/// The target.
pub const RANGE: Target = Target {
    name: "range",
    check,
    seeds,
    words: &[
        b"bytes=",
        b"BYTES=",
        b"items=",
        b"-",
        b",",
        b" ",
        b"\t",
        b"\n",
        b"0",
        b"00",
        b"18446744073709551615",
        b"18446744073709551616",
        b"+1",
    ],
};

fn seeds() -> Vec<Vec<u8>> {
    [
        "bytes=0-3",
        "bytes=9-",
        "bytes=-4",
        "bytes=5-2",
        "bytes=0-1,3-4",
        "Bytes= 1-18446744073709551615",
        "bytes=-0",
        "",
    ]
    .iter()
    .flat_map(|value| {
        [0, 1, 24, u64::MAX].map(|len: u64| [&len.to_le_bytes(), value.as_bytes()].concat())
    })
    .collect()
}

fn check(data: &[u8]) -> u64 {
    let Some((len, value)) = data.split_first_chunk() else {
        return 0;
    };
    let len = u64::from_le_bytes(*len);
    let range = parse(value);
    assert_eq!(range, plain(value), "{}", value.escape_ascii());
    let Some(range) = range else { return 1 };
    let form = std::mem::discriminant(&range);
    // Last and first byte as RFC 9110 section 14.1.2 counts them, with room to overflow.
    let (len_wide, one) = (i128::from(len), 1);
    let (first, last) = match range {
        ByteRange::Between(first, last) => (first.into(), i128::from(last).min(len_wide - one)),
        ByteRange::From(first) => (first.into(), len_wide - one),
        ByteRange::Last(count) => ((len_wide - i128::from(count)).max(0), len_wide - one),
    };
    let expected = (first <= last).then_some((first, last + one));
    let resolved = range.resolve(len);
    assert_eq!(
        resolved.map(|(start, end)| (start.into(), end.into())),
        expected,
        "{range:?} of {len}"
    );
    let again = match range {
        ByteRange::Between(first, last) => format!("bytes={first}-{last}"),
        ByteRange::From(first) => format!("bytes={first}-"),
        ByteRange::Last(count) => format!("bytes=-{count}"),
    };
    assert_eq!(parse(again.as_bytes()), Some(range), "{again}");
    let whole = resolved == Some((0, len));
    kind((form, resolved.is_some(), whole))
}

fn plain(value: &[u8]) -> Option<ByteRange> {
    let text = str::from_utf8(value).ok()?;
    let (unit, spec) = text.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let number = |digits: &str| -> Option<u64> {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // What a u64 does not hold is past the end all the same.
        plain.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let ascii_space = [' ', '\t', '\n', '\r', '\x0c'];
    match spec.trim_matches(ascii_space).split_once('-')? {
        ("", last) => Some(ByteRange::Last(number(last)?)),
        (first, "") => Some(ByteRange::From(number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::Between(first, last))
        }
    }
}
