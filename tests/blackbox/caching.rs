//! Caching: Base 10.1, Decisions "Two surfaces" and "Tokens".

use ursula_headers::ErrorCode;

use crate::common::http::Request;
use crate::common::server::Server;
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    matching_etag_is_304_without_a_body,
    etags_take_lists_and_weak_forms,
    a_star_names_whatever_is_there,
    a_write_only_if_there_is_nothing,
    etag_varies_with_the_range,
    etag_varies_with_the_data,
    etag_varies_with_closure,
    etag_varies_with_the_incarnation,
    a_full_chunk_that_stops_being_the_tail_changes_its_etag,
    base_catch_up_is_cacheable,
    bucket_catch_up_is_not_stored,
];

/// Base 10.1: 304, no body; Decisions, Order of checks: with next offset, up-to-date, incarnation.
fn matching_etag_is_304_without_a_body(server: &Server) {
    for surface in SURFACES {
        for content_type in [TEXT, JSON] {
            let stream = Stream::with_body(server, surface, content_type, "12345");
            let full = stream.get("").send().expect(200);
            let etag = full.expect_header("etag");
            let answer = stream
                .get("")
                .header("If-None-Match", etag)
                .send()
                .expect(304)
                .expect_body("");
            for name in [
                "etag",
                "stream-next-offset",
                "stream-incarnation",
                "stream-up-to-date",
            ] {
                assert_eq!(answer.header(name), full.header(name), "{name} of {answer}");
            }
            stream.close();
            let etag = stream.get("").send().expect_header("etag").to_owned();
            let answer = stream
                .get("")
                .header("If-None-Match", etag)
                .send()
                .expect(304);
            answer.expect_field("stream-closed", "true");
        }
    }
}

/// Decisions, Tokens: `If-None-Match` takes lists and weak forms (RFC 9110 13.1.2).
fn etags_take_lists_and_weak_forms(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let etag = stream.get("").send().expect_header("etag").to_owned();
        assert!(
            etag.starts_with('"') && etag.ends_with('"'),
            "not a strong entity tag: {etag}"
        );
        for matching in [
            format!("W/{etag}"),
            format!("\"other\", {etag}"),
            format!("{etag},\"other\""),
            format!("W/\"a,b\" ,W/{etag} , \"c\""),
            format!("\"\u{e4}\", {etag}"),
        ] {
            stream
                .get("")
                .header("If-None-Match", &matching)
                .send()
                .expect(304);
        }
        // Several lines are one list (RFC 9110 5.3).
        for lines in [[&etag, "\"b\""], ["\"a\"", &etag], [&etag, &etag]] {
            let get = stream.get("").header("If-None-Match", lines[0]);
            get.header("If-None-Match", lines[1]).send().expect(304);
        }
        for other in ["\"other\"", "W/\"other\"", &etag[1..], "", ",", "\""] {
            stream
                .get("")
                .header("If-None-Match", other)
                .send()
                .expect(200)
                .expect_body("abc");
        }
    }
}

/// RFC 9110 13.1.2: `*` is false of what is there: 304 for GET and HEAD, and of nothing else.
fn a_star_names_whatever_is_there(server: &Server) {
    for surface in SURFACES {
        let absent = Stream::absent(server, surface);
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let star = |request: Request| request.header("If-None-Match", "*").send();
        for query in ["", "offset=1", "offset=3", "offset=now"] {
            let plain = stream.get(query).send().expect(200);
            let answer = star(stream.get(query)).expect(304).expect_body("");
            assert_eq!(answer.next_offset(), plain.next_offset());
            star(absent.get(query)).expect_error(404, ErrorCode::StreamNotFound);
        }
        let answer = star(stream.head()).expect(304).expect_body("");
        assert_eq!(answer.next_offset(), offset(3));
        star(absent.head()).expect(404);
        // One tag of many, and a tag of that text, are tags.
        for other in ["*, \"a\"", "\"*\""] {
            let get = stream.get("").header("If-None-Match", other);
            get.send().expect(200).expect_body("abc");
        }
    }
    let stream = Stream::with_body(server, Surface::Bucket, TEXT, "abc");
    let publish = stream.request("PUT", "/snapshot/3").body("abc");
    publish.send().expect(204);
    for method in ["GET", "HEAD"] {
        let read = stream.request(method, "/snapshot/3");
        let read = read.header("If-None-Match", "*");
        read.send().expect(304).expect_body("");
        let absent = stream.request(method, "/snapshot/2");
        absent.header("If-None-Match", "*").send().expect(404);
    }
}

