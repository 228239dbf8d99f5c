//! Browsers: Base 12.7, Decisions "Live reads, lifetimes, browsers".

use crate::common::http::{Request, Response};
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, SURFACES, Stream, Surface, TEXT};

at_1_and_4_shards![
    any_origin_may_read,
    preflight_allows_what_clients_send,
    preflight_needs_no_stream,
    answers_expose_what_clients_must_read,
    every_answer_is_nosniff,
    stream_bytes_cannot_run_on_our_origin,
    admin_plane_has_no_cors,
    admin_plane_refuses_foreign_origins_and_hosts,
];

const ORIGIN: &str = "https://app.example";

/// The names a list field holds, in lower case; its lines are one list (RFC 9110 5.3).
fn names(answer: &Response, field: &str) -> Vec<String> {
    let lines = answer
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(field));
    lines
        .flat_map(|(_, list)| list.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

/// Decisions: any origin by default, errors included, or a page could not tell why.
fn any_origin_may_read(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let absent = Stream::absent(server, surface);
        for answer in [
            stream.get("").header("Origin", ORIGIN).send().expect(200),
            stream.head().header("Origin", ORIGIN).send().expect(200),
            absent.get("").header("Origin", ORIGIN).send().expect(404),
            stream
                .get("offset=x")
                .header("Origin", ORIGIN)
                .send()
                .expect(400),
            stream
                .put()
                .header("Origin", ORIGIN)
                .header("Content-Type", TEXT)
                .send()
                .expect(200),
        ] {
            let allowed = answer.expect_header("access-control-allow-origin");
            assert!(allowed == "*" || allowed == ORIGIN, "{answer}");
        }
    }
}

fn preflight(stream: &Stream<'_>, method: &str, headers: &str) -> Response {
    stream
        .request("OPTIONS", "")
        .header("Origin", ORIGIN)
        .header("Access-Control-Request-Method", method)
        .header("Access-Control-Request-Headers", headers)
        .send()
}

/// Decisions: preflight allows the protocol's methods and headers.
fn preflight_allows_what_clients_send(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let answer = preflight(&stream, "POST", "content-type");
        assert!(matches!(answer.status, 200 | 204), "{answer}");
        let methods = names(&answer, "access-control-allow-methods");
        for method in ["get", "head", "put", "post", "delete"] {
            assert!(
                methods.contains(&method.to_owned()),
                "no {method} in {answer}"
            );
        }
        let allowed = names(&answer, "access-control-allow-headers");
        for name in [
            "content-type",
            "if-none-match",
            "range",
            "stream-ttl",
            "stream-expires-at",
            "stream-seq",
            "stream-closed",
            "stream-incarnation",
            "stream-forked-from",
            "stream-fork-offset",
            "stream-fork-sub-offset",
            "stream-snapshot-parts",
            "stream-snapshot-digest",
            "producer-id",
            "producer-epoch",
            "producer-seq",
            "producer-digest",
        ] {
            // `*` covers all of these for requests without credentials.
            let covered = allowed
                .iter()
                .any(|allowed| allowed == name || allowed == "*");
            assert!(covered, "no {name} in {answer}");
        }
    }
}

/// A preflight asks about a URL, not about what lives there.
fn preflight_needs_no_stream(server: &Server) {
    for surface in SURFACES {
        let answer = preflight(&Stream::absent(server, surface), "PUT", "content-type");
        assert!(matches!(answer.status, 200 | 204), "{answer}");
    }
}

/// Decisions: `Access-Control-Expose-Headers` names every header a client must read.
fn answers_expose_what_clients_must_read(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, TEXT);
        let answer = stream.get("").header("Origin", ORIGIN).send().expect(200);
        let exposed = names(&answer, "access-control-expose-headers");
        for name in [
            "stream-next-offset",
            "stream-cursor",
            "stream-up-to-date",
            "stream-closed",
            "stream-incarnation",
            "stream-retained-offset",
            "stream-ttl",
            "stream-expires-at",
            "stream-sse-data-encoding",
            "stream-data-content-type",
            "stream-snapshot-offset",
            "stream-snapshot-digest",
            "stream-snapshot-part",
            "stream-offset",
            "stream-last-seq",
            "producer-epoch",
            "producer-seq",
            "producer-expected-seq",
            "producer-received-seq",
            "producer-outcome",
            "ursula-max-request-bytes",
            "etag",
            "location",
            "content-range",
            "retry-after",
        ] {
            // `*` covers all of these for requests without credentials.
            let covered = exposed
                .iter()
                .any(|exposed| exposed == name || exposed == "*");
            assert!(covered, "no {name} in {answer}");
        }
    }
}

