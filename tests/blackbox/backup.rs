//! `thalweg backup` and `thalweg restore`: a copy taken while the server serves is whole, has
//! everything that was acknowledged before it began, and nothing that looks like a backup is not
//! one (issue 5, "Backup").

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ursula_headers::ErrorCode;

use crate::common::disk::{files, inspect};
use crate::common::eventually;
use crate::common::http::{Connection, Request};
use crate::common::observe::{await_metric, metric};
use crate::common::server::{Options, Server};
use crate::common::stream::{OCTETS, Stream, Surface, TEXT, offset};
use crate::fixture;
use crate::snapshot::digest;

/// Little of everything, so that a few seconds see checkpoints, compaction and removal.
fn tiny(shards: usize) -> Options {
    Options::new(shards)
        .flag("request-bytes-max", 128 << 10)
        .flag("snapshot-bytes-max", 8 << 20)
        .flag("journal-file-bytes", 2 << 20)
        .flag("checkpoint-bytes", 64 << 10)
        .flag("segment-bytes", 2 << 20)
}

/// A directory for backups, which is removed at the end.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> Self {
        let root = env!("CARGO_TARGET_TMPDIR");
        Self(tempfile::tempdir_in(root).expect("Cargo's temporary directory is writable"))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What a killed or failed backup to `name` leaves.
    fn partial(&self, name: &str) -> PathBuf {
        self.place(&format!("{name}.partial"))
    }
}

fn thalweg(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(arguments);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("these paths are ASCII")
}

fn backup_of(server: &Server, to: &Path) -> Command {
    let admin = server.admin_address().to_string();
    thalweg(&["backup", "--admin", &admin, "--to", text(to)])
}

