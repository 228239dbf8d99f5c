//! Create, as the owner carries it out (decided by `protocol::create`).

use crate::{
    protocol::{
        create::{self, CreateRequest},
        error::Refusal,
    },
    shard::{
        history::History,
        owner::{Found, Shard},
        record::Record,
        request::{Created, Reply, Staged},
        stream::{STREAM_OVERHEAD_BYTES, Stream},
        tables::Effect,
    },
};

impl Shard {
    /// Creates a stream, or says that it exists as asked for.
    pub(super) fn create(&self, request: CreateRequest) -> Staged<Reply> {
        let found = match self.find_staged(&request.key) {
            Ok(found) => found,
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let missing_since = match found {
            Found::Slot(slot) => return self.create_existing(slot, &request),
            Found::Missing(batch) => batch,
        };
        if request.precondition.is_some() {
            let refusal = Refusal::IncarnationMismatch { current: None };
            return Staged::after(missing_since, Err(refusal));
        }
        if request.fork.is_some() && request.inherited.is_none() {
            return Staged::now(Ok(Reply::NeedsSource));
        }
        match self.create_new(request) {
            Ok(staged) => staged,
            Err(refusal) => Staged::after(missing_since, Err(refusal)),
        }
    }

    fn create_existing(&self, slot: usize, request: &CreateRequest) -> Staged<Reply> {
        let now_ms = self.now_ms();
        let mut tables = self.tables.borrow_mut();
        let Some(stream) = tables.streams.get_mut(slot) else {
            return Staged::now(Err(Refusal::Internal));
        };
        let outcome = create::decide_existing(&stream.staged, request).map(|()| {
            stream.renew(now_ms);
            Reply::Created(Created {
                is_new: false,
                incarnation: stream.staged.incarnation,
                content_type: stream.staged.content_type.clone(),
                lifetime: stream.staged.lifetime,
                tail: stream.staged.tail,
                closed: stream.staged.closed,
            })
        });
        Staged::after(stream.changed_in, outcome)
    }

    fn create_new(&self, request: CreateRequest) -> Result<Staged<Reply>, Refusal> {
        self.check_room(STREAM_OVERHEAD_BYTES.saturating_add(request.body.len() as u64))?;
        let now_ms = self.now_ms();
        let incarnation = match &request.inherited {
            Some(inherited) => inherited.incarnation,
            None => self.allocate_incarnation()?,
        };
        let state = create::initial_state(&request, incarnation, now_ms);
        let batch = self.stage(&Record::Create {
            incarnation,
            at_ms: now_ms,
            key: state.key.clone(),
            content_type: state.content_type.clone(),
            lifetime: state.lifetime,
            closed: state.closed,
            origin: state.origin().cloned(),
            body: &request.body,
        })?;
        // What a fork inherits stays with its source's owner.
        let own_start = state.origin().map_or(0, |origin| origin.offset);
        let mut history = History::starting_at(own_start);
        let len = request.body.len() as u64;
        history.append(request.body);
        let created = Created {
            is_new: true,
            incarnation,
            content_type: state.content_type.clone(),
            lifetime: state.lifetime,
            tail: state.tail,
            closed: state.closed,
        };
        let mut tables = self.tables.borrow_mut();
        let slot = tables.insert(Stream::created(state, history, batch));
        if tables.note_unflushed(slot, len) {
            self.keeper.ring();
        }
        tables.note(batch, Effect::Create { slot });
        Ok(Staged::after(batch, Ok(Reply::Created(created))))
    }
}
