//! Server-sent events: Base 5.8 and 10.1, Extensions 7, 9.3, 9.4 and 9.5,
//! Decisions "Live reads, lifetimes, browsers".

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ursula_headers::{ErrorBody, ErrorCode};

use crate::common::server::{Options, Server};
use crate::common::sse::{Event, EventSource};
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    catch_up_then_live,
    one_control_event_after_every_data_event,
    now_starts_at_the_tail,
    binary_is_base64,
    text_is_sent_as_it_is,
    json_lines_on_the_bucket_surface,
    json_array_on_the_base_surface,
    headers_forbid_buffering_and_storing,
    never_compressed,
    what_cannot_start_answers_with_its_status,
    a_closed_stream_ends_with_its_closure,
    append_and_close_is_data_then_closure,
    close_only_ends_an_open_response,
    deletion_ends_it_with_an_error_event,
    recreation_ends_it_with_an_error_event,
    text_cannot_forge_events,
    carriage_returns_arrive_as_line_feeds,
    a_character_is_never_split,
    an_incomplete_character_is_held_until_completed,
    an_incomplete_character_of_a_closed_stream_is_replaced,
    invalid_utf8_is_replaced,
    max_bytes_bounds_each_event,
    max_bytes_holds_a_whole_character,
    an_event_is_capped_at_8_mib,
    the_cursor_moves_past_the_clients,
    every_reader_gets_every_event_once,
    readers_that_wait_together_each_get_their_own_form,
    a_reader_that_pauses_misses_nothing,
    reading_resumes_where_a_reader_left,
];

fn text(event: &Event) -> Vec<u8> {
    event.data.clone().into_bytes()
}

/// Base 5.8: what is there, then what comes.
fn catch_up_then_live(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "old");
        let mut events = stream.sse("-1");
        assert_eq!(events.expect("data").data, "old");
        let control = events.control();
        assert_eq!(control["streamNextOffset"], offset(3));
        assert_eq!(control["upToDate"], true);
        assert!(control["streamCursor"].is_string(), "{control}");
        assert!(control.get("streamClosed").is_none(), "{control}");
        for (round, tail) in [("new", 6), ("newer", 11)] {
            stream.append(TEXT, round);
            assert_eq!(events.expect("data").data, round);
            let control = events.control();
            assert_eq!(control["streamNextOffset"], offset(tail));
            assert_eq!(control["upToDate"], true);
        }
    }
}

/// Base 5.8 and Decisions: one control event after every data event, here under load.
fn one_control_event_after_every_data_event(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let mut events = stream.sse("-1");
        events.control();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    stream.append(OCTETS, "12345678");
                }
            });
            let mut read = 0;
            while read < 400 {
                read += events.expect("data").bytes().len();
                assert_eq!(events.control()["streamNextOffset"], offset(read));
            }
            assert_eq!(read, 400);
        });
    }
}

/// Base 8, `now` in SSE mode: the tail at once, no history.
fn now_starts_at_the_tail(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "history");
        let mut events = stream.sse("now");
        let control = events.control();
        assert_eq!(control["streamNextOffset"], offset(7));
        assert_eq!(control["upToDate"], true);
        stream.append(TEXT, "x");
        assert_eq!(events.expect("data").data, "x");
    }
}

/// Extensions 9.5: base64, the stream's own content type, the offset past the decoded bytes.
fn binary_is_base64(server: &Server) {
    let every_byte: Vec<u8> = (0..=255).collect();
    for surface in SURFACES {
        for content_type in [OCTETS, "image/png", "application/x-protobuf"] {
            let stream = Stream::with_body(server, surface, content_type, &every_byte);
            let mut events = stream.sse("-1");
            assert_eq!(
                events.head.header("stream-sse-data-encoding"),
                Some("base64")
            );
            assert_eq!(
                events.head.header("stream-data-content-type"),
                Some(content_type)
            );
            let (bytes, control) = events.until_up_to_date(Event::bytes);
            assert_eq!(bytes, every_byte);
            assert_eq!(control["streamNextOffset"], offset(256));
        }
    }
}