#[track_caller]
fn succeeds(mut command: Command) -> String {
    let output = command.output().expect("the built binary can be started");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Its words on stderr.
#[track_caller]
fn fails(mut command: Command) -> String {
    let output = command.output().expect("the built binary can be started");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

fn restore(from: &Path, to: &Path) -> Command {
    thalweg(&["restore", "--from", text(from), "--data-dir", text(to)])
}

/// Restores `backup`, looks at what came of it, and serves it.
#[track_caller]
fn restored(backup: &Path, to: &Path, options: &Options, shards: usize) -> Server {
    succeeds(restore(backup, to));
    let (verified, report) = inspect(to);
    assert!(verified, "{report:#}");
    let options = options.clone().flag("shards", shards);
    options.in_directory(to).start()
}

/// A backup that has begun and stands still: between the journals and the segments it has met a
/// pipe that nobody writes to.
struct Stalled {
    child: Child,
    pipe: PathBuf,
}

impl Stalled {
    fn backup(server: &Server, shelf: &Shelf, name: &str) -> Self {
        let (to, partial) = (shelf.place(name), shelf.partial(name));
        // The name of a segment, and the first of them.
        let segments = server.options().data_dir().join("segments");
        let pipe = segments.join(format!("{:016x}.segment", 0));
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo can be run").success());
        let mut command = backup_of(server, &to);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the built binary can be started");
        // The hold is in force before anything is made there.
        let mark = partial.join("backup.json");
        eventually("it begins", || mark.exists().then_some(()));
        assert!(!to.exists());
        Self { child, pipe }
    }

    /// Lets it run to its end.
    fn go_on(mut self) -> Output {
        // It opens a file a second time when the first did not do: that must find none.
        let aside = self.pipe.with_extension("aside");
        fs::rename(&self.pipe, &aside).expect("it is there");
        let mut options = OpenOptions::new();
        let options = options.write(true).custom_flags(libc::O_NONBLOCK);
        // There is an end to write to while it waits for one.
        eventually("it waits at the pipe, or ends", || {
            let ended = self.child.try_wait().expect("our own child");
            (ended.is_some() || options.open(&aside).is_ok()).then_some(())
        });
        fs::remove_file(&aside).expect("it is there");
        self.child.wait_with_output().expect("our own child")
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our own child");
        fs::remove_file(&self.pipe).expect("it is there");
    }
}

/// Sends `signal` to a child that has not been waited for.
fn signal(child: &Child, signal: libc::c_int) {
    let pid = libc::c_int::try_from(child.id()).expect("a pid fits");
    // SAFETY: kill(2) takes no pointers; the child is not yet reaped, so the pid is its own.
    unsafe { libc::kill(pid, signal) };
}

// --- under load

/// What a writer has sent and been told of, in records.
#[derive(Default)]
struct Count {
    sent: AtomicU64,
    acknowledged: AtomicU64,
}

impl Count {
    fn step<T>(&self, send: impl FnOnce(u64) -> T) -> T {
        let number = self.sent.fetch_add(1, Ordering::SeqCst);
        let answer = send(number);
        self.acknowledged.store(number + 1, Ordering::SeqCst);
        answer
    }
}

/// Record `number` of stream `stream`, of its own length.
fn record(stream: usize, number: u64) -> Vec<u8> {
    let len = 20 + (number as usize * 37 + stream * 101) % 3000;
    let mut record = format!("<{stream} {number} ").into_bytes();
    record.resize(len, b'a' + (number % 26) as u8);
    record.push(b'>');
    record
}

const STREAMS: usize = 6;
const FAMILIES: usize = 2;

/// What runs beside the backups: appends, streams that come and go, forks that outlive their
/// sources and do not.
struct Load {
    stop: AtomicBool,
    streams: [Count; STREAMS],
    /// Of each, how many steps through the life of its forks are done.
    families: [Count; FAMILIES],
}

/// The life of a fork takes so many steps: its source is created, it is created, it is appended to,
/// the source goes, it goes.
const STEPS: u64 = 5;

impl Load {
    fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            streams: Default::default(),
            families: Default::default(),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn append(&self, server: &Server, stream: usize) {
        let at = Stream::at(server, Surface::Base, &format!("load/s{stream}"));
        at.put().header("Content-Type", OCTETS).send().expect(201);
        while self.goes_on() {
            self.streams[stream].step(|number| at.append(OCTETS, record(stream, number)));
        }
    }

    /// Streams that are deleted again: what they took is to be given back.
    fn churn(&self, server: &Server) {
        while self.goes_on() {
            let stream = Stream::create(server, Surface::Base, OCTETS);
            for _ in 0..8 {
                stream.append(OCTETS, vec![b'x'; 30_000]);
            }
            stream.delete().send().expect(204);
        }
    }

    fn fork(&self, server: &Server, family: usize) {
        while self.goes_on() {
            self.families[family].step(|number| step(server, family, number));
        }
    }

    fn counts(&self, of: impl Fn(&Count) -> &AtomicU64) -> (Vec<u64>, Vec<u64>) {
        let read = |counts: &[Count]| {
            let counts = counts.iter();
            counts
                .map(|count| of(count).load(Ordering::SeqCst))
                .collect()
        };
        (read(&self.streams), read(&self.families))
    }
}

fn source(family: usize, generation: u64) -> String {
    format!("load/source-{family}-{generation}")
}

fn fork(family: usize, generation: u64) -> String {
    format!("load/fork-{family}-{generation}")
}

fn step(server: &Server, family: usize, number: u64) {
    let (generation, step) = (number / STEPS, number % STEPS);
    let at = |key: &str| Stream::at(server, Surface::Base, key);
    let (source, fork) = (
        at(&source(family, generation)),
        at(&fork(family, generation)),
    );
    match step {
        0 => source
            .put()
            .header("Content-Type", TEXT)
            .body(format!("inherited {number}|"))
            .send()
            .expect(201),
        1 => fork
            .put()
            .header("Stream-Forked-From", source.path())
            .send()
            .expect(201),
        2 => fork.append(TEXT, "own"),
        3 => source.delete().send().expect(204),
        _ => fork.delete().send().expect(204),
    };
}

/// A fork's body after so many steps of its generation; `None` when it is not there.
fn fork_after(generation: u64, steps: u64) -> Option<Vec<u8>> {
    let inherited = format!("inherited {}|", generation * STEPS);
    match steps {
        0 | 1 => None,
        2 => Some(inherited.into_bytes()),
        3 | 4 => Some(format!("{inherited}own").into_bytes()),
        _ => None,
    }
}

fn read(server: &Server, key: &str) -> Option<Vec<u8>> {
    let stream = Stream::at(server, Surface::Base, key);
    let status = stream.head().send().status;
    assert!(matches!(status, 200 | 404 | 410), "{key}: {status}");
    (status == 200).then(|| stream.read_all())
}

/// What a restored server must have: what was acknowledged before the backup, and perhaps more of
/// what was sent until its end.
fn check_load(server: &Server, before: &(Vec<u64>, Vec<u64>), after: &(Vec<u64>, Vec<u64>)) {
    for stream in 0..STREAMS {
        let body = read(server, &format!("load/s{stream}")).expect("it was created");
        let mut expected = Vec::new();
        let mut records = 0;
        while expected.len() < body.len() {
            expected.extend(record(stream, records));
            records += 1;
        }
        assert!(
            body == expected,
            "stream {stream}: not {records} whole records"
        );
        let (least, most) = (before.0[stream], after.0[stream]);
        assert!(
            (least..=most).contains(&records),
            "stream {stream} has {records} records, not {least} to {most}"
        );
    }
    for family in 0..FAMILIES {
        let (least, most) = (before.1[family], after.1[family]);
        for generation in 0..=most / STEPS {
            let steps_of = |steps: u64| steps.saturating_sub(generation * STEPS).min(STEPS);
            let possible = steps_of(least)..=steps_of(most);
            let body = read(server, &fork(family, generation));
            let mut states = possible.map(|steps| fork_after(generation, steps));
            assert!(
                states.any(|state| state == body),
                "fork {generation} of family {family}: {body:?} after {least} to {most} steps"
            );
        }
    }
}

/// Backups one after the other while everything goes on: each verifies, and each restores, at any
/// number of shards, to a state between what was acknowledged when it began and what was sent when
/// it ended, forks across shards included. Appends go on meanwhile.
#[test]
fn a_backup_under_load_has_all_that_was_acknowledged() {
    for (shards, restored_at) in [(1, [1, 3]), (3, [1, 4])] {
        let shelf = Shelf::new();
        let options = tiny(shards);
        let server = options.start();
        let load = Load::new();
        thread::scope(|scope| {
            let (server, load) = (&server, &load);
            for stream in 0..STREAMS {
                scope.spawn(move || load.append(server, stream));
            }
            scope.spawn(move || load.churn(server));
            for family in 0..FAMILIES {
                scope.spawn(move || load.fork(server, family));
            }
            let ends = StopOnDrop(load);
            await_metric(server, "checkpoints_total", |count| count > 5);
            for (round, shards) in restored_at.iter().enumerate() {
                let backup = shelf.place(&format!("backup-{round}"));
                let before = load.counts(|count| &count.acknowledged);
                let done = succeeds(backup_of(server, &backup));
                let after = load.counts(|count| &count.sent);
                assert!(done.contains("verified"), "{done}");
                assert!(
                    after.0.iter().sum::<u64>() > before.0.iter().sum::<u64>(),
                    "appends stood still"
                );
                let (verified, report) = inspect(&backup);
                assert!(verified, "{report:#}");
                let to = shelf.place(&format!("restored-{round}"));
                let copy = restored(&backup, &to, &options, *shards);
                check_load(&copy, &before, &after);
                // It is an ordinary directory: it takes writes, and a kill.
                let stream = Stream::at(&copy, Surface::Base, "load/s0");
                let next = stream.append(OCTETS, "more").next_offset();
                let copy = copy.kill_and_restart();
                let stream = Stream::at(&copy, Surface::Base, "load/s0");
                assert_eq!(stream.head().send().next_offset(), next);
            }
            drop(ends);
        });
    }
}

/// The load ends also when a check fails.
struct StopOnDrop<'a>(&'a Load);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

fn publish(stream: &Stream<'_>, at: &str, body: &[u8]) {
    let put = stream.request("PUT", &format!("/snapshot/{at}"));
    let put = put.header("Content-Type", OCTETS).body(body);
    put.send().expect(204);
}

/// A copy that takes long: checkpoints come to rule meanwhile, segments are emptied and streams
/// deleted, and nothing that the copy needs goes before it has ended. Then it does.
#[test]
fn what_a_backup_needs_stays_until_it_ends() {
    let shelf = Shelf::new();
    let options = tiny(2);
    let server = options.start();
    let streams: Vec<_> = (0..8)
        .map(|_| Stream::create(&server, Surface::Base, OCTETS))
        .collect();
    let mut bodies = vec![Vec::new(); streams.len()];
    for round in 0..12_u8 {
        for (stream, body) in streams.iter().zip(&mut bodies) {
            let piece = [round; 20_000];
            stream.append(OCTETS, piece);
            body.extend(piece);
        }
    }
    let blob = streams[0].on(Surface::Bucket);
    publish(&blob, &offset(20_000), &[b's'; 100_000]);
    let ballast = || Stream::with_body(&server, Surface::Base, OCTETS, vec![7; 60_000]);
    // Appends alone may be over before there was more than one in each shard. Nothing is deleted
    // yet: no space is to be given back when the hold begins.
    eventually("some checkpoints came to rule", || {
        ballast();
        (metric(&server, "checkpoints_total") > 2).then_some(())
    });
    await_metric(&server, "segment_live_bytes", |bytes| bytes > 1 << 20);
    // What a checkpoint has made superfluous goes one by one, and may go on while the hold begins.
    let mut before = Vec::new();
    eventually("files come and go no more", || {
        let now = files(options.data_dir());
        let is_same = now == before;
        before = now;
        thread::sleep(Duration::from_millis(100));
        is_same.then_some(())
    });
    let backup = Stalled::backup(&server, &shelf, "backup");
    let mut held = files(options.data_dir());
    held.retain(|path| *path != backup.pipe);
    let (checkpoints, punched) = (
        metric(&server, "checkpoints_total"),
        metric(&server, "punched_bytes_total"),
    );
    for stream in &streams[4..] {
        stream.delete().send().expect(204);
    }
    for stream in &streams[..4] {
        let bucket = stream.on(Surface::Bucket);
        publish(&bucket, &offset(220_000), &[b't'; 100_000]);
        let retain = bucket.request("PUT", &format!("/retention/{}", offset(200_000)));
        retain.send().expect(204);
    }
    eventually("many checkpoints came to rule", || {
        ballast().delete().send().expect(204);
        (metric(&server, "checkpoints_total") > checkpoints + 4).then_some(())
    });
    assert_eq!(metric(&server, "punched_bytes_total"), punched);
    let needed = |path: &Path| {
        let name = text(path);
        name.ends_with(".journal") || name.contains("/segments/") || name.contains("/blobs/")
    };
    for path in held.iter().filter(|path| needed(path)) {
        assert!(path.exists(), "{} went", path.display());
    }
    let done = backup.go_on();
    assert!(done.status.success(), "{}", said(&done));
    eventually("what was kept for it goes", || {
        let gone = |path: &PathBuf| needed(path) && !path.exists();
        held.iter().any(gone).then_some(())
    });
    let to = shelf.place("restored");
    let copy = restored(&shelf.place("backup"), &to, &options, 2);
    for (stream, body) in streams.iter().zip(&bodies) {
        assert!(read(&copy, stream.key()).as_ref() == Some(body));
    }
    let at = format!("/snapshot/{}", offset(20_000));
    let blob = Stream::at(&copy, Surface::Bucket, blob.key());
    let snapshot = blob.request("GET", &at).send().expect(200);
    assert!(snapshot.body == [b's'; 100_000]);
}

/// Incarnations, producers, snapshots, forks, retention, lifetimes and fences are in it, and parts
/// that are staged; whether the server serves or not.
#[test]
fn streams_of_every_kind_are_restored() {
    let shelf = Shelf::new();
    let options = tiny(2);
    let server = options.start();
    let expected = fixture::fill(&server);
    let parted = Stream::with_body(&server, Surface::Bucket, OCTETS, "0123456789");
    let big = vec![b'p'; 100_000];
    let parts = [b"small".as_slice(), &big].map(|body| {
        let at = format!("/snapshot/{}/parts", offset(10));
        let staged = parted.request("POST", &at).body(body).send().expect(201);
        staged.expect_header("stream-snapshot-part").to_owned()
    });
    let key = parted.key().to_owned();
    succeeds(backup_of(&server, &shelf.place("served")));
    let (status, stopped) = server.terminate();
    assert!(status.success());
    let data = text(stopped.data_dir()).to_owned();
    let offline = shelf.place("stopped");
    let command = ["backup", "--data-dir", &data, "--to", text(&offline)];
    succeeds(thalweg(&command));
    for name in ["served", "stopped"] {
        for shards in [2, 1, 3] {
            let to = shelf.place(&format!("{name}-at-{shards}"));
            let server = restored(&shelf.place(name), &to, &options, shards);
            assert_eq!(fixture::observe(&server, &expected), expected, "{name}");
            for (key, stream) in &expected.streams {
                fixture::repeat_producers(&server, key, stream);
            }
            let parted = Stream::at(&server, Surface::Bucket, &key);
            let whole = [b"small".as_slice(), &big].concat();
            let put = parted.request("PUT", &format!("/snapshot/{}", offset(10)));
            let put = put
                .header("Content-Type", OCTETS)
                .header("Stream-Snapshot-Parts", parts.len())
                .header("Stream-Snapshot-Digest", digest(OCTETS, &whole))
                .body(format!("{}\n", parts.join("\n")));
            put.send().expect(204);
            // The fence holds.
            let fenced = Stream::at(&server, Surface::Base, "purged/again");
            let put = fenced.put().header("Content-Type", TEXT).send();
            put.expect_error(404, ErrorCode::BucketErased);
        }
    }
}

// --- what is no backup

/// A server with a stream of two batches, one of them in a checkpoint.
fn small() -> (Server, String) {
    let server = tiny(2).start();
    let stream = Stream::with_body(&server, Surface::Base, OCTETS, vec![b'o'; 50_000]);
    let blob = stream.on(Surface::Bucket);
    let put = blob.request("PUT", &format!("/snapshot/{}", offset(50_000)));
    let put = put.header("Content-Type", OCTETS).body(vec![b's'; 100_000]);
    put.send().expect(204);
    for _ in 0..3 {
        stream.append(OCTETS, vec![b'p'; 50_000]);
    }
    await_metric(&server, "checkpoints_total", |count| count > 0);
    stream.append(OCTETS, "tail");
    let key = stream.key().to_owned();
    (server, key)
}

/// A backup whose process is killed leaves nothing that is taken for one; the server lets go, and
/// the next backup clears up.
#[test]
fn a_killed_backup_is_none() {
    let shelf = Shelf::new();
    let (server, _) = small();
    Stalled::backup(&server, &shelf, "backup").kill();
    let (to, partial) = (shelf.place("backup"), shelf.partial("backup"));
    assert!(!to.exists() && partial.exists());
    for (from, why) in [(&to, "backup.json"), (&partial, "was not finished")] {
        let target = shelf.place("restored");
        let error = fails(restore(from, &target));
        assert!(error.contains(why), "{error}");
        assert!(!target.exists());
    }
    let served = tiny(2).in_directory(&partial).try_start();
    let error = served.expect_err("no data directory");
    assert!(error.contains("is a backup"), "{error}");
    // `in_directory` has removed it; another one's leftover.
    Stalled::backup(&server, &shelf, "backup").kill();
    eventually("the server lets go", || {
        let output = backup_of(&server, &to).output().expect("it can be started");
        let said = said(&output);
        assert!(
            output.status.success() || said.contains("try again in some seconds"),
            "{said}"
        );
        output.status.success().then_some(())
    });
    assert!(to.exists() && !partial.exists());
}

/// While one backup runs there is no other, neither of the server nor to the same place; what is in
/// the place of a leftover and is none stays.
#[test]
fn one_backup_at_a_time() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let first = Stalled::backup(&server, &shelf, "backup");
    let error = fails(backup_of(&server, &shelf.place("second")));
    assert!(error.contains("a backup is running"), "{error}");
    let (_, other) = server.terminate();
    let data = text(other.data_dir());
    let command = ["backup", "--data-dir", data, "--to"];
    let to = shelf.place("backup");
    let error = fails(thalweg(&[&command[..], &[text(&to)]].concat()));
    assert!(error.contains("another backup is writing"), "{error}");
    first.kill();
    let note = shelf.partial("other").join("note");
    fs::create_dir(shelf.partial("other")).expect("writable");
    fs::write(&note, "mine").expect("writable");
    let other = shelf.place("other");
    let error = fails(thalweg(&[&command[..], &[text(&other)]].concat()));
    assert!(error.contains("is in the way"), "{error}");
    assert!(note.exists());
}

