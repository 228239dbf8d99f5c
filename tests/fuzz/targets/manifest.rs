//! The files that say what a directory is: a data directory's manifest, and a backup's contents,
//! which `restore` believes.
//!
//! The first byte of an input picks what the rest is: either file, byte for byte; what a manifest,
//! or a list of a backup's files, says before it is sealed; or the names of files that a backup
//! lists. What is sealed reads back, and no byte of it may differ.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use thalweg::base::checksum::Checksum;
use thalweg::server::backup::contents::{Contents, Entry};
use thalweg::storage::manifest::Manifest;

use super::decay::{u32_at, u64_at};
use super::{Target, chance, kind, magnitude, to_vecs};

/// The target.
pub const MANIFEST: Target = Target {
    name: "manifest",
    check,
    seeds,
    words: &[
        b"THALWEGM",
        b"\x01",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"{\"format\":1,\"made_by\":\"",
        b"\",\"made_at\":\"",
        b"\",\"from\":\"",
        b"\",\"files\":[",
        b"{\"path\":\"",
        b"\",\"bytes\":",
        b",\"blake3\":\"",
        b"\"},",
        b"]}",
        b"18446744073709551615",
        b"../",
        b"/",
        b"./",
        b"\\u0000",
        b"layout-1/shard-0/current",
        b"manifest",
    ],
};

const CONTENTS: u8 = 0;
const SEALED_CONTENTS: u8 = 1;
const LIST: u8 = 2;
const MANIFEST_BYTES: u8 = 3;
const SEALED_MANIFEST: u8 = 4;
const CHOICES: u8 = 5;
/// Bytes of a manifest.
const BYTES: usize = 88;

fn seeds() -> Vec<Vec<u8>> {
    let files = vec![Entry::new(
        Path::new("layout-1/shard-0/current"),
        4096,
        blake3::hash(b"x"),
    )];
    let made_at = String::from("2026-11-30T00:00:00.000Z");
    let contents = Contents::new(Path::new("/data"), made_at, files).to_bytes();
    let mut seeds = to_vecs(&[
        b"\x01{\"format\":1,\"made_by\":\"x\",\"made_at\":\"y\",\"from\":\"/\",\"files\":[]}",
        b"\x01{\"format\":2,\"made_by\":\"\",\"made_at\":\"\",\"from\":\"\",\"files\":[\
          {\"path\":\"a\",\"bytes\":18446744073709551615,\"blake3\":\"\"},\
          {\"path\":\"a\",\"bytes\":1,\"blake3\":\"00\"}]}",
        b"\x02manifest\nlayout-1/shard-0/current\n../../etc/passwd\n",
        b"\x03",
        b"\x03THALWEGM\x02\0\0\0",
        b"\x04",
    ]);
    seeds.push([&[CONTENTS], &contents[..]].concat());
    let mut manifest = [0; BYTES];
    manifest[8] = 2;
    manifest[16] = 3;
    manifest[40..56].copy_from_slice(b"0123456789abcdef");
    manifest[56] = 4;
    seeds.push([&[SEALED_MANIFEST], &manifest[..]].concat());
    seal(&mut manifest);
    seeds.push([&[MANIFEST_BYTES], &manifest[..]].concat());
    seeds
}

fn check(data: &[u8]) -> u64 {
    let Some((choice, rest)) = data.split_first() else {
        return 0;
    };
    match choice % CHOICES {
        CONTENTS => match Contents::parse(rest) {
            Ok(contents) => {
                check_contents(&contents, rest);
                kind((CONTENTS, contents.files.len().min(8)))
            }
            Err(what) => kind((CONTENTS, what.split(" at line").next())),
        },
        SEALED_CONTENTS => check_sealed_contents(rest, data),
        LIST => check_list(rest, data),
        MANIFEST_BYTES => {
            let manifest = Manifest::decode(rest, Path::new("manifest"));
            if let Ok(manifest) = &manifest {
                check_manifest(manifest, rest);
            }
            let error = manifest.err().map(|error| std::mem::discriminant(&error));
            kind((MANIFEST_BYTES, error, rest.len() == BYTES))
        }
        _ => check_sealed_manifest(rest, data),
    }
}

/// What was read is what is written, and none of it lies outside.
fn check_contents(contents: &Contents, bytes: &[u8]) {
    assert_eq!(contents.to_bytes(), bytes);
    let total: u128 = contents
        .files
        .iter()
        .map(|file| u128::from(file.bytes))
        .sum();
    assert_eq!(
        u128::from(contents.bytes()),
        total.min(u128::from(u64::MAX))
    );
    let dir = Path::new("/to/here");
    for file in &contents.files {
        if let Some(path) = file.below(dir) {
            assert!(path.starts_with(dir) && path != dir, "{path:?}");
            let mut parts = path.components().skip(1);
            assert!(
                parts.all(|part| matches!(part, Component::Normal(_))),
                "{path:?}"
            );
        }
    }
}

/// `backup.json` as it is described, by other hands.
#[derive(Serialize)]
struct Sealed {
    blake3: String,
    contents: List,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    format: u32,
    made_by: String,
    made_at: String,
    from: String,
    files: Vec<Item>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    path: String,
    bytes: u64,
    blake3: String,
}

