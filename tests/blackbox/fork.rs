//! Forks: Base 4.2 and Decisions, "Forks". The official suite covers most of
//! 4.2; here are the rulings, protocol case 5, the bucket surface's view of
//! forks, and crashes.

use ursula_headers::ErrorCode;

use crate::common::eventually;
use crate::common::http::Request;
use crate::common::observe::await_metric;
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, SURFACES, Stream, Surface, TEXT, offset, unique};

at_1_and_4_shards![
    a_fork_reads_on_from_its_source,
    a_refused_fork_leaves_no_reference,
    a_fork_without_content_type_inherits_it,
    a_fork_without_content_type_normalises_its_body,
    absent_offset_equals_absent,
    the_zero_of_the_suite_is_an_offset,
    sub_offset_past_the_tail_is_400,
    sub_offset_counts_messages_of_json,
    a_fork_before_retention_is_410,
    a_fork_inherits_no_snapshot_and_no_writer_state,
    retention_of_the_source_keeps_what_a_fork_inherited,
    deletion_of_the_source_keeps_what_a_fork_inherited,
    expiry_of_the_source_keeps_what_a_fork_inherited,
    live_readers_of_a_fork_do_not_hear_the_source,
    a_purge_keeps_what_forks_in_other_buckets_inherited,
    a_purge_counts_what_stays_alone,
];

/// A PUT of `fork` from `source`.
fn fork_of(source: &Stream<'_>, fork: &Stream<'_>) -> Request {
    fork.put()
        .header("Stream-Forked-From", source.on(Surface::Base).path())
}

fn ten(server: &Server) -> Stream<'_> {
    Stream::with_body(server, Surface::Base, OCTETS, "0123456789")
}

fn absent(server: &Server) -> Stream<'_> {
    Stream::absent(server, Surface::Base)
}

fn ten_in<'a>(server: &'a Server, bucket: &str) -> Stream<'a> {
    let stream = Stream::at(server, Surface::Base, &format!("{bucket}/{}", unique("s")));
    let put = stream.put().header("Content-Type", OCTETS);
    put.body("0123456789").send().expect(201);
    stream
}

/// Base 4.2: inherited data, then its own; one offset space; both surfaces read it (issue 6).
fn a_fork_reads_on_from_its_source(server: &Server) {
    for cut in [0, 4, 10] {
        let (source, fork) = (ten(server), absent(server));
        let created = fork_of(&source, &fork)
            .header("Stream-Fork-Offset", offset(cut))
            .send()
            .expect(201);
        assert_eq!(created.next_offset(), offset(cut));
        source.append(OCTETS, "not for the fork");
        assert_eq!(fork.append(OCTETS, "own").next_offset(), offset(cut + 3));
        let expected = format!("{}own", &"0123456789"[..cut]);
        for surface in SURFACES {
            let view = fork.on(surface);
            assert_eq!(view.read_all(), expected.as_bytes());
            for start in 0..expected.len() {
                assert_eq!(
                    view.read_from(&offset(start)),
                    &expected.as_bytes()[start..]
                );
            }
        }
        let (bytes, _) = fork.sse("-1").until_up_to_date(|event| event.bytes());
        assert_eq!(bytes, expected.as_bytes());
        let bootstrap = fork
            .on(Surface::Bucket)
            .request("GET", "/bootstrap")
            .send()
            .expect(200);
        assert_eq!(bootstrap.next_offset(), offset(expected.len()));
    }
}

/// Protocol case 5: the source of refused forks can be deleted fully.
fn a_refused_fork_leaves_no_reference(server: &Server) {
    let (source, taken) = (ten(server), Stream::create(server, Surface::Base, TEXT));
    for (request, status) in [
        (
            fork_of(&source, &absent(server)).header("Stream-Fork-Offset", offset(11)),
            400,
        ),
        (
            fork_of(&source, &absent(server)).header("Stream-Fork-Offset", "abc"),
            400,
        ),
        (
            fork_of(&source, &absent(server)).header("Stream-Fork-Sub-Offset", "-1"),
            400,
        ),
        (
            fork_of(&source, &absent(server)).header("Content-Type", TEXT),
            409,
        ),
        (
            fork_of(&source, &absent(server)).header("Stream-TTL", "060"),
            400,
        ),
        (
            fork_of(&source, &absent(server)).header("Stream-Incarnation", "7"),
            412,
        ),
        (fork_of(&source, &taken), 409),
    ] {
        let answer = request.send();
        assert_eq!(answer.status, status, "{answer}");
        answer.error_body();
    }
    source.delete().send().expect(204);
    source
        .get("")
        .send()
        .expect_error(404, ErrorCode::StreamNotFound);
    source.put().send().expect(201);
}

