//! What a client sends: more requests, heads that come in pieces, bodies. What
//! is held meanwhile is charged, and each has its deadline.

use std::{future::poll_fn, task::Poll, time::Duration};

use super::{Client, HEAD_BYTES_UNCHARGED};
use crate::{
    http::{
        append,
        connection::{BodyEvent, Continue, Phase},
        encode,
        operation::Operation,
        parse,
        stored_body::Finished,
    },
    protocol::{
        append::{AppendRequest, check_type},
        error::Refusal,
    },
    server::{latency::stopwatch::Stage, socket::SocketError, spare::Parts},
    shard::request::{Reply, Request, Target},
};

/// What a request's body came to.
pub(super) enum Received {
    /// It is whole.
    Whole(Finished),
    /// The request is refused, and its end not waited for.
    Refused(Refusal),
    /// The framing is broken: answer and close.
    Broken(parse::Refusal),
    /// The client is gone.
    Gone,
}

impl Client {
    /// Reads what the client sends; false when the connection is to be closed.
    pub(super) async fn read_more(&mut self) -> Result<bool, SocketError> {
        let limits = &self.core.limits;
        let phase = self.connection.phase();
        if phase != Phase::Idle || self.connection.has_input() {
            return self.read_head().await;
        }
        self.core.spare.put(Parts {
            buffers: self.connection.release(),
            out: std::mem::take(&mut self.out),
            unwritten: std::mem::take(&mut self.unwritten),
        });
        self.head_charge = None;
        self.socket.seat.set_timeout(limits.idle_timeout);
        let core = self.core.clone();
        let (socket, connection) = (&mut self.socket, &mut self.connection);
        let (out, unwritten) = (&mut self.out, &mut self.unwritten);
        let mut has_waited = false;
        let more = poll_fn(|cx| {
            if socket.seat.is_draining() {
                return Poll::Ready(Ok(false));
            }
            let mut scratch = core.scratch.borrow_mut();
            let count_max = scratch.len().min(core.turnstile.read_bytes_max());
            let room = scratch.get_mut(..count_max).unwrap_or_default();
            match socket.poll_read(cx, room) {
                Poll::Ready(Ok(0)) => {
                    connection.receive_end();
                    Poll::Ready(Ok(true))
                }
                Poll::Ready(Ok(count)) => {
                    if let Some(parts) = core.spare.take() {
                        if let Some(buffers) = parts.buffers {
                            connection.lend(buffers);
                        }
                        (*out, *unwritten) = (parts.out, parts.unwritten);
                    }
                    // The buffer is empty and larger than what one read brings.
                    let taken = connection.receive(scratch.get(..count).unwrap_or_default());
                    debug_assert_eq!(taken, count);
                    Poll::Ready(Ok(taken == count))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    has_waited = true;
                    match socket.poll_over(cx) {
                        Poll::Ready(Err(SocketError::TimedOut)) => {
                            core.metrics.idle_closes_total.increment();
                            Poll::Ready(Ok(false))
                        }
                        other => other,
                    }
                }
            }
        })
        .await;
        if has_waited {
            self.served = 0;
            self.gate.waited();
        }
        more
    }

    /// Reads more of a head, or of what is to be skipped before it. One deadline holds for all of
    /// it, however often the client sends a little.
    async fn read_head(&mut self) -> Result<bool, SocketError> {
        let core = &self.core;
        let charge = self.head_charge.get_or_insert_with(|| {
            self.socket.seat.set_timeout(core.limits.head_timeout);
            core.requests.charge()
        });
        let read_max = core.turnstile.read_bytes_max();
        let space = self.connection.space_up_to(read_max).len();
        let bytes = self.connection.memory_bytes();
        let charged = bytes.saturating_sub(HEAD_BYTES_UNCHARGED) as u64;
        if charge.set(charged).is_err() {
            return Err(SocketError::Shed);
        }
        debug_assert!(space > 0);
        let space = self.connection.space_up_to(read_max);
        match self.socket.read(space).await {
            Ok(count) => {
                self.connection.received(count);
                Ok(true)
            }
            Err(SocketError::TimedOut) => {
                self.core.metrics.head_timeouts_total.increment();
                self.refuse_framing(&parse::Refusal::TIMEOUT);
                self.flush().await?;
                self.socket.end_writing().await;
                Ok(false)
            }
            Err(broken) => Err(broken),
        }
    }

