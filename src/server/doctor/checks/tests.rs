use std::path::PathBuf;

use rustix::io::Errno;

use super::{
    uring::{kernel_counts_rings, ring_bytes},
    *,
};
use crate::{
    base::limits::KIB,
    server::doctor::machine::{DataDirFact, IoUringFact, WritingFact},
};

/// Two gigabytes of memory, four cores, ample limits, an ext4 disk: nothing to say.
fn sound() -> Machine {
    Machine {
        kernel: String::from("6.18.44-generic"),
        io_uring: IoUringFact::Ready,
        memlock_bytes: None,
        memlock_exempt: false,
        files: Some(1_048_576),
        cores: vec![0, 1, 2, 3],
        parallelism: 4,
        memory_bytes: Some(8 << 30),
        data_dir: DataDirFact {
            place: PathBuf::from("/srv/thalweg"),
            exists: true,
            file_system: String::from("ext4"),
            free_bytes: Some(1 << 40),
            writing: WritingFact::Direct,
        },
        unbindable: Vec::new(),
    }
}

fn config() -> Config {
    Config {
        shards: 2,
        data_dir: PathBuf::from("/srv/thalweg"),
        ..Config::default()
    }
}

/// The one finding that is not well, after a change to a sound machine.
fn trouble(change: impl FnOnce(&mut Config, &mut Machine)) -> Finding {
    let (mut config, mut machine) = (config(), sound());
    change(&mut config, &mut machine);
    let findings = judge(&config, &machine);
    let mut bad = findings
        .iter()
        .filter(|finding| finding.status != Status::Ok);
    let finding = bad
        .next()
        .unwrap_or_else(|| panic!("all is well: {findings:#?}"))
        .clone();
    assert_eq!(bad.next(), None, "beside {finding:#?}");
    assert!(
        finding
            .remedy
            .as_ref()
            .is_some_and(|remedy| !remedy.is_empty()),
        "{finding:#?}"
    );
    finding
}

#[track_caller]
fn assert_says(finding: &Finding, check: &str, status: Status, detail: &str, remedy: &str) {
    assert_eq!(
        (finding.check, finding.status),
        (check, status),
        "{finding:#?}"
    );
    assert!(
        finding.detail.contains(detail),
        "no {detail:?} in {finding:#?}"
    );
    assert!(
        finding.remedy.as_ref().unwrap().contains(remedy),
        "no {remedy:?} in {finding:#?}"
    );
}

#[test]
fn a_sound_machine_has_no_trouble() {
    let findings = judge(&config(), &sound());
    assert!(
        findings.iter().all(|finding| finding.status == Status::Ok),
        "{findings:#?}"
    );
    assert!(findings.iter().all(|finding| finding.remedy.is_none()));
}

