//! Create: Base 5.1 and its rulings.

use ursula_headers::ErrorCode;

use crate::common::http::Request;
use crate::common::server::Server;
use crate::common::stream::{SURFACES, Stream, Surface, unique};

at_1_and_4_shards![
    answers_201_then_200,
    location_is_the_absolute_url,
    location_is_what_was_asked_for,
    content_type_defaults_to_octet_stream,
    other_settings_conflict,
    content_type_compares_without_case,
    body_becomes_the_first_content,
    repeat_does_not_store_its_body,
    repeat_must_still_be_legal_json,
    retry_after_a_lost_answer_finds_the_same_stream,
    created_closed,
    closure_is_compared,
    stream_closed_counts_only_as_true,
    ttl_and_expiry_exclude_each_other,
    ttl_must_be_canonical,
    huge_ttl_is_refused_or_clamped,
    expiry_must_be_rfc3339,
    ttl_and_expiry_are_compared,
    equal_instants_are_equal_expiries,
    create_takes_no_producer_headers,
    created_stream_is_seen_by_every_core,
    concurrent_creates_make_one_stream,
];

/// Base 5.1: 201 for a new stream, 200 for the same settings again; both name the content type, the
/// tail and (Extensions 2.4) the incarnation.
fn answers_201_then_200(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let put = stream.put().header("Content-Type", "text/plain");
        let created = put
            .send()
            .expect(201)
            .expect_field("content-type", "text/plain");
        let repeated = put
            .send()
            .expect(200)
            .expect_field("content-type", "text/plain");
        assert_eq!(created.next_offset(), "0".repeat(20));
        assert_eq!(created.next_offset(), repeated.next_offset());
        assert_eq!(created.incarnation(), repeated.incarnation());
    }
}

/// Base 5.1: `Location` names the stream's URL; the official suite wants it absolute (`facts.md`).
fn location_is_the_absolute_url(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let location = format!("http://{}{}", server.address(), stream.path());
        stream
            .put()
            .send()
            .expect(201)
            .expect_field("location", &location);
    }
}

/// RFC 9112 3.2.2: a target in absolute form overrules `Host`.
fn location_is_what_was_asked_for(server: &Server) {
    let stream = Stream::absent(server, Surface::Base);
    let location = format!("http://streams.example:81{}", stream.path());
    Request::new(server, "PUT", location.as_str())
        .send()
        .expect(201)
        .expect_field("location", &location);
}

/// Base 5.1: without a `Content-Type` the stream is `application/octet-stream`.
fn content_type_defaults_to_octet_stream(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream.put().send().expect(201);
        stream
            .head()
            .send()
            .expect(200)
            .expect_field("content-type", "application/octet-stream");
    }
}

/// Base 5.1: another content type is 409 and changes nothing.
fn other_settings_conflict(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, "text/plain", "kept");
        stream
            .put()
            .header("Content-Type", "text/html")
            .send()
            .expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
        stream
            .get("")
            .send()
            .expect(200)
            .expect_body("kept")
            .expect_field("content-type", "text/plain");
    }
}

/// Base 5.1 with RFC 9110 8.3.1: media types compare without case; the first spelling is kept.
fn content_type_compares_without_case(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, "text/plain");
        stream
            .put()
            .header("Content-Type", "TEXT/Plain")
            .send()
            .expect(200);
        stream.append("Text/PLAIN", "x");
    }
}

/// Base 5.1: a body forms the first content.
fn body_becomes_the_first_content(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let created = stream
            .put()
            .header("Content-Type", "text/plain")
            .body("first")
            .send()
            .expect(201);
        assert_eq!(created.next_offset(), format!("{:020}", 5));
        stream.append("text/plain", " second");
        assert_eq!(stream.read_all(), b"first second");
    }
}

/// Decisions, Order of checks: a PUT on an existing stream compares settings only, its body is
/// neither stored nor compared.
fn repeat_does_not_store_its_body(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, "text/plain", "first");
        let put = stream.put().header("Content-Type", "text/plain");
        let repeated = put.clone().body("another").send().expect(200);
        assert_eq!(repeated.next_offset(), format!("{:020}", 5));
        put.body("").send().expect(200);
        assert_eq!(stream.read_all(), b"first");
    }
}

