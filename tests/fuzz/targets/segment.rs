//! Segments that decayed, were tampered with, or never were any.
//!
//! The first byte of an input picks what is read. Segments of a few lives: every eight bytes say
//! what happens to a file (`decay`). Then exactly the blocks that are left are read, and found by
//! going through the files, each as it was written. Or the input is what lies behind a segment's
//! first block. Or it says which blocks are written, and they come back.

use std::collections::HashMap;
use std::mem::{discriminant, take};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use bytes::Bytes;
use futures_lite::future::block_on;

use thalweg::base::checksum::Checksum;
use thalweg::base::rng::Rng;
use thalweg::storage::StorageError;
use thalweg::storage::disk::{Operation, SimulatedDisk};
use thalweg::storage::segment::{
    BlockKey, BlockKind, BlockReader, NewBlock, Place, ScanReport, SegmentGraveyard, SegmentId,
    SegmentWriter, WriterOptions, list, mend, reads, reconcile,
};

use super::decay::{
    BLOCK, COPY, CUT, FLIP, FORGE, FORGE_BODY, File, Forgery, LENGTHEN, REMOVE, ZERO, alter_all,
    contents_of, disk_with, files_of, forge_field, u32_at,
};
use super::{Target, chance, kind, magnitude};

/// The target.
pub const SEGMENT: Target = Target {
    name: "segment",
    check,
    seeds,
    words: &[
        &[FLIP, 0, 1, 5, 0, 1, 0, 0],
        &[FLIP, 1, 0, 20, 0, 1, 0, 0],
        &[ZERO, 0, 2, 0, 0, 0, 1, 0],
        &[COPY, 0, 1, 0, 0, 1, 0, 2],
        &[COPY, 1, 0, 0, 0, 2, 0, 0],
        &[CUT, 0, 3, 9, 0, 0, 0, 0],
        &[LENGTHEN, 0, 0, 0, 0, 7, 4, 0],
        &[REMOVE, 1, 0, 0, 0, 0, 0, 0],
        &[FORGE, 0, 1, 3, 0, 1, 0, 1],
        &[FORGE, 0, 1, 4, 0, 200, 8, 3],
        &[FORGE_BODY, 0, 1, 0, 0, 200, 0, 0],
        b"TWBK",
    ],
};

const DIR: &str = "/segments";
const DISK_BYTES: u64 = 16 << 20;
const SEED: u64 = 0x1234_5678_9abc_def0;
const HEADER: usize = 48;
/// What a block may hold, in bytes.
const PAYLOAD_MAX: usize = 64 << 10;
/// What the first byte of an input picks from, modulo these.
const CHOICES: u8 = 8;
const ANYTHING: u8 = 6;
const WRITE: u8 = 7;

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![ANYTHING], vec![WRITE], vec![WRITE, 0, 3, 255, 254, 1]];
    for image in 0..ANYTHING {
        seeds.push(vec![image]);
        for (index, word) in SEGMENT.words.iter().enumerate() {
            let mut change = word.to_vec();
            for block in [0, 1, index as u8] {
                change[2] = block;
                seeds.push([&[image], &change[..]].concat());
            }
        }
    }
    let file = &images()[0].files[0].1;
    seeds.push([&[ANYTHING], &file[BLOCK..file.len().min(2 * BLOCK - 200)]].concat());
    seeds
}

/// Segments as their files, and every block in them, in the order in which they lie.
struct Image {
    files: Vec<File>,
    blocks: Vec<Written>,
}

/// A block that was written.
struct Written {
    place: Place,
    key: BlockKey,
    payload: Vec<u8>,
}

impl Written {
    fn range(&self) -> Range<usize> {
        self.place.offset as usize..self.place.end() as usize
    }
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| (0..ANYTHING).map(image).collect())
}

fn path(id: SegmentId) -> PathBuf {
    PathBuf::from(DIR).join(id.name())
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
    let reader = reader(&disk);
    let found: Vec<_> = image
        .blocks
        .iter()
        .map(|written| read(&reader, written))
        .collect();
    for (written, found) in image.blocks.iter().zip(&found) {
        check_block(image, &files, written, found, forged);
    }
    let mut rng = chance(data);
    check_groups(image, &reader, &found, 1 << rng.below(21));
    let scans = check_scans(&disk, &reader, &files);
    if !forged {
        check_model(image, &files, &scans);
        match rng.below(8) {
            0 => check_start(image, &disk, &files, &found),
            1 => check_mend(image, &disk, &files),
            _ => {}
        }
    }
    let left = found.iter().filter(|found| found.is_ok()).count();
    let mut errors: Vec<_> = found
        .iter()
        .filter_map(|found| found.as_ref().err())
        .map(discriminant)
        .collect();
    errors.dedup();
    errors.truncate(4);
    let lost = image.blocks.len() - left;
    let scans: Vec<_> = scans.iter().map(|scan| scan.found.is_ok()).collect();
    kind((forged, lost.min(8), errors, scans))
}

