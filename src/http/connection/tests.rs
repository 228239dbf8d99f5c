//! The connection machine fed by hand: cases/http.md by number, keep-alive, bounds.

use super::splits::{BODY_BYTES_MAX, Seen, limits, request, serve};
use super::{
    BodyEvent, Connection, ConnectionLimits, Continue, DrainEvent, HeadEvent, Next, Phase,
    SKIP_BYTES_MAX,
};
use crate::base::limits::KIB;
use crate::http::parse::{Lookup, Method, Refusal};

/// A connection that has received `bytes`.
fn after(bytes: impl AsRef<[u8]>) -> Connection {
    let mut connection = Connection::new(limits());
    let bytes = bytes.as_ref();
    assert_eq!(connection.receive(bytes), bytes.len());
    connection
}

/// cases/http.md 1 to 3: a refusal ends the connection, and nothing behind it is a request.
#[test]
fn nothing_is_read_after_a_refusal() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
    for (start, refusal) in [
        (
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
            Refusal::LENGTH_AND_CODING,
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            Refusal::LENGTH_AND_CODING,
        ),
        (
            "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
            Refusal::LENGTH,
        ),
        ("Content-Length : 0\r\n\r\n", Refusal::FIELD_LINE),
        (
            "Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
            Refusal::CHUNK_SIZE,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\n0;x\n\r\n",
            Refusal::CHUNK_LINE,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\n80000000\r\n",
            Refusal::BODY_TOO_LARGE,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
            Refusal::BODY_TOO_LARGE,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
            Refusal::CHUNK_SIZE,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\n1\r\naX\r\n",
            Refusal::CHUNK_END,
        ),
        (
            "Transfer-Encoding: chunked\r\n\r\n0\r\nXX",
            Refusal::TRAILER,
        ),
    ] {
        let first = "PUT /ok HTTP/1.1\r\nHost: h\r\n\r\n";
        let bytes = format!("{first}POST /x HTTP/1.1\r\nHost: h\r\n{start}{SMUGGLED}").into_bytes();
        let expected = [request(Method::Put, "/ok", ""), Seen::Refused(refusal)];
        for cut in 0..=bytes.len() {
            assert_eq!(
                serve(limits(), &bytes, &[cut]),
                expected,
                "{start:?} cut at {cut}"
            );
        }
        let mut connection = after(&bytes[first.len()..]);
        if connection.next_head() == HeadEvent::Head {
            assert_eq!(connection.accept_body(BODY_BYTES_MAX), Ok(Continue::No));
            while let BodyEvent::Piece(_) = connection.next_body() {}
        }
        assert!(connection.should_close());
        assert_eq!(connection.finish(), Next::Drain);
        assert_eq!(connection.next_head(), HeadEvent::Closed);
    }
}

/// cases/http.md 5: the final status and no 100 for what is refused; a 100 only for a client that
/// waits for it.
#[test]
fn a_100_is_sent_only_when_it_is_waited_for() {
    let head = |version, fields: &str| {
        format!("POST /x HTTP/{version}\r\nHost: h\r\nExpect: 100-continue\r\n{fields}\r\n")
    };
    let accept = |bytes: &str| {
        let mut connection = after(bytes);
        assert_eq!(connection.next_head(), HeadEvent::Head);
        connection.accept_body(BODY_BYTES_MAX)
    };
    assert_eq!(
        accept(&head("1.1", "Content-Length: 5\r\n")),
        Ok(Continue::Send)
    );
    assert_eq!(
        accept(&head("1.1", "Transfer-Encoding: chunked\r\n")),
        Ok(Continue::Send)
    );
    assert_eq!(
        accept(&head("1.0", "Content-Length: 5\r\n")),
        Ok(Continue::No)
    );
    assert_eq!(
        accept(&head("1.1", "Content-Length: 0\r\n")),
        Ok(Continue::No)
    );
    assert_eq!(accept(&head("1.1", "")), Ok(Continue::No));
    let begun = head("1.1", "Content-Length: 5\r\n") + "h";
    assert_eq!(accept(&begun), Ok(Continue::No));
    let too_large = head("1.1", "Content-Length: 1001\r\n");
    assert_eq!(accept(&too_large), Err(Refusal::BODY_TOO_LARGE));

    // Refused while the client waits: it may send the body or not, so the connection ends.
    let mut connection = after(head("1.1", "Content-Length: 5\r\n"));
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.reject();
    assert!(connection.should_close());
    assert_eq!(connection.finish(), Next::Drain);
    assert_eq!(connection.phase(), Phase::Draining);
    // It hangs up: the end, without noise.
    connection.receive_end();
    assert_eq!(connection.drain(), DrainEvent::Done);

    // The same when the body is there already: the answer does not depend on how the bytes came.
    let next = "GET /y HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut connection = after(head("1.1", "Content-Length: 5\r\n") + "hello" + next);
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.reject();
    assert!(connection.should_close());
    assert_eq!(connection.finish(), Next::Drain);
}

