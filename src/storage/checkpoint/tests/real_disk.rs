//! The same through io_uring, direct and buffered, and through plain system calls.

use super::*;
use crate::storage::disk::{GlommioDisk, ReadOnlyDisk};

#[test]
fn a_real_disk_and_read_only_access() {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = Identity {
        dir: dir.path().to_owned(),
        ..identity()
    };
    let entries = [many(500), vec![large(3 << 20)], many(20)].concat();
    glommio::LocalExecutor::default().run(async {
        let direct = GlommioDisk::new(dir.path()).await.expect("a disk");
        for (number, disk) in [(1, direct), (2, GlommioDisk::buffered())] {
            let current = write(&disk, &identity, number, &entries)
                .await
                .expect("written");
            current.store(&disk, &identity).await.expect("stored");
            let loaded = Current::load(&disk, &identity).await.expect("a current");
            assert_eq!(loaded.as_ref(), Some(&current));
            let found = read(&disk, &identity, &current).await.expect("whole");
            assert!(found == entries);
            let unknown = remove_others(&disk, &identity, &[number]).await;
            assert_eq!(unknown.expect("a directory"), [] as [PathBuf; 0]);
        }
    });
    let disk = ReadOnlyDisk;
    let current = block_on(Current::load(&disk, &identity)).expect("a current");
    let current = current.expect("a current");
    assert_eq!(current.number, 2);
    assert!(block_on(read(&disk, &identity, &current)).expect("whole") == entries);
}
