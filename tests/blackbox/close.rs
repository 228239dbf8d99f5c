//! Close: Base 4.1 and 5.3.

use ursula_headers::{ErrorCode, StreamClosedConflict};

use crate::common::server::Server;
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, TEXT, offset};

at_1_and_4_shards![
    close_only_keeps_the_tail,
    close_only_is_idempotent,
    append_and_close_is_one_step,
    append_and_close_again_is_409,
    a_closed_stream_stays_readable,
    closing_a_missing_stream_is_404,
    close_only_ignores_the_content_type,
    closing_a_json_stream_with_a_message,
    a_refused_closing_append_closes_nothing,
    head_tells_closure,
];

/// Base 5.3: 204 with the unchanged tail.
fn close_only_keeps_the_tail(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        let incarnation = stream.head().send().incarnation();
        let closed = stream.close().expect_field("stream-closed", "true");
        assert_eq!(closed.next_offset(), offset(3));
        assert_eq!(closed.incarnation(), incarnation);
    }
}

/// Base 5.2: close-only on a closed stream succeeds again.
fn close_only_is_idempotent(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for _ in 0..3 {
            stream.close().expect_field("stream-closed", "true");
        }
    }
}

/// Base 4.1: a final append and the closure are one operation.
fn append_and_close_is_one_step(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "a");
        let post = stream
            .post()
            .header("Content-Type", TEXT)
            .header("Stream-Closed", "true");
        let answer = post
            .body("bye")
            .send()
            .expect(204)
            .expect_field("stream-closed", "true");
        assert_eq!(answer.next_offset(), offset(4));
        stream
            .get("")
            .send()
            .expect(200)
            .expect_body("abye")
            .expect_field("stream-closed", "true");
    }
}

/// Base 5.2: append-and-close is not idempotent; the typed 409 names the final offset.
fn append_and_close_again_is_409(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let post = stream
            .post()
            .header("Content-Type", TEXT)
            .header("Stream-Closed", "true");
        let post = post.body("bye");
        post.send().expect(204);
        let answer = post.send().expect_error(409, ErrorCode::StreamClosed);
        let conflict = StreamClosedConflict::parse(answer.status, answer.pairs());
        let conflict = conflict
            .expect("it parses")
            .expect("it is the 409 of a closed stream");
        assert_eq!(conflict.final_offset.get(), 3);
    }
}

/// Base 4.1: after closure the data stays readable.
fn a_closed_stream_stays_readable(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abcdef");
        stream.close();
        stream
            .get("offset=2")
            .send()
            .expect(200)
            .expect_body("cdef")
            .expect_field("stream-closed", "true");
        // Base 5.6: a partial answer of a closed stream does not claim its end.
        stream
            .get("offset=2&max_bytes=3")
            .send()
            .expect(200)
            .expect_body("cde")
            .expect_no_field("stream-closed")
            .expect_no_field("stream-up-to-date");
        // Base 5.6: the canonical EOF signal.
        stream
            .get(&format!("offset={}", offset(6)))
            .send()
            .expect(200)
            .expect_body("")
            .expect_field("stream-closed", "true")
            .expect_field("stream-up-to-date", "true");
    }
}

/// Base 5.3: 404 for a missing stream.
fn closing_a_missing_stream_is_404(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .post()
            .header("Stream-Closed", "true")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
    }
}

/// Base 5.2: without a body the content type must not matter.
fn close_only_ignores_the_content_type(server: &Server) {
    for surface in SURFACES {
        for content_type in ["text/html", "nonsense", ""] {
            let stream = Stream::create(server, surface, OCTETS);
            stream
                .post()
                .header("Content-Type", content_type)
                .header("Stream-Closed", "true")
                .send()
                .expect(204);
        }
    }
}

/// Base 4.1 in JSON mode.
fn closing_a_json_stream_with_a_message(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, JSON);
        let post = stream
            .post()
            .header("Content-Type", JSON)
            .header("Stream-Closed", "true");
        let answer = post.body("{ }").send().expect(204);
        assert_eq!(answer.next_offset(), offset(3));
    }
}

/// Base 4.1, Atomic: an append that is refused does not close.
fn a_refused_closing_append_closes_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, JSON);
        let post = stream.post().header("Stream-Closed", "true");
        post.clone()
            .header("Content-Type", JSON)
            .body("{")
            .send()
            .expect(400);
        post.header("Content-Type", TEXT)
            .body("{}")
            .send()
            .expect(409);
        stream
            .head()
            .send()
            .expect(200)
            .expect_no_field("stream-closed");
        stream.append(JSON, "{}");
    }
}

/// Base 5.5: HEAD is how a client learns of closure before the tail.
fn head_tells_closure(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        stream
            .head()
            .send()
            .expect(200)
            .expect_no_field("stream-closed");
        stream.close();
        stream
            .head()
            .send()
            .expect(200)
            .expect_field("stream-closed", "true");
    }
}
