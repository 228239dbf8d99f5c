//! How fast does a body become stored text: validated, stripped, framed?
//!
//! One core, in bytes of body per second, beside what else could do it:
//!
//! - `thalweg`: [`normalise`], the whole rule, on the best kernel; `avx2` and so
//!   on are all kernels, and `in_pieces` is the resumable form, fed as from a
//!   socket.
//! - `serde_json_strip`: a `RawValue`, which checks grammar and UTF-8, then a
//!   strip byte by byte: what Ursula does.
//! - `simd_json_tape`: its tape, with the one copy of the body that it needs
//!   and buffers kept from run to run. Nothing is stripped, so it does less.
//! - `serde_json_ignored`: `IgnoredAny` and simdutf8. Nothing is stripped.
//!
//! The documents are those of simdjson's `jsonexamples` in the folder
//! `THALWEG_CORPORA` (`npm pack simdjson@0.9.2` has them); where they are not
//! there, generated ones of the same shape stand in. `messages` are bodies of
//! about 200 bytes, one call each; `array` is all of them in one body.
//!
//! Run: `THALWEG_CORPORA=… cargo bench --bench json_text`. The harness is divan,
//! as in the other benches: throughput as a counter, one run of everything on
//! small documents under `cargo test`. On a machine that others use too, read
//! its `fastest`. That of 400 in GB/s, on 30 November 2026, 2 shared cores of a
//! virtual machine with AVX-512, rustc 1.95 without `target-cpu`:
//!
//! | | twitter | citm | canada | escaped | array | messages |
//! |---|---|---|---|---|---|---|
//! | `avx512` | 3.51 | 3.11 | 2.51 | 3.77 | 2.53 | 1.77 |
//! | `avx2` | 2.80 | 2.52 | 2.33 | 3.46 | 2.33 | 1.61 |
//! | `sse42` | 2.33 | 2.15 | 1.90 | 2.54 | 1.89 | 1.40 |
//! | `portable` | 0.49 | 0.53 | 0.58 | 0.58 | 0.58 | 0.43 |
//! | `in_pieces` | 3.51 | 3.15 | 2.50 | 3.88 | 2.62 | 1.37 |
//! | `simd_json_tape` | 2.35 | 2.15 | 0.88 | 1.18 | 1.17 | 1.19 |
//! | `serde_json_ignored` | 2.13 | 1.66 | 1.34 | 1.67 | 1.24 | 1.10 |
//! | `serde_json_strip` | 0.57 | 0.75 | 0.68 | 0.49 | 0.38 | 0.38 |

use std::fmt::Write as _;
use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs};

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use simd_json::{Buffers, INPUT_PADDING, Tape, fill_tape_padded};
use thalweg::json::{Kernel, Normaliser, normalise, normalise_on};

/// What a connection may read at a time.
const PIECE_BYTES: usize = 16 << 10;

fn main() {
    divan::main();
}

/// Bodies to run over, by name.
type Corpus = (&'static str, Vec<Vec<u8>>);

static CORPORA: LazyLock<[Corpus; 6]> = LazyLock::new(|| {
    // Under `cargo test` there is no `--bench`: then each runs once, which little text suffices for.
    let full = env::args().any(|arg| arg == "--bench");
    let scale = if full { 1 } else { 100 };
    let messages: Vec<String> = (0..5_000 / scale).map(message).collect();
    let array = format!("[{}]", messages.join(","));
    let messages = messages.into_iter().map(String::into_bytes).collect();
    let document = |name: &'static str, generate: fn(usize) -> String, bytes: usize| {
        let folder = env::var("THALWEG_CORPORA").unwrap_or_default();
        let file = fs::read(Path::new(&folder).join(name).with_extension("json"));
        let body = file.unwrap_or_else(|_| generate(bytes / scale).into_bytes());
        (name, vec![body])
    };
    [
        ("messages", messages),
        ("array", vec![array.into_bytes()]),
        document("twitter", twitter, 600_000),
        document("citm_catalog", citm_catalog, 1_700_000),
        document("canada", canada, 2_200_000),
        document("twitterescaped", twitter_escaped, 600_000),
    ]
});

fn names() -> impl Iterator<Item = &'static str> {
    CORPORA.iter().map(|(name, _)| *name)
}

/// Measures `accepts` over all bodies of a corpus.
fn run(bencher: Bencher<'_, '_>, name: &str, mut accepts: impl FnMut(&[u8]) -> bool) {
    let found = CORPORA.iter().find(|(other, _)| *other == name);
    let (_, bodies) = found.expect("one of `names`");
    let bytes: usize = bodies.iter().map(Vec::len).sum();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        for body in bodies {
            assert!(accepts(black_box(body)));
        }
    });
}