/// Decisions, Order of checks: but it must be legal text for a JSON stream.
fn repeat_must_still_be_legal_json(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, "application/json");
        let put = stream.put().header("Content-Type", "application/json");
        put.clone().body("{").send().expect(400);
        put.body("{}").send().expect(200);
        stream
            .head()
            .send()
            .expect_field("stream-next-offset", &"0".repeat(20));
    }
}

/// Protocol case 14: a PUT retried after a lost answer is 200 with the same incarnation.
fn retry_after_a_lost_answer_finds_the_same_stream(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let put = stream
            .put()
            .header("Content-Type", "text/plain")
            .body("once");
        // The answer is never read: the connection goes away with it.
        drop(put.open());
        let incarnation = crate::common::eventually("the lost create applies", || {
            let head = stream.head().send();
            (head.status == 200).then(|| head.incarnation())
        });
        let repeated = put.send().expect(200);
        assert_eq!(repeated.incarnation(), incarnation);
        assert_eq!(stream.read_all(), b"once");
    }
}

/// Base 5.1, `Stream-Closed`: the body is the whole and final content.
fn created_closed(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Content-Type", "text/plain")
            .header("Stream-Closed", "true")
            .body("all")
            .send()
            .expect(201)
            .expect_field("stream-closed", "true");
        stream
            .get("")
            .send()
            .expect(200)
            .expect_body("all")
            .expect_field("stream-closed", "true");
        stream
            .post()
            .header("Content-Type", "text/plain")
            .body("more")
            .send()
            .expect_error(409, ErrorCode::StreamClosed);
    }
}

/// Base 5.1, closure status matching: all four rows of its table.
fn closure_is_compared(server: &Server) {
    for surface in SURFACES {
        let open = Stream::create(server, surface, "text/plain");
        let plain = open.put().header("Content-Type", "text/plain");
        let closed = plain.clone().header("Stream-Closed", "true");
        plain.send().expect(200).expect_no_field("stream-closed");
        closed
            .send()
            .expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
        open.close();
        plain
            .send()
            .expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
        closed
            .send()
            .expect(200)
            .expect_field("stream-closed", "true");
    }
}

/// Base 4.1: only `true`, in any case, counts; other values are as if absent.
fn stream_closed_counts_only_as_true(server: &Server) {
    for surface in SURFACES {
        for value in ["false", "yes", "1", "", "truee"] {
            let stream = Stream::absent(server, surface);
            stream
                .put()
                .header("Stream-Closed", value)
                .send()
                .expect(201)
                .expect_no_field("stream-closed");
        }
        for value in ["true", "TRUE", "True"] {
            let stream = Stream::absent(server, surface);
            let created = stream
                .put()
                .header("Stream-Closed", value)
                .send()
                .expect(201);
            created.expect_field("stream-closed", "true");
        }
    }
}

/// Base 5.1 and Decisions, Live reads: TTL with Expires-At is 400.
fn ttl_and_expiry_exclude_each_other(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Stream-TTL", "60")
            .header("Stream-Expires-At", "2099-01-02T03:04:05Z")
            .send()
            .expect_error(400, ErrorCode::InvalidHeader);
        stream.head().send().expect(404);
    }
}

/// Base 5.1 and protocol case 4: a TTL is a decimal without signs, leading zeros, points or
/// exponents.
fn ttl_must_be_canonical(server: &Server) {
    for surface in SURFACES {
        for ttl in [
            "060",
            "+60",
            "60.0",
            "6e1",
            "-1",
            "abc",
            "0x10",
            "18446744073709551616",
            "6 0",
        ] {
            let stream = Stream::absent(server, surface);
            let answer = stream.put().header("Stream-TTL", ttl).send();
            assert_eq!(answer.status, 400, "TTL {ttl:?}: {answer}");
            answer.error_body();
            stream.head().send().expect(404);
        }
        let stream = Stream::absent(server, surface);
        stream.put().header("Stream-TTL", "3600").send().expect(201);
        stream
            .head()
            .send()
            .expect(200)
            .expect_field("stream-ttl", "3600");
    }
}

