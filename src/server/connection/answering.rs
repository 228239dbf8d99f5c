//! The answer to the request in hand: its head, then its body from wherever it
//! is, in pieces that others get their turn between.

use std::sync::Arc;

use super::{Client, OUTPUT_BYTES};
use crate::{
    base::limits::{PIECE_BYTES, WIDE_ANSWER_BYTES_MIN},
    http::{
        answer::{self, Body, Envelope, Piece},
        head,
        operation::ReadOperation,
    },
    protocol::error::Refusal,
    server::{
        exchange::FilePieces, live, socket::SocketError, stored::ReadAhead, turnstile::Share,
        unsent::Wide,
    },
    shard::request::{Reply, Request, Target},
    storage::blob::BlobFile,
};

impl Client {
    /// A HEAD of a stream, in place: it is asked often, and seldom waits.
    pub(super) async fn head(
        &mut self,
        target: Target,
        unless_any: bool,
        envelope: &Envelope,
    ) -> Result<(), SocketError> {
        let core = &self.core;
        let owner = core.placement.owner(&target.key);
        let call = || core.call_shard(owner, Request::Head(target));
        let asked = core.latency.within(&mut self.watch, call);
        match core.latency.scope(&mut self.watch, asked).await {
            Ok(Reply::Head(stream)) => {
                let shared = core.shared.borrow();
                head::answer(
                    envelope,
                    &shared,
                    &stream,
                    unless_any,
                    &core.named_limits,
                    &mut self.out,
                );
            }
            Ok(_) => return self.answer(Err(Refusal::Internal), envelope).await,
            Err(refusal) => return self.answer(Err(refusal), envelope).await,
        }
        self.begin_answer();
        self.end_answer().await
    }

    /// A catch-up read, of which the head, and perhaps the body, are in `out` then. What is small and in
    /// memory needs no future of its own: it is asked for often, and seldom waits.
    pub(super) async fn catch_up(
        &mut self,
        operation: &ReadOperation,
        envelope: &Envelope,
    ) -> Result<Body, Refusal> {
        let core = &self.core;
        let owner = core.placement.owner(&operation.target.key);
        let call = || core.call_shard(owner, Request::Read(live::request_of(operation), None));
        let asked = core.latency.within(&mut self.watch, call);
        let reply = match core.latency.scope(&mut self.watch, asked).await? {
            Reply::Read(reply) => {
                match live::answer_at_hand(core, operation, reply, envelope, &mut self.out) {
                    Ok(body) => return Ok(body),
                    Err(reply) => Reply::Read(reply),
                }
            }
            reply => reply,
        };
        let rest = live::catch_up(core, operation, reply, envelope, &mut self.out);
        core.latency.scope(&mut self.watch, Box::pin(rest)).await
    }

    /// Writes the answer to a read, and counts it.
    pub(super) async fn answer_to_read(
        &mut self,
        outcome: Result<Body, Refusal>,
        envelope: &Envelope,
    ) -> Result<(), SocketError> {
        let is_read = u64::from(outcome.is_ok());
        self.core.metrics.reads_total.count(is_read);
        if let Ok(Body::None) = &outcome {
            self.begin_answer();
            return self.end_answer().await;
        }
        self.answer(outcome, envelope).await
    }

    /// Writes an answer: its head is in `out`, its body follows piece by piece.
    pub(super) async fn answer(
        &mut self,
        outcome: Result<Body, Refusal>,
        envelope: &Envelope,
    ) -> Result<(), SocketError> {
        let mut body = match outcome {
            Ok(body) => body,
            Err(refusal) => {
                self.core.metrics.refused(&refusal);
                let shared = self.core.shared.borrow();
                answer::refuse(envelope, &shared, &refusal, &mut self.out);
                Body::None
            }
        };
        let blocks = body.blocks();
        let mut ahead = match blocks.is_empty() {
            true => None,
            false => Some(ReadAhead::charged(&self.core, &blocks).map_err(|_| SocketError::Shed)?),
        };
        let mut wide = match body.is_longer_than(WIDE_ANSWER_BYTES_MIN) {
            true => self.socket.widen(&self.core.unsent_bound),
            false => None,
        };
        self.begin_answer();
        loop {
            narrow_at_end(&mut wide, &body, 0);
            match body.next(&mut self.out) {
                Piece::Done => break,
                Piece::Fetch => {
                    let Some(ahead) = &mut ahead else { break };
                    if let Err(refusal) = Box::pin(self.fetch(&mut body, ahead)).await? {
                        self.take_back(&refusal, envelope)?;
                        break;
                    }
                }
                Piece::Buffered => {
                    if self.out.len() >= OUTPUT_BYTES {
                        self.take_turn(Share::Piece).await?;
                        self.flush().await?;
                    }
                }
                Piece::File(file, start, end) => {
                    let written = Box::pin(self.write_file(file, start, end)).await?;
                    if let Err(refusal) = written {
                        self.take_back(&refusal, envelope)?;
                        break;
                    }
                }
                Piece::Shared(piece) => {
                    if piece.len().saturating_add(self.out.len()) <= OUTPUT_BYTES {
                        self.out.extend_from_slice(&piece);
                    } else {
                        self.flush().await?;
                        let timeout = self.core.limits.write_timeout;
                        let mut rest = &piece[..];
                        while !rest.is_empty() {
                            narrow_at_end(&mut wide, &body, rest.len());
                            self.take_turn(Share::Piece).await?;
                            let count_max = self.core.turnstile.piece_bytes_max();
                            let (part, after) = rest.split_at(rest.len().min(count_max));
                            self.socket.write_all(part, timeout).await?;
                            rest = after;
                        }
                    }
                }
            }
        }
        self.end_answer().await
    }

