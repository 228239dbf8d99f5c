//! Long-polls and event streams: what happens between the opening of a live
//! read and its last byte (base protocol 5.7, 5.8; extensions 9; decisions,
//! Live reads).
//!
//! A reader holds a position, not data. It asks for the bytes at its
//! position, writes them, and waits for the stream to change; readers at the
//! same position share the encoded event. One that does not read is stopped
//! by its own socket buffer, dropped after `write_timeout`, and resumes by
//! offset.

use std::{future::Future, future::poll_fn, pin::pin, rc::Rc, task::Poll, time::Duration};

use glommio::timer::Timer;

use crate::{
    base::limits::{EVENT_BYTES_MAX, LONG_POLL_BUCKET_MS, UNSENT_SMALL_BYTES},
    http::{
        answer::{Body, Envelope},
        connection::Connection,
        encode,
        operation::ReadOperation,
        read::{self, ReadContext},
    },
    protocol::{
        content_type::Kind,
        error::Refusal,
        incarnation::Incarnation,
        offset::StartOffset,
        read::{Live, ReadRequest, max_bytes},
        sse::{self, Control, Framing},
        stream_key::Surface,
    },
    server::{
        core::{Core, LiveReader},
        seat::SWEEP_INTERVAL,
        socket::{Socket, SocketError},
    },
    shard::{
        live::{EventKey, SharedEvent, Watch, Watched},
        request::{EventRequest, ReadReply, Reply, Request, Watching},
    },
};

/// Events above this are written from where they are, not copied behind their framing first.
const COPY_BYTES_MAX: usize = 16 * 1024;

