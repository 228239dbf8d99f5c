//! What the owner of a connection sees must not depend on how the bytes were cut.

use thalweg::base::limits::Limits;
use thalweg::base::rng::Rng;
use thalweg::http::connection::{
    BodyEvent, Connection, ConnectionLimits, DrainEvent, HeadEvent, Next,
};
use thalweg::http::parse::{HeadLimits, Refusal};

use super::{cuts, kind, magnitude};

/// Limit of the bodies that are taken, in bytes.
pub const BODY_BYTES_MAX: u64 = 1000;

/// What there is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A request: its target, its body unless it was not wanted, and whether the connection ends.
    Request(Vec<u8>, Option<Vec<u8>>, bool),
    /// A refusal.
    Refused(Refusal),
    /// An end within a request.
    Truncated,
    /// An end behind one.
    Closed,
}

impl Seen {
    /// Its kind.
    pub fn kind(&self) -> u64 {
        match self {
            Self::Request(_, body, close) => {
                kind((body.as_ref().map(|body| magnitude(body.len())), close))
            }
            Self::Refused(refusal) => kind((refusal.status, refusal.message)),
            Self::Truncated => 1,
            Self::Closed => 2,
        }
    }
}

/// Serves `data` whole and in pieces, under usual and tight limits; says what was seen under the
/// usual ones.
pub fn check(data: &[u8], rng: &mut Rng) -> Vec<Seen> {
    let usual = ConnectionLimits::from(&Limits::default());
    let tight = ConnectionLimits {
        head: HeadLimits {
            request_line_bytes_max: 40,
            head_bytes_max: 120,
        },
        drain_bytes_max: 50,
    };
    for limits in [tight, usual] {
        let whole = serve(limits, data, &[data.len()]);
        let cuts = cuts(rng, data.len());
        let pieces = serve(limits, data, &cuts);
        assert_eq!(pieces, whole, "cut at {cuts:?}");
    }
    serve(usual, data, &[data.len()])
}

/// Serves `data`, of which at any time only what is before the next cut has come.
fn serve(limits: ConnectionLimits, data: &[u8], cuts: &[usize]) -> Vec<Seen> {
    let mut connection = Connection::new(limits);
    let mut seen = Vec::new();
    let mut body = None;
    let mut at = 0;
    for cut in cuts {
        while at < *cut {
            let taken = connection.receive(&data[at..*cut]);
            assert!(taken > 0, "no room, though everything is taken");
            at += taken;
            if turn(&mut connection, &mut body, &mut seen) {
                drain(&mut connection, &data[at..], limits);
                return seen;
            }
            let bound = limits.input_bytes_max() + (1 << 12);
            assert!(connection.memory_bytes() <= bound, "memory is bounded");
        }
    }
    connection.receive_end();
    assert!(
        turn(&mut connection, &mut body, &mut seen),
        "an end ends it: {seen:?}"
    );
    seen
}

/// Goes on until input is needed (false) or the connection is over (true).
fn turn(connection: &mut Connection, body: &mut Option<Vec<u8>>, seen: &mut Vec<Seen>) -> bool {
    loop {
        let Some(so_far) = body else {
            match connection.next_head() {
                HeadEvent::NeedInput => return false,
                HeadEvent::Closed => {
                    seen.push(Seen::Closed);
                    return true;
                }
                HeadEvent::Truncated => {
                    seen.push(Seen::Truncated);
                    return true;
                }
                HeadEvent::Refused(refusal) => {
                    seen.push(Seen::Refused(refusal));
                    assert_ne!(connection.finish(), Next::Head);
                    return true;
                }
                HeadEvent::Head => match connection.accept_body(BODY_BYTES_MAX) {
                    Ok(_) => *body = Some(Vec::new()),
                    Err(refusal) => {
                        seen.push(Seen::Refused(refusal));
                        if connection.finish() != Next::Head {
                            return true;
                        }
                    }
                },
            }
            continue;
        };
        let next = match connection.next_body() {
            BodyEvent::NeedInput => return false,
            BodyEvent::Piece(piece) => {
                assert!(!piece.is_empty());
                so_far.extend_from_slice(piece);
                continue;
            }
            BodyEvent::Done => {
                let close = connection.should_close();
                let target = connection.target().to_vec();
                Seen::Request(target, body.take(), close)
            }
            BodyEvent::Refused(refusal) => Seen::Refused(refusal),
            BodyEvent::Truncated => Seen::Truncated,
        };
        *body = None;
        seen.push(next);
        if connection.finish() != Next::Head {
            return true;
        }
    }
}

/// What comes after the last answer is dropped, up to a bound.
fn drain(connection: &mut Connection, rest: &[u8], limits: ConnectionLimits) {
    for piece in rest.chunks(64) {
        if connection.drain() == DrainEvent::Done {
            return;
        }
        connection.receive(piece);
        assert!(connection.memory_bytes() <= limits.input_bytes_max() + (1 << 12));
    }
    connection.receive_end();
    assert_eq!(connection.drain(), DrainEvent::Done);
}