    /// The head of the answer to the request in hand is in `out`.
    fn begin_answer(&mut self) {
        let head = self.out.get(self.answer_at..).unwrap_or_default();
        self.watch.answered(head);
    }

    /// All of the answer to the request in hand is in `out`, or with the socket.
    async fn end_answer(&mut self) -> Result<(), SocketError> {
        let watch = std::mem::take(&mut self.watch);
        self.arrival = watch.next_arrival();
        if watch.is_some() {
            self.unwritten.push(watch);
        }
        if self.out.len() >= OUTPUT_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// What the answer promises cannot be read: as long as nothing of it has left it is a refusal,
    /// otherwise the connection breaks.
    fn take_back(&mut self, refusal: &Refusal, envelope: &Envelope) -> Result<(), SocketError> {
        if self.answer_at > self.out.len() {
            let cut_off = std::io::ErrorKind::UnexpectedEof;
            return Err(SocketError::Broken(cut_off.into()));
        }
        self.out.truncate(self.answer_at);
        self.core.metrics.refused(refusal);
        let shared = self.core.shared.borrow();
        answer::refuse(envelope, &shared, refusal, &mut self.out);
        Ok(())
    }

    /// Reads the next block that an answer needs, and writes what becomes of it. The inner error: it
    /// cannot be read, and nothing was written.
    async fn fetch(
        &mut self,
        body: &mut Body,
        ahead: &mut ReadAhead,
    ) -> Result<Result<(), Refusal>, SocketError> {
        if ahead.is_read_next() {
            self.take_turn(Share::Piece).await?;
        }
        let block = match ahead.next().await {
            Ok(block) => block,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !body.fetched(&block, &mut self.out) {
            if self.out.len() >= OUTPUT_BYTES {
                self.flush().await?;
            }
            return Ok(Ok(()));
        }
        if block.len().saturating_add(self.out.len()) <= OUTPUT_BYTES {
            self.out.extend_from_slice(&block);
            return Ok(Ok(()));
        }
        self.flush().await?;
        let mut blocks = vec![block];
        while body.is_stored_block_next()
            && let Some(block) = ahead.next_at_once()
        {
            let _ = body.next(&mut self.out);
            blocks.push(block);
        }
        let timeout = self.core.limits.write_timeout;
        let parts = blocks.iter().map(|block| &**block);
        self.socket.write_all_of(parts, timeout).await?;
        Ok(Ok(()))
    }

    /// Writes a part of a blob's file. The inner error: it cannot be read.
    async fn write_file(
        &mut self,
        file: Arc<BlobFile>,
        start: u64,
        end: u64,
    ) -> Result<Result<(), Refusal>, SocketError> {
        let mut charge = self.core.unsent.charge();
        if charge.set(PIECE_BYTES as u64).is_err() {
            return Err(SocketError::Shed);
        }
        let mut pieces = match FilePieces::open(&self.core, file, start, end).await {
            Ok(pieces) => pieces,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut piece = Vec::new();
        loop {
            match pieces.next(&mut piece).await {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(())),
                Err(refusal) => return Ok(Err(refusal)),
            }
            self.take_turn(Share::Piece).await?;
            self.flush().await?;
            let timeout = self.core.limits.write_timeout;
            self.socket.write_all(&piece, timeout).await?;
        }
    }
}

/// Narrows what the kernel takes once an answer is no longer long: `rest` bytes of the piece in hand
/// are to come, and what is in `body`.
fn narrow_at_end(wide: &mut Option<Wide>, body: &Body, rest: usize) {
    let Some(wide) = wide else { return };
    let is_long = match WIDE_ANSWER_BYTES_MIN.checked_sub(rest) {
        Some(besides) => body.is_longer_than(besides),
        None => true,
    };
    if !is_long {
        wide.narrow();
    }
}
