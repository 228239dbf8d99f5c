//! HTTP/1.1 on the wire: RFC 9112, issue 2 ("HTTP/1.1") and `cases/http.md`.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use ursula_headers::ErrorCode;

use crate::common::eventually;
use crate::common::http::{Connection, Request};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset};

at_1_and_4_shards![
    keep_alive_serves_one_after_the_other,
    pipelined_requests_are_answered_in_order,
    two_requests_in_one_segment_cut_anywhere,
    length_with_transfer_encoding_is_400_and_closes,
    ambiguous_lengths_are_400_and_close,
    lengths_beyond_64_bits_are_refused,
    malformed_heads_are_400_and_close,
    malformed_chunks_are_400_and_close,
    a_refused_body_appends_nothing,
    chunks_may_be_cut_anywhere,
    unknown_transfer_codings_are_refused,
    absolute_form_is_the_same_as_its_path,
    expect_continue_is_answered_before_the_body,
    expect_continue_of_a_refused_append_gets_the_final_status,
    an_unknown_expectation_is_417,
    the_refusal_of_a_large_body_can_be_read,
    head_has_no_body_and_a_true_length,
    http_1_0_closes_unless_kept_alive,
    http_1_0_gets_no_chunks,
    connection_close_closes,
    a_missing_or_double_host_is_400,
    long_targets_are_414_and_large_heads_431,
    unknown_versions_and_methods_are_refused,
    targets_without_a_slash_are_400,
    options_star_is_answered,
    half_closed_clients_get_their_answer,
    resets_leave_the_server_alone,
    header_names_do_not_depend_on_case,
    error_answers_keep_the_connection_when_they_can,
];

fn octets(server: &Server) -> Stream<'_> {
    Stream::create(server, Surface::Bucket, OCTETS)
}

/// The head of an append to `stream`, without its framing fields.
fn append_head(stream: &Stream<'_>) -> String {
    format!(
        "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTETS}\r\n",
        stream.path()
    )
}

/// A request that follows on the same connection and must not be read as one.
fn smuggled(stream: &Stream<'_>) -> String {
    format!("{}Content-Length: 8\r\n\r\nsmuggled", append_head(stream))
}

/// Sends `bytes`; the answer must be `status`, the connection must close, and nothing may have
/// been appended.
#[track_caller]
fn expect_refused(stream: &Stream<'_>, bytes: impl AsRef<[u8]>, status: u16) {
    let bytes = bytes.as_ref();
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let mut connection = Connection::to(stream.server());
    connection.write_if_open(bytes);
    let answer = connection.read_response("POST");
    assert_eq!(answer.status, status, "for {shown:?}: {answer}");
    connection.expect_closed();
    assert_eq!(
        stream.head().send().next_offset(),
        offset(0),
        "for {shown:?}"
    );
}

/// RFC 9112 9.3.
fn keep_alive_serves_one_after_the_other(server: &Server) {
    let stream = octets(server);
    let mut connection = Connection::to(server);
    for round in 1..=20 {
        connection.write(
            stream
                .post()
                .header("Content-Type", OCTETS)
                .body("x")
                .encode(),
        );
        let answer = connection.read_response("POST").expect(204);
        assert_eq!(answer.next_offset(), offset(round));
    }
}

/// RFC 9112 9.3.2: in the order of the requests, whichever core serves each.
fn pipelined_requests_are_answered_in_order(server: &Server) {
    let streams: Vec<Stream<'_>> = (0..16).map(|_| octets(server)).collect();
    let mut bytes = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let body = format!("body {number}");
        bytes.extend(
            stream
                .post()
                .header("Content-Type", OCTETS)
                .body(&body)
                .encode(),
        );
        bytes.extend(stream.get("offset=-1").encode());
        bytes.extend(stream.head().encode());
    }
    let mut connection = Connection::to(server);
    connection.write(&bytes);
    for number in 0..streams.len() {
        let body = format!("body {number}");
        connection.read_response("POST").expect(204);
        connection
            .read_response("GET")
            .expect(200)
            .expect_body(&body);
        let head = connection.read_response("HEAD").expect(200);
        assert_eq!(head.next_offset(), offset(body.len()));
    }
}