/// RFC 9110 13.1.2: with `*` a create makes what is not there and is 412 where something is, as is
/// any other write, which needs something; nothing is done then.
fn a_write_only_if_there_is_nothing(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::absent(server, surface);
        let star = |request: Request| request.header("If-None-Match", "*");
        let put = star(stream.put().header("Content-Type", TEXT));
        let post = star(stream.post().header("Content-Type", TEXT).body("x"));
        post.send().expect_error(404, ErrorCode::StreamNotFound);
        let made = put.send().expect(201);
        for refused in [&put, &post, &star(stream.delete())] {
            let answer = refused.send().expect(412);
            assert_eq!(answer.incarnation(), made.incarnation());
            assert_eq!(answer.json()["error"]["code"], "PRECONDITION_FAILED");
        }
        // What would be refused anyhow is refused for that (RFC 9110 13.2.1).
        let other = star(stream.put().header("Content-Type", OCTETS));
        other.send().expect(409);
        stream.put().header("Content-Type", TEXT).send().expect(200);
        assert_eq!(stream.read_all(), b"");
        assert_eq!(stream.head().send().incarnation(), made.incarnation());
    }
}

/// Base 5.6: an entity tag stands for one range.
fn etag_varies_with_the_range(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "aaaa");
        let queries = [
            "offset=0",
            "offset=1",
            "offset=4",
            "offset=0&max_bytes=1",
            "offset=0&max_bytes=2",
        ];
        let mut etags: Vec<String> = queries
            .iter()
            .map(|query| {
                stream
                    .get(query)
                    .send()
                    .expect(200)
                    .expect_header("etag")
                    .to_owned()
            })
            .collect();
        etags.sort();
        etags.dedup();
        assert_eq!(
            etags.len(),
            queries.len(),
            "two ranges share a tag: {etags:?}"
        );
    }
}

/// Base 10.1: new data changes the tag, so an old one gets the new answer.
fn etag_varies_with_the_data(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let etag = stream.get("").send().expect_header("etag").to_owned();
        stream.append(TEXT, "d");
        stream
            .get("")
            .header("If-None-Match", &etag)
            .send()
            .expect(200)
            .expect_body("abcd");
    }
}

/// Base 10.1, ETag and Stream Closure: closure without data changes it.
fn etag_varies_with_closure(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        for query in ["", "offset=3"] {
            let open = Stream::with_body(server, surface, TEXT, "abc");
            let etag = open.get(query).send().expect_header("etag").to_owned();
            open.close();
            let answer = open
                .get(query)
                .header("If-None-Match", &etag)
                .send()
                .expect(200);
            answer.expect_field("stream-closed", "true");
        }
        stream.close();
    }
}

/// Decisions, Tokens: the incarnation changes it, whatever the bytes.
fn etag_varies_with_the_incarnation(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let etag = stream.get("").send().expect_header("etag").to_owned();
        stream.delete().send().expect(204);
        stream
            .put()
            .header("Content-Type", TEXT)
            .body("xyz")
            .send()
            .expect(201);
        stream
            .get("")
            .header("If-None-Match", &etag)
            .send()
            .expect(200)
            .expect_body("xyz");
    }
}

/// Decisions, Tokens: a chunk that was the tail and no longer is has another tag, since the old
/// answer said up to date.
fn a_full_chunk_that_stops_being_the_tail_changes_its_etag(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, TEXT, "abc");
        let read = stream.get("offset=0&max_bytes=3");
        let tail = read
            .send()
            .expect(200)
            .expect_field("stream-up-to-date", "true");
        stream.append(TEXT, "d");
        let cached = read
            .header("If-None-Match", tail.expect_header("etag"))
            .send()
            .expect(200);
        let cached = cached
            .expect_body("abc")
            .expect_no_field("stream-up-to-date");
        assert_eq!(cached.next_offset(), offset(3));
    }
}

/// Decisions, Two surfaces: as the base protocol says, with `Vary: Stream-Incarnation`.
fn base_catch_up_is_cacheable(server: &Server) {
    let stream = Stream::with_body(server, Surface::Base, OCTETS, "abc");
    let answer = stream.get("offset=0").send().expect(200);
    let directives = answer.expect_header("cache-control");
    assert!(directives.contains("max-age=60"), "{answer}");
    assert!(
        directives.contains("stale-while-revalidate=300"),
        "{answer}"
    );
    let vary = answer.expect_header("vary").to_ascii_lowercase();
    assert!(
        vary.split(',')
            .any(|name| name.trim() == "stream-incarnation"),
        "{answer}"
    );
}

/// Decisions, Two surfaces: `no-store`, and bootstrap and snapshots likewise.
fn bucket_catch_up_is_not_stored(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    stream
        .get("offset=0")
        .send()
        .expect(200)
        .expect_field("cache-control", "no-store");
    stream
        .request("GET", "/bootstrap")
        .send()
        .expect(200)
        .expect_field("cache-control", "no-store");
}