/// The server dies, or stops, while it is copied: no backup, and nothing left of it.
#[test]
fn a_backup_whose_server_ends_is_none() {
    let shelf = Shelf::new();
    let (server, key) = small();
    let whole = read(&server, &key);
    let backup = Stalled::backup(&server, &shelf, "backup");
    let options = server.kill();
    let output = backup.go_on();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("the server is gone"),
        "{}",
        said(&output)
    );
    assert!(!shelf.place("backup").exists() && !shelf.partial("backup").exists());
    // Nothing is the worse for it.
    let server = options.start();
    assert!(read(&server, &key) == whole);
    // A stop does not wait for a backup, which has time to hear of it.
    let backup = Stalled::backup(&server, &shelf, "backup");
    let pipe = backup.pipe.clone();
    let log = server.stop();
    assert!(!log.contains("did not end"), "{log}");
    let output = backup.go_on();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("the server is being stopped"),
        "{}",
        said(&output)
    );
    assert!(!pipe.exists());
    assert!(!shelf.place("backup").exists() && !shelf.partial("backup").exists());
    let server = options.start();
    let to = shelf.place("backup");
    succeeds(backup_of(&server, &to));
    let copy = restored(&to, &shelf.place("restored"), &options, 2);
    assert!(read(&copy, &key) == whole);
}

