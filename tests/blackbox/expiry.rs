//! Lifetimes: Base 5.1 and Decisions, "Live reads, lifetimes, browsers".
//!
//! No test asserts that something happened *within* a time, only that it
//! happens, or that it does not happen while the rule forbids it. Where that
//! needs steps in time, a step that the machine delayed too long to prove
//! anything makes the test try again.

use std::thread;
use std::time::{Duration, Instant};

use ursula_headers::ErrorCode;

use crate::common::eventually;
use crate::common::http::Request;
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, SURFACES, Stream, Surface};

at_1_and_4_shards![
    an_idle_stream_expires,
    expired_name_can_be_created_again_at_once,
    head_never_renews,
    past_expiry_is_gone_at_once,
    expiry_ends_at_its_instant,
    every_read_and_write_renews,
    an_open_long_poll_keeps_the_stream,
    an_open_sse_keeps_the_stream,
    a_deleted_streams_timer_does_not_touch_its_successor,
];

#[track_caller]
fn expires(stream: &Stream<'_>) {
    eventually("the stream expires", || {
        (stream.head().send().status == 404).then_some(())
    });
}

/// Base 5.1, `Stream-TTL`: it expires after being idle, and is then as if it never was.
fn an_idle_stream_expires(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-TTL", "1")
            .body("x")
            .send()
            .expect(201)
            .expect_field("stream-ttl", "1");
        expires(&stream);
        stream
            .get("")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
        stream
            .post()
            .header("Content-Type", OCTETS)
            .body("x")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
        stream
            .delete()
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
    }
}

/// Protocol case 4: an expired name can be created again at once, as a new stream.
fn expired_name_can_be_created_again_at_once(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let put = stream.put().header("Stream-TTL", "1").body("old");
        let old = put.send().expect(201).incarnation();
        expires(&stream);
        let created = stream.put().body("new").send().expect(201);
        assert_ne!(created.incarnation(), old);
        assert_eq!(stream.read_all(), b"new");
    }
}

/// Base 5.1: HEAD does not reset the countdown. [`expires`] asks by HEAD all the time.
fn head_never_renews(server: &Server) {
    let stream = Stream::absent(server, Surface::Base);
    stream.put().header("Stream-TTL", "2").send().expect(201);
    expires(&stream);
}

/// The peer's answer (section 2): an expiry in the past is taken and has passed.
fn past_expiry_is_gone_at_once(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-Expires-At", "2001-01-02T03:04:05Z")
            .body("x")
            .send()
            .expect(201);
        stream
            .get("")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
        stream.put().send().expect(201);
    }
}

/// Base 5.1, `Stream-Expires-At`: an absolute time, which reads do not move.
fn expiry_ends_at_its_instant(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-Expires-At", rfc3339_in(2))
            .body("x")
            .send()
            .expect(201);
        eventually("the stream expires though it is read", || {
            (stream.get("").send().status == 404).then_some(())
        });
    }
}

/// Now plus `seconds`, rounded up, as RFC 3339, by `date`: no calendar here.
fn rfc3339_in(seconds: u64) -> String {
    let output = std::process::Command::new("date")
        .args([
            "--utc",
            &format!("--date=now + {} seconds", seconds + 1),
            "+%Y-%m-%dT%H:%M:%SZ",
        ])
        .output()
        .expect("date(1) is there");
    String::from_utf8(output.stdout)
        .expect("a date is ASCII")
        .trim()
        .to_owned()
}

