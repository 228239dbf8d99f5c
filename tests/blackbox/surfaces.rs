//! Two surfaces over one set of streams: Decisions, "Two surfaces".

use ursula_headers::ErrorCode;

use crate::common::http::{Request, Response};
use crate::common::server::Server;
use crate::common::stream::{
    BUCKET, JSON, OCTETS, SURFACES, Stream, Surface, TEXT, offset, unique,
};

at_1_and_4_shards![
    one_stream_under_two_paths,
    one_offset_space,
    any_number_of_segments_on_the_base_surface,
    base_keys_that_are_no_bucket_paths_stay_there,
    base_surface_has_no_subresources,
    subscriptions_path_is_reserved,
    header_extensions_work_on_both,
    base_paths_need_a_key,
    live_readers_of_one_view_see_writes_of_the_other,
];

/// `/v1/stream/demo/hello` and `/demo/hello` are the same stream.
fn one_stream_under_two_paths(server: &Server) {
    for created_on in SURFACES {
        let stream = Stream::with_body(server, created_on, TEXT, "one");
        let incarnation = stream.head().send().incarnation();
        for surface in SURFACES {
            let view = stream.on(surface);
            assert_eq!(view.head().send().incarnation(), incarnation);
            view.put().header("Content-Type", TEXT).send().expect(200);
            view.append(TEXT, ",more");
        }
        for surface in SURFACES {
            assert_eq!(stream.on(surface).read_all(), b"one,more,more");
        }
        stream.on(Surface::Base).delete().send().expect(204);
        stream.on(Surface::Bucket).head().send().expect(404);
    }
}

/// "one store, one offset space, read in two views": JSON offsets are those of the stored text.
fn one_offset_space(server: &Server) {
    let stream = Stream::create(server, Surface::Base, JSON);
    let first = stream.append(JSON, "{\"a\": 1}").next_offset();
    assert_eq!(first, offset(8));
    let second = stream
        .on(Surface::Bucket)
        .append(JSON, "[2, 3]")
        .next_offset();
    assert_eq!(second, offset(12));
    let lines = stream
        .on(Surface::Bucket)
        .get(&format!("offset={first}"))
        .send()
        .expect(200);
    assert_eq!(lines.expect_body("2\n3\n").next_offset(), second);
    let array = stream.get(&format!("offset={first}")).send().expect(200);
    assert_eq!(array.expect_body("[2,3]").next_offset(), second);
}

/// "the base protocol exactly: ... any number of path segments".
fn any_number_of_segments_on_the_base_surface(server: &Server) {
    for key in [
        unique("one"),
        format!("{BUCKET}/{}/three", unique("two")),
        format!("a/b/c/d/e/{}", unique("f")),
    ] {
        let stream = Stream::at(server, Surface::Base, &key);
        stream
            .put()
            .header("Content-Type", TEXT)
            .body(&key)
            .send()
            .expect(201);
        stream.get("").send().expect(200).expect_body(&key);
        stream.delete().send().expect(204);
    }
}

/// "A base path whose key is no legal bucket/stream pair lives on the base surface alone."
fn base_keys_that_are_no_bucket_paths_stay_there(server: &Server) {
    for key in [
        format!("UPPER/{}", unique("s")),
        format!("ab/{}", unique("s")),
        format!("{BUCKET}/${}", unique("s")),
    ] {
        let stream = Stream::at(server, Surface::Base, &key);
        stream.put().send().expect(201);
        stream.on(Surface::Bucket).get("").send().expect(400);
        stream.get("").send().expect(200);
    }
}

/// "the base surface has no subresources": such paths are other streams.
fn base_surface_has_no_subresources(server: &Server) {
    let stream = Stream::with_body(server, Surface::Base, OCTETS, "0123456789");
    for suffix in [
        "/snapshot/5",
        "/bootstrap",
        "/retention/3",
        "/snapshot/parts",
    ] {
        stream
            .request("GET", suffix)
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
        stream
            .request("PUT", suffix)
            .body("another")
            .send()
            .expect(201);
        stream
            .request("GET", suffix)
            .send()
            .expect(200)
            .expect_body("another");
    }
    stream
        .head()
        .send()
        .expect(200)
        .expect_no_field("stream-snapshot-offset");
    // On the bucket surface those paths are the subresources, not these streams.
    let bucket = stream.on(Surface::Bucket);
    bucket
        .request("GET", "/snapshot/5")
        .send()
        .expect_error(404, ErrorCode::SnapshotNotFound);
}

/// "`/v1/stream/__ds/…` is reserved for subscriptions."
fn subscriptions_path_is_reserved(server: &Server) {
    for path in [
        "/v1/stream/__ds/subscriptions/x",
        "/v1/stream/__ds/x",
        "/v1/stream/__ds",
    ] {
        let answer: Response = Request::new(server, "PUT", path).send();
        assert!((400..502).contains(&answer.status), "{path}: {answer}");
    }
}

/// "Header extensions ... work on both."
fn header_extensions_work_on_both(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "0123456789");
        let head = stream.head().send().expect(200);
        head.clone()
            .expect_field("stream-retained-offset", &offset(0));
        stream
            .get("max_bytes=3&consistency=leader")
            .send()
            .expect(200)
            .expect_body("012");
        stream
            .get("offset=now&live=long-poll&timeout_ms=1")
            .send()
            .expect(204);
        let read = stream
            .get("")
            .header("Stream-Incarnation", head.incarnation());
        read.send()
            .expect(200)
            .expect_field("stream-incarnation", &head.incarnation());
    }
}

/// The base surface's own root is no stream.
fn base_paths_need_a_key(server: &Server) {
    for path in ["/v1/stream", "/v1/stream/", "/v1", "/v1/", "/v1/streams/x"] {
        let answer = Request::new(server, "PUT", path).send();
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer}");
        answer.error_body();
    }
}

/// The views share their readers as well.
fn live_readers_of_one_view_see_writes_of_the_other(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, JSON);
    let base = stream.on(Surface::Base);
    let mut lines = stream.sse("-1");
    let mut arrays = base.sse("-1");
    lines.control();
    arrays.control();
    for (writer, message) in [
        (&stream, "{\"from\":\"bucket\"}"),
        (&base, "{\"from\":\"base\"}"),
    ] {
        writer.append(JSON, message);
        assert_eq!(lines.expect("data").data, format!("{message}\n"));
        assert_eq!(arrays.expect("data").json()[0].to_string(), message);
        assert_eq!(
            lines.control()["streamNextOffset"],
            arrays.control()["streamNextOffset"]
        );
    }
}
