//! Streams whose bytes have left memory and journal: whatever is asked of them
//! answers as it did before (issue 4; Design, "On disk", "Memory").
//!
//! The servers here have so little memory, and such small segments and
//! checkpoints, that a few hundred KiB are on disk alone.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::eventually;
use crate::common::http::Request;
use crate::common::observe::{await_metric, metric};
use crate::common::server::{Options, Server};
use crate::common::sse::EventSource;
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT, offset, unique};

fn tiny(shards: usize) -> Options {
    Options::new(shards)
        .flag("request-bytes-max", 64 << 10)
        .flag("snapshot-bytes-max", 8 << 20)
        .flag("journal-file-bytes", 2 << 20)
        .flag("checkpoint-bytes", 64 << 10)
        .flag("segment-bytes", 2 << 20)
        .flag("memory-bytes-max", shards << 18)
}

/// Appends what is not refused for the moment: there is little memory.
fn append(stream: &Stream<'_>, content_type: &str, body: &[u8]) {
    eventually("it is taken", || {
        let post = stream
            .post()
            .header("Content-Type", content_type)
            .body(body);
        let status = post.send().status;
        assert!(matches!(status, 200 | 204 | 503), "{status}");
        (status != 503).then_some(())
    });
}

/// Creates a stream, as soon as there is memory for it.
fn create<'a>(server: &'a Server, content_type: &str) -> Stream<'a> {
    let stream = Stream::absent(server, Surface::Bucket);
    eventually("it is created", || {
        let put = stream.put().header("Content-Type", content_type);
        let status = put.send().status;
        assert!(matches!(status, 201 | 503), "{status}");
        (status == 201).then_some(())
    });
    stream
}

fn messages(count: usize) -> Vec<String> {
    (0..count)
        .map(|index| format!("{{\"n\":{index},\"text\":\"{}\"}}", "é".repeat(index % 700)))
        .collect()
}

/// Everything of a stream, read in pieces of at most `bytes_max`.
fn read_all(stream: &Stream<'_>, from: &str, bytes_max: usize) -> Vec<u8> {
    let mut whole = Vec::new();
    let mut at = from.to_owned();
    loop {
        let read = stream.get(&format!("offset={at}&max_bytes={bytes_max}"));
        let read = read.send().expect(200);
        whole.extend_from_slice(&read.body);
        at = read.next_offset();
        if read.header("Stream-Up-To-Date").is_some() {
            return whole;
        }
    }
}

struct Filled {
    octets: (String, Vec<u8>),
    json: (String, Vec<String>),
    text: (String, Vec<u8>),
    small: Vec<(String, Vec<u8>)>,
}

impl Filled {
    /// Fills streams until their bytes are in segments, and nearly none in memory.
    fn new(server: &Server) -> Self {
        let octets = create(server, OCTETS);
        let mut bytes = Vec::new();
        for index in 0..20u32 {
            let piece: Vec<u8> = (0..50_000u32).map(|at| (at * 7 + index) as u8).collect();
            append(&octets, OCTETS, &piece);
            bytes.extend(piece);
        }
        let json = create(server, JSON);
        let sent = messages(900);
        for batch in sent.chunks(30) {
            append(&json, JSON, format!("[{}]", batch.join(", ")).as_bytes());
        }
        let text = create(server, TEXT);
        let lines = "zwölf Boxkämpfer\r\njagen €\n".repeat(8_000).into_bytes();
        for piece in lines.chunks(60_001) {
            append(&text, TEXT, piece);
        }
        let small = (0..300usize)
            .map(|index| {
                let stream = create(server, OCTETS);
                let body = vec![index as u8; 1 + index * 3];
                append(&stream, OCTETS, &body);
                (stream.key().to_owned(), body)
            })
            .collect();
        let filled = Self {
            octets: (octets.key().to_owned(), bytes),
            json: (json.key().to_owned(), sent),
            text: (text.key().to_owned(), lines),
            small,
        };
        await_metric(server, "segment_live_bytes", |bytes| bytes > 1 << 20);
        filled
    }

