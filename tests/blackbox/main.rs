//! Black-box tests: the real binary, over sockets, one module for each rule.
//!
//! Every rule runs twice, against one server with one shard and one with
//! four, each started once; requests use connections of their own, so on the
//! second any core may take them. Tests that need other settings, a signal
//! or a damaged data directory start servers of their own.
//!
//! The doc comment of each test names the sentence it holds the server to.
//! "Extensions" is `000_3b8d050288c7e6a3.txt`, "Reference" is
//! `004_ccf5887f4da48884.txt`, "Base" is `PROTOCOL.md` of
//! durable-streams/durable-streams, "Decisions" is `decisions.md`, and a case
//! is a numbered line of `cases/*.md`, all as listed in the README.
//!
//! `THALWEG_TEST_URL=http://HOST:PORT` runs the shared-server tests against a
//! server that runs already.

#[path = "../common/mod.rs"]
mod common;

/// Runs each named function, which takes the shared server, at one shard and
/// at four.
macro_rules! at_1_and_4_shards {
    ($($name:ident),+ $(,)?) => {
        mod shards_1 {
            $(#[test] fn $name() { super::$name(crate::common::shared(1)); })+
        }
        mod shards_4 {
            $(#[test] fn $name() { super::$name(crate::common::shared(4)); })+
        }
    };
}

mod admin;
mod append;
mod backup;
mod bootstrap;
mod buckets;
mod caching;
mod close;
mod cors;
mod crash;
mod create;
mod damage;
mod delete;
mod errors;
mod expiry;
mod fixture;
mod fork;
mod hostile;
mod http_framing;
mod incarnation;
mod inspect;
mod json;
mod large;
mod long_poll;
mod producer;
mod read;
mod regression;
mod repair;
mod retention;
mod snapshot;
mod snapshot_parts;
mod sse;
mod storage;
mod surfaces;
mod tiered;
