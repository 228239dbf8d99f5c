//! `Stream-Incarnation`: Extensions 2.4 and Decisions, "Tokens" and "Order of checks".

use ursula_headers::{ErrorCode, Incarnation, IncarnationMismatch, names};

use crate::common::http::{Request, Response};
use crate::common::server::Server;
use crate::common::stream::{OCTETS, SURFACES, Stream, Surface};

at_1_and_4_shards![
    every_success_carries_it,
    it_changes_on_recreation_only,
    tokens_are_not_reused,
    a_match_changes_nothing,
    a_mismatch_is_412_with_the_current_one,
    a_refused_write_applies_nothing,
    malformed_tokens_are_400,
    a_missing_stream_stays_404,
    a_create_with_a_token_creates_nothing,
    gone_and_out_of_range_come_first,
    a_mismatch_comes_before_not_modified,
    a_mismatch_comes_before_conflicts,
];

/// One request of every kind that addresses a stream; the stream holds 10 bytes, a snapshot at 6.
/// The last two close and delete it.
fn every_request(stream: &Stream<'_>, surface: Surface) -> Vec<(&'static str, Request)> {
    let append = stream.post().header("Content-Type", OCTETS).body("x");
    let mut requests = vec![
        ("create", stream.put().header("Content-Type", OCTETS)),
        ("catch-up", stream.get("")),
        ("now", stream.get("offset=now")),
        ("long-poll", stream.get("offset=0&live=long-poll")),
        (
            "long-poll 204",
            stream.get("offset=now&live=long-poll&timeout_ms=1"),
        ),
        ("HEAD", stream.head()),
        ("append", append),
        ("SSE", stream.get("offset=-1&live=sse")),
    ];
    if surface == Surface::Bucket {
        requests.extend([
            ("publish", stream.request("PUT", "/snapshot/6").body("s")),
            ("snapshot", stream.request("GET", "/snapshot/6")),
            ("snapshot HEAD", stream.request("HEAD", "/snapshot/6")),
            ("bootstrap", stream.request("GET", "/bootstrap")),
            ("retention", stream.request("PUT", "/retention/4")),
            ("discard", stream.request("DELETE", "/snapshot/parts")),
        ]);
    }
    requests.push(("close", stream.post().header("Stream-Closed", "true")));
    requests.push(("DELETE", stream.delete()));
    requests
}

fn with_snapshot(server: &Server, surface: Surface) -> Stream<'_> {
    let stream = Stream::with_body(server, surface, OCTETS, "0123456789");
    let publish = stream
        .on(Surface::Bucket)
        .request("PUT", "/snapshot/6")
        .body("s");
    publish.send().expect(204);
    stream
}

/// A token the server could have issued for another incarnation.
fn another(token: &str) -> String {
    let token: u64 = token.parse().expect("a token is decimal");
    (if token == 1 { 2 } else { token - 1 }).to_string()
}

/// Extensions 2.4, Stream-Incarnation on responses: on every successful answer.
fn every_success_carries_it(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        Incarnation::parse(names::STREAM_INCARNATION, &token)
            .expect("Decisions, Tokens: canonical");
        for (what, request) in every_request(&stream, surface) {
            match what {
                "DELETE" | "close" | "SSE" => continue,
                _ => {}
            }
            let answer = request.send();
            assert!(answer.status < 300, "{what}: {answer}");
            assert_eq!(
                answer.header("stream-incarnation"),
                Some(token.as_str()),
                "{what}: {answer}"
            );
        }
        let events = stream.sse("now");
        assert_eq!(
            events.head.header("stream-incarnation"),
            Some(token.as_str())
        );
        assert_eq!(stream.close().incarnation(), token);
    }
}

/// Extensions 2.4: it changes when the stream is deleted and recreated, and not otherwise.
fn it_changes_on_recreation_only(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        stream.append(OCTETS, "x");
        stream.close();
        assert_eq!(stream.head().send().incarnation(), token);
        stream.delete().send().expect(204);
        assert_ne!(stream.put().send().expect(201).incarnation(), token);
    }
}

/// Decisions, Tokens: never reused for a URL, 1 to 2^53-1.
fn tokens_are_not_reused(server: &Server) {
    let stream = Stream::absent(server, Surface::Base);
    let mut tokens: Vec<u64> = (0..100)
        .map(|_| {
            let token = stream.put().send().expect(201).incarnation();
            stream.delete().send().expect(204);
            token.parse().expect("a token is decimal")
        })
        .collect();
    assert!(
        tokens.iter().all(|token| (1..1 << 53).contains(token)),
        "{tokens:?}"
    );
    let steps: Vec<i128> = tokens
        .windows(2)
        .map(|pair| i128::from(pair[1]) - i128::from(pair[0]))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 100, "a token came twice");
    // Not predictable from time alone, let alone from the one before.
    assert!(
        steps.windows(2).any(|pair| pair[0] != pair[1]),
        "tokens are counted: {steps:?}"
    );
}

/// Extensions 2.4, Present: an equal token lets every request through.
fn a_match_changes_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        for (what, request) in every_request(&stream, surface) {
            if what == "SSE" {
                continue;
            }
            let answer = request.header("Stream-Incarnation", &token).send();
            assert!(answer.status < 300, "{what}: {answer}");
        }
    }
}

#[track_caller]
fn expect_mismatch(what: &str, request: &Request, current: Option<&str>) -> Response {
    let answer = request.send();
    assert_eq!(answer.status, 412, "{what}: {answer}");
    let typed = IncarnationMismatch::parse(answer.status, answer.pairs());
    let typed = typed.expect("it parses").expect("a 412 is a mismatch");
    let named = typed.current.map(|current| current.get().to_string());
    assert_eq!(named.as_deref(), current, "{what}: {answer}");
    if what.contains("HEAD") {
        return answer.expect_body("");
    }
    answer.expect_error(412, ErrorCode::IncarnationMismatch)
}

