//! Publish and read a snapshot: Extensions 2.1, 2.2, 2.4, 2.5 and 8; Reference,
//! "Publish a snapshot" and "Read a snapshot".

use ursula_headers::{
    ACCEPT_RANGES_BYTES, ByteSpan, ContentRange, ErrorCode, Offset, SnapshotPublishAnswer,
    SnapshotRead, StreamHead, WriteKind, WriteOutcome, classify,
};

use crate::common::http::{Request, Response};
use crate::common::server::Server;
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    publish_and_read_back,
    content_type_defaults_and_is_kept,
    the_digest_is_blake3_of_type_and_body,
    repeating_a_publish_succeeds,
    other_content_at_the_same_offset_conflicts,
    a_publish_before_the_latest_conflicts,
    a_publish_past_the_tail_conflicts_without_naming_one,
    the_latest_comes_before_boundary_and_retention,
    malformed_offsets_are_400,
    a_missing_stream_is_404,
    a_json_snapshot_lies_on_a_boundary,
    a_new_snapshot_replaces_the_old_at_once,
    publishing_changes_neither_data_nor_retention,
    head_names_the_latest,
    offsets_in_paths_are_percent_decoded,
    an_empty_snapshot_is_one,
    a_closed_stream_takes_snapshots,
    reads_never_give_snapshot_bytes,
    up_to_date_only_at_the_tail,
    matching_etag_is_304_with_all_headers,
    one_byte_range_is_206,
    an_unsatisfiable_range_is_416_with_all_headers,
    what_is_no_single_range_gets_the_whole,
    if_range_gets_the_whole,
    head_is_a_read_without_its_body,
    bare_snapshot_path_is_405,
    other_methods_are_405,
    appends_go_on_while_one_is_published,
];

const BODY: &str = "snapshot body 0123456789";

/// A stream of ten bytes.
fn ten(server: &Server) -> Stream<'_> {
    Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789")
}

fn publish(
    stream: &Stream<'_>,
    at: impl std::fmt::Display,
    content_type: &str,
    body: &str,
) -> Response {
    stream
        .request("PUT", &format!("/snapshot/{at}"))
        .header("Content-Type", content_type)
        .body(body)
        .send()
}

fn read(stream: &Stream<'_>, at: impl std::fmt::Display) -> Request {
    stream.request("GET", &format!("/snapshot/{at}"))
}

/// Decisions, Tokens: the digest of a snapshot.
pub fn digest(content_type: &str, body: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(content_type.len() as u64).to_le_bytes());
    hasher.update(content_type.as_bytes());
    hasher.update(body);
    hasher.finalize().to_hex().to_string()
}