/// A block is read if it is there, and nothing else for it.
fn check_block(image: &Image, files: &[File], written: &Written, found: &Found, forged: bool) {
    let path = path(written.place.segment);
    let now = contents_of(files, &path).unwrap_or_default();
    let before = contents_of(&image.files, &path).expect("it was written");
    let range = written.range();
    if let Ok(payload) = found {
        assert_eq!(
            Some(&payload[..]),
            now.get(range.clone()).map(|block| &block[HEADER..])
        );
    }
    if !forged {
        let is_same = |range: Range<usize>| now.get(range.clone()) == before.get(range);
        let is_left = is_same(0..BLOCK) && is_same(range);
        assert_eq!(found.is_ok(), is_left, "{:?}: {found:?}", written.place);
    }
}

/// Blocks that one read brings are those that are read one by one.
fn check_groups(
    image: &Image,
    reader: &BlockReader<SimulatedDisk>,
    found: &[Found],
    bytes_max: usize,
) {
    let mut rest = found;
    for group in reads(&image.blocks, bytes_max, |written| written.place) {
        let alone = rest.split_off(..group.len()).expect("as many as there are");
        let wanted: Vec<_> = group
            .iter()
            .map(|written| (written.place, written.key))
            .collect();
        match block_on(reader.read(&wanted)) {
            Ok(together) => {
                let together = together.iter().map(|payload| Some(&payload[..]));
                assert!(together.eq(alone.iter().map(|one| one.as_deref().ok())));
            }
            Err(error) => assert!(alone.iter().any(Result::is_err), "{error}"),
        }
    }
    assert!(rest.is_empty());
}

/// What going through one segment found.
struct Scan {
    id: SegmentId,
    found: Result<(ScanReport, Vec<Written>), StorageError>,
}

/// Goes through every segment: what is found can be read, and no file is read without end.
fn check_scans(
    disk: &SimulatedDisk,
    reader: &BlockReader<SimulatedDisk>,
    files: &[File],
) -> Vec<Scan> {
    let (ids, unknown) = block_on(list(disk, DIR.as_ref())).expect("a listing");
    assert_eq!((ids.len(), unknown), (files.len(), Vec::new()));
    let scan = |id| {
        let length = contents_of(files, &path(id)).expect("it is listed").len() as u64;
        let before = disk.count(Operation::Read);
        let mut blocks = Vec::new();
        let scan = reader.scan(id, |place, key, payload| {
            let payload = payload.to_vec();
            blocks.push(Written {
                place,
                key,
                payload,
            });
        });
        let found = block_on(scan).map(|report| (report, blocks));
        let count = disk.count(Operation::Read) - before;
        assert!(
            count <= 2 + length / BLOCK as u64,
            "{count} reads of {length} bytes"
        );
        let checked = block_on(reader.check(id, length / BLOCK as u64 * BLOCK as u64));
        assert_eq!(
            checked.as_ref().ok().copied(),
            found.is_ok().then_some(length)
        );
        if let Ok((report, blocks)) = &found {
            let bytes: u64 = blocks.iter().map(|block| block.place.bytes()).sum();
            assert_eq!((report.blocks, report.bytes), (blocks.len() as u64, bytes));
            assert!(bytes + BLOCK as u64 <= length);
            let mut end = BLOCK as u64;
            for block in blocks {
                assert!(u64::from(block.place.offset) >= end, "blocks overlap");
                end = block.place.end();
                let again = read(reader, block).expect("what is found is read");
                assert_eq!(again, block.payload);
            }
        }
        Scan { id, found }
    };
    ids.into_iter().map(scan).collect()
}

/// Going through what decayed finds the blocks that are left: all but those that lie in one page
/// with the end of one that is lost.
fn check_model(image: &Image, files: &[File], scans: &[Scan]) {
    for Scan { id, found } in scans {
        let now = contents_of(files, &path(*id)).expect("it is listed");
        let before = contents_of(&image.files, &path(*id)).expect("it was written");
        let Ok((report, blocks)) = found else {
            assert!(
                now.get(..BLOCK) != before.get(..BLOCK),
                "refused: {:?}",
                found.as_ref().err()
            );
            continue;
        };
        assert!(now.get(..BLOCK) == before.get(..BLOCK), "no segment");
        let written: HashMap<usize, &Written> = image
            .blocks
            .iter()
            .filter(|written| written.place.segment == *id)
            .map(|written| (written.range().start, written))
            .collect();
        let (mut at, mut blocks) = (BLOCK, blocks.iter());
        while at < now.len() {
            let is_left = |written: &&&Written| {
                let range = written.range();
                now.get(range.clone()) == before.get(range)
            };
            at = match written.get(&at).filter(is_left) {
                Some(written) => {
                    let found = blocks.next().expect("a block that is left");
                    assert_eq!((found.place, found.key), (written.place, written.key));
                    assert_eq!(found.payload, written.payload);
                    written.range().end
                }
                None => (at / BLOCK + 1) * BLOCK,
            };
        }
        assert!(blocks.next().is_none(), "found what was not written");
        assert!(now != before || report.skipped_bytes == 0, "{report:?}");
    }
}

