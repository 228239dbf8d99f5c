//! The cases of `cases/storage.md` that need a disk of their own or a look at one: 2, 4, 11, 12.
//! The others are in `regression.rs` and `expiry.rs`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use ursula_headers::ErrorCode;

use crate::common::disk::Batch;
use crate::common::eventually;
use crate::common::http::{Connection, Request, Response};
use crate::common::observe::metric;
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, offset, unique};

/// Storage case 2: the last record of a quiet stream is cut in the middle: it is never visible, and
/// the next append follows the last good one.
#[test]
fn storage_2_a_record_cut_in_the_middle_is_never_visible() {
    let server = Options::new(1).start();
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let key = stream.key().to_owned();
    stream.append(OCTETS, "whole.");
    stream.append(OCTETS, "the last record, of which half is lost");
    let options = server.kill();
    Batch::with(options.data_dir(), "the last record").cut();

    let server = options.start();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert_eq!(stream.read_all(), b"whole.");
    let log = server.log();
    assert!(
        log.contains("was cut at byte"),
        "it does not say so:\n{log}"
    );
    let next = stream.append(OCTETS, "next").next_offset();
    assert_eq!(next, offset("whole.next".len()));
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert_eq!(stream.read_all(), b"whole.next");
}

/// A small file system in memory, for as long as this lives. Only root may make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<Self> {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique("disk"));
        fs::create_dir_all(&path).expect("Cargo's temporary directory is writable");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"]);
        let mounted = mount.arg(&path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(path));
        }
        let _ = fs::remove_dir(&path);
        None
    }

    /// Takes all the space that is left.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut source = File::open("/dev/zero").expect("there are zeros");
        let mut file = File::create(&ballast).expect("there is room for a name");
        std::io::copy(&mut source, &mut file).expect_err("the disk gets full");
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if unmounted.is_ok_and(|status| status.success()) {
            let _ = fs::remove_dir(&self.0);
        }
    }
}

/// Storage case 4 on a disk that is really full: a producer appends until it gets a 5xx, reads work
/// meanwhile, space is freed, it retries the same sequence number: applied exactly once.
#[test]
fn storage_4_a_really_full_disk() {
    let Some(disk) = SmallDisk::mount(32 << 20) else {
        println!("skipped: only root can mount a small file system");
        return;
    };
    let data = disk.0.join("data");
    fs::create_dir(&data).expect("there is room");
    let options = Options::new(1)
        .in_directory(&data)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .flag("disk-reserve-bytes", 0);
    let server = options.start();
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let body = |seq: u64| vec![seq as u8; 100_000];
    let write = |server: &Server, key: &str, seq: u64| -> Response {
        let post = Stream::at(server, Surface::Bucket, key).post();
        post.header("Content-Type", OCTETS)
            .header("Producer-Id", "p")
            .header("Producer-Epoch", 0)
            .header("Producer-Seq", seq)
            .body(body(seq))
            .send()
    };
    let ballast = disk.fill();
    let mut seq = 0;
    let refused = loop {
        let answer = write(&server, stream.key(), seq);
        if answer.status != 200 {
            break answer;
        }
        seq += 1;
        assert!(seq < 1000, "the disk never gets full");
    };
    let refused = refused.expect_error(503, ErrorCode::WalDiskPressure);
    assert!(refused.header("retry-after").is_some(), "{refused}");
    let expected = |count: u64| (0..count).flat_map(body).collect::<Vec<u8>>();
    assert!(stream.read_all() == expected(seq), "reads while it is full");
    let ready = |server: &Server| Request::to(server.admin_address(), "GET", "/__ursula/ready");
    eventually("it is not ready, and says why", || {
        let answer = ready(&server).send();
        let reason = answer.json()["reason"].as_str()?.to_owned();
        (answer.status == 503 && reason.contains("disk space")).then_some(())
    });
    write(&server, stream.key(), seq).expect_error(503, ErrorCode::WalDiskPressure);

    fs::remove_file(ballast).expect("it can be removed");
    eventually("writes work again", || {
        let answer = write(&server, stream.key(), seq);
        (answer.status == 200).then_some(())
    });
    write(&server, stream.key(), seq).expect(204);
    eventually("it is ready again", || {
        (ready(&server).send().status == 200).then_some(())
    });
    assert!(stream.read_all() == expected(seq + 1), "exactly once");
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert!(stream.read_all() == expected(seq + 1), "and after a kill");
    let answer = stream.head().send();
    assert_eq!(answer.next_offset(), offset(100_000 * (seq as usize + 1)));
    server.kill();
    drop(options);
}

