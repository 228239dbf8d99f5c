//! Catch-up reads and HEAD: Base 5.5, 5.6, 8; Extensions 9.2 and 9.3; Decisions, "Tokens".

use ursula_headers::{ErrorCode, ServerIdentity, StreamHead};

use crate::common::server::Server;
use crate::common::stream::{OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    reads_from_any_offset,
    start_is_the_default,
    padding_of_offsets_is_optional,
    at_the_tail_the_body_is_empty,
    now_gives_the_tail_and_no_data,
    beyond_the_tail_is_416_on_the_bucket_surface,
    beyond_the_tail_never_wraps,
    malformed_offsets_are_400,
    repeated_parameters_are_400,
    unknown_parameters_are_ignored,
    reads_of_a_missing_stream_are_404,
    max_bytes_bounds_a_read,
    max_bytes_of_0_counts_as_1,
    malformed_max_bytes_is_ignored,
    a_read_is_capped_at_8_mib,
    reads_resume_to_the_tail,
    consistency_takes_local_and_leader,
    consistency_with_live_is_400,
    unknown_live_mode_is_400,
    live_needs_an_offset,
    range_does_not_apply_to_streams,
    head_parses_as_typed_metadata,
    head_of_a_missing_stream_has_no_body,
    head_ignores_the_query,
];

const TEN: &str = "0123456789";

/// Base 5.6: bytes from the offset on, with the next offset, up to date at the tail.
fn reads_from_any_offset(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        let incarnation = stream.head().send().incarnation();
        for start in 0..=TEN.len() {
            let answer = stream.get(&format!("offset={}", offset(start))).send();
            let answer = answer.expect(200).expect_body(&TEN[start..]);
            let answer = answer.expect_field("content-type", OCTETS);
            let answer = answer.expect_field("stream-up-to-date", "true");
            assert_eq!(answer.next_offset(), offset(TEN.len()));
            // Extensions 2.4: on every read.
            assert_eq!(answer.incarnation(), incarnation);
        }
    }
}

/// Base 5.6 and 8: no offset and `-1` both mean the start.
fn start_is_the_default(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for query in ["", "offset=-1", "offset=0"] {
            stream.get(query).send().expect(200).expect_body(TEN);
        }
    }
}

/// Decisions, Tokens: leading zeros may be missing on input; output has 20 digits.
fn padding_of_offsets_is_optional(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for text in ["4", "04", "000004", &offset(4), "%34"] {
            let answer = stream
                .get(&format!("offset={text}"))
                .send()
                .expect(200)
                .expect_body("456789");
            assert_eq!(answer.next_offset(), offset(10));
        }
    }
}

/// Base 5.6: at the tail 200, nothing, and the tail again.
fn at_the_tail_the_body_is_empty(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        let answer = stream
            .get(&format!("offset={}", offset(10)))
            .send()
            .expect(200)
            .expect_body("");
        let answer = answer
            .expect_field("stream-up-to-date", "true")
            .expect_no_field("stream-closed");
        assert_eq!(answer.next_offset(), offset(10));
    }
}

/// Base 8, `now`: 200, empty, at the tail, up to date, not to be stored.
fn now_gives_the_tail_and_no_data(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        let answer = stream.get("offset=now").send().expect(200).expect_body("");
        assert_eq!(answer.next_offset(), offset(10));
        assert!(
            answer.expect_header("cache-control").contains("no-store"),
            "{answer}"
        );
        answer
            .expect_field("stream-up-to-date", "true")
            .expect_no_field("stream-closed");
        stream.close();
        stream
            .get("offset=now")
            .send()
            .expect(200)
            .expect_field("stream-closed", "true")
            .expect_field("stream-up-to-date", "true");
    }
}

/// Decisions, Tokens: beyond the tail is 416 `OFFSET_OUT_OF_RANGE`, with next offset and
/// incarnation as the peer has it.
fn beyond_the_tail_is_416_on_the_bucket_surface(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, TEN);
    let incarnation = stream.head().send().incarnation();
    for beyond in ["11", "9999", &offset(11)] {
        for live in ["", "&live=long-poll", "&live=sse"] {
            stream
                .get(&format!("offset={beyond}{live}"))
                .send()
                .expect_error(416, ErrorCode::OffsetOutOfRange)
                .expect_field("stream-next-offset", &offset(10))
                .expect_field("stream-incarnation", &incarnation);
        }
    }
}

