//! How fast does a body become stored text: validated, stripped, framed?
//!
//! One core, in bytes of body per second, beside what else could do it:
//!
//! - `thalweg`: [`normalise`], the whole rule; `thalweg avx2` and so on are all
//!   kernels that this CPU could run, and `thalweg in pieces` is the resumable
//!   form, fed as from a socket.
//! - `serde_json + strip`: a `RawValue`, which checks grammar and UTF-8, then a
//!   strip byte by byte: what Ursula does.
//! - `simd-json tape`: its tape, with the one copy of the body that it needs
//!   and buffers kept from run to run. Nothing is stripped, so it does less.
//! - `serde_json ignored`: `IgnoredAny` and simdutf8. Nothing is stripped.
//!
//! The documents are those of simdjson's `jsonexamples` in `THALWEG_CORPORA`
//! (`npm pack simdjson@0.9.2` has them); for those that are not there, generated
//! ones of the same shape, named `… (generated)`. `messages` are bodies of about
//! 200 bytes, one call each; `array` is all of them in one body.
//!
//! Criterion is the harness: maintained, reports throughput with its spread,
//! and under `cargo test` runs everything once, on small documents. It is given
//! the thread's CPU time to measure, which others on the machine disturb less
//! than the clock on the wall.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use cpu_time::ThreadTime;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use simd_json::{INPUT_PADDING, Tape, fill_tape_padded};
use thalweg::json::{Kernel, Normaliser, normalise, normalise_on};

/// What a connection may read at a time.
const PIECE_BYTES: usize = 16 << 10;

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = json_text
}
criterion_main!(benches);

fn json_text(criterion: &mut Criterion<CpuTime>) {
    // Under `cargo test` there is no `--bench`: then each runs once, which small documents suffice for.
    let scale = if env::args().any(|arg| arg == "--bench") {
        1
    } else {
        100
    };
    let messages: Vec<String> = (0..5_000 / scale).map(message).collect();
    let array = format!("[{}]", messages.join(","));
    compare(
        criterion,
        "messages",
        &messages.iter().map(String::as_bytes).collect::<Vec<_>>(),
    );
    compare(criterion, "array", &[array.as_bytes()]);
    let documents: [(&str, Generator, usize); 4] = [
        ("twitter", twitter, 600_000),
        ("citm_catalog", citm_catalog, 1_700_000),
        ("canada", canada, 2_200_000),
        ("twitterescaped", twitter_escaped, 600_000),
    ];
    for (name, generate, bytes) in documents {
        let file = env::var("THALWEG_CORPORA")
            .ok()
            .and_then(|folder| fs::read(Path::new(&folder).join(format!("{name}.json"))).ok());
        match file {
            Some(document) => compare(criterion, name, &[&document]),
            None => {
                let document = generate(bytes / scale);
                compare(
                    criterion,
                    &format!("{name} (generated)"),
                    &[document.as_bytes()],
                );
            }
        }
    }
}

/// Makes a document of about so many bytes.
type Generator = fn(usize) -> String;

/// All contenders on the same bodies.
fn compare(criterion: &mut Criterion<CpuTime>, name: &str, bodies: &[&[u8]]) {
    let mut group = criterion.benchmark_group(name);
    let bytes: usize = bodies.iter().map(|body| body.len()).sum();
    group.throughput(Throughput::Bytes(bytes as u64));

    // What is measured is right: it equals the slow way's text.
    for body in bodies {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        normalise(body, &mut ours).expect("a valid body");
        serde_json_strip(body, &mut theirs);
        assert_eq!(ours, theirs, "{name}");
    }

    let mut out = Vec::with_capacity(2 * bytes);
    run(&mut group, "thalweg", bodies, |body| {
        out.clear();
        normalise(body, &mut out).is_ok()
    });
    for kernel in Kernel::available() {
        run(
            &mut group,
            &format!("thalweg {}", kernel.name()),
            bodies,
            |body| {
                out.clear();
                normalise_on(kernel, body, &mut out).is_ok()
            },
        );
    }
    run(&mut group, "thalweg in pieces", bodies, |body| {
        out.clear();
        let mut normaliser = Normaliser::new();
        let fed = body
            .chunks(PIECE_BYTES)
            .all(|piece| normaliser.feed(piece, &mut out).is_ok());
        fed && normaliser.finish(&mut out).is_ok()
    });
    run(&mut group, "serde_json + strip", bodies, |body| {
        out.clear();
        serde_json_strip(body, &mut out);
        !out.is_empty()
    });
    let mut buffers = simd_json::Buffers::default();
    let mut spare = Some(Tape::null());
    run(&mut group, "simd-json tape", bodies, |body| {
        let mut tape = spare.take().unwrap_or_else(Tape::null).reset();
        out.clear();
        out.extend_from_slice(body);
        out.extend_from_slice(&[0; INPUT_PADDING]);
        let filled = fill_tape_padded(&mut out, body.len(), &mut buffers, &mut tape);
        let accepted = filled.is_ok();
        spare = Some(tape.reset());
        accepted
    });
    run(&mut group, "serde_json ignored", bodies, |body| {
        serde_json::from_slice::<IgnoredAny>(body).is_ok()
            && simdutf8::basic::from_utf8(body).is_ok()
    });
    group.finish();
}

fn run(
    group: &mut BenchmarkGroup<'_, CpuTime>,
    name: &str,
    bodies: &[&[u8]],
    mut accepts: impl FnMut(&[u8]) -> bool,
) {
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            for body in bodies {
                assert!(accepts(black_box(body)));
            }
        });
    });
}

/// A `RawValue` per message, then each stripped byte by byte.
fn serde_json_strip(body: &[u8], out: &mut Vec<u8>) {
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

/// CPU time of the thread that runs the benchmark.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = ThreadTime;
    type Value = Duration;

    fn start(&self) -> ThreadTime {
        ThreadTime::now()
    }

    fn end(&self, start: ThreadTime) -> Duration {
        start.elapsed()
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