/// The typed answer to a publish.
#[track_caller]
fn typed(answer: &Response) -> Option<SnapshotPublishAnswer> {
    SnapshotPublishAnswer::parse(answer.status, answer.pairs())
        .unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Extensions 2.2 and 2.5: 204 and 200, typed; what was published comes back.
fn publish_and_read_back(server: &Server) {
    let stream = ten(server);
    let published = publish(&stream, 6, TEXT, BODY).expect(204);
    let Some(SnapshotPublishAnswer::Published {
        snapshot,
        incarnation,
    }) = typed(&published)
    else {
        panic!("not published: {published}");
    };
    assert_eq!(snapshot.offset, Offset::from_u64(6));
    assert_eq!(incarnation.to_string(), stream.head().send().incarnation());
    let outcome = classify(WriteKind::Publish, published.status, published.pairs(), b"");
    assert_eq!(outcome, WriteOutcome::Applied);
    for at in ["6", &offset(6)] {
        let answer = read(&stream, at).send().expect(200).expect_body(BODY);
        let answer = answer.expect_field("content-type", TEXT);
        let answer = answer.expect_field("accept-ranges", ACCEPT_RANGES_BYTES);
        let typed = SnapshotRead::parse(answer.pairs()).expect("the read parses");
        assert_eq!(typed.snapshot, snapshot);
        assert_eq!(typed.incarnation, incarnation);
        assert!(!typed.up_to_date);
        // Reference, Read a snapshot: the digest in quotes.
        let etag = format!("\"{}\"", answer.expect_header("stream-snapshot-digest"));
        answer.expect_field("etag", &etag);
    }
}

/// Extensions 2.2: the content type is stored and returned; the default is octet-stream.
fn content_type_defaults_and_is_kept(server: &Server) {
    let stream = ten(server);
    stream
        .request("PUT", "/snapshot/3")
        .body("x")
        .send()
        .expect(204);
    read(&stream, 3)
        .send()
        .expect(200)
        .expect_field("content-type", OCTETS);
    for (at, content_type) in [
        (4, "application/x-Custom; v=\"1\""),
        (5, JSON),
        (6, "text/html"),
    ] {
        publish(&stream, at, content_type, "{ not json").expect(204);
        let answer = read(&stream, at)
            .send()
            .expect(200)
            .expect_body("{ not json");
        answer.expect_field("content-type", content_type);
    }
}

/// Decisions, Tokens: lower-case hex BLAKE3 over length, content type and body.
fn the_digest_is_blake3_of_type_and_body(server: &Server) {
    let stream = ten(server);
    for (at, content_type, body) in [(1, TEXT, BODY), (2, OCTETS, ""), (3, "a/b", "tx/plain")] {
        let expected = digest(content_type, body.as_bytes());
        let published = publish(&stream, at, content_type, body).expect(204);
        published.expect_field("stream-snapshot-digest", &expected);
    }
    // Without a content type the default is what is hashed.
    let published = stream
        .request("PUT", "/snapshot/4")
        .body("x")
        .send()
        .expect(204);
    published.expect_field("stream-snapshot-digest", &digest(OCTETS, b"x"));
}

/// Extensions 2.2, Idempotency: the same content again succeeds with the same digest.
fn repeating_a_publish_succeeds(server: &Server) {
    let stream = ten(server);
    let first = publish(&stream, 5, TEXT, BODY).expect(204);
    let again = publish(&stream, 5, TEXT, BODY).expect(204);
    assert_eq!(typed(&first), typed(&again));
}

/// Extensions 2.2: different content or content type at a published offset is 409; Reference: the
/// headers name the latest.
fn other_content_at_the_same_offset_conflicts(server: &Server) {
    let stream = ten(server);
    publish(&stream, 5, TEXT, BODY).expect(204);
    for (content_type, body) in [(TEXT, "other"), (OCTETS, BODY), (TEXT, "")] {
        let answer = publish(&stream, 5, content_type, body);
        let answer = answer.expect_error(409, ErrorCode::SnapshotConflict);
        let Some(conflict @ SnapshotPublishAnswer::Conflict { latest }) = typed(&answer) else {
            panic!("no conflict: {answer}");
        };
        assert_eq!(latest.offset, Offset::from_u64(5));
        assert!(!conflict.supersedes(Offset::from_u64(5)));
        answer.expect_field("stream-snapshot-digest", &digest(TEXT, BODY.as_bytes()));
    }
    read(&stream, 5).send().expect(200).expect_body(BODY);
}

/// Decisions, Where the sources differ: before the latest: 409 with the latest's offset and digest.
fn a_publish_before_the_latest_conflicts(server: &Server) {
    let stream = ten(server);
    publish(&stream, 5, TEXT, BODY).expect(204);
    for earlier in [0, 3, 4] {
        let answer = publish(&stream, earlier, TEXT, BODY);
        let answer = answer.expect_error(409, ErrorCode::SnapshotConflict);
        let conflict = typed(&answer).expect("the conflict names the latest");
        assert!(conflict.supersedes(Offset::from_u64(earlier)), "{answer}");
    }
}

/// Decisions, Where the sources differ: past the tail: 409 without snapshot headers.
fn a_publish_past_the_tail_conflicts_without_naming_one(server: &Server) {
    let stream = ten(server);
    for has_snapshot in [false, true] {
        for beyond in ["11", "18446744073709551615"] {
            let answer = publish(&stream, beyond, TEXT, BODY);
            let answer = answer.expect_error(409, ErrorCode::SnapshotConflict);
            assert_eq!(typed(&answer), None, "{answer}");
            answer
                .expect_no_field("stream-snapshot-offset")
                .expect_no_field("stream-snapshot-digest");
        }
        if !has_snapshot {
            publish(&stream, 10, TEXT, BODY).expect(204);
        }
    }
}

/// Decisions, Where the sources differ: before the latest comes before the boundary check and
/// before the 410.
fn the_latest_comes_before_boundary_and_retention(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[11,22,33,44]");
    publish(&stream, 9, TEXT, BODY).expect(204);
    // 4 lies inside a message, and is before the latest.
    publish(&stream, 4, TEXT, BODY).expect_error(409, ErrorCode::SnapshotConflict);
    stream.request("PUT", "/retention/6").send().expect(204);
    publish(&stream, 3, TEXT, BODY).expect_error(409, ErrorCode::SnapshotConflict);
}

/// Extensions 2.2: an invalid offset is 400, and so is a sentinel.
fn malformed_offsets_are_400(server: &Server) {
    let stream = ten(server);
    for at in [
        "abc",
        "-1",
        "now",
        "+5",
        "5.0",
        "%20",
        "18446744073709551616",
        "1_2",
    ] {
        publish(&stream, at, TEXT, BODY).expect_error(400, ErrorCode::InvalidOffset);
        read(&stream, at)
            .send()
            .expect_error(400, ErrorCode::InvalidOffset);
    }
}

/// Extensions 2.2: 404.
fn a_missing_stream_is_404(server: &Server) {
    let stream = Stream::absent(server, Surface::Bucket);
    publish(&stream, 0, TEXT, BODY).expect_error(404, ErrorCode::StreamNotFound);
    read(&stream, 0)
        .send()
        .expect_error(404, ErrorCode::StreamNotFound);
}

/// Extensions 2.1 and 2.2: for a JSON stream, a message boundary; the stream's start is one.
fn a_json_snapshot_lies_on_a_boundary(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[11,22,33]");
    for inside in [1, 2, 4, 5, 7, 8] {
        publish(&stream, inside, TEXT, BODY).expect_error(400, ErrorCode::NotJsonBoundary);
    }
    stream
        .head()
        .send()
        .expect(200)
        .expect_no_field("stream-snapshot-offset");
    for boundary in [0, 3, 6, 9] {
        publish(&stream, boundary, TEXT, BODY).expect(204);
    }
}

/// Extensions 2.2: it replaces the visible one immediately; Reference: any other offset is 404.
fn a_new_snapshot_replaces_the_old_at_once(server: &Server) {
    let stream = ten(server);
    read(&stream, 0)
        .send()
        .expect_error(404, ErrorCode::SnapshotNotFound);
    publish(&stream, 3, TEXT, "three").expect(204);
    publish(&stream, 7, TEXT, "seven").expect(204);
    read(&stream, 7).send().expect(200).expect_body("seven");
    for other in [0, 3, 6, 8, 10, 99] {
        read(&stream, other)
            .send()
            .expect_error(404, ErrorCode::SnapshotNotFound);
    }
    stream
        .head()
        .send()
        .expect(200)
        .expect_field("stream-snapshot-offset", &offset(7));
}

/// Extensions 2.2, Retention Effect: none.
fn publishing_changes_neither_data_nor_retention(server: &Server) {
    let stream = ten(server);
    publish(&stream, 10, TEXT, BODY).expect(204);
    let head = stream.head().send().expect(200);
    let head = head.expect_field("stream-retained-offset", &offset(0));
    head.expect_field("stream-next-offset", &offset(10));
    assert_eq!(stream.read_all(), b"0123456789");
}

/// Extensions 2.4: HEAD names the latest, equal to what the publish returned.
fn head_names_the_latest(server: &Server) {
    let stream = ten(server);
    let head = || StreamHead::parse(stream.head().send().expect(200).pairs()).expect("HEAD parses");
    assert_eq!(head().snapshot(), None);
    for at in [0, 4, 10] {
        let published = publish(&stream, at, TEXT, BODY).expect(204);
        let Some(SnapshotPublishAnswer::Published { snapshot, .. }) = typed(&published) else {
            panic!("not published: {published}");
        };
        assert_eq!(head().snapshot(), Some(snapshot));
    }
    let base = stream.on(Surface::Base).head().send().expect(200);
    base.expect_field("stream-snapshot-offset", &offset(10));
}

/// Extensions 8: standard URL decoding of offsets in path segments.
fn offsets_in_paths_are_percent_decoded(server: &Server) {
    let stream = ten(server);
    publish(&stream, "%36", TEXT, BODY)
        .expect(204)
        .expect_field("stream-snapshot-offset", &offset(6));
    read(&stream, "%30%36").send().expect(200);
    stream.request("PUT", "/retention/%34").send().expect(204);
}

/// The peer's answer (section 12): an empty body is a snapshot.
fn an_empty_snapshot_is_one(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, "").expect(204);
    read(&stream, 6).send().expect(200).expect_body("");
    // No 206 can express a range of nothing (`ursula-headers`, `range.rs`).
    read(&stream, 6)
        .header("Range", "bytes=-5")
        .send()
        .expect(200)
        .expect_body("");
    read(&stream, 6)
        .header("Range", "bytes=0-")
        .send()
        .expect(416);
}