/// Storage case 11: more bodies are read at once than there are descriptors: requests fail cleanly,
/// nothing is lost, and when the readers are gone everything works.
#[test]
fn storage_11_out_of_descriptors() {
    let server = Options::new(1)
        .files_max(192)
        .flag("request-bytes-max", 4 << 20)
        .flag("journal-file-bytes", 5 << 20)
        .start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    // More than the sockets' buffers hold: a reader that stops keeps its file open.
    let snapshot = vec![7; 4 << 20];
    let published = stream.request("PUT", "/snapshot/10").body(&snapshot).send();
    published.expect(204);
    let read = stream.request("GET", "/snapshot/10");
    let mut expected = b"0123456789".to_vec();
    let mut writer = Connection::to(&server);
    let mut stalled = Vec::new();
    for round in 0..200_u8 {
        if let Some(mut connection) = Connection::try_open(server.address()) {
            connection.write_if_open(&read.encode());
            stalled.push(connection);
        }
        // Appends that were acknowledged stay; those refused are not there. Files roll meanwhile.
        let body = vec![round; 100_000];
        let append = stream.post().header("Content-Type", OCTETS).body(&body);
        let answer = writer.exchange(&append).expect("an answer of some kind");
        match answer.status {
            204 => expected.extend_from_slice(&body),
            503 => {}
            _ => panic!("{answer}"),
        }
    }
    let mut starved = 0;
    for connection in &mut stalled {
        match connection.try_read_response("GET") {
            Ok(answer) if answer.status == 200 => assert!(answer.body == snapshot),
            Ok(answer) => {
                assert!(answer.status >= 500, "{answer}");
                starved += 1;
            }
            Err(_) => starved += 1,
        }
    }
    assert!(starved > 0, "there were descriptors for all");
    drop(stalled);
    eventually("everything works again", || {
        let answer = read.try_send()?;
        (answer.status == 200 && answer.body == snapshot).then_some(())
    });
    eventually("writes work again", || {
        let append = stream.post().header("Content-Type", OCTETS).body("end");
        (append.send().status == 204).then_some(())
    });
    expected.extend_from_slice(b"end");
    assert!(stream.read_all() == expected, "nothing is lost or doubled");
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert!(stream.read_all() == expected, "and after a kill");
}

/// Storage case 12: a file system without direct I/O: works, with a warning at start.
#[test]
fn storage_12_a_file_system_in_memory_works_with_a_warning() {
    if !Path::new("/dev/shm").is_dir() {
        println!("skipped: there is no /dev/shm");
        return;
    }
    let data = Path::new("/dev/shm").join(unique("thalweg"));
    fs::create_dir(&data).expect("it is writable");
    let server = Options::new(2).in_directory(&data).start();
    let log = server.log();
    assert!(log.contains("tmpfs"), "no warning:\n{log}");
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let key = stream.key().to_owned();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    stream.append(OCTETS, "12345");
                }
            });
        }
    });
    let snapshot = vec![1; 300_000];
    let publish = stream.request("PUT", "/snapshot/5").body(&snapshot);
    publish.send().expect(204);
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert_eq!(stream.read_all(), b"12345".repeat(80));
    let read = Request::new(&server, "GET", format!("{}/snapshot/5", stream.path()));
    assert!(read.send().expect(200).body == snapshot);
}

/// A data directory that is taken away is called that, and nothing is acknowledged that would go with
/// it; once it is back all is well.
#[test]
fn a_directory_that_is_gone_is_told() {
    let server = Options::new(2).start();
    let stream = Stream::with_body(&server, Surface::Base, OCTETS, "before");
    let data = server.options().data_dir().to_owned();
    let elsewhere = data.with_extension("elsewhere");
    std::fs::rename(&data, &elsewhere).expect("writable");
    let ready = || Request::to(server.admin_address(), "GET", "/__ursula/ready").send();
    let reason = eventually("it is noticed", || {
        let answer = ready();
        (answer.status == 503).then(|| answer.text().to_owned())
    });
    let data_text = data.to_str().expect("these paths are ASCII");
    assert!(
        reason.contains("was removed") && reason.contains(data_text),
        "{reason}"
    );
    eventually("every shard has noticed", || {
        (metric(&server, "directory_gone") == 2).then_some(())
    });
    assert_eq!(metric(&server, "disk_pressure"), 0);
    let append = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("lost")
        .send();
    append.expect_error(503, ErrorCode::ApplyStopped);
    assert_eq!(stream.read_all(), b"before");
    assert!(
        server.log().contains("/journal is gone"),
        "{}",
        server.log()
    );
    std::fs::rename(&elsewhere, &data).expect("writable");
    eventually("it is back", || (ready().status == 200).then_some(()));
    eventually("every shard is back", || {
        (metric(&server, "directory_gone") == 0).then_some(())
    });
    stream.append(OCTETS, " after");
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Base, &key);
    assert_eq!(stream.read_all(), b"before after");
}
