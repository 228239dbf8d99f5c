//! One client's connection, from accept to close: moves bytes between its
//! socket and the machine that speaks HTTP, and runs its requests in order.
//!
//! Pipelined appends are staged as they are read and answered in order once
//! they are durable, so that one connection can fill a batch; every other
//! request first waits for the answers before it. While nothing is asked, a
//! connection holds no buffer, and one that follows a stream is a smaller task
//! of its own. A panic in a request ends its connection, not its core.

mod answering;
mod receiving;

use std::{
    collections::VecDeque, future::poll_fn, panic::AssertUnwindSafe, pin::pin, rc::Rc, thread,
};

use futures_lite::FutureExt as _;

use self::receiving::Received;

use crate::{
    base::limits::{KIB, REQUESTS_PER_TURN},
    http::{
        answer::{self, Envelope},
        append,
        connection::{Connection, ConnectionLimits, DrainEvent, HeadEvent, Next},
        headers::Headers,
        operation::Operation,
        parse,
        route::route,
        stored_body::Finished,
    },
    protocol::{error::Refusal, read::Live},
    server::{
        budget::Charge,
        core::{Core, Pending},
        event_stream::{self, EventStream, Opened},
        exchange::{perform, yield_if_needed},
        latency::{Timed, sample::Arrival, stopwatch::Stage},
        live,
        socket::{Socket, SocketError},
        turnstile::{Gate, Share},
    },
    shard::request::{Reply, Request},
};

/// Output is written out when this much has gathered, in bytes.
const OUTPUT_BYTES: usize = 32 * KIB;
/// Input that a connection may hold while a head is incomplete, uncharged, in bytes.
const HEAD_BYTES_UNCHARGED: usize = 4 * KIB;

/// Serves a connection until it ends.
pub async fn serve(core: Rc<Core>, socket: Socket) {
    let gate = Rc::<Gate>::default();
    let mut client = Client {
        connection: Connection::new(ConnectionLimits::from(&core.limits)),
        socket,
        out: Vec::new(),
        pending: VecDeque::new(),
        head_charge: None,
        served: 0,
        arrival: Arrival::default(),
        gate: gate.clone(),
        watch: Timed::default(),
        unwritten: Vec::new(),
        answer_at: 0,
        opened: None,
        core: core.clone(),
    };
    let served = {
        let work = pin!(AssertUnwindSafe(client.run()).catch_unwind());
        let is_over = || core.seats.is_draining();
        core.turnstile.run(&gate, is_over, work).await
    };
    if let (Ok(Ok(())), Some(opened)) = (&served, client.opened) {
        let mut stream = EventStream::new(&core, *opened, client.socket, client.out);
        glommio::spawn_local(async move {
            let served = AssertUnwindSafe(stream.run()).catch_unwind().await;
            if let Ok(Err(SocketError::TimedOut | SocketError::Shed)) = &served {
                stream.core().metrics.event_stream_drops_total.increment();
            }
            account(stream.core(), &served);
        })
        .detach();
        return;
    }
    account(&core, &served);
}

/// Counts how a connection ended.
fn account(core: &Core, served: &thread::Result<Result<(), SocketError>>) {
    match served {
        Ok(Ok(())) => {}
        Ok(Err(SocketError::Broken(_))) => core.metrics.broken_total.increment(),
        Ok(Err(SocketError::TimedOut)) => core.metrics.write_timeouts_total.increment(),
        Ok(Err(SocketError::Shed)) => core.metrics.shed_total.increment(),
        Ok(Err(SocketError::Flooded)) => core.metrics.event_stream_floods_total.increment(),
        Err(_) => {
            core.metrics.panics_total.increment();
            tracing::error!("a request panicked; its connection was closed");
        }
    }
}