/// A backup that is stopped, and so hears nothing, keeps no server from its end; when it goes on it
/// finds out, and leaves nothing.
#[test]
fn a_backup_that_hangs_keeps_no_server() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let backup = Stalled::backup(&server, &shelf, "backup");
    signal(&backup.child, libc::SIGSTOP);
    // What is copied stays.
    let _options = server.options().clone();
    let log = server.stop();
    assert!(!log.contains("did not end"), "{log}");
    signal(&backup.child, libc::SIGCONT);
    let output = backup.go_on();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(!shelf.place("backup").exists() && !shelf.partial("backup").exists());
}

/// A backup that is told to stop removes what it made, and the server lets go.
#[test]
fn a_backup_that_is_interrupted_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let shelf = Shelf::new();
    let (server, _) = small();
    for (number, name) in [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM")] {
        let backup = Stalled::backup(&server, &shelf, "backup");
        eventually("it is held", || {
            (metric(&server, "backup_held") > 0).then_some(())
        });
        signal(&backup.child, number);
        let output = backup.go_on();
        assert_eq!(output.status.signal(), Some(number), "{}", said(&output));
        let said = said(&output);
        assert!(said.contains(&format!("stopped by {name}")), "{said}");
        assert!(!shelf.place("backup").exists() && !shelf.partial("backup").exists());
        eventually("the server lets go", || {
            (metric(&server, "backup_held") == 0).then_some(())
        });
    }
    succeeds(backup_of(&server, &shelf.place("backup")));
}