/// Protocol case 2: the largest TTL is 400 or a lifetime clamped as documented; no panic.
fn huge_ttl_is_refused_or_clamped(server: &Server) {
    for surface in SURFACES {
        for ttl in ["18446744073709551615", "9223372036854775807", "99999999999"] {
            let stream = Stream::absent(server, surface);
            let created = stream.put().header("Stream-TTL", ttl).send();
            assert!(matches!(created.status, 201 | 400), "TTL {ttl}: {created}");
            if created.status == 201 {
                stream.append("application/octet-stream", "x");
                assert_eq!(stream.read_all(), b"x");
            }
        }
    }
}

/// Base 5.1: `Stream-Expires-At` is an RFC 3339 timestamp.
fn expiry_must_be_rfc3339(server: &Server) {
    for surface in SURFACES {
        for expiry in [
            "tomorrow",
            "2099-01-02",
            "1767225600",
            "2099-13-01T00:00:00Z",
            "2099-01-02T03:04:05",
        ] {
            let stream = Stream::absent(server, surface);
            let answer = stream.put().header("Stream-Expires-At", expiry).send();
            answer.expect_error(400, ErrorCode::InvalidHeader);
        }
        for expiry in [
            "2099-01-02T03:04:05Z",
            "2099-01-02T03:04:05.678Z",
            "2099-01-02T03:04:05+02:00",
        ] {
            let stream = Stream::absent(server, surface);
            stream
                .put()
                .header("Stream-Expires-At", expiry)
                .send()
                .expect(201);
            assert!(
                stream
                    .head()
                    .send()
                    .expect(200)
                    .header("stream-expires-at")
                    .is_some()
            );
        }
    }
}

/// Base 5.1: TTL and expiry are settings: other ones conflict, a missing one too.
fn ttl_and_expiry_are_compared(server: &Server) {
    for surface in SURFACES {
        let ttl = Stream::absent(server, surface);
        ttl.put().header("Stream-TTL", "60").send().expect(201);
        ttl.put().header("Stream-TTL", "60").send().expect(200);
        for other in [ttl.put().header("Stream-TTL", "61"), ttl.put()] {
            other
                .send()
                .expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
        }
        let expiry = Stream::absent(server, surface);
        let put = |at: &str| expiry.put().header("Stream-Expires-At", at).send();
        put("2099-01-02T03:04:05Z").expect(201);
        put("2099-01-02T03:04:05Z").expect(200);
        put("2099-01-02T03:04:06Z").expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
    }
}

/// RFC 3339 4.2: the same instant in another notation is the same expiry.
fn equal_instants_are_equal_expiries(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        for (at, status) in [
            ("2099-01-02T03:04:05Z", 201),
            ("2099-01-02T03:04:05.000Z", 200),
            ("2099-01-02T05:04:05+02:00", 200),
        ] {
            stream
                .put()
                .header("Stream-Expires-At", at)
                .send()
                .expect(status);
        }
    }
}

/// The peer's answer (`../peers`, section 7): a create carries no producer headers.
fn create_takes_no_producer_headers(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .put()
            .header("Producer-Id", "p")
            .header("Producer-Epoch", "0")
            .header("Producer-Seq", "0")
            .send()
            .expect_error(400, ErrorCode::InvalidProducer);
        stream.head().send().expect(404);
    }
}

/// Protocol case 13: right after its creation, 64 new connections all see a stream.
fn created_stream_is_seen_by_every_core(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, "text/plain");
        for _ in 0..64 {
            stream.head().send().expect(200);
        }
    }
}

/// Base 5.1: of concurrent creates one answers 201, the others 200, with one incarnation.
fn concurrent_creates_make_one_stream(server: &Server) {
    let path = format!("/v1/stream/{}", unique("race"));
    let answers: Vec<_> = std::thread::scope(|scope| {
        let creators: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Request::new(server, "PUT", &path).send()))
            .collect();
        creators
            .into_iter()
            .map(|creator| creator.join().expect("no creator panics"))
            .collect()
    });
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(created, 1, "of {} creators", answers.len());
    for answer in &answers {
        assert!(matches!(answer.status, 200 | 201), "{answer}");
        assert_eq!(answer.incarnation(), answers[0].incarnation());
    }
    Stream::at(
        server,
        Surface::Base,
        path.trim_start_matches("/v1/stream/"),
    )
    .head()
    .send()
    .expect(200);
}
