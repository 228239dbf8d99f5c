//! What happens to files that lie on a disk, in the words of an input: eight bytes a change.

use std::path::{Path, PathBuf};

use thalweg::storage::disk::{Disk, SimulatedDisk};

use futures_lite::future::block_on;

/// A file: its path and its bytes.
pub type File = (PathBuf, Vec<u8>);

/// Bytes of a block of the disk.
pub const BLOCK: usize = 4096;

/// Changes to one set of files: more prove nothing more.
const CHANGES_MAX: usize = 8;

/// A byte is flipped.
pub const FLIP: u8 = 0;
/// Sectors are lost.
pub const ZERO: u8 = 1;
/// A write went astray: blocks of a file are where others were.
pub const COPY: u8 = 2;
/// The file is cut.
pub const CUT: u8 = 3;
/// The file is longer.
pub const LENGTHEN: u8 = 4;
/// The file is gone.
pub const REMOVE: u8 = 5;
/// A header is forged.
pub const FORGE: u8 = 6;
/// A body is forged.
pub const FORGE_BODY: u8 = 7;

/// What somebody who knows the checksums' secret does to a file.
pub struct Forgery {
    /// Whether to the body of what is in the block, not to its header.
    pub is_body: bool,
    /// A multiple of [`BLOCK`].
    pub block: usize,
    /// Below [`BLOCK`].
    pub within: usize,
    /// Three bytes of the input.
    pub how: [u8; 3],
}

/// A disk of `disk_bytes` with these files in `dir`.
pub fn disk_with(dir: &str, disk_bytes: u64, files: &[File]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1, disk_bytes);
    block_on(disk.create_dir(dir.as_ref())).expect("a directory");
    for (path, bytes) in files {
        disk.set_contents(path, bytes.clone());
    }
    disk
}

/// The files in `dir` whose names are `ours`, in the order of their names.
pub fn files_of(disk: &SimulatedDisk, dir: &str, ours: impl Fn(&str) -> bool) -> Vec<File> {
    let names = block_on(disk.list_dir(dir.as_ref())).expect("a listing");
    let paths = names
        .iter()
        .filter(|name| ours(name))
        .map(|name| PathBuf::from(dir).join(name));
    paths
        .map(|path| (path.clone(), disk.contents(&path).expect("a file")))
        .collect()
}

/// Lets what `changes` says happen to the files; true if any of it was forged.
pub fn alter_all(
    files: &mut Vec<File>,
    changes: &[u8],
    forge: impl Fn(&mut [u8], Forgery) -> bool,
) -> bool {
    let (changes, _) = changes.as_chunks();
    let mut forged = false;
    for change in changes.iter().take(CHANGES_MAX) {
        forged |= alter(files, change, &forge);
    }
    forged
}

/// Lets one thing happen to the files; true if it was forged.
fn alter(
    files: &mut Vec<File>,
    change: &[u8; 8],
    forge: impl Fn(&mut [u8], Forgery) -> bool,
) -> bool {
    let [what, file, block, low, high, value, count, other] = *change;
    if files.is_empty() {
        return false;
    }
    let index = usize::from(file) % files.len();
    let length = files[index].1.len();
    let blocks = (length / BLOCK).max(1);
    let block = usize::from(block) % blocks * BLOCK;
    let within = usize::from(u16::from_le_bytes([low, high])) % BLOCK;
    let how = [value, count, other];
    let count = usize::from(count);
    match what % 8 {
        FLIP => {
            if let Some(byte) = files[index].1.get_mut(block + within) {
                *byte ^= value.max(1);
            }
        }
        ZERO => {
            let end = (block + (1 + count % 8) * 512).min(length);
            if let Some(lost) = files[index].1.get_mut(block..end) {
                lost.fill(0);
            }
        }
        COPY => {
            let from = &files[usize::from(value) % files.len()].1;
            let at = usize::from(other) * BLOCK;
            let end = (at + (1 + count % 4) * BLOCK).min(from.len());
            let copy = from.get(at..end).unwrap_or_default().to_vec();
            let to = &mut files[index].1;
            let end = (block + copy.len()).min(length);
            if let Some(to) = to.get_mut(block..end) {
                to.copy_from_slice(&copy[..to.len()]);
            }
        }
        CUT => files[index].1.truncate(block + within),
        LENGTHEN => files[index].1.resize(length + count * 512, value),
        REMOVE => drop(files.remove(index)),
        forgery => {
            let is_body = forgery == FORGE_BODY;
            let forgery = Forgery {
                is_body,
                block,
                within,
                how,
            };
            return forge(&mut files[index].1, forgery);
        }
    }
    false
}

/// Sets a little-endian field to another number, or one near to it, below 2^`bits`.
pub fn forge_field(field: &mut [u8], bits: u32, [value, more, how]: [u8; 3]) {
    let mut wide = [0; 8];
    wide[..field.len()].copy_from_slice(field);
    let mask = u64::MAX >> (64 - bits);
    let old = u64::from_le_bytes(wide) & mask;
    let value = u64::from(value);
    let new = match how % 4 {
        0 => value,
        1 => old.wrapping_add(value),
        2 => old.saturating_sub(value),
        _ => value << (u32::from(more) % (bits - 8)),
    };
    let new = (new & mask).to_le_bytes();
    field.copy_from_slice(&new[..field.len()]);
}

/// The file at `path`, if it is there.
pub fn contents_of<'a>(files: &'a [File], path: &Path) -> Option<&'a [u8]> {
    let found = files.iter().find(|(name, _)| name == path);
    found.map(|(_, bytes)| &bytes[..])
}

/// The number in eight bytes.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The number in four bytes.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
