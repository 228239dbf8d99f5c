//! Faults found in the wild, from `cases/protocol.md` and `cases/storage.md`, that no rule's own
//! module covers; the number of the case is in each comment.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;

use ursula_headers::ErrorCode;

use crate::common::eventually;
use crate::common::http::{Connection, Request};
use crate::common::observe::metric;
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset};

/// Creates `count` streams that each hold their own key, and gives the keys.
fn fill(server: &Server, count: usize) -> Vec<String> {
    (0..count)
        .map(|_| {
            let stream = Stream::create(server, Surface::Bucket, OCTETS);
            stream.append(OCTETS, stream.key());
            stream.key().to_owned()
        })
        .collect()
}

#[track_caller]
fn expect_filled(server: &Server, keys: &[String]) {
    for key in keys {
        let read = Stream::at(server, Surface::Bucket, key).read_all();
        assert_eq!(String::from_utf8_lossy(&read), *key);
    }
}

/// The journal file that was written last.
fn newest_journal_file(data: &Path) -> PathBuf {
    let mut files = Vec::new();
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)
            .expect("the data directory is readable")
            .flatten()
        {
            let kind = entry.file_type().expect("its entries have types");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if entry.path().to_string_lossy().contains("journal") {
                let written = entry.metadata().and_then(|meta| meta.modified());
                files.push((written.expect("files have times"), entry.path()));
            }
        }
    }
    files.into_iter().max().expect("there is a journal file").1
}

