//! One request, from operation to answer: asks the owner, waits for what the
//! outcome rests on, and writes the head of the answer.

use std::{rc::Rc, sync::Arc};

use bytes::Bytes;

use crate::{
    base::limits::{BLOB_FILE_BYTES_MIN, PIECE_BYTES},
    http::{
        answer::{self, Body, Envelope},
        append, bootstrap, create, head,
        operation::Operation,
        retention, snapshot,
        stored_body::Finished,
    },
    protocol::{
        error::Refusal,
        incarnation::Incarnation,
        producer::Digest,
        snapshot::{Digester, PublishRequest, hex, parse_manifest},
    },
    server::core::Core,
    shard::{
        across,
        request::{CommitRequest, Reply, Request, Target},
        stream::{Blob, blob_key},
    },
    storage::{
        StorageError,
        blob::{BlobFile, BlobId, BlobReader},
        disk::GlommioDisk,
    },
};

/// Carries out an operation that neither tails nor is a HEAD of a stream, and writes its answer's
/// head.
///
/// # Errors
/// The refusal to answer with; nothing was written.
pub async fn perform(
    core: &Rc<Core>,
    operation: Operation,
    body: Finished,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    match operation {
        Operation::Preflight => answer::preflight(envelope, &core.shared.borrow(), out),
        Operation::PutBucket => head::bucket(envelope, &core.shared.borrow(), out),
        Operation::Create {
            mut request,
            host,
            path,
        } => {
            request.body = body.bytes;
            let created = across::create(&**core, request).await?;
            let shared = core.shared.borrow();
            create::answer(envelope, &shared, &created, host.as_deref(), &path, out);
        }
        Operation::Append(request) => {
            let key = request.key.clone();
            match core.call(&key, Request::Append(request)).await? {
                Reply::Appended(appended) => {
                    append::answer(envelope, &core.shared.borrow(), &appended, out);
                }
                _ => return Err(Refusal::Internal),
            }
        }
        Operation::Delete(target) => {
            let key = target.key.clone();
            core.call(&key, Request::Delete(target)).await?;
            // There is no stream any more whose token could be named.
            head::done(envelope, &core.shared.borrow(), None, out);
        }
        Operation::Unless(target) => {
            let key = target.key.clone();
            let Reply::Head(stream) = core.call(&key, Request::Head(target)).await? else {
                return Err(Refusal::Internal);
            };
            return Err(Refusal::PreconditionFailed {
                current: stream.extent.incarnation,
            });
        }
        Operation::Publish {
            target,
            offset,
            content_type,
        } => {
            let mut digester = Digester::new(&content_type);
            for piece in body.bytes.chunks(PIECE_BYTES) {
                digester.update(piece);
                yield_if_needed().await;
            }
            let request = PublishRequest {
                key: target.key.clone(),
                precondition: target.precondition,
                offset,
                content_type,
                digest: digester.finish(),
            };
            let body = store(core, body.bytes).await?;
            let publish = Request::Publish(request, body);
            published(core, &target, publish, envelope, out).await?;
        }
        Operation::Commit {
            target,
            offset,
            content_type,
            digest,
            count,
        } => {
            let ids = parse_manifest(&count, &body.bytes)?;
            let request = CommitRequest {
                target,
                offset,
                content_type,
                digest,
                ids: ids.into(),
                bytes_max: core.limits.snapshot_bytes_max,
            };
            commit(core, request, envelope, out).await?;
        }
        Operation::StagePart(target) => {
            let random = core.rng.borrow_mut().unguessable::<32>();
            let id: Box<str> = String::from_utf8_lossy(&hex(&random)).into();
            let key = target.key.clone();
            let body = store(core, body.bytes).await?;
            let request = Request::StagePart(target, id.clone(), body);
            let Reply::Done(incarnation) = core.call(&key, request).await? else {
                return Err(Refusal::Internal);
            };
            snapshot::staged(envelope, &core.shared.borrow(), &id, incarnation, out);
        }
        Operation::DiscardParts(target) => {
            let key = target.key.clone();
            let Reply::Done(incarnation) = core.call(&key, Request::DiscardParts(target)).await?
            else {
                return Err(Refusal::Internal);
            };
            head::done(envelope, &core.shared.borrow(), Some(incarnation), out);
        }
        Operation::ReadSnapshot {
            key,
            precondition,
            offset,
            range,
            if_none_match,
        } => {
            let target = Target {
                key: key.clone(),
                precondition,
            };
            let request = Request::ReadSnapshot(target, offset);
            let Reply::Snapshot(reply) = core.call(&key, request).await? else {
                return Err(Refusal::Internal);
            };
            let context = snapshot::SnapshotContext {
                precondition,
                range: range.as_deref(),
                if_none_match: if_none_match.as_deref(),
            };
            return snapshot::read(envelope, &core.shared.borrow(), &reply, &context, out);
        }
        Operation::Retain(target, offset) => {
            let key = target.key.clone();
            let Reply::Retained(retained, incarnation) =
                core.ask(&key, Request::Retain(target, offset)).await?
            else {
                return Err(Refusal::Internal);
            };
            retention::answer(envelope, &core.shared.borrow(), retained, incarnation, out);
        }
        Operation::Bootstrap(request) => {
            let key = request.key.clone();
            let Reply::Bootstrap(mut reply) = core.ask(&key, Request::Bootstrap(request)).await?
            else {
                return Err(Refusal::Internal);
            };
            let updates = core.load_charged(std::mem::take(&mut reply.runs)).await?;
            let random = core.rng.borrow_mut().unguessable::<16>();
            return Ok(bootstrap::answer(
                envelope,
                &core.shared.borrow(),
                &reply,
                updates,
                random,
                out,
            ));
        }
        Operation::Read(_) | Operation::Head { .. } => return Err(Refusal::Internal),
    }
    Ok(Body::None)
}

