//! One event stream, from its head to its last byte (base protocol 5.8;
//! extensions 9; decisions, Live reads).
//!
//! A reader holds a position, not data. It asks for the bytes at its position,
//! writes them, and at the tail joins the crowd that is served together
//! ([`fan_out`](super::fan_out)). Readers that catch up at the same position
//! share the encoded event. One that does not read is stopped by its own
//! socket buffer, dropped after `write_timeout`, and resumes by offset.
//!
//! Most readers wait most of the time, so what waits is small: everything that
//! is needed only for work is boxed while there is work.

use std::{
    future::poll_fn,
    io::ErrorKind,
    mem,
    num::NonZeroU64,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    base::limits::{EVENT_BYTES_MAX, EVENT_STREAM_INPUT_BYTES_MAX},
    http::{answer::Envelope, encode, operation::ReadOperation, read},
    protocol::{
        error::Refusal,
        incarnation::Incarnation,
        read::{Live, max_bytes},
        sse::{self, Control, Framing},
        stream_key::Surface,
    },
    server::{
        budget::Charge,
        core::{Core, LiveReader},
        fan_out::{Place, Standing},
        live::{client_cursor, request_of},
        seat::SWEEP_INTERVAL,
        socket::{Socket, SocketError},
        turnstile::Share,
    },
    shard::{
        hub::{EventKey, SharedEvent},
        live::{Watch, Watched},
        request::{EventRequest, Reply, Request},
    },
};

/// Events above this are written from where they are, not copied behind their framing first.
pub(super) const COPY_BYTES_MAX: usize = 16 * 1024;
/// Bytes kept free before an event's text: for the line that begins its chunk.
pub(super) const HEAD_ROOM: usize = 18;
/// Room kept behind an event's text for a control event.
const CONTROL_ROOM: usize = 160;

/// How events are written for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Most stored bytes in one; at most [`EVENT_BYTES_MAX`].
    pub bytes_max: u32,
    /// How data is written.
    pub framing: Framing,
    /// Whose view it is.
    pub surface: Surface,
    /// Whether each is a chunk.
    pub chunked: bool,
}

/// An event's text as it was fetched.
#[derive(Debug)]
pub struct Fetched {
    /// The offset after it.
    pub end: u64,
    /// The tail at which it was fetched.
    pub tail: u64,
    /// Whether the stream was closed at that tail.
    pub closed: bool,
    /// The data event, behind [`HEAD_ROOM`] bytes; no more than those when there is nothing to say.
    pub text: Vec<u8>,
    /// What the text is charged.
    pub charge: Charge,
}

/// An event stream that its owner has opened.
pub struct Opened {
    reader: LiveReader,
    shape: Shape,
    cursor: Option<NonZeroU64>,
    start: u64,
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
) -> Result<Opened, Refusal> {
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
    let bytes_max = max_bytes(operation.query.max_bytes, Live::Sse, kind).min(EVENT_BYTES_MAX);
    Ok(Opened {
        reader,
        shape: Shape {
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
            framing,
            surface: operation.surface,
            chunked: !envelope.is_http10,
        },
        // 0 says as much as none: it is below every interval but the first.
        cursor: client_cursor(operation).and_then(NonZeroU64::new),
        start: watching.start,
    })
}

/// An event stream and its client.
pub struct EventStream {
    // Given up before the socket is: others write through it.
    waiting: Waiting,
    socket: Socket,
    reader: LiveReader,
}

/// What a reader needs while it works.
pub struct Work {
    standing: Standing,
    /// What is to be written next.
    out: Vec<u8>,
    has_said_where: bool,
    /// Whether the stream was closed when its tail was last seen.
    seen_closed: bool,
}

// With what glommio adds the task of a waiting reader is 256 bytes: one more and the allocator takes 320.
const _: () = assert!(size_of::<EventStream>() <= 176);

/// Where a reader waits.
enum Waiting {
    /// For the stream to change.
    Crowd(Place),
    /// For its time to be over: there is nothing that others could write. Without its work it does
    /// not wait but works.
    Alone(Option<Box<Work>>),
}

/// How long until the heartbeat is due and until the whole is over.
fn time_left(core: &Core, standing: &Standing) -> (Duration, Duration) {
    let now_ns = core.clock.monotonic_ns();
    let silent = Duration::from_nanos(now_ns.saturating_sub(standing.sent_ns));
    let age_tenths = tenths(now_ns).saturating_sub(standing.began_tenths);
    let age = Duration::from_millis(u64::from(age_tenths).saturating_mul(100));
    // A deadline may be noticed two sweeps late; the heartbeat is a promise.
    let late = SWEEP_INTERVAL.saturating_mul(3);
    let heartbeat = core.limits.sse_heartbeat.saturating_sub(late);
    let left = core.limits.sse_duration.saturating_sub(age);
    (heartbeat.saturating_sub(silent), left)
}

