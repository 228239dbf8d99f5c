#![doc = "placeholder"]
pub mod base;
pub mod json;
pub mod protocol;
pub mod shard;
pub mod storage;
