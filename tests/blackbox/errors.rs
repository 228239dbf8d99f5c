//! Error answers: Decisions, "Errors", and the typed body of `ursula-headers`.

use ursula_headers::{ErrorBody, ErrorCode};

use crate::common::http::{Request, Response};
use crate::common::server::Server;
use crate::common::stream::{BUCKET, JSON, OCTETS, SURFACES, Stream, Surface, TEXT};

at_1_and_4_shards![
    every_error_has_a_typed_body_and_a_known_code,
    head_errors_have_no_body,
    messages_do_not_echo_markup_raw,
    methods_a_route_does_not_serve_are_405_with_allow,
    errors_are_not_stored_by_caches,
];

/// One answer of every kind of error that needs no special server.
fn errors(server: &Server, surface: Surface) -> Vec<Response> {
    let stream = Stream::with_body(server, surface, TEXT, "abc");
    let json = Stream::create(server, surface, JSON);
    let closed = Stream::create(server, surface, TEXT);
    closed.close();
    let absent = Stream::absent(server, surface);
    let post = |stream: &Stream<'_>| stream.post().header("Content-Type", TEXT).body("x");
    let producer = |epoch: &str, seq: &str| {
        let post = post(&stream).header("Producer-Id", "p");
        post.header("Producer-Epoch", epoch)
            .header("Producer-Seq", seq)
    };
    producer("1", "0").send().expect(200);
    let mut requests = vec![
        absent.get(""),
        absent.delete(),
        post(&absent),
        stream.get("offset=abc"),
        stream.get("offset=1&offset=1"),
        stream.get("live=sse"),
        stream.get("consistency=x"),
        stream.put().header("Content-Type", "text/html"),
        stream
            .put()
            .header("Content-Type", TEXT)
            .header("Stream-TTL", "x"),
        stream.post().header("Content-Type", JSON).body("1"),
        stream.post().body("1"),
        stream.post(),
        json.post().header("Content-Type", JSON).body("{"),
        post(&closed),
        producer("1", "9"),
        producer("0", "0"),
        producer("2", "1"),
        producer("x", "1"),
        stream.get("").header("Stream-Incarnation", "x"),
        stream.get("").header("Stream-Incarnation", "7"),
        stream.request("PATCH", ""),
        post(&stream).header("Stream-Seq", "s".repeat(300)),
    ];
    if surface == Surface::Bucket {
        requests.extend([
            stream.get("offset=99"),
            stream.request("GET", "/snapshot/0"),
            stream.request("GET", "/snapshot"),
            stream.request("PUT", "/snapshot/99").body("s"),
            stream.request("PUT", "/snapshot/x").body("s"),
            stream.request("PUT", "/retention/2"),
            stream.request("GET", "/bootstrap?live=sse"),
            stream.request("GET", "/other/path"),
            Request::new(server, "PUT", "/NO"),
            Request::new(server, "PUT", format!("/{BUCKET}/streams")),
            Request::new(server, "GET", "/"),
        ]);
    }
    requests.iter().map(Request::send).collect()
}

/// Decisions, Errors: `{"error":{"code":"UPPER_SNAKE","message":"…"}}`, `application/json`, with the
/// codes of `ursula-headers` where it has one. It has one for each of these.
fn every_error_has_a_typed_body_and_a_known_code(server: &Server) {
    for surface in SURFACES {
        for answer in errors(server, surface) {
            assert!(
                (400..500).contains(&answer.status),
                "not an error: {answer}"
            );
            let body = answer.error_body();
            assert!(
                !matches!(body.code, ErrorCode::Unknown(_)),
                "an unknown code: {answer}"
            );
            // Nothing but the two members: the rendering of the typed crate is ours, up to spacing.
            let expected: serde_json::Value =
                serde_json::from_str(&ErrorBody::new(body.code, body.message).render())
                    .expect("JSON");
            assert_eq!(answer.json(), expected);
        }
    }
}

/// Decisions, Errors: every answer but HEAD's.
fn head_errors_have_no_body(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, TEXT, "abc");
    let absent = Stream::absent(server, Surface::Bucket);
    for (request, status) in [
        (absent.head(), 404),
        (stream.head().header("Stream-Incarnation", "x"), 400),
        (stream.head().header("Stream-Incarnation", "7"), 412),
        (stream.request("HEAD", "/snapshot/0"), 404),
        (stream.request("HEAD", "/other/path"), 404),
        (Request::new(server, "HEAD", "/NO/stream"), 400),
    ] {
        request.send().expect(status).expect_body("");
    }
}

/// An answer that quotes the request is still JSON, and no page.
fn messages_do_not_echo_markup_raw(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    for query in [
        "offset=%3Cscript%3E%22%5C%00%0A",
        "consistency=%3Cimg%3E%22",
        "live=%22%7D%7D",
    ] {
        let answer = stream.get(query).send().expect(400);
        answer.error_body();
        assert_eq!(
            answer.header("x-content-type-options"),
            Some("nosniff"),
            "{answer}"
        );
    }
}

/// RFC 9110 15.5.6 and the peer's answer (section 0).
fn methods_a_route_does_not_serve_are_405_with_allow(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let answer = stream.request("PATCH", "").body("x").send();
        let answer = answer.expect_error(405, ErrorCode::MethodNotAllowed);
        let allow = answer.expect_header("allow");
        for method in ["PUT", "POST", "GET", "HEAD", "DELETE"] {
            assert!(allow.contains(method), "{answer}");
        }
    }
}

/// An error may be over by the next request: no cache may keep it (404 and 410 are storable by
/// default, RFC 9111 4.2.2).
fn errors_are_not_stored_by_caches(server: &Server) {
    for surface in SURFACES {
        for answer in errors(server, surface) {
            if matches!(answer.status, 404 | 405 | 410 | 414 | 501) {
                let directives = answer.header("cache-control").unwrap_or_default();
                assert!(directives.contains("no-store"), "{answer}");
            }
        }
    }
}
