//! Delete: Base 5.4, and what must not survive into a stream of the same name.

use ursula_headers::ErrorCode;

use crate::common::server::Server;
use crate::common::stream::{OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    deleted_stream_is_404_to_everything,
    recreated_stream_is_new,
    recreated_stream_has_no_snapshot,
    a_closed_stream_can_be_deleted,
    one_of_concurrent_deletes_succeeds,
];

/// Base 5.4: 204, then 404 to every request.
fn deleted_stream_is_404_to_everything(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "abc");
        stream.delete().send().expect(204).expect_body("");
        let answers = [
            stream.get("").send(),
            stream.get("offset=now").send(),
            stream.get("offset=-1&live=long-poll").send(),
            stream.get("offset=-1&live=sse").send(),
            stream
                .post()
                .header("Content-Type", OCTETS)
                .body("x")
                .send(),
            stream.post().header("Stream-Closed", "true").send(),
            stream.delete().send(),
        ];
        for answer in answers {
            answer.expect_error(404, ErrorCode::StreamNotFound);
        }
        stream.head().send().expect(404).expect_body("");
    }
}

/// Extensions 2.4: the incarnation changes; nothing of the old stream is left.
fn recreated_stream_is_new(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "old");
        stream.close();
        let old = stream.head().send().incarnation();
        stream.delete().send().expect(204);
        let created = stream.put().header("Content-Type", TEXT).send().expect(201);
        assert_ne!(created.incarnation(), old);
        assert_eq!(created.next_offset(), offset(0));
        stream.append(TEXT, "new");
        stream
            .get("")
            .send()
            .expect(200)
            .expect_body("new")
            .expect_no_field("stream-closed");
    }
}

/// Extensions 2.4: snapshot and retention belong to the incarnation.
fn recreated_stream_has_no_snapshot(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    stream
        .request("PUT", "/snapshot/6")
        .body("s")
        .send()
        .expect(204);
    stream.request("PUT", "/retention/4").send().expect(204);
    stream.delete().send().expect(204);
    stream
        .put()
        .header("Content-Type", OCTETS)
        .body("abcdefghij")
        .send()
        .expect(201);
    stream
        .head()
        .send()
        .expect(200)
        .expect_no_field("stream-snapshot-offset")
        .expect_no_field("stream-snapshot-digest")
        .expect_field("stream-retained-offset", &offset(0));
    stream
        .request("GET", "/snapshot/6")
        .send()
        .expect_error(404, ErrorCode::SnapshotNotFound);
    assert_eq!(stream.read_all(), b"abcdefghij");
}

/// Base 5.4: closure does not stand in the way.
fn a_closed_stream_can_be_deleted(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        stream.close();
        stream.delete().send().expect(204);
        stream.head().send().expect(404);
    }
}

/// Base 5.4: of concurrent deletes one finds the stream.
fn one_of_concurrent_deletes_succeeds(server: &Server) {
    let stream = Stream::create(server, Surface::Base, OCTETS);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let deleters: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| stream.delete().send().status))
            .collect();
        deleters
            .into_iter()
            .map(|deleter| deleter.join().expect("no deleter panics"))
            .collect()
    });
    assert_eq!(
        statuses.iter().filter(|status| **status == 204).count(),
        1,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 404).count(),
        7,
        "{statuses:?}"
    );
}
