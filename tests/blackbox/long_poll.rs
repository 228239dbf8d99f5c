//! Long-poll: Base 5.7 and 10.1, Extensions 9.1.

use std::thread;
use std::time::{Duration, Instant};

use ursula_headers::ErrorCode;

use crate::common::http::{Connection, Response};
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, offset};

at_1_and_4_shards![
    data_is_answered_at_once,
    without_data_204_after_the_timeout,
    timeout_is_clamped,
    an_append_wakes_every_waiter,
    an_append_between_reads_is_never_missed,
    now_waits_for_what_comes,
    a_closed_stream_is_answered_at_once,
    closing_wakes_a_waiter,
    max_bytes_bounds_an_answer,
    deleting_wakes_a_waiter_with_404,
    recreating_answers_404_or_412,
    the_cursor_repeats_within_its_interval,
    the_cursor_moves_past_the_clients,
    a_foreign_cursor_is_no_error,
    waiting_sends_no_interim_answer,
    an_empty_json_wait_is_204,
    answers_before_a_wait_do_not_wait,
];

fn long_poll(stream: &Stream<'_>, query: &str) -> Response {
    stream.get(&format!("live=long-poll&{query}")).send()
}

fn cursor(answer: &Response) -> u64 {
    answer
        .expect_header("stream-cursor")
        .parse()
        .expect("a cursor is an interval number")
}

/// Base 5.7: data that is there is answered, with the cursor.
fn data_is_answered_at_once(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        // A minute's wait would outlast the client's patience.
        let answer = long_poll(&stream, "offset=1&timeout_ms=60000")
            .expect(200)
            .expect_body("bc");
        let answer = answer
            .expect_field("stream-up-to-date", "true")
            .expect_no_field("stream-closed");
        assert_eq!(answer.next_offset(), offset(3));
        assert_eq!(answer.incarnation(), stream.head().send().incarnation());
        cursor(&answer);
    }
}

/// Base 5.7: 204 with the tail, up to date, with a cursor; protocol case 8: `no-store`.
fn without_data_204_after_the_timeout(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        let started = Instant::now();
        let answer = long_poll(&stream, "offset=3&timeout_ms=300")
            .expect(204)
            .expect_body("");
        assert!(
            started.elapsed() >= Duration::from_millis(300),
            "it did not wait"
        );
        let answer = answer
            .expect_field("stream-up-to-date", "true")
            .expect_no_field("stream-closed");
        assert_eq!(answer.next_offset(), offset(3));
        assert_eq!(answer.incarnation(), stream.head().send().incarnation());
        assert!(
            answer.expect_header("cache-control").contains("no-store"),
            "{answer}"
        );
        cursor(&answer);
    }
}

/// Extensions 9.1: a parsed value is clamped to 1..60000, an unparseable one is the default,
/// which is 1000 on the bucket surface.
fn timeout_is_clamped(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    long_poll(&stream, "offset=0&timeout_ms=0").expect(204);
    for default in ["", "&timeout_ms=abc", "&timeout_ms=-5", "&timeout_ms="] {
        let started = Instant::now();
        long_poll(&stream, &format!("offset=0{default}")).expect(204);
        assert!(
            started.elapsed() >= Duration::from_millis(1000),
            "{default:?} did not wait 1 s"
        );
    }
}

/// Base 5.7: waiters get what arrives; all of them, whatever core they wait on.
fn an_append_wakes_every_waiter(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..16)
                .map(|_| scope.spawn(|| long_poll(&stream, "offset=0&timeout_ms=60000")))
                .collect();
            // Some wait already, some will find the data there: both must do.
            thread::sleep(Duration::from_millis(200));
            stream.append(OCTETS, "woke");
            for waiter in waiters {
                let answer = waiter.join().expect("no waiter panics").expect(200);
                let answer = answer
                    .expect_body("woke")
                    .expect_field("stream-up-to-date", "true");
                cursor(&answer);
            }
        });
    }
}

/// Design, Fan-out: a reader registers in the turn that read the tail, so nothing falls between.
fn an_append_between_reads_is_never_missed(server: &Server) {
    const APPENDS: usize = 200;
    let stream = Stream::create(server, Surface::Base, OCTETS);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..APPENDS {
                stream.append(OCTETS, "x");
            }
        });
        let mut read = 0;
        while read < APPENDS {
            let answer = long_poll(
                &stream,
                &format!("offset={}&timeout_ms=60000", offset(read)),
            );
            read += answer.expect(200).body.len();
        }
        assert_eq!(read, APPENDS);
    });
}

