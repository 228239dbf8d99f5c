//! `--repair`: what does not verify is set aside, what is lost is said, the rest is served, and the
//! next start needs no flag (Design, "Recovery, as a table"; issue 3, The recovery table).

use std::fs;
use std::path::Path;

use ursula_headers::ErrorCode;

use crate::common::cold::{self, Cold, FORK, LARGE, OTHER, SNAPSHOT, blocks, flip, of_shard};
use crate::common::disk::{Batch, files, inspect, run_inspect};
use crate::common::http::Connection;
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT, offset};

fn options() -> Options {
    Options::new(1)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
}

fn at<'a>(server: &'a Server, key: &str) -> Stream<'a> {
    Stream::at(server, Surface::Bucket, key)
}

/// Starts with `--repair`, then once more without; hands both to `check`.
#[track_caller]
fn repair_and_restart(options: Options, check: impl Fn(&Server)) -> (String, Server) {
    let server = options.switch("repair").start();
    let log = server.log();
    check(&server);
    let (status, options) = server.terminate();
    assert!(status.success(), "{status}");
    let server = options.without_switches().start();
    check(&server);
    let server = server.kill_and_restart();
    check(&server);
    (log, server)
}

/// The text of the report that a repair left.
#[track_caller]
fn report(data: &Path) -> String {
    let report = files(data)
        .into_iter()
        .find(|path| path.ends_with("report.txt"))
        .expect("there is a report");
    fs::read_to_string(report).expect("it can be read")
}