/// Extensions 2.4, Mismatch: 412 for every request, with the current token.
fn a_mismatch_is_412_with_the_current_one(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        for (what, request) in every_request(&stream, surface) {
            let request = request.header("Stream-Incarnation", another(&token));
            expect_mismatch(what, &request, Some(&token));
        }
        if surface == Surface::Bucket {
            let stage = stream.request("POST", "/snapshot/6/parts").body("part");
            let stage = stage.header("Stream-Incarnation", another(&token));
            expect_mismatch("stage", &stage, Some(&token));
        }
    }
}

/// Extensions 2.4: a refused write applies nothing.
fn a_refused_write_applies_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let before = stream.head().send().expect(200);
        let other = another(&before.incarnation());
        for (_, request) in every_request(&stream, surface) {
            request
                .header("Stream-Incarnation", &other)
                .send()
                .expect(412);
        }
        let after = stream.head().send().expect(200);
        for name in [
            "stream-next-offset",
            "stream-closed",
            "stream-retained-offset",
            "stream-snapshot-digest",
        ] {
            assert_eq!(before.header(name), after.header(name));
        }
    }
}

/// Extensions 2.4, Malformed, and Decisions, Tokens: 400, for every kind of request.
fn malformed_tokens_are_400(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        let values = [
            "0",
            "01",
            "abc",
            "-1",
            "+1",
            "1.0",
            "",
            "9007199254740992",
            "18446744073709551616",
            "1, 2",
            "0x1",
        ];
        for (what, request) in every_request(&stream, surface) {
            for value in values {
                let answer = request.clone().header("Stream-Incarnation", value).send();
                assert_eq!(answer.status, 400, "{what} with {value:?}: {answer}");
                if !what.contains("HEAD") {
                    assert_eq!(
                        answer.error_body().code,
                        ErrorCode::InvalidHeader,
                        "{what}: {answer}"
                    );
                }
            }
            let twice = request
                .header("Stream-Incarnation", &token)
                .header("Stream-Incarnation", &token);
            assert_eq!(twice.send().status, 400, "{what} with two values");
        }
    }
}

/// Extensions 2.4, Evaluation: what would be 404 without the header is 404 with it.
fn a_missing_stream_stays_404(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        for (what, request) in every_request(&stream, surface) {
            if what == "create" {
                continue;
            }
            let answer = request.header("Stream-Incarnation", "7").send();
            assert_eq!(answer.status, 404, "{what}: {answer}");
        }
    }
}

/// Extensions 2.4, Evaluation: except a PUT, which is 412 and creates nothing.
fn a_create_with_a_token_creates_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let put = stream.put().header("Stream-Incarnation", "7").body("x");
        expect_mismatch("create", &put, None);
        stream.head().send().expect(404);
        // Nor after the stream it was meant for is gone.
        let token = stream.put().send().expect(201).incarnation();
        stream.delete().send().expect(204);
        let put = stream.put().header("Stream-Incarnation", &token);
        expect_mismatch("create", &put, None);
        stream.head().send().expect(404);
    }
}

/// Extensions 2.4, Evaluation: 410 and 416 stay what they are.
fn gone_and_out_of_range_come_first(server: &Server) {
    let stream = with_snapshot(server, Surface::Bucket);
    stream.request("PUT", "/retention/4").send().expect(204);
    let token = stream.head().send().incarnation();
    for (query, status) in [
        ("offset=3", 410),
        ("", 410),
        ("offset=99", 416),
        ("offset=4", 412),
    ] {
        for live in ["", "&live=long-poll", "&live=sse"] {
            if query.is_empty() && !live.is_empty() {
                continue;
            }
            let read = stream.get(&format!("{query}{live}"));
            let answer = read
                .header("Stream-Incarnation", another(&token))
                .send()
                .expect(status);
            answer.expect_field("stream-incarnation", &token);
        }
    }
    let range = stream
        .request("GET", "/snapshot/6")
        .header("Range", "bytes=9-");
    range
        .header("Stream-Incarnation", another(&token))
        .send()
        .expect(416);
}

/// Decisions, Order of checks: reads: 404, 416/410, 412, then 304.
fn a_mismatch_comes_before_not_modified(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let read = stream.get("").send().expect(200);
        let conditional = stream
            .get("")
            .header("If-None-Match", read.expect_header("etag"));
        let conditional = conditional.header("Stream-Incarnation", another(&read.incarnation()));
        expect_mismatch("read", &conditional, Some(&read.incarnation()));
    }
}

/// Decisions, Order of checks: writes: 400, 404, 412, then the conflicts. "412, not 409, so it never
/// mixes with Stream-Seq and producer conflicts."
fn a_mismatch_comes_before_conflicts(server: &Server) {
    for surface in SURFACES {
        let stream = with_snapshot(server, surface);
        let token = stream.head().send().incarnation();
        let post = stream.post().header("Content-Type", OCTETS).body("x");
        post.clone().header("Stream-Seq", "5").send().expect(204);
        for conflicting in [
            post.clone().header("Stream-Seq", "4"),
            stream.post().header("Content-Type", "text/plain").body("x"),
            post.clone()
                .header("Producer-Id", "p")
                .header("Producer-Epoch", "0")
                .header("Producer-Seq", "9"),
            stream.put().header("Content-Type", "text/plain"),
        ] {
            let request = conflicting.header("Stream-Incarnation", another(&token));
            expect_mismatch("conflict", &request, Some(&token));
        }
        stream.close();
        let closed = post.header("Stream-Incarnation", another(&token));
        expect_mismatch("closed", &closed, Some(&token));
    }
}
