//! Checkpoints that decayed, were tampered with, or never were any.
//!
//! The first byte of an input picks what is read. A shard's directory, with two checkpoints and the
//! `current` that names the second: every eight bytes say what happens to a file (`decay`). Then a
//! checkpoint is handed out as it was written or refused, and a salvage hands out exactly the
//! chunks that are left. Or the input is a checkpoint, byte for byte. Or it says which entries are
//! written, and they come back.

use std::mem::discriminant;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use futures_lite::future::block_on;

use thalweg::base::checksum::Checksum;
use thalweg::storage::StorageError;
use thalweg::storage::checkpoint::{
    CheckpointWriter, Current, Damage, Identity, find_newest, find_whole, read_checkpoint,
    salvage_checkpoint,
};
use thalweg::storage::disk::{Operation, SimulatedDisk};
use thalweg::storage::journal::Position;

use super::decay::{
    BLOCK, COPY, CUT, FLIP, FORGE, FORGE_BODY, File, Forgery, LENGTHEN, REMOVE, ZERO, alter_all,
    contents_of, disk_with, files_of, forge_field, u32_at, u64_at,
};
use super::{Target, chance, kind, magnitude};

/// The target.
pub const CHECKPOINT: Target = Target {
    name: "checkpoint",
    check,
    seeds,
    words: &[
        &[FLIP, 0, 0, 5, 0, 1, 0, 0],
        &[FLIP, 2, 0, 20, 0, 1, 0, 0],
        &[ZERO, 1, 0, 0, 0, 0, 1, 0],
        &[COPY, 2, 0, 0, 0, 1, 0, 0],
        &[COPY, 0, 0, 0, 0, 2, 0, 0],
        &[CUT, 1, 1, 0, 0, 0, 0, 0],
        &[LENGTHEN, 1, 0, 0, 0, 0, 8, 0],
        &[REMOVE, 1, 0, 0, 0, 0, 0, 0],
        &[FORGE, 1, 0, 4, 0, 1, 0, 1],
        &[FORGE, 1, 0, 6, 0, 1, 40, 3],
        &[FORGE_BODY, 1, 0, 0, 0, 200, 0, 0],
        b"THALWEGC",
    ],
};

const DIR: &str = "/shard";
const DISK_BYTES: u64 = 8 << 20;
const HEADER: usize = 80;
/// What the first byte of an input picks from, modulo these.
const CHOICES: u8 = 8;
const ANYTHING: u8 = 6;
const WRITE: u8 = 7;
/// An entry that is a chunk of its own.
const LARGE: usize = 256 << 10;

fn identity() -> Identity {
    Identity {
        dir: PathBuf::from(DIR),
        journal_id: 0x1234_5678_9abc_def0,
        shard: 7,
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![ANYTHING], vec![WRITE], vec![WRITE, 0, 3, 255, 255, 1]];
    for image in 0..ANYTHING {
        seeds.push(vec![image]);
        for (index, word) in CHECKPOINT.words.iter().enumerate() {
            let mut change = word.to_vec();
            for block in [0, 1, index as u8] {
                change[2] = block;
                seeds.push([&[image], &change[..]].concat());
            }
        }
    }
    let small = &images()[0].files[1].1;
    seeds.push([&[ANYTHING], &small[..small.len().min(4000)]].concat());
    seeds
}

/// A shard's directory as its files.
struct Image {
    files: Vec<File>,
    /// What is known of each checkpoint, in the order of their numbers.
    checkpoints: Vec<Written>,
}

/// A checkpoint that was written.
struct Written {
    current: Current,
    path: PathBuf,
    bytes: Vec<u8>,
    chunks: Vec<Chunk>,
}

/// A chunk of it: where it lies, and the entries in it; none in the last.
struct Chunk {
    range: Range<usize>,
    entries: Vec<Vec<u8>>,
}

impl Written {
    fn entries(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.chunks.iter().flat_map(|chunk| &chunk.entries)
    }
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| (0..ANYTHING).map(image).collect())
}

fn check(data: &[u8]) -> u64 {
    let Some((choice, rest)) = data.split_first() else {
        return 0;
    };
    match choice % CHOICES {
        ANYTHING => check_anything(rest),
        WRITE => check_write(rest),
        image => check_image(&images()[usize::from(image)], rest, data),
    }
}

