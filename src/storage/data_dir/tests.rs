use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A directory of its own for one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(format!("thalweg-data-dir-{pid}-{next}"));
        fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed may have left it odd; it lies in the system's temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn every_start_has_its_own_epoch_and_the_identity_stays() {
    let scratch = Scratch::new();
    let first = DataDir::open(&scratch.data(), 4).expect("a new directory");
    assert_eq!(names(&scratch.data()), ["LOCK", "layout-1", "manifest"]);
    let manifest = first.manifest().clone();
    assert_eq!(
        (manifest.boot_epoch, manifest.shards, manifest.started),
        (1, 4, false)
    );
    assert_ne!(manifest.secret, [0; 16]);
    assert!(first.layout().journal_dir(3).is_dir());
    drop(first);

    // Another number of shards is for the caller to act upon.
    let mut second = DataDir::open(&scratch.data(), 2).expect("the same directory");
    assert_eq!(
        *second.manifest(),
        Manifest {
            boot_epoch: 2,
            ..manifest.clone()
        }
    );
    second.mark_started().expect("a manifest");
    second
        .update(|manifest| manifest.incarnation_blocks += 3)
        .expect("a manifest");
    drop(second);
    let third = DataDir::open(&scratch.data(), 4).expect("the same directory");
    let expected = Manifest {
        boot_epoch: 3,
        started: true,
        incarnation_blocks: 3,
        ..manifest.clone()
    };
    assert_eq!(*third.manifest(), expected);

    let ids: Vec<u64> = (0..4).map(|shard| manifest.journal_id(1, shard)).collect();
    assert!(
        ids.iter()
            .all(|id| ids.iter().filter(|other| *other == id).count() == 1)
    );
    assert_ne!(manifest.journal_id(1, 0), manifest.journal_id(2, 0));
}

#[test]
fn a_second_process_is_refused_and_told_who_the_first_is() {
    let scratch = Scratch::new();
    let first = DataDir::open(&scratch.data(), 1).expect("a new directory");
    let error = DataDir::open(&scratch.data(), 1).expect_err("locked");
    let me = std::process::id();
    assert!(
        matches!(error, StorageError::Locked { pid: Some(pid), .. } if pid == me),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("process {me}")));
    drop(first);
    assert!(DataDir::open(&scratch.data(), 1).is_ok());
}

#[test]
fn unknown_names_are_left_alone() {
    let scratch = Scratch::new();
    drop(DataDir::open(&scratch.data(), 1));
    fs::write(scratch.data().join("notes"), "mine").expect("a file");
    fs::create_dir(scratch.data().join("lost+found")).expect("a directory");
    fs::create_dir(scratch.data().join("layout-backup")).expect("a directory");
    let opened = DataDir::open(&scratch.data(), 1).expect("the same directory");
    let unknown = ["layout-backup", "lost+found", "notes"].map(|name| opened.path().join(name));
    assert_eq!(opened.unknown(), unknown);
    assert!(unknown.iter().all(|path| path.exists()));
}

#[test]
fn a_manifest_that_does_not_verify_refuses() {
    let scratch = Scratch::new();
    drop(DataDir::open(&scratch.data(), 1));
    let path = scratch.data().join("manifest");
    let whole = fs::read(&path).expect("a manifest");
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    fs::write(&path, damaged).expect("a file");
    let error = DataDir::open(&scratch.data(), 1).expect_err("damaged");
    assert!(
        matches!(error, StorageError::DamagedManifest { .. }),
        "{error}"
    );

    // Without one, files below are someone's data; the empty directories of an attempt are not.
    fs::remove_file(&path).expect("a file");
    let journal = scratch
        .data()
        .join("layout-1/shard-0/journal/00000000000000000001.journal");
    fs::write(&journal, "data").expect("a file");
    let error = DataDir::open(&scratch.data(), 1).expect_err("data without a manifest");
    assert!(
        matches!(error, StorageError::MissingManifest { .. }),
        "{error}"
    );
    fs::remove_file(&journal).expect("a file");
    assert!(DataDir::open(&scratch.data(), 1).is_ok());
}