/// Reads once: catch-up, or a long-poll that waits for data. Writes the answer's head.
///
/// # Errors
/// The refusal to answer with; nothing was written.
pub async fn read_once(
    core: &Rc<Core>,
    operation: &ReadOperation,
    envelope: &Envelope,
    socket: &mut Socket,
    connection: &mut Connection,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    let live = operation.query.live;
    let is_now = operation.query.start == StartOffset::Now;
    if live == Live::LongPoll {
        core.check_live_reads()?;
    }
    let mut request = request_of(operation);
    let watch = (live == Live::LongPoll).then(|| Watch::new(core.id));
    let key = operation.target.key.clone();
    let reply = core
        .ask(&key, Request::Read(request.clone(), watch))
        .await?;
    let watching = match reply {
        Reply::Read(reply) if live == Live::LongPoll && reply.window.is_empty() => {
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

fn request_of(operation: &ReadOperation) -> ReadRequest {
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
    core: &Rc<Core>,
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
    let is_long_poll = operation.query.live == Live::LongPoll;
    let context = ReadContext {
        surface: operation.surface,
        if_none_match: operation.if_none_match.as_deref(),
        is_now,
        cursor: is_long_poll.then(|| core.cursor(operation.query.cursor.as_deref())),
        now_ms: core.clock.now_ms(),
    };
    let shared = core.shared.borrow();
    Ok(read::answer(
        envelope, &shared, &reply, sources, &context, out,
    ))
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
    let cursor = core.cursor(operation.query.cursor.as_deref());
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

/// An event stream that its owner has opened.
pub struct EventStream {
    reader: LiveReader,
    watching: Watching,
    framing: Framing,
    surface: Surface,
    bytes_max: u64,
    client_cursor: Option<Box<[u8]>>,
}

/// Opens an event stream and writes the answer's head.
///
/// # Errors
/// The refusal to answer with; nothing was written.
pub async fn open(
    core: &Rc<Core>,
    operation: &ReadOperation,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<EventStream, Refusal> {
    core.check_live_reads()?;
    let request = request_of(operation);
    let key = &operation.target.key;
    let tail = Request::Tail(request, Watch::new(core.id));
    let Reply::Watching(watching) = core.ask(key, tail).await? else {
        return Err(Refusal::Internal);
    };
    let reader = core.join(key, &watching);
    let kind = watching.content_type.kind();
    let framing = Framing::of(kind, operation.surface);
    read::sse_head(
        envelope,
        &core.shared.borrow(),
        watching.extent.incarnation,
        &watching.content_type,
        framing,
        out,
    );
    Ok(EventStream {
        reader,
        framing,
        surface: operation.surface,
        bytes_max: max_bytes(operation.query.max_bytes, Live::Sse, kind).min(EVENT_BYTES_MAX),
        client_cursor: operation.query.cursor.clone(),
        watching,
    })
}

/// Why an open event stream waits no longer.
enum Woken {
    Changed,
    Heartbeat,
    Ending,
    ClientGone,
}

impl EventStream {
    /// Runs an open event stream to its end. `out` holds its head.
    ///
    /// # Errors
    /// [`SocketError`]: the client is gone or does not read.
    pub async fn run(
        self,
        core: &Rc<Core>,
        envelope: &Envelope,
        socket: &mut Socket,
        out: &mut Vec<u8>,
    ) -> Result<(), SocketError> {
        let started_ns = core.clock.monotonic_ns();
        let mut at = self.watching.start;
        let mut has_said_where = false;
        let chunked = !envelope.is_http10;
        let mut delivered_ns = self.reader.reader.published_ns();
        loop {
            let published_ns = self.reader.reader.published_ns();
            let event = match self.next_event(core, at).await {
                Ok(event) => event,
                // It comes back at the offset it knows.
                Err(Refusal::LiveReadLimit) => {
                    core.metrics.shed_total.increment();
                    break;
                }
                Err(refusal) => {
                    let mut text = Vec::new();
                    sse::error_event(&refusal.body(), &mut text);
                    push(chunked, &[&text], out);
                    break;
                }
            };
            let is_final = event.closed && event.end == event.tail;
            let control = Control {
                next: event.end,
                cursor: core.cursor(self.client_cursor.as_deref()),
                up_to_date: event.end == event.tail,
                closed: is_final,
            };
            let has_advanced = event.end > at;
            if has_advanced || !has_said_where || is_final {
                has_said_where = true;
                at = event.end;
                self.write(core, chunked, &event, &control, socket, out)
                    .await?;
                if is_final {
                    break;
                }
                if has_advanced {
                    core.metrics.sse_events_total.count(1);
                    core.latency.delivered(published_ns, &mut delivered_ns);
                }
                // Small events to many readers come in turn anyway; a catch-up could go on for long.
                if event.text.len() > COPY_BYTES_MAX {
                    core.turnstile.pass().await;
                }
                // At the tail, or before what is only the start of a character, it waits.
                if has_advanced && event.end < event.tail {
                    continue;
                }
            }
            *out = Vec::new();
            match self
                .wait(core, event.tail, event.closed, started_ns, socket)
                .await
            {
                Woken::Changed => {}
                Woken::Heartbeat => push(chunked, &[sse::HEARTBEAT], out),
                // If it only ended its side it sees a proper end.
                Woken::ClientGone => break,
                Woken::Ending => {
                    let mut text = Vec::new();
                    let cursor = core.cursor(self.client_cursor.as_deref());
                    sse::control_event(&Control { cursor, ..control }, &mut text);
                    push(chunked, &[&text], out);
                    break;
                }
            }
            if !out.is_empty() {
                socket.write_all(out, core.limits.write_timeout).await?;
                out.clear();
            }
        }
        if chunked {
            encode::last_chunk(out);
        }
        socket.write_all(out, core.limits.write_timeout).await?;
        out.clear();
        Ok(())
    }

    async fn write(
        &self,
        core: &Rc<Core>,
        chunked: bool,
        event: &SharedEvent,
        control: &Control,
        socket: &mut Socket,
        out: &mut Vec<u8>,
    ) -> Result<(), SocketError> {
        let mut text = Vec::with_capacity(128);
        sse::control_event(control, &mut text);
        let timeout = core.limits.write_timeout;
        if event.text.len() <= COPY_BYTES_MAX {
            push(chunked, &[&event.text, &text], out);
        } else {
            if chunked {
                let len = event.text.len().saturating_add(text.len());
                encode::chunk_start(out, len as u64);
            }
            socket.write_all(out, timeout).await?;
            socket.write_all(&event.text, timeout).await?;
            out.clear();
            out.extend_from_slice(&text);
            if chunked {
                encode::chunk_end(out);
            }
        }
        if control.closed {
            // The last chunk goes with it.
            return Ok(());
        }
        socket.write_all(out, timeout).await?;
        out.clear();
        Ok(())
    }

    /// The event at `at`, encoded once for all readers of this core that are there.
    async fn next_event(&self, core: &Rc<Core>, at: u64) -> Result<SharedEvent, Refusal> {
        let stream = &self.reader.reader.stream;
        let key = EventKey {
            start: at,
            bytes_max: self.bytes_max,
            framing: self.framing,
        };
        let shared = poll_fn(|cx| {
            self.reader.reader.wake_on_change(cx.waker());
            match stream.shared_event(key) {
                Some(event) => Poll::Ready(Some(event)),
                None if stream.claim_fetch(key) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await;
        if let Some(event) = shared {
            return Ok(event);
        }
        let fetched = self.fetch(core, key).await;
        stream.end_fetch(key, fetched.as_ref().ok().cloned());
        fetched
    }

    async fn fetch(&self, core: &Rc<Core>, key: EventKey) -> Result<SharedEvent, Refusal> {
        let incarnation: Incarnation = self.watching.extent.incarnation;
        let request = EventRequest {
            incarnation,
            surface: self.surface,
            start: key.start,
            bytes_max: key.bytes_max,
        };
        let reply = core
            .ask_shard(self.reader.owner(), Request::Event(request))
            .await?;
        let Reply::Event(reply) = reply else {
            return Err(Refusal::Internal);
        };
        let mut text = Vec::new();
        let pieces = core.load(reply.runs).await?;
        match pieces.as_slice() {
            [] => {}
            [piece] => {
                sse::data_event(key.framing, piece, reply.after_cr, &mut text);
            }
            pieces => {
                let whole = pieces.concat();
                sse::data_event(key.framing, &whole, reply.after_cr, &mut text);
            }
        }
        let mut charge = core.unsent.charge();
        let bytes = text.capacity() as u64;
        if charge.set(bytes).is_err() && bytes > UNSENT_SMALL_BYTES {
            return Err(Refusal::LiveReadLimit);
        }
        Ok(SharedEvent {
            key,
            end: reply.window.end,
            tail: reply.window.tail,
            closed: reply.window.closed,
            text: charge.with(text),
        })
    }

    async fn wait(
        &self,
        core: &Rc<Core>,
        seen: u64,
        seen_closed: bool,
        started_ns: u64,
        socket: &mut Socket,
    ) -> Woken {
        let open_for = Duration::from_nanos(core.clock.monotonic_ns().saturating_sub(started_ns));
        let left = core.limits.sse_duration.saturating_sub(open_for);
        if left.is_zero() {
            return Woken::Ending;
        }
        // A deadline may be noticed two sweeps late; the heartbeat is a promise.
        let heartbeat = core
            .limits
            .sse_heartbeat
            .saturating_sub(SWEEP_INTERVAL.saturating_mul(3));
        socket.seat.set_timeout(heartbeat.min(left));
        poll_fn(|cx| {
            match self.reader.reader.poll_changed(seen, cx.waker()) {
                Poll::Ready(Watched::Closed { tail }) if tail == seen && seen_closed => {}
                Poll::Ready(_) => return Poll::Ready(Woken::Changed),
                Poll::Pending => {}
            }
            socket.seat.wake_on_end(cx.waker());
            if socket.seat.is_draining() {
                return Poll::Ready(Woken::Ending);
            }
            if socket.seat.is_over() {
                let woken = if heartbeat < left {
                    Woken::Heartbeat
                } else {
                    Woken::Ending
                };
                return Poll::Ready(woken);
            }
            // What an event stream's client sends is not read as requests, and its end is the end.
            let mut byte = [0; 64];
            loop {
                match socket.poll_read(cx, &mut byte) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Woken::ClientGone),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }
}

/// Appends `parts` as one chunk, or as they are.
fn push(chunked: bool, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len == 0 {
        return;
    }
    if chunked {
        encode::chunk_start(out, len as u64);
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    if chunked {
        encode::chunk_end(out);
    }
}
