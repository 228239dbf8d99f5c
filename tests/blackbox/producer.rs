//! Idempotent producers: Base 5.2.1, Decisions "Producers", and the typed
//! answers of `ursula-headers`.

use std::thread;

use ursula_headers::{
    ClosedBy, Delivery, ErrorCode, ProducerAnswer, WriteKind, WriteOutcome, classify,
};

use crate::common::http::{Request, Response};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, SURFACES, Stream, Surface, TEXT, offset};

at_1_and_4_shards![
    first_write_is_200_and_its_repeat_204,
    an_older_repeat_is_a_success_without_a_range,
    a_gap_is_409,
    a_new_producer_starts_at_0,
    a_new_epoch_starts_at_0,
    a_claim_fences_the_older_epoch,
    leading_zeros_are_accepted,
    malformed_headers_are_400,
    the_largest_integers_are_in_range,
    ids_are_bounded,
    headers_come_together_or_not_at_all,
    producers_do_not_share_sequences,
    a_digest_is_verified,
    a_used_key_with_another_digest_is_a_conflict,
    closing_write_can_be_repeated,
    close_only_with_a_producer,
    a_repeat_is_204_whatever_its_stream_seq,
    content_type_comes_before_the_producer,
    a_refused_write_does_not_advance_the_producer,
    a_refused_stream_seq_does_not_advance_the_producer,
    recreated_stream_knows_no_producer,
    out_of_order_arrivals_apply_once_in_order,
];

/// A write of producer `id` to `stream`.
fn write(stream: &Stream<'_>, id: &str, epoch: u64, seq: u64, body: &str) -> Request {
    stream
        .post()
        .header("Content-Type", OCTETS)
        .header("Producer-Id", id)
        .header("Producer-Epoch", epoch)
        .header("Producer-Seq", seq)
        .body(body)
}

/// The answer as the ecosystem's own parser reads it.
#[track_caller]
fn typed(answer: &Response) -> ProducerAnswer {
    ProducerAnswer::parse(answer.status, answer.pairs())
        .unwrap_or_else(|error| panic!("{error}: {answer}"))
        .unwrap_or_else(|| panic!("no producer answer: {answer}"))
}

/// Asserts a receipt over `start..next`.
#[track_caller]
fn expect_receipt(answer: &Response, delivery: Delivery, seq: u64, start: usize, next: usize) {
    let ProducerAnswer::Receipt {
        delivery: got,
        seq: top,
        receipt,
        ..
    } = typed(answer)
    else {
        panic!("no receipt: {answer}");
    };
    let range = (receipt.start().get(), receipt.next().get());
    assert_eq!((got, top.get()), (delivery, seq), "of {answer}");
    assert_eq!(range, (start as u64, next as u64), "of {answer}");
}

/// Base 5.2.1: 200 for new data, 204 for a repeat; Decisions, Producers: both carry the range.
fn first_write_is_200_and_its_repeat_204(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let first = write(&stream, "p", 0, 0, "abc").send().expect(200);
        expect_receipt(&first, Delivery::Applied, 0, 0, 3);
        let outcome = classify(
            WriteKind::Producer,
            first.status,
            first.pairs(),
            &first.body,
        );
        assert_eq!(outcome, WriteOutcome::Applied);
        let repeat = write(&stream, "p", 0, 0, "abc").send().expect(204);
        expect_receipt(&repeat, Delivery::Repeat, 0, 0, 3);
        let second = write(&stream, "p", 0, 1, "de").send().expect(200);
        expect_receipt(&second, Delivery::Applied, 1, 3, 5);
        assert_eq!(stream.read_all(), b"abcde");
    }
}

/// Base 5.2.1: any sequence at or below the last is a duplicate; without a kept range it is
/// `receipt-evicted`, as the peer answers.
fn an_older_repeat_is_a_success_without_a_range(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for seq in 0..5 {
            write(&stream, "p", 0, seq, "x").send().expect(200);
        }
        let old = write(&stream, "p", 0, 1, "x").send().expect(204);
        match typed(&old) {
            ProducerAnswer::ReceiptEvicted { seq, .. } => assert_eq!(seq.get(), 4),
            // A server that keeps more ranges may name this write's own.
            _ => expect_receipt(&old, Delivery::Repeat, 4, 1, 2),
        }
        assert_eq!(stream.read_all(), b"xxxxx");
    }
}

/// Base 5.2.1: a gap is 409 with the expected and the received sequence.
fn a_gap_is_409(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a").send().expect(200);
        let gap = write(&stream, "p", 0, 3, "d").send();
        let gap = gap.expect_error(409, ErrorCode::ProducerSeqConflict);
        let ProducerAnswer::SeqGap { expected, received } = typed(&gap) else {
            panic!("no gap: {gap}");
        };
        assert_eq!((expected.get(), received.get()), (1, 3));
        assert_eq!(stream.read_all(), b"a");
    }
}

