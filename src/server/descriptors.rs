//! The process's table of descriptors, what of it glommio names by number
//! only, and what waits at its listeners.

use std::{
    fs, io,
    net::SocketAddr,
    os::fd::{OwnedFd, RawFd},
};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open},
};
use socket2::SockRef;

use crate::base::limits::BACKLOG_MAX;

/// The table. glommio says what number a descriptor has, and an option of a socket wants a
/// descriptor: it is made once more from the number.
#[derive(Debug)]
pub struct Descriptors(OwnedFd);

impl Descriptors {
    /// Those of this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        Ok(Self(pidfd_open(getpid(), PidfdFlags::empty())?))
    }

    /// Another descriptor of what `number` is one of.
    ///
    /// # Errors
    /// What the system says: it is closed, or there may be no more.
    pub fn again(&self, number: RawFd) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty())?)
    }
}

/// Gives the table room for `count` descriptors, if the limit of open files allows as many. To be
/// called while there is one thread: once there are more, the kernel doubles the table only after
/// every core has been in a quiet state, 8 to 34 ms later as measured here, and whoever wanted a
/// descriptor waits.
pub fn make_room(count: u64) {
    let last = RawFd::try_from(count.saturating_sub(1)).unwrap_or(RawFd::MAX);
    // The table keeps its size when this one is closed again.
    if let Err(error) = fcntl_dupfd_cloexec(io::stdin(), last) {
        tracing::debug!("no room made for {count} descriptors: {error}");
    }
}

/// Lets [`BACKLOG_MAX`] clients wait at this process's listeners at `address`, or as many as the
/// system does (`net.core.somaxconn`). glommio asks for 1,024: of thousands that come back at once
/// the others would try again a second later.
///
/// # Errors
/// What the system says; as many wait as before.
pub fn widen_backlog(address: SocketAddr) -> io::Result<()> {
    let descriptors = Descriptors::open()?;
    for entry in fs::read_dir("/proc/self/fd")? {
        // glommio does not say what number its listener has.
        let Some(number) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may be closed meanwhile.
        let Ok(same) = descriptors.again(number) else {
            continue;
        };
        let socket = SockRef::from(&same);
        let is_at = |bound: socket2::SockAddr| bound.as_socket() == Some(address);
        if socket.is_listener().unwrap_or(false) && socket.local_addr().is_ok_and(is_at) {
            socket.listen(BACKLOG_MAX)?;
        }
    }
    Ok(())
}
