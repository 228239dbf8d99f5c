//! Bootstrap: Extensions 3; Reference, "Bootstrap".

use std::collections::HashSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use ursula_headers::ErrorCode;

use crate::common::http::Response;
use crate::common::multipart::{self, Part, boundary};
use crate::common::server::Server;
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    snapshot_then_updates,
    without_a_snapshot_the_first_part_is_empty,
    one_part_for_each_json_message,
    an_empty_stream_has_one_part,
    a_snapshot_at_the_tail_has_no_updates,
    after_retention_it_starts_at_the_snapshot,
    a_closed_stream_says_so,
    updates_are_capped_and_say_where_to_go_on,
    a_capped_json_answer_ends_between_messages,
    one_message_above_the_cap_is_whole,
    every_answer_has_a_fresh_boundary,
    bodies_with_delimiters_arrive_whole,
    live_is_400,
    other_parameters_are_ignored,
    a_missing_stream_is_404,
    conditions_and_ranges_do_not_apply,
    head_has_the_headers_and_no_body,
    other_methods_are_405,
    pythons_mime_parser_agrees,
];

fn bootstrap(stream: &Stream<'_>) -> Response {
    stream.request("GET", "/bootstrap").send()
}

#[track_caller]
fn parts(answer: &Response) -> Vec<Part> {
    multipart::parse(answer.expect_header("content-type"), &answer.body)
}

fn part(content_type: &str, body: impl AsRef<[u8]>) -> Part {
    Part {
        content_type: content_type.to_owned(),
        body: body.as_ref().to_vec(),
    }
}

/// All update bytes of an answer.
fn updates(answer: &Response) -> Vec<u8> {
    parts(answer)
        .into_iter()
        .skip(1)
        .flat_map(|part| part.body)
        .collect()
}

fn publish(stream: &Stream<'_>, at: usize, content_type: &str, body: &str) {
    let publish = stream.request("PUT", &format!("/snapshot/{at}"));
    publish
        .header("Content-Type", content_type)
        .body(body)
        .send()
        .expect(204);
}

/// Extensions 3.2: the snapshot with its own content type, then the retained bytes from it on.
fn snapshot_then_updates(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    publish(&stream, 6, "image/png", "the snapshot\r\n");
    stream.append(OCTETS, "ab");
    let answer = bootstrap(&stream).expect(200);
    let answer = answer.expect_field("stream-snapshot-offset", &offset(6));
    let answer = answer.expect_field("stream-next-offset", &offset(12));
    let answer = answer
        .expect_field("stream-up-to-date", "true")
        .expect_no_field("stream-closed");
    let answer = answer.expect_field("cache-control", "no-store");
    assert_eq!(answer.incarnation(), stream.head().send().incarnation());
    let parts = parts(&answer);
    assert_eq!(parts[0], part("image/png", "the snapshot\r\n"));
    assert!(parts[1..].iter().all(|part| part.content_type == OCTETS));
    assert_eq!(updates(&answer), b"6789ab");
}

/// Extensions 3.2: -1, an empty octet-stream part, then everything retained.
fn without_a_snapshot_the_first_part_is_empty(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, TEXT, "abc");
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_field("stream-snapshot-offset", "-1");
    let answer = answer.expect_field("stream-up-to-date", "true");
    assert_eq!(answer.next_offset(), offset(3));
    assert_eq!(parts(&answer)[0], part(OCTETS, ""));
    assert_eq!(updates(&answer), b"abc");
}

/// Extensions 3.2: for a JSON stream each part is exactly one stored message.
fn one_part_for_each_json_message(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, JSON, "[{\"a\" : 1}, 22, \"x\\n\"]");
    let answer = bootstrap(&stream).expect(200);
    let expected = [
        part(OCTETS, ""),
        part(JSON, "{\"a\":1}\n"),
        part(JSON, "22\n"),
        part(JSON, "\"x\\n\"\n"),
    ];
    assert_eq!(parts(&answer), expected);
    publish(&stream, 8, JSON, "{ \"s\" : 1 }");
    let answer = bootstrap(&stream).expect(200);
    let expected = [
        part(JSON, "{ \"s\" : 1 }"),
        part(JSON, "22\n"),
        part(JSON, "\"x\\n\"\n"),
    ];
    assert_eq!(parts(&answer), expected);
}

