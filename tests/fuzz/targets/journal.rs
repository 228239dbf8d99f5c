//! Journal files that decayed, or were tampered with.
//!
//! The first byte of an input picks a journal that was written through crashes, every eight bytes
//! behind it say what happens to a file. What decays (bytes flipped, blocks lost, files cut,
//! lengthened or removed) must be refused or cut at its end: nothing is handed out that was not
//! written, and nothing goes missing that a whole batch proves acknowledged. What is forged, with
//! checksums that fit, must be read without harm.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use futures_lite::future::{block_on, or, yield_now};

use thalweg::base::checksum::Checksum;
use thalweg::base::rng::Rng;
use thalweg::storage::StorageError;
use thalweg::storage::disk::{Crash, Disk, FaultPlan, SimulatedDisk};
use thalweg::storage::journal::{
    Durability, Journal, Options, Position, RecoveryReport, Stage, SyncMethod, read_journal,
};

use super::{Target, chance, kind};

/// The target.
pub const JOURNAL: Target = Target {
    name: "journal",
    check,
    seeds,
    words: &[
        &[FLIP, 0, 1, 5, 0, 1, 0, 0],
        &[FLIP, 0, 0, 20, 0, 1, 0, 0],
        &[ZERO, 0, 2, 0, 0, 0, 1, 0],
        &[COPY, 0, 1, 0, 0, 0, 1, 2],
        &[CUT, 0, 3, 0, 0, 0, 0, 0],
        &[LENGTHEN, 0, 0, 0, 0, 7, 4, 0],
        &[REMOVE, 1, 0, 0, 0, 0, 0, 0],
        &[FORGE, 0, 1, 3, 0, 0, 0, 1],
        &[FORGE_BODY, 0, 1, 0, 0, 200, 0, 0],
    ],
};

const DIR: &str = "/journal";
const DISK_BYTES: u64 = 8 << 20;
const SHARD: u32 = 7;
const BLOCK: usize = 4096;
const HEADER: usize = 80;
const JOURNALS: u64 = 6;
/// Changes to one journal: more prove nothing more.
const CHANGES_MAX: usize = 8;

const FLIP: u8 = 0;
const ZERO: u8 = 1;
const COPY: u8 = 2;
const CUT: u8 = 3;
const LENGTHEN: u8 = 4;
const REMOVE: u8 = 5;
const FORGE: u8 = 6;
const FORGE_BODY: u8 = 7;

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for journal in 0..JOURNALS as u8 {
        seeds.push(vec![journal]);
        for (index, word) in JOURNAL.words.iter().enumerate() {
            let mut change = word.to_vec();
            for block in [0, 1, index as u8] {
                change[2] = block;
                seeds.push([&[journal], &change[..]].concat());
            }
        }
    }
    seeds
}

/// A journal as its files, and what is known of it.
struct Image {
    options: Options,
    files: Vec<(PathBuf, Vec<u8>)>,
    records: Vec<Vec<u8>>,
    /// The batch that proves most: its file and its bytes in it.
    proof: (usize, std::ops::Range<usize>),
    /// Records that it proves acknowledged.
    proven: usize,
}

fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| (0..JOURNALS).map(image).collect())
}

fn check(data: &[u8]) -> u64 {
    let Some((journal, changes)) = data.split_first() else {
        return 0;
    };
    let image = &images()[usize::from(*journal) % images().len()];
    let mut files = image.files.clone();
    let (changes, _) = changes.as_chunks();
    let mut forged = false;
    for change in changes.iter().take(CHANGES_MAX) {
        forged |= alter(&mut files, change);
    }
    let disk = disk_with(&files);
    let read = read(&disk);
    if !forged {
        check_decay(image, &files, &read);
    }
    assert_eq!(
        summary(&self::read(&disk)),
        summary(&read),
        "reading changes nothing"
    );
    if chance(data).below(4) == 0 {
        check_open(image, &disk, &read, forged);
    }
    match read {
        Ok((records, report)) => {
            let lost = image.records.len().saturating_sub(records.len());
            let tail = report.cut.map(|cut| std::mem::discriminant(&cut.tail));
            kind((forged, lost.min(8), tail, report.files, report.records == 0))
        }
        Err(error) => kind((forged, std::mem::discriminant(&error))),
    }
}

fn check_decay(image: &Image, files: &[(PathBuf, Vec<u8>)], read: &Read) {
    let Ok((records, report)) = read else { return };
    assert!(
        image.records.starts_with(records),
        "handed out what was not written: {report:?}"
    );
    let (file, range) = &image.proof;
    let (path, original) = &image.files[*file];
    let intact = files
        .iter()
        .find(|(name, _)| name == path)
        .is_some_and(|(_, bytes)| {
            bytes.get(range.clone()) == original.get(range.clone())
                && bytes.get(..BLOCK) == original.get(..BLOCK)
        });
    assert!(
        !intact || records.len() >= image.proven,
        "{} of {} acknowledged records: {report:?}",
        records.len(),
        image.proven
    );
}

