//! Event streams whose clients mean harm beside not reading: what is kept for them is in the budget,
//! and they are no place to send to.

use std::net::TcpStream;
use std::thread;

use super::{Bystander, get, narrow_reader, pour};
use crate::common::eventually;
use crate::common::observe::{await_metric, metric};
use crate::common::server::Options;
use crate::common::stream::{OCTETS, Stream, Surface};

/// Protocol case 11 for readers that each get bytes of their own, since they came with a cursor of
/// their own: what waits for them is in the budget, too.
#[test]
fn event_streams_with_cursors_of_their_own_are_in_the_budget() {
    const READERS: usize = 40;
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    // Each from an offset of its own: sockets that are all full at the same byte would all leave the
    // same rest of an event, which may be a small one.
    let step = 256;
    stream.append(OCTETS, vec![b'x'; READERS * step]);
    let stalled: Vec<TcpStream> = (0..READERS)
        .map(|reader| {
            let from = reader * step;
            let query = format!("?offset={from:020}&live=sse&cursor=9000000000000000");
            narrow_reader(&server, &stream, &query)
        })
        .collect();
    await_metric(&server, "live_readers", |count| count == READERS as u64);
    // Below what is written without a copy; one after the other until every socket is full.
    let body = vec![b'x'; 8 << 10];
    eventually("what waits for every reader is counted", || {
        stream.append(OCTETS, &body);
        let unsent = metric(&server, "unsent_bytes");
        (unsent >= (READERS * 2) as u64 * 1024).then_some(())
    });
    bystander.expect_served();
    drop(stalled);
}

/// Who sends on and on into an event stream, which is no place for requests, is dropped, and keeps
/// nobody waiting meanwhile.
#[test]
fn event_streams_take_no_flood() {
    const FLOODS: usize = 8;
    let server = Options::new(1).start();
    let mut bystander = Bystander::new(&server);
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let piece = vec![b'x'; 1 << 20];
    let mut honest = stream.sse("now");
    honest.control();
    let sent: Vec<usize> = thread::scope(|scope| {
        let floods: Vec<_> = (0..FLOODS)
            .map(|_| {
                let mut socket = narrow_reader(&server, &stream, "?offset=now&live=sse");
                let piece = &piece;
                // A client that is read on and on comes to the end of this.
                scope.spawn(move || pour(&mut socket, piece, 1 << 30))
            })
            .collect();
        bystander.expect_served();
        floods
            .into_iter()
            .map(|flood| flood.join().expect("it only writes"))
            .collect()
    });
    assert!(sent.iter().all(|&bytes| bytes < (1 << 30)), "{sent:?}");
    await_metric(&server, "event_stream_floods_total", |count| {
        count == FLOODS as u64
    });
    await_metric(&server, "live_readers", |count| count == 1);
    // A pipelined request is dropped, not its client.
    let mut chatty = stream.get("offset=now&live=sse").open();
    chatty.read_head();
    chatty.write(get(&stream, ""));
    stream.append(OCTETS, "abc");
    assert_eq!(honest.expect("data").bytes(), b"abc");
    while let Some(chunk) = chatty.read_chunk() {
        if chunk.windows(4).any(|part| part == b"YWJj") {
            break;
        }
    }
    assert_eq!(metric(&server, "event_stream_floods_total"), FLOODS as u64);
    bystander.expect_served();
}
