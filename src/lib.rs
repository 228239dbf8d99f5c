//! Thalweg: a server for durable, append-only streams over plain HTTP/1.1.
//!
//! One core, one executor, one shard, no shared mutable state. This page is
//! the map; every module's head says what that module guarantees.
//!
//! # Threads
//!
//! ```text
//!            clients                       clients                operator
//!               │ SO_REUSEPORT                │                      │
//!        ┌──────▼──────┐               ┌──────▼──────┐               │
//!        │   core 0    │   mailboxes   │   core 1    │      admin listener
//!        │ connections │◄─────────────►│ connections │      (on core 0)
//!        │    shard 0  │  moved, or    │    shard 1  │
//!        │   journal 0 │  shared and   │   journal 1 │
//!        └──────┬──────┘  immutable    └──────┬──────┘
//!               ▼                             ▼
//!      layout-1/shard-0/journal      layout-1/shard-1/journal      blobs/
//! ```
//!
//! A connection lives on the core that accepted it. That core parses,
//! normalises JSON and hashes; the core that owns the stream decides, stages
//! and answers. A request for another core's stream crosses once there and
//! once back ([`shard::mailbox`]).
//!
//! # The life of an append
//!
//! 1. [`http::connection`] finds the head and the body in bytes;
//!    [`http::operation`] makes a request of it; [`json`] turns a JSON body
//!    into stored text as it arrives.
//! 2. The owner decides on staged state ([`protocol::append`]), encodes one
//!    record with data, producer state and closure ([`shard::record`]), and
//!    puts it into the journal's open batch ([`storage::journal`]).
//! 3. While one batch is on its way to the disk the next one fills. A batch is
//!    a few aligned writes and one sync.
//! 4. Once it is durable the change becomes visible, readers are woken
//!    ([`shard::live`]), and the writer is answered. Whatever was decided on
//!    staged state, refusals included, waits for that.
//!
//! # The life of a read
//!
//! The owner cuts a window of durable bytes ([`protocol::read`],
//! `shard::read`) and hands them out by reference; the connection's core
//! writes them piece by piece. A live reader holds a position, not data: it is
//! told that the stream has changed, and asks again ([`server::live`],
//! [`server::event_stream`]); event streams at the tail are written to together,
//! by one task of their core ([`server::fan_out`]).
//!
//! # Layers
//!
//! A module imports only from those before it: [`base`], [`json`],
//! [`protocol`], [`storage`], [`shard`], [`http`], [`server`]. Time and
//! randomness are arguments below `server`; glommio appears in
//! `storage::disk` and `server` alone. `tests/tidy.rs` holds this.

pub mod base;
pub mod http;
pub mod json;
pub mod protocol;
pub mod server;
pub mod shard;
pub mod storage;