/// A closed stream accepts no appends; a snapshot is none.
fn a_closed_stream_takes_snapshots(server: &Server) {
    let stream = ten(server);
    stream.close();
    publish(&stream, 10, TEXT, BODY).expect(204);
    read(&stream, 10).send().expect(200).expect_body(BODY);
}

/// Extensions 3.4: ordinary reads never return snapshot bytes.
fn reads_never_give_snapshot_bytes(server: &Server) {
    let stream = ten(server);
    publish(&stream, 0, TEXT, BODY).expect(204);
    publish(&stream, 10, TEXT, BODY).expect(204);
    for query in ["", "offset=-1", "offset=0&live=long-poll"] {
        stream
            .get(query)
            .send()
            .expect(200)
            .expect_body("0123456789");
    }
}

/// Extensions 2.5: present when no update follows the snapshot; absent otherwise.
fn up_to_date_only_at_the_tail(server: &Server) {
    let stream = ten(server);
    publish(&stream, 10, TEXT, BODY).expect(204);
    let answer = read(&stream, 10)
        .send()
        .expect(200)
        .expect_field("stream-up-to-date", "true");
    assert!(
        SnapshotRead::parse(answer.pairs())
            .expect("the read parses")
            .up_to_date
    );
    stream.append(OCTETS, "x");
    let answer = read(&stream, 10)
        .send()
        .expect(200)
        .expect_no_field("stream-up-to-date");
    // The next offset is the snapshot's, where ordinary reads go on.
    assert_eq!(answer.next_offset(), offset(10));
    assert_eq!(stream.read_from(&answer.next_offset()), b"x");
}

