//! Append: Base 5.2, the order of checks, and the size limit.

use std::thread;

use ursula_headers::{ErrorCode, SizeLimit, StreamSeqConflict, WriteKind, WriteOutcome, classify};

use crate::common::http::Connection;
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    answers_204_with_the_new_tail,
    bytes_come_back_exactly,
    a_body_needs_a_content_type,
    a_malformed_content_type_is_called_that,
    another_content_type_conflicts,
    an_empty_body_is_refused,
    a_missing_stream_is_404,
    sequence_must_rise_bytewise,
    sequence_is_bounded,
    a_refused_sequence_appends_nothing,
    parallel_appends_get_distinct_rising_offsets,
    chunked_bodies_are_appended,
    closed_comes_before_content_type,
    content_type_comes_before_what_its_text_is,
    content_type_comes_before_sequence,
    malformed_comes_before_existence,
    a_body_at_the_limit_is_taken_and_one_above_is_413,
    a_chunked_body_above_the_limit_is_413,
];

/// Base 5.2: 204 with the tail after the append; Extensions 2.4: with the incarnation.
fn answers_204_with_the_new_tail(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let incarnation = stream.head().send().incarnation();
        for (body, tail) in [("abc", 3), ("d", 4), ("efgh", 8)] {
            let answer = stream.append(OCTETS, body);
            assert_eq!(answer.next_offset(), offset(tail));
            assert_eq!(answer.incarnation(), incarnation);
            assert!(answer.body.is_empty());
            let outcome = classify(
                WriteKind::Append,
                answer.status,
                answer.pairs(),
                &answer.body,
            );
            assert_eq!(outcome, WriteOutcome::Applied);
        }
        assert_eq!(stream.head().send().next_offset(), offset(8));
    }
}

/// Base 4: bytes are kept as they are.
fn bytes_come_back_exactly(server: &Server) {
    let every_byte: Vec<u8> = (0..=255).collect();
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        stream.append(OCTETS, &every_byte);
        stream.append(OCTETS, &every_byte);
        assert_eq!(
            stream.read_all(),
            [every_byte.clone(), every_byte.clone()].concat()
        );
    }
}

/// Base 5.2: a body without a content type is malformed.
fn a_body_needs_a_content_type(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        stream
            .post()
            .body("x")
            .send()
            .expect_error(400, ErrorCode::MissingContentType);
        assert_eq!(stream.read_all(), b"");
    }
}

/// Decisions, Errors: the message says what was wrong. A close without a body is not refused for a
/// type that it does not need (Base 5.2).
fn a_malformed_content_type_is_called_that(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let long = format!("text/{}", "x".repeat(300));
        for malformed in ["text", "text/", "/plain", "a b/c", "text/pl\u{e4}in", &long] {
            let post = stream.post().header("Content-Type", malformed);
            let refused = post.clone().body("x").send();
            let refused = refused.expect_error(400, ErrorCode::InvalidHeader);
            assert!(refused.text().contains("type/subtype"), "{refused}");
            post.send().expect_error(400, ErrorCode::EmptyAppend);
        }
        assert_eq!(stream.read_all(), b"");
        let close = stream.post().header("Content-Type", "text");
        close.header("Stream-Closed", "true").send().expect(204);
    }
}

/// Base 5.2 and 12.4: another content type is 409, with the tail as the peer gives it.
fn another_content_type_conflicts(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        stream
            .post()
            .header("Content-Type", TEXT)
            .body("x")
            .send()
            .expect_error(409, ErrorCode::ContentTypeMismatch)
            .expect_field("stream-next-offset", &offset(3))
            .expect_no_field("stream-closed");
        assert_eq!(stream.read_all(), b"abc");
    }
}

/// Base 5.2: an empty body is 400 unless it closes, with or without a content type.
fn an_empty_body_is_refused(server: &Server) {
    for surface in SURFACES {
        for content_type in [OCTETS, JSON] {
            let stream = Stream::create(server, surface, content_type);
            stream
                .post()
                .send()
                .expect_error(400, ErrorCode::EmptyAppend);
            stream
                .post()
                .header("Content-Type", content_type)
                .header("Stream-Closed", "false")
                .send()
                .expect_error(400, ErrorCode::EmptyAppend);
        }
    }
}

/// Base 5.2: an append does not create.
fn a_missing_stream_is_404(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .post()
            .header("Content-Type", OCTETS)
            .body("x")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
        stream.head().send().expect(404);
    }
}