#[divan::bench(args = names())]
fn thalweg(bencher: Bencher<'_, '_>, name: &str) {
    // What is measured is right: it equals the slow way's text.
    for (_, bodies) in CORPORA.iter().filter(|(other, _)| *other == name) {
        for body in bodies {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            normalise(body, &mut ours).expect("a valid body");
            serde_json_then_strip(body, &mut theirs);
            assert_eq!(ours, theirs, "{name}");
        }
    }
    let mut out = Vec::new();
    run(bencher, name, |body| {
        out.clear();
        normalise(body, &mut out).is_ok()
    });
}

#[divan::bench(args = names())]
fn in_pieces(bencher: Bencher<'_, '_>, name: &str) {
    let mut out = Vec::new();
    run(bencher, name, |body| {
        out.clear();
        let mut normaliser = Normaliser::new();
        let mut pieces = body.chunks(PIECE_BYTES);
        let fed = pieces.all(|piece| normaliser.feed(piece, &mut out).is_ok());
        fed && normaliser.finish(&mut out).is_ok()
    });
}

/// One bench per kernel, left out where the CPU lacks it.
macro_rules! kernels {
    ($($kernel:ident),+) => {$(
        #[divan::bench(args = names(), ignore = kernel(stringify!($kernel)).is_none())]
        fn $kernel(bencher: Bencher<'_, '_>, name: &str) {
            let mut out = Vec::new();
            let kernel = kernel(stringify!($kernel)).expect("ignored otherwise");
            run(bencher, name, |body| {
                out.clear();
                normalise_on(kernel, body, &mut out).is_ok()
            });
        }
    )+};
}
kernels!(avx512, avx2, sse42, neon, portable);

fn kernel(name: &str) -> Option<Kernel> {
    Kernel::available().find(|kernel| kernel.name() == name)
}

#[divan::bench(args = names())]
fn serde_json_strip(bencher: Bencher<'_, '_>, name: &str) {
    let mut out = Vec::new();
    run(bencher, name, |body| {
        out.clear();
        serde_json_then_strip(body, &mut out);
        !out.is_empty()
    });
}

#[divan::bench(args = names())]
fn simd_json_tape(bencher: Bencher<'_, '_>, name: &str) {
    let mut copy = Vec::new();
    let mut buffers = Buffers::default();
    let mut spare = Some(Tape::null());
    run(bencher, name, |body| {
        let mut tape = spare.take().unwrap_or_else(Tape::null).reset();
        copy.clear();
        copy.extend_from_slice(body);
        copy.extend_from_slice(&[0; INPUT_PADDING]);
        let filled = fill_tape_padded(&mut copy, body.len(), &mut buffers, &mut tape);
        let accepted = filled.is_ok();
        spare = Some(tape.reset());
        accepted
    });
}

#[divan::bench(args = names())]
fn serde_json_ignored(bencher: Bencher<'_, '_>, name: &str) {
    run(bencher, name, |body| {
        serde_json::from_slice::<IgnoredAny>(body).is_ok()
            && simdutf8::basic::from_utf8(body).is_ok()
    });
}

/// A `RawValue` per message, then each stripped byte by byte.
fn serde_json_then_strip(body: &[u8], out: &mut Vec<u8>) {
    if body.trim_ascii_start().starts_with(b"[") {
        let messages: Vec<&RawValue> = serde_json::from_slice(body).expect("a valid body");
        for message in messages {
            strip(message.get().as_bytes(), out);
        }
    } else {
        let message: &RawValue = serde_json::from_slice(body).expect("a valid body");
        strip(message.get().as_bytes(), out);
    }
}

fn strip(message: &[u8], out: &mut Vec<u8>) {
    let (mut inside, mut escaped) = (false, false);
    for &byte in message {
        if inside {
            inside = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        } else {
            inside = byte == b'"';
        }
        out.push(byte);
    }
    out.push(b'\n');
}

