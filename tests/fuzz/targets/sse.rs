//! Event text, read back by the rules of the HTML standard (section 9.2.6).
//!
//! Input: one byte for the framing, then what a stream holds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use thalweg::json::normalise;
use thalweg::protocol::sse::{Control, Framing, control_event, data_event, whole_characters};

use super::{Target, chance, cuts, kind, magnitude, to_vecs};

/// The target.
pub const SSE: Target = Target {
    name: "sse",
    seeds,
    words: &[
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b" ",
        b":",
        b"data:",
        b"event:",
        b"id:",
        b"retry:",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xe2",
        b"\xf0\x9f",
        b"\xff",
        b"\0",
        b"\xef\xbb\xbf",
    ],
    check,
};

fn seeds() -> Vec<Vec<u8>> {
    to_vecs(&[
        b"\0a\r\nb\n\rc\n\n event: data\ndata: x\n\n",
        b"\0\xc2\x85\xe2\x80\xa8 \xff\xe2\x82",
        b"\x01[1,{\"a\":\" b\\n\"},[],\"\"]",
        b"\x02[1,{\"a\":\" b\\n\"},[],\"\"]",
        b"\x03\0\n\r\xff",
    ])
}

fn check(input: &[u8]) -> u64 {
    let Some((&mode, content)) = input.split_first() else {
        return 0;
    };
    let count = match mode & 3 {
        0 => text(content),
        3 => binary(content),
        lines => messages(content, lines == 1),
    };
    let control = Control {
        next: u64::from(mode) << 56,
        cursor: u64::from(mode),
        up_to_date: mode & 4 != 0,
        closed: mode & 8 != 0,
    };
    let mut out = Vec::new();
    control_event(&control, &mut out);
    let [(name, data)] = &events(&out)[..] else {
        panic!("a control event is one event");
    };
    assert_eq!(name, "control");
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let next = format!("{:020}", control.next);
    assert_eq!(data["streamNextOffset"], next);
    assert_eq!(data["streamClosed"] == true, control.closed);
    assert_eq!(data["upToDate"] == true, control.up_to_date);
    assert_eq!(data["streamCursor"].is_string(), !control.closed);
    kind((mode & 15, magnitude(count), magnitude(content.len())))
}

/// Text arrives with its line ends as LF, all else exact, in as many events as there are pieces.
fn text(content: &[u8]) -> usize {
    let meant = String::from_utf8_lossy(content)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let (mut out, mut waiting, mut before) = (Vec::new(), Vec::new(), 0);
    let (mut start, mut written) = (0, 0);
    let cuts = cuts(&mut chance(content), content.len());
    for &cut in &cuts {
        waiting.extend_from_slice(&content[start..cut]);
        start = cut;
        let whole = if cut == content.len() {
            waiting.len()
        } else {
            whole_characters(&waiting)
        };
        let rest = waiting.split_off(whole);
        let after_cr = before == b'\r';
        written += usize::from(data_event(Framing::Text, &waiting, after_cr, &mut out));
        before = waiting.last().copied().unwrap_or(before);
        waiting = rest;
    }
    let events = events(&out);
    assert_eq!(events.len(), written);
    assert!(events.iter().all(|(kind, _)| kind == "data"));
    let arrived: String = events.into_iter().map(|(_, data)| data).collect();
    assert_eq!(arrived, meant, "cut at {cuts:?}");
    written
}

fn binary(content: &[u8]) -> usize {
    let mut out = Vec::new();
    if data_event(Framing::Base64, content, false, &mut out) {
        let [(_, data)] = &events(&out)[..] else {
            panic!("one event");
        };
        assert_eq!(STANDARD.decode(data).expect("base64"), content);
    } else {
        assert!(content.is_empty() && out.is_empty());
    }
    1
}

fn messages(content: &[u8], as_lines: bool) -> usize {
    let mut stored = Vec::new();
    if normalise(content, &mut stored).is_err() || stored.is_empty() {
        return 0;
    }
    let framing = if as_lines {
        Framing::Lines
    } else {
        Framing::JsonArray
    };
    let mut out = Vec::new();
    assert!(data_event(framing, &stored, false, &mut out));
    let [(_, data)] = &events(&out)[..] else {
        panic!("one event");
    };
    if as_lines {
        assert_eq!(data.as_bytes(), stored);
    } else {
        let mut again = Vec::new();
        normalise(data.as_bytes(), &mut again).expect("an array");
        assert_eq!(again, stored);
    }
    stored.len()
}

/// The events of a stream: their kinds and data.
fn events(stream: &[u8]) -> Vec<(String, String)> {
    let text = std::str::from_utf8(stream).expect("event streams are UTF-8");
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut kind, mut data) = (Vec::new(), String::new(), Vec::new());
    for line in text.split('\n') {
        if line.is_empty() {
            if !data.is_empty() {
                events.push((std::mem::take(&mut kind), data.join("\n")));
            }
            kind.clear();
            data.clear();
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => {}
            "event" => kind = value.to_owned(),
            "data" => data.push(value.to_owned()),
            other => panic!("a field {other:?} that nobody wrote"),
        }
    }
    assert!(
        data.is_empty() && kind.is_empty(),
        "an event without an end"
    );
    events
}