struct Client {
    core: Rc<Core>,
    socket: Socket,
    connection: Connection,
    out: Vec<u8>,
    pending: VecDeque<Staged>,
    /// While a head is waited for: its deadline is set, and this is what it is charged.
    head_charge: Option<Charge>,
    /// Requests served since its last turn, or since it last waited for anything.
    served: u32,
    /// Its place at the turnstile.
    gate: Rc<Gate>,
    /// When the bytes came that are next to be looked at.
    arrival: Arrival,
    /// Times the request in hand.
    watch: Timed,
    /// Time the requests whose answers are in `out`, or were until now.
    unwritten: Vec<Timed>,
    /// Where in `out` the answer to the request in hand begins; nowhere once some of it was written.
    answer_at: usize,
    /// The event stream that follows when it has run; its head is in `out`.
    opened: Option<Box<Opened>>,
}

/// An append whose answer is awaited.
struct Staged {
    pending: Pending,
    envelope: Envelope,
    watch: Timed,
    body_bytes: u64,
}

impl Client {
    async fn run(&mut self) -> Result<(), SocketError> {
        loop {
            match self.connection.next_head() {
                HeadEvent::Head => {
                    self.head_charge = None;
                    if !self.request().await? {
                        return Ok(());
                    }
                    self.took_one().await?;
                }
                HeadEvent::NeedInput => {
                    self.settle().await;
                    self.flush().await?;
                    if !self.read_more().await? {
                        return Ok(());
                    }
                    self.arrival = self.core.latency.arrival();
                }
                HeadEvent::Refused(refusal) => {
                    self.settle().await;
                    self.refuse_framing(&refusal);
                    return self.finish().await.map(|_| ());
                }
                end @ (HeadEvent::Truncated | HeadEvent::Closed) => {
                    let is_cut = end == HeadEvent::Truncated;
                    self.core.metrics.truncated_total.count(is_cut.into());
                    self.settle().await;
                    return self.flush().await;
                }
            }
        }
    }

    /// Runs the request whose head is in hand; false when the connection is to be closed.
    async fn request(&mut self) -> Result<bool, SocketError> {
        self.core.metrics.requests_total.increment();
        if self.socket.seat.is_draining() {
            self.connection.close_after_this();
        }
        let head = self.connection.head();
        let (method, version_minor) = (head.method, head.version_minor);
        let (mut envelope, operation) = {
            let headers = Headers::collect(self.connection.headers());
            let envelope = Envelope::new(method, version_minor, &headers);
            let routed = route(method, self.connection.target());
            let operation = routed.and_then(|routed| Operation::new(routed, &headers));
            (envelope, operation)
        };
        let target = self.connection.target();
        self.watch = self.core.latency.start(self.arrival, method, target);
        let received = match &operation {
            Err(refusal) => {
                self.connection.reject();
                Received::Refused(refusal.clone())
            }
            Ok(operation) if operation.body().is_some() => {
                let received = self.body(operation).await?;
                self.core.latency.lap(&mut self.watch, Stage::Body);
                received
            }
            Ok(_) => {
                self.connection.reject();
                Received::Whole(Finished {
                    bytes: bytes::Bytes::new(),
                    received: 0,
                    is_json: false,
                })
            }
        };
        envelope.close = self.connection.should_close();
        let body = match received {
            Received::Gone => {
                self.core.metrics.truncated_total.increment();
                self.settle().await;
                self.flush().await?;
                return Ok(false);
            }
            Received::Broken(refusal) => {
                self.settle().await;
                self.refuse_framing(&refusal);
                return self.finish().await;
            }
            Received::Refused(refusal) => Err(refusal),
            Received::Whole(body) => Ok(body),
        };
        let body = body.and_then(|body| {
            if let Ok(Operation::Append(request)) = &operation {
                append::check(request, body.received)?;
                if body.received > 0 && body.bytes.is_empty() {
                    return Err(Refusal::EmptyJsonArray);
                }
            }
            Ok(body)
        });
        match (operation, body) {
            (Ok(Operation::Append(mut request)), Ok(body)) => {
                self.watch.set_body_bytes(body.received);
                request.body = body.bytes;
                let key = request.key.clone();
                let mut watch = std::mem::take(&mut self.watch);
                let call = || self.core.call(&key, Request::Append(request));
                let pending = self.core.latency.within(&mut watch, call);
                self.arrival = watch.next_arrival();
                let staged = Staged {
                    pending,
                    envelope,
                    watch,
                    body_bytes: body.received,
                };
                self.pending.push_back(staged);
                if self.pending.len() >= self.core.limits.pipeline_max.max(1) {
                    self.settle().await;
                }
            }
            (Ok(Operation::Read(operation)), Ok(_)) if operation.query.live == Live::No => {
                self.settle().await;
                let outcome = self.catch_up(&operation, &envelope).await;
                self.answer_to_read(outcome, &envelope).await?;
            }
            (Ok(Operation::Read(operation)), Ok(_)) => {
                self.settle().await;
                return Box::pin(self.read_live(operation, envelope)).await;
            }
            (Ok(Operation::Head { target, unless_any }), Ok(_)) => {
                self.settle().await;
                self.head(target, unless_any, &envelope).await?;
            }
            (Ok(operation), Ok(body)) => {
                self.settle().await;
                // Boxed, as what follows below: a connection that asks for nothing is as small as
                // the largest future it holds in place.
                let performed = perform(&self.core, operation, body, &envelope, &mut self.out);
                let performed = Box::pin(performed);
                let latency = &self.core.latency;
                let outcome = latency.scope(&mut self.watch, performed).await;
                self.answer(outcome, &envelope).await?;
            }
            (
                Ok(Operation::Append(request)),
                Err(refusal @ (Refusal::InvalidJson(_) | Refusal::EmptyJsonArray)),
            ) => {
                self.settle().await;
                let other = Box::pin(self.wrong_type(&request)).await;
                self.answer(Err(other.unwrap_or(refusal)), &envelope)
                    .await?;
            }
            (_, Err(refusal)) | (Err(refusal), _) => {
                self.settle().await;
                self.answer(Err(refusal), &envelope).await?;
            }
        }
        self.finish().await
    }