/// So does a restore.
#[test]
fn a_restore_that_is_interrupted_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let shelf = Shelf::new();
    let (server, _) = small();
    let (backup, to) = (shelf.place("backup"), shelf.place("restored"));
    succeeds(backup_of(&server, &backup));
    let mark = to.join("backup.json");
    // One that had ended, or was past the last point at which it stops, is tried again.
    let output = eventually("one is met in the middle", || {
        let mut command = restore(&backup, &to);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the built binary can be started");
        let has_ended = eventually("it writes, or ends", || {
            let has_ended = child.try_wait().expect("our own child").is_some();
            (has_ended || mark.exists()).then_some(has_ended)
        });
        if !has_ended {
            signal(&child, libc::SIGTERM);
        }
        let output = child.wait_with_output().expect("our own child");
        if output.status.success() {
            fs::remove_dir_all(&to).expect("it was restored");
        }
        (!output.status.success()).then_some(output)
    });
    assert_eq!(
        output.status.signal(),
        Some(libc::SIGTERM),
        "{}",
        said(&output)
    );
    assert!(
        said(&output).contains("stopped by SIGTERM"),
        "{}",
        said(&output)
    );
    assert!(!to.exists());
}

/// A backup is no data directory: it is not backed up where it lies.
#[test]
fn a_backup_is_not_backed_up() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let backup = shelf.place("backup");
    succeeds(backup_of(&server, &backup));
    let again = shelf.place("again");
    let command = ["backup", "--data-dir", text(&backup), "--to", text(&again)];
    let error = fails(thalweg(&command));
    assert!(error.contains("restore it first"), "{error}");
    assert!(!again.exists() && !backup.join("LOCK").exists());
}

