#![doc = "placeholder"]
pub mod base;
pub mod http;
pub mod json;
pub mod protocol;
pub mod server;
pub mod shard;
pub mod storage;