fn check_image(image: &Image, changes: &[u8], data: &[u8]) -> u64 {
    let mut files = image.files.clone();
    let forged = alter_all(&mut files, changes, forge);
    let disk = disk_with(DIR, DISK_BYTES, &files);
    let current = block_on(Current::load(&disk, &identity()));
    let mut reads = Vec::new();
    for written in &image.checkpoints {
        let read = read(&disk, &written.current);
        let salvaged = salvage(&disk, &written.current);
        if !forged {
            check_decay(written, &files, &read, &salvaged);
        }
        check_agreement(&disk, &files, &written.current, &read, &salvaged);
        reads.push(read.0.map_err(|error| discriminant(&error)));
    }
    let newest = block_on(find_newest(&disk, &identity())).expect("a listing");
    let is_there = |written: &&Written| contents_of(&files, &written.path).is_some();
    let expected = image.checkpoints.iter().rev().find(is_there);
    assert_eq!(
        newest.map(|newest| newest.number),
        expected.map(|written| written.current.number)
    );
    let whole = block_on(find_whole(&disk, &identity())).expect("no error of the disk");
    if !forged {
        let is_whole =
            |written: &&Written| contents_of(&files, &written.path) == Some(&written.bytes[..]);
        let expected = image.checkpoints.iter().rev().find(is_whole);
        assert_eq!(whole.as_ref(), expected.map(|written| &written.current));
        check_current(image, &files, &current);
    }
    // Whatever names it, it reads as it was found.
    for named in current.iter().flatten().chain(&whole) {
        let read = read(&disk, named);
        let salvaged = salvage(&disk, named);
        check_agreement(&disk, &files, named, &read, &salvaged);
        assert!(
            read.0.is_ok() || Some(named) != whole.as_ref(),
            "{:?}",
            read.0
        );
    }
    if let Some(whole) = &whole
        && chance(data).below(4) == 0
    {
        check_goes_on(&disk, whole);
    }
    let current = current.map(|current| current.is_some());
    let current = current.map_err(|error| discriminant(&error));
    kind((forged, reads, whole.map(|whole| whole.number), current))
}

/// What decayed is not taken for what was written.
fn check_decay(written: &Written, files: &[File], read: &Read, salvaged: &Salvaged) {
    let found = contents_of(files, &written.path);
    let is_whole = found == Some(&written.bytes[..]);
    let (ended, entries) = read;
    assert_eq!(ended.is_ok(), is_whole, "{ended:?}");
    let mut expected = written.entries();
    let is_front = entries.iter().all(|entry| expected.next() == Some(entry));
    assert!(is_front, "handed out what was not written: {ended:?}");
    assert!(!is_whole || expected.next().is_none(), "not all of it");
    let found = found.unwrap_or_default();
    let is_left = |chunk: &&Chunk| {
        let range = chunk.range.clone();
        found.get(range.clone()) == written.bytes.get(range)
    };
    let left: Vec<&Chunk> = written.chunks.iter().filter(is_left).collect();
    let (entries, damage) = salvaged;
    let expected = left.iter().flat_map(|chunk| &chunk.entries);
    assert!(entries.iter().eq(expected), "what is left: {damage:?}");
    let left_bytes: usize = left.iter().map(|chunk| chunk.range.len()).sum();
    let bytes = found.len().max(written.bytes.len()) - left_bytes;
    assert_eq!(damage.bytes, bytes as u64);
    let lost = written.current.entries - entries.len() as u64;
    assert_eq!(damage.entries, lost);
    let lost = written.chunks.len() - left.len();
    assert!(damage.chunks <= lost as u64, "{damage:?}");
    assert_eq!(damage.chunks == 0, lost == 0, "{damage:?}");
}

/// What is whole is all that a salvage hands out; and nothing is made up, nor read without end.
fn check_agreement(
    disk: &SimulatedDisk,
    files: &[File],
    current: &Current,
    read: &Read,
    salvaged: &Salvaged,
) {
    let (entries, damage) = salvaged;
    if let (Ok(()), read) = read {
        assert_eq!((read, &Damage::default()), (entries, damage));
        assert_eq!(read.len() as u64, current.entries);
    }
    let length = contents_of(files, &identity().path(current.number)).map_or(0, <[u8]>::len);
    let handed_out: usize = entries.iter().map(|entry| 4 + entry.len()).sum();
    assert!(handed_out <= length, "{handed_out} bytes of {length}");
    let before = disk.count(Operation::Read);
    assert_eq!(&salvage(disk, current), salvaged, "reading changes nothing");
    let reads = disk.count(Operation::Read) - before;
    let blocks = (length / BLOCK) as u64;
    assert!(reads <= 2 * blocks + 1, "{reads} reads of {blocks} blocks");
}

/// `current` is one that was written there, or it is refused.
fn check_current(image: &Image, files: &[File], current: &Result<Option<Current>, StorageError>) {
    let path = identity().current_path();
    let found = contents_of(files, &path);
    let expected = image
        .checkpoints
        .iter()
        .map(|written| &written.current)
        .find(|current| found == Some(&current.to_bytes(&identity())[..]));
    match current {
        Ok(Some(current)) => assert_eq!(Some(current), expected),
        Ok(None) => assert_eq!(found, None),
        Err(error) => assert!(found.is_some() && expected.is_none(), "{error}"),
    }
}

