//! What a stopped server has left on disk: found, looked at, damaged.
//!
//! Of the format (`src/storage/journal/format.rs`) it knows this much: batches
//! begin with `TWBA` at multiples of 4 KiB, and have their number at byte 32
//! and the length of what follows the header of 80 bytes at byte 72.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const BLOCK: usize = 4096;
const HEADER: usize = 80;

/// A batch of a journal.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its file.
    pub path: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its number.
    pub number: u64,
    /// Header and body.
    pub bytes: Vec<u8>,
}

/// Every batch in the journals of a data directory, by number. Tests that ask have one shard.
#[track_caller]
pub fn batches(data: &Path) -> Vec<Batch> {
    let mut batches = Vec::new();
    for path in files(data) {
        if path.extension().is_none_or(|end| end != "journal") {
            continue;
        }
        let file = fs::read(&path).expect("a journal file can be read");
        for (index, block) in file.chunks_exact(BLOCK).enumerate() {
            if !block.starts_with(b"TWBA") {
                continue;
            }
            let number = |at: usize, len: usize| {
                let bytes = block[at..at + len].iter().rev();
                bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
            };
            let start = index * BLOCK;
            let end = start + HEADER + number(72, 4) as usize;
            batches.push(Batch {
                path: path.clone(),
                offset: start as u64,
                number: number(32, 8),
                bytes: file[start..end.min(file.len())].to_vec(),
            });
        }
    }
    batches.sort_by_key(|batch| batch.number);
    batches
}

impl Batch {
    /// The first batch of `data` that holds `text`.
    #[track_caller]
    pub fn with(data: &Path, text: &str) -> Self {
        let holds = |batch: &Self| {
            let mut windows = batch.bytes.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        };
        let found = batches(data).into_iter().find(holds);
        found.unwrap_or_else(|| panic!("no batch holds {text:?}"))
    }

    /// Flips a bit of its body.
    pub fn damage(&self) {
        let at = self.offset + self.bytes.len() as u64 - 1;
        let flipped = self.bytes[self.bytes.len() - 1] ^ 1;
        self.file().write_all_at(&[flipped], at).expect("writable");
    }

    /// Leaves zeros of its second half, as a write that was cut short would.
    pub fn cut(&self) {
        let half = self.bytes.len() / 2;
        let zeros = vec![0; self.bytes.len() - half];
        let at = self.offset + half as u64;
        self.file().write_all_at(&zeros, at).expect("writable");
    }

    fn file(&self) -> File {
        let file = OpenOptions::new().write(true).open(&self.path);
        file.expect("the journal file is there")
    }
}

/// Every file at and below a directory.
#[track_caller]
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// `thalweg inspect --json`: whether everything verifies, and the report.
#[track_caller]
pub fn inspect(data: &Path) -> (bool, Value) {
    let (status, text) = run_inspect(data, &["--json"]);
    let report = serde_json::from_str(&text);
    (
        status,
        report.unwrap_or_else(|error| panic!("{error}: {text}")),
    )
}

/// `thalweg inspect` with more arguments: whether everything verifies, and what it says.
#[track_caller]
pub fn run_inspect(data: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.arg("inspect").arg(data).args(arguments);
    let output = command.output().expect("the built binary can be started");
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "it ended with {code:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (code == Some(0), text)
}