/// Base 5.8: `text/*` is carried as text, without the encoding header.
fn text_is_sent_as_it_is(server: &Server) {
    for surface in SURFACES {
        for content_type in [TEXT, "text/html", "text/plain; charset=utf-8"] {
            let stream = Stream::with_body(server, surface, content_type, "grüße\n 🦀\n\n");
            let mut events = stream.sse("-1");
            assert_eq!(events.head.header("stream-sse-data-encoding"), None);
            let (bytes, _) = events.until_up_to_date(text);
            assert_eq!(String::from_utf8_lossy(&bytes), "grüße\n 🦀\n\n");
        }
    }
}

/// Extensions 9.4 and Decisions, Two surfaces: stored lines; the last LF is kept.
fn json_lines_on_the_bucket_surface(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[{\"a\": 1}, 2]");
    let mut events = stream.sse("-1");
    assert_eq!(
        events.head.header("stream-data-content-type"),
        Some("application/x-ndjson")
    );
    assert_eq!(events.head.header("stream-sse-data-encoding"), None);
    assert_eq!(events.expect("data").data, "{\"a\":1}\n2\n");
    assert_eq!(events.control()["streamNextOffset"], offset(10));
    stream.append(JSON, "\"live\"");
    assert_eq!(events.expect("data").data, "\"live\"\n");
}

/// Base 5.8: a JSON array across `data:` lines.
fn json_array_on_the_base_surface(server: &Server) {
    let stream = Stream::with_body(server, Surface::Base, JSON, "[{\"a\": 1}, 2]");
    let mut events = stream.sse("-1");
    assert_eq!(events.head.header("stream-sse-data-encoding"), None);
    assert_eq!(events.expect("data").json(), json!([{"a": 1}, 2]));
    assert_eq!(events.control()["upToDate"], true);
    stream.append(JSON, "\"live\"");
    assert_eq!(events.expect("data").json(), json!(["live"]));
}

/// Decisions and protocol case 10: no proxy stores, transforms or buffers it.
fn headers_forbid_buffering_and_storing(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let incarnation = stream.head().send().incarnation();
        let events = stream.sse("-1");
        let directives = events.head.header("cache-control").unwrap_or_default();
        for directive in ["no-cache", "no-store", "no-transform"] {
            assert!(directives.contains(directive), "{:?}", events.head);
        }
        assert_eq!(events.head.header("x-accel-buffering"), Some("no"));
        assert_eq!(events.head.header("content-length"), None);
        // Extensions 2.4: the SSE response carries it.
        assert_eq!(
            events.head.header("stream-incarnation"),
            Some(incarnation.as_str())
        );
    }
}

/// Protocol case 10: never compressed, whatever the client accepts.
fn never_compressed(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "x".repeat(10_000));
        let request = stream
            .get("offset=-1&live=sse")
            .header("Accept-Encoding", "gzip, br, deflate");
        let mut events = EventSource::open(&request);
        assert_eq!(events.head.header("content-encoding"), None);
        assert_eq!(events.until_up_to_date(text).0.len(), 10_000);
    }
}

/// Decisions, Errors: 404, 410, 412 and 416 are statuses, not events.
fn what_cannot_start_answers_with_its_status(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    stream
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    stream.request("PUT", "/retention/4").send().expect(204);
    let sse = |query: &str| stream.get(&format!("live=sse&offset={query}"));
    sse("3").send().expect_error(410, ErrorCode::StreamGone);
    sse("-1").send().expect_error(410, ErrorCode::StreamGone);
    sse("11")
        .send()
        .expect_error(416, ErrorCode::OffsetOutOfRange);
    let other = if stream.head().send().incarnation() == "1" {
        "2"
    } else {
        "1"
    };
    sse("4")
        .header("Stream-Incarnation", other)
        .send()
        .expect_error(412, ErrorCode::IncarnationMismatch);
    let absent = Stream::absent(server, Surface::Bucket);
    absent
        .get("live=sse&offset=-1")
        .send()
        .expect_error(404, ErrorCode::StreamNotFound);
}

/// Base 5.8, Stream Closure: data, `streamClosed`, the end; at the tail the control event alone.
fn a_closed_stream_ends_with_its_closure(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "all");
        stream.close();
        let mut events = stream.sse("-1");
        assert_eq!(events.expect("data").data, "all");
        let control = events.control();
        assert_eq!(control["streamClosed"], true);
        assert_eq!(control["streamNextOffset"], offset(3));
        events.expect_end();
        for at in ["now", "3"] {
            let mut events = stream.sse(at);
            let control = events.control();
            assert_eq!(control["streamClosed"], true);
            assert_eq!(control["upToDate"], true);
            assert_eq!(control["streamNextOffset"], offset(3));
            events.expect_end();
        }
    }
}