/// A start takes files that are there and long enough, and changes nothing that is needed.
fn check_start(image: &Image, disk: &SimulatedDisk, files: &[File], found: &[Found]) {
    let named = ends(image);
    let started = block_on(reconcile(disk, DIR.as_ref(), &named, &HashMap::new()));
    let reaches = |(id, end): (&SegmentId, &u64)| {
        let end = end.next_multiple_of(BLOCK as u64);
        contents_of(files, &path(*id)).is_some_and(|bytes| bytes.len() as u64 >= end)
    };
    assert_eq!(started.is_ok(), named.iter().all(reaches), "{started:?}");
    let reader = reader(disk);
    for (written, found) in image.blocks.iter().zip(found) {
        assert_eq!(read(&reader, written).ok(), found.as_ref().ok().cloned());
    }
}

/// A repair gives back every block that only its file's first block, or length, kept away.
fn check_mend(image: &Image, disk: &SimulatedDisk, files: &[File]) {
    let ends = ends(image);
    for (id, end) in &ends {
        if contents_of(files, &path(*id)).is_some() {
            let mended = mend(disk, DIR.as_ref(), *id, SEED, *end);
            block_on(mended).expect("mended");
            block_on(reader(disk).check(*id, *end)).expect("it is whole");
        }
    }
    let reader = reader(disk);
    for written in &image.blocks {
        let path = path(written.place.segment);
        let now = contents_of(files, &path).unwrap_or_default();
        let before = contents_of(&image.files, &path).expect("it was written");
        let is_left = now.get(written.range()) == before.get(written.range());
        assert_eq!(read(&reader, written).is_ok(), is_left);
    }
}

/// Where the last block of each segment ends.
fn ends(image: &Image) -> HashMap<SegmentId, u64> {
    let blocks = image.blocks.iter();
    blocks
        .map(|written| (written.place.segment, written.place.end()))
        .collect()
}

/// The input lies behind the first block of a segment.
fn check_anything(rest: &[u8]) -> u64 {
    let (path, file) = &images()[0].files[0];
    let mut kinds = Vec::new();
    // Once as it is, and once with a checksum that fits the first block in it.
    for forged in [false, true] {
        let mut file = [&file[..BLOCK], rest].concat();
        if forged {
            seal(&mut file, BLOCK);
        }
        let files = [(path.clone(), file)];
        let disk = disk_with(DIR, DISK_BYTES, &files);
        let scans = check_scans(&disk, &reader(&disk), &files);
        let (report, blocks) = scans[0].found.as_ref().expect("its first block is whole");
        kinds.push((report.blocks.min(8), report.skipped_bytes > 0));
        for block in blocks {
            assert!((1..=PAYLOAD_MAX).contains(&block.payload.len()));
        }
    }
    kind(kinds)
}

/// What is written is read: a byte says how long a block is, or that a write ends.
fn check_write(lengths: &[u8]) -> u64 {
    let disk = disk_with(DIR, DISK_BYTES, &[]);
    let writer = writer(&disk, 1);
    let (mut blocks, mut batch, mut left) = (Vec::new(), Vec::new(), 1 << 20);
    for (index, length) in lengths.iter().chain(&[0]).enumerate() {
        let length = match length {
            0 => {
                blocks.extend(write(&writer, take(&mut batch)));
                continue;
            }
            254.. => PAYLOAD_MAX - usize::from(length % 2),
            1..128 => usize::from(*length),
            length => 4048 + usize::from(*length) - 192,
        };
        if length > left {
            continue;
        }
        left -= length;
        let key = BlockKey {
            kind: [BlockKind::Data, BlockKind::Blob][index % 2],
            owner: index as u64,
            start: (length * 7) as u64,
        };
        batch.push((key, vec![index as u8; length]));
    }
    block_on(writer.sync()).expect("synced");
    let files = files_of(&disk, DIR, |_| true);
    let reader = reader(&disk);
    let mut written = blocks.iter();
    let scans = check_scans(&disk, &reader, &files);
    for scan in &scans {
        let (report, found) = scan.found.as_ref().expect("a whole segment");
        assert_eq!(report.skipped_bytes, 0);
        for found in found {
            let written = written.next().expect("as many as were written");
            assert_eq!((found.place, found.key), (written.place, written.key));
            assert_eq!(found.payload, written.payload);
        }
    }
    assert!(written.next().is_none());
    kind((scans.len(), magnitude(blocks.len())))
}