/// Protocol case 5: it inherits the content type.
fn a_fork_without_content_type_inherits_it(server: &Server) {
    let source = Stream::with_body(server, Surface::Base, JSON, "[1,2]");
    let fork = absent(server);
    fork_of(&source, &fork)
        .send()
        .expect(201)
        .expect_field("content-type", JSON);
    fork.append(JSON, "3");
    fork.get("").send().expect(200).expect_body("[1,2,3]");
}

/// Extensions, JSON Message Text: the body of a creating PUT is JSON text, also where the type is
/// known from the source alone.
fn a_fork_without_content_type_normalises_its_body(server: &Server) {
    let source = Stream::with_body(server, Surface::Base, JSON, "[1,2]");
    let fork = absent(server);
    let body = r#"[ {"a" : 3}, [ 4 ] ]"#;
    let created = fork_of(&source, &fork).body(body).send().expect(201);
    assert_eq!(created.next_offset(), offset(16));
    fork.get("")
        .send()
        .expect(200)
        .expect_body(r#"[1,2,{"a":3},[4]]"#);
    let lines = "1\n2\n{\"a\":3}\n[4]\n";
    assert_eq!(fork.on(Surface::Bucket).read_all(), lines.as_bytes());

    let refused = absent(server);
    // A type that is none counts as absent.
    for content_type in [None, Some("json")] {
        for body in ["{", "1 2", "\u{feff}1"] {
            let with_type = |request: Request| match content_type {
                Some(content_type) => request.header("Content-Type", content_type),
                None => request,
            };
            let create = |stream| with_type(fork_of(&source, stream)).body(body).send();
            create(&refused).expect_error(400, ErrorCode::InvalidRecordBoundaries);
            refused.head().send().expect(404);
            create(&fork).expect_error(400, ErrorCode::InvalidRecordBoundaries);
        }
    }
    fork_of(&source, &fork).body("[5]").send().expect(200);
    assert_eq!(fork.on(Surface::Bucket).read_all(), lines.as_bytes());
    fork_of(&source, &refused).body("[]").send().expect(201);
    // Refused forks hold no reference.
    refused.delete().send().expect(204);
    fork.delete().send().expect(204);
    source.delete().send().expect(204);
    eventually("the source is gone", || {
        (source.head().send().status == 404).then_some(())
    });
}

/// Decisions, Forks: the requested offset is what a repeated create compares.
fn absent_offset_equals_absent(server: &Server) {
    let (source, fork) = (ten(server), absent(server));
    fork_of(&source, &fork).send().expect(201);
    source.append(OCTETS, "more");
    fork_of(&source, &fork).send().expect(200);
    let other = fork_of(&source, &fork)
        .header("Stream-Fork-Offset", offset(4))
        .send();
    other.expect_error(409, ErrorCode::StreamAlreadyExistsConflict);
    fork.put().header("Content-Type", OCTETS).send().expect(409);
    let explicit = absent(server);
    for status in [201, 200] {
        let create = fork_of(&source, &explicit).header("Stream-Fork-Offset", offset(4));
        create.send().expect(status);
    }
    fork_of(&source, &explicit).send().expect(409);
}

/// Decisions, Tokens: `Stream-Fork-Offset` alone also accepts the suite's zero.
fn the_zero_of_the_suite_is_an_offset(server: &Server) {
    let (source, fork) = (ten(server), absent(server));
    let create =
        fork_of(&source, &fork).header("Stream-Fork-Offset", "0000000000000000_0000000000000000");
    assert_eq!(create.send().expect(201).next_offset(), offset(0));
}

/// Decisions, Forks: a sub-offset past the tail of the source is 400.
fn sub_offset_past_the_tail_is_400(server: &Server) {
    let source = ten(server);
    let create = |at: usize, sub: &str| {
        let create = fork_of(&source, &absent(server)).header("Stream-Fork-Offset", offset(at));
        create.header("Stream-Fork-Sub-Offset", sub).send()
    };
    assert_eq!(create(4, "3").expect(201).next_offset(), offset(7));
    assert_eq!(create(4, "6").expect(201).next_offset(), offset(10));
    for past in ["7", "18446744073709551615"] {
        let answer = create(4, past).expect(400);
        answer.error_body();
    }
}

/// Base 4.2: for JSON the sub-offset counts flattened messages.
fn sub_offset_counts_messages_of_json(server: &Server) {
    let source = Stream::with_body(server, Surface::Base, JSON, "[\"aaaa\",\"bbbb\",\"cccc\"]");
    for (sub, body) in [
        ("0", "[]"),
        ("1", "[\"aaaa\"]"),
        ("3", "[\"aaaa\",\"bbbb\",\"cccc\"]"),
    ] {
        let fork = absent(server);
        let create = fork_of(&source, &fork).header("Stream-Fork-Offset", offset(0));
        create
            .header("Stream-Fork-Sub-Offset", sub)
            .send()
            .expect(201);
        fork.get("").send().expect(200).expect_body(body);
    }
    let past = fork_of(&source, &absent(server)).header("Stream-Fork-Offset", offset(0));
    past.header("Stream-Fork-Sub-Offset", "4")
        .send()
        .expect(400);
}

/// Decisions, Forks: it may start at or after the source's retained offset (410 before).
fn a_fork_before_retention_is_410(server: &Server) {
    let source = ten(server);
    let bucket = source.on(Surface::Bucket);
    bucket
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    bucket.request("PUT", "/retention/4").send().expect(204);
    for (at, status) in [(0, 410), (3, 410), (4, 201), (10, 201)] {
        let create = fork_of(&source, &absent(server)).header("Stream-Fork-Offset", offset(at));
        let answer = create.send();
        assert_eq!(answer.status, status, "at {at}: {answer}");
    }
}

/// Base 4.2 and Decisions, Forks: no snapshot, no retention, no writer state, no closure.
fn a_fork_inherits_no_snapshot_and_no_writer_state(server: &Server) {
    let (source, fork) = (ten(server), absent(server));
    let write = |stream: &Stream<'_>, epoch: u64, seq: u64| {
        let post = stream
            .post()
            .header("Content-Type", OCTETS)
            .header("Producer-Id", "p");
        let post = post
            .header("Producer-Epoch", epoch)
            .header("Producer-Seq", seq);
        post.header("Stream-Seq", "5").body("x").send()
    };
    write(&source, 3, 0).expect(200);
    source
        .on(Surface::Bucket)
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    source.close();
    let incarnation = fork_of(&source, &fork).send().expect(201).incarnation();
    assert_ne!(incarnation, source.head().send().incarnation());
    let head = fork.head().send().expect(200);
    let head = head
        .expect_no_field("stream-snapshot-offset")
        .expect_no_field("stream-closed");
    head.expect_field("stream-retained-offset", &offset(0));
    write(&fork, 0, 0).expect(200);
    assert_eq!(fork.read_all(), b"0123456789xx");
}