/// Base 5.2.1: sequences start at 0 for a producer the stream does not know.
fn a_new_producer_starts_at_0(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let gap = write(&stream, "p", 0, 5, "x").send();
        let gap = gap.expect_error(409, ErrorCode::ProducerSeqConflict);
        let ProducerAnswer::SeqGap { expected, received } = typed(&gap) else {
            panic!("no gap: {gap}");
        };
        assert_eq!((expected.get(), received.get()), (0, 5));
    }
}

/// Base 5.2.1: a higher epoch whose first sequence is not 0 is 400.
fn a_new_epoch_starts_at_0(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a").send().expect(200);
        let refused = write(&stream, "p", 2, 1, "b").send();
        let refused = refused.expect_error(400, ErrorCode::InvalidProducer);
        assert_eq!(typed(&refused), ProducerAnswer::EpochNotClaimed);
        // Nothing was claimed: the old epoch goes on.
        write(&stream, "p", 0, 1, "c").send().expect(200);
        assert_eq!(stream.read_all(), b"ac");
    }
}

/// Base 5.2.1, zombie fencing: after a claim the older epoch is 403 with the current one.
fn a_claim_fences_the_older_epoch(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a").send().expect(200);
        write(&stream, "p", 0, 1, "b").send().expect(200);
        let claim = write(&stream, "p", 1, 0, "c").send().expect(200);
        let repeat = write(&stream, "p", 1, 0, "c").send().expect(204);
        for answer in [&claim, &repeat] {
            let ProducerAnswer::Receipt { epoch, .. } = typed(answer) else {
                panic!("no receipt: {answer}");
            };
            assert_eq!(epoch.epoch().get(), 1);
            let closed = epoch
                .closed_epoch()
                .expect("a claim names the epoch it closed");
            assert_eq!((closed.epoch.get(), closed.seq.get()), (0, 1));
        }
        for seq in [0, 1, 2] {
            let zombie = write(&stream, "p", 0, seq, "z").send();
            let zombie = zombie.expect_error(403, ErrorCode::ProducerEpochClosed);
            assert_eq!(zombie.expect_header("producer-epoch"), "1");
            let ProducerAnswer::EpochClosed(closure) = typed(&zombie) else {
                panic!("no closed epoch: {zombie}");
            };
            assert_eq!(closure.by(), ClosedBy::Claim);
            assert_eq!(closure.epoch().get(), 1);
        }
        assert_eq!(stream.read_all(), b"abc");
    }
}

/// `ursula-headers`, `lib.rs`: a request's epoch and sequence may carry leading zeros.
fn leading_zeros_are_accepted(server: &Server) {
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    let answer = stream
        .post()
        .header("Content-Type", OCTETS)
        .header("Producer-Id", "p")
        .header("Producer-Epoch", "00")
        .header("Producer-Seq", "000")
        .body("x")
        .send()
        .expect(200);
    expect_receipt(&answer, Delivery::Applied, 0, 0, 1);
}

/// Base 5.2.1: integers are non-negative and at most 2^53-1.
fn malformed_headers_are_400(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for value in [
            "-1",
            "+1",
            "1.0",
            "1e3",
            "abc",
            "",
            "9007199254740992",
            "18446744073709551616",
        ] {
            for (epoch, seq) in [(value, "0"), ("0", value)] {
                let answer = stream
                    .post()
                    .header("Content-Type", OCTETS)
                    .header("Producer-Id", "p")
                    .header("Producer-Epoch", epoch)
                    .header("Producer-Seq", seq)
                    .body("x")
                    .send();
                assert_eq!(answer.status, 400, "epoch {epoch:?}, seq {seq:?}: {answer}");
                assert_eq!(answer.error_body().code, ErrorCode::InvalidProducer);
            }
        }
        assert_eq!(stream.read_all(), b"");
    }
}

/// Base 5.2.1: 2^53-1 itself is in range.
fn the_largest_integers_are_in_range(server: &Server) {
    const LARGEST: u64 = (1 << 53) - 1;
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, LARGEST, "x").send().expect(409);
        write(&stream, "p", LARGEST, 0, "x").send().expect(200);
        assert_eq!(stream.read_all(), b"x");
    }
}

