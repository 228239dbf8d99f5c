//! Data directories that earlier versions wrote, kept: this version reads them, and finds in them
//! what their writer answered.
//!
//! `tests/fixtures/v<format>/` holds `data.tar.gz`, a data directory of two shards with a stream
//! of every kind, and `expected.json`, what its server answered before it stopped. A version that
//! changes the format adds a directory and leaves the others as they are:
//! `cargo test --test blackbox make_a_fixture -- --ignored` writes the one of this version, if it
//! is not there yet, from streams that this file makes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::common::disk::inspect;
use crate::common::eventually;
use crate::common::http::{Request, Response};
use crate::common::observe::metric;
use crate::common::server::{Options, Server};
use crate::common::stream::{JSON, OCTETS, Stream, Surface, TEXT};

/// The format that this version writes.
const FORMAT: &str = "v2";
/// Shards of its layout.
const SHARDS: usize = 2;

/// What a server answers about a fixture's streams.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Expected {
    pub streams: BTreeMap<String, ExpectedStream>,
    /// Status of HEAD for streams that cannot be read.
    absent: BTreeMap<String, u16>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExpectedStream {
    /// Headers of HEAD that tell of the stream.
    head: BTreeMap<String, String>,
    body: String,
    snapshot: Option<ExpectedSnapshot>,
    /// The last write of each producer: a repeat of it is answered so.
    producers: BTreeMap<String, LastWrite>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct ExpectedSnapshot {
    content_type: String,
    body: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct LastWrite {
    epoch: u64,
    seq: u64,
    body: String,
    next_offset: String,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn tar(arguments: &[&str], archive: &Path, dir: &Path) {
    let mut tar = Command::new("tar");
    tar.args(arguments).arg(archive).arg("-C").arg(dir).arg(".");
    let status = tar.status().expect("tar can be run");
    assert!(status.success(), "tar: {status}");
}

/// Every fixture opens at any number of shards, says what it said, and goes on.
#[test]
fn data_of_every_format_is_read() {
    for fixture in fs::read_dir(fixtures()).expect("there are fixtures") {
        let fixture = fixture.expect("an entry").path();
        let text = fs::read_to_string(fixture.join("expected.json")).expect("it is kept");
        let expected: Expected = serde_json::from_str(&text).expect("it was written here");
        for shards in [SHARDS, 1, 4] {
            let options = options(shards);
            tar(&["-xzf"], &fixture.join("data.tar.gz"), options.data_dir());
            let (verified, report) = inspect(options.data_dir());
            assert!(verified, "{report:#}");
            let server = options.start();
            assert_eq!(observe(&server, &expected), expected, "at {shards} shards");
            for (key, stream) in &expected.streams {
                repeat_producers(&server, key, stream);
            }
            let fresh = Stream::with_body(&server, Surface::Bucket, TEXT, "new");
            let fresh = fresh.key().to_owned();
            let server = server.kill_and_restart();
            assert_eq!(observe(&server, &expected), expected, "after a kill");
            let fresh = Stream::at(&server, Surface::Bucket, &fresh);
            assert_eq!(fresh.read_all(), b"new");
        }
    }
}

fn options(shards: usize) -> Options {
    // The smallest journal files that this body limit allows.
    Options::new(shards)
        .flag("request-bytes-max", 16 << 10)
        .flag("journal-file-bytes", (1 << 20) + (16 << 10))
        .flag("checkpoint-bytes", 64 << 10)
        .flag("segment-bytes", 2 << 20)
}

/// Asks about the streams that `asked` names.
pub fn observe(server: &Server, asked: &Expected) -> Expected {
    let at = |key: &str| Stream::at(server, Surface::Base, key);
    let streams = asked.streams.iter().map(|(key, stream)| {
        let observed = ExpectedStream {
            head: head(&at(key).head().send().expect(200)),
            body: body(&at(key)),
            snapshot: snapshot(server, key),
            producers: stream.producers.clone(),
        };
        (key.clone(), observed)
    });
    let absent = asked.absent.keys();
    let absent = absent.map(|key| (key.clone(), at(key).head().send().status));
    Expected {
        streams: streams.collect(),
        absent: absent.collect(),
    }
}

fn head(answer: &Response) -> BTreeMap<String, String> {
    let tells = |name: &str| name.starts_with("stream-") || name == "content-type";
    let headers = answer.headers.iter();
    headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| tells(name))
        .collect()
}

/// Everything that can still be read.
fn body(stream: &Stream<'_>) -> String {
    let head = stream.head().send();
    let start = head.header("stream-retained-offset").unwrap_or("-1");
    String::from_utf8(stream.read_from(start)).expect("fixtures hold text")
}

fn snapshot(server: &Server, key: &str) -> Option<ExpectedSnapshot> {
    let stream = Stream::at(server, Surface::Bucket, key);
    let head = Stream::at(server, Surface::Base, key).head().send();
    let at = head.header("stream-snapshot-offset")?;
    let answer = stream.request("GET", &format!("/snapshot/{at}")).send();
    let answer = answer.expect(200);
    Some(ExpectedSnapshot {
        content_type: answer.expect_header("content-type").to_owned(),
        body: answer.text().to_owned(),
    })
}

fn write(server: &Server, key: &str, id: &str, write: &LastWrite) -> Response {
    let post = Stream::at(server, Surface::Base, key).post();
    post.header("Content-Type", TEXT)
        .header("Producer-Id", id)
        .header("Producer-Epoch", write.epoch)
        .header("Producer-Seq", write.seq)
        .body(&write.body)
        .send()
}

/// A repeat is recognised, and answered as it was.
pub fn repeat_producers(server: &Server, key: &str, stream: &ExpectedStream) {
    for (id, last) in &stream.producers {
        let repeat = write(server, key, id, last).expect(204);
        assert_eq!(
            repeat.next_offset(),
            last.next_offset,
            "{key}, producer {id}"
        );
    }
}

/// Makes a stream of every kind; what is to be asked about them.
pub fn fill(server: &Server) -> Expected {
    let mut producers: BTreeMap<&str, BTreeMap<String, LastWrite>> = BTreeMap::new();
    let at = |key| Stream::at(server, Surface::Base, key);
    let bucket = |key| Stream::at(server, Surface::Bucket, key);
    let create = |key, content_type| {
        let put = at(key).put().header("Content-Type", content_type);
        put.send().expect(201);
        at(key)
    };

    let text = create("fixture/text", TEXT);
    text.append(TEXT, "one, ");
    text.append(TEXT, "two");
    let json = create("fixture/json-closed", JSON);
    json.append(JSON, r#"[{"a":1}, {"b":[2,3]}]"#);
    let last = json.post().header("Content-Type", JSON).body("\"last\"");
    last.header("Stream-Closed", "true").send().expect(204);

    create("fixture/produced", TEXT);
    for (id, epoch, seq) in [("p", 0, 0), ("p", 0, 1), ("q", 0, 0), ("p", 1, 0)] {
        let body = format!("<{id} {epoch} {seq}>");
        let mut last = LastWrite {
            epoch,
            seq,
            body,
            next_offset: String::new(),
        };
        let answer = write(server, "fixture/produced", id, &last).expect(200);
        last.next_offset = answer.next_offset();
        let of_stream = producers.entry("fixture/produced").or_default();
        of_stream.insert(id.to_owned(), last);
    }
    let numbered = create("fixture/stream-seq", OCTETS)
        .post()
        .header("Content-Type", OCTETS);
    numbered
        .header("Stream-Seq", "007")
        .body("x")
        .send()
        .expect(204);

    let publish = |key, offset: usize, body: &str| {
        let put = bucket(key).request("PUT", &format!("/snapshot/{offset}"));
        put.header("Content-Type", TEXT)
            .body(body)
            .send()
            .expect(204);
    };
    create("fixture/snapshot", TEXT).append(TEXT, "0123456789");
    publish("fixture/snapshot", 4, "superseded");
    publish("fixture/snapshot", 7, "the snapshot at 7");
    let retain = bucket("fixture/snapshot").request("PUT", "/retention/5");
    retain.send().expect(204);

    create("fixture/source", TEXT).append(TEXT, "inherited|not inherited");
    for (fork, source) in [
        ("fixture/fork", "fixture/source"),
        ("fixture/fork-of-fork", "fixture/fork"),
        ("fixture/heir", "fixture/deleted-source"),
    ] {
        if source == "fixture/deleted-source" {
            create(source, TEXT).append(TEXT, "inherited|");
        }
        let put = at(fork)
            .put()
            .header("Stream-Forked-From", at(source).path());
        let put = put.header("Stream-Fork-Offset", format!("{:020}", 10));
        put.send().expect(201);
        at(fork).append(TEXT, format!("own of {fork}"));
    }
    at("fixture/deleted-source").delete().send().expect(204);

    let lasting = at("fixture/ttl")
        .put()
        .header("Stream-TTL", 3_000_000_000_u64);
    lasting.body("lives long").send().expect(201);
    let until = at("fixture/expires-at").put();
    let until = until.header("Stream-Expires-At", "2120-01-01T00:00:00Z");
    until.body("lives until 2120").send().expect(201);

    create("fixture/deleted", TEXT).append(TEXT, "gone");
    at("fixture/deleted").delete().send().expect(204);
    create("purged/stream", TEXT).append(TEXT, "gone");
    Request::to(server.admin_address(), "DELETE", "/__ursula/purge/purged")
        .send()
        .expect(200);

    let kept = [
        "text",
        "json-closed",
        "produced",
        "stream-seq",
        "snapshot",
        "source",
        "fork",
        "fork-of-fork",
        "heir",
        "ttl",
        "expires-at",
    ];
    let asked = kept.map(|name| {
        let key = format!("fixture/{name}");
        let producers = producers.remove(key.as_str()).unwrap_or_default();
        let stream = ExpectedStream {
            head: BTreeMap::new(),
            body: String::new(),
            snapshot: None,
            producers,
        };
        (key, stream)
    });
    let absent = ["fixture/deleted", "fixture/deleted-source", "purged/stream"];
    let asked = Expected {
        streams: asked.into(),
        absent: absent.map(|key| (key.to_owned(), 0)).into(),
    };
    observe(server, &asked)
}

#[test]
#[ignore = "writes into tests/fixtures; for a version with a new format"]
fn make_a_fixture() {
    let dir = fixtures().join(FORMAT);
    assert!(!dir.exists(), "{} is kept as it is", dir.display());
    let server = options(SHARDS).start();
    let expected = fill(&server);
    // Until what it says is in a checkpoint and in segments; the journal behind it says the rest.
    let before = metric(&server, "checkpoints_total");
    eventually("each shard has written checkpoints", || {
        for _ in 0..8 {
            let ballast = Stream::with_body(&server, Surface::Bucket, OCTETS, [7; 9_000]);
            ballast.delete().send().expect(204);
        }
        (metric(&server, "checkpoints_total") > before + 6).then_some(())
    });
    assert!(metric(&server, "segment_live_bytes") > 0);
    let options = server.kill();
    fs::create_dir_all(&dir).expect("tests/fixtures is writable");
    tar(&["-czf"], &dir.join("data.tar.gz"), options.data_dir());
    let text = serde_json::to_string_pretty(&expected).expect("text");
    fs::write(dir.join("expected.json"), text + "\n").expect("writable");
}