/// A file where a directory should be is called that.
#[test]
fn a_file_is_no_directory() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let backup = shelf.place("backup");
    succeeds(backup_of(&server, &backup));
    let (file, new) = (shelf.place("file"), shelf.place("new"));
    fs::write(&file, "mine").expect("writable");
    for command in [
        backup_of(&server, &file),
        restore(&file, &new),
        restore(&backup, &file),
        thalweg(&["backup", "--data-dir", text(&file), "--to", text(&new)]),
    ] {
        let error = fails(command);
        let expected = format!("{} is a file, not a directory", file.display());
        assert!(error.contains(&expected), "{error}");
    }
    let error = fails(backup_of(&server, &file.join("backup")));
    assert!(error.contains("part of that path is a file"), "{error}");
    assert_eq!(fs::read(&file).ok().as_deref(), Some(&b"mine"[..]));
}

/// A target that runs full: no backup, nothing left of it, and an error that says where.
#[test]
fn a_full_target_is_no_backup() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let (admin, to) = (server.admin_address().to_string(), shelf.place("backup"));
    // No file may be longer than 512 KiB, and a write beyond that is an error, not a signal.
    let script = "trap '' XFSZ; ulimit -f 512; exec \"$0\" backup --admin \"$1\" --to \"$2\"";
    let mut limited = Command::new("bash");
    limited.args([
        "-c",
        script,
        env!("CARGO_BIN_EXE_thalweg"),
        &admin,
        text(&to),
    ]);
    let error = fails(limited);
    assert!(error.contains("cannot write"), "{error}");
    assert!(error.contains("backup.partial"), "{error}");
    assert!(!to.exists() && !shelf.partial("backup").exists());
    succeeds(backup_of(&server, &to));
}

