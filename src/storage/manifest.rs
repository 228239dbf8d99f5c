//! The manifest: the one small file that says what the data directory is.
//!
//! ```text
//!  0  magic               8  "THALWEGM"
//!  8  format_version      4  first, so that later formats can be told apart
//! 12  checksum            4  CRC32C of bytes 16..88
//! 16  layout              8  number of the layout that rules
//! 24  boot_epoch          8  rises with every start
//! 32  incarnation_blocks  8  blocks of incarnation numbers handed out
//! 40  secret             16  random; identity of this data directory
//! 56  shards              4  of the layout
//! 60  flags               4  bit 0: the journals of the layout exist
//! 64  reserved           24  zero
//! ```
//!
//! It is replaced as a whole: written beside as `manifest.new`, synced, renamed
//! over the old one, directory synced. A crash before the rename leaves the old
//! one, a crash after it the new one; `manifest.new` alone means nothing. A
//! manifest that does not verify refuses the start: there is nothing older to
//! fall back to that would be true.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::StorageError;
use super::fields::{u32_at, u64_at};
use crate::base::checksum::Checksum;

/// Version of the whole data directory's format. Version 1 had no segments and no checkpoints; its
/// directories are read, and are of this version from their first start on.
pub const FORMAT_VERSION: u32 = 2;
/// The oldest version that is read.
const FORMAT_VERSION_MIN: u32 = 1;

/// Name of the manifest in the data directory.
pub const NAME: &str = "manifest";
/// Name of the next manifest while it is written.
pub(super) const NAME_NEW: &str = "manifest.new";

const MAGIC: [u8; 8] = *b"THALWEGM";
const BYTES: usize = 88;
/// What is counted up with starts and layouts does not reach this: what says so is forged.
const NUMBER_MAX: u64 = 1 << 62;
const FLAG_STARTED: u32 = 1;

/// What the manifest says.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Version of the format of everything in the directory.
    pub format_version: u32,
    /// Number of the layout that rules: its directory is `layout-<n>`.
    pub layout: u64,
    /// Shards of that layout.
    pub shards: u32,
    /// True once every journal of the layout was made: from then on an empty one is a loss.
    pub started: bool,
    /// Number of this start; it seeds the checksums of what is written in it.
    pub boot_epoch: u64,
    /// Random bits that nobody else knows.
    pub secret: [u8; 16],
    /// Blocks of incarnation numbers handed out so far.
    pub incarnation_blocks: u64,
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("format_version", &self.format_version)
            .field("layout", &self.layout)
            .field("shards", &self.shards)
            .field("started", &self.started)
            .field("boot_epoch", &self.boot_epoch)
            .field("incarnation_blocks", &self.incarnation_blocks)
            .finish_non_exhaustive()
    }
}

