//! What the kernel takes for a client who does not read: no more than
//! [`SOCKET_UNSENT_BYTES_MAX`] beyond what it has sent, where the system lets
//! that be set.

use std::{io, os::fd::AsRawFd as _};

use glommio::net::TcpStream;
use socket2::SockRef;

use crate::{base::limits::SOCKET_UNSENT_BYTES_MAX, server::descriptors::Descriptors};

/// Bounds what the kernel takes for clients that do not read, where the system lets it.
#[derive(Debug)]
pub struct UnsentBound(Option<Descriptors>);

impl UnsentBound {
    /// Finds out whether the system lets it, for the core of `shard`.
    #[must_use]
    pub fn new(shard: usize) -> Self {
        let descriptors = Descriptors::open();
        Self(
            descriptors
                .map_err(|error| warn_unbound(shard, &error))
                .ok(),
        )
    }

    /// To [`SOCKET_UNSENT_BYTES_MAX`] beyond what it has sent this one.
    pub fn apply(&mut self, shard: usize, stream: &TcpStream) {
        let Some(descriptors) = &self.0 else { return };
        let bound = descriptors
            .again(stream.as_raw_fd())
            .and_then(|same| SockRef::from(&same).set_tcp_notsent_lowat(SOCKET_UNSENT_BYTES_MAX));
        match bound {
            // Too many are open: the next may have it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {}
            Err(error) => {
                warn_unbound(shard, &error);
                self.0 = None;
            }
            Ok(()) => {}
        }
    }
}

fn warn_unbound(shard: usize, error: &io::Error) {
    tracing::warn!(
        shard,
        "this system lets no bound be set to what it takes for a client that does not read \
         ({error}): set net.ipv4.tcp_notsent_lowat, as tuning/sysctl.conf does"
    );
}
