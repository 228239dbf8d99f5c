//! Staged snapshot parts: Reference, "Stage a part", "Publish a snapshot from
//! its parts" and "Discard staged parts"; Decisions, "Where the sources differ".

use ursula_headers::{
    ErrorCode, PartCount, PartStaged, PartsManifest, SizeLimit, SnapshotPublishAnswer, WriteKind,
    WriteOutcome, classify,
};

use super::snapshot::digest;
use crate::common::http::{Request, Response};
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    stage_then_commit,
    staging_changes_nothing_a_reader_sees,
    the_order_of_the_list_is_the_order_of_the_snapshot,
    a_commit_can_be_repeated,
    the_whole_can_be_published_after_its_commit,
    a_part_belongs_to_the_stream_not_the_offset,
    the_offset_of_a_stage_is_only_checked_for_form,
    an_empty_part_is_one,
    a_wrong_digest_publishes_nothing,
    unknown_and_foreign_parts_are_400,
    a_malformed_commit_is_400_and_keeps_the_parts,
    a_conflicting_commit_is_409_and_keeps_the_parts,
    a_superseded_commit_is_409_even_below_retention,
    a_commit_past_the_tail_is_409,
    a_commit_inside_a_message_is_400,
    discard_drops_every_part,
    discard_leaves_the_snapshot,
    parts_die_with_their_incarnation,
    a_missing_stream_is_404,
    other_methods_are_405,
    many_parts_make_one_snapshot,
];

fn ten(server: &Server) -> Stream<'_> {
    Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789")
}

fn stage_at(stream: &Stream<'_>, at: &str, part: impl AsRef<[u8]>) -> Response {
    stream
        .request("POST", &format!("/snapshot/{at}/parts"))
        .body(part)
        .send()
}

/// Stages `part` and gives its id, which the typed parser accepts.
#[track_caller]
fn stage(stream: &Stream<'_>, part: impl AsRef<[u8]>) -> String {
    let answer = stage_at(stream, "10", part).expect(201);
    let staged = PartStaged::parse(answer.pairs()).expect("the answer parses");
    let outcome = classify(WriteKind::PartStage, answer.status, answer.pairs(), b"");
    assert_eq!(outcome, WriteOutcome::Applied);
    staged.part.as_str().to_owned()
}

/// A commit of `parts`, whose whole is `whole`, at `at`.
fn commit(stream: &Stream<'_>, at: usize, parts: &[&str], whole: &str) -> Request {
    let body: String = parts.iter().map(|part| format!("{part}\n")).collect();
    stream
        .request("PUT", &format!("/snapshot/{at}"))
        .header("Content-Type", TEXT)
        .header("Stream-Snapshot-Parts", parts.len())
        .header("Stream-Snapshot-Digest", digest(TEXT, whole.as_bytes()))
        .body(body)
}

fn read(stream: &Stream<'_>, at: usize) -> Response {
    stream.request("GET", &format!("/snapshot/{at}")).send()
}

/// Publish a snapshot from its parts: 204 with the headers of a publish.
fn stage_then_commit(server: &Server) {
    let stream = ten(server);
    let (one, two) = (stage(&stream, "part-one|"), stage(&stream, "part-two"));
    let whole = "part-one|part-two";
    let count = PartCount::try_from(2_u32).expect("a count");
    PartsManifest::parse(count, format!("{one}\n{two}\n").as_bytes()).expect("ids fit a manifest");
    let answer = commit(&stream, 10, &[&one, &two], whole).send().expect(204);
    let typed = SnapshotPublishAnswer::parse(answer.status, answer.pairs()).expect("it parses");
    assert!(
        matches!(typed, Some(SnapshotPublishAnswer::Published { .. })),
        "{answer}"
    );
    let answer = answer.expect_field("stream-snapshot-digest", &digest(TEXT, whole.as_bytes()));
    answer.expect_field("stream-snapshot-offset", &offset(10));
    read(&stream, 10)
        .expect(200)
        .expect_body(whole)
        .expect_field("content-type", TEXT);
    let range = stream
        .request("GET", "/snapshot/10")
        .header("Range", "bytes=6-11")
        .send();
    range.expect(206).expect_body("ne|par");
}

/// Stage a part: staging changes nothing a reader sees.
fn staging_changes_nothing_a_reader_sees(server: &Server) {
    let stream = ten(server);
    let before = stream.head().send();
    stage(&stream, "x");
    let after = stream.head().send();
    assert_eq!(before.headers.len(), after.headers.len());
    after
        .expect_no_field("stream-snapshot-offset")
        .expect_field("stream-next-offset", &offset(10));
    read(&stream, 10).expect(404);
}