/// HTTP case 9: two requests, the second cut anywhere: both answered right.
fn two_requests_in_one_segment_cut_anywhere(server: &Server) {
    let stream = octets(server);
    let first = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("first")
        .encode();
    let second = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("second")
        .encode();
    let mut tail = 0;
    for cut in 0..second.len() {
        let mut connection = Connection::to(server);
        connection.write([&first, &second[..cut]].concat());
        let answer = connection.read_response("POST").expect(204);
        assert_eq!(answer.next_offset(), offset(tail + 5), "cut at {cut}");
        connection.write(&second[cut..]);
        let answer = connection.read_response("POST").expect(204);
        tail += 11;
        assert_eq!(answer.next_offset(), offset(tail), "cut at {cut}");
    }
    assert_eq!(stream.read_all(), b"firstsecond".repeat(second.len()));
}

/// HTTP case 1: in both orders: 400 and close; what follows is not read as a request.
fn length_with_transfer_encoding_is_400_and_closes(server: &Server) {
    let stream = octets(server);
    let fields = ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"];
    for (one, two) in [(fields[0], fields[1]), (fields[1], fields[0])] {
        let head = append_head(&stream);
        let request = format!("{head}{one}{two}\r\n0\r\n\r\n{}", smuggled(&stream));
        expect_refused(&stream, request, 400);
    }
}

/// Issue 2: two lengths, `Content-Length : 1`, `+10`, and their like: 400 and close.
fn ambiguous_lengths_are_400_and_close(server: &Server) {
    let stream = octets(server);
    for fields in [
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: 1, 2\r\n",
        "Content-Length : 1\r\n",
        "Content-Length: +1\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x1\r\n",
        "Content-Length: 1.0\r\n",
        "Content-Length: \r\n",
        "Content-Length: 1 1\r\n",
        "Content-Length: abc\r\n",
        "Content-Length:\0 1\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: \r\n",
    ] {
        let request = format!("{}{fields}\r\nx{}", append_head(&stream), smuggled(&stream));
        expect_refused(&stream, request, 400);
    }
}

/// A length that is well formed and no machine's: too large, or malformed, but never wrapped around.
fn lengths_beyond_64_bits_are_refused(server: &Server) {
    let stream = octets(server);
    for length in [
        "18446744073709551616",
        "18446744073709551617",
        "99999999999999999999999999",
    ] {
        let mut connection = Connection::to(server);
        let request = format!(
            "{}Content-Length: {length}\r\n\r\nx{}",
            append_head(&stream),
            smuggled(&stream)
        );
        connection.write_if_open(request.as_bytes());
        let answer = connection.read_response("POST");
        assert!(matches!(answer.status, 400 | 413), "{length}: {answer}");
        connection.expect_closed();
        assert_eq!(
            stream.head().send().next_offset(),
            offset(0),
            "for {length}"
        );
    }
}

