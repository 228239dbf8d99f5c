//! `thalweg inspect`: what it shows is what clients see, and damage is found (issue 3).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::disk::{Batch, files, inspect, run_inspect};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, TEXT};

/// A server with two shards and a stream of every kind; their keys.
fn filled() -> (Server, Vec<String>) {
    let server = Options::new(2)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .start();
    let source = Stream::with_body(&server, Surface::Base, TEXT, "0123456789");
    let fork = Stream::absent(&server, Surface::Base);
    let put = fork.put().header("Stream-Forked-From", source.path());
    put.header("Stream-Fork-Offset", "00000000000000000004")
        .send()
        .expect(201);
    fork.append(TEXT, "fork");
    let written = Stream::create(&server, Surface::Bucket, OCTETS);
    for seq in 0..3 {
        let post = written.post().header("Content-Type", OCTETS);
        let post = post.header("Producer-Id", "p").header("Producer-Epoch", 0);
        post.header("Producer-Seq", seq)
            .body("12345")
            .send()
            .expect(200);
    }
    written
        .request("PUT", "/snapshot/10")
        .body("small")
        .send()
        .expect(204);
    let large = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    let body = vec![5; 200_000];
    large
        .request("PUT", "/snapshot/9")
        .body(body)
        .send()
        .expect(204);
    large.close();
    let gone = Stream::with_body(&server, Surface::Bucket, OCTETS, "dead bytes");
    gone.delete().send().expect(204);
    let keys = [&source, &fork, &written, &large];
    let keys = keys.map(|stream| stream.key().to_owned()).to_vec();
    (server, keys)
}

fn stream<'a>(report: &'a Value, key: &str) -> &'a Value {
    let streams = report["streams"].as_array().expect("a list");
    let found = streams.iter().find(|stream| stream["key"] == key);
    found.unwrap_or_else(|| panic!("{key} is not listed: {report:#}"))
}

/// Times of every file: inspection leaves no trace.
fn traces(data: &Path) -> Vec<(String, u64, std::time::SystemTime)> {
    let trace = |path: std::path::PathBuf| {
        let metadata = fs::metadata(&path).expect("it is there");
        let modified = metadata.modified().expect("it has a time");
        (
            path.to_string_lossy().into_owned(),
            metadata.len(),
            modified,
        )
    };
    files(data).into_iter().map(trace).collect()
}

#[test]
fn it_shows_what_clients_see_and_leaves_no_trace() {
    let (server, keys) = filled();
    let heads: Vec<_> = keys
        .iter()
        .map(|key| Stream::at(&server, Surface::Bucket, key).head().send())
        .collect();
    let options = server.kill();
    let before = traces(options.data_dir());
    let (verified, report) = inspect(options.data_dir());
    assert!(verified, "{report:#}");
    assert_eq!(before, traces(options.data_dir()));
    assert_eq!(report["verified"], true);
    assert_eq!(report["problems"], json!([]));
    assert_eq!(report["in_use_by"], Value::Null);
    assert_eq!(report["streams_total"], 4);
    assert_eq!(report["manifest"]["shards"], 2);
    for (key, head) in keys.iter().zip(heads) {
        let stream = stream(&report, key);
        assert_eq!(
            stream["tail"].to_string(),
            head.next_offset().trim_start_matches('0')
        );
        assert_eq!(stream["incarnation"].to_string(), head.incarnation());
        assert_eq!(stream["closed"], head.header("stream-closed").is_some());
        let digest = head.header("stream-snapshot-digest");
        assert_eq!(stream["snapshot"]["digest"].as_str(), digest);
    }
    let (source, fork) = (stream(&report, &keys[0]), stream(&report, &keys[1]));
    assert_eq!(source["forks"], json!([keys[1]]));
    assert_eq!(fork["forked_from"]["key"], json!(keys[0]));
    assert_eq!(
        (&fork["bytes"], &fork["forked_from"]["offset"]),
        (&json!(4), &json!(4))
    );
    let written = stream(&report, &keys[2]);
    assert_eq!(
        (&written["producers"], &written["snapshot"]["bytes"]),
        (&json!(1), &json!(5))
    );
    let bytes = &report["bytes"];
    assert_eq!(bytes["live"], 10 + 4 + 15 + 5 + 10 + 200_000);
    assert_eq!(bytes["blob_files"], 200_000);
    let sum = |journal: &Value| journal["log_bytes"].as_u64().expect("a number");
    let log: u64 = report["journals"]
        .as_array()
        .expect("a list")
        .iter()
        .map(sum)
        .sum();
    assert_eq!(bytes["dead"].as_u64(), Some(log - (10 + 4 + 15 + 5 + 10)));

    let (_, text) = run_inspect(options.data_dir(), &["--streams", "1"]);
    assert!(text.contains("streams: 4; the first 1"), "{text}");
    assert!(text.contains("Everything verifies"), "{text}");
}

#[test]
fn it_says_who_uses_the_directory() {
    let (server, _) = filled();
    let (verified, report) = inspect(server.options().data_dir());
    assert!(verified, "{report:#}");
    assert_eq!(report["in_use_by"]["pid"], server.pid());
    // The lock is as it was.
    let log = server
        .options()
        .try_start()
        .map(|_| ())
        .expect_err("it is in use");
    assert!(log.contains("in use by"), "{log}");
    // Damage that lasts is no moving picture.
    Batch::with(server.options().data_dir(), "0123456789").damage();
    let (verified, text) = run_inspect(server.options().data_dir(), &[]);
    assert!(!verified && text.contains("is damaged"), "{text}");
}

#[test]
fn every_kind_of_damage_is_found() {
    let (server, _) = filled();
    let options = server.kill();
    let data = options.data_dir();
    let blob = files(&data.join("blobs")).remove(0);
    let body = fs::read(&blob).expect("readable");

    let mut flipped = body.clone();
    flipped[100_000] ^= 1;
    fs::write(&blob, &flipped).expect("writable");
    let (verified, text) = run_inspect(data, &[]);
    assert!(
        !verified && text.contains("does not give its digest"),
        "{text}"
    );

    fs::write(&blob, &body[..1000]).expect("writable");
    let (verified, text) = run_inspect(data, &[]);
    assert!(
        !verified && text.contains("has 1000 bytes where 200000"),
        "{text}"
    );
    fs::write(&blob, &body).expect("writable");
    assert!(run_inspect(data, &[]).0);

    Batch::with(data, "0123456789").damage();
    let (verified, text) = run_inspect(data, &[]);
    assert!(!verified && text.contains("is damaged"), "{text}");
    let (verified, text) = run_inspect(&data.join("nothing"), &["--json"]);
    assert!(!verified && text.contains("\"verified\": false"), "{text}");
}