/// Decisions, Forks: the source's retention never frees bytes a fork inherited.
fn retention_of_the_source_keeps_what_a_fork_inherited(server: &Server) {
    let (source, fork) = (ten(server), absent(server));
    fork_of(&source, &fork)
        .header("Stream-Fork-Offset", offset(8))
        .send()
        .expect(201);
    let bucket = source.on(Surface::Bucket);
    bucket
        .request("PUT", "/snapshot/10")
        .body("s")
        .send()
        .expect(204);
    bucket.request("PUT", "/retention/10").send().expect(204);
    source
        .get("")
        .send()
        .expect_error(410, ErrorCode::StreamGone);
    assert_eq!(fork.read_all(), b"01234567");
}

/// Base 4.2, Soft-delete: 410, a blocked name, and readable forks; the last fork frees the name.
fn deletion_of_the_source_keeps_what_a_fork_inherited(server: &Server) {
    let (source, fork, second) = (ten(server), absent(server), absent(server));
    fork_of(&source, &fork).send().expect(201);
    fork_of(&fork, &second).send().expect(201);
    source.delete().send().expect(204);
    for surface in SURFACES {
        let view = source.on(surface);
        view.get("").send().expect(410);
        view.head().send().expect(410);
        view.post()
            .header("Content-Type", OCTETS)
            .body("x")
            .send()
            .expect(410);
        view.delete().send().expect(410);
        view.put().send().expect(409);
    }
    fork_of(&source, &absent(server)).send().expect(409);
    fork.delete().send().expect(204);
    assert_eq!(second.read_all(), b"0123456789");
    source.get("").send().expect(410);
    second.delete().send().expect(204);
    eventually("the cascade frees both names", || {
        let freed = |stream: &Stream<'_>| stream.head().send().status == 404;
        (freed(&source) && freed(&fork)).then_some(())
    });
    source.put().send().expect(201);
}

/// Decisions, Forks: nor does its expiry.
fn expiry_of_the_source_keeps_what_a_fork_inherited(server: &Server) {
    let source = Stream::absent(server, Surface::Base);
    source
        .put()
        .header("Stream-TTL", "1")
        .header("Content-Type", OCTETS)
        .body("kept")
        .send()
        .expect(201);
    let fork = absent(server);
    fork_of(&source, &fork)
        .header("Stream-TTL", "3600")
        .send()
        .expect(201);
    eventually("the source expires", || {
        matches!(source.head().send().status, 404 | 410).then_some(())
    });
    assert_eq!(fork.read_all(), b"kept");
}

