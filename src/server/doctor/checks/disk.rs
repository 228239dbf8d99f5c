//! The data directory and the disk under it.

use std::io;

use super::{fail, ok, size, warn};
use crate::server::{
    config::Config,
    doctor::{
        Finding,
        machine::{DataDirFact, WritingFact},
    },
};

/// Journal files that a shard needs at its first start.
const JOURNAL_FILES_AT_FIRST: u64 = 2;

/// Whether the data directory can be written, and its file system is one that keeps data.
pub fn data_dir(config: &Config, fact: &DataDirFact) -> Finding {
    let check = "data-dir";
    let wanted = config.data_dir.display();
    let place = fact.place.display();
    if let WritingFact::Refused(error) = &fact.writing {
        let detail = if fact.exists {
            format!("no file can be written in {place}: {error}")
        } else {
            format!("{wanted} is missing, and {place} above it cannot be written: {error}")
        };
        let remedy = match error.kind() {
            io::ErrorKind::NotADirectory => String::from("name a directory: --data-dir DIRECTORY"),
            io::ErrorKind::ReadOnlyFilesystem => {
                format!("mount -o remount,rw the file system of {place}, or --data-dir elsewhere")
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("free space on the file system of {place}, or --data-dir elsewhere")
            }
            _ => format!("as root: install -d -m 700 -o $USER {wanted}; or --data-dir elsewhere"),
        };
        return fail(check, detail, remedy);
    }
    let kind = &fact.file_system;
    let found = match fact.exists {
        true => format!("{wanted} can be written ({kind})"),
        false => format!("{wanted} will be made in {place}, which can be written ({kind})"),
    };
    match kind.as_str() {
        "tmpfs" => warn(
            check,
            format!("{found}, which is memory: what it holds is gone when the machine stops"),
            String::from("for data that must last: --data-dir on ext4 or xfs"),
        ),
        "nfs" | "smb" | "fuse" | "9p" => warn(
            check,
            format!("{found}, which may confirm a sync before the data is safe, and is slow at it"),
            String::from("for data that must last: --data-dir on a local ext4 or xfs"),
        ),
        _ => ok(check, found),
    }
}

/// Whether files are written past the page cache.
pub fn direct_io(fact: &DataDirFact) -> Finding {
    let check = "direct-io";
    match &fact.writing {
        WritingFact::Direct => ok(
            check,
            format!("{} takes direct I/O in blocks of 4 KiB", fact.file_system),
        ),
        WritingFact::BufferedOnly(error) => warn(
            check,
            format!(
                "{} refuses direct I/O ({error}): files go through the page cache, slower and \
                 with more memory",
                fact.file_system
            ),
            String::from("--data-dir on ext4 or xfs (in a container: a volume, not the overlay)"),
        ),
        WritingFact::Refused(_) => warn(
            check,
            String::from("not tried, as no file can be written"),
            String::from("see data-dir"),
        ),
    }
}

/// Whether the reserve, and at a first start the journals, find room.
pub fn free_space(config: &Config, fact: &DataDirFact) -> Finding {
    let check = "disk-space";
    let reserve = config.limits.disk_reserve_bytes;
    let journals = (config.shards as u64)
        .saturating_mul(JOURNAL_FILES_AT_FIRST)
        .saturating_mul(config.limits.journal_file_bytes);
    let place = fact.place.display();
    let Some(free) = fact.free_bytes else {
        return warn(
            check,
            format!("the file system of {place} does not tell its free space"),
            String::from("watch it by other means: a full disk stops writes"),
        );
    };
    let wanted = match fact.exists {
        true => reserve,
        false => reserve.saturating_add(journals),
    };
    if free < wanted {
        let why = match fact.exists {
            true => format!("the reserve is {}", size(reserve)),
            false => format!("reserve and first journals take {}", size(wanted)),
        };
        return warn(
            check,
            format!(
                "{} free, and {why}: writes answer 503 until there is more",
                size(free)
            ),
            format!(
                "free {}, or set a smaller --disk-reserve-bytes",
                size(wanted.saturating_sub(free))
            ),
        );
    }
    ok(
        check,
        format!(
            "{} free, of which {} stay in reserve",
            size(free),
            size(reserve)
        ),
    )
}
