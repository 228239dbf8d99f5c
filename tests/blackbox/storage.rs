//! The cases of `cases/storage.md` that need a disk of their own or a look at one: 2, 4, 8, 9, 11, 12.
//! The others are in `regression.rs` and `expiry.rs`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use ursula_headers::ErrorCode;

use crate::common::cold;
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

/// A small file system, for as long as this lives: where it is, and the image it is in if it is not
/// in memory. Only root may make one.
struct SmallDisk(PathBuf, Option<PathBuf>);

/// Whether a command could be run and succeeded.
fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

impl SmallDisk {
    /// In memory.
    fn mount(bytes: u64) -> Option<Self> {
        let disk = Self(Self::place("disk"), None);
        fs::create_dir_all(&disk.0).expect("Cargo's temporary directory is writable");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"]);
        succeeds(mount.arg(&disk.0)).then_some(disk)
    }

    /// Of a kind that `mkfs` knows, in a file behind a loop device.
    fn image(kind: &str, bytes: u64) -> Option<Self> {
        let image = Self::place("image");
        let disk = Self(Self::place("disk"), Some(image.clone()));
        fs::create_dir_all(&disk.0).expect("Cargo's temporary directory is writable");
        let file = File::create(&image).expect("Cargo's temporary directory is writable");
        file.set_len(bytes).expect("a file may have holes");
        let mut mkfs = Command::new(format!("mkfs.{kind}"));
        let made = succeeds(mkfs.args(["-q", "-F"]).arg(&image));
        (made && disk.mount_image()).then_some(disk)
    }

    fn place(name: &str) -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique(name))
    }

    fn mount_image(&self) -> bool {
        let image = self.1.as_ref().expect("it has an image");
        succeeds(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(image)
                .arg(&self.0),
        )
    }

    fn unmount(&self) -> bool {
        succeeds(Command::new("umount").arg(&self.0))
    }

    /// From now on every access fails with EIO (`EXT4_IOC_SHUTDOWN`), until it is mounted anew; what
    /// was not synced is lost.
    fn fail(&self) -> bool {
        let script = "import fcntl, os, struct, sys\n\
                      disk = os.open(sys.argv[1], os.O_RDONLY)\n\
                      fcntl.ioctl(disk, 0x8004587d, struct.pack('I', 2))";
        succeeds(Command::new("python3").args(["-c", script]).arg(&self.0))
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
        self.unmount();
        // It stays if it could not be unmounted.
        let _ = fs::remove_dir(&self.0);
        if let Some(image) = &self.1 {
            let _ = fs::remove_file(image);
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

/// A disk that streams have filled is made room on by what only frees space, all of which goes on
/// while nothing else is taken: deletion, retention, the discarding of parts, expiry, purge. Then
/// writes work again, without a restart, and nothing that was deleted returns.
#[test]
fn storage_4_a_full_disk_recovers_by_deletions() {
    let Some(disk) = SmallDisk::mount(64 << 20) else {
        println!("skipped: only root can mount a small file system");
        return;
    };
    let data = disk.0.join("data");
    fs::create_dir(&data).expect("there is room");
    let options = Options::new(1)
        .in_directory(&data)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .flag("segment-bytes", 2 << 20)
        .flag("checkpoint-bytes", 4 << 20)
        .flag("disk-reserve-bytes", 16 << 20);
    let server = options.start();
    let put = |stream: &Stream<'_>| stream.put().header("Content-Type", OCTETS);
    let kept = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    let publish = kept.request("PUT", "/snapshot/6").body("s");
    publish.send().expect(204);
    let part = kept.request("POST", "/snapshot/6/parts").body("part");
    part.send().expect(201);
    let expiring = Stream::absent(&server, Surface::Bucket);
    let lifetime = put(&expiring).header("Stream-TTL", 1);
    lifetime.send().expect(201);
    // It lives for as long as somebody reads it.
    let reader = expiring.sse("0");
    let bucket = unique("bucket");
    let doomed = Stream::at(&server, Surface::Bucket, &format!("{bucket}/s"));
    put(&doomed).send().expect(201);

    let mut full = Vec::new();
    let append = |stream: &Stream<'_>| {
        let post = stream.post().header("Content-Type", OCTETS);
        post.body(vec![7; 200_000]).send()
    };
    'filling: loop {
        let stream = Stream::absent(&server, Surface::Bucket);
        if put(&stream).send().status == 503 {
            break;
        }
        full.push(stream);
        let stream = full.last().expect("it was just put there");
        for _ in 0..20 {
            match append(stream).status {
                204 => {}
                503 => break 'filling,
                other => panic!("{other}"),
            }
        }
        assert!(full.len() < 1000, "the disk never gets full");
    }
    append(&full[0]).expect_error(503, ErrorCode::WalDiskPressure);
    drop(reader);
    eventually("what is over is deleted", || {
        (expiring.head().send().status == 404).then_some(())
    });
    kept.request("PUT", "/retention/6").send().expect(204);
    let discard = kept.request("DELETE", "/snapshot/parts");
    discard.send().expect(204);
    let purge = format!("/__ursula/purge/{bucket}");
    let purge = Request::to(server.admin_address(), "DELETE", purge);
    assert!(purge.send().status < 300, "{}", purge.send());
    doomed.head().send().expect(404);
    for stream in &full {
        stream.delete().send().expect(204);
        stream.head().send().expect(404);
    }
    eventually("writes work again", || {
        let answer = kept
            .post()
            .header("Content-Type", OCTETS)
            .body("end")
            .send();
        (answer.status == 204).then_some(())
    });
    // There is room for as much again.
    let again = Stream::create(&server, Surface::Bucket, OCTETS);
    for _ in 0..full.len() * 10 {
        // Beside the keeper, which gives back what it has moved.
        eventually("there is room", || {
            (append(&again).status == 204).then_some(())
        });
    }
    let keys: Vec<String> = full.iter().map(|stream| stream.key().to_owned()).collect();
    let (kept, again) = (kept.key().to_owned(), again.key().to_owned());
    let server = server.kill_and_restart();
    let at = |key: &str| Stream::at(&server, Surface::Bucket, key);
    assert_eq!(at(&kept).read_from(&offset(6)), b"6789end");
    let tail = at(&again).head().send().next_offset();
    assert_eq!(tail, offset(keys.len() * 10 * 200_000));
    for key in &keys {
        at(key).head().send().expect(404);
    }
    server.kill();
    drop(options);
}