fn reader(disk: &SimulatedDisk) -> BlockReader<SimulatedDisk> {
    BlockReader::new(disk.clone(), DIR.into(), SEED, 2)
}

type Found = Result<Vec<u8>, StorageError>;

fn read(reader: &BlockReader<SimulatedDisk>, written: &Written) -> Found {
    let found = block_on(reader.read(&[(written.place, written.key)]))?;
    assert_eq!(found.len(), 1);
    Ok(found[0].to_vec())
}

fn writer(disk: &SimulatedDisk, epoch: u64) -> SegmentWriter<SimulatedDisk> {
    let options = WriterOptions {
        epoch,
        shard: 7,
        seed: SEED,
        segment_bytes: 8 * BLOCK as u64,
        reserve_bytes: 0,
    };
    SegmentWriter::new(
        disk.clone(),
        DIR.into(),
        options,
        SegmentGraveyard::default(),
    )
}

fn write(writer: &SegmentWriter<SimulatedDisk>, blocks: Vec<(BlockKey, Vec<u8>)>) -> Vec<Written> {
    let new: Vec<_> = blocks
        .iter()
        .map(|(key, payload)| {
            let whole = Bytes::copy_from_slice(payload);
            let cut = payload.len() / 3;
            NewBlock {
                key: *key,
                pieces: vec![whole.slice(..cut), whole.slice(cut..)],
            }
        })
        .collect();
    let placed = block_on(writer.write(&new)).expect("the disk has room");
    assert_eq!(placed.len(), blocks.len());
    let placed = placed.iter().zip(blocks);
    placed
        .map(|((_, place), (key, payload))| Written {
            place: *place,
            key,
            payload,
        })
        .collect()
}

/// Fields of a block's header: offset and size in bytes.
const FIELDS: [(usize, usize); 7] = [(8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 1), (41, 4)];

/// Forges a file's first block, or the header or the body of one of the blocks in a page, and its
/// checksum.
fn forge(file: &mut [u8], forgery: Forgery) -> bool {
    let Forgery {
        block, within, how, ..
    } = forgery;
    let Some(page) = file.get_mut(block..block + BLOCK) else {
        return false;
    };
    if block == 0 {
        let (at, size) = [(8, 4), (16, 8), (24, 8)][within % 3];
        forge_field(&mut page[at..at + size], 64, how);
        let checksum = Checksum::seeded(SEED).with(&page[16..]).value();
        page[12..16].copy_from_slice(&checksum.to_le_bytes());
        return true;
    }
    let blocks: Vec<_> = (0..BLOCK - HEADER)
        .filter(|at| page[*at..].starts_with(b"TWBK"))
        .collect();
    let Some(at) = blocks.get(usize::from(how[2] / 4) % blocks.len().max(1)) else {
        return false;
    };
    let at = block + at;
    if forgery.is_body {
        let Some(byte) = file.get_mut(at + HEADER + within) else {
            return false;
        };
        *byte ^= how[0];
    } else {
        let (field, size) = FIELDS[within % FIELDS.len()];
        forge_field(&mut file[at + field..at + field + size], 64, how);
    }
    seal(file, at);
    true
}

/// Makes the checksum of the block at a place fit, if the block is there.
fn seal(file: &mut [u8], at: usize) {
    let Some(header) = file.get(at..at + HEADER) else {
        return;
    };
    let end = at + HEADER + u32_at(header, 36) as usize;
    if let Some(block) = file.get_mut(at..end) {
        let checksum = Checksum::seeded(SEED).with(&block[8..]).value();
        block[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Segments of two lives.
fn image(which: u8) -> Image {
    let mut rng = Rng::from_seed(u64::from(which));
    let disk = disk_with(DIR, DISK_BYTES, &[]);
    let mut blocks = Vec::new();
    for life in 1..3 {
        let writer = writer(&disk, life);
        for _ in 0..2 + rng.below(3) {
            let batch = (0..1 + rng.below(8)).map(|start| {
                let length_max =
                    [60, 900, 6_000, PAYLOAD_MAX as u64][[0, 1, 1, 2, 2, 3][rng.below(6) as usize]];
                let length = 1 + rng.below(length_max) as usize;
                let key = BlockKey {
                    kind: [BlockKind::Data, BlockKind::Blob][rng.below(2) as usize],
                    owner: rng.next_u64(),
                    start,
                };
                (key, vec![1 + rng.below(255) as u8; length])
            });
            let batch = batch.collect();
            blocks.extend(write(&writer, batch));
        }
        block_on(writer.sync()).expect("synced");
    }
    Image {
        files: files_of(&disk, DIR, |name| name.ends_with(".segment")),
        blocks,
    }
}