/// Issue 2: folded lines, NUL, bare CR, and what else is no head: 400 and close.
fn malformed_heads_are_400_and_close(server: &Server) {
    let stream = octets(server);
    let path = stream.path();
    for head in [
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-Folded: a\r\n b\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-Nul: a\0b\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nX-Cr: a\rb\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n: empty name\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nX Y: space in name\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\n Host: x\r\n\r\n"),
        format!("POST {path}\r\nHost: x\r\n\r\n"),
        format!("POST  {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("POST {path} x HTTP/1.1\r\nHost: x\r\n\r\n"),
        format!("POST {path} HTTP/1.1x\r\nHost: x\r\n\r\n"),
        format!("PO\0ST {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        "GARBAGE\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\r\n\r\n".to_owned(),
    ] {
        expect_refused(&stream, format!("{head}{}", smuggled(&stream)), 400);
    }
}

/// HTTP cases 2 and 3: no bare LF, no wrap-around, no missing CRLF.
fn malformed_chunks_are_400_and_close(server: &Server) {
    let stream = octets(server);
    for body in [
        "3\nabc\r\n0\r\n\r\n",
        "3;ext\nabc\r\n0\r\n\r\n",
        "3;a=\"\n\"\r\nabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nXX",
        "-3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        ";ext\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n",
        "G\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\nX-Trailer a\r\n\r\n",
    ] {
        let head = append_head(&stream);
        let request = format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n{body}{}",
            smuggled(&stream)
        );
        let status = {
            let mut connection = Connection::to(server);
            connection.write_if_open(request.as_bytes());
            let answer = connection.read_response("POST");
            connection.expect_closed();
            answer.status
        };
        // A size that is none of ours to hold may be called too large instead.
        let allowed: &[u16] = if body.starts_with('F') || body.starts_with("1000") {
            &[400, 413]
        } else {
            &[400]
        };
        assert!(allowed.contains(&status), "{body:?}: {status}");
        assert_eq!(
            stream.head().send().next_offset(),
            offset(0),
            "for {body:?}"
        );
    }
    // 2 GiB in one chunk: refused by its size, not by wrapping around.
    let head = append_head(&stream);
    let mut connection = Connection::to(server);
    connection.write_if_open(
        format!("{head}Transfer-Encoding: chunked\r\n\r\n80000000\r\nabc").as_bytes(),
    );
    let answer = connection.read_response("POST");
    assert!(matches!(answer.status, 400 | 413), "{answer}");
    assert_eq!(stream.head().send().next_offset(), offset(0));
}

/// A body that ends early is no body.
fn a_refused_body_appends_nothing(server: &Server) {
    let stream = octets(server);
    for framing in [
        "Content-Length: 10\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ] {
        let mut connection = Connection::to(server);
        connection.write(format!("{}{framing}", append_head(&stream)));
        connection.finish_writing();
        // 400 or no answer: the client left. Either way the connection ends.
        let answer = connection.try_read_response("POST");
        assert!(
            answer.is_err() || answer.as_ref().is_ok_and(|answer| answer.status == 400),
            "{answer:?}"
        );
        assert_eq!(
            stream.head().send().next_offset(),
            offset(0),
            "for {framing:?}"
        );
    }
}

/// RFC 9112 7.1: chunk boundaries and segments have nothing to do with each other.
fn chunks_may_be_cut_anywhere(server: &Server) {
    let stream = octets(server);
    let request = format!(
        "{}Transfer-Encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n00a\r\n0123456789\r\n0\r\nX-T: v\r\n\r\n",
        append_head(&stream)
    )
    .into_bytes();
    let body_start = request
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .expect("a head")
        + 4;
    for cut in body_start - 4..request.len() {
        let mut connection = Connection::to(server);
        connection.write(&request[..cut]);
        thread::sleep(Duration::from_millis(1));
        connection.write(&request[cut..]);
        connection.read_response("POST").expect(204);
    }
    let rounds = request.len() - (body_start - 4);
    assert_eq!(stream.read_all(), b"abc0123456789".repeat(rounds));
}

/// RFC 9112 6.1: a coding we do not know is 501 (or 400), and the connection closes.
fn unknown_transfer_codings_are_refused(server: &Server) {
    let stream = octets(server);
    for coding in [
        "gzip, chunked",
        "gzip",
        "identity",
        "chunked, gzip",
        "xchunked",
        "\"chunked\"",
    ] {
        let mut connection = Connection::to(server);
        let head = append_head(&stream);
        connection.write_if_open(
            format!(
                "{head}Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n{}",
                smuggled(&stream)
            )
            .as_bytes(),
        );
        let answer = connection.read_response("POST");
        assert!(matches!(answer.status, 400 | 501), "{coding}: {answer}");
        connection.expect_closed();
        assert_eq!(
            stream.head().send().next_offset(),
            offset(0),
            "for {coding:?}"
        );
    }
}

/// HTTP case 4: `GET http://host/path HTTP/1.1` is the same as `/path`.
fn absolute_form_is_the_same_as_its_path(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    for origin in [
        format!("http://{}", server.address()),
        "http://other.example".to_owned(),
        "HTTP://x".to_owned(),
    ] {
        let target = format!("{origin}{}?offset=4", stream.path());
        Request::new(server, "GET", target)
            .send()
            .expect(200)
            .expect_body("456789");
    }
}

/// RFC 9110 10.1.1: 100 before the body, then the answer.
fn expect_continue_is_answered_before_the_body(server: &Server) {
    let stream = octets(server);
    let mut connection = Connection::to(server);
    let head = append_head(&stream);
    connection.write(format!(
        "{head}Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    ));
    assert_eq!(connection.read_head().status, 100);
    connection.write("hello");
    connection.read_response("POST").expect(204);
    // With the body already there a 100 is of no use but allowed.
    connection.write(format!(
        "{head}Content-Length: 5\r\nExpect: 100-Continue\r\n\r\nworld"
    ));
    connection.read_response("POST").expect(204);
    assert_eq!(stream.read_all(), b"helloworld");
}

/// HTTP case 5: an append that will be refused gets its final status, and no 100.
fn expect_continue_of_a_refused_append_gets_the_final_status(server: &Server) {
    let closed = octets(server);
    closed.close();
    let absent = Stream::absent(server, Surface::Bucket);
    for (stream, content_type, length, status) in [
        (&absent, OCTETS, 5, 404),
        (&closed, OCTETS, 5, 409),
        (&octets(server), "text/plain", 5, 409),
        (&octets(server), OCTETS, 1_u64 << 40, 413),
        (&octets(server), "malformed", 5, 400),
        (&octets(server), "", 5, 400),
    ] {
        let mut connection = Connection::to(server);
        connection.write(format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n\
             Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n",
            stream.path()
        ));
        let head = connection.read_head();
        assert_eq!(head.status, status, "{head:?}");
        // The client may hang up now: the server must not mind.
    }
    octets(server).append(OCTETS, "x");
}

/// HTTP case 5: a client that hangs up on a refusal, before or after it has read it, is nothing to
/// warn of.
#[test]
fn hanging_up_on_a_refusal_is_no_noise() {
    let server = Options::new(1).start();
    let before = server.log().len();
    let closed = octets(&server);
    closed.close();
    let absent = Stream::absent(&server, Surface::Bucket);
    for (stream, length) in [(&absent, 5), (&closed, 5), (&octets(&server), 1_u64 << 40)] {
        for reads in [true, false] {
            let mut connection = Connection::to(&server);
            let head = append_head(stream);
            connection.write(format!(
                "{head}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
            ));
            if reads {
                assert!(connection.read_head().status >= 400);
            }
        }
    }
    octets(&server).append(OCTETS, "x");
    // The server hears of the last hang-up by now.
    thread::sleep(Duration::from_millis(300));
    let log = server.log().split_off(before);
    let noise = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    assert_eq!(log.lines().find(noise), None, "{log}");
}

/// RFC 9110 10.1.1: another expectation is 417.
fn an_unknown_expectation_is_417(server: &Server) {
    let stream = octets(server);
    let request = stream
        .post()
        .header("Content-Type", OCTETS)
        .header("Expect", "a-miracle");
    let answer = request.body("x").send();
    assert!(matches!(answer.status, 204 | 417), "{answer}");
}

/// HTTP case 6: the client reads the status of a refusal, not a reset.
fn the_refusal_of_a_large_body_can_be_read(server: &Server) {
    let absent = Stream::absent(server, Surface::Bucket);
    let stream = octets(server);
    let body = vec![b'x'; 12 << 20];
    for _ in 0..3 {
        let post = stream.post().header("Content-Type", OCTETS).body(&body);
        post.send().expect_error(413, ErrorCode::RequestTooLarge);
        let post = absent
            .post()
            .header("Content-Type", OCTETS)
            .body(&body[..4 << 20]);
        post.send().expect_error(404, ErrorCode::StreamNotFound);
    }
}

/// HTTP case 7: no body, a true length or none; a pipelined GET after it is answered right.
fn head_has_no_body_and_a_true_length(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "0123456789");
    let absent = Stream::absent(server, Surface::Bucket);
    let publish = stream.request("PUT", "/snapshot/5").body("snap");
    publish.send().expect(204);
    for head in [
        stream.head(),
        absent.head(),
        stream.request("HEAD", "?offset=abc"),
        stream.request("HEAD", "/snapshot/5"),
        stream.request("HEAD", "/snapshot/6"),
        stream.request("HEAD", "/bootstrap"),
        stream.request("HEAD", "/nothing/here"),
    ] {
        let mut connection = Connection::to(server);
        connection.write([head.encode(), stream.get("offset=4").encode()].concat());
        let answer = connection.read_response("HEAD");
        if let Some(length) = answer.header("content-length") {
            length.parse::<u64>().expect("a length");
            assert!(answer.header("transfer-encoding").is_none(), "{answer}");
        }
        connection
            .read_response("GET")
            .expect(200)
            .expect_body("456789");
    }
    let head = stream.request("HEAD", "/snapshot/5").send();
    assert!(
        [None, Some("4")].contains(&head.header("content-length")),
        "{head}"
    );
}

/// RFC 9112 9.3 for HTTP/1.0.
fn http_1_0_closes_unless_kept_alive(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    let mut connection = Connection::to(server);
    connection.write(format!("GET {} HTTP/1.0\r\n\r\n", stream.path()));
    connection
        .read_response("GET")
        .expect(200)
        .expect_body("abc");
    connection.expect_closed();
    let mut connection = Connection::to(server);
    let keep_alive = format!(
        "GET {} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        stream.path()
    );
    connection.write(&keep_alive);
    let answer = connection
        .read_response("GET")
        .expect(200)
        .expect_body("abc");
    if answer
        .header("connection")
        .is_some_and(|value| value.eq_ignore_ascii_case("keep-alive"))
    {
        connection.write(&keep_alive);
        connection
            .read_response("GET")
            .expect(200)
            .expect_body("abc");
    } else {
        connection.expect_closed();
    }
}

/// RFC 9112 6.1: no transfer coding for an HTTP/1.0 client; its end is the close.
fn http_1_0_gets_no_chunks(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, "text/plain", "abc");
    stream.close();
    for query in ["?offset=-1&live=sse", "/bootstrap"] {
        let mut connection = Connection::to(server);
        connection.write(format!("GET {}{query} HTTP/1.0\r\n\r\n", stream.path()));
        let answer = connection
            .read_response("GET")
            .expect(200)
            .expect_no_field("transfer-encoding");
        assert!(answer.text().contains("abc"), "{answer}");
        connection.expect_closed();
    }
}