/// ENOSPC in the middle of a write, on a file system in memory and on one that takes direct I/O: a
/// snapshot that does not fit is refused and leaves nothing, what is small is still taken, and when
/// there is space again, so is the rest.
#[test]
fn a_disk_that_gets_full_in_the_middle_of_a_write() {
    let disks = [
        SmallDisk::mount(48 << 20),
        SmallDisk::image("ext4", 64 << 20),
    ];
    if disks.iter().any(Option::is_none) {
        println!("skipped in part: only root can mount a small file system");
    }
    for disk in disks.into_iter().flatten() {
        let data = disk.0.join("data");
        fs::create_dir(&data).expect("there is room");
        let options = Options::new(1)
            .in_directory(&data)
            .flag("request-bytes-max", 4 << 20)
            .flag("journal-file-bytes", 5 << 20)
            .flag("segment-bytes", 2 << 20)
            .flag("disk-reserve-bytes", 0);
        let server = options.start();
        let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
        let ballast = disk.fill();
        let ballast_file = File::options().write(true).open(&ballast);
        let ballast_file = ballast_file.expect("it is there");
        let len = ballast_file.metadata().expect("it is there").len();
        ballast_file.set_len(len - (1 << 20)).expect("writable");
        let large = vec![9; 3 << 20];
        let publish = stream.request("PUT", "/snapshot/5").body(&large);
        for _ in 0..3 {
            let refused = publish.send();
            refused.expect_error(503, ErrorCode::WalDiskPressure);
        }
        let mut expected = b"0123456789".to_vec();
        // More than is flushed at once: the keeper, too, meets the full disk.
        for round in 0..15_u8 {
            stream.append(OCTETS, vec![round; 100_000]);
            expected.extend(vec![round; 100_000]);
        }
        assert!(stream.read_all() == expected, "reads while it is full");
        let none = stream.head().send().expect(200);
        none.expect_no_field("stream-snapshot-offset");

        drop(ballast_file);
        fs::remove_file(ballast).expect("it can be removed");
        eventually("the snapshot is taken", || {
            (publish.send().status == 204).then_some(())
        });
        let key = stream.key().to_owned();
        let server = server.kill_and_restart();
        let stream = Stream::at(&server, Surface::Bucket, &key);
        assert!(stream.read_all() == expected, "and after a kill");
        let snapshot = stream.request("GET", "/snapshot/5").send().expect(200);
        assert!(snapshot.body == large);
        server.kill();
        drop(options);
    }
}

/// A small disk with this file system on it, and a server's options for it; `None`, and a line that
/// says so, where it cannot be had.
fn on_an_image(kind: &str) -> Option<(SmallDisk, Options)> {
    let Some(disk) = SmallDisk::image(kind, 96 << 20) else {
        println!("skipped: only root can mount a file system in an image");
        return None;
    };
    let data = disk.0.join("data");
    fs::create_dir(&data).expect("there is room");
    let options = Options::new(1)
        .in_directory(&data)
        .flag("request-bytes-max", 256 << 10)
        .flag("journal-file-bytes", 2 << 20)
        .flag("disk-reserve-bytes", 0);
    Some((disk, options))
}