/// Base 5.7 and 5.8: a fork's readers wait for its own appends only.
fn live_readers_of_a_fork_do_not_hear_the_source(server: &Server) {
    let (source, fork) = (ten(server), absent(server));
    fork_of(&source, &fork).send().expect(201);
    let mut events = fork.sse("now");
    events.control();
    source.append(OCTETS, "source");
    fork.get("offset=10&live=long-poll&timeout_ms=300")
        .send()
        .expect(204);
    fork.append(OCTETS, "fork");
    assert_eq!(events.expect("data").bytes(), b"fork");
    let poll = fork.get("offset=4&live=long-poll").send().expect(200);
    poll.expect_body("456789fork");
}

/// Decisions, Two surfaces: bytes that forks in other buckets inherited stay.
fn a_purge_keeps_what_forks_in_other_buckets_inherited(server: &Server) {
    let doomed = unique("doomed");
    let source = ten_in(server, &doomed);
    let fork = absent(server);
    fork_of(&source, &fork).send().expect(201);
    let purge = Request::to(
        server.admin_address(),
        "DELETE",
        format!("/__ursula/purge/{doomed}"),
    )
    .send();
    assert!(purge.status < 300, "{purge}");
    assert!(
        source.get("").send().status >= 400,
        "the purged source is still read"
    );
    assert_eq!(fork.read_all(), b"0123456789");
}

/// Decisions, Two surfaces: the answer counts what forks in other buckets inherited, not what forks
/// in the bucket did, which went with it, whichever shards they were on.
fn a_purge_counts_what_stays_alone(server: &Server) {
    let doomed = unique("doomed");
    let source = ten_in(server, &doomed);
    let kept_by = absent(server);
    fork_of(&source, &kept_by).send().expect(201);
    for _ in 0..10 {
        let mut link = ten_in(server, &doomed);
        for _ in 0..3 {
            let fork = Stream::at(server, Surface::Base, &format!("{doomed}/{}", unique("f")));
            fork_of(&link, &fork).send().expect(201);
            link = fork;
        }
    }
    let path = format!("/__ursula/purge/{doomed}");
    let purge = Request::to(server.admin_address(), "DELETE", path).send();
    let answer = purge.expect(200).json();
    assert_eq!(answer["streams"], 41, "{answer}");
    assert_eq!(answer["inherited_bytes"], 10, "{answer}");
    assert_eq!(kept_by.read_all(), b"0123456789");
}

/// A chain of deleted sources goes with its last fork, one after the other; killed in the middle of
/// that, the server starts, and finishes it.
#[test]
fn a_kill_in_the_middle_of_a_cascade_is_made_good() {
    const LINKS: usize = 60;
    let mut server = Options::new(2).start();
    for _ in 0..3 {
        let mut keys = vec![ten(&server).key().to_owned()];
        for _ in 0..LINKS {
            let source = Stream::at(&server, Surface::Base, &keys[keys.len() - 1]);
            let fork = absent(&server);
            fork_of(&source, &fork).send().expect(201);
            fork.append(OCTETS, "x");
            keys.push(fork.key().to_owned());
        }
        for key in &keys {
            let stream = Stream::at(&server, Surface::Base, key);
            stream.delete().send().expect(204);
        }
        server = server.kill_and_restart();
        let again = Stream::at(&server, Surface::Base, &keys[0]);
        eventually("the first name is free again", || {
            (again.put().try_send()?.status == 201).then_some(())
        });
        again.delete().send().expect(204);
        await_metric(&server, "streams", |count| count == 0);
    }
}

/// Issue 6: durable and crash-safe like everything else: no leaked reference, no resurrected source.
#[test]
fn forks_survive_a_kill() {
    let server = Options::new(4).start();
    let (mut pairs, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let (source, fork) = (ten(&server), absent(&server));
        fork_of(&source, &fork).send().expect(201);
        source.delete().send().expect(204);
        pairs.push((source.key().to_owned(), fork.key().to_owned()));
        let source = ten(&server);
        fork_of(&source, &absent(&server))
            .header("Stream-Fork-Offset", offset(99))
            .send()
            .expect(400);
        refused.push(source.key().to_owned());
    }
    let server = server.kill_and_restart();
    let at = |key: &String| Stream::at(&server, Surface::Base, key);
    for key in &refused {
        at(key).delete().send().expect(204);
        at(key).head().send().expect(404);
    }
    for (source, fork) in &pairs {
        at(source).head().send().expect(410);
        assert_eq!(at(fork).read_all(), b"0123456789");
        at(fork).delete().send().expect(204);
        eventually("the source goes with its last fork", || {
            (at(source).head().send().status == 404).then_some(())
        });
    }
    let server = server.kill_and_restart();
    for (source, fork) in &pairs {
        for key in [source, fork] {
            Stream::at(&server, Surface::Base, key)
                .head()
                .send()
                .expect(404);
        }
    }
}
