//! The facts: what the kernel, the limits and the file system say.
//!
//! Probes do what the server will do, in small, rather than guess from
//! versions: open an io_uring, write a file past the page cache, bind the
//! ports. Only locked memory is reckoned and not tried: the kernel returns it
//! some time after a ring is closed, so that trying would take from the
//! executors built next what they need.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{self, Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use io_uring::{IoUring, Probe, opcode};
use rustix::{
    fs::OFlags,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::CapabilitySet,
};
use socket2::{Domain, Socket, Type};

use crate::{base::limits::DISK_ALIGN, server::config::Config};

/// What was found on this machine.
#[derive(Debug)]
pub struct Machine {
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// Whether io_uring is to be had.
    pub io_uring: IoUringFact,
    /// RLIMIT_MEMLOCK's soft limit, in bytes; `None` for no limit.
    pub memlock_bytes: Option<u64>,
    /// Whether the kernel lets this process lock memory beyond its limit (CAP_IPC_LOCK).
    pub memlock_exempt: bool,
    /// RLIMIT_NOFILE's soft limit; `None` for no limit.
    pub files: Option<u64>,
    /// The cores that this process may run on.
    pub cores: Vec<usize>,
    /// How many cores' worth of time it may use: fewer than `cores` under a CPU quota.
    pub parallelism: usize,
    /// Memory that this process may use, in bytes: the machine's, or its control group's if less.
    pub memory_bytes: Option<u64>,
    /// Where the data is to be kept.
    pub data_dir: DataDirFact,
    /// The addresses that cannot be listened on, with the setting that names each and the reason.
    pub unbindable: Vec<(&'static str, SocketAddr, io::Error)>,
}

/// Whether io_uring is to be had.
#[derive(Debug)]
pub enum IoUringFact {
    /// It opens and knows every operation that is needed.
    Ready,
    /// It opens, but the kernel is too old for these operations.
    Lacks(Vec<&'static str>),
    /// It does not open.
    Refused {
        /// The kernel's reason.
        error: io::Error,
        /// `kernel.io_uring_disabled`: 0 for nobody, 1 for the unprivileged, 2 for all; `None`
        /// before Linux 6.6.
        disabled: Option<u8>,
        /// Whether a seccomp filter stands between this process and the kernel.
        filtered: bool,
    },
}

/// Where the data is to be kept.
#[derive(Debug)]
pub struct DataDirFact {
    /// Where it was probed: the directory itself, or the nearest above it that exists.
    pub place: PathBuf,
    /// Whether the directory itself is there.
    pub exists: bool,
    /// The file system's name, or its magic number.
    pub file_system: String,
    /// Free bytes there for this user; `None` if unknown.
    pub free_bytes: Option<u64>,
    /// Whether a file can be made, and written past the page cache.
    pub writing: WritingFact,
}

/// What became of a file made for a try.
#[derive(Debug)]
pub enum WritingFact {
    /// Written and read back by direct I/O in units of [`DISK_ALIGN`].
    Direct,
    /// Written, but the file system refuses direct I/O.
    BufferedOnly(io::Error),
    /// The place is no directory, or no file can be made or written in it.
    Refused(io::Error),
}

impl Machine {
    /// Gathers the facts that bear on `config`.
    pub fn probe(config: &Config) -> Self {
        let addresses = [
            ("listen", config.listen),
            ("admin-listen", config.admin_listen),
        ];
        let cores = cores();
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            io_uring: IoUringFact::probe(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            memlock_exempt: may_lock_any_memory(),
            files: files_limit(),
            parallelism: thread::available_parallelism().map_or(cores.len(), |n| n.get()),
            cores,
            memory_bytes: memory_bytes(),
            data_dir: DataDirFact::probe(&config.data_dir),
            unbindable: addresses
                .into_iter()
                .filter_map(|(setting, address)| {
                    // Without the port sharing that the server itself uses: a port that another
                    // server shares is refused here.
                    let error = unbindable(address)?;
                    Some((setting, address, error))
                })
                .collect(),
        }
    }
}

/// Raises the soft limits of open files and locked memory to their hard limits, as any process
/// may. What cannot be raised is left as it is, for [`Machine::probe`] to see.
pub fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let limit = getrlimit(resource);
        if limit.current != limit.maximum {
            let _ = setrlimit(
                resource,
                Rlimit {
                    current: limit.maximum,
                    ..limit
                },
            );
        }
    }
}

