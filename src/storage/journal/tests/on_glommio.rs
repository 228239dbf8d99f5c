//! The journal and the disk on real file systems: ext4 or what the temporary directory is, and
//! tmpfs where there is one.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::storage::disk::{Access, AlignedBuf, DirectIo, DiskFile, GlommioDisk, probe_direct_io};

/// Runs a test on an executor, in a directory of its own below `parent`.
fn with_dir<F: Future<Output = ()>>(parent: &Path, test: impl FnOnce(PathBuf) -> F) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = parent.join(format!("thalweg-journal-{pid}-{next}"));
    fs::create_dir_all(&dir).expect("a directory");
    glommio::LocalExecutor::default().run(test(dir.clone()));
    fs::remove_dir_all(&dir).expect("a directory");
}

async fn commits_and_recovers(disk: GlommioDisk, dir: &Path) {
    let mut options = Rig::new().options;
    options.file_bytes = 4 << 20;
    options.record_bytes_max = 3 << 20;
    let records: Vec<Vec<u8>> = (0..60u8)
        .map(|n| vec![n; usize::from(n % 7).pow(7)])
        .collect();
    for life in 0..3usize {
        options.epoch += 1;
        let mut found = Vec::new();
        let keep = |_: Position, record: &[u8]| {
            found.push(record.to_vec());
            Ok(())
        };
        let opened = Journal::open(disk, dir, SHARD, options.clone(), keep).await;
        let (journal, report) = opened.expect("a journal");
        assert_eq!(found, records[..20 * life]);
        assert_eq!(report.cut, None);
        options.create = false;
        let commits = glommio::spawn_local({
            let journal = journal.clone();
            async move { journal.run(|_| {}, |error| panic!("{error}")).await }
        });
        for record in &records[20 * life..20 * (life + 1)] {
            while journal.stage(&[record]) == Err(StageError::DiskPressure) {
                glommio::timer::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        journal.close().await;
        commits.await;
        assert!(journal.stats().batches >= 1);
    }
}

#[test]
fn direct_io_commits_and_recovers() {
    with_dir(&std::env::temp_dir(), |dir| async move {
        let disk = GlommioDisk::new(&dir).await.expect("a disk");
        assert_eq!(
            disk.is_direct(),
            probe_direct_io(&dir).expect("a probe") == DirectIo::Works
        );
        commits_and_recovers(disk, &dir).await;
    });
}

#[test]
fn where_direct_io_is_refused_buffered_io_does() {
    with_dir(&std::env::temp_dir(), |dir| async move {
        commits_and_recovers(GlommioDisk::buffered(), &dir).await;
    });
    let tmpfs = Path::new("/dev/shm");
    if !tmpfs.is_dir() {
        eprintln!("skipped: no tmpfs at {}", tmpfs.display());
        return;
    }
    with_dir(tmpfs, |dir| async move {
        assert_eq!(probe_direct_io(&dir).expect("a probe"), DirectIo::Memory);
        let disk = GlommioDisk::new(&dir).await.expect("a disk");
        assert!(!disk.is_direct());
        commits_and_recovers(disk, &dir).await;
    });
}

#[test]
fn both_disks_do_the_same() {
    with_dir(&std::env::temp_dir(), |dir| async move {
        let real = GlommioDisk::new(&dir).await.expect("a disk");
        let simulated = SimulatedDisk::new(1, 1 << 20);
        simulated.create_dir(&dir).await.expect("a directory");
        assert_eq!(
            operations(&real, &dir).await,
            operations(&simulated, &dir).await
        );
    });
}

/// One of each operation, and what was seen.
async fn operations<D: Disk>(disk: &D, dir: &Path) -> Vec<String> {
    let errno = |error: std::io::Error| error.raw_os_error();
    let mut seen = Vec::new();
    let (one, two) = (dir.join("one"), dir.join("two"));
    seen.push(format!(
        "{:?}",
        disk.open(&one, Access::Write)
            .await
            .map(drop)
            .map_err(errno)
    ));
    let file = disk.open(&one, Access::Create).await.expect("a file");
    seen.push(format!(
        "{:?}",
        disk.open(&one, Access::Create)
            .await
            .map(drop)
            .map_err(errno)
    ));
    file.allocate(4 * BLOCK).await.expect("space");
    seen.push(format!("{:?}", file.len().await.map_err(errno)));
    let mut buf: AlignedBuf = disk.buffer(2 * BLOCK as usize);
    buf.as_mut_slice().fill(7);
    seen.push(format!(
        "{:?}",
        file.write_at(buf, BLOCK).await.map_err(errno)
    ));
    file.sync_data().await.expect("a sync");
    file.punch(2 * BLOCK, BLOCK).await.expect("a hole");
    file.truncate(3 * BLOCK + 100).await.expect("a length");
    let bytes = file.read_at(0, 8 * BLOCK as usize).await.expect("bytes");
    seen.push(format!(
        "{} {:?}",
        bytes.len(),
        bytes.iter().map(|b| u64::from(*b)).sum::<u64>()
    ));
    seen.push(format!(
        "{}",
        file.read_at(8 * BLOCK, BLOCK as usize)
            .await
            .expect("bytes")
            .len()
    ));
    file.close().await.expect("a close");
    disk.rename(&one, &two).await.expect("a rename");
    disk.sync_dir(dir).await.expect("a sync");
    seen.push(format!("{:?}", disk.list_dir(dir).await.map_err(errno)));
    seen.push(format!("{:?}", disk.remove(&one).await.map_err(errno)));
    disk.remove(&two).await.expect("a removal");
    assert!(disk.free_space(dir).await.expect("statfs") > 0);
    seen.push(format!("{:?}", disk.list_dir(dir).await.map_err(errno)));
    seen
}