/// Protocol case 3: 2^64-1 and more are 400 or 416, never the start of the stream.
fn beyond_the_tail_never_wraps(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for huge in [
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999",
        ] {
            let answer = stream.get(&format!("offset={huge}")).send();
            match surface {
                Surface::Bucket => assert!(matches!(answer.status, 400 | 416), "{answer}"),
                // The suite leaves the base surface's answer open, not its content.
                Surface::Base => assert_ne!(answer.body, TEN.as_bytes(), "{answer}"),
            }
        }
    }
}

/// Decisions, Tokens: anything that is no offset is 400 `INVALID_OFFSET`.
fn malformed_offsets_are_400(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for text in [
            "abc",
            "-2",
            "",
            "%2B4",
            "+4",
            "4.0",
            "0x4",
            "4,5",
            "NOW",
            "-01",
            "4%20",
            "1_2",
            "0000000000000000_0000000000000000",
            "184467440737095516160",
        ] {
            for live in ["", "&live=long-poll", "&live=sse"] {
                let answer = stream.get(&format!("offset={text}{live}")).send();
                assert_eq!(answer.status, 400, "offset={text}{live}: {answer}");
                assert_eq!(
                    answer.error_body().code,
                    ErrorCode::InvalidOffset,
                    "offset={text}: {answer}"
                );
            }
        }
    }
}

/// Decisions, Tokens: a repeated parameter is 400 `INVALID_QUERY`.
fn repeated_parameters_are_400(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for query in [
            "offset=1&offset=1",
            "offset=-1&live=long-poll&live=long-poll",
            "offset=0&max_bytes=1&max_bytes=2",
            "consistency=local&consistency=local",
            "offset=1&%6Fffset=1",
        ] {
            stream
                .get(query)
                .send()
                .expect_error(400, ErrorCode::InvalidQuery);
        }
    }
}

/// Base 11.1: what a server does not know it ignores.
fn unknown_parameters_are_ignored(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for query in [
            "foo=bar",
            "foo=1&foo=2",
            "offset=0&cursor=abc",
            "offset=0&timeout_ms=abc",
            "&&",
            "foo",
        ] {
            stream.get(query).send().expect(200).expect_body(TEN);
        }
    }
}

/// Base 5.6: 404.
fn reads_of_a_missing_stream_are_404(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        // Decisions, Order of checks: 404 before 416.
        for query in [
            "",
            "offset=now",
            "offset=99",
            "offset=-1&live=long-poll",
            "offset=-1&live=sse",
        ] {
            stream
                .get(query)
                .send()
                .expect_error(404, ErrorCode::StreamNotFound);
        }
    }
}

/// Extensions 9.3: at most n bytes; a shortened answer is partial and says where to go on.
fn max_bytes_bounds_a_read(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        let partial = stream
            .get("offset=2&max_bytes=3")
            .send()
            .expect(200)
            .expect_body("234");
        let partial = partial.expect_no_field("stream-up-to-date");
        assert_eq!(partial.next_offset(), offset(5));
        for enough in ["10", "11", "99999999999", "18446744073709551615"] {
            stream
                .get(&format!("offset=0&max_bytes={enough}"))
                .send()
                .expect(200)
                .expect_body(TEN)
                .expect_field("stream-up-to-date", "true");
        }
    }
}

/// Decisions, Where the sources differ: `max_bytes=0` counts as 1, so a reader always gets on.
fn max_bytes_of_0_counts_as_1(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        let answer = stream
            .get("offset=0&max_bytes=0")
            .send()
            .expect(200)
            .expect_body("0");
        assert_eq!(answer.next_offset(), offset(1));
    }
}

/// Extensions 9.3: what is no decimal integer is ignored, as the peer does.
fn malformed_max_bytes_is_ignored(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for text in ["abc", "-1", "", "1.5", "0x2"] {
            stream
                .get(&format!("max_bytes={text}"))
                .send()
                .expect(200)
                .expect_body(TEN);
        }
    }
}

/// Extensions 9.3 and Decisions, Where the sources differ: 8 MiB of stored bytes at most.
fn a_read_is_capped_at_8_mib(server: &Server) {
    const CAP: usize = 8 << 20;
    let pattern: Vec<u8> = (0..CAP + 1000)
        .map(|position| (position % 251) as u8)
        .collect();
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for piece in pattern.chunks(CAP / 2) {
            stream.append(OCTETS, piece);
        }
        for query in ["", "max_bytes=99999999", "offset=500"] {
            let answer = stream
                .get(query)
                .send()
                .expect(200)
                .expect_no_field("stream-up-to-date");
            let start = if query == "offset=500" { 500 } else { 0 };
            assert_eq!(answer.body.len(), CAP, "of {query}");
            assert!(
                answer.body == pattern[start..start + CAP],
                "wrong bytes for {query}"
            );
            assert_eq!(answer.next_offset(), offset(start + CAP));
        }
        assert!(stream.read_all() == pattern, "wrong bytes over all");
    }
}

