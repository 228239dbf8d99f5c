//! Which shard owns a stream: a keyed hash of its name.
//!
//! The key is the data directory's secret, so that names chosen by a client
//! cannot pile up on one shard.

use crate::protocol::stream_key::StreamKey;

/// Maps stream keys to shards.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    seed: u64,
    shards: usize,
}

impl Placement {
    /// A placement over `shards` shards (at least 1), keyed by the data directory's secret.
    #[must_use]
    pub fn new(secret: [u8; 16], shards: usize) -> Self {
        let hash = blake3::derive_key("thalweg 2026-11-30 stream placement", &secret);
        let [a, b, c, d, e, f, g, h, ..] = hash;
        Self {
            seed: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            shards: shards.max(1),
        }
    }

    /// The shard that owns `key`.
    #[must_use]
    pub fn owner(&self, key: &StreamKey) -> usize {
        if self.shards == 1 {
            return 0;
        }
        // FNV-1a from a secret start, then a finaliser, since FNV mixes its high bits poorly.
        let hash = key.as_str().bytes().fold(self.seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        #[expect(
            clippy::arithmetic_side_effects,
            reason = "a product of two 64-bit numbers has 128 bits"
        )]
        let spread = (u128::from(mixed) * self.shards as u128) >> 64;
        // Below `shards` by construction.
        spread as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_spread_evenly_and_stay_put() {
        let placement = Placement::new([3; 16], 4);
        let mut counts = [0usize; 4];
        for index in 0..4000 {
            let key = StreamKey::restored(&format!("demo/stream-{index}"));
            let owner = placement.owner(&key);
            assert_eq!(owner, placement.owner(&key));
            counts[owner] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}