/// Opening agrees with reading, and what was handed out is there from then on.
fn check_open(image: &Image, disk: &SimulatedDisk, read: &Read, forged: bool) {
    let opened = open(disk, &image.options);
    let Ok((journal, records)) = opened else {
        let whole = matches!(read, Ok((records, _)) if !records.is_empty());
        let error = opened.err();
        assert!(forged || !whole, "reads, but does not open: {error:?}");
        return;
    };
    drop(journal);
    let before = read.as_ref().map(|(records, _)| records);
    assert!(
        before.is_ok_and(|before| *before == records),
        "opens as it does not read"
    );
    disk.crash(Crash::Power);
    let (again, report) = self::read(disk).expect("what was opened reads");
    assert_eq!(again, records, "{report:?}");
}

type Read = Result<(Vec<Vec<u8>>, RecoveryReport), StorageError>;

fn read(disk: &SimulatedDisk) -> Read {
    let mut records = Vec::new();
    let mut next = None;
    let keep = |position: Position, record: &[u8]| {
        // Fillers leave positions out; nothing comes twice, nothing goes back.
        assert!(next.is_none_or(|next| position >= next), "positions rise");
        next = Some(Position(position.0 + 1));
        records.push(record.to_vec());
        Ok(())
    };
    let report = block_on(read_journal(disk, Path::new(DIR), Position(0), keep))?;
    assert_eq!(report.records, records.len() as u64);
    Ok((records, report))
}

fn summary(read: &Read) -> Result<(&[Vec<u8>], &RecoveryReport), String> {
    match read {
        Ok((records, report)) => Ok((records, report)),
        Err(error) => Err(error.to_string()),
    }
}

type Opened = (Journal<SimulatedDisk>, Vec<Vec<u8>>);

fn open(disk: &SimulatedDisk, options: &Options) -> Result<Opened, StorageError> {
    let mut records = Vec::new();
    let keep = |_: Position, record: &[u8]| {
        records.push(record.to_vec());
        Ok(())
    };
    let opening = Journal::open(disk.clone(), Path::new(DIR), SHARD, options.clone(), keep);
    let (journal, _) = block_on(opening)?;
    Ok((journal, records))
}

fn disk_with(files: &[(PathBuf, Vec<u8>)]) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1, DISK_BYTES);
    block_on(disk.create_dir(Path::new(DIR))).expect("a directory");
    for (path, bytes) in files {
        disk.set_contents(path, bytes.clone());
    }
    disk
}

/// Lets one thing happen to the files; true if it was forged.
fn alter(files: &mut Vec<(PathBuf, Vec<u8>)>, change: &[u8; 8]) -> bool {
    let [what, file, block, low, high, value, count, other] = *change;
    if files.is_empty() {
        return false;
    }
    let index = usize::from(file) % files.len();
    let length = files[index].1.len();
    let blocks = (length / BLOCK).max(1);
    let block = usize::from(block) % blocks * BLOCK;
    let within = usize::from(u16::from_le_bytes([low, high])) % BLOCK;
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
        FORGE => {
            return forge(
                &mut files[index].1,
                block,
                within,
                [value, change[6], other],
            );
        }
        _ => return forge_body(&mut files[index].1, block, within, value),
    }
    false
}

/// Fields of a batch header: offset and size in bytes.
const FIELDS: [(usize, usize); 9] = [
    (12, 4),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 8),
    (72, 4),
    (76, 4),
];

/// Sets a field of the batch header at `block`, or changes it by a little, and its checksum.
///
/// Numbers stay below 2^48: a journal that has come that far has other cares.
fn forge(file: &mut [u8], block: usize, which: usize, [value, more, how]: [u8; 3]) -> bool {
    let Some(header) = file.get_mut(block..block + HEADER) else {
        return false;
    };
    let (at, size) = FIELDS[which % FIELDS.len()];
    let mut field = [0; 8];
    field[..size].copy_from_slice(&header[at..at + size]);
    let old = u64::from_le_bytes(field) & 0xffff_ffff_ffff;
    let value = u64::from(value);
    let new = match how % 4 {
        0 => value,
        1 => old.wrapping_add(value),
        2 => old.saturating_sub(value),
        _ => value << (more % 40),
    };
    let new = (new & 0xffff_ffff_ffff).to_le_bytes();
    header[at..at + size].copy_from_slice(&new[..size]);
    seal(header);
    true
}