/// Extensions 3.2: without updates the next offset is the snapshot point.
fn an_empty_stream_has_one_part(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, JSON);
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_field("stream-up-to-date", "true");
    assert_eq!(answer.next_offset(), offset(0));
    assert_eq!(parts(&answer), [part(OCTETS, "")]);
}

/// The same with a snapshot.
fn a_snapshot_at_the_tail_has_no_updates(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    publish(&stream, 10, TEXT, "all of it");
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_field("stream-up-to-date", "true");
    let answer = answer.expect_field("stream-snapshot-offset", &offset(10));
    assert_eq!(answer.next_offset(), offset(10));
    assert_eq!(parts(&answer), [part(TEXT, "all of it")]);
}

/// Extensions 3.4: where reads answer 410, bootstrap gives a snapshot that covers what went.
fn after_retention_it_starts_at_the_snapshot(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    publish(&stream, 6, TEXT, "s6");
    stream.request("PUT", "/retention/4").send().expect(204);
    stream.get("").send().expect(410);
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_field("stream-snapshot-offset", &offset(6));
    assert_eq!(parts(&answer)[0], part(TEXT, "s6"));
    assert_eq!(updates(&answer), b"6789");
    stream.append(OCTETS, "x");
    assert_eq!(stream.read_from(&answer.next_offset()), b"x");
}

/// Decisions, Order of checks: a closed stream's bootstrap carries `Stream-Closed`.
fn a_closed_stream_says_so(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, TEXT, "all");
    stream.close();
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_field("stream-closed", "true");
    assert_eq!(
        updates(&answer.expect_field("stream-up-to-date", "true")),
        b"all"
    );
}

/// Extensions 3.2, Completeness: a partial answer is contiguous from the snapshot point, does not
/// claim to be up to date, and reading goes on at its next offset.
fn updates_are_capped_and_say_where_to_go_on(server: &Server) {
    const CAP: usize = 8 << 20;
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let pattern: Vec<u8> = (0..CAP + CAP / 2)
        .map(|position| (position % 241) as u8)
        .collect();
    for piece in pattern.chunks(CAP / 2) {
        stream.append(OCTETS, piece);
    }
    publish(&stream, 100, TEXT, "s");
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_no_field("stream-up-to-date");
    let next: usize = answer.next_offset().parse().expect("an offset is decimal");
    assert!((100..=100 + CAP).contains(&next), "{next}");
    assert!(updates(&answer) == pattern[100..next], "wrong bytes");
    assert!(
        stream.read_from(&answer.next_offset()) == pattern[next..],
        "wrong rest"
    );
    // Issue 3: cold or not, a range is served up to the cap.
    assert_eq!(next, 100 + CAP);
}

/// Extensions 3.2: P lies between messages; as many as the cap takes.
fn a_capped_json_answer_ends_between_messages(server: &Server) {
    let message = format!("\"{}\"", "m".repeat(999_997));
    let stream = Stream::create(server, Surface::Bucket, JSON);
    for _ in 0..10 {
        stream.append(JSON, &message);
    }
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_no_field("stream-up-to-date");
    let parts = parts(&answer);
    assert_eq!(
        parts.len(),
        1 + 8,
        "8 messages of 1,000,000 bytes fit into 8 MiB"
    );
    assert!(parts[1..].iter().all(|part| part.body.len() == 1_000_000));
    assert_eq!(answer.next_offset(), offset(8_000_000));
    assert_eq!(stream.read_from(&answer.next_offset()).len(), 2_000_000);
}

/// Extensions 3.2, Note: at least one message, even when it alone exceeds the cap. A message of a
/// request of 8 MiB does, by its LF.
fn one_message_above_the_cap_is_whole(server: &Server) {
    let message = format!("\"{}\"", "m".repeat((8 << 20) - 2));
    let stream = Stream::create(server, Surface::Bucket, JSON);
    stream.append(JSON, &message);
    stream.append(JSON, "2");
    let answer = bootstrap(&stream)
        .expect(200)
        .expect_no_field("stream-up-to-date");
    let parts = parts(&answer);
    assert_eq!(parts.len(), 2);
    assert!(
        parts[1].body == format!("{message}\n").as_bytes(),
        "the message is whole"
    );
    assert_eq!(answer.next_offset(), offset(message.len() + 1));
}

