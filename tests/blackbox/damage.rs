//! Random damage to the files of a data directory (Design, "Recovery, as a table").
//!
//! Each round damages one file of a copy: a bit, a run of zeros or noise, or
//! its end is cut off. Then `inspect`, a start, and a start with `--repair`
//! must agree on this much: none panics; a start refuses and names the file,
//! or serves; what is served is what was written, and what is missing of what
//! was acknowledged is an answer that fails or is named by the log.
//!
//! `THALWEG_DAMAGE_ROUNDS` sets the number of rounds (4), `THALWEG_DAMAGE_SEED`
//! repeats a run's choices; the seed is printed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::crash::{Random, setting};
use crate::common::cold::{self, Cold};
use crate::common::disk::{files, inspect, run_inspect};
use crate::common::http::Connection;
use crate::common::server::{Options, Server};
use crate::common::stream::{Stream, Surface, offset, unique};

#[test]
fn damage_is_refused_repaired_or_does_not_matter() {
    let rounds = setting("THALWEG_DAMAGE_ROUNDS").unwrap_or(4);
    let seed = setting("THALWEG_DAMAGE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("{rounds} rounds, THALWEG_DAMAGE_SEED={seed}");
    let mut random = Random(seed);
    let server = cold::options().start();
    let cold = Cold::fill(&server);
    // One that is large enough for a file of its own.
    let stream = Stream::at(&server, Surface::Bucket, &cold.streams[cold::OTHER].0);
    let publish = stream.request("PUT", "/snapshot/9").body(vec![7; 100_000]);
    publish.send().expect(204);
    let pristine = server.kill();
    for round in 0..rounds {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique("damaged"));
        copy_dir(pristine.data_dir(), &copy);
        let options = pristine.clone().in_directory(&copy);
        let file = damage(&copy, &mut random, round);
        judge(&options, &cold, &file);
    }
}

/// Damages a file somewhere; which.
fn damage(data: &Path, random: &mut Random, round: u64) -> PathBuf {
    let of_server = |path: &PathBuf| !path.ends_with("LOCK");
    let all: Vec<PathBuf> = files(data).into_iter().filter(of_server).collect();
    let path = all[random.below(all.len() as u64) as usize].clone();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path);
    let file = file.expect("it is there");
    let len = file.metadata().expect("it is there").len();
    // Files are longer than what is in them: half of the damage is near their beginning.
    let within = if random.below(2) == 0 {
        len.min(64 << 10)
    } else {
        len
    };
    let at = random.below(within.max(1));
    let run = (1 + random.below(8192)).min(len.saturating_sub(at)) as usize;
    let what = match random.below(4) {
        0 => {
            cold::flip(&path, at);
            "a bit"
        }
        1 => {
            file.write_all_at(&vec![0; run], at).expect("writable");
            "zeros"
        }
        2 => {
            let noise: Vec<u8> = (0..run).map(|_| random.below(256) as u8).collect();
            file.write_all_at(&noise, at).expect("writable");
            "noise"
        }
        _ => {
            file.set_len(at).expect("writable");
            "the end"
        }
    };
    println!(
        "round {round}: {what} at {at} of {}, {len} bytes",
        path.display()
    );
    path
}

fn judge(options: &Options, cold: &Cold, damaged: &Path) {
    // Checks that it ends as it should; what it finds may not matter.
    run_inspect(options.data_dir(), &[]);
    let (server, refused) = match options.try_start() {
        Ok(server) => (server, false),
        Err(refusal) => {
            assert!(!refusal.contains("panicked"), "{refusal}");
            let named = damaged.to_string_lossy();
            assert!(
                refusal.contains(&*named),
                "{named} is not named:\n{refusal}"
            );
            assert!(!inspect(options.data_dir()).0, "inspect finds it too");
            match options.clone().switch("repair").try_start() {
                Ok(server) => (server, true),
                Err(refusal) => {
                    // Without it nothing can be told.
                    assert!(damaged.ends_with("manifest"), "{refusal}");
                    assert!(!refusal.contains("panicked"), "{refusal}");
                    return;
                }
            }
        }
    };
    let streams = 0..cold.streams.len();
    let found = |index| read(&server, cold, index, refused);
    let found: Vec<Found> = streams.clone().map(found).collect();
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let options = server.kill();
    if refused {
        let (verified, text) = run_inspect(options.data_dir(), &[]);
        assert!(verified, "after a repair:\n{text}");
        let server = options.without_switches().start();
        for (index, found) in streams.zip(found) {
            assert_eq!(arrives(&server, cold, index), found, "stream {index}");
        }
    }
}

/// Where a stream ended, in bytes, and whether that was for want of an answer.
type Found = (usize, bool);

/// Reads a stream: what arrives is what was written; what does not is said to be lost where
/// `is_told`, or its answer fails, or a torn end was cut.
fn read(server: &Server, cold: &Cold, index: usize, is_told: bool) -> Found {
    let (key, body) = &cold.streams[index];
    let (at, lost) = arrives(server, cold, index);
    let is_whole = !lost && at == body.len();
    let log = server.log();
    if is_told && !is_whole {
        // By its name, or if that is in what is lost, by its token; or with others.
        let names = [
            key.as_str(),
            &cold.tokens[index],
            "are lost, a stream each",
            "what was behind it is lost",
        ];
        assert!(
            names.iter().any(|name| log.contains(name)),
            "stream {index}: {at} bytes, untold:\n{log}"
        );
    } else if !lost && !is_whole {
        // What cannot be told from a torn end is cut.
        assert!(
            log.contains("was cut at byte"),
            "stream {index}: {at} of {} bytes, silently:\n{log}",
            body.len()
        );
    }
    (at, lost)
}

/// How much arrives of a stream; all of it is what was written.
fn arrives(server: &Server, cold: &Cold, index: usize) -> Found {
    let (key, body) = &cold.streams[index];
    let stream = Stream::at(server, Surface::Bucket, key);
    let mut at = 0;
    let lost = loop {
        let read = stream.get(&format!("offset={}", offset(at)));
        let mut connection = Connection::try_open(server.address()).expect("it listens");
        connection.write(read.encode());
        // One that fails early enough may end before its head is sent.
        let Ok(head) = connection.try_read_head() else {
            break true;
        };
        match head.status {
            200 => {}
            410 => {
                let next = head.header("stream-next-offset").expect("where to go on");
                let next: usize = next.parse().expect("a number");
                assert!(next > at, "it goes on further on");
                at = next;
                continue;
            }
            404 | 500 => break true,
            other => panic!("{other} for stream {index}"),
        }
        let mut got = 0;
        let broke = loop {
            match connection.try_read_piece("GET", &head, got) {
                Ok(Some(piece)) => {
                    let expected = &body[at + got..];
                    assert!(expected.starts_with(&piece), "stream {index} at {at}");
                    got += piece.len();
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        at += got;
        if broke {
            break true;
        }
        if head.header("stream-up-to-date").is_some() {
            break false;
        }
    };
    (at, lost)
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("Cargo's temporary directory is writable");
    for entry in fs::read_dir(from).expect("a directory") {
        let (from, to) = {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_owned();
            (path, to.join(name))
        };
        if from.is_dir() {
            copy_dir(&from, &to);
        } else {
            fs::copy(&from, &to).expect("it can be copied");
        }
    }
}
