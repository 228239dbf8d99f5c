//! Large things: what must not take memory, and what is capped. Sizes are
//! those of a quick run; `THALWEG_LARGE_MIB=1024` runs them as issue 3 names
//! them.

use std::{env, fs, path::Path};

use super::snapshot::digest;
use crate::common::{
    eventually,
    server::{Options, Server},
    stream::{OCTETS, Stream, Surface},
};

const MIB: usize = 1 << 20;
const PART: usize = 8 * MIB;

fn large_mib() -> usize {
    env::var("THALWEG_LARGE_MIB")
        .ok()
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(96)
}

/// Resident memory of the server, in bytes.
fn resident(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("VmRSS");
    let kib: usize = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("KiB");
    kib * 1024
}

fn part(index: usize) -> Vec<u8> {
    let mut body = vec![0u8; PART];
    let mut state = index as u64 + 1;
    for word in body.chunks_exact_mut(8) {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    body
}

fn stage(stream: &Stream<'_>, body: &[u8]) -> String {
    let answer = stream
        .request("POST", "/snapshot/10/parts")
        .body(body)
        .send()
        .expect(201);
    answer.expect_header("stream-snapshot-part").to_owned()
}

fn blob_files(server: &Server) -> usize {
    let dir: &Path = server.options().data_dir();
    fs::read_dir(dir.join("blobs"))
        .expect("the directory of blobs")
        .count()
}

/// Issue 3: a large snapshot staged in 8 MiB parts, committed, read back whole and by ranges, with
/// little memory; it survives a kill, and its space comes back when it is superseded.
#[test]
fn a_large_snapshot_takes_disk_and_not_memory() {
    let server = Options::new(1).start();
    let count = (large_mib() * MIB).div_ceil(PART);
    let whole: Vec<u8> = (0..count).flat_map(part).collect();
    let expected = digest(OCTETS, &whole);
    let name = {
        let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
        let before = resident(&server);
        let mut peak = before;
        let mut manifest = String::new();
        for piece in whole.chunks(PART) {
            manifest.push_str(&stage(&stream, piece));
            manifest.push('\n');
            peak = peak.max(resident(&server));
        }
        let answer = stream
            .request("PUT", "/snapshot/10")
            .header("Content-Type", OCTETS)
            .header("Stream-Snapshot-Parts", count)
            .header("Stream-Snapshot-Digest", &expected)
            .body(manifest)
            .send()
            .expect(204);
        assert_eq!(answer.expect_header("stream-snapshot-digest"), expected);
        peak = peak.max(resident(&server));
        let read = stream.request("GET", "/snapshot/10").send().expect(200);
        assert!(read.body == whole, "the snapshot came back changed");
        for (first, last) in [(0, 0), (PART - 3, PART + 2), (5, 3 * PART + 7)] {
            let range = format!("bytes={first}-{last}");
            let read = stream
                .request("GET", "/snapshot/10")
                .header("Range", range)
                .send()
                .expect(206);
            assert!(
                read.body == whole[first..=last],
                "range {first}-{last} came back changed"
            );
        }
        peak = peak.max(resident(&server));
        assert!(
            peak - before < 64 * MIB,
            "memory grew by {} MiB for a snapshot of {} MiB",
            (peak - before) / MIB,
            whole.len() / MIB
        );
        stream.key().to_owned()
    };
    assert_eq!(blob_files(&server), count);
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &name);
    let read = stream.request("GET", "/snapshot/10").send().expect(200);
    assert!(
        read.body == whole,
        "the snapshot came back changed after a kill"
    );

    stream
        .post()
        .header("Content-Type", OCTETS)
        .body("more")
        .send()
        .expect(204);
    let newer = stream
        .request("PUT", "/snapshot/11")
        .header("Content-Type", OCTETS)
        .body("small");
    newer.send().expect(204);
    eventually("the superseded parts' files go", || {
        (blob_files(&server) == 0).then_some(())
    });
}

