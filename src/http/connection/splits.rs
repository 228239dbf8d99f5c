//! What an owner sees of a connection must not depend on how the bytes were cut (cases/http.md 9).
//!
//! Pipelines written by hand, mutated, and generated together with what they mean; each is served
//! whole and in pieces.

use super::{
    BodyEvent, Connection, ConnectionLimits, HeadEvent, HeadLimits, Next, input::INPUT_BYTES_MIN,
};
use crate::base::limits::Limits;
use crate::base::rng::Rng;
use crate::http::encode::{chunk, last_chunk};
use crate::http::parse::{Method, Refusal};

/// Limit of the bodies that the owner here takes, in bytes.
pub(super) const BODY_BYTES_MAX: u64 = 1000;

pub(super) fn limits() -> ConnectionLimits {
    ConnectionLimits::from(&Limits::default())
}

/// What an owner that takes every request in full gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Request {
        method: Method,
        target: Vec<u8>,
        body: Vec<u8>,
        close: bool,
    },
    Refused(Refusal),
    Truncated,
    Closed,
}

/// Such an owner.
struct Owner {
    connection: Connection,
    /// The target and the body so far of the request in hand.
    request: Option<(Method, Vec<u8>, Vec<u8>)>,
    seen: Vec<Seen>,
    over: bool,
}

impl Owner {
    fn new(limits: ConnectionLimits) -> Self {
        Self {
            connection: Connection::new(limits),
            request: None,
            seen: Vec::new(),
            over: false,
        }
    }

    fn finish(&mut self, seen: Seen) {
        self.seen.push(seen);
        self.over = self.connection.finish() != Next::Head;
    }

    /// Goes on until input is needed or the connection is over.
    fn turn(&mut self) {
        while !self.over {
            if self.request.is_none() {
                match self.connection.next_head() {
                    HeadEvent::NeedInput => return,
                    HeadEvent::Head => {
                        let (method, target) =
                            (self.connection.method(), self.connection.target().to_vec());
                        match self.connection.accept_body(BODY_BYTES_MAX) {
                            Ok(_) => self.request = Some((method, target, Vec::new())),
                            Err(refusal) => self.finish(Seen::Refused(refusal)),
                        }
                    }
                    HeadEvent::Refused(refusal) => self.finish(Seen::Refused(refusal)),
                    HeadEvent::Truncated => {
                        self.seen.push(Seen::Truncated);
                        self.over = true;
                    }
                    HeadEvent::Closed => {
                        self.seen.push(Seen::Closed);
                        self.over = true;
                    }
                }
                continue;
            }
            let target_before = self.connection.target().to_vec();
            match self.connection.next_body() {
                BodyEvent::NeedInput => return,
                BodyEvent::Piece(piece) => {
                    assert!(!piece.is_empty());
                    self.request.as_mut().unwrap().2.extend_from_slice(piece);
                }
                BodyEvent::Done => {
                    let (method, target, body) = self.request.take().unwrap();
                    assert_eq!(target_before, target, "the head moved under the body");
                    let close = self.connection.should_close();
                    self.finish(Seen::Request {
                        method,
                        target,
                        body,
                        close,
                    });
                }
                BodyEvent::Refused(refusal) => {
                    self.request = None;
                    self.finish(Seen::Refused(refusal));
                }
                BodyEvent::Truncated => {
                    self.request = None;
                    self.finish(Seen::Truncated);
                }
            }
        }
    }
}

/// Feeds `bytes` cut at `cuts`, then the end.
pub(super) fn serve(limits: ConnectionLimits, bytes: &[u8], cuts: &[usize]) -> Vec<Seen> {
    let mut owner = Owner::new(limits);
    let mut at = 0;
    for &cut in cuts.iter().chain([&bytes.len()]) {
        while at < cut && !owner.over {
            let taken = owner.connection.receive(&bytes[at..cut]);
            assert!(taken > 0, "an owner that takes everything left no room");
            at += taken;
            owner.turn();
            assert!(owner.connection.input.memory_bytes() <= limits.input_bytes_max());
        }
    }
    owner.connection.receive_end();
    owner.turn();
    owner.seen
}

pub(super) fn request(method: Method, target: &str, body: &str) -> Seen {
    Seen::Request {
        method,
        target: target.into(),
        body: body.into(),
        close: false,
    }
}

const PIPELINE: &[u8] = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\
    PUT /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: v\r\n\r\n\
    HEAD /c HTTP/1.1\r\nHost: h\r\n\r\n\
    \r\nGET http://h/d HTTP/1.1\r\nHost: h\r\n\r\n";

/// cases/http.md 4, 7 and 9: pipelined requests, one after a HEAD, cut anywhere, once or twice or
/// at every byte.
#[test]
fn pipelined_requests_do_not_depend_on_splits() {
    let expected = [
        request(Method::Post, "/a", "hello"),
        request(Method::Put, "/b", "abcde"),
        request(Method::Head, "/c", ""),
        request(Method::Get, "http://h/d", ""),
        Seen::Closed,
    ];
    for first in 0..=PIPELINE.len() {
        assert_eq!(
            serve(limits(), PIPELINE, &[first]),
            expected,
            "cut at {first}"
        );
        for second in (first..=PIPELINE.len()).step_by(7) {
            let cuts = [first, second];
            assert_eq!(
                serve(limits(), PIPELINE, &cuts),
                expected,
                "cut at {cuts:?}"
            );
        }
    }
    let bytewise: Vec<_> = (0..PIPELINE.len()).collect();
    assert_eq!(serve(limits(), PIPELINE, &bytewise), expected);
}