/// Base 8, `now`: it waits, and answers only what comes.
fn now_waits_for_what_comes(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "old");
        let waiting = long_poll(&stream, "offset=now&timeout_ms=100").expect(204);
        assert_eq!(waiting.next_offset(), offset(3));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| long_poll(&stream, "offset=now&timeout_ms=3000"));
            // Append until the waiter is answered: it may register late.
            let mut appended = 3;
            while !waiter.is_finished() {
                appended += 3;
                stream.append(OCTETS, "new");
                thread::sleep(Duration::from_millis(100));
            }
            let answer = waiter
                .join()
                .expect("the waiter does not panic")
                .expect(200);
            assert!(answer.body.starts_with(b"new"), "{answer}");
            assert!(answer.next_offset() <= offset(appended));
        });
    }
}

/// Base 5.7: at the tail of a closed stream it must not wait.
fn a_closed_stream_is_answered_at_once(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        stream.close();
        for query in ["offset=3", "offset=now"] {
            let answer = long_poll(&stream, &format!("{query}&timeout_ms=60000")).expect(204);
            let answer = answer.expect_field("stream-closed", "true");
            let answer = answer.expect_field("stream-up-to-date", "true");
            assert_eq!(answer.next_offset(), offset(3));
        }
        long_poll(&stream, "offset=0")
            .expect(200)
            .expect_body("abc")
            .expect_field("stream-closed", "true");
    }
}

/// Base 4.1, Observable: a waiter learns of the closure.
fn closing_wakes_a_waiter(server: &Server) {
    for surface in SURFACES {
        for body in ["", "last"] {
            let stream = Stream::create(server, surface, OCTETS);
            thread::scope(|scope| {
                let waiter = scope.spawn(|| long_poll(&stream, "offset=0&timeout_ms=60000"));
                thread::sleep(Duration::from_millis(100));
                let post = stream.post().header("Content-Type", OCTETS);
                post.header("Stream-Closed", "true")
                    .body(body)
                    .send()
                    .expect(204);
                let status = if body.is_empty() { 204 } else { 200 };
                let answer = waiter
                    .join()
                    .expect("the waiter does not panic")
                    .expect(status);
                answer
                    .expect_body(body)
                    .expect_field("stream-closed", "true");
            });
        }
    }
}

/// Extensions 9.3: on a live read `max_bytes` bounds each answer.
fn max_bytes_bounds_an_answer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abcdef");
        let answer = long_poll(&stream, "offset=1&max_bytes=2")
            .expect(200)
            .expect_body("bc");
        let answer = answer.expect_no_field("stream-up-to-date");
        assert_eq!(answer.next_offset(), offset(3));
        cursor(&answer);
        long_poll(&stream, "offset=1&max_bytes=0")
            .expect(200)
            .expect_body("b");
    }
}

/// Extensions 2.4: a live read ends when its stream is deleted.
fn deleting_wakes_a_waiter_with_404(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| long_poll(&stream, "offset=0&timeout_ms=60000"));
            thread::sleep(Duration::from_millis(100));
            stream.delete().send().expect(204);
            let answer = waiter.join().expect("the waiter does not panic");
            answer.expect_error(404, ErrorCode::StreamNotFound);
        });
    }
}

/// Extensions 2.4: or recreated: a long-poll answers 404 or 412, never the new stream's data.
fn recreating_answers_404_or_412(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let incarnation = stream.head().send().incarnation();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                stream
                    .get("live=long-poll&offset=0&timeout_ms=60000")
                    .header("Stream-Incarnation", &incarnation)
                    .send()
            });
            thread::sleep(Duration::from_millis(100));
            stream.delete().send().expect(204);
            stream
                .put()
                .header("Content-Type", OCTETS)
                .body("other")
                .send()
                .expect(201);
            let answer = waiter.join().expect("the waiter does not panic");
            assert!(matches!(answer.status, 404 | 412), "{answer}");
        });
    }
}