fn check_sealed_contents(json: &[u8], data: &[u8]) -> u64 {
    let list: List = match serde_json::from_slice(json) {
        Ok(list) => list,
        Err(error) => return kind((SEALED_CONTENTS, error.to_string().split(" at line").next())),
    };
    let format = list.format;
    let count = list.files.len();
    let sealed = Sealed {
        blake3: blake3::hash(&serde_json::to_vec(&list).expect("JSON"))
            .to_hex()
            .to_string(),
        contents: list,
    };
    let mut bytes = serde_json::to_vec_pretty(&sealed).expect("JSON");
    bytes.push(b'\n');
    match Contents::parse(&bytes) {
        Ok(contents) => {
            assert_eq!((format, contents.files.len()), (1, count));
            check_contents(&contents, &bytes);
            check_no_byte_may_differ(bytes, data, |bytes| Contents::parse(bytes).is_err());
        }
        Err(what) => assert!(format != 1, "{what}"),
    }
    kind((SEALED_CONTENTS, format.min(2), count.min(8)))
}

/// Every line is a path that a backup lists.
fn check_list(lines: &[u8], data: &[u8]) -> u64 {
    let mut rng = chance(data);
    let mut outside = 0;
    let files: Vec<_> = lines
        .split(|byte| *byte == b'\n')
        .map(|line| {
            let path = String::from_utf8_lossy(line);
            let (bytes, digest) = (rng.next_u64(), blake3::hash(line));
            let entry = Entry::new(Path::new(&*path), bytes, digest);
            assert!(entry.is_of(bytes, digest));
            assert!(!entry.is_of(bytes ^ 1, digest));
            assert!(!entry.is_of(bytes, blake3::hash(b"another")));
            outside += usize::from(entry.below(Path::new("/to")).is_none());
            entry
        })
        .collect();
    let count = files.len();
    let contents = Contents::new(Path::new("/data"), String::from("now"), files);
    let bytes = contents.to_bytes();
    let parsed = Contents::parse(&bytes);
    assert_eq!(parsed.as_ref(), Ok(&contents));
    check_contents(&contents, &bytes);
    check_no_byte_may_differ(bytes, data, |bytes| Contents::parse(bytes).is_err());
    kind((LIST, magnitude(count), magnitude(outside)))
}

/// What was read is what is written, but for bytes that have no meaning yet.
fn check_manifest(manifest: &Manifest, bytes: &[u8]) {
    let again = manifest.encode();
    let same = [0..12, 16..64];
    assert!(
        same.into_iter()
            .all(|range| again[range.clone()] == bytes[range])
    );
    let decoded = Manifest::decode(&again, Path::new("manifest")).expect("it reads back");
    assert!(decoded == *manifest);
}

fn check_sealed_manifest(rest: &[u8], data: &[u8]) -> u64 {
    let mut bytes = [0; BYTES];
    let length = rest.len().min(BYTES);
    bytes[..length].copy_from_slice(&rest[..length]);
    seal(&mut bytes);
    let numbers = [16, 24, 32].map(|at| u64_at(&bytes, at));
    let (format, shards) = (u32_at(&bytes, 8), u32_at(&bytes, 56));
    let is_one = (1..=2).contains(&format)
        && shards > 0
        && u32_at(&bytes, 60) < 2
        && numbers.iter().all(|number| *number < 1 << 62);
    match Manifest::decode(&bytes, Path::new("manifest")) {
        Ok(manifest) => {
            assert!(is_one, "{manifest:?}");
            check_manifest(&manifest, &bytes);
            let read = |bytes: &[u8]| Manifest::decode(bytes, Path::new("manifest"));
            // Another version that is read may be what the four bytes of the version decay to.
            let is_other = |found: &[u8]| read(found).is_err() || found[8..12] != bytes[8..12];
            check_no_byte_may_differ(bytes.to_vec(), data, is_other);
        }
        Err(error) => assert!(!is_one, "{error}"),
    }
    kind((SEALED_MANIFEST, is_one, format.min(3), shards.min(2)))
}

/// The front of a manifest, and its checksum.
fn seal(bytes: &mut [u8; BYTES]) {
    bytes[..8].copy_from_slice(b"THALWEGM");
    let version = bytes[8] % 4;
    bytes[8..12].copy_from_slice(&u32::from(version).to_le_bytes());
    // Most have no flag but the one there is.
    if !bytes[61].is_multiple_of(8) {
        bytes[60] &= 1;
        bytes[61..64].fill(0);
    }
    let checksum = Checksum::seeded(0).with(&bytes[16..]).value();
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// A file in which a byte is another, that is cut or goes on, is refused.
fn check_no_byte_may_differ(mut bytes: Vec<u8>, data: &[u8], is_refused: impl Fn(&[u8]) -> bool) {
    let mut rng = chance(data);
    let at = rng.below(bytes.len() as u64) as usize;
    assert!(is_refused(&bytes[..at]), "cut at {at}");
    let change = 1 + rng.below(255) as u8;
    bytes[at] ^= change;
    assert!(is_refused(&bytes), "byte {at} ^ {change}");
    bytes[at] ^= change;
    bytes.push(b" \n\0"[rng.below(3) as usize]);
    assert!(is_refused(&bytes), "it goes on");
}