/// Changes a byte of the body of the batch at `block`, and both checksums.
fn forge_body(file: &mut [u8], block: usize, which: usize, value: u8) -> bool {
    let Some(batch) = batch_at(file, block) else {
        return false;
    };
    let epoch = batch.epoch;
    let body = &mut file[batch.range.clone()][HEADER..];
    let body_bytes = body.len();
    if body_bytes == 0 {
        return false;
    }
    body[which % body_bytes] ^= value;
    let checksum = Checksum::seeded(epoch).with(body).value();
    let header = &mut file[block..block + HEADER];
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    seal(header);
    true
}

fn seal(header: &mut [u8]) {
    let epoch = u64_at(header, 24);
    let checksum = Checksum::seeded(epoch).with(&header[8..]).value();
    header[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// What the header at a place says, whatever lies there.
struct Batch {
    epoch: u64,
    number: u64,
    durable: u64,
    records_end: u64,
    /// Header and body.
    range: std::ops::Range<usize>,
}

fn batch_at(file: &[u8], at: usize) -> Option<Batch> {
    let header = file.get(at..at + HEADER)?;
    if !header.starts_with(b"TWBA") {
        return None;
    }
    let small = |at| u64_at(header, at) & 0xffff_ffff;
    let range = at..at + HEADER + small(72) as usize;
    file.get(range.clone())?;
    Some(Batch {
        epoch: u64_at(header, 24),
        number: u64_at(header, 32),
        durable: u64_at(header, 40),
        records_end: u64_at(header, 48) + (u64_at(header, 72) >> 32),
        range,
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A journal of a few lives, each but the last ended by a crash at some moment.
fn image(seed: u64) -> Image {
    let mut rng = Rng::from_seed(seed);
    let disk = SimulatedDisk::new(seed, DISK_BYTES);
    block_on(disk.create_dir(Path::new(DIR))).expect("a directory");
    let mut options = Options {
        epoch: 0,
        journal_id: 0x1234_5678_9abc_def0,
        create: true,
        replay_from: Position(0),
        durability: Durability::Sync,
        sync_method: SyncMethod::Fdatasync,
        in_flight_max: 2,
        file_bytes: 8 * BLOCK as u64,
        record_bytes_max: 6_000,
        batch_bytes_max: 2 * BLOCK,
        reserve_bytes: 0,
        ahead_bytes: BLOCK as u64,
    };
    for life in 0..4 {
        options.epoch += 1;
        let (journal, _) = open(&disk, &options).expect("nothing was damaged");
        options.create = false;
        disk.plan(FaultPlan {
            halt_after: (life < 3).then(|| 10 + rng.below(50)),
            delay_turns_max: rng.below(4),
            ..FaultPlan::default()
        });
        block_on(or(
            or(
                async { journal.run(|_| {}, |error| panic!("{error}")).await },
                async {
                    for record in 0..3 + rng.below(12) {
                        let len = [20, 300, 5_000][rng.below(3) as usize];
                        let byte = (seed as u8) ^ (life << 5) ^ record as u8;
                        let _ = journal.stage(&[&vec![byte; len]]);
                        for _ in 0..rng.below(40) {
                            yield_now().await;
                        }
                    }
                    journal.close().await;
                },
            ),
            disk.halted(),
        ));
        disk.crash(if rng.below(2) == 0 {
            Crash::Process
        } else {
            Crash::Power
        });
    }
    options.epoch += 1;
    let names = block_on(disk.list_dir(Path::new(DIR))).expect("a listing");
    let files: Vec<_> = names
        .iter()
        .filter(|name| name.ends_with(".journal"))
        .map(|name| Path::new(DIR).join(name))
        .map(|path| (path.clone(), disk.contents(&path).expect("a file")))
        .collect();
    let (records, report) = read(&disk).expect("it reads");
    assert!(report.files >= 2 && records.len() >= 10, "{report:?}");
    let (proof, proven) = strongest(&files);
    assert!(
        proven > 0 && proven <= records.len(),
        "{proven} of {report:?}"
    );
    Image {
        options,
        files,
        records,
        proof,
        proven,
    }
}

/// The batch that proves most, and how many records that makes.
fn strongest(files: &[(PathBuf, Vec<u8>)]) -> ((usize, std::ops::Range<usize>), usize) {
    let batches: Vec<_> = files
        .iter()
        .enumerate()
        .flat_map(|(index, (_, bytes))| {
            let blocks = (BLOCK..bytes.len()).step_by(BLOCK);
            blocks.filter_map(move |at| Some((index, batch_at(bytes, at)?)))
        })
        .collect();
    let (file, proof) = batches
        .iter()
        .max_by_key(|(_, batch)| (batch.epoch, batch.durable))
        .expect("a batch");
    let (_, last) = batches
        .iter()
        .filter(|(_, batch)| batch.number == proof.durable)
        .max_by_key(|(_, batch)| batch.epoch)
        .expect("the batch that is proven");
    ((*file, proof.range.clone()), last.records_end as usize)
}