/// "in the order the body lists them".
fn the_order_of_the_list_is_the_order_of_the_snapshot(server: &Server) {
    let stream = ten(server);
    let ids = ["a", "b", "c"].map(|part| stage(&stream, part));
    commit(&stream, 10, &[&ids[2], &ids[0], &ids[1]], "cab")
        .send()
        .expect(204);
    read(&stream, 10).expect(200).expect_body("cab");
}

/// "Safe: a commit sent again answers as a publish sent again does."
fn a_commit_can_be_repeated(server: &Server) {
    let stream = ten(server);
    let id = stage(&stream, "whole");
    let request = commit(&stream, 10, &[&id], "whole");
    let first = request.send().expect(204);
    let again = request.send().expect(204);
    for name in [
        "stream-snapshot-offset",
        "stream-snapshot-digest",
        "stream-incarnation",
    ] {
        assert_eq!(first.header(name), again.header(name));
    }
}

/// "as a publish of the whole would": the digest does not tell how it came.
fn the_whole_can_be_published_after_its_commit(server: &Server) {
    let stream = ten(server);
    let ids = ["who", "le"].map(|part| stage(&stream, part));
    commit(&stream, 10, &[&ids[0], &ids[1]], "whole")
        .send()
        .expect(204);
    let publish = stream
        .request("PUT", "/snapshot/10")
        .header("Content-Type", TEXT);
    publish.body("whole").send().expect(204);
}

/// "a part belongs to the stream, so a commit at another offset may use it".
fn a_part_belongs_to_the_stream_not_the_offset(server: &Server) {
    let stream = ten(server);
    let answer = stage_at(&stream, "3", "x").expect(201);
    let id = answer.expect_header("stream-snapshot-part");
    commit(&stream, 7, &[id], "x").send().expect(204);
}

/// "Checked as an offset and otherwise ignored": past the tail too, as the peer has it.
fn the_offset_of_a_stage_is_only_checked_for_form(server: &Server) {
    let stream = ten(server);
    for at in ["0", "99", "18446744073709551615"] {
        stage_at(&stream, at, "x").expect(201);
    }
    for at in ["abc", "-1", "now"] {
        stage_at(&stream, at, "x").expect_error(400, ErrorCode::InvalidOffset);
    }
}

/// The peer's answer (section 16): an empty part is staged.
fn an_empty_part_is_one(server: &Server) {
    let stream = ten(server);
    let ids = ["a", "", "b"].map(|part| stage(&stream, part));
    commit(&stream, 10, &[&ids[0], &ids[1], &ids[2]], "ab")
        .send()
        .expect(204);
    read(&stream, 10).expect(200).expect_body("ab");
}

/// A mismatch is 400 `SNAPSHOT_DIGEST_MISMATCH` and publishes nothing.
fn a_wrong_digest_publishes_nothing(server: &Server) {
    let stream = ten(server);
    let id = stage(&stream, "whole");
    commit(&stream, 10, &[&id], "other")
        .send()
        .expect_error(400, ErrorCode::SnapshotDigestMismatch);
    read(&stream, 10).expect(404);
    // The content type is part of the digest.
    let id = stage(&stream, "whole");
    let wrong_type = stream
        .request("PUT", "/snapshot/10")
        .header("Content-Type", OCTETS)
        .header("Stream-Snapshot-Parts", 1)
        .header("Stream-Snapshot-Digest", digest(TEXT, b"whole"))
        .body(format!("{id}\n"));
    wrong_type
        .send()
        .expect_error(400, ErrorCode::SnapshotDigestMismatch);
}

/// "a part that is unknown or staged for another stream".
fn unknown_and_foreign_parts_are_400(server: &Server) {
    let stream = ten(server);
    let foreign = stage(&ten(server), "x");
    for part in ["nope", foreign.as_str()] {
        let answer = commit(&stream, 10, &[part], "x").send();
        answer.expect_error(400, ErrorCode::UnknownPart);
    }
}