    /// Receives the body of a request that takes one.
    pub(super) async fn body(&mut self, operation: &Operation) -> Result<Received, SocketError> {
        let limit = self.core.limits.request_bytes_max;
        let Some(mut body) = operation.body() else {
            return Ok(Received::Refused(Refusal::Internal));
        };
        match self.connection.accept_body(limit) {
            Err(refusal) => return Ok(refused_body(refusal, limit)),
            Ok(Continue::No) => {}
            Ok(Continue::Send) => {
                self.settle().await;
                if let Err(refusal) = Box::pin(self.look_ahead(operation)).await {
                    self.connection.reject();
                    self.connection.close_after_this();
                    return Ok(Received::Refused(refusal));
                }
                self.out.extend_from_slice(encode::CONTINUE);
            }
        }
        let mut charge = self.core.requests.charge();
        let whole_len = match self.connection.head().framing {
            parse::Framing::Length(len) => Some(len),
            _ => None,
        };
        let mut waiting_since_ns = None;
        loop {
            match self.connection.next_body() {
                BodyEvent::Piece(piece) => {
                    let is_whole = whole_len == Some(piece.len() as u64);
                    let pushed = if is_whole {
                        body.push_whole(piece)
                    } else {
                        body.push(piece)
                    };
                    if let Err(refusal) = pushed {
                        self.connection.reject();
                        return Ok(Received::Refused(refusal));
                    }
                }
                BodyEvent::Done => {
                    return Ok(match body.finish(operation.digest()) {
                        Ok(finished) => Received::Whole(finished),
                        Err(refusal) => Received::Refused(refusal),
                    });
                }
                BodyEvent::Refused(refusal) => return Ok(refused_body(refusal, limit)),
                BodyEvent::Truncated => return Ok(Received::Gone),
                BodyEvent::NeedInput => {
                    // What is there at once costs nobody else anything: only what is waited for
                    // is charged.
                    let input = self.connection.memory_bytes() as u64;
                    if charge
                        .set(body.memory_bytes().saturating_add(input))
                        .is_err()
                    {
                        self.connection.reject();
                        return Ok(Received::Refused(Refusal::BodyBudget));
                    }
                    self.core.latency.lap(&mut self.watch, Stage::Body);
                    self.settle().await;
                    self.flush().await?;
                    let limits = &self.core.limits;
                    let now_ns = self.core.clock.monotonic_ns();
                    let spent_ns = now_ns.saturating_sub(*waiting_since_ns.get_or_insert(now_ns));
                    let left = limits
                        .body_total_timeout
                        .saturating_sub(Duration::from_nanos(spent_ns));
                    self.socket.seat.set_timeout(limits.body_timeout.min(left));
                    match self.socket.read(self.connection.space()).await {
                        Ok(count) => {
                            self.connection.received(count);
                            self.core.latency.lap(&mut self.watch, Stage::Wait);
                        }
                        Err(SocketError::TimedOut) => {
                            self.core.metrics.body_timeouts_total.increment();
                            self.connection.reject();
                            self.connection.close_after_this();
                            return Ok(Received::Broken(parse::Refusal::TIMEOUT));
                        }
                        Err(broken) => return Err(broken),
                    }
                    self.took_one().await?;
                }
            }
        }
    }

    /// What an append comes to whose body is not the JSON text that its type promises, where the
    /// stream is of another type: it asks nothing of such a body (base protocol 5.2: the mismatch is
    /// 409, a closed stream before it).
    pub(super) async fn wrong_type(&self, request: &AppendRequest) -> Option<Refusal> {
        let target = Target {
            key: request.key.clone(),
            precondition: request.precondition,
        };
        let asked = self.core.call(&request.key, Request::Head(target)).await;
        let Ok(Reply::Head(stream)) = asked else {
            return None;
        };
        let got = request.content_type.as_ref()?;
        let tail = stream.extent.tail;
        let mismatch = check_type(got, &stream.content_type, tail).err()?;
        match (stream.extent.closed, &request.producer) {
            (true, None) => Some(Refusal::Closed { tail }),
            // It may be the request that closed the stream, which is told only with its body.
            (true, Some(_)) => None,
            (false, _) => Some(mismatch),
        }
    }

    /// Before a client is told to send a body: would it be refused whatever the body is?
    async fn look_ahead(&mut self, operation: &Operation) -> Result<(), Refusal> {
        let framing = self.connection.head().framing;
        if let (Operation::Append(request), parse::Framing::Length(len)) = (operation, framing) {
            append::check(request, len)?;
        }
        let Some(target) = operation.written_stream() else {
            return Ok(());
        };
        let key = target.key.clone();
        let Reply::Head(stream) = self.core.call(&key, Request::Head(target)).await? else {
            return Err(Refusal::Internal);
        };
        let Operation::Append(request) = operation else {
            return Ok(());
        };
        let tail = stream.extent.tail;
        if stream.extent.closed && request.producer.is_none() {
            return Err(Refusal::Closed { tail });
        }
        match &request.content_type {
            Some(got) => check_type(got, &stream.content_type, tail),
            None => Ok(()),
        }
    }
}

fn refused_body(refusal: parse::Refusal, limit: u64) -> Received {
    if refusal.status == 413 {
        Received::Refused(Refusal::RequestTooLarge { limit })
    } else {
        Received::Broken(refusal)
    }
}