/// Protocol case 1: append-and-close while a reader sits at the tail, with varied delays: the data
/// first, then the closing control event.
fn append_and_close_is_data_then_closure(server: &Server) {
    for surface in SURFACES {
        for delay in [0, 0, 1, 5, 20, 100] {
            let stream = Stream::create(server, surface, TEXT);
            let mut events = stream.sse("-1");
            events.control();
            thread::sleep(Duration::from_millis(delay));
            let post = stream
                .post()
                .header("Content-Type", TEXT)
                .header("Stream-Closed", "true");
            post.body("last").send().expect(204);
            assert_eq!(events.expect("data").data, "last");
            assert_eq!(events.control()["streamClosed"], true);
            events.expect_end();
        }
    }
}

/// Base 5.8: closure without data is a control event.
fn close_only_ends_an_open_response(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "x");
        let mut events = stream.sse("now");
        events.control();
        stream.close();
        let control = events.control();
        assert_eq!(control["streamClosed"], true);
        assert_eq!(control["streamNextOffset"], offset(1));
        events.expect_end();
    }
}

#[track_caller]
fn expect_error_event(events: &mut EventSource) -> ErrorCode {
    let event = events.expect("error");
    let body = ErrorBody::parse(event.data.as_bytes()).expect("its data is the error body");
    events.expect_end();
    body.code
}

/// Extensions 2.4: an SSE stream ends with an error event when its stream is deleted.
fn deletion_ends_it_with_an_error_event(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let mut events = stream.sse("-1");
        events.control();
        stream.delete().send().expect(204);
        assert_eq!(expect_error_event(&mut events), ErrorCode::StreamNotFound);
    }
}

/// Extensions 2.4: and when it is recreated: nothing of the new stream is shown.
fn recreation_ends_it_with_an_error_event(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let mut events = stream.sse("-1");
        events.control();
        stream.delete().send().expect(204);
        stream
            .put()
            .header("Content-Type", TEXT)
            .body("other")
            .send()
            .expect(201);
        let code = expect_error_event(&mut events);
        assert!(
            [ErrorCode::StreamNotFound, ErrorCode::IncarnationMismatch].contains(&code),
            "{code}"
        );
    }
}

/// Protocol case 9: one payload is one event, exact but for CR; it cannot forge an event.
fn text_cannot_forge_events(server: &Server) {
    let payload = "a\n\nevent: control\ndata: {\"streamClosed\":true}\n\n:comment\nid: 7\nretry: 1\n\
                   data:x\n \n\u{85}\u{2028}\u{2029}\u{feff}\u{b}\u{c}end\n";
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let mut events = stream.sse("-1");
        events.control();
        stream.append(TEXT, payload);
        assert_eq!(events.expect("data").data, payload);
        assert_eq!(events.control()["streamNextOffset"], offset(payload.len()));
        // The same as catch-up, and from the middle of it.
        let (bytes, _) = stream.sse("-1").until_up_to_date(text);
        assert_eq!(String::from_utf8_lossy(&bytes), payload);
        let (bytes, _) = stream.sse("3").until_up_to_date(text);
        assert_eq!(String::from_utf8_lossy(&bytes), payload[3..]);
    }
}

/// Decisions: CR and CRLF arrive as LF; offsets count stored bytes.
fn carriage_returns_arrive_as_line_feeds(server: &Server) {
    let payload = "a\rb\r\nc\n\rd\r\r\n\r";
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, payload);
        let (bytes, control) = stream.sse("-1").until_up_to_date(text);
        assert_eq!(String::from_utf8_lossy(&bytes), "a\nb\nc\n\nd\n\n\n");
        assert_eq!(control["streamNextOffset"], offset(payload.len()));
        assert_eq!(stream.read_all(), payload.as_bytes());
    }
}