    fn check(&self, server: &Server) {
        let at = |key: &str| Stream::at(server, Surface::Bucket, key);
        let (key, bytes) = &self.octets;
        for bytes_max in [usize::MAX >> 1, 70_000] {
            assert!(read_all(&at(key), "-1", bytes_max) == *bytes, "octets");
        }
        for from in [0, 1, 65_535, 65_536, 500_001, bytes.len() - 1] {
            let read = at(key).get(&format!("offset={from}&max_bytes=100"));
            let end = bytes.len().min(from + 100);
            read.send().expect(200).expect_body(&bytes[from..end]);
        }
        let (key, sent) = &self.json;
        let stored: Vec<u8> = sent
            .iter()
            .flat_map(|text| [text.as_bytes(), b"\n"].concat())
            .collect();
        assert!(read_all(&at(key), "-1", 33_333) == stored, "stored JSON");
        let base = at(key).on(Surface::Base);
        let mut next = String::from("-1");
        let mut got: Vec<Value> = Vec::new();
        while got.len() < sent.len() {
            let read = base.get(&format!("offset={next}&max_bytes=40000"));
            let read = read.send().expect(200);
            got.extend(read.json().as_array().expect("an array").iter().cloned());
            next = read.next_offset();
        }
        for (index, message) in got.iter().enumerate() {
            assert_eq!(message["n"], index, "message {index}");
        }
        let inside = base.get("offset=3&max_bytes=100");
        assert_eq!(
            inside.send().expect(400).json()["error"]["code"],
            "NOT_JSON_BOUNDARY"
        );
        let (key, lines) = &self.text;
        assert!(read_all(&at(key), "-1", 10_000) == *lines, "text");
        for (key, body) in &self.small {
            at(key)
                .get("offset=-1")
                .send()
                .expect(200)
                .expect_body(body);
        }
    }
}

#[test]
fn what_left_memory_is_read_as_before_over_kills_and_other_numbers_of_shards() {
    let server = tiny(2).start();
    let filled = Filled::new(&server);
    let budget = 2 << 18;
    assert!(metric(&server, "memory_bytes") <= budget);
    filled.check(&server);
    let mut options = server.kill();
    for shards in [2, 1, 4, 8, 2] {
        options = options
            .flag("shards", shards)
            .flag("memory-bytes-max", shards << 18);
        let server = options.start();
        filled.check(&server);
        options = server.kill();
    }
}

#[test]
fn live_readers_catch_up_from_disk() {
    let server = tiny(1).start();
    let filled = Filled::new(&server);
    let (key, lines) = &filled.text;
    let stream = Stream::at(&server, Surface::Bucket, key);
    let mut events = EventSource::open(&stream.get("offset=-1&live=sse"));
    let (text, _) = events.until_up_to_date(|event| event.data.clone().into_bytes());
    let expected = String::from_utf8_lossy(lines)
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    assert!(String::from_utf8_lossy(&text) == expected, "text over SSE");
    let (key, bytes) = &filled.octets;
    let stream = Stream::at(&server, Surface::Bucket, key);
    let poll = stream.get("offset=0&live=long-poll&max_bytes=1000");
    poll.send().expect(200).expect_body(&bytes[..1000]);
}

/// Base 4.2; Decisions, Forks: a fork of bytes that are on disk, on another shard perhaps, counted
/// in messages; what it inherited outlives its source.
#[test]
fn forks_of_what_is_on_disk_outlive_their_source() {
    let server = tiny(4).start();
    let filled = Filled::new(&server);
    let (key, sent) = &filled.json;
    let source = Stream::at(&server, Surface::Base, key);
    let mut forks = Vec::new();
    for count in [0usize, 1, 250, 899, 900] {
        let fork = Stream::absent(&server, Surface::Base);
        let put = fork
            .put()
            .header("Content-Type", JSON)
            .header("Stream-Forked-From", source.path())
            .header("Stream-Fork-Offset", offset(0))
            .header("Stream-Fork-Sub-Offset", count);
        put.send().expect(201);
        append(&fork, JSON, b"{\"own\":true}");
        forks.push((fork.key().to_owned(), count));
    }
    let past = Stream::absent(&server, Surface::Base)
        .put()
        .header("Content-Type", JSON)
        .header("Stream-Forked-From", source.path())
        .header("Stream-Fork-Offset", offset(0))
        .header("Stream-Fork-Sub-Offset", 901);
    assert_eq!(past.send().status, 400);
    source.delete().send().expect(204);
    let check = |server: &Server| {
        for (key, count) in &forks {
            let whole = read_all(&Stream::at(server, Surface::Bucket, key), "-1", 50_000);
            let own = [sent[..*count].join("\n").as_bytes(), b"\n{\"own\":true}\n"].concat();
            let own = if *count == 0 { own[1..].to_vec() } else { own };
            assert!(whole == own, "fork at {count}");
        }
    };
    check(&server);
    let server = server.kill_and_restart();
    check(&server);
}