/// Storage case 9: a sync fails with EIO, as everything does on this disk from then on: no
/// acknowledgement, no more writes, reads go on, nothing is tried again, and what was acknowledged
/// is there after a start on the mended disk.
#[test]
fn storage_9_a_failed_sync_stops_writes_and_not_reads() {
    let Some((disk, options)) = on_an_image("ext4") else {
        return;
    };
    let server = options.start();
    let stream = Stream::with_body(&server, Surface::Bucket, OCTETS, "acknowledged.");
    let key = stream.key().to_owned();
    if !disk.fail() {
        println!("skipped: it takes python3 to make a disk fail");
        server.kill();
        drop(options);
        return;
    }
    let write = stream
        .post()
        .header("Content-Type", OCTETS)
        .body("in doubt");
    write.send().expect_error(503, ErrorCode::OutcomeUnknown);
    for _ in 0..3 {
        write.send().expect_error(503, ErrorCode::ApplyStopped);
        stream
            .delete()
            .send()
            .expect_error(503, ErrorCode::ApplyStopped);
        assert_eq!(stream.read_all(), b"acknowledged.");
        assert_eq!(stream.head().send().next_offset(), offset(13));
    }
    let stops = server.log().matches("the journal has stopped").count();
    assert_eq!(stops, 1, "{}", server.log());
    let ready = Request::to(server.admin_address(), "GET", "/__ursula/ready");
    ready.send().expect(503);

    server.kill();
    assert!(disk.unmount() && disk.mount_image(), "the disk is mended");
    let server = options.start();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    // What was in doubt is there or not, as a whole.
    let found = stream.read_all();
    assert!(
        found == b"acknowledged." || found == b"acknowledged.in doubt",
        "{found:?}"
    );
    stream.append(OCTETS, " more");
    assert_eq!(stream.read_all(), [&found[..], b" more"].concat());
    server.kill();
    drop(options);
}

/// Storage case 12: `fallocate` is refused (EOPNOTSUPP): works, with a warning at start.
#[test]
fn storage_12_a_file_system_that_reserves_no_space_works_with_a_warning() {
    // Its blocks are listed one by one, so it has no way to reserve many.
    let Some((_disk, options)) = on_an_image("ext2") else {
        return;
    };
    let options = options
        .flag("segment-bytes", 2 << 20)
        .flag("checkpoint-bytes", 1 << 20);
    let server = options.start();
    let log = server.log();
    assert!(log.contains("does not reserve space"), "no warning:\n{log}");
    let stream = Stream::create(&server, Surface::Bucket, OCTETS);
    let mut expected = Vec::new();
    for round in 0..60_u8 {
        stream.append(OCTETS, vec![round; 100_000]);
        expected.extend(vec![round; 100_000]);
    }
    eventually("a checkpoint is written", || {
        (metric(&server, "checkpoints_total") > 0).then_some(())
    });
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert!(stream.read_all() == expected);
    stream.delete().send().expect(204);
    server.kill();
    drop(options);
}

/// Storage case 8 while the space of the deleted stream is given back: the timer of the deleted one
/// touches neither its successor nor the bytes that now have its place; nor after a kill.
#[test]
fn storage_8_a_successor_lives_while_space_is_reclaimed() {
    let server = cold::options().start();
    let stream = Stream::absent(&server, Surface::Bucket);
    let put = |stream: &Stream<'_>, ttl: u64| {
        let put = stream.put().header("Content-Type", OCTETS);
        put.header("Stream-TTL", ttl).send().expect(201);
    };
    let append = |stream: &Stream<'_>, byte: u8| {
        eventually("there is room", || {
            let post = stream.post().header("Content-Type", OCTETS);
            (post.body(vec![byte; 200_000]).send().status == 204).then_some(())
        });
    };
    put(&stream, 2);
    for _ in 0..30 {
        append(&stream, 1);
    }
    stream.delete().send().expect(204);
    // Another of the same lifetime shows that its time is over.
    let witness = Stream::absent(&server, Surface::Bucket);
    put(&witness, 2);
    eventually("its space is being given back", || {
        (metric(&server, "segment_live_bytes") < 1 << 20).then_some(())
    });
    stream
        .put()
        .header("Content-Type", OCTETS)
        .send()
        .expect(201);
    for _ in 0..30 {
        append(&stream, 2);
    }
    eventually("its time is over", || {
        (witness.head().send().status == 404).then_some(())
    });
    let expected = vec![2; 6_000_000];
    assert!(stream.read_all() == expected);
    let key = stream.key().to_owned();
    let server = server.kill_and_restart();
    let stream = Stream::at(&server, Surface::Bucket, &key);
    assert!(stream.read_all() == expected, "and after a kill");
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
