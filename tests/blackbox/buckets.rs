//! Buckets and names: Extensions 1; Decisions, "Two surfaces"; the admin
//! plane's purge (issue 3).

use ursula_headers::ErrorCode;

use crate::common::http::{Request, Response};
use crate::common::observe::await_metric;
use crate::common::server::{Options, Server};
use crate::common::stream::{BUCKET, OCTETS, Stream, Surface, unique};

at_1_and_4_shards![
    put_bucket_validates_and_changes_nothing,
    bucket_ids_match_their_pattern,
    a_bucket_needs_no_creation,
    other_methods_on_a_bucket_are_405,
    stream_ids_have_at_most_122_bytes,
    reserved_stream_ids_are_400,
    subresource_names_are_stream_ids,
    ids_are_any_utf8,
    decoded_slash_nul_and_dots_are_400,
    percent_decoding_happens_once,
    invalid_utf8_and_escapes_are_400,
    other_paths_are_404,
    a_purged_bucket_is_gone_and_fenced,
    a_purge_of_a_bucket_without_streams_fences_it,
    purge_needs_a_legal_id,
];

fn put(server: &Server, path: &str) -> Response {
    Request::new(server, "PUT", path).send()
}

fn purge(server: &Server, bucket: &str) -> Response {
    Request::to(
        server.admin_address(),
        "DELETE",
        format!("/__ursula/purge/{bucket}"),
    )
    .send()
}

/// A bucket id of its own.
fn bucket() -> String {
    unique("bucket")
}

/// Extensions 1.2: 201 for a valid id, 400 for an invalid one, no state changed.
fn put_bucket_validates_and_changes_nothing(server: &Server) {
    let bucket = bucket();
    for _ in 0..2 {
        put(server, &format!("/{bucket}")).expect(201);
    }
    put(server, "/NO").expect_error(400, ErrorCode::InvalidBucketId);
    // Still no stream there.
    let stream = Stream::at(server, Surface::Bucket, &format!("{bucket}/s"));
    stream.head().send().expect(404);
}

/// Extensions 1.1: `^[a-z0-9_-]{4,64}$`; Decisions: no leading `__`.
fn bucket_ids_match_their_pattern(server: &Server) {
    let longest = "b".repeat(64);
    for legal in [
        "abcd",
        "a-b_c9",
        "-abc",
        "_abc",
        "0000",
        longest.as_str(),
        "%64emo",
    ] {
        put(server, &format!("/{legal}")).expect(201);
    }
    let too_long = "b".repeat(65);
    for illegal in [
        "abc",
        "v1",
        "Abcd",
        "ab.d",
        "ab%20cd",
        "__ursula",
        "__abc",
        "%C3%A9abc",
        too_long.as_str(),
    ] {
        for path in [format!("/{illegal}"), format!("/{illegal}/s")] {
            put(server, &path).expect_error(400, ErrorCode::InvalidBucketId);
        }
    }
}

/// Extensions 1.2: a bucket exists once a stream has been created in it.
fn a_bucket_needs_no_creation(server: &Server) {
    let stream = Stream::at(server, Surface::Bucket, &format!("{}/s", bucket()));
    let missing = stream.get("").send().expect(404);
    let code = missing.error_body().code;
    let known = [ErrorCode::BucketNotFound, ErrorCode::StreamNotFound];
    assert!(known.contains(&code), "{missing}");
    stream.put().send().expect(201);
    stream.get("").send().expect(200);
}

/// Extensions 1.2: no metadata read, no listing, no delete on the client surface.
fn other_methods_on_a_bucket_are_405(server: &Server) {
    for method in ["GET", "HEAD", "POST", "DELETE"] {
        let answer = Request::new(server, method, format!("/{BUCKET}"))
            .send()
            .expect(405);
        answer.expect_field("allow", "PUT");
    }
}

/// Extensions 1.1: 122 bytes for the id, and for `bucket/stream` together; decoded bytes count.
fn stream_ids_have_at_most_122_bytes(server: &Server) {
    let bucket = bucket();
    let longest = 122 - bucket.len() - 1;
    let put = |id: &str| {
        Stream::at(server, Surface::Bucket, &format!("{bucket}/{id}"))
            .put()
            .send()
    };
    for legal in ["s".repeat(longest), "%C3%A9".repeat(longest / 2)] {
        put(&legal).expect(201);
    }
    for illegal in [
        "s".repeat(longest + 1),
        "s".repeat(123),
        "%C3%A9".repeat(longest / 2 + 1),
    ] {
        put(&illegal).expect_error(400, ErrorCode::InvalidStreamId);
    }
}

/// Extensions 1.1: `streams` and everything that starts with `$`, for every method.
fn reserved_stream_ids_are_400(server: &Server) {
    for id in ["streams", "$x", "$", "$transaction", "%24x", "%73treams"] {
        let stream = Stream::at(server, Surface::Bucket, &format!("{BUCKET}/{id}"));
        stream
            .put()
            .send()
            .expect_error(400, ErrorCode::InvalidStreamId);
        stream
            .get("")
            .send()
            .expect_error(400, ErrorCode::InvalidStreamId);
        stream
            .delete()
            .send()
            .expect_error(400, ErrorCode::InvalidStreamId);
    }
}