/// Storage case 1: tiny journal files, at least two rolls, kill: every acknowledged byte is there,
/// over several boots.
#[test]
fn storage_1_tiny_journal_files_over_several_boots() {
    let mut server = Options::new(2)
        .flag("request-bytes-max", 128 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .start();
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let key = stream.key().to_owned();
    let mut expected = Vec::new();
    for boot in 0..4_u8 {
        let stream = Stream::at(&server, Surface::Bucket, &key);
        for piece in 0..30_u8 {
            let body = vec![boot * 30 + piece; 100_000];
            stream.append(OCTETS, &body);
            expected.extend_from_slice(&body);
        }
        server = server.kill_and_restart();
        let read = Stream::at(&server, Surface::Bucket, &key).read_all();
        assert!(
            read == expected,
            "after boot {boot}: {} of {} bytes",
            read.len(),
            expected.len()
        );
    }
}

/// Storage case 3: PUT, POST, DELETE (204), kill at once: GET is 404.
#[test]
fn storage_3_a_deleted_stream_stays_deleted() {
    let mut server = Options::new(4).start();
    for _ in 0..5 {
        let stream = Stream::create(&server, Surface::Bucket, OCTETS);
        let key = stream.key().to_owned();
        stream.append(OCTETS, "x");
        stream.delete().send().expect(204);
        server = server.kill_and_restart();
        let stream = Stream::at(&server, Surface::Bucket, &key);
        stream
            .get("")
            .send()
            .expect_error(404, ErrorCode::StreamNotFound);
    }
}

/// Storage case 4: below the reserve of free space writes are refused before they are staged, reads
/// work, and a producer's retry is applied exactly once when there is space again.
#[test]
fn storage_4_a_full_disk_applies_nothing() {
    let options = Options::new(2);
    let server = options.clone().start();
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let key = stream.key().to_owned();
    let write = |server: &Server, seq: u64| {
        let post = Stream::at(server, Surface::Bucket, &key).post();
        let post = post
            .header("Content-Type", OCTETS)
            .header("Producer-Id", "p");
        post.header("Producer-Epoch", 0)
            .header("Producer-Seq", seq)
            .body("12345")
            .send()
    };
    write(&server, 0).expect(200);
    server.terminate();

    let server = options
        .clone()
        .flag("disk-reserve-bytes", 1_u64 << 60)
        .start();
    for _ in 0..3 {
        let refused = write(&server, 1).expect_error(503, ErrorCode::WalDiskPressure);
        assert!(refused.header("retry-after").is_some(), "{refused}");
    }
    assert_eq!(
        Stream::at(&server, Surface::Bucket, &key).read_all(),
        b"12345"
    );
    server.terminate();

    let server = options.start();
    write(&server, 1).expect(200);
    write(&server, 1).expect(204);
    assert_eq!(
        Stream::at(&server, Surface::Bucket, &key).read_all(),
        b"1234512345"
    );
}

/// Storage case 5: 8 random bytes after the newest journal file: start succeeds, all streams read.
#[test]
fn storage_5_trailing_garbage_is_cut() {
    expect_cut(&[0x5a, 0xc3, 0x07, 0xff, 0x91, 0x2e, 0xd4, 0x68]);
}

/// Storage case 6: 4 KiB of zeros after it, start, append, kill, start: the new append is there.
#[test]
fn storage_6_trailing_zeros_end_the_log() {
    expect_cut(&[0; 4096]);
}

/// Bytes after the newest journal file harm neither what was written nor what is written next.
fn expect_cut(trailing: &[u8]) {
    let server = Options::new(1).start();
    let keys = fill(&server, 20);
    let options = server.kill();
    let mut file = open_for_append(&newest_journal_file(options.data_dir()));
    file.write_all(trailing).expect("it can be written");
    drop(file);
    let server = options.start();
    expect_filled(&server, &keys);
    let more = fill(&server, 5);
    let server = server.kill_and_restart();
    expect_filled(&server, &keys);
    expect_filled(&server, &more);
}

fn open_for_append(path: &Path) -> File {
    OpenOptions::new()
        .append(true)
        .open(path)
        .expect("the journal file is there")
}

/// Storage case 7: unknown files and folders are left alone, with a warning.
#[test]
fn storage_7_unknown_files_are_left_alone() {
    let options = Options::new(1);
    fs::write(options.data_dir().join("unknown"), "not ours").expect("it can be written");
    fs::create_dir(options.data_dir().join("lost+found")).expect("it can be made");
    let server = options.start();
    let keys = fill(&server, 3);
    let server = server.kill_and_restart();
    expect_filled(&server, &keys);
    let kept =
        fs::read_to_string(server.options().data_dir().join("unknown")).expect("it is still there");
    assert_eq!(kept, "not ours");
    assert!(server.options().data_dir().join("lost+found").is_dir());
    assert!(
        server.log().contains("unknown"),
        "no warning:\n{}",
        server.log()
    );
}

/// Storage case 10: a second process on the same data directory is refused, naming the first.
#[test]
fn storage_10_one_process_for_a_data_directory() {
    let server = Options::new(1).start();
    let keys = fill(&server, 3);
    let second = server.options().try_start();
    let log = second
        .map(|_| ())
        .expect_err("a second process must not start");
    assert!(
        log.contains(&server.pid().to_string()),
        "the first one's pid is not named:\n{log}"
    );
    expect_filled(&server, &keys);
    let server = server.kill_and_restart();
    expect_filled(&server, &keys);
}

/// Design, On disk: another `--shards` finds the same streams.
#[test]
fn another_number_of_shards_finds_the_same_streams() {
    let server = Options::new(1).start();
    let mut keys = fill(&server, 20);
    let mut options = server.kill();
    for shards in [4, 2, 1, 3] {
        let server = options.flag("shards", shards).start();
        expect_filled(&server, &keys);
        keys.extend(fill(&server, 5));
        options = server.kill();
    }
    expect_filled(&options.start(), &keys);
}

/// Deliver, lifecycle: SIGTERM ends the process with 0 and loses nothing.
#[test]
fn sigterm_ends_with_0_and_keeps_everything() {
    let server = Options::new(4).start();
    let keys = fill(&server, 20);
    let idle = Connection::to(&server);
    let server = server.restart();
    drop(idle);
    expect_filled(&server, &keys);
}

/// Issue 2, the journal: when the memory budget is full, writes get 503 with `Retry-After`, reads
/// go on, and nothing acknowledged is lost.
#[test]
fn a_full_memory_budget_is_503_and_loses_nothing() {
    let server = Options::new(1).flag("memory-bytes-max", 16 << 20).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let piece = vec![7; 1 << 20];
    let mut stored = 0;
    for _ in 0..64 {
        let answer = stream
            .post()
            .header("Content-Type", OCTETS)
            .body(&piece)
            .send();
        if answer.status == 503 {
            answer.error_body();
            assert!(answer.header("retry-after").is_some(), "{answer}");
            break;
        }
        answer.expect(204);
        stored += piece.len();
    }
    assert_eq!(stream.head().send().next_offset(), offset(stored));
    assert_eq!(stream.read_all().len(), stored);
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Base, &key);
    assert_eq!(stream.read_all().len(), stored);
}

/// Protocol case 11: an SSE reader that stops reading while much is appended: memory stays bounded,
/// and it resumes by offset. (64 MiB here; the soak does it with 1 GB.)
#[test]
fn protocol_11_a_reader_that_stops_reading_costs_no_memory() {
    let server = Options::new(1).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let request = stream.get("offset=-1&live=sse");
    let stalled: Vec<Connection> = (0..32).map(|_| request.open()).collect();
    let piece = vec![9; 4 << 20];
    for _ in 0..16 {
        stream.append(OCTETS, &piece);
    }
    let resident = resident_bytes(server.pid());
    // 32 readers with a copy of 64 MiB each would be 2 GiB.
    assert!(resident < 1 << 30, "{} MiB resident", resident >> 20);
    drop(stalled);
    let (bytes, _) = stream
        .sse(&offset(60 << 20))
        .until_up_to_date(|event| event.bytes());
    assert_eq!(bytes.len(), 4 << 20);
}

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("the kernel tells");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    kib << 10
}