/// Extensions 9.3 and issue 3: a text event never splits a character.
fn a_character_is_never_split(server: &Server) {
    let payload = "aä€🦀".repeat(40);
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, &payload);
        for max_bytes in [4, 5, 6, 7, 11] {
            let query = format!("offset=-1&live=sse&max_bytes={max_bytes}");
            let mut events = EventSource::open(&stream.get(&query));
            let (bytes, control) = events.until_up_to_date(|event| {
                assert!(!event.data.contains('\u{fffd}'), "split: {event:?}");
                assert!(event.data.len() <= max_bytes, "too long: {event:?}");
                text(event)
            });
            assert_eq!(String::from_utf8_lossy(&bytes), payload);
            assert_eq!(control["streamNextOffset"], offset(payload.len()));
        }
    }
}

/// Decisions: an incomplete character at the tail is held, without claiming up-to-date.
fn an_incomplete_character_is_held_until_completed(server: &Server) {
    let crab = "🦀".as_bytes();
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        stream.append(TEXT, [b"ab", &crab[..2]].concat());
        let mut events = stream.sse("-1");
        assert_eq!(events.expect("data").data, "ab");
        let control = events.control();
        assert_eq!(control["streamNextOffset"], offset(2));
        assert_ne!(control["upToDate"], true, "two bytes are held: {control}");
        stream.append(TEXT, &crab[2..]);
        assert_eq!(events.expect("data").data, "🦀");
        let control = events.control();
        assert_eq!(control["streamNextOffset"], offset(6));
        assert_eq!(control["upToDate"], true);
    }
}

/// Decisions: ... or until closed, when it becomes U+FFFD.
fn an_incomplete_character_of_a_closed_stream_is_replaced(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        stream.append(TEXT, b"ab\xf0\x9f");
        let mut events = stream.sse("-1");
        assert_eq!(events.expect("data").data, "ab");
        events.control();
        stream.close();
        let last = events.expect("data");
        assert!(last.data.chars().all(|c| c == '\u{fffd}'), "{last:?}");
        let control = events.control();
        assert_eq!(control["streamNextOffset"], offset(4));
        assert_eq!(control["streamClosed"], true);
        events.expect_end();
    }
}

/// Decisions: invalid UTF-8 becomes U+FFFD; the offsets count what is stored.
fn invalid_utf8_is_replaced(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, b"a\xffb\xc0\x80c\xed\xa0\x80d\x80e");
        let (bytes, control) = stream.sse("-1").until_up_to_date(text);
        let shown = String::from_utf8(bytes).expect("events are UTF-8");
        let kept: String = shown.chars().filter(|c| *c != '\u{fffd}').collect();
        assert_eq!(kept, "abcde", "of {shown:?}");
        assert_eq!(
            shown.matches('\u{fffd}').count(),
            7,
            "one for each bad byte: {shown:?}"
        );
        assert_eq!(control["streamNextOffset"], offset(12));
    }
}

/// Extensions 9.3: `max_bytes` bounds each data event; only the last is up to date.
fn max_bytes_bounds_each_event(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "0123456789");
        for (max_bytes, step) in [(0, 1), (1, 1), (3, 3), (10, 10)] {
            let query = format!("offset=-1&live=sse&max_bytes={max_bytes}");
            let mut events = EventSource::open(&stream.get(&query));
            let mut at = 0;
            while at < 10 {
                let bytes = events.expect("data").bytes();
                assert_eq!(bytes, "0123456789".as_bytes()[at..(at + step).min(10)]);
                at += bytes.len();
                let control = events.control();
                assert_eq!(control["streamNextOffset"], offset(at));
                assert_eq!(control["upToDate"] == true, at == 10, "{control}");
            }
        }
    }
}

/// Extensions 9.3 and Decisions: on text SSE a smaller value counts as 4.
fn max_bytes_holds_a_whole_character(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "🦀🦀");
        for max_bytes in ["0", "1", "3"] {
            let query = format!("offset=-1&live=sse&max_bytes={max_bytes}");
            let mut events = EventSource::open(&stream.get(&query));
            for _ in 0..2 {
                assert_eq!(events.expect("data").data, "🦀");
                events.control();
            }
        }
    }
}