async fn published(
    core: &Rc<Core>,
    target: &Target,
    request: Request,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let Reply::Published(meta, incarnation) = core.ask(&target.key, request).await? else {
        return Err(Refusal::Internal);
    };
    snapshot::published(envelope, &core.shared.borrow(), &meta, incarnation, out);
    Ok(())
}

/// Publishes a snapshot from its parts: reserve, hash in slices while appends go on, publish.
async fn commit(
    core: &Rc<Core>,
    mut request: CommitRequest,
    envelope: &Envelope,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let target = request.target.clone();
    let begin = Request::BeginCommit(request.clone());
    match core.ask(&target.key, begin).await? {
        Reply::Published(meta, incarnation) => {
            snapshot::published(envelope, &core.shared.borrow(), &meta, incarnation, out);
            Ok(())
        }
        Reply::Parts(parts, _pinned, incarnation) => {
            let digest = digest_of(core, &request, &parts, incarnation).await;
            if let Err(refusal) = &digest {
                tracing::error!(code = refusal.code(), "a snapshot part could not be read");
            }
            let matches = digest
                .as_ref()
                .is_ok_and(|digest| *digest == request.digest);
            // The parts were reserved at this incarnation; another must not be touched.
            request.target.precondition = Some(incarnation);
            let end = Request::EndCommit(request.clone(), matches);
            let outcome = published(core, &target, end, envelope, out).await;
            if matches!(outcome, Err(Refusal::MailboxFull)) {
                // The owner never heard of it: the reservation must not stay.
                let owner = core.placement.owner(&target.key);
                core.desk.notify(owner, Request::EndCommit(request, false));
            }
            digest.and(outcome)
        }
        _ => Err(Refusal::Internal),
    }
}

/// Puts a body where it belongs: small ones into the record, others into a file of their own,
/// durable before their record is staged.
async fn store(core: &Rc<Core>, body: Bytes) -> Result<Blob, Refusal> {
    if body.len() < BLOB_FILE_BYTES_MIN {
        return Ok(Blob::Memory(body));
    }
    core.shard.check_writes()?;
    let id = BlobId(core.rng.borrow_mut().unguessable::<16>());
    match core.blobs.write(id, &body).await {
        Ok(file) => Ok(Blob::File(file)),
        Err(error) => {
            tracing::error!("{error}");
            Err(if error.is_full() {
                Refusal::DiskPressure
            } else {
                Refusal::ApplyStopped
            })
        }
    }
}

async fn digest_of(
    core: &Rc<Core>,
    request: &CommitRequest,
    parts: &[Blob],
    stream: Incarnation,
) -> Result<Digest, Refusal> {
    let mut digester = Digester::new(&request.content_type);
    let mut piece = Vec::new();
    for part in parts {
        match part {
            Blob::Memory(bytes) => digester.update(bytes),
            Blob::Block(place) => {
                let read = core.blocks.read(&[(*place, blob_key(stream))]).await;
                for bytes in read.map_err(failed_read)? {
                    digester.update(&bytes);
                }
            }
            Blob::File(file) => {
                let mut pieces = FilePieces::open(core, file.clone(), 0, file.len).await?;
                while pieces.next(&mut piece).await? {
                    digester.update(&piece);
                    yield_if_needed().await;
                }
            }
        }
        yield_if_needed().await;
    }
    Ok(digester.finish())
}

/// A part of a blob's file, read piece by piece.
pub struct FilePieces {
    reader: BlobReader<GlommioDisk>,
    at: u64,
    end: u64,
}

impl FilePieces {
    /// Opens `[start, end)` of a blob's file.
    ///
    /// # Errors
    /// [`Refusal::Internal`]; the log says why.
    pub async fn open(
        core: &Rc<Core>,
        file: Arc<BlobFile>,
        start: u64,
        end: u64,
    ) -> Result<Self, Refusal> {
        let reader = core.blobs.open(file).await.map_err(failed_read)?;
        Ok(Self {
            reader,
            at: start,
            end,
        })
    }

    /// Reads the next piece into `piece`; false at the end.
    ///
    /// # Errors
    /// [`Refusal::Internal`]; the log says why.
    pub async fn next(&mut self, piece: &mut Vec<u8>) -> Result<bool, Refusal> {
        piece.clear();
        if self.at >= self.end {
            return Ok(false);
        }
        let read = self.reader.read(self.at, self.end, PIECE_BYTES, piece);
        self.at = read.await.map_err(failed_read)?.saturating_add(self.at);
        Ok(true)
    }
}

fn failed_read(error: StorageError) -> Refusal {
    tracing::error!("{error}");
    Refusal::Internal
}

/// Lets other tasks of this core run when this one has had its share.
pub async fn yield_if_needed() {
    glommio::executor().yield_if_needed().await;
}