/// Extensions 9.3: going on from `Stream-Next-Offset` ends at an answer that is up to date.
fn reads_resume_to_the_tail(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, TEN);
        for step in [1, 3, 7, 10] {
            let mut read = Vec::new();
            let mut at = "-1".to_owned();
            loop {
                let answer = stream
                    .get(&format!("offset={at}&max_bytes={step}"))
                    .send()
                    .expect(200);
                assert!(answer.body.len() <= step, "{answer}");
                read.extend_from_slice(&answer.body);
                at = answer.next_offset();
                if answer.header("stream-up-to-date") == Some("true") {
                    break;
                }
            }
            assert_eq!(read, TEN.as_bytes(), "in steps of {step}");
        }
    }
}

/// Extensions 9.2: `local` and `leader` are served, anything else is 400.
fn consistency_takes_local_and_leader(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for round in 1..=5 {
            stream.append(OCTETS, "x");
            // Leader: reflects every append acknowledged before the request.
            let answer = stream.get("consistency=leader").send().expect(200);
            assert_eq!(answer.body.len(), round);
        }
        stream.get("consistency=local").send().expect(200);
        for other in ["strong", "", "LEADER", "follower"] {
            stream
                .get(&format!("consistency={other}"))
                .send()
                .expect_error(400, ErrorCode::InvalidQuery);
        }
    }
}

/// Extensions 9.2 and Decisions: `leader` with `live` is 400, as is any other value.
fn consistency_with_live_is_400(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for live in ["long-poll", "sse"] {
            for consistency in ["leader", "other"] {
                stream
                    .get(&format!("offset=-1&live={live}&consistency={consistency}"))
                    .send()
                    .expect_error(400, ErrorCode::InvalidQuery);
            }
        }
    }
}

/// The peer's answer (section 4): `live` is `long-poll` or `sse`.
fn unknown_live_mode_is_400(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for live in ["foo", "true", "", "SSE", "longpoll"] {
            stream
                .get(&format!("offset=-1&live={live}"))
                .send()
                .expect_error(400, ErrorCode::InvalidQuery);
        }
    }
}

/// Base 5.7 and 5.8: live reads name their offset.
fn live_needs_an_offset(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for live in ["long-poll", "sse"] {
            stream
                .get(&format!("live={live}"))
                .send()
                .expect_error(400, ErrorCode::InvalidQuery);
        }
    }
}

/// The peer's answer (section 4): a stream read has no byte ranges of HTTP.
fn range_does_not_apply_to_streams(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        stream
            .get("")
            .header("Range", "bytes=0-1")
            .send()
            .expect(200)
            .expect_body(TEN);
    }
}

/// Extensions 2.4: `StreamHead` accepts our HEAD. Decisions, Producers: it names no
/// `Ursula-Protocol` and no `Ursula-Cluster-Id`, so `ServerIdentity` finds none.
fn head_parses_as_typed_metadata(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, TEN);
        let answer = stream.head().send().expect(200).expect_body("");
        let answer = answer.expect_field("content-type", TEXT);
        let head = StreamHead::parse(answer.pairs()).expect("HEAD parses");
        assert_eq!(head.next_offset().get(), 10);
        assert_eq!(head.retained_offset().get(), 0);
        assert_eq!(head.max_request_bytes(), 8 << 20);
        assert_eq!(head.max_snapshot_bytes(), Some(1 << 30));
        assert_eq!(
            (head.closed(), head.snapshot(), head.inherited()),
            (false, None, None)
        );
        assert_eq!(ServerIdentity::parse(answer.pairs()), Ok(None));
        assert!(
            answer.expect_header("cache-control").contains("no-store"),
            "{answer}"
        );
        stream.close();
        let answer = stream.head().send().expect(200);
        assert!(
            StreamHead::parse(answer.pairs())
                .expect("HEAD parses")
                .closed()
        );
    }
}

/// RFC 9110 9.3.2 and Decisions, Errors: HEAD errors have no body.
fn head_of_a_missing_stream_has_no_body(server: &Server) {
    for surface in SURFACES {
        Stream::absent(server, surface)
            .head()
            .send()
            .expect(404)
            .expect_body("");
    }
}

/// The peer's answer (section 5): HEAD of a live URL is metadata at once.
fn head_ignores_the_query(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, TEN);
        for query in ["offset=now&live=sse", "offset=now&live=long-poll"] {
            let head = stream
                .request("HEAD", &format!("?{query}"))
                .send()
                .expect(200);
            assert_eq!(head.next_offset(), offset(10));
        }
    }
}