/// Base 5.2.1: an id is not empty; Decisions, Producers: and has at most 256 bytes.
fn ids_are_bounded(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for id in ["", &"i".repeat(257)] {
            write(&stream, id, 0, 0, "x")
                .send()
                .expect_error(400, ErrorCode::InvalidProducer);
        }
        write(&stream, &"i".repeat(256), 0, 0, "x")
            .send()
            .expect(200);
        // The typed crate: inner spaces are part of an id.
        write(&stream, "order service 1", 0, 0, "y")
            .send()
            .expect(200);
    }
}

/// Base 5.2.1: all three headers or none; repeated ones are malformed.
fn headers_come_together_or_not_at_all(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let all = [
            ("Producer-Id", "p"),
            ("Producer-Epoch", "0"),
            ("Producer-Seq", "0"),
        ];
        for present in 1..7_usize {
            let mut post = stream.post().header("Content-Type", OCTETS).body("x");
            for (index, (name, value)) in all.iter().enumerate() {
                if present & (1 << index) != 0 {
                    post = post.header(name, value);
                }
            }
            post.send().expect_error(400, ErrorCode::InvalidProducer);
        }
        write(&stream, "p", 0, 0, "x")
            .header("Producer-Seq", "1")
            .send()
            .expect(400);
        assert_eq!(stream.read_all(), b"");
    }
}

/// Base 5.2.1: state is kept for each producer.
fn producers_do_not_share_sequences(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        for seq in 0..3 {
            for id in ["a", "b"] {
                write(&stream, id, 0, seq, id).send().expect(200);
            }
        }
        assert_eq!(stream.read_all(), b"ababab");
    }
}

/// Decisions, Producers: an optional `Producer-Digest` (BLAKE3 of the body) is verified.
fn a_digest_is_verified(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let digest = blake3::hash(b"abc").to_hex();
        let with =
            |digest: &str| write(&stream, "p", 0, 0, "abc").header("Producer-Digest", digest);
        let other = blake3::hash(b"abd").to_hex();
        with(&other)
            .send()
            .expect_error(400, ErrorCode::ProducerDigestMismatch);
        for malformed in ["abc", &digest.to_uppercase(), &digest[..63]] {
            with(malformed)
                .send()
                .expect_error(400, ErrorCode::InvalidProducer);
        }
        assert_eq!(stream.read_all(), b"");
        with(&digest).send().expect(200);
        with(&digest).send().expect(204);
        assert_eq!(stream.read_all(), b"abc");
    }
}

/// Decisions, Producers: a used key that names another digest is 403 `key-conflict`.
fn a_used_key_with_another_digest_is_a_conflict(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        let send = |body: &str| {
            let digest = blake3::hash(body.as_bytes()).to_hex();
            write(&stream, "p", 0, 0, body)
                .header("Producer-Digest", digest)
                .send()
        };
        send("abc").expect(200);
        let conflict = send("abd").expect_error(403, ErrorCode::ProducerKeyConflict);
        assert!(
            matches!(typed(&conflict), ProducerAnswer::KeyConflict { epoch } if epoch.get() == 0)
        );
        assert_eq!(stream.read_all(), b"abc");
    }
}

/// Base 5.2.1, Stream Closure: the tuple that closed is a duplicate, everything else 409.
fn closing_write_can_be_repeated(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a").send().expect(200);
        let closing = write(&stream, "p", 0, 1, "b").header("Stream-Closed", "true");
        for (status, delivery) in [(200, Delivery::Applied), (204, Delivery::Repeat)] {
            let answer = closing
                .send()
                .expect(status)
                .expect_field("stream-closed", "true");
            expect_receipt(&answer, delivery, 1, 1, 2);
        }
        for other in [
            write(&stream, "p", 0, 2, "c"),
            write(&stream, "p", 0, 0, "a"),
            write(&stream, "q", 0, 0, "d"),
            write(&stream, "p", 0, 2, "c").header("Stream-Closed", "true"),
        ] {
            other
                .send()
                .expect_error(409, ErrorCode::StreamClosed)
                .expect_field("stream-closed", "true")
                .expect_field("stream-next-offset", &offset(2));
        }
        assert_eq!(stream.read_all(), b"ab");
    }
}

/// Base 5.3 and 5.2.1, Close without append: 204 at once and again, as the official suite has it
/// (`idempotent-close-only-with-producer-headers`).
fn close_only_with_a_producer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::with_body(server, surface, OCTETS, "a");
        let close = stream
            .post()
            .header("Producer-Id", "p")
            .header("Producer-Epoch", "0")
            .header("Producer-Seq", "0")
            .header("Stream-Closed", "true");
        for _ in 0..2 {
            let answer = close
                .send()
                .expect(204)
                .expect_field("stream-closed", "true");
            expect_receipt(&answer, Delivery::Repeat, 0, 1, 1);
        }
        stream
            .head()
            .send()
            .expect(200)
            .expect_field("stream-closed", "true");
    }
}

