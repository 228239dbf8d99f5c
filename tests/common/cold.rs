//! A server whose streams are mostly in segments and checkpoints, and what those files look like.
//!
//! Of the format (`src/storage/segment/format.rs`) it knows this much: blocks begin with `TWBK`,
//! have the segment at byte 8, the stream's token at 16, the offset of the first byte in the stream
//! at 24, their own offset at 32, their length at 36, and their payload at 48.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::disk::files;
use super::eventually;
use super::observe::metric;
use super::server::{Options, Server};
use super::stream::{OCTETS, Stream, Surface};

const HEADER: usize = 48;
/// Payload of a block that is full.
pub const BLOCK_BYTES: usize = 64 << 10;

/// A block of a stream, or of one of its snapshots.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its file.
    pub path: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// The token of its stream.
    pub owner: String,
    /// The offset of its first byte in the stream.
    pub start: usize,
    /// Bytes of its payload.
    pub len: usize,
}

/// Every block in the segments of a data directory, dead ones included.
#[track_caller]
pub fn blocks(data: &Path) -> Vec<Block> {
    let mut blocks = Vec::new();
    for path in files(&data.join("segments")) {
        let file = fs::read(&path).expect("a segment can be read");
        let mut at = 4096;
        while let Some(header) = file.get(at..at + HEADER) {
            let number = |from: usize, len: usize| {
                let bytes = header[from..from + len].iter().rev();
                bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
            };
            if !header.starts_with(b"TWBK") || number(32, 4) != at as u64 {
                // A write begins at a page, but what is left of it where its first blocks died and
                // were punched out does not.
                let next = file[at + 1..].windows(4).position(|four| four == b"TWBK");
                at += 1 + next.unwrap_or(file.len());
                continue;
            }
            let len = number(36, 4) as usize;
            blocks.push(Block {
                path: path.clone(),
                offset: at as u64,
                owner: number(16, 8).to_string(),
                start: number(24, 8) as usize,
                len,
            });
            at += HEADER + len;
        }
    }
    blocks
}

impl Block {
    /// Flips a bit in the middle of its payload.
    pub fn damage(&self) {
        flip(&self.path, self.offset + (HEADER + self.len / 2) as u64);
    }
}

/// Flips a bit of the byte at `offset`.
#[track_caller]
pub fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("the file is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("readable");
    file.write_all_at(&[byte[0] ^ 1], offset).expect("writable");
}

/// Files of shard 0 whose names begin so.
#[track_caller]
pub fn of_shard(data: &Path, name: &str) -> PathBuf {
    let is_it = |path: &PathBuf| {
        let file = path
            .file_name()
            .map(|file| file.to_string_lossy().into_owned());
        let in_shard = path.parent().is_some_and(|dir| dir.ends_with("shard-0"));
        in_shard && file.is_some_and(|file| file.starts_with(name) && !file.ends_with(".new"))
    };
    let all = files(data)
        .into_iter()
        .filter(|path| !path.starts_with(data.join("quarantine")));
    let found: Vec<PathBuf> = all.filter(is_it).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0].clone()
}

/// What was written.
pub struct Cold {
    /// Streams and their bytes: two large ones, in many blocks; a fork of the first, which inherits
    /// its first 1,000 bytes; a small one with a snapshot of 2,000 bytes; small ones.
    pub streams: Vec<(String, Vec<u8>)>,
    /// Their tokens.
    pub tokens: Vec<String>,
}

/// Of [`Cold::streams`]: the first large one.
pub const LARGE: usize = 0;
/// The second.
pub const OTHER: usize = 1;
/// The fork.
pub const FORK: usize = 2;
/// The one with a snapshot, at 4.
pub const SNAPSHOT: usize = 3;

/// The snapshot's body.
pub fn snapshot() -> Vec<u8> {
    vec![b's'; 2000]
}

/// Small segments, checkpoints and memory.
pub fn options() -> Options {
    Options::new(1)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .flag("checkpoint-bytes", "1MiB")
        .flag("segment-bytes", "2MiB")
        .flag("memory-bytes-max", "8MiB")
}

/// Checkpoints written, once no more are: metrics are some hundred milliseconds old.
fn settled_checkpoints(server: &Server) -> u64 {
    let mut before = None;
    eventually("no more checkpoints are written", || {
        let count = metric(server, "checkpoints_total");
        thread::sleep(Duration::from_millis(400));
        (before.replace(count) == Some(count)).then_some(count)
    })
}