/// One byte of any file of a backup: it is refused, before anything is restored.
#[test]
fn a_damaged_backup_is_refused() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let backup = shelf.place("backup");
    succeeds(backup_of(&server, &backup));
    let (to, all) = (shelf.place("restored"), files(&backup));
    let kinds = [
        "backup.json",
        "manifest",
        "current",
        "checkpoint-",
        ".journal",
        "segments/",
        "blobs/",
    ];
    for kind in kinds {
        assert!(
            all.iter().any(|path| text(path).contains(kind)),
            "no {kind} in {all:?}"
        );
    }
    for path in &all {
        let bytes = fs::read(path).expect("readable");
        let file = OpenOptions::new().write(true).open(path).expect("writable");
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let flip = |mask: u8| file.write_all_at(&[bytes[at] ^ mask], at as u64);
            flip(1).expect("writable");
            let error = fails(restore(&backup, &to));
            assert!(
                error.contains(text(path)) && error.contains("damaged"),
                "{error}"
            );
            flip(0).expect("writable");
        }
        file.set_len(bytes.len() as u64 - 1).expect("writable");
        fails(restore(&backup, &to));
        fs::remove_file(path).expect("it is there");
        fails(restore(&backup, &to));
        fs::write(path, bytes).expect("writable");
        assert!(!to.exists());
    }
    succeeds(restore(&backup, &to));
}

/// Nothing is overwritten: not what a person has there, not what a server serves, not a backup. And a
/// backup is not served.
#[test]
fn only_an_empty_directory_is_a_target() {
    let shelf = Shelf::new();
    let (server, _) = small();
    let backup = shelf.place("backup");
    let empty = shelf.place("empty");
    fs::create_dir(&empty).expect("writable");
    succeeds(backup_of(&server, &backup));
    let again = fails(backup_of(&server, &backup));
    assert!(again.contains("is not empty"), "{again}");
    let inside = server.options().data_dir().join("backup");
    let error = fails(backup_of(&server, &inside));
    assert!(error.contains("lies in the data directory"), "{error}");
    let served = server.options().data_dir().to_owned();
    let error = fails(restore(&backup, &served));
    let pid = format!("in use by process {}", server.pid());
    assert!(error.contains(&pid), "{error}");
    let error = fails(thalweg(&[
        "backup",
        "--data-dir",
        text(&served),
        "--to",
        text(&empty),
    ]));
    assert!(error.contains(&pid) && error.contains("--admin"), "{error}");
    // What a killed restore leaves says what it is, to whoever takes it for something else.
    fs::write(empty.join("backup.json"), "restoring\n").expect("writable");
    let unfinished = text(&empty);
    let new = shelf.place("new");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin-listen"];
    for command in [
        restore(&backup, &empty),
        restore(&empty, &new),
        thalweg(&["backup", "--data-dir", unfinished, "--to", text(&new)]),
        thalweg(&[&serve[..], &["127.0.0.1:0", "--data-dir", unfinished]].concat()),
    ] {
        let error = fails(command);
        assert!(error.contains("its restore did not end"), "{error}");
    }
    fs::remove_file(empty.join("backup.json")).expect("it is there");
    fs::write(empty.join("note"), "mine").expect("writable");
    let error = fails(restore(&backup, &empty));
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(files(&empty), [empty.join("note")]);
    fs::remove_file(empty.join("note")).expect("it is there");
    succeeds(restore(&backup, &empty));
    let copy = shelf.place("copy");
    fs::create_dir(&copy).expect("writable");
    fs::copy(backup.join("backup.json"), copy.join("backup.json")).expect("copied");
    let error = tiny(2)
        .in_directory(&copy)
        .try_start()
        .expect_err("no data");
    assert!(error.contains("is a backup"), "{error}");
}

