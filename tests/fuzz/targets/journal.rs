//! Journal files that decayed, or were tampered with.
//!
//! The first byte of an input picks a journal that was written through crashes, every eight bytes
//! behind it say what happens to a file. What decays (bytes flipped, blocks lost, files cut,
//! lengthened or removed) must be refused or cut at its end: nothing is handed out that was not
//! written, and nothing goes missing that a whole batch proves acknowledged. What is forged, with
//! checksums that fit, must be read without harm.

use std::path::Path;
use std::sync::OnceLock;

use futures_lite::future::{block_on, or, yield_now};

use thalweg::base::checksum::Checksum;
use thalweg::base::rng::Rng;
use thalweg::storage::StorageError;
use thalweg::storage::disk::{Crash, Disk, FaultPlan, SimulatedDisk};
use thalweg::storage::journal::{
    Durability, Journal, Options, Position, RecoveryReport, Stage, SyncMethod, read_journal,
};

use super::decay::{
    BLOCK, COPY, CUT, FLIP, FORGE, FORGE_BODY, File, Forgery, LENGTHEN, REMOVE, ZERO, alter_all,
    contents_of, disk_with, files_of, forge_field, u64_at,
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
const HEADER: usize = 80;
const JOURNALS: u64 = 6;

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
    files: Vec<File>,
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
    let forged = alter_all(&mut files, changes, forge);
    let disk = disk_with(DIR, DISK_BYTES, &files);
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

fn check_decay(image: &Image, files: &[File], read: &Read) {
    let Ok((records, report)) = read else { return };
    assert!(
        image.records.starts_with(records),
        "handed out what was not written: {report:?}"
    );
    let (file, range) = &image.proof;
    let (path, original) = &image.files[*file];
    let intact = contents_of(files, path).is_some_and(|bytes| {
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

/// Sets a field of the batch header at a block, or changes it by a little, and its checksum; or
/// changes a byte of its body, and both checksums.
///
/// Numbers stay below 2^48: a journal that has come that far has other cares.
fn forge(file: &mut [u8], forgery: Forgery) -> bool {
    let Forgery {
        block, within, how, ..
    } = forgery;
    if forgery.is_body {
        return forge_body(file, block, within, how[0]);
    }
    let Some(header) = file.get_mut(block..block + HEADER) else {
        return false;
    };
    let (at, size) = FIELDS[within % FIELDS.len()];
    forge_field(&mut header[at..at + size], 48, how);
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
        freeing_bytes: 0,
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
    let files = files_of(&disk, DIR, |name| name.ends_with(".journal"));
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
fn strongest(files: &[File]) -> ((usize, std::ops::Range<usize>), usize) {
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