/// Decisions, Live reads: which requests restart the sliding window.
fn every_read_and_write_renews(server: &Server) {
    let bucket = Surface::Bucket;
    type Step = fn(&Stream<'_>) -> Request;
    let steps: [(Surface, &str, Step); 15] = [
        (Surface::Base, "catch-up", |s| s.get("")),
        (Surface::Base, "now", |s| s.get("offset=now")),
        (Surface::Base, "append", |s| {
            s.post().header("Content-Type", OCTETS).body("x")
        }),
        (Surface::Base, "PUT", |s| {
            s.put()
                .header("Stream-TTL", "2")
                .header("Content-Type", OCTETS)
        }),
        (Surface::Base, "long-poll", |s| {
            s.get("offset=now&live=long-poll&timeout_ms=1")
        }),
        (bucket, "catch-up", |s| s.get("")),
        (bucket, "long-poll with data", |s| {
            s.get("offset=-1&live=long-poll")
        }),
        (bucket, "bootstrap", |s| s.request("GET", "/bootstrap")),
        (bucket, "snapshot publish", |s| {
            s.request("PUT", "/snapshot/5").body("s")
        }),
        (bucket, "snapshot read", |s| s.request("GET", "/snapshot/5")),
        (bucket, "stage", |s| {
            s.request("POST", "/snapshot/5/parts").body("s")
        }),
        (bucket, "retention", |s| s.request("PUT", "/retention/0")),
        (bucket, "close", |s| {
            s.post().header("Stream-Closed", "true")
        }),
        (bucket, "at the tail", |s| s.get("offset=10")),
        (bucket, "append", |s| {
            s.post().header("Content-Type", OCTETS).body("x")
        }),
    ];
    thread::scope(|scope| {
        for (surface, what, step) in steps {
            scope.spawn(move || while !renews(server, surface, what, step) {});
        }
    });
}

/// Takes `step` every second for longer than the lifetime. `false` when the
/// machine was too slow for a fair try.
fn renews(server: &Server, surface: Surface, what: &str, step: fn(&Stream<'_>) -> Request) -> bool {
    let stream = Stream::absent(server, surface);
    let put = stream
        .put()
        .header("Stream-TTL", "2")
        .header("Content-Type", OCTETS);
    put.body("0123456789").send().expect(201);
    if matches!(what, "snapshot read" | "retention") {
        stream
            .request("PUT", "/snapshot/5")
            .body("s")
            .send()
            .expect(204);
    }
    let mut last = Instant::now();
    for _ in 0..4 {
        thread::sleep(Duration::from_secs(1));
        let answer = step(&stream).send();
        if last.elapsed() > Duration::from_millis(1800) {
            return false;
        }
        assert!(
            answer.status < 400,
            "{what} on the {surface:?} surface: {answer}"
        );
        last = Instant::now();
    }
    true
}

/// Base 5.1: a stream with an active live reader does not expire.
fn an_open_long_poll_keeps_the_stream(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-TTL", "1")
            .header("Content-Type", OCTETS)
            .send()
            .expect(201);
        // Three lifetimes: 204, not the 404 of a stream that went meanwhile.
        stream
            .get("offset=now&live=long-poll&timeout_ms=3000")
            .send()
            .expect(204);
        // The window restarts when the read ends, and then runs out.
        expires(&stream);
    }
}

/// The same for SSE; its end lets the stream go.
fn an_open_sse_keeps_the_stream(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-TTL", "1")
            .header("Content-Type", OCTETS)
            .send()
            .expect(201);
        let mut events = stream.sse("now");
        events.control();
        thread::sleep(Duration::from_secs(3));
        stream.append(OCTETS, "x");
        assert_eq!(events.expect("data").bytes(), b"x");
        events.control();
        drop(events);
        expires(&stream);
    }
}

/// Storage case 8: TTL, delete, create without TTL, wait: the new stream lives.
fn a_deleted_streams_timer_does_not_touch_its_successor(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream.put().header("Stream-TTL", "1").send().expect(201);
        stream.delete().send().expect(204);
        stream.put().body("lives").send().expect(201);
        // Another stream of the same lifetime shows that the time has passed.
        let witness = Stream::absent(server, surface);
        witness.put().header("Stream-TTL", "2").send().expect(201);
        expires(&witness);
        assert_eq!(stream.read_all(), b"lives");
    }
}

/// Storage case 8 with a kill between DELETE and PUT; Decisions, Live reads: and a restart does not
/// let a stream live for ever.
#[test]
fn lifetimes_survive_a_kill() {
    let server = Options::new(4).start();
    let successor = Stream::absent(&server, Surface::Base).key().to_owned();
    let dying = Stream::absent(&server, Surface::Base).key().to_owned();
    let stream = Stream::at(&server, Surface::Base, &successor);
    stream.put().header("Stream-TTL", "2").send().expect(201);
    stream.delete().send().expect(204);
    Stream::at(&server, Surface::Base, &dying)
        .put()
        .header("Stream-TTL", "2")
        .send()
        .expect(201);

    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Base, &successor);
    stream.put().body("lives").send().expect(201);
    expires(&Stream::at(&server, Surface::Base, &dying));
    assert_eq!(stream.read_all(), b"lives");

    let server = server.kill_and_restart();
    Stream::at(&server, Surface::Base, &dying)
        .head()
        .send()
        .expect(404);
    assert_eq!(
        Stream::at(&server, Surface::Base, &successor).read_all(),
        b"lives"
    );
}