/// RFC 9112 9.6.
fn connection_close_closes(server: &Server) {
    let stream = Stream::with_body(server, Surface::Bucket, OCTETS, "abc");
    for value in ["close", "Close", "x, close"] {
        let mut connection = stream.get("").header("Connection", value).open();
        let answer = connection.read_response("GET").expect(200);
        assert!(
            answer
                .expect_header("connection")
                .eq_ignore_ascii_case("close"),
            "{answer}"
        );
        connection.expect_closed();
    }
}

/// RFC 9112 3.2: an HTTP/1.1 request has one Host.
fn a_missing_or_double_host_is_400(server: &Server) {
    let stream = octets(server);
    for hosts in ["", "Host: a\r\nHost: b\r\n"] {
        let mut connection = Connection::to(server);
        connection.write(format!("GET {} HTTP/1.1\r\n{hosts}\r\n", stream.path()));
        connection.read_response("GET").expect(400);
    }
}

/// Issue 2: 414 and 431 as fits.
fn long_targets_are_414_and_large_heads_431(server: &Server) {
    let stream = octets(server);
    let mut connection = Connection::to(server);
    let target = format!("{}?x={}", stream.path(), "y".repeat(100_000));
    connection.write_if_open(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    connection.read_response("GET").expect(414);
    for headers in [
        format!("X: {}\r\n", "y".repeat(200_000)),
        "X-Many: y\r\n".repeat(1000),
    ] {
        let mut connection = Connection::to(server);
        connection.write_if_open(
            format!("GET {} HTTP/1.1\r\nHost: x\r\n{headers}\r\n", stream.path()).as_bytes(),
        );
        connection.read_response("GET").expect(431);
    }
}

/// Issue 2: 501 and 505 as fits; 405 with `Allow` for a method the route does not serve.
fn unknown_versions_and_methods_are_refused(server: &Server) {
    let stream = octets(server);
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/3.0"] {
        let mut connection = Connection::to(server);
        connection.write(format!(
            "GET {} {version}\r\nHost: x\r\n\r\n",
            stream.path()
        ));
        let answer = connection.read_response("GET");
        // RFC 9112 2.3: a higher minor version of 1 may be served as 1.1.
        let allowed: &[u16] = if version == "HTTP/1.2" {
            &[200, 400, 505]
        } else {
            &[400, 505]
        };
        assert!(allowed.contains(&answer.status), "{version}: {answer}");
    }
    for method in ["PATCH", "TRACE", "CONNECT", "BREW", "get"] {
        let answer = stream.request(method, "").send();
        assert!(
            matches!(answer.status, 400 | 405 | 501),
            "{method}: {answer}"
        );
        if answer.status == 405 {
            assert!(answer.expect_header("allow").contains("POST"), "{answer}");
        }
    }
}

