//! Retention: Extensions 2.2 and 2.4; Reference, "Advance retention"; Decisions,
//! "Where the sources differ".

use ursula_headers::{ErrorCode, StreamHead, WriteKind, WriteOutcome, classify};

use crate::common::http::Response;
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, offset};

at_1_and_4_shards![
    what_lies_before_is_gone,
    every_read_before_it_is_410,
    exactly_the_requested_offset_is_retained,
    at_or_before_the_current_one_changes_nothing,
    without_a_snapshot_it_is_400,
    past_the_latest_snapshot_is_400,
    inside_a_json_message_is_400,
    malformed_offsets_are_400,
    a_missing_stream_is_404,
    other_methods_are_405,
    a_body_is_of_no_interest,
    offsets_and_appends_go_on,
    a_closed_stream_can_be_retained_away,
    live_readers_past_it_are_not_disturbed,
];

/// Ten bytes with a snapshot at 6.
fn ten(server: &Server) -> Stream<'_> {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    stream
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    stream
}

fn retain(stream: &Stream<'_>, at: impl std::fmt::Display) -> Response {
    stream.request("PUT", &format!("/retention/{at}")).send()
}

/// Extensions 2.2: after success, offsets below it are 410; the answer and HEAD name it.
fn what_lies_before_is_gone(server: &Server) {
    let stream = ten(server);
    let incarnation = stream.head().send().incarnation();
    let answer = retain(&stream, 4)
        .expect(204)
        .expect_field("stream-retained-offset", &offset(4));
    assert_eq!(answer.incarnation(), incarnation);
    let outcome = classify(WriteKind::Retention, answer.status, answer.pairs(), b"");
    assert_eq!(outcome, WriteOutcome::Applied);
    for surface in SURFACES {
        let view = stream.on(surface);
        let head = StreamHead::parse(view.head().send().expect(200).pairs()).expect("HEAD parses");
        assert_eq!(head.retained_offset().get(), 4);
        for gone in 0..4 {
            let answer = view.get(&format!("offset={gone}")).send();
            let answer = answer.expect_error(410, ErrorCode::StreamGone);
            // Decisions, Order of checks: with next offset (the peer: where reading can begin) and
            // incarnation.
            let answer = answer.expect_field("stream-next-offset", &offset(4));
            answer.expect_field("stream-incarnation", &incarnation);
        }
        for kept in 4..10 {
            let answer = view.get(&format!("offset={kept}")).send().expect(200);
            answer.expect_body(&"0123456789"[kept..]);
        }
    }
}

/// Reference: "From then on a read before it, -1 included, answers 410", live reads too.
fn every_read_before_it_is_410(server: &Server) {
    let stream = ten(server);
    retain(&stream, 4).expect(204);
    for surface in SURFACES {
        let view = stream.on(surface);
        for query in [
            "",
            "offset=-1",
            "offset=3",
            "offset=-1&live=long-poll",
            "offset=-1&live=sse",
            "offset=0&live=sse",
        ] {
            view.get(query)
                .send()
                .expect_error(410, ErrorCode::StreamGone);
        }
        view.get("offset=now").send().expect(200);
    }
}

/// Extensions 2.2: the answer tells the effective boundary; ours is exactly the requested one.
fn exactly_the_requested_offset_is_retained(server: &Server) {
    let stream = ten(server);
    for at in 1..=6 {
        retain(&stream, at)
            .expect(204)
            .expect_field("stream-retained-offset", &offset(at));
        stream.get(&format!("offset={}", at - 1)).send().expect(410);
        stream.get(&format!("offset={at}")).send().expect(200);
    }
}

/// Decisions: at or before the current one: 204, nothing changes, the header names the current.
fn at_or_before_the_current_one_changes_nothing(server: &Server) {
    let stream = ten(server);
    retain(&stream, 5).expect(204);
    for earlier in [5, 3, 0] {
        retain(&stream, earlier)
            .expect(204)
            .expect_field("stream-retained-offset", &offset(5));
        stream.get("offset=4").send().expect(410);
        stream.get("offset=5").send().expect(200);
    }
}

/// Decisions: without a snapshot: 400 (the Reference), though the peer says 409.
fn without_a_snapshot_it_is_400(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    retain(&stream, 5).expect_error(400, ErrorCode::InvalidRetention);
    assert_eq!(stream.read_all(), b"0123456789");
}