/// Base 5.2 and 12.6, Decisions, Producers: `Stream-Seq` rises strictly, byte by byte, one scope
/// for the stream; a refusal echoes the last one.
fn sequence_must_rise_bytewise(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let append = |seq: &str| {
            let post = stream.post().header("Content-Type", OCTETS);
            post.header("Stream-Seq", seq).body("x").send()
        };
        let refused = |seq: &str, last: &str| {
            let answer = append(seq).expect_error(409, ErrorCode::StreamSeqConflict);
            let conflict = StreamSeqConflict::parse(answer.status, answer.pairs());
            let conflict = conflict
                .expect("it parses")
                .expect("it names the last sequence");
            assert_eq!(conflict.last.as_str(), last);
        };
        append("0001").expect(204);
        refused("0001", "0001");
        refused("0000", "0001");
        append("0002").expect(204);
        append("001").expect(204);
        append("Z").expect(204);
        append("a").expect(204);
        refused("Zz", "a");
        refused("9", "a");
        append("aa").expect(204);
        // An append without the header neither needs nor moves it.
        stream.append(OCTETS, "y");
        refused("aa", "aa");
    }
}

/// Decisions, Producers: `Stream-Seq` has at most 256 bytes; the peer refuses more as a header.
fn sequence_is_bounded(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let append = |seq: &str| {
            let post = stream.post().header("Content-Type", OCTETS);
            post.header("Stream-Seq", seq).body("x").send()
        };
        append(&"b".repeat(257)).expect_error(400, ErrorCode::InvalidHeader);
        append(&"a".repeat(256)).expect(204);
    }
}

/// Base 5.2: a refused append leaves data and sequence alone.
fn a_refused_sequence_appends_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let append = |seq: &str, body: &str| {
            let post = stream.post().header("Content-Type", OCTETS);
            post.header("Stream-Seq", seq).body(body).send()
        };
        append("5", "five").expect(204);
        append("4", "four").expect(409);
        append("6", "six").expect(204);
        assert_eq!(stream.read_all(), b"fivesix");
    }
}

/// Protocol case 6: 50 parallel appends get 50 distinct rising offsets; HEAD gives the largest.
fn parallel_appends_get_distinct_rising_offsets(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let mut tails: Vec<String> = thread::scope(|scope| {
            let writers: Vec<_> = (0..50)
                .map(|_| scope.spawn(|| stream.append(OCTETS, "12345").next_offset()))
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().expect("no writer panics"))
                .collect()
        });
        tails.sort();
        let expected: Vec<String> = (1..=50).map(|count| offset(count * 5)).collect();
        assert_eq!(tails, expected);
        assert_eq!(stream.head().send().next_offset(), offset(250));
        assert_eq!(stream.read_all(), b"12345".repeat(50));
    }
}

/// Base 5.2, `Transfer-Encoding: chunked`; RFC 9112 7.1: extensions and trailers are read past.
fn chunked_bodies_are_appended(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let mut connection = Connection::to(server);
        connection.write(format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            stream.path()
        ));
        connection.write("3\r\nabc\r\n");
        connection.write("A;name=value;q=\"a b\"\r\n0123456789\r\n");
        connection.write("0\r\nX-Trailer: ignored\r\n\r\n");
        let answer = connection.read_response("POST").expect(204);
        assert_eq!(answer.next_offset(), offset(13));
        assert_eq!(stream.read_all(), b"abc0123456789");
    }
}

/// Base 5.2, Error Precedence: closed comes first.
fn closed_comes_before_content_type(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        stream.close();
        stream
            .post()
            .header("Content-Type", TEXT)
            .header("Stream-Seq", "1")
            .body("x")
            .send()
            .expect_error(409, ErrorCode::StreamClosed)
            .expect_field("stream-closed", "true")
            .expect_field("stream-next-offset", &offset(3));
    }
}

/// Base 5.2, Error Precedence: content type comes before the sequence.
fn content_type_comes_before_sequence(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let post = stream.post().header("Stream-Seq", "5").body("x");
        post.clone()
            .header("Content-Type", OCTETS)
            .send()
            .expect(204);
        post.header("Content-Type", TEXT)
            .send()
            .expect_error(409, ErrorCode::ContentTypeMismatch);
    }
}