/// Extensions 2.2, 2.5, 3: snapshots, retention and bootstrap at offsets whose bytes are on disk.
#[test]
fn snapshots_retention_and_bootstrap_look_at_what_is_on_disk() {
    let server = tiny(2).start();
    let filled = Filled::new(&server);
    let (key, sent) = &filled.json;
    let stream = Stream::at(&server, Surface::Bucket, key);
    let boundary = sent[..400].iter().map(|text| text.len() + 1).sum::<usize>();
    let snapshot = |at: usize| {
        let path = format!("{}/snapshot/{}", stream.path(), offset(at));
        Request::new(&server, "PUT", path)
            .header("Content-Type", OCTETS)
            .body(vec![7; 5_000])
    };
    let refused = snapshot(boundary - 3).send().expect(400);
    assert_eq!(refused.json()["error"]["code"], "NOT_JSON_BOUNDARY");
    assert!(matches!(snapshot(boundary).send().status, 200 | 201 | 204));
    let path = format!("{}/retention/{}", stream.path(), offset(boundary));
    Request::new(&server, "PUT", path).send().expect(204);
    assert_eq!(stream.get("offset=0").send().status, 410);
    let kept: Vec<u8> = sent[400..]
        .iter()
        .flat_map(|text| [text.as_bytes(), b"\n"].concat())
        .collect();
    let check = |server: &Server| {
        let stream = Stream::at(server, Surface::Bucket, key);
        assert!(read_all(&stream, &offset(boundary), 99_999) == kept);
        let path = format!("{}/snapshot/{}", stream.path(), offset(boundary));
        let read = Request::new(server, "GET", path).send().expect(200);
        read.expect_body(vec![7; 5_000]);
        let path = format!("{}/bootstrap", stream.path());
        let bootstrap = Request::new(server, "GET", path).send().expect(200);
        let parts = bootstrap
            .body
            .windows(4)
            .filter(|bytes| bytes == b"\r\n\r\n")
            .count();
        assert_eq!(parts, 1 + 500, "the snapshot and every message behind it");
    };
    check(&server);
    // Another checkpoint of its shard moves the snapshot's body into a block.
    let before = metric(&server, "checkpoints_total");
    eventually("each shard has written a checkpoint", || {
        append(&create(&server, OCTETS), OCTETS, &[1; 60_000]);
        (metric(&server, "checkpoints_total") > before + 4).then_some(())
    });
    check(&server);
    let server = server.kill_and_restart();
    check(&server);
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("a directory");
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
            Err(_) => 0,
        })
        .sum()
}

/// The bound on space: 1.3 times what is live, and a constant for each shard (here: the journal in
/// use, one file ahead, one segment, and what waits for a checkpoint).
#[test]
fn what_is_deleted_gives_its_space_back() {
    let server = tiny(1).start();
    let constant = 3 * (2 << 20) + (2 << 20) + (2 << 20);
    let mut live: Vec<(String, usize)> = Vec::new();
    for round in 0..6usize {
        for index in 0..60usize {
            let stream = create(&server, OCTETS);
            let len = [900, 12_000, 60_000][(round + index) % 3];
            append(&stream, OCTETS, &vec![index as u8; len]);
            live.push((stream.key().to_owned(), len));
        }
        // Two of three go, of every age.
        let mut index = 0;
        live.retain(|(key, _)| {
            index += 1;
            let goes = index % 3 != 0;
            if goes {
                Stream::at(&server, Surface::Bucket, key)
                    .delete()
                    .send()
                    .expect(204);
            }
            !goes
        });
    }
    let live_bytes: u64 = live.iter().map(|(_, len)| *len as u64).sum();
    let bound = live_bytes * 13 / 10 + constant;
    let dir = server.options().data_dir().to_owned();
    // What was moved goes with the next checkpoint, and that comes with what is written.
    let ballast = create(&server, OCTETS);
    let mut taken = 0;
    for _ in 0..40 {
        append(&ballast, OCTETS, &[9; 30_000]);
        taken = disk_bytes(&dir);
        if taken <= bound {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    assert!(
        taken <= bound,
        "{taken} bytes on disk, {live_bytes} live, bound {bound}"
    );
    for (key, len) in &live {
        let read = Stream::at(&server, Surface::Bucket, key)
            .get("offset=-1")
            .send();
        assert_eq!(read.expect(200).body.len(), *len);
    }
}

/// Extensions 1.2; issue 3: a purge gives space back.
#[test]
fn a_purged_bucket_leaves_the_disk() {
    let server = tiny(2).start();
    let bucket = unique("purged").to_ascii_lowercase();
    for index in 0..80 {
        let stream = Stream::at(&server, Surface::Bucket, &format!("{bucket}/s{index}"));
        stream
            .put()
            .header("Content-Type", OCTETS)
            .send()
            .expect(201);
        append(&stream, OCTETS, &[3; 60_000]);
    }
    await_metric(&server, "segment_live_bytes", |bytes| bytes > 4 << 20);
    let path = format!("/__ursula/purge/{bucket}");
    let purge = Request::to(server.admin_address(), "DELETE", path);
    assert!(purge.send().status < 300);
    await_metric(&server, "segment_live_bytes", |bytes| bytes < 4_000);
    let journals = 2 * 3 * (2 << 20);
    let dir = server.options().data_dir().to_owned();
    eventually("its space is back", || {
        (disk_bytes(&dir) < journals + 2 * (2 << 20) + (1 << 20)).then_some(())
    });
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &format!("{bucket}/s1"));
    assert_eq!(stream.get("offset=-1").send().status, 404);
}