/// RLIMIT_NOFILE's soft limit; `None` for no limit.
pub fn files_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

impl IoUringFact {
    /// Opens the smallest ring and asks it for the operations that glommio requires.
    fn probe() -> Self {
        let opened = IoUring::new(2).and_then(|ring| {
            let mut known = Probe::new();
            ring.submitter().register_probe(&mut known)?;
            Ok(known)
        });
        match opened {
            Ok(known) => {
                let lacking = OPERATIONS
                    .iter()
                    .filter(|(_, code)| !known.is_supported(*code));
                let lacking: Vec<_> = lacking.map(|(name, _)| *name).collect();
                if lacking.is_empty() {
                    Self::Ready
                } else {
                    Self::Lacks(lacking)
                }
            }
            Err(error) => Self::Refused {
                error,
                disabled: read_number("/proc/sys/kernel/io_uring_disabled")
                    .and_then(|n| u8::try_from(n).ok()),
                filtered: status_field("Seccomp:").is_some_and(|mode| mode == "2"),
            },
        }
    }
}

/// The operations that glommio 0.9 requires: it ends the process where one is missing.
const OPERATIONS: &[(&str, u8)] = &[
    ("nop", opcode::Nop::CODE),
    ("readv", opcode::Readv::CODE),
    ("writev", opcode::Writev::CODE),
    ("fsync", opcode::Fsync::CODE),
    ("read_fixed", opcode::ReadFixed::CODE),
    ("write_fixed", opcode::WriteFixed::CODE),
    ("poll_add", opcode::PollAdd::CODE),
    ("poll_remove", opcode::PollRemove::CODE),
    ("sendmsg", opcode::SendMsg::CODE),
    ("recvmsg", opcode::RecvMsg::CODE),
    ("timeout", opcode::Timeout::CODE),
    ("timeout_remove", opcode::TimeoutRemove::CODE),
    ("accept", opcode::Accept::CODE),
    ("link_timeout", opcode::LinkTimeout::CODE),
    ("connect", opcode::Connect::CODE),
    ("fallocate", opcode::Fallocate::CODE),
    ("openat", opcode::OpenAt::CODE),
    ("close", opcode::Close::CODE),
    ("statx", opcode::Statx::CODE),
    ("read", opcode::Read::CODE),
    ("write", opcode::Write::CODE),
    ("send", opcode::Send::CODE),
    ("recv", opcode::Recv::CODE),
];

impl DataDirFact {
    fn probe(data_dir: &Path) -> Self {
        let wanted = path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let exists = wanted.exists();
        let place = wanted
            .ancestors()
            .find(|place| place.exists())
            .unwrap_or(Path::new("/"));
        let writing = match ProbeFile::create(place) {
            Ok(file) => file.try_writing().unwrap_or_else(WritingFact::Refused),
            Err(error) => WritingFact::Refused(error),
        };
        Self {
            file_system: file_system(place),
            free_bytes: rustix::fs::statvfs(place)
                .ok()
                .map(|s| s.f_bavail.saturating_mul(s.f_frsize)),
            place: place.to_owned(),
            exists,
            writing,
        }
    }
}

/// Names of probe files begin so, where they need one.
const PROBE_PREFIX: &str = ".thalweg-doctor-";

/// A file of a moment. It has no name, so that it goes with the process however that ends; where the
/// file system makes none without, it has one until it is dropped.
struct ProbeFile<'a> {
    place: &'a Path,
    file: File,
    path: Option<PathBuf>,
}