/// Extensions 3.2: an unpredictable boundary for every response; issue 3: of 128 bits.
fn every_answer_has_a_fresh_boundary(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let boundaries: HashSet<String> = (0..50)
        .map(|_| boundary(bootstrap(&stream).expect_header("content-type")).to_owned())
        .collect();
    assert_eq!(boundaries.len(), 50);
    assert!(
        boundaries
            .iter()
            .all(|boundary| (22..=70).contains(&boundary.len())),
        "{boundaries:?}"
    );
}

/// Extensions 3.2: payloads are not reframed, whatever they look like.
fn bodies_with_delimiters_arrive_whole(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let seen = bootstrap(&stream);
    let seen = boundary(seen.expect_header("content-type"));
    let hostile =
        format!("\r\n--{seen}\r\nContent-Type: text/html\r\n\r\n<script>\r\n--{seen}--\r\n");
    stream.append(OCTETS, &hostile);
    publish(&stream, 0, TEXT, &hostile);
    let answer = bootstrap(&stream).expect(200);
    assert_eq!(parts(&answer)[0], part(TEXT, &hostile));
    assert_eq!(updates(&answer), hostile.as_bytes());
}

/// Extensions 3.1: any live parameter is 400.
fn live_is_400(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    for query in ["live=sse", "live=long-poll", "live=", "offset=-1&live=foo"] {
        let answer = stream.request("GET", &format!("/bootstrap?{query}")).send();
        answer.expect_error(400, ErrorCode::InvalidQuery);
    }
}

/// Extensions 3.1: it defines no parameters of its own.
fn other_parameters_are_ignored(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    for query in ["foo=bar", "offset=2", "max_bytes=1"] {
        let answer = stream
            .request("GET", &format!("/bootstrap?{query}"))
            .send()
            .expect(200);
        assert_eq!(updates(&answer), b"abc");
    }
}

/// Extensions 3.2: 404.
fn a_missing_stream_is_404(server: &Server) {
    bootstrap(&Stream::absent(server, Surface::Bucket))
        .expect_error(404, ErrorCode::StreamNotFound);
}

/// The peer's answer (section 13): no 304, no 206.
fn conditions_and_ranges_do_not_apply(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    let request = stream
        .request("GET", "/bootstrap")
        .header("Range", "bytes=0-1");
    let answer = request.header("If-None-Match", "*").send().expect(200);
    assert_eq!(updates(&answer), b"abc");
}

/// RFC 9110 9.3.2.
fn head_has_the_headers_and_no_body(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    let head = stream
        .request("HEAD", "/bootstrap")
        .send()
        .expect(200)
        .expect_body("");
    let head = head.expect_field("stream-snapshot-offset", "-1");
    assert_eq!(head.next_offset(), offset(3));
    boundary(head.expect_header("content-type"));
}

/// The peer's answer (section 13).
fn other_methods_are_405(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    for method in ["POST", "PUT", "DELETE"] {
        let answer = stream.request(method, "/bootstrap").send();
        let answer = answer.expect_error(405, ErrorCode::MethodNotAllowed);
        let allow = answer.expect_header("allow");
        assert!(allow.contains("GET") && allow.contains("HEAD"), "{answer}");
    }
}

/// Issue 3: an independent MIME parser reads the same parts.
fn pythons_mime_parser_agrees(server: &Server) {
    const SCRIPT: &str = "
import email, email.policy, sys
message = email.message_from_bytes(sys.stdin.buffer.read(), policy=email.policy.HTTP)
assert message.is_multipart() and not message.defects, message.defects
for part in message.get_payload():
    assert not part.defects, part.defects
    print(part.get_content_type(), part.get_payload(decode=True).hex())
";
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not installed");
        return;
    }
    let stream = Stream::with_body(
        server,
        Surface::Bucket,
        JSON,
        "[{\"a\":1},\"--x\\r\\n\",[]]",
    );
    publish(
        &stream,
        8,
        "text/markdown",
        "# snapshot\r\n\r\n--almost\r\nend",
    );
    let answer = bootstrap(&stream).expect(200);
    let mut message = format!(
        "Content-Type: {}\r\n\r\n",
        answer.expect_header("content-type")
    )
    .into_bytes();
    message.extend_from_slice(&answer.body);
    let mut python = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    python
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(&message)
        .expect("python3 reads");
    let output = python.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "python3 refused the message");
    let ours: String = parts(&answer)
        .iter()
        .map(|part| {
            let hex: String = part.body.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} {hex}\n", part.content_type)
        })
        .collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), ours);
}
