//! The one checksum used on disk: CRC32C, seeded.
//!
//! The seed goes in before the bytes, so the same bytes written under another
//! seed do not verify. The journal seeds with the boot epoch: what an earlier
//! life of the process left behind a cut never passes for a batch of this one.
//! CRC32C finds every burst of up to 32 bits and misses other damage once in
//! 2^32; it is no defence against someone who writes to the disk.

/// A CRC32C that takes its bytes slice by slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// A checksum of no bytes under `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(crc32c::crc32c(&seed.to_le_bytes()))
    }

    /// Takes in the next bytes; how they are cut into slices does not matter.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// The checksum of all bytes taken in so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    #[test]
    fn value_is_crc32c_of_seed_and_bytes() {
        // RFC 3720 B.4: CRC32C of 32 zero bytes.
        let zeros = Checksum::seeded(0).with(&[0; 24]);
        assert_eq!(zeros.value(), 0x8a91_36aa);
    }

    #[test]
    fn slicing_does_not_matter_and_the_seed_does() {
        let bytes: Vec<u8> = (0..=255).collect();
        let whole = Checksum::seeded(7).with(&bytes);
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(Checksum::seeded(7).with(head).with(tail), whole);
        }
        assert_ne!(Checksum::seeded(8).with(&bytes), whole);
    }
}