/// Tenths of a second; 32 bits do for thirteen years of a machine's uptime.
fn tenths(ns: u64) -> u32 {
    u32::try_from(ns / 100_000_000).unwrap_or(u32::MAX)
}

/// Why an event stream waits no longer.
enum Woken {
    Changed,
    Heartbeat,
    Ending,
    ClientGone,
    Flooded,
}

impl EventStream {
    /// `opened`, for the client behind `socket`. `out` holds the answer's head.
    #[must_use]
    pub fn new(core: &Core, opened: Opened, socket: Socket, out: Vec<u8>) -> Self {
        let now_ns = core.clock.monotonic_ns();
        let work = Box::new(Work {
            standing: Standing {
                shape: opened.shape,
                cursor: opened.cursor,
                at: opened.start,
                seen: opened.start,
                up_to_date: false,
                sent_ns: now_ns,
                delivered_ns: opened.reader.reader.published_ns(),
                began_tenths: tenths(now_ns),
            },
            out,
            has_said_where: false,
            seen_closed: false,
        });
        Self {
            waiting: Waiting::Alone(Some(work)),
            socket,
            reader: opened.reader,
        }
    }

    /// The core that it is on.
    #[must_use]
    pub fn core(&self) -> &Rc<Core> {
        self.reader.core()
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// [`SocketError`]: the client is gone or does not read.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps its arguments twice, and this is most of what a waiting reader costs"
    )]
    pub fn run(&mut self) -> impl Future<Output = Result<(), SocketError>> {
        async move {
            let mut woken = Woken::Changed;
            while Box::pin(self.work(woken)).await? {
                woken = poll_fn(|cx| self.poll_wait(cx)).await;
            }
            Ok(())
        }
    }

    /// Does what it was woken for; whether it waits again.
    async fn work(&mut self, woken: Woken) -> Result<bool, SocketError> {
        let core = &self.core().clone();
        let mut work = self.end_wait(core).await?;
        let waits = match woken {
            Woken::Changed => self.catch_up(core, &mut work).await?,
            Woken::Heartbeat => {
                work.standing.shape.push(&[sse::HEARTBEAT], &mut work.out);
                self.flush(core, &mut work.out).await?;
                true
            }
            // If it only ended its side it sees a proper end.
            Woken::ClientGone => false,
            Woken::Flooded => return Err(SocketError::Flooded),
            Woken::Ending => {
                let mut text = Vec::new();
                sse::control_event(&work.standing.control(core, false), &mut text);
                work.standing.shape.push(&[&text], &mut work.out);
                false
            }
        };
        if waits {
            self.begin_wait(core, work);
        } else {
            self.end(core, work).await?;
        }
        Ok(waits)
    }

    /// Writes everything up to the tail; false when the stream, or what can be had of it, is over.
    async fn catch_up(&mut self, core: &Rc<Core>, work: &mut Work) -> Result<bool, SocketError> {
        loop {
            // What is new to many readers is small; a catch-up could go on for long, and hundreds
            // of them begin at once.
            if self.is_far_behind(work) {
                core.turnstile.pass(Share::Piece).await;
            }
            let published_ns = self.reader.reader.published_ns();
            let event = match self.next_event(core, &work.standing).await {
                Ok(event) => event,
                // It comes back at the offset it knows.
                Err(Refusal::LiveReadLimit) => {
                    core.metrics.shed_total.increment();
                    core.metrics.event_stream_drops_total.increment();
                    return Ok(false);
                }
                Err(refusal) => {
                    let mut text = Vec::new();
                    sse::error_event(&refusal.body(), &mut text);
                    work.standing.shape.push(&[&text], &mut work.out);
                    return Ok(false);
                }
            };
            let standing = &mut work.standing;
            standing.up_to_date = event.end == event.tail;
            let is_final = event.closed && standing.up_to_date;
            let has_advanced = event.end > standing.at;
            if has_advanced || !work.has_said_where || is_final {
                work.has_said_where = true;
                standing.at = event.end;
                self.write(core, work, &event, is_final).await?;
                if is_final {
                    return Ok(false);
                }
                if has_advanced {
                    core.metrics.sse_events_total.count(1);
                    let seen_ns = &mut work.standing.delivered_ns;
                    core.latency.delivered(published_ns, seen_ns);
                }
                // At the tail, or before what is only the start of a character, it waits.
                if has_advanced && event.end < event.tail {
                    continue;
                }
            }
            work.standing.seen = event.tail;
            work.seen_closed = event.closed;
            return Ok(true);
        }
    }

    fn is_far_behind(&self, work: &Work) -> bool {
        match self.reader.reader.stream.watch.state() {
            Watched::Open { tail } | Watched::Closed { tail } => {
                tail.saturating_sub(work.standing.at) > COPY_BYTES_MAX as u64
            }
            Watched::Gone => false,
        }
    }

    async fn write(
        &mut self,
        core: &Core,
        work: &mut Work,
        event: &SharedEvent,
        is_final: bool,
    ) -> Result<(), SocketError> {
        let mut text = Vec::with_capacity(CONTROL_ROOM);
        sse::control_event(&work.standing.control(core, is_final), &mut text);
        let timeout = core.limits.write_timeout;
        let shape = work.standing.shape;
        let out = &mut work.out;
        if event.text.len() <= COPY_BYTES_MAX {
            shape.push(&[&event.text, &text], out);
        } else {
            if shape.chunked {
                let len = event.text.len().saturating_add(text.len());
                encode::chunk_start(out, len as u64);
            }
            self.socket.write_all(out, timeout).await?;
            self.socket.write_all(&event.text, timeout).await?;
            out.clear();
            out.extend_from_slice(&text);
            if shape.chunked {
                encode::chunk_end(out);
            }
        }
        if is_final {
            // The last chunk goes with it.
            return Ok(());
        }
        self.flush(core, out).await
    }

    async fn flush(&mut self, core: &Core, out: &mut Vec<u8>) -> Result<(), SocketError> {
        let timeout = core.limits.write_timeout;
        self.socket
            .write_charged(out, 0, &core.unsent, timeout)
            .await
    }

    /// The event at its position, encoded once for all readers of this core that catch up there.
    async fn next_event(
        &self,
        core: &Rc<Core>,
        standing: &Standing,
    ) -> Result<SharedEvent, Refusal> {
        let stream = &self.reader.reader.stream;
        let shape = standing.shape;
        let key = EventKey {
            start: standing.at,
            bytes_max: u64::from(shape.bytes_max),
            framing: shape.framing,
        };
        let shared = poll_fn(|cx| match stream.shared_event(key) {
            Some(event) => Poll::Ready(Some(event)),
            None if stream.claim_fetch(key) => Poll::Ready(None),
            None => {
                self.reader.reader.wake_on_fetch(cx.waker());
                Poll::Pending
            }
        })
        .await;
        if let Some(event) = shared {
            return Ok(event);
        }
        let incarnation = stream.watch.incarnation();
        let fetched = fetch(core, self.reader.owner(), incarnation, shape, key.start).await;
        let fetched = fetched.map(|fetched| SharedEvent {
            key,
            end: fetched.end,
            tail: fetched.tail,
            closed: fetched.closed,
            text: fetched.charge.with(fetched.text).slice(HEAD_ROOM..),
        });
        stream.end_fetch(key, fetched.as_ref().ok().cloned());
        fetched
    }

    /// It has nothing to write: it gives its memory back, and joins the others who wait.
    fn begin_wait(&mut self, core: &Rc<Core>, mut work: Box<Work>) {
        work.standing.sent_ns = core.clock.monotonic_ns();
        let standing = work.standing;
        let reader = &self.reader.reader;
        self.waiting = if let Watched::Open { .. } = reader.stream.watch.state() {
            reader.wake_never();
            let place = core
                .fan_out
                .join(core, &self.reader, self.socket.tap(), work.standing);
            Waiting::Crowd(place)
        } else {
            work.out = Vec::new();
            Waiting::Alone(Some(work))
        };
        let (silence, left) = time_left(core, &standing);
        self.socket.seat.set_timeout(silence.min(left));
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Woken> {
        if let Waiting::Crowd(place) = &mut self.waiting
            && !self.socket.seat.is_draining()
        {
            let turnstile = &self.reader.core().turnstile;
            if turnstile
                .poll_let_in(&mut place.is_queued, cx.waker())
                .is_pending()
            {
                return Poll::Pending;
            }
        }
        let standing = match &self.waiting {
            Waiting::Alone(None) => return Poll::Ready(Woken::Changed),
            Waiting::Crowd(place) => match (place.poll_released(cx.waker()), place.standing()) {
                (Poll::Pending, Some(standing)) => standing,
                _ => return Poll::Ready(Woken::Changed),
            },
            Waiting::Alone(Some(work)) => {
                let seen = work.standing.seen;
                match self.reader.reader.poll_changed(seen, cx.waker()) {
                    Poll::Ready(Watched::Closed { tail }) if tail == seen && work.seen_closed => {}
                    Poll::Ready(_) => return Poll::Ready(Woken::Changed),
                    Poll::Pending => {}
                }
                work.standing
            }
        };
        if self.socket.seat.is_draining() {
            return Poll::Ready(Woken::Ending);
        }
        if self.socket.seat.is_over() {
            // What was sent to it meanwhile did not move the deadline.
            match time_left(self.core(), &standing) {
                (_, Duration::ZERO) => return Poll::Ready(Woken::Ending),
                (Duration::ZERO, _) => return Poll::Ready(Woken::Heartbeat),
                (silence, left) => self.socket.seat.set_timeout(silence.min(left)),
            }
        }
        self.socket.seat.wake_on_end(cx.waker());
        // What an event stream's client sends is not read as requests, and its end is the end. Who
        // sends without end must not keep the core at reading it.
        let core = self.reader.core();
        let mut scratch = core.scratch.borrow_mut();
        let mut dropped_bytes = 0usize;
        loop {
            match self.socket.poll_read(cx, &mut scratch) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Woken::ClientGone),
                Poll::Ready(Ok(count)) => {
                    dropped_bytes = dropped_bytes.saturating_add(count);
                    if dropped_bytes > EVENT_STREAM_INPUT_BYTES_MAX {
                        return Poll::Ready(Woken::Flooded);
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes up where the crowd left it, and writes what that did not.
    async fn end_wait(&mut self, core: &Core) -> Result<Box<Work>, SocketError> {
        let place = match mem::replace(&mut self.waiting, Waiting::Alone(None)) {
            Waiting::Alone(Some(work)) => return Ok(work),
            Waiting::Crowd(place) => place,
            Waiting::Alone(None) => return Err(nowhere()),
        };
        let (standing, unsent) = place.leave().ok_or_else(nowhere)?;
        let mut work = Box::new(Work {
            standing,
            out: Vec::new(),
            has_said_where: true,
            seen_closed: false,
        });
        if let Some(unsent) = unsent {
            let timeout = core.limits.write_timeout;
            let bytes = unsent.bytes.ok_or(SocketError::Shed)?;
            self.socket.write_all(&bytes, timeout).await?;
            core.metrics.sse_events_total.count(1);
            let seen_ns = &mut work.standing.delivered_ns;
            core.latency.delivered(unsent.published_ns, seen_ns);
        }
        Ok(work)
    }

    async fn end(&mut self, core: &Core, mut work: Box<Work>) -> Result<(), SocketError> {
        if work.standing.shape.chunked {
            encode::last_chunk(&mut work.out);
        }
        self.flush(core, &mut work.out).await?;
        self.socket.end_writing().await;
        Ok(())
    }
}

impl Standing {
    /// A control event that says where it is.
    fn control(&self, core: &Core, closed: bool) -> Control {
        Control {
            next: self.at,
            cursor: core.cursor(self.cursor.map(NonZeroU64::get)),
            up_to_date: self.up_to_date,
            closed,
        }
    }
}

impl Shape {
    /// Appends `parts` as one chunk, or as they are.
    pub(super) fn push(self, parts: &[&[u8]], out: &mut Vec<u8>) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 {
            return;
        }
        if self.chunked {
            encode::chunk_start(out, len as u64);
        }
        parts.iter().for_each(|part| out.extend_from_slice(part));
        if self.chunked {
            encode::chunk_end(out);
        }
    }
}

/// It did not wait: this cannot be, and its client comes back at the offset that it knows.
fn nowhere() -> SocketError {
    debug_assert!(false, "an event stream was woken that did not wait");
    SocketError::Broken(ErrorKind::Other.into())
}

/// Asks shard `owner` for the event of stream `incarnation` at `start`.
///
/// # Errors
/// The stream's refusal; [`Refusal::LiveReadLimit`] when there is no memory for it.
pub(super) async fn fetch(
    core: &Rc<Core>,
    owner: usize,
    incarnation: Incarnation,
    shape: Shape,
    start: u64,
) -> Result<Fetched, Refusal> {
    let request = EventRequest {
        incarnation,
        surface: shape.surface,
        start,
        bytes_max: u64::from(shape.bytes_max),
    };
    let reply = core.ask_shard(owner, Request::Event(request)).await?;
    let Reply::Event(reply) = reply else {
        return Err(Refusal::Internal);
    };
    let mut text = vec![0; HEAD_ROOM];
    let pieces = core.load(reply.runs).await?;
    match pieces.as_slice() {
        [] => {}
        [piece] => {
            sse::data_event(shape.framing, piece, reply.after_cr, &mut text);
        }
        pieces => {
            let whole = pieces.concat();
            sse::data_event(shape.framing, &whole, reply.after_cr, &mut text);
        }
    }
    text.reserve_exact(CONTROL_ROOM);
    let mut charge = core.unsent.charge();
    let kept = charge.keep(text.capacity());
    kept.map_err(|_| Refusal::LiveReadLimit)?;
    Ok(Fetched {
        end: reply.window.end,
        tail: reply.window.tail,
        closed: reply.window.closed,
        text,
        charge,
    })
}