/// A checkpoint that reads whole is the ground for the next one.
fn check_goes_on(disk: &SimulatedDisk, whole: &Current) {
    let (_, entries) = read(disk, whole);
    let number = whole.number + 1;
    let next = write(disk, number, &entries, whole.replay_from).expect("the disk has room");
    assert_eq!(
        block_on(find_whole(disk, &identity())).ok(),
        Some(Some(next.clone()))
    );
    block_on(next.store(disk, &identity())).expect("stored");
    let current = block_on(Current::load(disk, &identity())).expect("loaded");
    assert_eq!(current.as_ref(), Some(&next));
    assert!(matches!(read(disk, &next), (Ok(()), again) if again == entries));
}

/// The input is the file.
fn check_anything(file: &[u8]) -> u64 {
    let current = Current {
        number: 2,
        replay_from: Position(0),
        entries: 0,
        bytes: file.len().next_multiple_of(BLOCK) as u64,
    };
    let mut file = file.to_vec();
    file.resize(current.bytes as usize, 0);
    let mut files = vec![(identity().path(2), file)];
    let mut kinds = Vec::new();
    // Once as it is, and once with a checksum that fits the first header.
    for forged in [false, true] {
        if forged && !files[0].1.is_empty() {
            seal(&mut files[0].1[..HEADER]);
        }
        files.push((identity().current_path(), files[0].1.clone()));
        let disk = disk_with(DIR, DISK_BYTES, &files);
        let (read, salvaged) = (read(&disk, &current), salvage(&disk, &current));
        check_agreement(&disk, &files, &current, &read, &salvaged);
        let loaded = block_on(Current::load(&disk, &identity()));
        let loaded = loaded.map(|_| ()).map_err(|error| discriminant(&error));
        let read = read.0.map_err(|error| discriminant(&error));
        kinds.push((read, loaded, magnitude(salvaged.0.len())));
        files.truncate(1);
    }
    kind(kinds)
}

/// What is written is read: a byte says how long an entry is, the largest that it is a chunk.
fn check_write(mut lengths: &[u8]) -> u64 {
    let mut entries = Vec::new();
    let (mut large, mut left) = (0, DISK_BYTES as usize / 4);
    while let Some((length, rest)) = lengths.split_first() {
        lengths = rest;
        let length = match length {
            255 if large < 4 => LARGE - 90 + rest.len() % 32,
            250..=255 => 0,
            length => usize::from(*length) * 37,
        };
        if length > left {
            continue;
        }
        left -= length;
        large += usize::from(length > LARGE / 2);
        entries.push(vec![entries.len() as u8; length]);
    }
    let disk = disk_with(DIR, DISK_BYTES, &[]);
    let position = Position(entries.len() as u64);
    let current = write(&disk, 9, &entries, position).expect("the disk has room");
    assert_eq!(current.entries, entries.len() as u64);
    assert_eq!(current.replay_from, position);
    assert!(matches!(read(&disk, &current), (Ok(()), read) if read == entries));
    assert!(salvage(&disk, &current) == (entries, Damage::default()));
    let whole = block_on(find_whole(&disk, &identity()));
    assert_eq!(whole.ok().flatten(), Some(current.clone()));
    kind((
        large,
        magnitude(current.bytes as usize),
        current.entries.min(8),
    ))
}

/// How reading ended, and the entries that were handed out until then.
type Read = (Result<(), StorageError>, Vec<Vec<u8>>);

fn read(disk: &SimulatedDisk, current: &Current) -> Read {
    let mut entries = Vec::new();
    let keep = |entry: &[u8]| {
        entries.push(entry.to_vec());
        Ok(())
    };
    let ended = block_on(read_checkpoint(disk, &identity(), current, keep));
    (ended, entries)
}

type Salvaged = (Vec<Vec<u8>>, Damage);

fn salvage(disk: &SimulatedDisk, current: &Current) -> Salvaged {
    let mut entries = Vec::new();
    let keep = |entry: &[u8]| {
        entries.push(entry.to_vec());
        Ok(())
    };
    let damage = block_on(salvage_checkpoint(disk, &identity(), current, keep));
    (entries, damage.expect("no error of the disk"))
}

fn write(
    disk: &SimulatedDisk,
    number: u64,
    entries: &[Vec<u8>],
    replay_from: Position,
) -> Result<Current, StorageError> {
    block_on(async {
        let mut writer = CheckpointWriter::create(disk.clone(), identity(), number).await?;
        for entry in entries {
            writer.append(entry).await?;
        }
        writer.finish(replay_from).await
    })
}