impl Cold {
    /// Writes the streams, and lets a checkpoint have all of them but what came last to each.
    pub fn fill(server: &Server) -> Self {
        let create = || Stream::create(server, Surface::Bucket, OCTETS);
        let large = [create(), create()];
        let mut bodies = [Vec::new(), Vec::new()];
        for round in 0..30_usize {
            for (number, stream) in large.iter().enumerate() {
                let piece: Vec<u8> = (0..100_000_usize)
                    .map(|at| (at / 7 + at * 3 + round * 11 + number * 101) as u8)
                    .collect();
                put(stream, &piece);
                bodies[number].extend(piece);
            }
        }
        let [first, second] = bodies;
        let fork = Stream::absent(server, Surface::Base);
        let put_fork = fork
            .put()
            .header("Stream-Forked-From", large[0].on(Surface::Base).path());
        let put_fork = put_fork.header("Stream-Fork-Offset", format!("{:020}", 1000));
        put_fork.send().expect(201);
        let inherited = first[..1000].to_vec();
        let mut streams = vec![
            (large[0].key().to_owned(), first),
            (large[1].key().to_owned(), second),
            (fork.key().to_owned(), inherited),
        ];
        for number in 0..10_u8 {
            let stream = Stream::with_body(server, Surface::Bucket, OCTETS, [number; 700]);
            streams.push((stream.key().to_owned(), vec![number; 700]));
        }
        let at = |index: usize| Stream::at(server, Surface::Bucket, &streams[index].0);
        let publish = at(SNAPSHOT).request("PUT", "/snapshot/4").body(snapshot());
        publish.send().expect(204);
        // Two more, so that one of them has begun after all this; and then none for what comes last.
        let enough = settled_checkpoints(server) + 2;
        let filler = create();
        eventually("a checkpoint has it all, and the next is not near", || {
            for _ in 0..5 {
                put(&filler, &[0; 200_000]);
            }
            let has_enough = settled_checkpoints(server) >= enough;
            (has_enough && metric(server, "journal_bytes") < 512 << 10).then_some(())
        });
        filler.delete().send().expect(204);
        for (key, body) in &mut streams {
            put(&Stream::at(server, Surface::Bucket, key), b"behind it");
            body.extend(b"behind it");
        }
        let token = |(key, _): &(String, Vec<u8>)| {
            Stream::at(server, Surface::Bucket, key)
                .head()
                .send()
                .incarnation()
        };
        let tokens = streams.iter().map(token).collect();
        Self { streams, tokens }
    }

    /// Checks that all of it can be read, but for `except`.
    #[track_caller]
    pub fn check(&self, server: &Server, except: &[usize]) {
        for (index, (key, body)) in self.streams.iter().enumerate() {
            if !except.contains(&index) {
                let read = Stream::at(server, Surface::Bucket, key).read_all();
                assert!(
                    read == *body,
                    "stream {index}: {} of {}",
                    read.len(),
                    body.len()
                );
            }
        }
        if !except.contains(&SNAPSHOT) {
            let stream = Stream::at(server, Surface::Bucket, &self.streams[SNAPSHOT].0);
            let read = stream.request("GET", "/snapshot/4").send().expect(200);
            assert!(read.body == snapshot());
        }
    }

    /// The block of a large stream that begins at `start`, wherever there is one.
    #[track_caller]
    pub fn blocks_at(&self, data: &Path, stream: usize, start: usize) -> Vec<Block> {
        let token = &self.tokens[stream];
        let all = blocks(data).into_iter();
        let found: Vec<Block> = all
            .filter(|block| block.owner == *token && block.start == start)
            .filter(|block| block.len == BLOCK_BYTES)
            .collect();
        assert!(!found.is_empty(), "no block of {token} begins at {start}");
        found
    }
}

/// Appends what is not refused for the moment: there is little memory.
fn put(stream: &Stream<'_>, body: &[u8]) {
    eventually("it is taken", || {
        let post = stream.post().header("Content-Type", OCTETS).body(body);
        let status = post.send().status;
        assert!(matches!(status, 204 | 503), "{status}");
        (status == 204).then_some(())
    });
}