/// Where the server says its directory is may be another one here.
#[test]
fn another_directory_is_not_taken_for_the_servers() {
    let shelf = Shelf::new();
    let (server, key) = small();
    let (other, _) = small();
    let (_, other) = other.terminate();
    let admin = server.admin_address().to_string();
    let from = |data_dir: &Path, to: &str| {
        let to = shelf.place(to);
        let (data_dir, to) = (text(data_dir), text(&to));
        thalweg(&[
            "backup",
            "--admin",
            &admin,
            "--data-dir",
            data_dir,
            "--to",
            to,
        ])
    };
    let error = fails(from(other.data_dir(), "wrong"));
    assert!(
        error.contains("is not the directory that this server serves"),
        "{error}"
    );
    assert!(!shelf.place("wrong").exists() && !shelf.partial("wrong").exists());
    let link = shelf.place("link");
    std::os::unix::fs::symlink(server.options().data_dir(), &link).expect("writable");
    succeeds(from(&link, "right"));
    let copy = restored(&shelf.place("right"), &shelf.place("restored"), &other, 2);
    assert_eq!(read(&copy, &key), read(&server, &key));
}

// --- the admin plane

fn hold_step(connection: &mut Connection, admin: SocketAddr, method: &str) -> (u16, String) {
    let request = Request::to(admin, method, "/__ursula/backup");
    let answer = connection.exchange(&request).expect("an answer");
    (answer.status, answer.text().to_owned())
}

/// The hold is the connection: it asks, another may not, and with its end the hold has ended.
#[test]
fn a_hold_ends_with_its_connection() {
    let server = tiny(2).start();
    let admin = server.admin_address();
    let open = || Connection::try_open(admin).expect("it listens");
    let (mut one, mut two) = (open(), open());
    assert_eq!(hold_step(&mut one, admin, "GET").0, 404);
    let (status, held) = hold_step(&mut one, admin, "POST");
    assert_eq!(status, 200);
    let held: serde_json::Value = serde_json::from_str(&held).expect("JSON");
    assert_eq!(held["shards"].as_array().map(Vec::len), Some(2));
    assert_eq!(hold_step(&mut one, admin, "GET").0, 200);
    assert_eq!(hold_step(&mut one, admin, "PUT").0, 405);
    assert_eq!(hold_step(&mut two, admin, "GET").0, 404);
    assert_eq!(hold_step(&mut two, admin, "DELETE").0, 404);
    let (status, body) = hold_step(&mut two, admin, "POST");
    assert!(status == 409 && body.contains("BACKUP_RUNNING"), "{body}");
    let (status, body) = hold_step(&mut one, admin, "POST");
    assert!(status == 409 && body.contains("BACKUP_RUNNING"), "{body}");
    assert_eq!(hold_step(&mut one, admin, "DELETE").0, 200);
    assert_eq!(hold_step(&mut one, admin, "GET").0, 404);
    assert_eq!(hold_step(&mut two, admin, "POST").0, 200);
    drop(two);
    eventually("its end is noticed", || {
        let (status, _) = hold_step(&mut one, admin, "POST");
        (status == 200).then_some(())
    });
    // Forks are not kept waiting by a hold.
    let source = Stream::with_body(&server, Surface::Base, TEXT, "source");
    for _ in 0..20 {
        let fork = Stream::absent(&server, Surface::Base);
        let put = fork.put().header("Stream-Forked-From", source.path());
        put.send().expect(201);
        fork.delete().send().expect(204);
    }
    source.delete().send().expect(204);
}

/// Writes come before the copy: a server short of disk space gives back what it held, and says so.
#[test]
fn a_hold_is_broken_when_space_runs_short() {
    let server = tiny(2).flag("disk-reserve-bytes", 1_u64 << 60).start();
    let admin = server.admin_address();
    let mut connection = Connection::try_open(admin).expect("it listens");
    assert_eq!(hold_step(&mut connection, admin, "POST").0, 200);
    let body = eventually("the hold is broken", || {
        let (status, body) = hold_step(&mut connection, admin, "GET");
        (status == 409).then_some(body)
    });
    assert!(
        body.contains("BACKUP_BROKEN") && body.contains("disk space"),
        "{body}"
    );
    assert_eq!(hold_step(&mut connection, admin, "DELETE").0, 409);
    assert_eq!(hold_step(&mut connection, admin, "POST").0, 200);
}