/// Fields of a chunk's header, and of `current`: offset and size in bytes.
const CHUNK_FIELDS: [(usize, usize); 9] = [
    (20, 4),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 4),
    (68, 4),
    (8, 4),
];
const CURRENT_FIELDS: [(usize, usize); 6] = [(16, 8), (24, 8), (32, 8), (40, 8), (48, 8), (56, 4)];

/// Forges a field of the header at a block, or a byte of the chunk's body, and the checksums.
fn forge(file: &mut [u8], forgery: Forgery) -> bool {
    let Forgery {
        block, within, how, ..
    } = forgery;
    let Some(header) = file.get_mut(block..block + HEADER) else {
        return false;
    };
    if header.starts_with(b"THALWEGK") {
        let (at, size) = CURRENT_FIELDS[within % CURRENT_FIELDS.len()];
        forge_field(&mut header[at..at + size], 64, how);
        if let Some(block) = file.get_mut(block..block + BLOCK) {
            let checksum = Checksum::seeded(0).with(&block[16..]).value();
            block[12..16].copy_from_slice(&checksum.to_le_bytes());
        }
        return true;
    }
    if !forgery.is_body {
        let (at, size) = CHUNK_FIELDS[within % CHUNK_FIELDS.len()];
        forge_field(&mut header[at..at + size], 64, how);
        seal(header);
        return true;
    }
    let bytes = (HEADER as u64).saturating_add(u64_at(header, 56));
    let bytes = bytes.min(1 << 30).next_multiple_of(BLOCK as u64) as usize;
    let Some(chunk) = file.get_mut(block..block + bytes) else {
        return false;
    };
    let (header, body) = chunk.split_at_mut(HEADER);
    // The lengths of the first entries, and the totals, lie at the front.
    let at = if how[2] % 2 == 0 {
        within % 64
    } else {
        within % body.len()
    };
    body[at] ^= how[0];
    let checksum = seeded(header).with(body).value();
    header[16..20].copy_from_slice(&checksum.to_le_bytes());
    seal(header);
    true
}

fn seeded(header: &[u8]) -> Checksum {
    Checksum::seeded(u64_at(header, 24) ^ u64_at(header, 32))
}

fn seal(header: &mut [u8]) {
    let checksum = seeded(header).with(&header[16..]).value();
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Two checkpoints, and the `current` of the second.
fn image(which: u8) -> Image {
    let entry = |index: usize, length: usize| vec![index as u8 + which; length];
    let lengths: &[usize] = match which {
        0 => &[],
        1 => &[0, 1, 300, 5_000],
        2 => &[0; 50],
        3 => &[20, LARGE, 30, 40, LARGE + 5_000, 7],
        4 => &[LARGE - 84, LARGE - 83, 0, LARGE],
        _ => &[60_000; 12],
    };
    let entries: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(index, len)| entry(index, *len))
        .collect();
    let disk = disk_with(DIR, DISK_BYTES, &[]);
    let some = [b"one".to_vec(), b"another".to_vec()];
    let older = write(&disk, 1, &some, Position(100)).expect("written");
    let newer = write(&disk, 2, &entries, Position(200)).expect("written");
    block_on(newer.store(&disk, &identity())).expect("stored");
    let checkpoints = [(older, &some[..]), (newer, &entries[..])];
    let checkpoints = checkpoints.map(|(current, entries)| {
        let path = identity().path(current.number);
        let bytes = disk.contents(&path).expect("a file");
        let chunks = chunks(&bytes, entries);
        Written {
            current,
            path,
            bytes,
            chunks,
        }
    });
    Image {
        // The checkpoints, then `current`.
        files: files_of(&disk, DIR, |_| true),
        checkpoints: checkpoints.into(),
    }
}

/// Where the chunks of a whole checkpoint lie, and which of its entries each has.
fn chunks(bytes: &[u8], entries: &[Vec<u8>]) -> Vec<Chunk> {
    let (mut chunks, mut at, mut entries) = (Vec::new(), 0, entries.iter().cloned());
    while at < bytes.len() {
        let end = (at + HEADER + u64_at(bytes, at + 56) as usize).next_multiple_of(BLOCK);
        let is_last = u32_at(bytes, at + 20) == 1;
        let count = if is_last { 0 } else { u32_at(bytes, at + 64) };
        chunks.push(Chunk {
            range: at..end,
            entries: entries.by_ref().take(count as usize).collect(),
        });
        at = end;
    }
    assert_eq!(entries.next(), None, "every entry has a chunk");
    chunks
}