/// Extensions 1.6: the reserved names remain valid stream ids but for the `$` rule.
fn subresource_names_are_stream_ids(server: &Server) {
    let bucket = bucket();
    for id in [
        "append-batch",
        "attrs",
        "bootstrap",
        "retention",
        "snapshot",
        "streams2",
        "a$",
    ] {
        let stream = Stream::at(server, Surface::Bucket, &format!("{bucket}/{id}"));
        stream.put().body("x").send().expect(201);
        stream.get("").send().expect(200).expect_body("x");
    }
}

/// Extensions 1.1: any UTF-8 string.
fn ids_are_any_utf8(server: &Server) {
    let bucket = bucket();
    for id in [
        "a%20b",
        "%C3%A9",
        "%F0%9F%A6%80",
        "a.b",
        ".a",
        "%3F%23",
        "a+b",
        "%25",
        "~!*'()",
    ] {
        let stream = Stream::at(server, Surface::Bucket, &format!("{bucket}/{id}"));
        stream.put().body(id).send().expect(201);
        stream.get("").send().expect(200).expect_body(id);
    }
    // A plus is a plus in a path, and no space.
    let plus = Stream::at(server, Surface::Bucket, &format!("{bucket}/a%2Bb"));
    plus.get("").send().expect(200).expect_body("a+b");
}

/// Decisions, Two surfaces: a decoded `/`, NUL or `..` is 400 on both surfaces.
fn decoded_slash_nul_and_dots_are_400(server: &Server) {
    for id in ["a%2Fb", "a%00b", "..", "a..b", "%2E%2E", "a%2e.b"] {
        for surface in [Surface::Base, Surface::Bucket] {
            let stream = Stream::at(server, surface, &format!("{BUCKET}/{id}"));
            let answer = stream.put().send();
            assert_eq!(
                answer.status, 400,
                "{id} on the {surface:?} surface: {answer}"
            );
            answer.error_body();
        }
    }
    Stream::at(server, Surface::Bucket, &format!("{BUCKET}/."))
        .put()
        .send()
        .expect(400);
}

/// Decisions, Two surfaces: each segment is decoded once.
fn percent_decoding_happens_once(server: &Server) {
    let bucket = bucket();
    let twice = Stream::at(server, Surface::Bucket, &format!("{bucket}/a%252Fb"));
    twice.put().body("x").send().expect(201);
    let same = Stream::at(server, Surface::Base, &format!("{bucket}/a%252Fb"));
    same.get("").send().expect(200).expect_body("x");
    // Different spellings of one name are one stream.
    let spelled = Stream::at(server, Surface::Bucket, &format!("{bucket}/%61b%63"));
    spelled.put().body("abc").send().expect(201);
    let plain = Stream::at(server, Surface::Bucket, &format!("{bucket}/abc"));
    plain.get("").send().expect(200).expect_body("abc");
}

/// What decodes to no UTF-8, or is no escape, is malformed.
fn invalid_utf8_and_escapes_are_400(server: &Server) {
    for id in ["%FF", "%C3", "%", "%4", "%zz", "a%C0%AF"] {
        for surface in [Surface::Base, Surface::Bucket] {
            let answer = Stream::at(server, surface, &format!("{BUCKET}/{id}"))
                .put()
                .send();
            assert_eq!(
                answer.status, 400,
                "{id} on the {surface:?} surface: {answer}"
            );
            answer.error_body();
        }
    }
}

/// Extensions 1.6: any other path with three or more segments under a bucket is 404.
fn other_paths_are_404(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    for suffix in [
        "/",
        "/foo",
        "/foo/bar",
        "/snapshots/1",
        "/snapshot/1/2",
        "/snapshot/1/parts/2",
        "/bootstrap/x",
        "/retention/1/x",
        "/retention",
        "/attrs",
        "/append-batch",
    ] {
        for method in ["GET", "PUT"] {
            let answer = stream.request(method, suffix).send();
            // The bare retention path is a subresource without its offset.
            let expected = if suffix == "/retention" {
                [404, 405]
            } else {
                [404, 404]
            };
            assert!(
                expected.contains(&answer.status),
                "{method} {suffix}: {answer}"
            );
            answer.error_body();
        }
    }
    for path in ["/", "//", &format!("/{BUCKET}/"), &format!("//{BUCKET}/x")] {
        let answer = Request::new(server, "GET", path).send();
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer}");
        answer.error_body();
    }
}