/// "a body that does not list exactly Stream-Snapshot-Parts distinct ids", 1 to 4096, each followed
/// by one newline; Decisions: every refusal but the digest's keeps the parts.
fn a_malformed_commit_is_400_and_keeps_the_parts(server: &Server) {
    let stream = ten(server);
    let ids = ["a", "b"].map(|part| stage(&stream, part));
    let (one, two) = (&ids[0], &ids[1]);
    let right = digest(TEXT, b"ab");
    let cases: [(&str, &str, String); 16] = [
        ("2", &right, format!("{one}\n{two}")),
        ("2", &right, format!("{one}\r\n{two}\r\n")),
        ("2", &right, format!("{one}\n\n{two}\n")),
        ("2", &right, format!("{one}\n{two}\n\n")),
        ("2", &right, format!("{one}\n{one}\n")),
        ("2", &right, format!("{one}\n")),
        ("1", &right, format!("{one}\n{two}\n")),
        ("3", &right, format!("{one}\n{two}\n")),
        ("0", &right, String::new()),
        ("4097", &right, format!("{one}\n{two}\n")),
        ("02", &right, format!("{one}\n{two}\n")),
        ("two", &right, format!("{one}\n{two}\n")),
        ("", &right, format!("{one}\n{two}\n")),
        ("2", &right, String::new()),
        ("2", "", format!("{one}\n{two}\n")),
        ("2", "abc", format!("{one}\n{two}\n")),
    ];
    for (count, digest, body) in &cases {
        let answer = stream
            .request("PUT", "/snapshot/10")
            .header("Content-Type", TEXT)
            .header("Stream-Snapshot-Parts", count)
            .header("Stream-Snapshot-Digest", digest)
            .body(body)
            .send();
        assert_eq!(
            answer.status, 400,
            "{count:?} {digest:?} {body:?}: {answer}"
        );
        assert_eq!(
            answer.error_body().code,
            ErrorCode::InvalidPartsCommit,
            "{count:?} {body:?}"
        );
    }
    let no_digest = stream
        .request("PUT", "/snapshot/10")
        .header("Stream-Snapshot-Parts", 2);
    no_digest
        .body(format!("{one}\n{two}\n"))
        .send()
        .expect_error(400, ErrorCode::InvalidPartsCommit);
    commit(&stream, 10, &[one, two], "ab").send().expect(204);
}

/// "409: As for a publish"; the parts stay.
fn a_conflicting_commit_is_409_and_keeps_the_parts(server: &Server) {
    let stream = ten(server);
    stream
        .request("PUT", "/snapshot/6")
        .body("latest")
        .send()
        .expect(204);
    let id = stage(&stream, "other");
    for at in [6, 3] {
        let answer = commit(&stream, at, &[&id], "other").send();
        let answer = answer.expect_error(409, ErrorCode::SnapshotConflict);
        answer.expect_field("stream-snapshot-offset", &offset(6));
    }
    read(&stream, 6).expect(200).expect_body("latest");
    commit(&stream, 8, &[&id], "other").send().expect(204);
}

/// "It comes before the retained-offset check, so a superseded commit answers 409 even below
/// retention."
fn a_superseded_commit_is_409_even_below_retention(server: &Server) {
    let stream = ten(server);
    stream
        .request("PUT", "/snapshot/6")
        .body("latest")
        .send()
        .expect(204);
    stream.request("PUT", "/retention/5").send().expect(204);
    let id = stage(&stream, "x");
    let answer = commit(&stream, 2, &[&id], "x").send();
    answer
        .expect_error(409, ErrorCode::SnapshotConflict)
        .expect_field("stream-snapshot-offset", &offset(6));
}

/// As for a publish: past the tail it names no snapshot.
fn a_commit_past_the_tail_is_409(server: &Server) {
    let stream = ten(server);
    let id = stage(&stream, "x");
    let answer = commit(&stream, 11, &[&id], "x").send();
    answer
        .expect_error(409, ErrorCode::SnapshotConflict)
        .expect_no_field("stream-snapshot-offset");
    commit(&stream, 10, &[&id], "x").send().expect(204);
}

/// As for a publish: on a JSON stream, between two messages.
fn a_commit_inside_a_message_is_400(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[11,22]");
    let answer = stage_at(&stream, "3", "x").expect(201);
    let id = answer.expect_header("stream-snapshot-part");
    commit(&stream, 4, &[id], "x")
        .send()
        .expect_error(400, ErrorCode::NotJsonBoundary);
    commit(&stream, 3, &[id], "x").send().expect(204);
}

/// Discard: 204 with the incarnation; the parts are gone; safe to repeat.
fn discard_drops_every_part(server: &Server) {
    let stream = ten(server);
    let id = stage(&stream, "x");
    let incarnation = stream.head().send().incarnation();
    for _ in 0..2 {
        let answer = stream
            .request("DELETE", "/snapshot/parts")
            .send()
            .expect(204);
        assert_eq!(answer.incarnation(), incarnation);
        let outcome = classify(WriteKind::PartsDiscard, answer.status, answer.pairs(), b"");
        assert_eq!(outcome, WriteOutcome::Applied);
    }
    commit(&stream, 10, &[&id], "x")
        .send()
        .expect_error(400, ErrorCode::UnknownPart);
}

/// "It deletes neither the stream nor a published snapshot."
fn discard_leaves_the_snapshot(server: &Server) {
    let stream = ten(server);
    let id = stage(&stream, "x");
    commit(&stream, 10, &[&id], "x").send().expect(204);
    stage(&stream, "y");
    stream
        .request("DELETE", "/snapshot/parts")
        .send()
        .expect(204);
    read(&stream, 10).expect(200).expect_body("x");
    assert_eq!(stream.read_all(), b"0123456789");
}

