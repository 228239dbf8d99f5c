//! Black-box harness: starts the real binary and talks to it over sockets.
//!
//! It shares no code with the server, so a mistake in the server's HTTP or
//! protocol layer cannot cancel itself out here. [`server`] runs processes,
//! [`observe`] reads what they cost and count,
//! [`http`] is a small HTTP/1.1 client that keeps what arrived byte for byte,
//! [`sse`] reads events as a browser's `EventSource` would, and [`stream`]
//! names streams no other test uses. [`disk`] finds and damages what a server
//! has written, [`cold`] what of it is in segments and checkpoints.

pub mod cold;
pub mod disk;
pub mod http;
pub mod multipart;
pub mod observe;
pub mod server;
pub mod sse;
pub mod stream;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use server::{Options, Server};
use stream::{OCTETS, Stream, Surface};

/// How long a test waits for something that must happen. Generous: a loaded
/// machine is slow, not wrong. Nothing asserts that something was *quick*.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `probe` until it gives a value; panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The server that all tests of one shard count use: started once, its streams told apart by
/// name. With `THALWEG_TEST_URL=http://HOST:PORT` it is one that runs already.
pub fn shared(shards: usize) -> &'static Server {
    static ONE: OnceLock<Server> = OnceLock::new();
    static FOUR: OnceLock<Server> = OnceLock::new();
    let cell = match shards {
        1 => &ONE,
        4 => &FOUR,
        other => panic!("no shared server has {other} shards"),
    };
    cell.get_or_init(|| {
        let server = match std::env::var("THALWEG_TEST_URL") {
            Ok(url) => Server::running_at(&url),
            Err(_) => Options::new(shards).start(),
        };
        // From here on the bucket exists: what is missing is the stream.
        Stream::create(&server, Surface::Base, OCTETS);
        server
    })
}