#[test]
fn an_end_inside_a_request_is_no_request() {
    let whole = PIPELINE.len();
    for length in 0..whole {
        let seen = serve(limits(), &PIPELINE[..length], &[]);
        let (last, before) = seen.split_last().unwrap();
        assert!(
            matches!(last, Seen::Truncated | Seen::Closed),
            "{length}: {last:?}"
        );
        assert!(
            before
                .iter()
                .all(|seen| matches!(seen, Seen::Request { .. }))
        );
    }
    assert_eq!(serve(limits(), b"", &[]), [Seen::Closed]);
    assert_eq!(serve(limits(), b"\r\n", &[]), [Seen::Closed]);
    assert_eq!(serve(limits(), b"G", &[]), [Seen::Truncated]);
}

/// Appends a random request that is right, and says what the owner must see of it.
fn push_request(rng: &mut Rng, out: &mut Vec<u8>) -> Seen {
    let (name, method) = [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("PUT", Method::Put),
        ("POST", Method::Post),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("get", Method::Other),
    ][rng.below(7) as usize];
    let target = format!("/{}", "s/%20".repeat(rng.below(5) as usize));
    let body: Vec<u8> = (0..rng.below(BODY_BYTES_MAX.min(50) + 1))
        .map(|_| rng.next_u64() as u8)
        .collect();
    let body = match rng.below(8) {
        0 => body.repeat(BODY_BYTES_MAX as usize / body.len().max(1)),
        _ => body,
    };
    let mut fields = vec![format!(
        "Host: {}",
        ["", "h", "[::1]:80"][rng.below(3) as usize]
    )];
    for _ in 0..rng.below(20) {
        fields.push(format!(
            "X-{}:{}",
            rng.below(10),
            " \tvalue\u{e9}\t".repeat(rng.below(3) as usize)
        ));
    }
    let chunked = rng.below(2) == 0;
    match (chunked, body.is_empty()) {
        (true, _) => fields.push("Transfer-Encoding: chunked".to_owned()),
        (false, true) if rng.below(2) == 0 => {}
        (false, _) => fields.push(format!("content-length: {}", body.len())),
    }
    let last = fields.len() as u64;
    fields.swap(0, rng.below(last) as usize);

    out.extend_from_slice("\r\n".repeat(rng.below(3) as usize).as_bytes());
    out.extend_from_slice(format!("{name} {target} HTTP/1.1\r\n").as_bytes());
    for field in fields {
        out.extend_from_slice(format!("{field}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if chunked {
        let mut rest = &body[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + rng.below(rest.len() as u64) as usize);
            chunk(out, piece);
            rest = behind;
        }
        last_chunk(out);
    } else {
        out.extend_from_slice(&body);
    }
    Seen::Request {
        method,
        target: target.into_bytes(),
        body,
        close: false,
    }
}

/// Random cuts of `length` bytes, in order.
fn random_cuts(rng: &mut Rng, length: usize) -> Vec<usize> {
    let mut cuts: Vec<_> = (0..rng.below(6))
        .map(|_| rng.below(length as u64) as usize)
        .collect();
    cuts.sort_unstable();
    cuts
}

/// Generated pipelines: the owner sees what was meant, however it is cut.
#[test]
fn generated_pipelines_mean_what_they_say() {
    let seed = 0x7468_6171;
    println!("seed {seed}");
    let mut rng = Rng::from_seed(seed);
    for round in 0..500 {
        let mut bytes = Vec::new();
        let count = rng.below(8);
        let mut expected: Vec<_> = (0..count)
            .map(|_| push_request(&mut rng, &mut bytes))
            .collect();
        expected.push(Seen::Closed);
        let length = bytes.len().max(1);
        for cuts in [
            Vec::new(),
            random_cuts(&mut rng, length),
            (0..length).step_by(INPUT_BYTES_MIN).collect(),
            (0..length).collect(),
        ] {
            let seen = serve(limits(), &bytes, &cuts);
            assert_eq!(
                seen,
                expected,
                "seed {seed} round {round}: {}",
                bytes.escape_ascii()
            );
        }
    }
}

/// Mutated pipelines: nothing panics, and no split changes what the owner sees.
#[test]
fn no_split_changes_what_is_seen() {
    let seed = 0x7468_6170;
    println!("seed {seed}");
    let mut rng = Rng::from_seed(seed);
    let interesting = b"\r\n :;,0159afGP/\0\x80";
    let tight = ConnectionLimits {
        head: HeadLimits {
            request_line_bytes_max: 40,
            head_bytes_max: 100,
        },
        drain_bytes_max: 100,
    };
    for round in 0..5_000 {
        let mut bytes = PIPELINE.to_vec();
        for _ in 0..rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            let byte = interesting[rng.below(interesting.len() as u64) as usize];
            match rng.below(3) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        for limits in [limits(), tight] {
            let whole = serve(limits, &bytes, &[]);
            let cuts = random_cuts(&mut rng, bytes.len());
            assert_eq!(
                serve(limits, &bytes, &cuts),
                whole,
                "seed {seed} round {round} cuts {cuts:?} of {}",
                bytes.escape_ascii()
            );
        }
        let bytewise: Vec<_> = (0..bytes.len()).collect();
        assert_eq!(
            serve(limits(), &bytes, &bytewise),
            serve(limits(), &bytes, &[]),
            "round {round}: {}",
            bytes.escape_ascii()
        );
    }
}