/// Base 12.7: nosniff on all answers, and an explicit resource policy.
fn every_answer_is_nosniff(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        for answer in [
            stream.put().header("Content-Type", TEXT).send().expect(200),
            stream.append(TEXT, "x"),
            stream.get("").send().expect(200),
            stream.head().send().expect(200),
            stream
                .get("offset=now&live=long-poll&timeout_ms=1")
                .send()
                .expect(204),
            stream.get("offset=x").send().expect(400),
            Stream::absent(server, surface).get("").send().expect(404),
        ] {
            assert_eq!(
                answer.header("x-content-type-options"),
                Some("nosniff"),
                "{answer}"
            );
            let policy = answer.expect_header("cross-origin-resource-policy");
            assert!(
                ["cross-origin", "same-site", "same-origin"].contains(&policy),
                "{answer}"
            );
        }
        let events = stream.sse("-1");
        assert_eq!(
            events.head.header("x-content-type-options"),
            Some("nosniff")
        );
    }
}

/// Decisions: answers with stream bytes are sandboxed, so stored HTML cannot run on our origin.
fn stream_bytes_cannot_run_on_our_origin(server: &Server) {
    for surface in SURFACES {
        let html = Stream::with_body(server, surface, "text/html", "<script>alert(1)</script>");
        let mut answers = vec![
            html.get("").send().expect(200),
            html.get("offset=-1&live=long-poll").send().expect(200),
            Stream::with_body(server, surface, JSON, "[\"<script>\"]")
                .get("")
                .send()
                .expect(200),
        ];
        if surface == Surface::Bucket {
            let publish = html
                .request("PUT", "/snapshot/0")
                .header("Content-Type", "text/html");
            publish.body("<script>alert(2)</script>").send().expect(204);
            answers.push(html.request("GET", "/snapshot/0").send().expect(200));
            answers.push(html.request("GET", "/bootstrap").send().expect(200));
        }
        for answer in answers {
            let policy = answer.expect_header("content-security-policy");
            let mut directives = policy.split(';').map(str::trim);
            assert!(
                directives.any(|directive| directive == "sandbox"),
                "{answer}"
            );
            assert_eq!(
                answer.header("x-content-type-options"),
                Some("nosniff"),
                "{answer}"
            );
        }
    }
}

/// Decisions: the admin plane has no CORS.
fn admin_plane_has_no_cors(server: &Server) {
    let answer = Request::to(server.admin_address(), "GET", "/metrics")
        .send()
        .expect(200);
    answer.expect_no_field("access-control-allow-origin");
}

/// Decisions: it refuses a foreign `Origin` and a `Host` that is not loopback.
fn admin_plane_refuses_foreign_origins_and_hosts(server: &Server) {
    let admin = server.admin_address();
    let answer = Request::to(admin, "GET", "/metrics")
        .header("Origin", ORIGIN)
        .send();
    assert!((400..500).contains(&answer.status), "{answer}");
    let mut connection = crate::common::http::Connection::open(admin);
    connection.write("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    let answer = connection.read_response("GET");
    assert!((400..500).contains(&answer.status), "{answer}");
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let mut connection = crate::common::http::Connection::open(admin);
        connection.write(format!(
            "GET /metrics HTTP/1.1\r\nHost: {host}:{}\r\n\r\n",
            admin.port()
        ));
        connection.read_response("GET").expect(200);
    }
}

/// Decisions: an allow-list by setting: other origins get no permission.
#[test]
fn origins_can_be_limited() {
    let server = Options::new(1).flag("cors-allow-origin", ORIGIN).start();
    let stream = Stream::with_body(&server, Surface::Base, TEXT, "abc");
    let allowed = stream.get("").header("Origin", ORIGIN).send().expect(200);
    let allowed = allowed.expect_field("access-control-allow-origin", ORIGIN);
    // The answer depends on the origin, and caches must know.
    assert!(
        names(&allowed, "vary").contains(&"origin".to_owned()),
        "{allowed}"
    );
    for other in [
        "https://evil.example",
        "null",
        "https://app.example.evil",
        "http://app.example",
    ] {
        let answer = stream.get("").header("Origin", other).send();
        let permission = answer.header("access-control-allow-origin");
        assert!(
            permission.is_none() || permission == Some(ORIGIN),
            "{other}: {answer}"
        );
    }
}