#[test]
fn refused_io_uring_names_who_refuses() {
    let refused = |errno: Errno, disabled, filtered| {
        trouble(|_, machine| {
            machine.io_uring = IoUringFact::Refused {
                error: errno.into(),
                disabled,
                filtered,
            };
        })
    };
    for (errno, disabled, filtered, detail, remedy) in [
        (
            Errno::PERM,
            Some(2),
            false,
            "every process",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        (
            Errno::PERM,
            Some(2),
            true,
            "every process",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        (
            Errno::PERM,
            Some(1),
            false,
            "unprivileged",
            "kernel.io_uring_group=$(id -g)",
        ),
        (
            Errno::PERM,
            Some(0),
            true,
            "seccomp",
            "--security-opt seccomp=",
        ),
        (Errno::NOSYS, None, true, "seccomp", "SystemCallFilter="),
        (Errno::PERM, Some(0), false, "security policy", "journalctl"),
        (
            Errno::NOSYS,
            None,
            false,
            "6.18.44-generic has none",
            "CONFIG_IO_URING",
        ),
        (
            Errno::NOMEM,
            Some(0),
            false,
            "no memory may be locked",
            "LimitMEMLOCK=",
        ),
        (
            Errno::MFILE,
            Some(0),
            false,
            "Too many open files",
            "io_uring_setup",
        ),
    ] {
        let finding = refused(errno, disabled, filtered);
        assert_says(&finding, "io_uring", Status::Fail, detail, remedy);
    }
    let old = trouble(|_, machine| {
        machine.io_uring = IoUringFact::Lacks(vec!["openat", "statx"]);
    });
    assert_says(
        &old,
        "io_uring",
        Status::Fail,
        "lacks: openat, statx",
        "5.8",
    );
}

/// The figures measured with glommio 0.9.0 on Linux 6.18 as an unprivileged user, one executor at
/// depth 4096: it starts at 1220 KiB, and registers 64 KiB of I/O memory from 1412 KiB.
#[test]
fn locked_memory_is_reckoned_as_measured() {
    assert_eq!(ring_bytes(4096), 404 * 1024);
    let at = |kib: u64| {
        let mut machine = sound();
        machine.memlock_bytes = Some(kib * 1024);
        let config = Config {
            shards: 1,
            io_memory_bytes: 64 * KIB,
            ..config()
        };
        locked_memory(&config, &machine).status
    };
    assert_eq!(at(511), Status::Fail);
    assert_eq!(at(1216), Status::Fail);
    assert_eq!(at(1220), Status::Warn);
    assert_eq!(at(1408), Status::Warn);
    assert_eq!(at(1412), Status::Ok);
}

#[test]
fn locked_memory_tells_need_and_remedy() {
    let mib = MIB as u64;
    let usual = trouble(|_, machine| machine.memlock_bytes = Some(8 * mib));
    assert_says(
        &usual,
        "memlock",
        Status::Warn,
        "74.4 MiB",
        "LimitMEMLOCK=75M",
    );
    assert_says(
        &usual,
        "memlock",
        Status::Warn,
        "8.0 MiB",
        "ulimit -l 76800",
    );

    let many = trouble(|config, machine| {
        config.shards = 4;
        config.ring_depth = 32_768;
        machine.memlock_bytes = Some(8 * mib);
    });
    assert_says(
        &many,
        "memlock",
        Status::Fail,
        "rings of 4 executors need 37.6 MiB",
        "--ring-depth",
    );

    let nearly = trouble(|_, machine| machine.memlock_bytes = Some(66 * mib));
    assert_says(
        &nearly,
        "memlock",
        Status::Warn,
        "direct I/O costs more CPU",
        "--io-memory-bytes 10MiB",
    );

    // Root is not held to the limit, except by glommio's own minimum.
    let tiny = trouble(|_, machine| {
        machine.memlock_exempt = true;
        machine.memlock_bytes = Some(64 << 10);
    });
    assert_says(
        &tiny,
        "memlock",
        Status::Fail,
        "privileged or not",
        "--ulimit memlock=",
    );
    let mut machine = sound();
    (machine.memlock_exempt, machine.memlock_bytes) = (true, Some(8 * mib));
    assert_eq!(locked_memory(&config(), &machine).status, Status::Ok);
}

#[test]
fn kernels_that_count_rings() {
    for (release, counts) in [
        ("5.4.0-150-generic", true),
        ("5.11.22", true),
        ("5.12.0", false),
        ("6.1.0-18-amd64", false),
        ("6.13.7", false),
        ("6.14-rc1", true),
        ("6.18.44-fc-v669", true),
        ("7.0.0", true),
        ("unheard of", true),
    ] {
        assert_eq!(kernel_counts_rings(release), counts, "{release}");
    }
}

#[test]
fn open_files_bound_connections() {
    let some = trouble(|_, machine| machine.files = Some(20_000));
    assert_says(
        &some,
        "nofile",
        Status::Warn,
        "room for 19808 connections of the 100000",
        "--connections-max 19808",
    );
    assert_says(&some, "nofile", Status::Warn, "20000", "LimitNOFILE=100192");
    let none = trouble(|_, machine| machine.files = Some(200));
    assert_says(
        &none,
        "nofile",
        Status::Fail,
        "leaves 8 connections",
        "ulimit -n 100192",
    );
    // The fewest one may ask for would not fit either.
    let remedy = none.remedy.unwrap();
    assert!(!remedy.contains("--connections-max"), "{remedy}");
    // Who asks for few connections gets them.
    let mut few = config();
    few.limits.connections_max = 8;
    let machine = Machine {
        files: Some(200),
        ..sound()
    };
    assert_eq!(open_files(&few, &machine).status, Status::Ok);
    assert_eq!(connections_that_fit(&few, None), 8);
}

#[test]
fn cores_must_be_allowed_and_should_suffice() {
    let barred = trouble(|config, _| config.cores = Some(vec![1, 7, 9]));
    assert_says(
        &barred,
        "cores",
        Status::Fail,
        "names 7, 9,",
        "choose among 0-3",
    );
    let crowded = trouble(|config, _| config.shards = 5);
    assert_says(
        &crowded,
        "cores",
        Status::Warn,
        "5 shards share 4 of 4 cores",
        "--shards 4",
    );
    let quota = trouble(|_, machine| machine.parallelism = 1);
    assert_says(
        &quota,
        "cores",
        Status::Warn,
        "under a CPU quota of 1",
        "--shards 1",
    );
    assert_eq!(list(&[0, 1, 2, 5, 8, 9]), "0-2, 5, 8-9");
}

#[test]
fn budgets_should_fit() {
    let small = trouble(|_, machine| machine.memory_bytes = Some(1 << 30));
    assert_says(
        &small,
        "memory",
        Status::Warn,
        "may use 1.0 GiB",
        "--memory-bytes-max 512MiB",
    );
    let thin = trouble(|config, machine| {
        config.shards = 64;
        machine.cores = (0..64).collect();
        machine.parallelism = 64;
    });
    assert_says(
        &thin,
        "budgets",
        Status::Warn,
        "each of 64 shards 4.0 MiB",
        "--body-memory-bytes-max 512MiB",
    );
}

#[test]
fn data_dir_must_be_writable_and_should_last() {
    let refused = |errno: Errno| {
        let mut machine = sound();
        machine.data_dir.exists = false;
        machine.data_dir.writing = WritingFact::Refused(errno.into());
        data_dir(&config(), &machine.data_dir)
    };
    for (errno, remedy) in [
        (Errno::ACCESS, "install -d -m 700 -o $USER /srv/thalweg"),
        (Errno::ROFS, "remount,rw"),
        (Errno::NOTDIR, "name a directory"),
        (Errno::NOSPC, "free space"),
    ] {
        assert_says(
            &refused(errno),
            "data-dir",
            Status::Fail,
            "is missing, and",
            remedy,
        );
    }
    let memory = trouble(|_, machine| machine.data_dir.file_system = String::from("tmpfs"));
    assert_says(
        &memory,
        "data-dir",
        Status::Warn,
        "gone when the machine stops",
        "ext4",
    );
    let remote = trouble(|_, machine| machine.data_dir.file_system = String::from("nfs"));
    assert_says(&remote, "data-dir", Status::Warn, "confirm a sync", "local");
}

#[test]
fn refused_direct_io_is_a_warning() {
    let finding = trouble(|_, machine| {
        machine.data_dir.file_system = String::from("overlay");
        machine.data_dir.writing = WritingFact::BufferedOnly(Errno::INVAL.into());
    });
    assert_says(
        &finding,
        "direct-io",
        Status::Warn,
        "overlay refuses direct I/O",
        "a volume",
    );
}

#[test]
fn space_must_cover_the_reserve_and_first_journals() {
    let low = trouble(|_, machine| machine.data_dir.free_bytes = Some(200 * MIB as u64));
    assert_says(
        &low,
        "disk-space",
        Status::Warn,
        "200.0 MiB free",
        "free 56.0 MiB",
    );
    let first = trouble(|_, machine| {
        machine.data_dir.exists = false;
        machine.data_dir.free_bytes = Some(372 * MIB as u64);
    });
    assert_says(
        &first,
        "disk-space",
        Status::Warn,
        "first journals take 384.0 MiB",
        "free 12.0 MiB",
    );
    let unknown = trouble(|_, machine| machine.data_dir.free_bytes = None);
    assert_says(
        &unknown,
        "disk-space",
        Status::Warn,
        "does not tell",
        "other means",
    );
}

#[test]
fn unbindable_addresses_name_the_setting() {
    let with = |errno: Errno| {
        trouble(|config, machine| {
            machine.unbindable = vec![("admin-listen", config.admin_listen, errno.into())];
        })
    };
    for (errno, remedy) in [
        (Errno::ADDRINUSE, "ss -ltnp 'sport = :4438'"),
        (Errno::ACCESS, "CAP_NET_BIND_SERVICE"),
        (Errno::ADDRNOTAVAIL, "ip address"),
        (Errno::AFNOSUPPORT, "--admin-listen ADDRESS:PORT"),
    ] {
        assert_says(
            &with(errno),
            "listen",
            Status::Fail,
            "--admin-listen 127.0.0.1:4438",
            remedy,
        );
    }
}