/// Decisions, Order of checks: a duplicate is 204 whatever its `Stream-Seq`.
fn a_repeat_is_204_whatever_its_stream_seq(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a")
            .header("Stream-Seq", "5")
            .send()
            .expect(200);
        for seq in ["5", "1", "9"] {
            write(&stream, "p", 0, 0, "a")
                .header("Stream-Seq", seq)
                .send()
                .expect(204);
        }
        // The repeat with 9 moved nothing.
        write(&stream, "p", 0, 1, "b")
            .header("Stream-Seq", "6")
            .send()
            .expect(200);
        assert_eq!(stream.read_all(), b"ab");
    }
}

/// Decisions, Order of checks: content type, then producer.
fn content_type_comes_before_the_producer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        stream
            .post()
            .header("Content-Type", TEXT)
            .header("Producer-Id", "p")
            .header("Producer-Epoch", "0")
            .header("Producer-Seq", "7")
            .body("x")
            .send()
            .expect_error(409, ErrorCode::ContentTypeMismatch);
        write(&stream, "p", 0, 0, "a").send().expect(200);
    }
}

/// Base 5.2.1: a refusal leaves the producer where it was.
fn a_refused_write_does_not_advance_the_producer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a").send().expect(200);
        write(&stream, "p", 0, 2, "c").send().expect(409);
        write(&stream, "p", 3, 4, "x").send().expect(400);
        write(&stream, "p", 0, 1, "b").send().expect(200);
        write(&stream, "p", 0, 2, "c").send().expect(200);
        assert_eq!(stream.read_all(), b"abc");
    }
}

/// Decisions, Producers: state and data are one commit: what `Stream-Seq` refuses, the producer
/// has not written.
fn a_refused_stream_seq_does_not_advance_the_producer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 0, 0, "a")
            .header("Stream-Seq", "5")
            .send()
            .expect(200);
        write(&stream, "p", 0, 1, "b")
            .header("Stream-Seq", "4")
            .send()
            .expect_error(409, ErrorCode::StreamSeqConflict);
        write(&stream, "p", 0, 1, "b")
            .header("Stream-Seq", "6")
            .send()
            .expect(200);
        assert_eq!(stream.read_all(), b"ab");
    }
}

/// Decisions, Producers: state is kept as long as the stream, and no longer.
fn recreated_stream_knows_no_producer(server: &Server) {
    for surface in SURFACES {
        let stream = Stream::create(server, surface, OCTETS);
        write(&stream, "p", 4, 0, "a")
            .header("Stream-Seq", "9")
            .send()
            .expect(200);
        stream.delete().send().expect(204);
        stream
            .put()
            .header("Content-Type", OCTETS)
            .send()
            .expect(201);
        write(&stream, "p", 0, 0, "b")
            .header("Stream-Seq", "1")
            .send()
            .expect(200);
        assert_eq!(stream.read_all(), b"b");
    }
}

/// Base 5.2.1, Concurrency: requests that overtake each other are told to come again, and every
/// write is there once, in order.
fn out_of_order_arrivals_apply_once_in_order(server: &Server) {
    const WRITES: u64 = 24;
    let stream = Stream::create(server, Surface::Bucket, OCTETS);
    thread::scope(|scope| {
        for seq in 0..WRITES {
            let stream = &stream;
            scope.spawn(move || {
                crate::common::eventually("the write's turn comes", || {
                    let answer = write(stream, "p", 0, seq, &format!("{seq:02}.")).send();
                    assert!(matches!(answer.status, 200 | 204 | 409), "{answer}");
                    (answer.status != 409).then_some(())
                });
            });
        }
    });
    let expected: String = (0..WRITES).map(|seq| format!("{seq:02}.")).collect();
    assert_eq!(String::from_utf8_lossy(&stream.read_all()), expected);
}

/// Decisions, Producers: a stream knows a bounded number of producers; one more is 429.
#[test]
fn producers_of_a_stream_are_bounded() {
    let server = Options::new(1).flag("producers-per-stream-max", 2).start();
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    write(&stream, "a", 0, 0, "a").send().expect(200);
    write(&stream, "b", 0, 0, "b").send().expect(200);
    write(&stream, "c", 0, 0, "c")
        .send()
        .expect_error(429, ErrorCode::ProducerLimit);
    write(&stream, "a", 0, 1, "A").send().expect(200);
    write(&stream, "b", 1, 0, "B").send().expect(200);
    assert_eq!(stream.read_all(), b"abAB");
    let other = Stream::create(&server, Surface::Bucket, OCTETS);
    write(&other, "c", 0, 0, "c").send().expect(200);
}