/// Extensions 1.2 and issue 3: the purge removes everything in the bucket and fences its id on
/// both surfaces; other buckets stay.
fn a_purged_bucket_is_gone_and_fenced(server: &Server) {
    let (doomed, spared) = (bucket(), bucket());
    let stream = |bucket: &str, name: usize, surface| {
        Stream::at(server, surface, &format!("{bucket}/s{name}"))
    };
    for name in 0..20 {
        for bucket in [&doomed, &spared] {
            stream(bucket, name, Surface::Bucket)
                .put()
                .body("x")
                .send()
                .expect(201);
        }
    }
    let deep = Stream::at(server, Surface::Base, &format!("{doomed}/deep/er"));
    deep.put().body("x").send().expect(201);
    let mut events = stream(&doomed, 0, Surface::Bucket).sse("now");
    events.control();
    let answer = purge(server, &doomed);
    assert!(matches!(answer.status, 200 | 204), "{answer}");
    events.expect("error");
    events.expect_end();
    for surface in [Surface::Base, Surface::Bucket] {
        for name in 0..20 {
            let gone = stream(&doomed, name, surface);
            gone.get("").send().expect(404);
            gone.head().send().expect(404);
            gone.put().send().expect_error(404, ErrorCode::BucketErased);
            stream(&spared, name, surface)
                .get("")
                .send()
                .expect(200)
                .expect_body("x");
        }
    }
    deep.get("").send().expect(404);
    deep.put().send().expect_error(404, ErrorCode::BucketErased);
    // It is idempotent.
    let again = purge(server, &doomed);
    assert!(matches!(again.status, 200 | 204), "{again}");
}

/// "permanently fences the bucket ID": also one that never held a stream.
fn a_purge_of_a_bucket_without_streams_fences_it(server: &Server) {
    let bucket = bucket();
    let answer = purge(server, &bucket);
    assert!(matches!(answer.status, 200 | 204 | 404), "{answer}");
    let stream = Stream::at(server, Surface::Bucket, &format!("{bucket}/s"));
    if answer.status != 404 {
        stream
            .put()
            .send()
            .expect_error(404, ErrorCode::BucketErased);
    }
}

/// The admin plane validates what it is told to erase; the data plane has no purge.
fn purge_needs_a_legal_id(server: &Server) {
    for illegal in ["NO", "__ursula", "a%2Fb"] {
        let answer = purge(server, illegal);
        assert!(matches!(answer.status, 400 | 404), "{illegal}: {answer}");
    }
    let bucket = bucket();
    let stream = Stream::at(server, Surface::Bucket, &format!("{bucket}/s"));
    stream.put().send().expect(201);
    let answer = Request::new(server, "DELETE", format!("/__ursula/purge/{bucket}")).send();
    assert!((400..500).contains(&answer.status), "{answer}");
    stream.head().send().expect(200);
}

/// Issue 3: the fence survives a restart and a kill.
#[test]
fn a_purge_survives_a_kill() {
    let server = Options::new(4).start();
    let doomed = bucket();
    let names: Vec<String> = (0..20).map(|name| format!("{doomed}/s{name}")).collect();
    for name in &names {
        Stream::at(&server, Surface::Bucket, name)
            .put()
            .body("x")
            .send()
            .expect(201);
    }
    let answer = purge(&server, &doomed);
    assert!(matches!(answer.status, 200 | 204), "{answer}");
    let server = server.kill_and_restart();
    for name in &names {
        let stream = Stream::at(&server, Surface::Bucket, name);
        stream.get("").send().expect(404);
        stream
            .put()
            .send()
            .expect_error(404, ErrorCode::BucketErased);
    }
    let server = server.restart();
    Stream::at(&server, Surface::Base, &names[0])
        .put()
        .send()
        .expect_error(404, ErrorCode::BucketErased);
}

/// Issue 3, design "Operations across shards": a kill in the middle of a purge leaves the bucket
/// fenced on every shard or on none, and a purge that had begun is finished by the next start.
#[test]
fn a_purge_interrupted_by_a_kill_is_whole_or_absent() {
    for delay_ms in [0, 1, 2, 4, 8] {
        let server = Options::new(4).start();
        let doomed = bucket();
        let names: Vec<String> = (0..200).map(|name| format!("{doomed}/s{name}")).collect();
        for name in &names {
            let stream = Stream::at(&server, Surface::Bucket, name);
            stream.put().body("x").send().expect(201);
        }
        let request = Request::to(
            server.admin_address(),
            "DELETE",
            format!("/__ursula/purge/{doomed}"),
        );
        let purging = std::thread::spawn(move || request.try_send());
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        let server = server.kill_and_restart();
        let answered = purging.join().expect("no panic").is_some();
        let erased = names
            .iter()
            .filter(|name| {
                let put = Stream::at(&server, Surface::Bucket, name).put();
                put.header("Content-Type", OCTETS).send().status == 404
            })
            .count();
        assert!(
            erased == names.len() || (erased == 0 && !answered),
            "{erased} of {} streams are fenced after {delay_ms} ms, answered: {answered}",
            names.len()
        );
        if erased > 0 {
            await_metric(&server, "streams", |streams| streams == 0);
        }
    }
}