/// RFC 9112 3.2: a target in no form is 400.
fn targets_without_a_slash_are_400(server: &Server) {
    for target in ["no-slash", "blackbox/s", "?offset=1"] {
        Request::new(server, "GET", target).send().expect(400);
    }
}

/// RFC 9110 9.3.7.
fn options_star_is_answered(server: &Server) {
    let answer = Request::new(server, "OPTIONS", "*").send();
    assert!(matches!(answer.status, 200 | 204 | 400), "{answer}");
}

/// A client that has said all it wants to say still hears the answer.
fn half_closed_clients_get_their_answer(server: &Server) {
    let stream = octets(server);
    let mut connection = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("abc")
        .open();
    connection.finish_writing();
    connection.read_response("POST").expect(204);
    connection.expect_closed();
}

/// Issue 6: abrupt resets at every point.
fn resets_leave_the_server_alone(server: &Server) {
    let stream = octets(server);
    let request = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("0123456789")
        .encode();
    for cut in (0..request.len() - 1).step_by(7) {
        let mut socket = TcpStream::connect(server.address()).expect("the server listens");
        socket
            .write_all(&request[..cut])
            .expect("the server takes what is sent");
        reset(socket);
    }
    assert_eq!(stream.head().send().next_offset(), offset(0));
    stream.append(OCTETS, "x");
}

