//! What does an SSE event cost to encode, and what does each further reader add?
//!
//! The data event is encoded once for all readers of a core (`data_event`, by
//! framing); each reader adds a control event and a copy of both into its
//! connection's buffer, as one chunk (`per_reader`). At 1,000 readers the second
//! is what counts, and it must stay small beside the 10 µs that a send costs.
//!
//! Run: `cargo bench --bench fan_out_encode`; the text is read back by a parser
//! of its own.
//!
//! Fastest of 100, 30 November 2026, 2 shared cores of a virtual
//! machine with AVX-512, rustc 1.95 without `target-cpu`; messages
//! of 100 bytes:
//!
//! | | lines | json_array | text | base64 |
//! |---|---|---|---|---|
//! | `data_event`, one message | 14 ns | 11 ns | 60 ns | 70 ns |
//! | `data_event`, 100 messages | 0.80 µs | 0.75 µs | 3.8 µs | 3.0 µs |
//!
//! `per_reader`: 45 ns a reader.

use std::env;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use thalweg::http::encode;
use thalweg::protocol::sse::{self, Control, Framing};

const FRAMINGS: [(&str, Framing); 4] = [
    ("lines", Framing::Lines),
    ("json_array", Framing::JsonArray),
    ("text", Framing::Text),
    ("base64", Framing::Base64),
];
const MESSAGE_BYTES: usize = 100;
/// Messages in one event, as when several appends are merged.
const MESSAGES: [usize; 2] = [1, 100];
const CONTROL: Control = Control {
    next: 123_456_789,
    cursor: 9_876,
    up_to_date: true,
    closed: false,
};

fn main() {
    divan::main();
}

/// Stored lines of JSON.
fn stored(messages: usize) -> Vec<u8> {
    let line = format!("\"{}\"\n", "x".repeat(MESSAGE_BYTES - 3));
    line.repeat(messages).into_bytes()
}

fn event(framing: Framing, stored: &[u8], out: &mut Vec<u8>) {
    out.clear();
    assert!(sse::data_event(framing, stored, false, out));
}

#[divan::bench(args = FRAMINGS.map(|framing| framing.0), consts = MESSAGES)]
fn data_event<const COUNT: usize>(bencher: Bencher<'_, '_>, name: &str) {
    let framing = FRAMINGS
        .into_iter()
        .find(|framing| framing.0 == name)
        .expect("a name from the list")
        .1;
    let stored = stored(COUNT);
    let mut out = Vec::new();
    bencher
        .counter(BytesCount::new(stored.len()))
        .bench_local(|| event(framing, black_box(&stored), &mut out));
    check(framing, &stored, &out);
}

/// A control event and the chunk, for each of so many readers.
#[divan::bench(args = [1_000])]
fn per_reader(bencher: Bencher<'_, '_>, readers: usize) {
    // Under `cargo test` there is no `--bench`.
    let full = env::args().any(|arg| arg == "--bench");
    let readers = if full { readers } else { 10 };
    let mut shared = Vec::new();
    event(Framing::JsonArray, &stored(1), &mut shared);
    let mut control = Vec::new();
    let mut buffers = vec![Vec::new(); readers];
    bencher.counter(ItemsCount::new(readers)).bench_local(|| {
        for out in &mut buffers {
            control.clear();
            sse::control_event(black_box(&CONTROL), &mut control);
            out.clear();
            encode::chunk_start(out, (shared.len() + control.len()) as u64);
            out.extend_from_slice(&shared);
            out.extend_from_slice(&control);
            encode::chunk_end(out);
        }
    });
    for out in &buffers {
        let text = std::str::from_utf8(out).expect("text");
        let (size, rest) = text.split_once("\r\n").expect("a size line");
        let size = usize::from_str_radix(size, 16).expect("hexadecimal");
        assert_eq!((rest.len(), &rest[size..]), (size + 2, "\r\n"));
        assert!(rest.contains("\"streamNextOffset\":\"00000000000123456789\""));
    }
}

/// What a reader makes of the event is what was stored.
fn check(framing: Framing, stored: &[u8], event: &[u8]) {
    let text = std::str::from_utf8(event).expect("text");
    let body = text
        .strip_prefix("event: data\n")
        .and_then(|rest| rest.strip_suffix("\n\n"))
        .expect("one event");
    let lines: Vec<&str> = body
        .split('\n')
        .map(|line| line.strip_prefix("data:").expect("a data line"))
        .collect();
    let data = lines.join("\n");
    let stored_text = std::str::from_utf8(stored).expect("text");
    match framing {
        Framing::Lines | Framing::Text => assert_eq!(data, stored_text),
        Framing::JsonArray => {
            let found: Vec<String> = serde_json::from_str(&data).expect("an array");
            let expected: Vec<String> = stored_text
                .lines()
                .map(|line| serde_json::from_str(line).expect("a string"))
                .collect();
            assert_eq!(found, expected);
        }
        Framing::Base64 => assert_eq!(STANDARD.decode(data).expect("base64"), stored),
    }
}