const SNAPSHOT_HEADERS: [&str; 6] = [
    "stream-snapshot-offset",
    "stream-snapshot-digest",
    "stream-next-offset",
    "stream-incarnation",
    "etag",
    "accept-ranges",
];

/// Reference, `If-None-Match`: 304 with the same headers, ignoring any range.
fn matching_etag_is_304_with_all_headers(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    let full = read(&stream, 6).send().expect(200);
    let etag = full.expect_header("etag");
    for matching in [
        etag.to_owned(),
        format!("W/{etag}"),
        format!("\"a\", {etag}"),
    ] {
        for range in ["", "bytes=0-3", "bytes=99-"] {
            let answer = read(&stream, 6)
                .header("If-None-Match", &matching)
                .header("Range", range);
            let answer = answer.send().expect(304).expect_body("");
            for name in SNAPSHOT_HEADERS {
                assert_eq!(answer.header(name), full.header(name), "{name} of {answer}");
            }
        }
    }
    read(&stream, 6)
        .header("If-None-Match", "\"other\"")
        .send()
        .expect(200)
        .expect_body(BODY);
}

/// Reference, `Range`: one byte range, in three forms.
fn one_byte_range_is_206(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    let total = BODY.len() as u64;
    for (range, first, last) in [
        ("bytes=0-3", 0, 3),
        ("bytes=9-13", 9, 13),
        ("bytes=9-", 9, 23),
        ("bytes=-4", 20, 23),
        ("bytes=0-999", 0, 23),
        ("bytes=-999", 0, 23),
        ("bytes=23-23", 23, 23),
        ("bytes=0-18446744073709551615", 0, 23),
    ] {
        let answer = read(&stream, 6).header("Range", range).send().expect(206);
        let answer = answer.expect_body(&BODY[first as usize..=last as usize]);
        let span = ByteSpan::new(first, last, total).expect("a span of the body");
        let typed = ContentRange::parse(answer.status, answer.pairs()).expect("it parses");
        assert_eq!(typed, Some(ContentRange::Partial(span)), "{range}");
        // The digest is the whole snapshot's, never the range's.
        let answer = answer.expect_field("stream-snapshot-digest", &digest(TEXT, BODY.as_bytes()));
        SnapshotRead::parse(answer.pairs()).expect("a range is a snapshot read");
    }
}