/// Decisions: past the latest snapshot: 400, past the tail likewise.
fn past_the_latest_snapshot_is_400(server: &Server) {
    let stream = ten(server);
    for beyond in ["7", "10", "11", "18446744073709551615"] {
        retain(&stream, beyond).expect_error(400, ErrorCode::InvalidRetention);
    }
    stream
        .head()
        .send()
        .expect(200)
        .expect_field("stream-retained-offset", &offset(0));
}

/// Decisions: an offset inside a JSON message: 400 `NOT_JSON_BOUNDARY`.
fn inside_a_json_message_is_400(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[11,22,33]");
    stream
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    for inside in [1, 2, 4, 5] {
        retain(&stream, inside).expect_error(400, ErrorCode::NotJsonBoundary);
    }
    retain(&stream, 3).expect(204);
    stream
        .get("offset=3")
        .send()
        .expect(200)
        .expect_body("22\n33\n");
    stream
        .on(Surface::Base)
        .get("offset=3")
        .send()
        .expect(200)
        .expect_body("[22,33]");
}

/// Reference: an offset, else 400.
fn malformed_offsets_are_400(server: &Server) {
    let stream = ten(server);
    for at in ["abc", "-1", "now", "4.0", "+4", "18446744073709551616"] {
        retain(&stream, at).expect_error(400, ErrorCode::InvalidOffset);
    }
}

/// Reference: 404.
fn a_missing_stream_is_404(server: &Server) {
    let stream = Stream::absent(server, Surface::Bucket);
    retain(&stream, 0).expect_error(404, ErrorCode::StreamNotFound);
}

/// The peer's answer (section 14).
fn other_methods_are_405(server: &Server) {
    let stream = ten(server);
    for method in ["GET", "HEAD", "POST", "DELETE"] {
        stream
            .request(method, "/retention/4")
            .send()
            .expect(405)
            .expect_field("allow", "PUT");
    }
}

/// The request defines no body; one that is sent does no harm, to the connection neither.
fn a_body_is_of_no_interest(server: &Server) {
    let stream = ten(server);
    let mut connection = stream
        .request("PUT", "/retention/4")
        .body("{\"a\":1}")
        .open();
    connection.read_response("PUT").expect(204);
    connection.write(stream.get("offset=4").encode());
    connection
        .read_response("GET")
        .expect(200)
        .expect_body("456789");
}

/// Base 8: offsets are never reused: the stream goes on where it was.
fn offsets_and_appends_go_on(server: &Server) {
    let stream = ten(server);
    retain(&stream, 6).expect(204);
    let answer = stream.append(OCTETS, "abc");
    assert_eq!(answer.next_offset(), offset(13));
    assert_eq!(stream.read_from("6"), b"6789abc");
    stream
        .request("PUT", "/snapshot/13")
        .body("t")
        .send()
        .expect(204);
    retain(&stream, 13).expect(204);
    stream.get("offset=12").send().expect(410);
    stream
        .get("offset=13")
        .send()
        .expect(200)
        .expect_body("")
        .expect_field("stream-up-to-date", "true");
}

/// Closure is about appends.
fn a_closed_stream_can_be_retained_away(server: &Server) {
    let stream = ten(server);
    stream.close();
    retain(&stream, 6).expect(204);
    stream
        .get("offset=6")
        .send()
        .expect(200)
        .expect_body("6789")
        .expect_field("stream-closed", "true");
}

/// A reader at the tail reads nothing that went.
fn live_readers_past_it_are_not_disturbed(server: &Server) {
    let stream = ten(server);
    let mut events = stream.sse("8");
    assert_eq!(events.expect("data").bytes(), b"89");
    events.control();
    retain(&stream, 6).expect(204);
    stream.append(OCTETS, "x");
    assert_eq!(events.expect("data").bytes(), b"x");
}

/// Retention is durable.
#[test]
fn retention_survives_a_kill() {
    let server = Options::new(4).start();
    let keys: Vec<String> = (0..8)
        .map(|_| {
            let stream = ten(&server);
            retain(&stream, 4).expect(204);
            stream.key().to_owned()
        })
        .collect();
    let server = server.kill_and_restart();
    for key in keys {
        let stream = Stream::at(&server, Surface::Bucket, &key);
        stream
            .get("offset=3")
            .send()
            .expect_error(410, ErrorCode::StreamGone);
        assert_eq!(stream.read_from("4"), b"456789");
    }
}
