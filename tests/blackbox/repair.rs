//! `--repair`: what does not verify is set aside, what is lost is said, the rest is served, and the
//! next start needs no flag (Design, "Recovery, as a table"; issue 3, The recovery table).

use std::fs;
use std::path::Path;

use ursula_headers::ErrorCode;

use crate::common::disk::{Batch, files, inspect, run_inspect};
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