    /// A long-poll, or an event stream, which stays open.
    async fn read_live(
        &mut self,
        operation: crate::http::operation::ReadOperation,
        mut envelope: Envelope,
    ) -> Result<bool, SocketError> {
        if operation.query.live != Live::Sse {
            // It may wait for long, and the answers before it are ready.
            self.flush().await?;
            self.answer_at = self.out.len();
            let outcome = live::long_poll(
                &self.core,
                &operation,
                &envelope,
                &mut self.socket,
                &mut self.connection,
                &mut self.out,
            );
            let outcome = Box::pin(outcome);
            let latency = &self.core.latency;
            let outcome = latency.scope(&mut self.watch, outcome).await;
            self.answer_to_read(outcome, &envelope).await?;
            return self.finish().await;
        }
        // What a client sends into an event stream is not read as requests: it closes after it.
        self.connection.close_after_this();
        envelope.close = true;
        let opened = event_stream::open(&self.core, &operation, &envelope, &mut self.out);
        let opened = Box::pin(opened);
        let latency = &self.core.latency;
        match latency.scope(&mut self.watch, opened).await {
            Ok(opened) => {
                self.core.latency.opened(&mut self.watch);
                self.opened = Some(Box::new(opened));
                Ok(false)
            }
            Err(refusal) => {
                self.answer(Err(refusal), &envelope).await?;
                self.finish().await
            }
        }
    }