/// Closes with a reset instead of a FIN.
fn reset(socket: TcpStream) {
    use std::os::fd::AsRawFd as _;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: setsockopt(2) reads `size` bytes of `linger`, which outlives the call, on a
    // descriptor that `socket` keeps open.
    unsafe {
        let size = libc::socklen_t::try_from(size_of::<libc::linger>()).expect("a small struct");
        let value = (&raw const linger).cast();
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            value,
            size,
        );
    }
    drop(socket);
}

/// RFC 9110 5.1.
fn header_names_do_not_depend_on_case(server: &Server) {
    let stream = octets(server);
    let mut connection = Connection::to(server);
    connection.write(format!(
        "POST {} HTTP/1.1\r\nhOsT: x\r\ncOnTeNt-TyPe:{OCTETS}\r\nCONTENT-LENGTH:3\r\nstream-closed:\t TRUE \r\n\r\nabc",
        stream.path()
    ));
    connection
        .read_response("POST")
        .expect(204)
        .expect_field("stream-closed", "true");
}

/// An error of the protocol is no error of the connection.
fn error_answers_keep_the_connection_when_they_can(server: &Server) {
    let stream = octets(server);
    let absent = Stream::absent(server, Surface::Bucket);
    let mut connection = Connection::to(server);
    for _ in 0..3 {
        connection.write(
            absent
                .post()
                .header("Content-Type", OCTETS)
                .body("abc")
                .encode(),
        );
        connection.read_response("POST").expect(404);
        connection.write(stream.get("offset=abc").encode());
        connection.read_response("GET").expect(400);
        connection.write(stream.get("").encode());
        connection.read_response("GET").expect(200);
    }
}

/// Issue 6: slow heads, slow bodies and idle connections end by themselves; 408 where an answer
/// makes sense.
#[test]
fn slow_clients_are_let_go() {
    let server = Options::new(1)
        .flag("head-timeout", "300ms")
        .flag("body-timeout", "300ms")
        .flag("idle-timeout", "300ms")
        .start();
    let stream = octets(&server);
    let half_head = &append_head(&stream)[..20];
    let half_body = format!("{}Content-Length: 10\r\n\r\nabc", append_head(&stream));
    for sent in [half_head, &half_body] {
        let mut connection = Connection::to(&server);
        connection.write(sent);
        match connection.try_read_response("POST") {
            Ok(answer) => assert_eq!(answer.status, 408, "{answer}"),
            Err(_closed) => {}
        }
        connection.expect_closed();
    }
    let mut idle = Connection::to(&server);
    idle.expect_closed();
    assert_eq!(stream.head().send().next_offset(), offset(0));
}

/// HTTP case 8: beyond the descriptor limit old connections are served, nothing spins, and it
/// recovers when they leave.
#[test]
fn connections_beyond_the_limit_wait_or_are_refused() {
    let server = Options::new(1).flag("connections-max", 20).start();
    let stream = octets(&server);
    let mut first = stream.head().open();
    first.read_response("HEAD").expect(200);
    let crowd: Vec<TcpStream> = (0..200)
        .filter_map(|_| TcpStream::connect(server.address()).ok())
        .collect();
    for _ in 0..10 {
        first.write(
            stream
                .post()
                .header("Content-Type", OCTETS)
                .body("x")
                .encode(),
        );
        first.read_response("POST").expect(204);
    }
    drop(crowd);
    eventually("new connections are served again", || {
        stream
            .get("")
            .try_send()
            .filter(|answer| answer.status == 200)
    });
}