impl<'a> ProbeFile<'a> {
    fn create(place: &'a Path) -> io::Result<Self> {
        remove_leftovers(place);
        if let Ok(file) = Self::without_name(place, OFlags::empty()) {
            return Ok(Self {
                place,
                file,
                path: None,
            });
        }
        Self::with_name(place)
    }

    fn without_name(place: &Path, more: OFlags) -> io::Result<File> {
        let flags = OFlags::TMPFILE.union(more).bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(place)
    }

    fn with_name(place: &'a Path) -> io::Result<Self> {
        let path = place.join(format!("{PROBE_PREFIX}{}", process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Self {
            place,
            file,
            path: Some(path),
        })
    }

    /// The same file, or one like it, past the page cache.
    fn direct(&self) -> io::Result<File> {
        match &self.path {
            None => Self::without_name(self.place, OFlags::DIRECT),
            Some(path) => OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(OFlags::DIRECT.bits().cast_signed())
                .open(path),
        }
    }

    /// Writes a block and reads it back past the page cache; failing that, says whether the file
    /// can be written at all.
    fn try_writing(&self) -> io::Result<WritingFact> {
        match self.try_direct() {
            Ok(()) => Ok(WritingFact::Direct),
            // A full disk says nothing about direct I/O, and the free space is judged apart.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(error),
            Err(error) => {
                self.file.write_all_at(&[0; DISK_ALIGN], 0)?;
                self.file.sync_data()?;
                Ok(WritingFact::BufferedOnly(error))
            }
        }
    }

    fn try_direct(&self) -> io::Result<()> {
        let file = self.direct()?;
        let mut memory = [0xA5; 2 * DISK_ALIGN];
        let start = memory.as_ptr().align_offset(DISK_ALIGN);
        let (_, rest) = memory.split_at_mut(start);
        let (block, _) = rest.split_at_mut(DISK_ALIGN);
        file.write_all_at(block, 0)?;
        file.sync_data()?;
        block.fill(0);
        file.read_exact_at(block, 0)?;
        let same = block.iter().all(|&byte| byte == 0xA5);
        if same {
            Ok(())
        } else {
            Err(io::Error::other("what was written did not read back"))
        }
    }
}

impl Drop for ProbeFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Failing that, a file of 4 KiB stays, which the next probe there removes.
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes probe files in `place` whose processes are gone.
fn remove_leftovers(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(PROBE_PREFIX));
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            // What cannot be removed is left alone, as any file that is not the server's.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file system's name by its magic number (`statfs(2)`).
fn file_system(place: &Path) -> String {
    let Ok(stat) = rustix::fs::statfs(place) else {
        return String::from("unknown");
    };
    let name = match stat.f_type {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        0x6969 => "nfs",
        0xFF53_4D42 | 0xFE53_4D42 => "smb",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        other => return format!("file system {other:#x}"),
    };
    String::from(name)
}

/// How long a listener on this machine may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long somebody may listen who is gone: the system takes down the rings, and with them the
/// sockets, of a process that was killed after it has told of its end.
const GONE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why `address` cannot be listened on. The server's sockets share a port with each other, so
/// another server there would go unnoticed: whether anybody listens is asked by connecting, until
/// [`GONE_TIMEOUT`]. What is left of closed connections (TIME_WAIT) is no obstacle. An address of
/// another machine is not asked: whoever listens there is not in the way.
fn unbindable(address: SocketAddr) -> Option<io::Error> {
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())
    };
    let elsewhere = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
    if let Some(error) = bound().err().filter(elsewhere) {
        return Some(error);
    }
    if address.port() != 0 {
        let mut peer = address;
        if peer.ip().is_unspecified() {
            peer.set_ip(match peer.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let asked = Instant::now();
        while TcpStream::connect_timeout(&peer, CONNECT_TIMEOUT).is_ok() {
            if asked.elapsed() >= GONE_TIMEOUT {
                return Some(io::ErrorKind::AddrInUse.into());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    bound().err()
}

/// The cores of this process's affinity mask.
pub fn cores() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect(),
        Err(_) => (0..thread::available_parallelism().map_or(1, |n| n.get())).collect(),
    }
}

/// Whether the kernel exempts this process from RLIMIT_MEMLOCK: it asks for CAP_IPC_LOCK on the
/// machine, not in a user namespace such as a rootless container's.
fn may_lock_any_memory() -> bool {
    let capable = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let on_the_machine = fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    capable && on_the_machine
}

/// The machine's memory, or the smallest bound of the control groups this process is in.
fn memory_bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.checked_mul(u64::from(info.mem_unit));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let bounds = Path::new("/sys/fs/cgroup").join(group);
    let bounds = bounds
        .ancestors()
        .take_while(|folder| folder.starts_with("/sys/fs/cgroup"))
        .filter_map(|folder| read_number(folder.join("memory.max")));
    bounds.chain(machine).min()
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A field of `/proc/self/status`.
fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asking who listens there would send to another machine, and blame the port.
    #[test]
    fn an_address_of_another_machine_is_not_asked() {
        let error = unbindable("203.0.113.1:4437".parse().unwrap()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn this_machine_has_facts_and_nothing_stays_behind() {
        let place = std::env::temp_dir().join(format!("thalweg-machine-{}", process::id()));
        fs::create_dir(&place).unwrap();
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            admin_listen: "127.0.0.1:0".parse().unwrap(),
            data_dir: place.join("not/yet"),
            ..Config::default()
        };
        let machine = Machine::probe(&config);
        assert!(!machine.data_dir.exists);
        assert_eq!(machine.data_dir.place, place);
        assert!(
            !matches!(machine.data_dir.writing, WritingFact::Refused(_)),
            "{machine:?}"
        );
        assert!(machine.data_dir.free_bytes.is_some());
        assert!(!machine.cores.is_empty() && machine.parallelism > 0);
        assert!(machine.memory_bytes.unwrap() > 1 << 20);
        assert!(machine.unbindable.is_empty());
        assert_eq!(
            fs::read_dir(&place).unwrap().count(),
            0,
            "the probe left a file"
        );
        fs::remove_dir(&place).unwrap();
    }

    #[test]
    fn a_probe_file_needs_no_name_and_leftovers_go() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(format!("{PROBE_PREFIX}{name}"));
        // No process has this pid: it is above the system's highest.
        let (dead, alive, other) = (file("4194305"), file("1"), file("notes"));
        for path in [&dead, &alive, &other] {
            fs::write(path, "x").unwrap();
        }
        let probe = ProbeFile::create(dir.path()).unwrap();
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 2 + usize::from(probe.path.is_some()));
        drop(probe);
        assert!(!dead.exists() && alive.exists() && other.exists());
        // As where the file system makes none without a name.
        let named = ProbeFile::with_name(dir.path()).unwrap();
        assert!(named.path.as_ref().is_some_and(|path| path.exists()));
        let refused = |writing| matches!(writing, Ok(WritingFact::Refused(_)) | Err(_));
        assert!(!refused(named.try_writing()));
        drop(named);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_port_in_use_is_noticed_and_a_file_is_no_directory() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = Config {
            listen: taken.local_addr().unwrap(),
            admin_listen: "127.0.0.1:0".parse().unwrap(),
            data_dir: PathBuf::from("/proc/version"),
            ..Config::default()
        };
        let machine = Machine::probe(&config);
        let [(setting, _, error)] = &machine.unbindable[..] else {
            panic!("{machine:?}")
        };
        assert_eq!(
            (*setting, error.kind()),
            ("listen", io::ErrorKind::AddrInUse)
        );
        assert!(matches!(machine.data_dir.writing, WritingFact::Refused(_)));
    }

    #[test]
    fn limits_are_raised_to_what_is_allowed() {
        raise_limits();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