    /// Waits for the appends before, and writes their answers in order.
    async fn settle(&mut self) {
        while let Some(staged) = self.pending.pop_front() {
            let Staged {
                pending,
                envelope,
                mut watch,
                body_bytes,
            } = staged;
            let mut outcome = pin!(self.core.latency.scope(&mut watch, pending));
            let outcome = poll_fn(|cx| {
                let outcome = outcome.as_mut().poll(cx);
                if outcome.is_pending() {
                    // Others have their turn meanwhile.
                    self.served = 0;
                }
                outcome
            })
            .await;
            let answer_at = self.out.len();
            let shared = self.core.shared.borrow();
            let refusal = match outcome {
                Ok(Reply::Appended(appended)) => {
                    append::answer(&envelope, &shared, &appended, &mut self.out);
                    self.core.metrics.appends_total.count(1);
                    self.core.metrics.append_bytes_total.count(body_bytes);
                    None
                }
                Ok(_) => Some(Refusal::Internal),
                Err(refusal) => Some(refusal),
            };
            if let Some(refusal) = refusal {
                self.core.metrics.refused(&refusal);
                answer::refuse(&envelope, &shared, &refusal, &mut self.out);
            }
            watch.answered(self.out.get(answer_at..).unwrap_or_default());
            if watch.is_some() {
                self.unwritten.push(watch);
            }
        }
        self.answer_at = self.out.len();
    }

    /// Counts a request that was done without a wait; after a full share others get their turn.
    async fn took_one(&mut self) -> Result<(), SocketError> {
        self.served = self.served.saturating_add(1);
        if self.served < REQUESTS_PER_TURN {
            return Ok(());
        }
        let share = self.gate.next_share();
        self.take_turn(share).await
    }

    /// Waits for its turn. Pieces of large answers have one each, also the first: hundreds that ask
    /// for one at once would all have theirs before whoever comes next.
    async fn take_turn(&mut self, share: Share) -> Result<(), SocketError> {
        self.served = 0;
        if self.core.turnstile.is_crowded() {
            // It may take long: answers do not wait for more of their kind.
            self.settle().await;
            self.flush().await?;
        }
        // What it holds meanwhile: requests that wait, and answers.
        let held = self.connection.memory_bytes();
        let held = held.saturating_add(self.out.capacity());
        let mut charge = self.core.requests.charge();
        let charged = held.saturating_sub(HEAD_BYTES_UNCHARGED) as u64;
        charge.set(charged).map_err(|_| SocketError::Shed)?;
        self.core.metrics.turns_total.increment();
        self.core.turnstile.pass_at(&self.gate, share).await;
        Ok(())
    }

    fn refuse_framing(&mut self, refusal: &parse::Refusal) {
        self.core.metrics.refusals_total.increment();
        let is_too_large =
            matches!(refusal.status, 413 | 414 | 431) || *refusal == parse::Refusal::BODY_OVERHEAD;
        self.core.metrics.too_large_total.count(is_too_large.into());
        let limit = self.core.limits.request_bytes_max;
        let shared = self.core.shared.borrow();
        answer::refuse_framing(&shared, refusal, limit, &mut self.out);
    }

    /// Ends the request in hand; false when the connection is to be closed.
    async fn finish(&mut self) -> Result<bool, SocketError> {
        match self.connection.finish() {
            Next::Head => Ok(true),
            Next::Close => {
                self.settle().await;
                self.flush().await?;
                self.socket.end_writing().await;
                Ok(false)
            }
            Next::Drain => {
                self.settle().await;
                self.flush().await?;
                self.socket.end_writing().await;
                self.socket.seat.set_timeout(self.core.limits.drain_timeout);
                while self.connection.drain() == DrainEvent::NeedInput {
                    match self.socket.read(self.connection.space()).await {
                        Ok(count) => self.connection.received(count),
                        // It had its time to read the answer.
                        Err(_) => break,
                    }
                    yield_if_needed().await;
                }
                Ok(false)
            }
        }
    }

    async fn flush(&mut self) -> Result<(), SocketError> {
        if self.out.is_empty() {
            self.core.latency.written(&mut self.unwritten);
            return Ok(());
        }
        self.answer_at = usize::MAX;
        let besides = self.connection.memory_bytes();
        let timeout = self.core.limits.write_timeout;
        self.socket
            .write_charged(&mut self.out, besides, &self.core.unsent, timeout)
            .await?;
        self.core.latency.written(&mut self.unwritten);
        Ok(())
    }
}