#[test]
fn a_crash_before_the_switch_keeps_the_old_layout_and_after_it_the_new() {
    let scratch = Scratch::new();
    let mut data_dir = DataDir::open(&scratch.data(), 2).expect("a new directory");
    data_dir.mark_started().expect("a manifest");
    let old = data_dir.layout();
    fs::write(old.journal_dir(1).join("x"), "old").expect("a file");
    let new = data_dir.begin_layout(3).expect("a layout");
    fs::write(new.journal_dir(2).join("y"), "new").expect("a file");
    assert_eq!((new.number, new.shards), (2, 3));

    // A crash here: the half-made layout goes.
    drop(data_dir);
    let data_dir = DataDir::open(&scratch.data(), 3).expect("the same directory");
    assert_eq!(data_dir.layout(), old);
    assert_eq!(names(&scratch.data()), ["LOCK", "layout-1", "manifest"]);

    let new = data_dir.begin_layout(3).expect("a layout");
    // A crash in the middle of the switch: the manifest names the new, the old is still there.
    let switched = Manifest {
        layout: new.number,
        shards: new.shards,
        ..data_dir.manifest().clone()
    };
    switched.store(data_dir.path()).expect("a manifest");
    drop(data_dir);
    let mut data_dir = DataDir::open(&scratch.data(), 3).expect("the same directory");
    assert_eq!(data_dir.layout(), new);
    assert_eq!(names(&scratch.data()), ["LOCK", "layout-2", "manifest"]);

    let next = data_dir.begin_layout(1).expect("a layout");
    data_dir.switch_layout(&next).expect("a switch");
    assert_eq!(data_dir.layout(), next);
    assert!(data_dir.manifest().started);
    assert_eq!(names(&scratch.data()), ["LOCK", "layout-3", "manifest"]);
}

#[test]
fn leftovers_of_a_crash_are_cleared() {
    let scratch = Scratch::new();
    drop(DataDir::open(&scratch.data(), 1));
    fs::write(scratch.data().join("manifest.new"), "half").expect("a file");
    let places = ["", "segments", "blobs", "layout-1/shard-0/journal"];
    let probes = places.map(|place| scratch.data().join(place).join(".direct-io-probe-1-0"));
    for probe in &probes {
        fs::create_dir_all(probe.parent().expect("a directory")).expect("a directory");
        fs::write(probe, "probe").expect("a file");
    }
    let opened = DataDir::open(&scratch.data(), 1).expect("the same directory");
    let expected = ["LOCK", "blobs", "layout-1", "manifest", "segments"];
    assert_eq!(names(opened.path()), expected);
    assert!(!probes.iter().any(|probe| probe.exists()));
    assert!(opened.unknown().is_empty());
}

#[test]
fn a_look_changes_nothing_and_knows_the_holder() {
    let scratch = Scratch::new();
    let path = scratch.data();
    assert!(matches!(
        look(&path),
        Err(StorageError::MissingManifest { .. })
    ));
    assert_eq!(holder(&path).ok(), Some(None));

    let held = DataDir::open(&path, 2).expect("a new directory");
    fs::write(path.join("stranger"), "").expect("a file");
    fs::create_dir(path.join("layout-7")).expect("a directory");
    let pid = Some(std::process::id());
    assert_eq!(holder(&path).ok(), Some(Some(Holder { pid })));
    let before = names(&path);
    let seen = look(&path).expect("it is one");
    assert_eq!(seen.layout, held.layout());
    assert_eq!(seen.other_layouts, [path.join("layout-7")]);
    assert_eq!(seen.unknown, [path.join("stranger")]);
    assert_eq!((names(&path), seen.manifest.boot_epoch), (before, 1));
    drop(held);
    assert_eq!(holder(&path).ok(), Some(None));
    DataDir::open(&path, 2).expect("whoever only looked holds no lock");
}