/// Extensions 9.3: no data event holds more than 8 MiB of stored bytes.
fn an_event_is_capped_at_8_mib(server: &Server) {
    const CAP: usize = 8 << 20;
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let half: Vec<u8> = (0..CAP / 2)
        .map(|position| (position % 253) as u8)
        .collect();
    for _ in 0..5 {
        stream.append(OCTETS, &half);
    }
    let mut largest = 0;
    let sizes = std::cell::RefCell::new(Vec::new());
    let (bytes, _) = stream.sse("-1").until_up_to_date(|event| {
        let bytes = event.bytes();
        sizes.borrow_mut().push(bytes.len());
        bytes
    });
    for size in sizes.into_inner() {
        largest = largest.max(size);
    }
    assert!(largest <= CAP, "an event of {largest} bytes");
    assert!(bytes == half.repeat(5), "wrong bytes");
}

/// Base 10.1: the control event's cursor moves past the client's own.
fn the_cursor_moves_past_the_clients(server: &Server) {
    let cursor = |control: &Value| -> u64 {
        let text = control["streamCursor"]
            .as_str()
            .unwrap_or_else(|| panic!("no cursor: {control}"));
        text.parse().expect("a cursor is an interval number")
    };
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let first = cursor(&stream.sse("-1").control());
        for ahead in [first, first + 1_000] {
            let query = format!("offset=-1&live=sse&cursor={ahead}");
            let control = EventSource::open(&stream.get(&query)).control();
            assert!(cursor(&control) > ahead, "{control} does not pass {ahead}");
        }
    }
}

/// Design, Fan-out: every reader gets every byte once, in order, whatever core it is on.
fn every_reader_gets_every_event_once(server: &Server) {
    const READERS: usize = 24;
    const APPENDS: usize = 60;
    let stream = Stream::create(server, Surface::Base, TEXT);
    let expected: String = (0..APPENDS).map(|number| format!("{number:03},")).collect();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut events = stream.sse("-1");
                    let mut read = String::new();
                    while read.len() < expected.len() {
                        let event = events.next_event().expect("the response goes on");
                        if event.kind == "data" {
                            read.push_str(&event.data);
                        }
                    }
                    read
                })
            })
            .collect();
        for number in 0..APPENDS {
            stream.append(TEXT, format!("{number:03},"));
        }
        for reader in readers {
            assert_eq!(reader.join().expect("no reader panics"), expected);
        }
    });
}

/// Design, Fan-out: those who wait together are written to in one go, each as it asked: both
/// surfaces, its own `max_bytes`, past its own cursor.
fn readers_that_wait_together_each_get_their_own_form(server: &Server) {
    const AHEAD: u64 = 1 << 40;
    let base = Stream::create(server, Surface::Base, JSON);
    let bucket = base.on(Surface::Bucket);
    let open = |stream: &Stream, query: &str| {
        let query = format!("offset=now&live=sse{query}");
        let mut events = EventSource::open(&stream.get(&query));
        events.control();
        events
    };
    let cursor = format!("&cursor={AHEAD}");
    let mut readers: Vec<(Surface, bool, EventSource)> = (0..12)
        .map(|number| match number % 4 {
            0 => (Surface::Base, false, open(&base, "")),
            1 => (Surface::Bucket, false, open(&bucket, "")),
            2 => (Surface::Base, false, open(&base, "&max_bytes=1")),
            _ => (Surface::Bucket, true, open(&bucket, &cursor)),
        })
        .collect();
    let mut tail = 0;
    for round in 0..5 {
        let messages = [json!(round * 10), json!(round * 10 + 1)];
        base.append(JSON, json!(messages).to_string());
        tail += messages
            .iter()
            .map(|message| message.to_string().len() + 1)
            .sum::<usize>();
        for (surface, is_ahead, events) in &mut readers {
            let mut read = Vec::new();
            loop {
                let event = events.expect("data");
                let control = events.control();
                match surface {
                    Surface::Base => {
                        read.extend(event.json().as_array().expect("an array").iter().cloned());
                    }
                    Surface::Bucket => read.extend(
                        event
                            .data
                            .lines()
                            .map(|line| serde_json::from_str::<Value>(line).expect("a message")),
                    ),
                }
                let cursor = control["streamCursor"].as_str().expect("a cursor");
                let cursor: u64 = cursor.parse().expect("a number");
                assert_eq!(cursor > AHEAD, *is_ahead, "{control}");
                if control["upToDate"] == true {
                    assert_eq!(control["streamNextOffset"], offset(tail));
                    break;
                }
            }
            assert_eq!(read, messages);
        }
    }
}