/// Base 5.2: a valid type that is not the stream's is 409, and closed before it; what is JSON text
/// matters to JSON streams.
fn content_type_comes_before_what_its_text_is(server: &Server) {
    let post = |stream: &Stream<'_>, body: &str| {
        let request = stream.post().header("Content-Type", JSON);
        request.body(body).send()
    };
    let stream = Stream::create(server, Surface::Base, TEXT);
    for body in ["{", "[]", " ", "\u{feff}1"] {
        let refused = post(&stream, body);
        refused
            .expect_error(409, ErrorCode::ContentTypeMismatch)
            .expect_field("stream-next-offset", &offset(0));
    }
    // Refused before its end was read.
    let long = format!("]{}", "1,".repeat(300_000));
    let refused = post(&stream, &long);
    refused.expect_error(409, ErrorCode::ContentTypeMismatch);
    stream.close();
    post(&stream, "{")
        .expect_error(409, ErrorCode::StreamClosed)
        .expect_field("stream-closed", "true");

    let json = Stream::create(server, Surface::Base, JSON);
    post(&json, "{").expect_error(400, ErrorCode::InvalidRecordBoundaries);
    json.append(JSON, "1");
}

/// Decisions, Order of checks: malformed (400) comes before existence (404).
fn malformed_comes_before_existence(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        stream
            .post()
            .header("Content-Type", OCTETS)
            .send()
            .expect_error(400, ErrorCode::EmptyAppend);
        stream
            .post()
            .header("Content-Type", OCTETS)
            .header("Producer-Id", "p")
            .body("x")
            .send()
            .expect_error(400, ErrorCode::InvalidProducer);
    }
}

/// Decisions, Where the sources differ: one limit for every body, 8 MiB by default, named by HEAD
/// and by the 413.
fn a_body_at_the_limit_is_taken_and_one_above_is_413(server: &Server) {
    const LIMIT: usize = 8 << 20;
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let head = stream.head().send();
        assert_eq!(
            head.expect_header("ursula-max-request-bytes"),
            LIMIT.to_string()
        );
        let body = vec![b'x'; LIMIT + 1];
        let post = stream.post().header("Content-Type", OCTETS);
        let answer = post
            .clone()
            .body(&body)
            .send()
            .expect_error(413, ErrorCode::RequestTooLarge);
        let limit = SizeLimit::parse(answer.status, answer.pairs()).expect("it parses");
        assert_eq!(limit, Some(SizeLimit::Request(LIMIT as u64)));
        let taken = post.body(&body[..LIMIT]).send().expect(204);
        assert_eq!(taken.next_offset(), offset(LIMIT));
        assert!(
            stream.read_all() == body[..LIMIT],
            "8 MiB come back as they were"
        );
    }
}

/// As above, where only the chunks tell the length.
fn a_chunked_body_above_the_limit_is_413(server: &Server) {
    let stream = Stream::create(server, Surface::Base, OCTETS);
    let mut connection = Connection::to(server);
    connection.write(format!(
        "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\nTransfer-Encoding: chunked\r\n\r\n",
        stream.path()
    ));
    let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        connection.write_if_open(&chunk);
    }
    connection.write_if_open(b"0\r\n\r\n");
    let answer = connection
        .read_response("POST")
        .expect_error(413, ErrorCode::RequestTooLarge);
    let limit = SizeLimit::parse(answer.status, answer.pairs()).expect("it parses");
    assert_eq!(limit, Some(SizeLimit::Request(8 << 20)));
    assert_eq!(stream.head().send().next_offset(), offset(0));
}

/// Decisions, Where the sources differ: the limit is a setting, and applies to a creating PUT and
/// to a snapshot as well.
#[test]
fn the_limit_is_a_setting_for_every_body() {
    let server = Options::new(1).flag("request-bytes-max", 1000).start();
    for surface in SURFACES {
        let refused = |answer: crate::common::http::Response| {
            let answer = answer.expect_error(413, ErrorCode::RequestTooLarge);
            let limit = SizeLimit::parse(answer.status, answer.pairs()).expect("it parses");
            assert_eq!(limit, Some(SizeLimit::Request(1000)));
        };
        let large = "x".repeat(1001);
        let stream = Stream::absent(&server, surface);
        refused(
            stream
                .put()
                .header("Content-Type", TEXT)
                .body(&large)
                .send(),
        );
        stream.head().send().expect(404);
        stream
            .put()
            .header("Content-Type", TEXT)
            .body(&large[..1000])
            .send()
            .expect(201);
        refused(
            stream
                .post()
                .header("Content-Type", TEXT)
                .body(&large)
                .send(),
        );
        let head = stream.head().send().expect(200);
        assert_eq!(head.expect_header("ursula-max-request-bytes"), "1000");
        if surface == Surface::Bucket {
            refused(stream.request("PUT", "/snapshot/1000").body(&large).send());
            refused(
                stream
                    .request("POST", "/snapshot/1000/parts")
                    .body(&large)
                    .send(),
            );
        }
    }
}