/// Issue 2, `thalweg serve`: what cannot be listened on, or makes no sense, ends the start with
/// words and a status, not a panic.
#[test]
fn a_start_that_cannot_be_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound");
    for options in [
        Options::new(1).flag("admin-listen", address),
        Options::new(1).flag("listen", "not an address"),
        Options::new(1).flag("durability", "maybe"),
        Options::new(0),
    ] {
        let log = options
            .try_start()
            .map(|_| ())
            .expect_err("it must not start");
        assert!(!log.contains("panicked"), "it panicked:\n{log}");
        assert!(log.lines().count() > 1, "it says nothing:\n{log}");
    }
}

/// A start that is refused for damage to one shard says so, and nothing of what the other one was at.
#[test]
fn a_refused_start_says_only_why() {
    let server = Options::new(2).start();
    fill(&server, 10);
    let options = server.kill();
    let path = newest_journal_file(options.data_dir());
    let mut bytes = fs::read(&path).expect("it is there");
    bytes[20] ^= 1;
    fs::write(&path, bytes).expect("it can be written");
    for _ in 0..10 {
        let Err(log) = options.try_start() else {
            panic!("a damaged journal is taken for a whole one");
        };
        assert!(log.contains("is damaged"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// A supervisor starts a server again as soon as it is gone: its ports are free then, or soon.
#[test]
fn a_start_right_after_a_kill_finds_its_ports() {
    let mut server = Options::new(2).start();
    let (address, admin) = (server.address(), server.admin_address());
    for _ in 0..10 {
        let stream = Stream::create(&server, Surface::Base, OCTETS);
        // What the system has to take down takes a while.
        let connections: Vec<Connection> = (0..50)
            .map(|_| {
                let mut events = stream.get("offset=now&live=sse").open();
                events.read_head();
                events
            })
            .collect();
        let options = server.kill();
        let options = options.flag("listen", address).flag("admin-listen", admin);
        drop(connections);
        server = options.start();
    }
}

/// Protocol case 6 over all shards: many streams, many writers, nothing crosses over.
#[test]
fn streams_do_not_mix() {
    let server = Options::new(4).start();
    let streams: Vec<Stream<'_>> = (0..32)
        .map(|_| Stream::create(&server, Surface::Base, OCTETS))
        .collect();
    thread::scope(|scope| {
        for (number, stream) in streams.iter().enumerate() {
            scope.spawn(move || {
                for _ in 0..20 {
                    stream.append(OCTETS, format!("{number:02}"));
                }
            });
        }
    });
    for (number, stream) in streams.iter().enumerate() {
        assert_eq!(
            stream.read_all(),
            format!("{number:02}").repeat(20).as_bytes()
        );
    }
}

/// Design, Memory: live reads are bounded; one more is refused with a reason, and the others go on.
#[test]
fn live_reads_beyond_the_limit_are_503() {
    let server = Options::new(1).flag("live-reads-max", 2).start();
    let stream = Stream::create(&server, Surface::Base, OCTETS);
    let mut readers = [stream.sse("-1"), stream.sse("-1")];
    for events in &mut readers {
        events.control();
    }
    let refused = stream.get("offset=0&live=long-poll").send();
    let refused = refused.expect_error(503, ErrorCode::LiveReadBackpressure);
    assert!(refused.header("retry-after").is_some(), "{refused}");
    assert_eq!(metric(&server, "live_read_refusals_total"), 1);
    stream.append(OCTETS, "x");
    for events in &mut readers {
        assert_eq!(events.expect("data").bytes(), b"x");
    }
    drop(readers);
    eventually("the places are free again", || {
        let answer = stream.get("offset=0&live=long-poll").send();
        (answer.status == 200).then_some(())
    });
}

/// Health for whoever starts it: the admin plane answers while the data plane works.
#[test]
fn admin_plane_answers() {
    let server = Options::new(2).start();
    let get = |path: &str| Request::to(server.admin_address(), "GET", path).send();
    eventually("metrics are served", || {
        (get("/metrics").status == 200).then_some(())
    });
    let answer = get("/nothing/here");
    assert_eq!(answer.status, 404, "{answer}");
}
