//! What takes more than one shard: a fork, and the cuts of a copy.
//!
//! Both are written over what asks the cores, which here is anything: a test
//! puts every order of other events between two steps.
//!
//! What is guaranteed of them together: a fork that one shard's [`Cut`] has
//! seen has its reference in the cut of its source's shard. The reference is
//! durable before the fork's creation is sent, and that waits at the gate,
//! which is closed from before the first cut until after the last: a fork that
//! was let through before has a reference that every cut sees, and one that was
//! not comes after all cuts.

use std::cell::Cell;

use crate::{
    protocol::{
        create::{self, CreateRequest},
        error::Refusal,
        incarnation::Incarnation,
        stream_key::StreamKey,
    },
    shard::{
        hold::{Cut, Hold},
        request::{Created, ReferRequest, Reply, Request},
    },
};

/// The cores of a process, as one of them sees them.
pub trait Cores {
    /// Asks the owner of `key`; what the answer rests on is durable.
    fn call(
        &self,
        key: &StreamKey,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Refusal>>;

    /// The same, and brings what the decision needs.
    fn ask(
        &self,
        key: &StreamKey,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Refusal>>;

    /// Tells the owner of `key`, who answers nothing.
    fn notify(&self, key: &StreamKey, request: Request);

    /// A token for a new stream.
    ///
    /// # Errors
    /// [`Refusal::Internal`] when there are no more.
    fn allocate_incarnation(&self) -> Result<Incarnation, Refusal>;

    /// Waits while the gate of a [`Hold`] is closed.
    fn pass_gate(&self) -> impl Future<Output = ()>;
}

/// Creates a stream; a fork in its two steps: the reference at the source's owner, then the
/// stream at its own.
///
/// # Errors
/// The refusal to answer with.
pub async fn create(cores: &impl Cores, request: CreateRequest) -> Result<Created, Refusal> {
    let key = request.key.clone();
    let fork = request.fork.clone();
    let reply = cores.call(&key, Request::Create(request.clone())).await?;
    let (Reply::NeedsSource, Some(fork)) = (&reply, fork) else {
        let created = created(reply)?;
        if !created.is_new {
            create::stored_body(&request, &created.content_type)?;
        }
        return Ok(created);
    };
    let incarnation = cores.allocate_incarnation()?;
    let refer = Request::Refer(ReferRequest {
        fork: fork.clone(),
        key: key.clone(),
        incarnation,
        counted: Cell::new(None),
    });
    let Reply::Referred(inherited) = cores.ask(&fork.source, refer).await? else {
        return Err(Refusal::Internal);
    };
    let source = inherited.origin.incarnation;
    let mut request = request;
    let wants_other_type = request
        .content_type
        .as_ref()
        .filter(|asked| !inherited.content_type.matches(asked));
    let outcome = match wants_other_type {
        Some(asked) => Err(Refusal::ContentTypeMismatch {
            got: asked.clone(),
            want: inherited.content_type.clone(),
            tail: inherited.origin.offset,
        }),
        None => match create::stored_body(&request, &inherited.content_type) {
            Err(refusal) => Err(refusal),
            Ok(body) => {
                request.body = body;
                request.inherited = Some(*inherited);
                cores.pass_gate().await;
                let reply = cores.call(&key, Request::Create(request)).await;
                reply.and_then(created)
            }
        },
    };
    let is_made = outcome
        .as_ref()
        .is_ok_and(|created| created.incarnation == incarnation);
    // With the outcome unknown the fork may exist: the next start finds out.
    let is_unknown = matches!(outcome, Err(Refusal::OutcomeUnknown));
    if !is_made && !is_unknown {
        let release = Request::Release {
            source,
            fork: incarnation,
        };
        cores.notify(&fork.source, release);
    }
    outcome
}

fn created(reply: Reply) -> Result<Created, Refusal> {
    match reply {
        Reply::Created(created) => Ok(created),
        _ => Err(Refusal::Internal),
    }
}

/// The cuts of all `shards` shards under hold `number`, which has just begun; `ask` asks a shard, as
/// often as it must. The gate is opened behind the last one.
///
/// # Errors
/// That of `ask`; the gate is still closed then, and the hold is to be ended.
pub async fn cut_all<E: From<Refusal>>(
    hold: &Hold,
    number: u64,
    shards: usize,
    ask: impl AsyncFn(usize, &dyn Fn() -> Request) -> Result<Reply, E>,
) -> Result<Vec<Cut>, E> {
    // Every core sees the hold; then every shard makes its cut.
    for shard in 0..shards {
        ask(shard, &|| Request::Barrier).await?;
    }
    let mut cuts = Vec::with_capacity(shards);
    for shard in 0..shards {
        match ask(shard, &|| Request::Cut(number)).await? {
            Reply::Cut(cut) => cuts.push(*cut),
            _ => return Err(Refusal::Internal.into()),
        }
    }
    hold.open_gate();
    Ok(cuts)
}
