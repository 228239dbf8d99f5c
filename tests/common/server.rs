//! Server processes: start, readiness, signals, restart on the same data.
//!
//! Every process is started by one keeper thread that lives as long as the
//! test process and asks the kernel to kill its children when it dies, so no
//! server outlives its tests however those end. A server's data directory
//! goes when its last owner does; the shared servers' go at exit.

use std::ffi::c_int;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Bound on a start, recovery included, and on a stop.
const LIFECYCLE_PATIENCE: Duration = Duration::from_secs(60);

/// What to start: flags of `thalweg serve` and the data directory.
#[derive(Clone, Debug)]
pub struct Options {
    flags: Vec<(String, String)>,
    switches: Vec<String>,
    files_max: Option<u64>,
    data: Arc<DataDir>,
}

impl Options {
    /// A server on free ports with an empty data directory of its own.
    pub fn new(shards: usize) -> Self {
        Self {
            flags: vec![
                ("listen".to_owned(), "127.0.0.1:0".to_owned()),
                ("admin-listen".to_owned(), "127.0.0.1:0".to_owned()),
                ("shards".to_owned(), shards.to_string()),
                // The smallest that holds the largest request: a new shard fills two of them with
                // zeros, and these tests start hundreds.
                ("journal-file-bytes".to_owned(), "10MiB".to_owned()),
            ],
            switches: Vec::new(),
            files_max: None,
            data: Arc::new(DataDir::create()),
        }
    }

    /// Sets `--name value`, replacing an earlier value.
    pub fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.retain(|(existing, _)| existing != name);
        self.flags.push((name.to_owned(), value.to_string()));
        self
    }

    /// Limits the open files of the process, as `ulimit -n` does.
    pub fn files_max(mut self, files_max: u64) -> Self {
        self.files_max = Some(files_max);
        self
    }

    /// The same on a data directory that exists, which is removed as its own would be.
    pub fn in_directory(mut self, path: &Path) -> Self {
        let path = path.to_owned();
        self.data = Arc::new(DataDir { path });
        self
    }

    /// Gives `--name`, which takes no value.
    pub fn switch(mut self, name: &str) -> Self {
        self.switches.push(name.to_owned());
        self
    }

    /// Takes every [`switch`](Self::switch) away.
    pub fn without_switches(mut self) -> Self {
        self.switches.clear();
        self
    }

    /// Starts the server and waits until it says where it listens.
    #[track_caller]
    pub fn start(&self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(failure) => panic!("the server did not start: {failure}"),
        }
    }

    /// As [`Options::start`]; a server that ends before it listens, or never
    /// listens, is an error with its log.
    pub fn try_start(&self) -> Result<Server, String> {
        let mut process = self.spawn();
        let deadline = Instant::now() + LIFECYCLE_PATIENCE;
        loop {
            if let Some((address, admin)) = process.addresses() {
                return Ok(Server {
                    options: self.clone(),
                    process: Some(process),
                    address,
                    admin,
                });
            }
            if let Some(status) = process.ended() {
                return Err(format!("{status}\n{}", process.whole_log()));
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "silent for {LIFECYCLE_PATIENCE:?}\n{}",
                    process.log()
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts the process without waiting for it to listen, for tests that
    /// kill it while it starts.
    pub fn spawn(&self) -> Process {
        let binary = env!("CARGO_BIN_EXE_thalweg");
        let mut command = match self.files_max {
            None => Command::new(binary),
            Some(files_max) => {
                let mut shell = Command::new("sh");
                let script = format!("ulimit -n {files_max}; exec \"$0\" \"$@\"");
                shell.arg("-c").arg(script).arg(binary);
                shell
            }
        };
        command.arg("serve").arg("--data-dir").arg(&self.data.path);
        // Its settings are those of the test, whatever the environment says.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("THALWEG_") {
                command.env_remove(name);
            }
        }
        for (name, value) in &self.flags {
            command.arg(format!("--{name}")).arg(value);
        }
        for name in &self.switches {
            command.arg(format!("--{name}"));
        }
        Process::spawn(command)
    }

    /// The data directory, for tests that look at it or damage it.
    pub fn data_dir(&self) -> &Path {
        &self.data.path
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    options: Options,
    process: Option<Process>,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    /// A server that runs already, at `url`; no process of ours.
    pub fn running_at(url: &str) -> Self {
        let address = address_after(&format!("{url}/"), "http://")
            .unwrap_or_else(|| panic!("not http://ADDRESS:PORT: {url}"));
        Self {
            options: Options::new(1),
            process: None,
            address,
            admin: address,
        }
    }

    /// Where streams are served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the admin plane is served.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The process id.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.process
            .as_ref()
            .expect("the server runs in a process of ours")
            .child
            .id()
    }

    /// SIGKILL, then a new process on the same data directory.
    #[track_caller]
    pub fn kill_and_restart(self) -> Self {
        let options = self.options.clone();
        self.kill();
        options.start()
    }

    /// SIGKILL; gives back what it takes to start again on the same data.
    #[track_caller]
    pub fn kill(mut self) -> Options {
        self.process
            .take()
            .expect("the server runs in a process of ours")
            .kill();
        self.options.clone()
    }

    /// SIGTERM, and waits for the process to end by itself.
    #[track_caller]
    pub fn terminate(mut self) -> (ExitStatus, Options) {
        let process = self
            .process
            .take()
            .expect("the server runs in a process of ours");
        process.signal(libc::SIGTERM);
        (process.wait(), self.options.clone())
    }

    /// As [`terminate`](Self::terminate), for a stop that must succeed; all that the server said.
    #[track_caller]
    pub fn stop(mut self) -> String {
        let mut process = self
            .process
            .take()
            .expect("the server runs in a process of ours");
        process.signal(libc::SIGTERM);
        let status = process.await_end();
        assert!(
            status.success(),
            "the server ended with {status} on SIGTERM"
        );
        process.whole_log()
    }

    /// SIGTERM, then a new process on the same data directory.
    #[track_caller]
    pub fn restart(self) -> Self {
        let (status, options) = self.terminate();
        assert!(
            status.success(),
            "the server ended with {status} on SIGTERM"
        );
        options.start()
    }

    /// What it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

/// One child process and what it has logged.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: Arc<Mutex<String>>,
    followers: Vec<thread::JoinHandle<()>>,
}