/// Design, Memory: a slow reader costs its socket's buffer and a position; it goes on where it was,
/// also in the middle of an event, and holds up nobody.
fn a_reader_that_pauses_misses_nothing(server: &Server) {
    const APPENDS: usize = 48;
    let stream = Stream::create(server, Surface::Base, OCTETS);
    let body = |number: usize| -> Vec<u8> {
        (0..512 * 1024)
            .map(|position| (position * 7 + number) as u8)
            .collect()
    };
    let mut slow = stream.sse("-1");
    slow.control();
    let mut quick = stream.sse("-1");
    quick.control();
    let read = |events: &mut EventSource, number: usize| {
        let expected = body(number);
        let mut read = Vec::new();
        while read.len() < expected.len() {
            read.extend(events.expect("data").bytes());
            events.control();
        }
        assert!(read == expected, "other bytes in append {number}");
    };
    for number in 0..APPENDS {
        stream.append(OCTETS, body(number));
        read(&mut quick, number);
    }
    let mut position = 0;
    let end = APPENDS * body(0).len();
    let mut expected = (0..APPENDS).flat_map(body);
    while position < end {
        let bytes = slow.expect("data").bytes();
        position += bytes.len();
        assert_eq!(slow.control()["streamNextOffset"], offset(position));
        assert!(
            bytes.iter().all(|byte| expected.next() == Some(*byte)),
            "other bytes before {position}"
        );
    }
    stream.append(OCTETS, "the end");
    assert_eq!(slow.expect("data").bytes(), b"the end");
}

/// Base 5.8, Connection Lifecycle: a client goes on from the last control event.
fn reading_resumes_where_a_reader_left(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let mut at = "-1".to_owned();
        let mut read = String::new();
        for number in 0..10 {
            stream.append(TEXT, format!("{number},"));
            let mut events = stream.sse(&at);
            read.push_str(&events.expect("data").data);
            at = events.control()["streamNextOffset"]
                .as_str()
                .expect("a string")
                .to_owned();
        }
        assert_eq!(read, "0,1,2,3,4,5,6,7,8,9,");
    }
}

/// Decisions: a comment frame keeps an idle response alive; the interval is a setting.
#[test]
fn an_idle_response_is_kept_alive_by_comments() {
    let server = Options::new(1).flag("sse-heartbeat", "200ms").start();
    for surface in SURFACES {
        let stream = Stream::create(&server, surface, TEXT);
        let mut events = stream.sse("-1");
        for _ in 0..3 {
            assert!(
                events.next_comment().is_some(),
                "ended instead of a comment"
            );
        }
        stream.append(TEXT, "x");
        events.control();
        assert_eq!(events.expect("data").data, "x");
    }
}

/// Decisions: a response ends after its time with a control event, and the client goes on.
#[test]
fn a_response_ends_after_its_time_with_a_control_event() {
    let server = Options::new(1).flag("sse-duration", "1s").start();
    for surface in SURFACES {
        let stream = Stream::with_body(&server, surface, TEXT, "abc");
        let started = Instant::now();
        let mut events = stream.sse("-1");
        assert_eq!(events.expect("data").data, "abc");
        let mut last = events.control();
        while let Some(event) = events.next_event() {
            assert_eq!(event.kind, "control");
            last = event.json();
        }
        assert!(
            started.elapsed() >= Duration::from_millis(900),
            "it ended early"
        );
        assert_eq!(last["streamNextOffset"], offset(3));
        assert!(last.get("streamClosed").is_none(), "{last}");
    }
}

/// Deliver, lifecycle: SIGTERM ends live reads with a clean last event; the process exits with 0.
#[test]
fn a_shutdown_ends_responses_cleanly() {
    let server = Options::new(4).start();
    let stream = Stream::with_body(&server, Surface::Base, TEXT, "abc");
    let mut readers: Vec<EventSource> = (0..8).map(|_| stream.sse("-1")).collect();
    for events in &mut readers {
        events.expect("data");
        events.control();
    }
    let (status, _) = server.terminate();
    assert!(status.success(), "ended with {status}");
    for events in &mut readers {
        // Nothing but whole events, and a proper end of the body.
        while let Some(event) = events.next_event() {
            assert_eq!(event.kind, "control");
            assert!(event.json().get("streamClosed").is_none(), "{event:?}");
        }
    }
}