/// Reference, 416; Decisions, Order of checks: with all snapshot headers.
fn an_unsatisfiable_range_is_416_with_all_headers(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    let full = read(&stream, 6).send().expect(200);
    for range in [
        "bytes=24-",
        "bytes=99-100",
        "bytes=-0",
        "bytes=18446744073709551615-",
        "bytes=99999999999999999999-",
    ] {
        let answer = read(&stream, 6).header("Range", range).send();
        let answer = answer.expect_error(416, ErrorCode::RangeNotSatisfiable);
        let typed = ContentRange::parse(answer.status, answer.pairs()).expect("it parses");
        assert_eq!(
            typed,
            Some(ContentRange::Unsatisfied { total: 24 }),
            "{range}"
        );
        for name in SNAPSHOT_HEADERS {
            assert_eq!(answer.header(name), full.header(name), "{name} of {answer}");
        }
    }
}

/// Reference, `Range`: several ranges, or one that does not parse, get the whole snapshot.
fn what_is_no_single_range_gets_the_whole(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    for range in [
        "bytes=5-2",
        "bytes=0-1,3-4",
        "items=0-1",
        "bytes=",
        "bytes=a-b",
        "bytes=-",
        "bytes 0-1",
        "0-1",
        "bytes=0-1, 3-",
        "bytes=+1-2",
    ] {
        let answer = read(&stream, 6).header("Range", range).send();
        assert_eq!(answer.status, 200, "{range}: {answer}");
        answer.expect_body(BODY).expect_no_field("content-range");
    }
    let twice = read(&stream, 6)
        .header("Range", "bytes=0-1")
        .header("Range", "bytes=0-1");
    twice.send().expect(200).expect_body(BODY);
}

/// Reference, `If-Range`: the whole snapshot, whatever `Range` asks.
fn if_range_gets_the_whole(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    let etag = read(&stream, 6).send().expect_header("etag").to_owned();
    for if_range in [&etag, "\"other\""] {
        for range in ["bytes=0-3", "bytes=99-"] {
            let request = read(&stream, 6)
                .header("Range", range)
                .header("If-Range", if_range);
            request.send().expect(200).expect_body(BODY);
        }
    }
}

/// RFC 9110 9.3.2: HEAD answers as GET would, without the body.
fn head_is_a_read_without_its_body(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    let full = read(&stream, 6).send().expect(200);
    let head = stream
        .request("HEAD", "/snapshot/6")
        .send()
        .expect(200)
        .expect_body("");
    for name in SNAPSHOT_HEADERS
        .iter()
        .chain(&["content-type", "content-length"])
    {
        assert_eq!(head.header(name), full.header(name), "{name} of {head}");
    }
    stream
        .request("HEAD", "/snapshot/5")
        .send()
        .expect(404)
        .expect_body("");
}

/// Decisions, Where the sources differ: bare `GET {stream}/snapshot`: 405, since a 404 would read
/// as "no snapshot".
fn bare_snapshot_path_is_405(server: &Server) {
    let stream = ten(server);
    for method in ["GET", "PUT", "HEAD", "DELETE", "POST"] {
        let answer = stream.request(method, "/snapshot").send().expect(405);
        assert!(
            answer.header("allow").is_some(),
            "RFC 9110 15.5.6: {answer}"
        );
    }
}

/// RFC 9110 15.5.6: other methods are 405 with `Allow`. There is no snapshot deletion (Abstract).
fn other_methods_are_405(server: &Server) {
    let stream = ten(server);
    publish(&stream, 6, TEXT, BODY).expect(204);
    for method in ["DELETE", "POST", "PATCH"] {
        let answer = stream.request(method, "/snapshot/6").send();
        let answer = answer.expect_error(405, ErrorCode::MethodNotAllowed);
        let allow = answer.expect_header("allow");
        for allowed in ["GET", "HEAD", "PUT"] {
            assert!(allow.contains(allowed), "{answer}");
        }
    }
    read(&stream, 6).send().expect(200);
}

/// Extensions 2.2, Concurrency: creation does not block appends, and folds in none at or beyond
/// its offset: what a reader gets is snapshot, then every byte from its offset.
fn appends_go_on_while_one_is_published(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let large = "s".repeat(4 << 20);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let at = stream.head().send().next_offset();
            publish(&stream, &at, TEXT, &large).expect(204);
            at
        });
        let mut appended = 0;
        while !publisher.is_finished() {
            stream.append(OCTETS, "x");
            appended += 1;
        }
        let at: usize = publisher
            .join()
            .expect("the publisher does not panic")
            .parse()
            .expect("decimal");
        assert_eq!(stream.read_from(&offset(at)).len(), appended - at);
        read(&stream, at).send().expect(200).expect_body(&large);
    });
}
