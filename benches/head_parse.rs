//! How many nanoseconds does the head of a typical request cost?
//!
//! A durable append at the aim of some 40,000 a second and core leaves 25 µs for everything; a
//! head should be lost in that (aim: 400 ns for one of 300 bytes). `kept` is how a connection
//! parses, with the memory of the last head; `fresh` starts from nothing; `dripping` gets the
//! head in pieces of 16 bytes, which must cost a small multiple, not the square.
//!
//! Run: `cargo bench --bench head_parse`. Medians in ns on 30 November 2026, 2 shared cores of a
//! virtual machine with AVX2, rustc 1.95 without `target-cpu`:
//!
//! | request                     | bytes | fields | kept | fresh | dripping |
//! |-----------------------------|-------|--------|------|-------|----------|
//! | least                       |    37 |      1 |   54 |    71 |       65 |
//! | append, loadgen             |   134 |      3 |  114 |   126 |      169 |
//! | append, idempotent producer |   294 |      9 |  221 |   228 |      358 |
//! | read, browser               |   603 |     15 |  334 |   346 |      572 |

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use thalweg::base::limits::Limits;
use thalweg::http::parse::{Head, HeadLimits, HeadParser, Parsed, parse_head};

fn main() {
    divan::main();
}

/// A request and how many fields it has.
type Case = (&'static str, &'static str, usize);

const CASES: [Case; 4] = [
    ("least", "GET /demo/hello HTTP/1.1\r\nHost: a\r\n\r\n", 1),
    (
        "append, loadgen",
        "POST /v1/stream/bench/0000000000000017 HTTP/1.1\r\nHost: 127.0.0.1:4437\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 256\r\n\r\n",
        3,
    ),
    (
        "append, idempotent producer",
        "POST /v1/stream/projects/4711/documents/readme HTTP/1.1\r\n\
         Host: streams.example.com\r\nUser-Agent: node\r\nAccept: */*\r\n\
         Accept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n\
         Content-Length: 512\r\nProducer-Id: 6f1c2a52-4d0e-4c6d-9d7c-1b9a3e0f7c55\r\n\
         Producer-Epoch: 3\r\nProducer-Seq: 184467\r\n\r\n",
        9,
    ),
    (
        "read, browser",
        "GET /v1/stream/demo/hello?offset=00000000000000004096&live=sse HTTP/1.1\r\n\
         Host: localhost:4437\r\nConnection: keep-alive\r\n\
         sec-ch-ua-platform: \"Linux\"\r\nCache-Control: no-cache\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
         Chrome/142.0.0.0 Safari/537.36\r\nAccept: text/event-stream\r\n\
         sec-ch-ua: \"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\"\r\nsec-ch-ua-mobile: ?0\r\n\
         Origin: http://localhost:8080\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n\
         Sec-Fetch-Dest: empty\r\nReferer: http://localhost:8080/\r\n\
         Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n\r\n",
        15,
    ),
];

fn limits() -> HeadLimits {
    HeadLimits::from(&Limits::default())
}

fn check((name, request, fields): Case, head: &Head) {
    let found = head.headers(request.as_bytes()).count();
    assert_eq!((found, head.consumed), (fields, request.len()), "{name}");
}

#[divan::bench(args = CASES.map(|case| case.0))]
fn kept(bencher: Bencher<'_, '_>, name: &str) {
    let case = case(name);
    let limits = limits();
    let mut head = Head::default();
    let mut parser = HeadParser::default();
    bencher
        .counter(BytesCount::new(case.1.len()))
        .bench_local(|| {
            let parsed = parser.parse(black_box(case.1.as_bytes()), &limits, &mut head);
            assert_eq!(parsed, Ok(true));
        });
    check(case, &head);
}

#[divan::bench(args = CASES.map(|case| case.0))]
fn fresh(bencher: Bencher<'_, '_>, name: &str) {
    let case = case(name);
    let limits = limits();
    bencher
        .counter(BytesCount::new(case.1.len()))
        .bench_local(|| parse_head(black_box(case.1.as_bytes()), &limits));
    match parse_head(case.1.as_bytes(), &limits) {
        Parsed::Complete(head) => check(case, &head),
        other => panic!("{name}: {other:?}"),
    }
}

#[divan::bench(args = CASES.map(|case| case.0))]
fn dripping(bencher: Bencher<'_, '_>, name: &str) {
    let case = case(name);
    let limits = limits();
    let request = case.1.as_bytes();
    let mut head = Head::default();
    bencher
        .counter(BytesCount::new(request.len()))
        .bench_local(|| {
            let mut parser = HeadParser::default();
            let mut length = 0;
            loop {
                length = (length + 16).min(request.len());
                let parsed = parser.parse(black_box(&request[..length]), &limits, &mut head);
                if parsed != Ok(false) {
                    assert_eq!(parsed, Ok(true));
                    break;
                }
            }
        });
    check(case, &head);
}

fn case(name: &str) -> Case {
    CASES
        .into_iter()
        .find(|case| case.0 == name)
        .expect("a name from the list")
}