/// A damaged batch that later ones prove durable refuses the start, naming file and offset;
/// `--repair` closes the stream that has a gap, serves everything else and says what it lost.
#[test]
fn a_damaged_batch_refuses_and_repair_serves_the_rest() {
    let server = options().start();
    let broken = Stream::create(&server, Surface::Bucket, TEXT);
    let whole = Stream::create(&server, Surface::Bucket, JSON);
    broken.append(TEXT, "kept.");
    broken.append(TEXT, "lost, lost, lost.");
    whole.append(JSON, r#"{"a":1}"#);
    broken.append(TEXT, "set aside.");
    whole.append(JSON, "2");
    let (broken, whole) = (broken.key().to_owned(), whole.key().to_owned());
    let expected = at(&server, &whole).read_all();
    let incarnation = at(&server, &broken).head().send().incarnation();
    let options = server.kill();
    let data = options.data_dir().to_owned();
    let batch = Batch::with(&data, "lost, lost");
    batch.damage();

    let refusal = options.try_start().map(|_| ()).expect_err("it refuses");
    let file = batch.path.to_string_lossy();
    assert!(
        refusal.contains(&*file),
        "the file is not named:\n{refusal}"
    );
    let place = format!("at byte {}", batch.offset);
    assert!(refusal.contains(&place), "nor the offset:\n{refusal}");
    assert!(refusal.contains("--repair"), "nor what to do:\n{refusal}");
    assert!(!inspect(&data).0, "inspect finds it too");

    let (log, server) = repair_and_restart(options, |server| {
        let stream = at(server, &broken);
        assert_eq!(stream.read_all(), b"kept.");
        let head = stream.head().send().expect_field("stream-closed", "true");
        assert_eq!(
            (head.next_offset(), head.incarnation()),
            (offset(5), incarnation.clone())
        );
        let append = stream
            .post()
            .header("Content-Type", TEXT)
            .body("more")
            .send();
        append.expect_error(409, ErrorCode::StreamClosed);
        assert_eq!(at(server, &whole).read_all(), expected);
        let fresh = Stream::create(server, Surface::Bucket, OCTETS);
        fresh.append(OCTETS, "new");
    });
    assert!(
        log.contains(&format!("stream {broken}: bytes from 5 on are lost")),
        "{log}"
    );
    assert!(log.contains("records lost: 1"), "{log}");
    let report = report(&data);
    assert!(
        report.contains(&broken) && !report.contains(&whole),
        "{report}"
    );
    // What was overwritten and what was left out are both kept.
    let kept = |text: &str| {
        let aside = files(&data.join("quarantine")).into_iter();
        let mut contents = aside.map(|path| fs::read(path).expect("readable"));
        contents.any(|bytes| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    };
    assert!(kept("lost, lost") && kept("set aside."));
    let options = server.kill();
    let (verified, text) = run_inspect(options.data_dir(), &[]);
    assert!(verified, "{text}");
}

/// Many gaps, in both of two shards, and another number of shards asked for in the same start.
#[test]
fn repair_and_another_number_of_shards_in_one_start() {
    let server = options().flag("shards", 2).start();
    let streams: Vec<String> = (0..12)
        .map(|_| {
            Stream::create(&server, Surface::Bucket, TEXT)
                .key()
                .to_owned()
        })
        .collect();
    for round in 0..4 {
        for (number, key) in streams.iter().enumerate() {
            at(&server, key).append(TEXT, format!("<{number:02} {round}>"));
        }
    }
    let options = server.kill();
    for number in [2, 3, 4, 5, 7] {
        Batch::with(options.data_dir(), &format!("<{number:02} 1>")).damage();
    }
    options.try_start().map(|_| ()).expect_err("it refuses");
    let (_, server) = repair_and_restart(options.flag("shards", 3), |server| {
        for (number, key) in streams.iter().enumerate() {
            let rounds = if [2, 3, 4, 5, 7].contains(&number) {
                1
            } else {
                4
            };
            let expected: String = (0..rounds).map(|r| format!("<{number:02} {r}>")).collect();
            assert_eq!(
                String::from_utf8_lossy(&at(server, key).read_all()),
                expected
            );
        }
    });
    server.kill();
}

/// The creation of a fork's source is lost: the fork begins where its own bytes do.
#[test]
fn a_fork_of_a_lost_source_keeps_its_own_bytes() {
    let server = options().start();
    let source = Stream::with_body(&server, Surface::Base, TEXT, "inherited.");
    let fork = Stream::absent(&server, Surface::Base);
    let forked = fork
        .put()
        .header("Stream-Forked-From", source.path())
        .send();
    forked.expect(201);
    fork.append(TEXT, "own.");
    let (source, fork) = (source.key().to_owned(), fork.key().to_owned());
    let options = server.kill();
    Batch::with(options.data_dir(), &source).damage();
    options.try_start().map(|_| ()).expect_err("it refuses");
    let (log, server) = repair_and_restart(options, |server| {
        let fork = at(server, &fork);
        assert_eq!(fork.read_from(&offset(10)), b"own.");
        fork.get("offset=0").send().expect(410);
        at(server, &source).head().send().expect(404);
    });
    assert!(log.contains("inherited from"), "{log}");
    at(&server, &fork).append(TEXT, "more.");
    at(&server, &fork).delete().send().expect(204);
}

/// A missing blob refuses the start; `--repair` drops the snapshot and says so.
#[test]
fn a_missing_blob_refuses_and_repair_drops_the_snapshot() {
    let server = options().start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    let other = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    for (stream, byte) in [(&stream, 1), (&other, 2)] {
        let body = vec![byte; 200_000];
        stream
            .request("PUT", "/snapshot/4")
            .body(body)
            .send()
            .expect(204);
    }
    let (stream, other) = (stream.key().to_owned(), other.key().to_owned());
    let options = server.kill();
    let data = options.data_dir().to_owned();
    let of_stream = |path: &std::path::PathBuf| fs::read(path).is_ok_and(|body| body[0] == 1);
    let blobs = files(&data.join("blobs"));
    let blob = blobs
        .into_iter()
        .find(of_stream)
        .expect("a file of its own");
    fs::remove_file(&blob).expect("it can be removed");
    let refusal = options.try_start().map(|_| ()).expect_err("it refuses");
    let name = blob.to_string_lossy();
    assert!(
        refusal.contains(&*name) && refusal.contains("--repair"),
        "{refusal}"
    );
    assert!(!inspect(&data).0, "inspect finds it too");

    let (log, server) = repair_and_restart(options, |server| {
        assert_eq!(at(server, &stream).read_all(), b"0123456789");
        let read = at(server, &stream).request("GET", "/snapshot/4").send();
        read.expect(404);
        at(server, &stream)
            .head()
            .send()
            .expect_no_field("stream-snapshot-offset");
        let read = at(server, &other).request("GET", "/snapshot/4").send();
        assert!(read.expect(200).body == vec![2; 200_000]);
    });
    assert!(
        log.contains(&format!("stream {stream}: its snapshot at 4 is lost")),
        "{log}"
    );
    at(&server, &stream)
        .request("PUT", "/snapshot/4")
        .body("again")
        .send()
        .expect(204);
}

/// A whole shard's journal is gone: the others are served.
#[test]
fn the_journal_of_one_shard_is_gone() {
    let server = options().flag("shards", 2).start();
    let keys: Vec<String> = (0..10)
        .map(|_| {
            Stream::with_body(&server, Surface::Bucket, TEXT, "x")
                .key()
                .to_owned()
        })
        .collect();
    let options = server.kill();
    let data = options.data_dir().to_owned();
    fs::remove_dir_all(data.join("layout-1/shard-1")).expect("it is there");
    options.try_start().map(|_| ()).expect_err("it refuses");
    let (log, server) = repair_and_restart(options, |_| {});
    assert!(
        log.contains("shard 1: nothing is left of its journal"),
        "{log}"
    );
    let left = keys
        .iter()
        .filter(|key| at(&server, key).head().send().status == 200);
    let left = left.count();
    assert!((1..10).contains(&left), "{left} of 10 streams are left");
}

/// Without damage `--repair` changes nothing; without anything left it refuses.
#[test]
fn repair_of_nothing_and_of_everything() {
    let server = options().start();
    let key = Stream::with_body(&server, Surface::Bucket, TEXT, "x")
        .key()
        .to_owned();
    let options = server.kill();
    let server = options.switch("repair").start();
    assert!(
        server.log().contains("everything verifies"),
        "{}",
        server.log()
    );
    assert_eq!(at(&server, &key).read_all(), b"x");
    let options = server.kill();
    let data = options.data_dir().to_owned();
    assert!(!data.join("quarantine").exists());

    fs::remove_dir_all(data.join("layout-1")).expect("it is there");
    let refusal = options.try_start().map(|_| ()).expect_err("it refuses");
    assert!(refusal.contains("nothing to repair"), "{refusal}");
}

/// A stopped server whose streams are mostly in segments.
fn cold() -> (Cold, Options) {
    let server = cold::options().start();
    let cold = Cold::fill(&server);
    let options = server.kill();
    assert!(run_inspect(options.data_dir(), &[]).0, "it was whole");
    (cold, options)
}

#[track_caller]
fn refuses(options: &Options, file: &Path) {
    let refusal = options.try_start().map(|_| ()).expect_err("it refuses");
    let file = file.to_string_lossy();
    assert!(
        refusal.contains(&*file),
        "the file is not named:\n{refusal}"
    );
    assert!(refusal.contains("--repair"), "nor what to do:\n{refusal}");
    assert!(!inspect(options.data_dir()).0, "inspect finds it too");
}

#[track_caller]
fn finds_nothing(server: Server) {
    let options = server.kill();
    let (verified, text) = run_inspect(options.data_dir(), &[]);
    assert!(verified, "{text}");
}

/// Whether the quarantine has a copy of a file of this name.
fn is_kept(data: &Path, path: &Path) -> bool {
    let name = path.file_name().expect("a name");
    files(&data.join("quarantine"))
        .iter()
        .any(|path| path.file_name() == Some(name))
}

/// All that arrives of a stream from `start` on, until an answer fails.
fn read_until_it_fails(stream: &Stream<'_>, start: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let read = stream.get(&format!("offset={}", offset(start + bytes.len())));
        let mut connection = Connection::try_open(stream.server().address()).expect("it listens");
        connection.write(read.encode());
        let Ok(head) = connection.try_read_head() else {
            return bytes;
        };
        if head.status == 500 {
            return bytes;
        }
        assert_eq!(head.status, 200);
        let mut got = 0;
        loop {
            match connection.try_read_piece("GET", &head, got) {
                Ok(Some(piece)) => {
                    got += piece.len();
                    bytes.extend_from_slice(&piece);
                }
                Ok(None) => break,
                Err(_) => return bytes,
            }
        }
        assert!(got > 0, "it fails at the damage, and not before");
    }
}

/// A damaged block: a start does not look at it, a read breaks before it and the log names it;
/// `--repair` closes the stream there. What a fork inherits before it stays.
#[test]
fn a_damaged_block_is_never_answered_and_repair_closes_the_stream() {
    let (cold, options) = cold();
    let data = options.data_dir().to_owned();
    let (key, body) = cold.streams[LARGE].clone();
    let start = 3 << 16;
    let damaged = cold.blocks_at(&data, LARGE, start);
    damaged.iter().for_each(cold::Block::damage);

    let server = options.start();
    let stream = at(&server, &key);
    let read = read_until_it_fails(&stream, 0);
    assert!(
        read.len() <= start && body.starts_with(&read),
        "{}",
        read.len()
    );
    assert!(read_until_it_fails(&stream, start + 5).is_empty());
    // Nothing of an answer has left that begins with it.
    let at_it = format!("offset={}", offset(start + 5));
    stream.get(&at_it).send().expect(500);
    let behind = stream.get(&format!("offset={}", offset(start + cold::BLOCK_BYTES)));
    let behind = behind.send().expect(200).body;
    assert!(body[start + cold::BLOCK_BYTES..].starts_with(&behind));
    cold.check(&server, &[LARGE]);
    let log = server.log();
    let named = |block: &cold::Block| {
        log.contains(&format!(
            "at byte {} of {}",
            block.offset,
            block.path.display()
        ))
    };
    assert!(damaged.iter().any(named), "{log}");
    let options = server.kill();
    assert!(!inspect(&data).0, "inspect finds it");

    let (log, server) = repair_and_restart(options, |server| {
        let stream = at(server, &key);
        assert!(stream.read_all() == body[..start]);
        stream.head().send().expect_field("stream-closed", "true");
        cold.check(server, &[LARGE]);
    });
    let lost = format!(
        "stream {key}: bytes from {start} on are lost, of at least {}",
        body.len()
    );
    assert!(log.contains(&lost), "{log}");
    assert!(damaged.iter().any(|block| is_kept(&data, &block.path)));
    finds_nothing(server);
}

/// A missing segment refuses; `--repair` closes every stream where its unbroken bytes end, and a
/// fork whose inherited bytes were in it begins at its own.
#[test]
fn a_missing_segment_refuses_and_repair_closes_its_streams() {
    let (cold, options) = cold();
    let data = options.data_dir().to_owned();
    let (first, inherited) = (cold.blocks_at(&data, LARGE, 0), &cold.streams[FORK]);
    for block in &first {
        fs::remove_file(&block.path).expect("it is there");
    }
    refuses(&options, &first[0].path);
    let (log, server) = repair_and_restart(options, |server| {
        for (index, (key, body)) in cold.streams.iter().enumerate() {
            if index != FORK {
                let read = at(server, key).read_all();
                assert!(body.starts_with(&read), "stream {index}");
            }
        }
        assert!(at(server, &cold.streams[LARGE].0).read_all().is_empty());
        let fork = at(server, &inherited.0);
        assert_eq!(fork.read_from(&offset(1000)), b"behind it");
        fork.get("offset=0").send().expect(410);
    });
    assert!(log.contains("inherited from"), "{log}");
    finds_nothing(server);
}

/// A segment that was cut refuses; one whose first block is damaged is read again after a repair.
#[test]
fn a_short_segment_and_a_damaged_first_block() {
    let (cold, options) = cold();
    let data = options.data_dir().to_owned();
    let block = cold.blocks_at(&data, OTHER, 5 << 16).remove(0);
    flip(&block.path, 20);
    let (_, server) = repair_and_restart(options, |server| cold.check(server, &[]));
    assert!(report(&data).contains("written again"), "{}", report(&data));
    let options = server.kill();
    assert!(run_inspect(&data, &[]).0);

    let block = cold.blocks_at(&data, OTHER, 5 << 16).remove(0);
    let whole = fs::read(&block.path).expect("readable");
    fs::write(&block.path, &whole[..block.offset as usize + 100]).expect("writable");
    refuses(&options, &block.path);
    let (_, server) = repair_and_restart(options, |server| {
        for (index, (key, body)) in cold.streams.iter().enumerate() {
            if index != FORK {
                let read = at(server, key).read_all();
                assert!(body.starts_with(&read), "stream {index}");
            }
        }
        let other = at(server, &cold.streams[OTHER].0);
        assert!(other.read_all().len() <= 5 << 16);
    });
    assert!(is_kept(&data, &block.path));
    finds_nothing(server);
}

/// A damaged block of a snapshot's body: it is not answered, and `--repair` drops the snapshot.
#[test]
fn a_damaged_snapshot_block_drops_the_snapshot() {
    let (cold, options) = cold();
    let data = options.data_dir().to_owned();
    let (key, body) = cold.streams[SNAPSHOT].clone();
    let bodies = blocks(&data).into_iter();
    let bodies = bodies.filter(|block| block.owner == cold.tokens[SNAPSHOT] && block.len == 2000);
    let bodies: Vec<_> = bodies.collect();
    assert!(!bodies.is_empty());
    bodies.iter().for_each(cold::Block::damage);
    let server = options.start();
    let read = at(&server, &key).request("GET", "/snapshot/4").send();
    read.expect(500);
    let (_, server) = repair_and_restart(server.kill(), |server| {
        let stream = at(server, &key);
        assert!(stream.read_all() == body);
        stream
            .head()
            .send()
            .expect_no_field("stream-snapshot-offset");
        stream.request("GET", "/snapshot/4").send().expect(404);
        cold.check(server, &[SNAPSHOT]);
    });
    finds_nothing(server);
}

/// A damaged `current`, and one that was removed: each refuses; `--repair` finds the checkpoint, and
/// nothing is lost. So it is in a layout that was written from another, whose journal is whole.
#[test]
fn a_damaged_or_missing_current_loses_nothing() {
    let (cold, mut options) = cold();
    let data = options.data_dir().to_owned();
    for (round, remove) in [true, false, true].into_iter().enumerate() {
        let current = of_shard(&data, "current");
        if remove {
            fs::remove_file(&current).expect("it is there");
            let refusal = options.try_start().map(|_| ()).expect_err("it refuses");
            assert!(refusal.contains("--repair"), "{refusal}");
            assert!(!inspect(&data).0, "inspect finds it too");
        } else {
            flip(&current, 30);
            refuses(&options, &current);
        }
        let (log, server) = repair_and_restart(options, |server| cold.check(server, &[]));
        let state = if remove { "missing" } else { "damaged" };
        assert!(log.contains(&format!("current is {state}")), "{log}");
        assert!(!log.contains("are lost"), "{log}");
        assert_eq!(is_kept(&data, &current), round > 0, "since it was damaged");
        options = server.kill();
        let (verified, text) = run_inspect(&data, &[]);
        assert!(verified, "{text}");
    }
}

/// A damaged chunk of the checkpoint, and a checkpoint that is not there: each refuses; `--repair`
/// keeps the entries that verify, and says how many do not.
#[test]
fn a_damaged_or_missing_checkpoint_refuses_and_repair_keeps_what_verifies() {
    for remove in [false, true] {
        let (cold, options) = cold();
        let data = options.data_dir().to_owned();
        let checkpoint = of_shard(&data, "checkpoint-");
        if remove {
            fs::remove_file(&checkpoint).expect("it is there");
        } else {
            flip(&checkpoint, 200);
        }
        refuses(&options, &checkpoint);
        let (log, server) = repair_and_restart(options, |server| {
            for (index, (key, body)) in cold.streams.iter().enumerate() {
                let stream = at(server, key);
                match stream.head().send().status {
                    404 => {}
                    200 if index == FORK => {}
                    200 => assert!(body.starts_with(&stream.read_all()), "stream {index}"),
                    status => panic!("{status}"),
                }
            }
        });
        assert!(
            log.contains("entries are read") && log.contains("are lost"),
            "{log}"
        );
        assert!(log.contains("a stream whose creation is lost"), "{log}");
        assert_eq!(is_kept(&data, &checkpoint), !remove);
        let fresh = Stream::with_body(&server, Surface::Bucket, OCTETS, "new");
        assert_eq!(fresh.read_all(), b"new");
        finds_nothing(server);
    }
}

/// The whole journal is gone and the checkpoint is not, or all of it that has records: it refuses;
/// `--repair` serves what the checkpoint has.
#[test]
fn a_journal_that_is_gone_leaves_what_the_checkpoint_has() {
    for but_for_empty_files in [false, true] {
        lose_the_journal(but_for_empty_files);
    }
}

fn lose_the_journal(but_for_empty_files: bool) {
    let (cold, options) = cold();
    let data = options.data_dir().to_owned();
    let current = of_shard(&data, "current");
    let journal = current.with_file_name("journal");
    // A batch begins in the second block; in a file that was made ahead there are zeros.
    let is_empty = |file: &Path| {
        let bytes = fs::read(file).expect("it is there");
        bytes.iter().skip(4096).all(|byte| *byte == 0)
    };
    let mut kept = 0;
    for file in files(&journal) {
        if but_for_empty_files && is_empty(&file) {
            kept += 1;
        } else {
            fs::remove_file(file).expect("it is there");
        }
    }
    assert_eq!(kept > 0, but_for_empty_files);
    options.try_start().map(|_| ()).expect_err("it refuses");
    assert!(!inspect(&data).0, "inspect finds it too");
    let (log, server) = repair_and_restart(options, |server| {
        for (index, (key, body)) in cold.streams.iter().enumerate() {
            let read = at(server, key).read_all();
            let least = body.len() - b"behind it".len();
            assert!(
                read.len() >= least && body.starts_with(&read),
                "stream {index}"
            );
        }
    });
    assert!(log.contains("are what its checkpoint says"), "{log}");
    finds_nothing(server);
}