/// Decisions, Tokens: a part id is valid for one incarnation, and ids do not repeat.
fn parts_die_with_their_incarnation(server: &Server) {
    let stream = ten(server);
    let ids = [stage(&stream, "x"), stage(&stream, "x")];
    assert_ne!(ids[0], ids[1]);
    stream.delete().send().expect(204);
    stream
        .put()
        .header("Content-Type", OCTETS)
        .body("0123456789")
        .send()
        .expect(201);
    commit(&stream, 10, &[&ids[0]], "x")
        .send()
        .expect_error(400, ErrorCode::UnknownPart);
}

/// 404 to all three requests.
fn a_missing_stream_is_404(server: &Server) {
    let stream = Stream::absent(server, Surface::Bucket);
    stage_at(&stream, "0", "x").expect_error(404, ErrorCode::StreamNotFound);
    commit(&stream, 0, &["x"], "x")
        .send()
        .expect_error(404, ErrorCode::StreamNotFound);
    let discard = stream.request("DELETE", "/snapshot/parts").send();
    discard.expect_error(404, ErrorCode::StreamNotFound);
}

/// The peer's answer (section 16): 405 with the one method there is.
fn other_methods_are_405(server: &Server) {
    let stream = ten(server);
    for (method, path, allow) in [
        ("GET", "/snapshot/10/parts", "POST"),
        ("PUT", "/snapshot/10/parts", "POST"),
        ("GET", "/snapshot/parts", "DELETE"),
    ] {
        let answer = stream.request(method, path).send();
        let answer = answer.expect_error(405, ErrorCode::MethodNotAllowed);
        assert!(answer.expect_header("allow").contains(allow), "{answer}");
    }
}

/// Many parts of uneven sizes, an empty one among them, across the size of any buffer.
fn many_parts_make_one_snapshot(server: &Server) {
    let stream = ten(server);
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        65_536,
        1 << 20,
        3,
        (2 << 20) + 1,
        777,
    ];
    let mut whole = String::new();
    let mut ids = Vec::new();
    for (index, size) in sizes.into_iter().enumerate() {
        let letter = char::from(b'a' + u8::try_from(index).expect("few parts"));
        let part = letter.to_string().repeat(size);
        ids.push(stage(&stream, &part));
        whole.push_str(&part);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    commit(&stream, 10, &ids, &whole).send().expect(204);
    let answer = read(&stream, 10).expect(200);
    assert!(
        answer.text() == whole,
        "{} of {} bytes",
        answer.body.len(),
        whole.len()
    );
    let middle = whole.len() / 2;
    let range = format!("bytes={}-{}", middle - 1000, middle + 1000);
    let part = stream
        .request("GET", "/snapshot/10")
        .header("Range", range)
        .send()
        .expect(206);
    assert!(
        part.text() == &whole[middle - 1000..=middle + 1000],
        "wrong bytes in the middle"
    );
}

/// 413 `SNAPSHOT_TOO_LARGE` names the limit, which HEAD reports too; the parts stay.
#[test]
fn an_assembled_snapshot_above_the_limit_is_413() {
    let server = Options::new(1)
        .flag("request-bytes-max", 10_000)
        .flag("snapshot-bytes-max", 10_000)
        .start();
    let stream = ten(&server);
    let part = "x".repeat(6_000);
    let (one, two) = (stage(&stream, &part), stage(&stream, &part));
    let answer = commit(&stream, 10, &[&one, &two], &part.repeat(2)).send();
    let answer = answer.expect_error(413, ErrorCode::SnapshotTooLarge);
    let limit = SizeLimit::parse(answer.status, answer.pairs()).expect("it parses");
    assert_eq!(limit, Some(SizeLimit::Snapshot(10_000)));
    let head = stream.head().send().expect(200);
    head.expect_field("ursula-max-snapshot-bytes", "10000");
    commit(&stream, 10, &[&one], &part).send().expect(204);
}

/// Staged parts and what is published from them are durable.
#[test]
fn parts_and_snapshots_survive_a_kill() {
    let server = Options::new(4).start();
    let key = ten(&server).key().to_owned();
    let (id, unused) = {
        let stream = Stream::at(&server, Surface::Bucket, &key);
        (stage(&stream, "staged before"), stage(&stream, "unused"))
    };
    let server = server.kill_and_restart();
    {
        let stream = Stream::at(&server, Surface::Bucket, &key);
        commit(&stream, 6, &[&id], "staged before")
            .send()
            .expect(204);
        stream.request("PUT", "/retention/4").send().expect(204);
    }
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    read(&stream, 6).expect(200).expect_body("staged before");
    let head = stream.head().send().expect(200);
    let head = head.expect_field("stream-retained-offset", &offset(4));
    head.expect_field("stream-snapshot-digest", &digest(TEXT, b"staged before"));
    commit(&stream, 8, &[&unused], "unused").send().expect(204);
}