/// cases/http.md 6: the client of a large body that is refused is read for a while, not reset.
#[test]
fn a_large_refused_body_is_drained_within_bounds() {
    let drain_bytes_max = 100_000;
    let mut connection = Connection::new(ConnectionLimits {
        drain_bytes_max,
        ..limits()
    });
    connection.receive(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nabc");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.accept_body(1000), Err(Refusal::BODY_TOO_LARGE));
    assert!(connection.should_close());
    assert_eq!(connection.finish(), Next::Drain);
    let mut sent = 3;
    while connection.drain() == DrainEvent::NeedInput {
        assert!(sent < drain_bytes_max, "the bound does not hold");
        sent += connection.receive(&[b'x'; 1000]) as u64;
    }
    assert_eq!(sent, 100_003);
    assert_eq!(connection.phase(), Phase::Closed);
    assert_eq!(connection.memory_bytes(), 0);
}

#[test]
fn a_short_refused_body_is_skipped() {
    let post =
        |length: u64| format!("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let mut connection = after(post(SKIP_BYTES_MAX) + "abc");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.reject();
    assert!(!connection.should_close());
    assert_eq!(connection.phase(), Phase::Answering);
    assert_eq!(connection.finish(), Next::Head);
    assert_eq!(connection.phase(), Phase::Body);
    let mut rest = vec![b'x'; SKIP_BYTES_MAX as usize - 3];
    rest.extend_from_slice(b"GET /y HTTP/1.1\r\nHost: h\r\n\r\n");
    for piece in rest.chunks(1000) {
        assert_eq!(connection.next_head(), HeadEvent::NeedInput);
        assert_eq!(connection.receive(piece), piece.len());
    }
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.target(), b"/y");

    let mut connection = after(post(SKIP_BYTES_MAX + 1));
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.reject();
    assert!(connection.should_close());

    // Chunks that are all here can be passed; more of them cannot be known.
    let post = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    for (rest, close) in [("0\r\n\r\n", false), ("", true), ("zz", true)] {
        let mut connection = after([post, rest].concat());
        assert_eq!(connection.next_head(), HeadEvent::Head);
        connection.reject();
        assert_eq!(connection.should_close(), close, "{rest}");
    }
}

#[test]
fn a_body_can_be_rejected_half_way() {
    let mut connection = after("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.accept_body(BODY_BYTES_MAX), Ok(Continue::No));
    assert_eq!(connection.next_body(), BodyEvent::Piece(b"half"));
    assert_eq!(connection.next_body(), BodyEvent::NeedInput);
    connection.reject();
    assert!(!connection.should_close());
    assert_eq!(connection.finish(), Next::Head);
    assert_eq!(
        connection.receive(b"restGET / HTTP/1.1\r\nHost: h\r\n\r\n"),
        30 + 1
    );
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.method(), Method::Get);
}

#[test]
fn the_client_decides_about_the_connection() {
    for (start, next) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", Next::Head),
        (
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
            Next::Close,
        ),
        ("GET / HTTP/1.0\r\n\r\n", Next::Close),
        (
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            Next::Head,
        ),
        // Something behind it: a close would reset it and the answer with it.
        ("GET / HTTP/1.0\r\n\r\nGET", Next::Drain),
    ] {
        let mut connection = after(start);
        assert_eq!(connection.next_head(), HeadEvent::Head);
        connection.reject();
        assert_eq!(connection.should_close(), next != Next::Head, "{start}");
        assert_eq!(connection.finish(), next, "{start}");
    }
    let mut connection = after("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.close_after_this();
    connection.reject();
    assert!(connection.should_close());
    assert_eq!(connection.finish(), Next::Close);
    assert_eq!(connection.next_head(), HeadEvent::Closed);
}

#[test]
fn phases_say_whom_the_connection_waits_for() {
    let mut connection = Connection::new(limits());
    let mut feed = |bytes: &[u8], phase| {
        connection.receive(bytes);
        match connection.phase() {
            Phase::Idle | Phase::Head => drop(connection.next_head()),
            Phase::Body => while let BodyEvent::Piece(_) = connection.next_body() {},
            _ => {}
        }
        if connection.phase() == Phase::Answering && phase == Phase::Body {
            assert_eq!(connection.accept_body(BODY_BYTES_MAX), Ok(Continue::No));
        }
        assert_eq!(connection.phase(), phase, "{}", bytes.escape_ascii());
    };
    feed(b"", Phase::Idle);
    // An empty line is no request: an old client may send one behind a body.
    feed(b"\r", Phase::Idle);
    feed(b"\n", Phase::Idle);
    feed(b"P", Phase::Head);
    feed(
        b"OST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n",
        Phase::Body,
    );
    feed(b"hell", Phase::Body);
    feed(b"o", Phase::Answering);
    assert_eq!(connection.finish(), Next::Head);
    assert_eq!(connection.phase(), Phase::Idle);
}

#[test]
fn the_head_stays_while_the_body_comes_and_goes() {
    let mut connection = Connection::new(limits());
    connection.receive(
        b"PUT /name HTTP/1.1\r\nHost: h\r\nX-Mark: kept\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.accept_body(u64::MAX), Ok(Continue::No));
    for _ in 0..200 {
        assert_eq!(connection.receive(b"400\r\n"), 5);
        assert_eq!(connection.receive(&[b'x'; 1024]), 1024);
        assert_eq!(connection.receive(b"\r\n"), 2);
        let mut payload = 0;
        while let BodyEvent::Piece(piece) = connection.next_body() {
            payload += piece.len();
        }
        assert_eq!(payload, 1024);
        assert_eq!(connection.target(), b"/name");
        assert_eq!(connection.header("x-mark"), Lookup::Once(b"kept"));
    }
    assert!(
        connection.memory_bytes() <= 8 * KIB,
        "a client that sends little holds little"
    );
}

#[test]
fn a_full_buffer_has_no_space() {
    let mut connection = after("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.reject();
    // A flood while the owner is at work.
    let mut taken = 0;
    loop {
        let count = connection.receive(&[b'x'; 512]);
        taken += count;
        if count < 512 {
            break;
        }
    }
    assert!(connection.space().is_empty());
    assert!(taken <= 8 * KIB, "{taken}");
    assert!(connection.memory_bytes() <= 9 * KIB);
}

#[test]
fn an_idle_connection_holds_nothing() {
    let mut connection = Connection::new(limits());
    assert_eq!(connection.memory_bytes(), 0);
    connection.receive(b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGE");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    connection.release();
    assert_eq!(connection.target(), b"/", "released in use");
    connection.reject();
    assert_eq!(connection.finish(), Next::Head);
    connection.release();
    connection.receive(b"T /y HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.target(), b"/y");
    connection.reject();
    assert_eq!(connection.finish(), Next::Head);
    connection.release();
    assert_eq!(connection.memory_bytes(), 0);
    assert!(
        size_of::<Connection>() <= 384,
        "{}",
        size_of::<Connection>()
    );
}

#[test]
fn a_body_may_pass_the_buffer_by() {
    let mut connection = after("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(connection.next_head(), HeadEvent::Head);
    assert_eq!(connection.accept_body(10), Ok(Continue::No));
    assert_eq!(
        connection.direct_bytes_max(),
        0,
        "the start is still in the buffer"
    );
    assert_eq!(connection.next_body(), BodyEvent::Piece(b"abc"));
    assert_eq!(connection.direct_bytes_max(), 7);
    connection.received_direct(7);
    assert_eq!(connection.next_body(), BodyEvent::Done);
    assert_eq!(connection.finish(), Next::Head);
    connection.receive(b"GET /y HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(connection.next_head(), HeadEvent::Head);
}

/// A driver that reads a little at a time has a buffer of about that size, however much there is.
#[test]
fn small_reads_keep_the_buffer_small() {
    const READ_BYTES: usize = 4 * KIB;
    let mut connection = Connection::new(limits());
    let requests = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(4 * KIB);
    let mut rest = requests.as_slice();
    let mut served = 0;
    while !rest.is_empty() {
        let space = connection.space_up_to(READ_BYTES);
        let (read, later) = rest.split_at(space.len().min(rest.len()));
        assert!((1..=READ_BYTES).contains(&read.len()));
        space[..read.len()].copy_from_slice(read);
        connection.received(read.len());
        rest = later;
        while connection.next_head() == HeadEvent::Head {
            connection.reject();
            assert_eq!(connection.finish(), Next::Head);
            served += 1;
        }
        assert!(connection.memory_bytes() <= 3 * READ_BYTES);
    }
    assert_eq!(served, 4 * KIB);
}