impl Process {
    fn spawn(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = keeper_spawn(command);
        let log = Arc::default();
        let followers = vec![
            follow(child.stdout.take().expect("stdout is piped"), &log),
            follow(child.stderr.take().expect("stderr is piped"), &log),
        ];
        Self {
            child,
            log,
            followers,
        }
    }

    /// All that an ended process said.
    fn whole_log(&mut self) -> String {
        for follower in self.followers.drain(..) {
            follower.join().expect("no reader of the log panics");
        }
        self.log()
    }

    fn log(&self) -> String {
        self.log
            .lock()
            .expect("no reader of the log panics")
            .clone()
    }

    /// The two addresses of the start-up lines, once both were printed.
    fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let log = self.log();
        Some((
            address_after(&log, "listening on http://")?,
            address_after(&log, "admin on http://")?,
        ))
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("our own child can be waited for")
    }

    /// Sends `signal` to this process only.
    pub fn signal(&self, signal: c_int) {
        let pid = c_int::try_from(self.child.id()).expect("a pid fits");
        // SAFETY: kill(2) takes no pointers; the child is not yet reaped, so
        // the pid is its own.
        unsafe { libc::kill(pid, signal) };
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(mut self) {
        self.kill_in_place();
    }

    fn kill_in_place(&mut self) {
        // A child that ended by itself can no longer be killed: nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    #[track_caller]
    fn wait(mut self) -> ExitStatus {
        self.await_end()
    }

    #[track_caller]
    fn await_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIFECYCLE_PATIENCE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the server does not end:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_in_place();
        if thread::panicking() {
            eprintln!("--- log of the server\n{}---", self.log());
        }
    }
}

/// The socket address that follows `marker` in `log`.
fn address_after(log: &str, marker: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once(marker)?;
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)))?;
    rest[..end].parse().ok()
}

/// Copies what `pipe` gives into `log`, line by line, until it closes.
fn follow(pipe: impl Read + Send + 'static, log: &Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let mut log = log.lock().expect("no reader of the log panics");
            log.push_str(&String::from_utf8_lossy(&line));
            log.push('\n');
        }
    })
}

type Job = (Command, Sender<Child>);

/// Spawns `command` from the keeper thread. The kernel's parent-death signal
/// follows the *thread* that forked, and the threads of tests end early.
fn keeper_spawn(mut command: Command) -> Child {
    static KEEPER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    // SAFETY: prctl(2) is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let keeper = KEEPER.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in queue {
                let child = command.spawn().expect("the built binary can be started");
                answer
                    .send(child)
                    .expect("whoever asked for a process waits for it");
            }
        });
        Mutex::new(jobs)
    });
    let (answer, child) = channel();
    keeper
        .lock()
        .expect("no sender panics")
        .send((command, answer))
        .expect("the keeper lives as long as the test process");
    child.recv().expect("the binary was started")
}

/// A directory under Cargo's own temporary directory: a real file system,
/// where `/tmp` may be one in memory that takes no direct I/O.
#[derive(Debug)]
struct DataDir {
    path: PathBuf,
}

impl DataDir {
    fn create() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = run_dir().join(format!("data-{number}"));
        std::fs::create_dir(&path).expect("the test's temporary directory is writable");
        Self { path }
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // What cannot be removed now is removed with the run's directory.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// This test process's directory, removed at exit; those of runs that were
/// killed are removed here.
fn run_dir() -> &'static Path {
    static RUN_DIR: OnceLock<PathBuf> = OnceLock::new();

    extern "C" fn remove() {
        if let Some(path) = RUN_DIR.get() {
            let _ = std::fs::remove_dir_all(path);
        }
    }

    RUN_DIR.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("servers");
        std::fs::create_dir_all(&root).expect("Cargo's temporary directory is writable");
        for entry in std::fs::read_dir(&root)
            .expect("it was just created")
            .flatten()
        {
            let alive = entry
                .file_name()
                .to_str()
                .is_some_and(|pid| Path::new("/proc").join(pid).exists());
            if !alive {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let path = root.join(std::process::id().to_string());
        std::fs::create_dir_all(&path).expect("Cargo's temporary directory is writable");
        // SAFETY: `remove` is a plain function that neither unwinds nor uses
        // state that is gone at exit.
        unsafe { libc::atexit(remove) };
        path
    })
}
