//! `thalweg inspect`: what it shows is what clients see, and damage is found (issue 3).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::cold::{self, Cold, LARGE, SNAPSHOT, blocks, flip, of_shard};
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

/// What has left memory and journal is counted and verified too, and damage to any of it is named:
/// the stream, the file, the offset. The rest is shown all the same.
#[test]
fn segments_and_checkpoints_are_verified() {
    let server = cold::options().start();
    let cold = Cold::fill(&server);
    let options = server.kill();
    let data = options.data_dir();
    let (verified, report) = inspect(data);
    assert!(verified, "{report:#}");
    let shard = &report["journals"][0];
    let (checkpoint, segments) = (&shard["checkpoint"], &report["segments"]);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    assert!(number(&checkpoint["number"]) > 1 && number(&shard["records_behind"]) > 0);
    assert!(
        number(&checkpoint["entries"]) >= cold.streams.len() as u64,
        "{report:#}"
    );
    assert!(number(&segments["live_bytes"]) > 5_000_000);
    let disk = number(&segments["live_bytes"]) + number(&segments["dead_bytes"]);
    assert_eq!(number(&segments["disk_bytes"]), disk);
    let large = stream(&report, &cold.streams[LARGE].0);
    assert!(number(&large["blocks"]) > 40, "{large:#}");
    let files = segments["files"].as_array().expect("a list");
    assert!(files.len() > 2, "{segments:#}");
    let (_, text) = run_inspect(data, &[]);
    assert!(
        text.contains(" blocks in ") && text.contains("records behind it"),
        "{text}"
    );

    // What is damaged, and what the report says of it.
    let stray = data.join("segments/00000fff00000000.segment");
    fs::write(&stray, [0; 4096]).expect("writable");
    let (verified, report) = inspect(data);
    assert!(verified, "a crash may leave it: {report:#}");
    let unnamed = report["segments"]["unnamed"].as_array().expect("a list");
    assert!(unnamed.contains(&json!(stray)), "{report:#}");

    let key = cold.streams[LARGE].0.clone();
    let block = cold.blocks_at(data, LARGE, 3 << 16).remove(0);
    let copies = cold.blocks_at(data, LARGE, 3 << 16);
    let body = (48 + block.len / 2) as u64;
    for block in &copies {
        flip(&block.path, block.offset + body);
    }
    let (verified, text) = run_inspect(data, &[]);
    let place = format!("at byte {} of {}", block.offset, block.path.display());
    assert!(
        !verified && text.contains(&place) || copies.len() > 1,
        "{text}"
    );
    assert!(text.contains(&format!("stream {key}: the block")), "{text}");
    assert!(
        text.contains("Not everything verifies: 1 problems"),
        "{text}"
    );
    for block in &copies {
        flip(&block.path, block.offset + body);
    }

    let bodies: Vec<_> = blocks(data)
        .into_iter()
        .filter(|block| block.owner == cold.tokens[SNAPSHOT] && block.len == 2000)
        .collect();
    for block in &bodies {
        flip(&block.path, block.offset + 100);
    }
    let (verified, text) = run_inspect(data, &[]);
    let snapshot = format!("snapshot of stream {} at 4", cold.streams[SNAPSHOT].0);
    assert!(!verified && text.contains(&snapshot), "{text}");
    for block in &bodies {
        flip(&block.path, block.offset + 100);
    }

    for name in ["checkpoint-", "current"] {
        let path = of_shard(data, name);
        let whole = fs::read(&path).expect("readable");
        let at = if name == "current" {
            30
        } else {
            whole.len() as u64 / 2
        };
        flip(&path, at);
        let (verified, report) = inspect(data);
        let problems = report["problems"].to_string();
        let named = problems.contains(&path.to_string_lossy().into_owned());
        assert!(!verified && named, "{report:#}");
        if name == "current" {
            stream(&report, &key);
        }
        let (_, text) = run_inspect(data, &[]);
        assert!(text.contains("is damaged"), "{text}");
        fs::write(&path, &whole).expect("writable");
    }
    let path = of_shard(data, "checkpoint-");
    let aside = data.with_extension("aside");
    fs::rename(&path, &aside).expect("it can be moved");
    let (verified, text) = run_inspect(data, &[]);
    assert!(!verified && text.contains("is missing"), "{text}");
    fs::rename(&aside, &path).expect("it can be moved");

    let whole = fs::read(&block.path).expect("readable");
    fs::write(&block.path, &whole[..block.offset as usize]).expect("writable");
    let (verified, text) = run_inspect(data, &[]);
    assert!(!verified && text.contains(" where "), "{text}");
    fs::remove_file(&block.path).expect("it is there");
    let (verified, text) = run_inspect(data, &[]);
    let missing = format!("{} is missing", block.path.display());
    assert!(!verified && text.contains(&missing), "{text}");
    assert!(text.contains(&format!("stream {key}: bytes ")), "{text}");
    fs::write(&block.path, &whole).expect("writable");
    let (verified, text) = run_inspect(data, &[]);
    assert!(verified, "{text}");
}