/// An event of about 200 bytes.
fn message(index: usize) -> String {
    format!(
        r#"{{"id":"{:016x}","type":"cursor.moved","captured_at":"2026-11-29T12:{:02}:{:02}.{:03}Z","actor":{{"id":{},"name":"Ada Lovelace"}},"position":{{"x":{}.{:03},"y":-{}.5}},"pressed":{},"target":null}}"#,
        (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        index / 60 % 60,
        index % 60,
        index * 37 % 1000,
        1000 + index * 7919 % 90_000,
        index * 31 % 1920,
        index * 97 % 1000,
        index * 17 % 1080,
        index.is_multiple_of(3),
    )
}

/// Indented objects with much text, a good part of it Japanese.
fn twitter(bytes: usize) -> String {
    tweets(
        bytes,
        "名前:前田あゆみ 第一回 RT @KATANA77: えっそれは・・・（一同）",
    )
}

/// The same, all text in escapes.
fn twitter_escaped(bytes: usize) -> String {
    let escaped =
        "\\u540d\\u524d:\\u524d\\u7530 \\u7b2c\\u4e00\\u56de RT @KATANA77: \\u3048\\u3063\\/\\n";
    tweets(bytes, escaped)
}

fn tweets(bytes: usize, text: &str) -> String {
    let mut out = String::from("{\n  \"statuses\": [");
    for index in 0.. {
        if out.len() >= bytes {
            break;
        }
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            out,
            "{comma}\n    {{\n      \"metadata\": {{\n        \"result_type\": \"recent\",\n        \
             \"iso_language_code\": \"ja\"\n      }},\n      \"created_at\": \"Sun Aug 31 00:29:15 +0000 2014\",\n      \
             \"id\": {},\n      \"text\": \"{text}\",\n      \"source\": \"<a href=\\\"http://example.org\\\" rel=\\\"nofollow\\\">web</a>\",\n      \
             \"truncated\": false,\n      \"in_reply_to_status_id\": null,\n      \"user\": {{\n        \"id\": {},\n        \
             \"description\": \"{text}{text}\",\n        \"protected\": false,\n        \"followers_count\": {},\n        \
             \"default_profile\": true\n      }},\n      \"geo\": null,\n      \"retweet_count\": 0,\n      \
             \"entities\": {{\n        \"hashtags\": [],\n        \"user_mentions\": [\n          {{\n            \
             \"screen_name\": \"ayuu0123\",\n            \"indices\": [\n              0,\n              9\n            ]\n          \
             }}\n        ]\n      }},\n      \"lang\": \"ja\"\n    }}",
            505_874_924_095_815_700_u64 + index,
            1_186_275_104 + index,
            index % 977,
        );
    }
    out.push_str("\n  ]\n}\n");
    out
}

/// Deeply indented objects of small integers.
fn citm_catalog(bytes: usize) -> String {
    let mut out = String::from("{\n    \"performances\": [");
    for index in 0_u64.. {
        if out.len() >= bytes {
            break;
        }
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            out,
            "{comma}\n        {{\n            \"eventId\": {},\n            \"id\": {},\n            \"logo\": null,\n            \
             \"name\": null,\n            \"prices\": [\n                {{\n                    \"amount\": {},\n                    \
             \"audienceSubCategoryId\": 337100890,\n                    \"seatCategoryId\": {}\n                }}\n            ],\n            \
             \"seatCategories\": [\n                {{\n                    \"areas\": [\n                        {{\n                            \
             \"areaId\": {},\n                            \"blockIds\": []\n                        }}\n                    ],\n                    \
             \"seatCategoryId\": {}\n                }}\n            ],\n            \"start\": {},\n            \"venueCode\": \"PLEYEL_PLEYEL\"\n        }}",
            138_586_341 + index,
            339_887_544 + index,
            90_250 - index % 977 * 50,
            338_937_295 + index % 13,
            205_705_999 + index % 31,
            338_937_295 + index % 13,
            1_372_701_600_000 + index * 86_400_000,
        );
    }
    out.push_str("\n    ]\n}\n");
    out
}

/// Pairs of coordinates, without whitespace.
fn canada(bytes: usize) -> String {
    let mut out = String::from(
        "{\"type\":\"FeatureCollection\",\"features\":[{\"type\":\"Feature\",\"geometry\":{\"type\":\"Polygon\",\"coordinates\":[[",
    );
    for index in 0_u64.. {
        if out.len() >= bytes {
            break;
        }
        let comma = match index {
            0 => "",
            _ if index.is_multiple_of(300) => "],[",
            _ => ",",
        };
        let (x, y) = (index * 7919 % 75_000_000, index * 104_729 % 40_000_000);
        let _ = write!(
            out,
            "{comma}[-{}.{:06}{:09},{}.{:0width$}]",
            65 + x / 1_000_000,
            x % 1_000_000,
            index * 999_999_937 % 1_000_000_000,
            43 + y / 1_000_000,
            y % 1_000_000,
            width = 6 + (index % 9) as usize,
        );
    }
    out.push_str("]]}}]}");
    out
}