/// Decisions, Live reads: the same interval gives the same cursor.
fn the_cursor_repeats_within_its_interval(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        // Three reads lie in at most two of the intervals of 20 s.
        let cursors: Vec<u64> = (0..3)
            .map(|_| cursor(&long_poll(&stream, "offset=0").expect(200)))
            .collect();
        assert!(cursors.is_sorted(), "{cursors:?}");
        assert!(
            cursors[0] == cursors[1] || cursors[1] == cursors[2],
            "{cursors:?}"
        );
    }
}

/// Base 10.1, Monotonic Progression, and protocol case 8: a client's cursor at or past the
/// interval forces a later one, by at most 3600 s.
fn the_cursor_moves_past_the_clients(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        let mut last = cursor(&long_poll(&stream, "offset=0").expect(200));
        for _ in 0..5 {
            let next = cursor(&long_poll(&stream, &format!("offset=0&cursor={last}")).expect(200));
            assert!(next > last, "the cursor stays at {last}");
            last = next;
        }
        let ahead = last + 1_000_000;
        let query = format!("offset=3&timeout_ms=1&cursor={ahead}");
        assert!(cursor(&long_poll(&stream, &query).expect(204)) > ahead);
        // An old cursor does not hold the interval back.
        let old = cursor(&long_poll(&stream, "offset=0&cursor=1").expect(200));
        assert!(old < ahead && old > 1);
    }
}

/// Base 10.1: a cursor is the server's own; a foreign one is no reason to refuse.
fn a_foreign_cursor_is_no_error(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        for foreign in [
            "abc",
            "",
            "-1",
            "18446744073709551615",
            "99999999999999999999999",
        ] {
            let answer = long_poll(&stream, &format!("offset=0&cursor={foreign}"));
            assert!(
                matches!(answer.status, 200 | 400),
                "cursor={foreign}: {answer}"
            );
        }
    }
}

/// Protocol case 12: a long-poll sends no 1xx.
fn waiting_sends_no_interim_answer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let mut connection = stream.get("live=long-poll&offset=0&timeout_ms=300").open();
        assert_eq!(connection.read_head().status, 204);
    }
}

/// Base 5.7: also for JSON streams 204, not `[]`.
fn an_empty_json_wait_is_204(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, JSON);
        long_poll(&stream, "offset=now&timeout_ms=50")
            .expect(204)
            .expect_body("");
    }
}

/// Decisions, Two surfaces: the base surface's default wait is a setting.
#[test]
fn default_wait_of_the_base_surface_is_a_setting() {
    let server = Options::new(1).flag("long-poll-timeout", "300ms").start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let started = Instant::now();
    long_poll(&stream, "offset=0").expect(204);
    assert!(
        started.elapsed() >= Duration::from_millis(300),
        "it did not wait"
    );
}

/// Deliver, lifecycle: SIGTERM answers those who wait, and the process ends by itself with 0.
#[test]
fn a_shutdown_answers_waiters() {
    // Nothing tells from outside when a request waits; where one had not been read yet, the
    // server may just close. Then the next try gives it more time.
    let answered = (1..=5).any(|attempt| {
        let server = Options::new(4).start();
        let stream = Stream::create(&server, Surface::Base, OCTETS);
        let poll = stream.get("live=long-poll&offset=0&timeout_ms=60000");
        let mut waiting: Vec<Connection> = (0..8).map(|_| poll.open()).collect();
        thread::sleep(Duration::from_millis(200 * attempt));
        let (status, _) = server.terminate();
        assert!(status.success(), "ended with {status}");
        waiting
            .iter_mut()
            .all(|connection| match connection.try_read_response("GET") {
                Ok(answer) => {
                    assert!(matches!(answer.status, 204 | 503), "{answer}");
                    true
                }
                Err(_closed) => false,
            })
    });
    assert!(answered, "waiters are cut off without an answer");
}

/// Answers to requests that were sent before a long-poll on its connection come while it waits.
fn answers_before_a_wait_do_not_wait(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        let poll = stream.get("live=long-poll&offset=now&timeout_ms=60000");
        let mut connection = Connection::to(server);
        connection.write([stream.head().encode(), poll.encode()].concat());
        connection.read_response("HEAD").expect(200);
        // Had that come with the wait's own answer, this would be too late.
        stream.append(OCTETS, "d");
        let polled = connection.read_response("GET");
        polled.expect(200).expect_body("d");
    }
}
