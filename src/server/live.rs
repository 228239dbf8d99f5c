//! Reads that are answered once: catch-up, and long-polls, which wait for data
//! first (base protocol 5.6, 5.7; extensions 9; decisions, Live reads).

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use glommio::timer::Timer;

use crate::{
    base::limits::LONG_POLL_BUCKET_MS,
    http::{
        answer::{Body, Envelope, Source},
        connection::Connection,
        operation::ReadOperation,
        read::{self, ReadContext},
    },
    protocol::{
        content_type::Kind,
        cursor,
        error::Refusal,
        offset::StartOffset,
        read::{Live, ReadRequest, max_bytes},
        stream_key::Surface,
    },
    server::{
        core::{Core, LiveReader},
        socket::Socket,
    },
    shard::{
        live::Watch,
        request::{ReadReply, Reply, Request},
        run::Run,
    },
};

/// Answers a catch-up read at once, if all of it is small and in memory: its head, and perhaps its
/// body, are in `out` then. Otherwise gives the reply back.
pub fn answer_at_hand(
    core: &Core,
    operation: &ReadOperation,
    mut reply: ReadReply,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<Body, ReadReply> {
    let in_memory = |run: &Run| matches!(run, Run::Memory(_));
    if reply.window.len() > read::SMALL_BYTES_MAX || !reply.runs.iter().all(in_memory) {
        return Err(reply);
    }
    let runs = std::mem::take(&mut reply.runs).into_iter();
    let sources = runs.filter_map(|run| match run {
        Run::Memory(bytes) => Some(Source::Memory(bytes)),
        Run::Block(_) | Run::Inherited(_) => None,
    });
    let is_now = operation.query.start == StartOffset::Now;
    let sources = sources.collect();
    Ok(head_of(
        core, operation, &reply, sources, is_now, envelope, out,
    ))
}

/// The rest of a catch-up read after the first `reply` of its owner. Writes the answer's head.
///
/// # Errors
/// The refusal to answer with; nothing was written.
pub async fn catch_up(
    core: &Core,
    operation: &ReadOperation,
    reply: Reply,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    let is_now = operation.query.start == StartOffset::Now;
    let owner = core.placement.owner(&operation.target.key);
    match core.decided(owner, reply).await? {
        Reply::Read(reply) => answer_read(core, operation, reply, is_now, envelope, out).await,
        _ => Err(Refusal::Internal),
    }
}

/// A long-poll: waits for data if there is none. Writes the answer's head.
///
/// # Errors
/// The refusal to answer with; nothing was written.
pub async fn long_poll(
    core: &Rc<Core>,
    operation: &ReadOperation,
    envelope: &Envelope,
    socket: &mut Socket,
    connection: &mut Connection,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    let is_now = operation.query.start == StartOffset::Now;
    core.check_live_reads()?;
    let mut request = request_of(operation);
    let watch = Some(Watch::new(core.id));
    let key = operation.target.key.clone();
    let reply = core
        .ask(&key, Request::Read(request.clone(), watch))
        .await?;
    let watching = match reply {
        Reply::Read(reply) if reply.window.is_empty() => {
            return Ok(long_poll_over(core, operation, &reply, envelope, out));
        }
        Reply::Read(reply) => {
            return answer_read(core, operation, reply, is_now, envelope, out).await;
        }
        Reply::Watching(watching) => watching,
        _ => return Err(Refusal::Internal),
    };
    let reader = core.join(&key, &watching);
    let timeout = match (operation.query.timeout_ms, operation.surface) {
        (Some(ms), _) => Duration::from_millis(ms),
        (None, Surface::Bucket) => Duration::from_millis(LONG_POLL_BUCKET_MS),
        (None, Surface::Base) => core.limits.long_poll_timeout,
    };
    let tail = watching.extent.tail;
    let changed = wait_for_change(&reader, tail, timeout, socket, connection).await;
    let published_ns = changed.then(|| reader.reader.published_ns());
    core.latency.parked(published_ns);
    // Whatever woke it, the answer is what the stream is now; it must be the same stream.
    request.start = StartOffset::At(watching.start);
    request.precondition = Some(watching.extent.incarnation);
    match core.ask(&key, Request::Read(request, None)).await? {
        Reply::Read(reply) if reply.window.is_empty() => {
            Ok(long_poll_over(core, operation, &reply, envelope, out))
        }
        // What arrived while waiting is data at a fixed offset, also for offset=now.
        Reply::Read(reply) => answer_read(core, operation, reply, false, envelope, out).await,
        _ => Err(Refusal::Internal),
    }
}

/// The cursor that the client came with.
pub(super) fn client_cursor(operation: &ReadOperation) -> Option<u64> {
    let text = operation.query.cursor.as_deref();
    text.and_then(cursor::of_client)
}

pub(super) fn request_of(operation: &ReadOperation) -> ReadRequest {
    ReadRequest {
        key: operation.target.key.clone(),
        precondition: operation.target.precondition,
        surface: operation.surface,
        start: operation.query.start,
        bytes_max: max_bytes(
            operation.query.max_bytes,
            operation.query.live,
            Kind::Binary,
        ),
        live: operation.query.live,
    }
}

async fn answer_read(
    core: &Core,
    operation: &ReadOperation,
    mut reply: ReadReply,
    is_now: bool,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    let mut sources = core.sources(std::mem::take(&mut reply.runs)).await?;
    if reply.window.len() <= read::SMALL_BYTES_MAX {
        sources = core.in_memory(sources).await?;
    }
    Ok(head_of(
        core, operation, &reply, sources, is_now, envelope, out,
    ))
}

/// Writes the head of the answer to a read whose bytes are in `sources`.
fn head_of(
    core: &Core,
    operation: &ReadOperation,
    reply: &ReadReply,
    sources: VecDeque<Source>,
    is_now: bool,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Body {
    let is_long_poll = operation.query.live == Live::LongPoll;
    let context = ReadContext {
        surface: operation.surface,
        if_none_match: operation.if_none_match.as_deref(),
        is_now,
        cursor: is_long_poll.then(|| core.cursor(client_cursor(operation))),
        clock: &*core.clock,
    };
    let shared = core.shared.borrow();
    read::answer(envelope, &shared, reply, sources, &context, out)
}

fn long_poll_over(
    core: &Rc<Core>,
    operation: &ReadOperation,
    reply: &ReadReply,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Body {
    let extent = crate::protocol::read::Extent {
        incarnation: reply.incarnation,
        retained: 0,
        tail: reply.window.tail,
        closed: reply.window.closed,
    };
    let cursor = core.cursor(client_cursor(operation));
    read::nothing_new(envelope, &core.shared.borrow(), &extent, cursor, out);
    Body::None
}

/// Waits until the stream changes (true), the time is over, or the server goes down. Requests that come
/// meanwhile are kept; a client that only ended its side still gets its answer.
async fn wait_for_change(
    reader: &LiveReader,
    seen: u64,
    timeout: Duration,
    socket: &mut Socket,
    connection: &mut Connection,
) -> bool {
    let mut timer = pin!(Timer::new(timeout));
    let mut is_broken = false;
    poll_fn(|cx| {
        if reader.reader.poll_changed(seen, cx.waker()).is_ready() {
            return Poll::Ready(true);
        }
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        socket.seat.wake_on_end(cx.waker());
        if socket.seat.is_draining() {
            return Poll::Ready(false);
        }
        while !connection.is_ended() && !is_broken {
            let space = connection.space();
            if space.is_empty() {
                break;
            }
            match socket.poll_read(cx, space) {
                Poll::Ready(Ok(count)) => connection.received(count),
                Poll::Ready(Err(_)) => {
                    is_broken = true;
                    return Poll::Ready(false);
                }
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await
}