impl Manifest {
    /// The manifest of a new data directory.
    pub(super) fn new(shards: u32, secret: [u8; 16]) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            layout: 1,
            shards,
            started: false,
            boot_epoch: 0,
            secret,
            incarnation_blocks: 0,
        }
    }

    /// Reads the manifest in `dir`; `None` if there is none.
    pub fn load(dir: &Path) -> Result<Option<Self>, StorageError> {
        let path = dir.join(NAME);
        match fs::read(&path) {
            Ok(bytes) => Self::decode(&bytes, &path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io("read", &path)(error)),
        }
    }

    /// Replaces the manifest in `dir`; durable when it returns.
    pub fn store(&self, dir: &Path) -> Result<(), StorageError> {
        let (path, new) = (dir.join(NAME), dir.join(NAME_NEW));
        let mut file = File::create(&new).map_err(StorageError::io("create", &new))?;
        file.write_all(&self.encode())
            .map_err(StorageError::io("write", &new))?;
        file.sync_all().map_err(StorageError::io("sync", &new))?;
        fs::rename(&new, &path).map_err(StorageError::io("rename", &new))?;
        sync_dir(dir)
    }

    /// Identity of a shard's journal in a layout: derived from the secret, so that what a client
    /// stores cannot imitate the journal's own bytes.
    pub fn journal_id(&self, layout: u64, shard: u32) -> u64 {
        let mut hasher = blake3::Hasher::new_derive_key("thalweg journal id");
        hasher.update(&self.secret);
        hasher.update(&layout.to_le_bytes());
        hasher.update(&shard.to_le_bytes());
        let mut id = [0; 8];
        hasher.finalize_xof().fill(&mut id);
        u64::from_le_bytes(id)
    }

    /// A name for this data directory that may be told: it says nothing of the secret.
    #[must_use]
    pub fn identity(&self) -> String {
        let identity = blake3::derive_key("thalweg data directory", &self.secret);
        blake3::Hash::from_bytes(identity).to_hex().to_string()
    }

    /// What the checksums of segments are seeded with: derived from the secret, so that what a
    /// client stores cannot imitate a block.
    pub fn segment_seed(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = blake3::derive_key("thalweg segment seed", &self.secret);
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// What the file holds.
    #[must_use]
    pub fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.format_version.to_le_bytes());
        out[16..24].copy_from_slice(&self.layout.to_le_bytes());
        out[24..32].copy_from_slice(&self.boot_epoch.to_le_bytes());
        out[32..40].copy_from_slice(&self.incarnation_blocks.to_le_bytes());
        out[40..56].copy_from_slice(&self.secret);
        out[56..60].copy_from_slice(&self.shards.to_le_bytes());
        let flags = if self.started { FLAG_STARTED } else { 0 };
        out[60..64].copy_from_slice(&flags.to_le_bytes());
        let checksum = Checksum::seeded(0).with(&out[16..]).value();
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads what the file holds; `path` says where it was found.
    ///
    /// # Errors
    /// [`StorageError::DamagedManifest`], [`StorageError::UnsupportedFormat`].
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self, StorageError> {
        let damaged = || StorageError::DamagedManifest {
            path: path.to_owned(),
        };
        let head: &[u8; 16] = bytes.first_chunk().ok_or_else(damaged)?;
        if head[0..8] != MAGIC {
            return Err(damaged());
        }
        let format_version = u32_at(head, 8);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&format_version) {
            return Err(StorageError::UnsupportedFormat {
                path: path.to_owned(),
                found: format_version,
                supported: FORMAT_VERSION,
            });
        }
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| damaged())?;
        if Checksum::seeded(0).with(&bytes[16..]).value() != u32_at(bytes, 12) {
            return Err(damaged());
        }
        let (shards, flags) = (u32_at(bytes, 56), u32_at(bytes, 60));
        let mut secret = [0; 16];
        secret.copy_from_slice(&bytes[40..56]);
        let manifest = Self {
            format_version,
            layout: u64_at(bytes, 16),
            shards,
            started: flags & FLAG_STARTED != 0,
            boot_epoch: u64_at(bytes, 24),
            secret,
            incarnation_blocks: u64_at(bytes, 32),
        };
        let in_range = |number: u64| number < NUMBER_MAX;
        let numbers = [
            manifest.layout,
            manifest.boot_epoch,
            manifest.incarnation_blocks,
        ];
        let is_known = flags & !FLAG_STARTED == 0;
        if shards == 0 || !is_known || !numbers.into_iter().all(in_range) {
            return Err(damaged());
        }
        Ok(manifest)
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// [`StorageError::Io`].
pub fn sync_dir(dir: &Path) -> Result<(), StorageError> {
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(StorageError::io("sync", dir))
}

/// Path of the manifest in a data directory.
pub fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            layout: 3,
            started: true,
            boot_epoch: 17,
            incarnation_blocks: 5,
            ..Manifest::new(4, *b"0123456789abcdef")
        }
    }

    #[test]
    fn round_trip_and_every_bit_flip_is_refused() {
        let bytes = manifest().encode();
        let path = Path::new("manifest");
        assert_eq!(Manifest::decode(&bytes, path).ok(), Some(manifest()));
        for bit in 0..BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped, path).is_err(), "bit {bit}");
        }
        for len in 0..BYTES {
            assert!(
                Manifest::decode(&bytes[..len], path).is_err(),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn flags_that_nobody_knows_are_damage() {
        let path = Path::new("manifest");
        for bit in 0..32 {
            let mut bytes = manifest().encode();
            bytes[60..64].copy_from_slice(&(1_u32 << bit).to_le_bytes());
            let checksum = Checksum::seeded(0).with(&bytes[16..]).value();
            bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
            let is_taken = Manifest::decode(&bytes, path).is_ok();
            assert_eq!(is_taken, 1 << bit == FLAG_STARTED, "bit {bit}");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let mut bytes = manifest().encode();
        bytes[8] = 9;
        let error = Manifest::decode(&bytes, Path::new("manifest"));
        assert!(matches!(
            error,
            Err(StorageError::UnsupportedFormat { found: 9, .. })
        ));
    }

    #[test]
    fn numbers_that_no_start_reaches_are_damage() {
        for forged in [
            Manifest {
                layout: u64::MAX,
                ..manifest()
            },
            Manifest {
                boot_epoch: u64::MAX,
                ..manifest()
            },
            Manifest {
                incarnation_blocks: u64::MAX,
                ..manifest()
            },
        ] {
            let error = Manifest::decode(&forged.encode(), Path::new("manifest"));
            assert!(matches!(error, Err(StorageError::DamagedManifest { .. })));
        }
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert!(!format!("{:?}", manifest()).contains("secret"));
    }
}