/// Source 1: discarded parts, and parts of a deleted stream, give their space back; parts that a
/// kill left without a record are removed by the next start.
#[test]
fn parts_give_their_space_back() {
    let server = Options::new(1).start();
    let body = vec![7u8; 100_000];
    let (one, other) = (
        Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789"),
        Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789"),
    );
    stage(&one, &body);
    stage(&other, &body);
    assert_eq!(blob_files(&server), 2);
    one.request("DELETE", "/snapshot/parts").send().expect(204);
    other.request("DELETE", "").send().expect(204);
    eventually("the parts' files go", || {
        (blob_files(&server) == 0).then_some(())
    });
    stage(&one, &body);
    drop((one, other));
    let blobs = server.options().data_dir().join("blobs");
    let options = server.kill();
    fs::write(
        blobs.join("0123456789abcdef0123456789abcdef"),
        "left by a crash",
    )
    .expect("a file");
    fs::write(blobs.join("not-ours"), "x").expect("a file");
    let server = options.start();
    eventually("the file without a record goes", || {
        (blob_files(&server) == 2).then_some(())
    });
}

/// A file that a record names and that is gone refuses the start, naming it (design, Recovery).
#[test]
fn a_missing_part_refuses_the_start() {
    let server = Options::new(1).start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    stage(&stream, &vec![7u8; 100_000]);
    drop(stream);
    let options = server.kill();
    let blobs = options.data_dir().join("blobs");
    let file = fs::read_dir(&blobs)
        .expect("blobs")
        .next()
        .expect("one")
        .expect("entry")
        .path();
    fs::remove_file(&file).expect("removed");
    let failure = options.try_start().expect_err("the start is refused");
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    assert!(failure.contains(name), "{failure}");
}

/// Source 1, Stage a part: at most 8,192 unused parts, and the 429 names the bound.
#[test]
fn staged_parts_are_bounded() {
    let server = Options::new(1).flag("durability", "os").start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    let mut connection = crate::common::http::Connection::to(&server);
    let request = stream.request("POST", "/snapshot/10/parts").body("p");
    for _ in 0..8192 {
        let answer = connection.exchange(&request).expect("an answer");
        assert_eq!(answer.status, 201, "{answer}");
    }
    let answer = connection.exchange(&request).expect("an answer");
    let limit = ursula_headers::StagedPartsLimit::parse(answer.status, answer.pairs());
    assert_eq!(limit.expect("parses").expect("a limit").value(), 8192);
    assert_eq!(answer.header("retry-after"), None);
    stream
        .request("DELETE", "/snapshot/parts")
        .send()
        .expect(204);
    assert_eq!(
        connection.exchange(&request).expect("an answer").status,
        201
    );
}

/// Extensions 3.2 and 9.3: a stream above the cap is bootstrapped up to it and read on from there.
#[test]
fn a_large_bootstrap_is_capped_and_reads_go_on_from_it() {
    let server = Options::new(1).start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "");
    let count = large_mib().min(100).div_ceil(8);
    let mut whole = Vec::new();
    for index in 0..count {
        let body = part(index);
        stream
            .post()
            .header("Content-Type", OCTETS)
            .body(&body)
            .send()
            .expect(204);
        whole.extend_from_slice(&body);
    }
    let answer = stream.request("GET", "/bootstrap").send().expect(200);
    assert_eq!(answer.header("stream-up-to-date"), None);
    let parts = crate::common::multipart::parse(answer.expect_header("content-type"), &answer.body);
    let mut seen: Vec<u8> = parts
        .into_iter()
        .skip(1)
        .flat_map(|part| part.body)
        .collect();
    assert_eq!(seen.len(), 8 * MIB);
    let mut next = answer.next_offset();
    loop {
        let answer = stream
            .request("GET", &format!("?offset={next}"))
            .send()
            .expect(200);
        assert!(answer.body.len() <= 8 * MIB);
        seen.extend_from_slice(&answer.body);
        next = answer.next_offset();
        if answer.header("stream-up-to-date") == Some("true") {
            break;
        }
    }
    assert!(
        seen == whole,
        "bootstrap and reads do not add up to the stream"
    );
}
