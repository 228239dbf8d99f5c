//! What the kernel takes for a client who does not read: no more than
//! [`SOCKET_UNSENT_BYTES_MAX`] beyond what it has sent, where the system lets
//! that be set; for [`WIDE_ANSWERS_MAX`] clients of a core who are sent much,
//! [`WIDE_UNSENT_BYTES_MAX`].

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
};

use socket2::SockRef;

use crate::{
    base::limits::{SOCKET_UNSENT_BYTES_MAX, WIDE_ANSWERS_MAX, WIDE_UNSENT_BYTES_MAX},
    server::descriptors::Descriptors,
};

/// Bounds what the kernel takes for clients that do not read, where the system lets it.
#[derive(Debug)]
pub struct UnsentBound {
    descriptors: RefCell<Option<Descriptors>>,
    wide: Rc<Cell<usize>>,
}

impl UnsentBound {
    /// Finds out whether the system lets it, for the core of `shard`.
    #[must_use]
    pub fn new(shard: usize) -> Self {
        let descriptors = Descriptors::open();
        Self {
            descriptors: RefCell::new(
                descriptors
                    .map_err(|error| warn_unbound(shard, &error))
                    .ok(),
            ),
            wide: Rc::default(),
        }
    }

    /// To [`SOCKET_UNSENT_BYTES_MAX`] beyond what it has sent this one.
    pub fn apply(&self, shard: usize, stream: &impl AsRawFd) {
        let mut descriptors = self.descriptors.borrow_mut();
        let Some(open) = &*descriptors else { return };
        let bound = open
            .again(stream.as_raw_fd())
            .and_then(|same| set(&same, SOCKET_UNSENT_BYTES_MAX));
        match bound {
            // Too many are open: the next may have it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {}
            Err(error) => {
                warn_unbound(shard, &error);
                *descriptors = None;
            }
            Ok(()) => {}
        }
    }

    /// More for this one, who is sent much: it is woken less often. `None` if as many have it.
    #[must_use]
    pub fn widen(&self, stream: &impl AsRawFd) -> Option<Wide> {
        let count = self.wide.get();
        if count >= WIDE_ANSWERS_MAX {
            return None;
        }
        let descriptors = self.descriptors.borrow();
        let socket = descriptors.as_ref()?.again(stream.as_raw_fd()).ok()?;
        set(&socket, WIDE_UNSENT_BYTES_MAX).ok()?;
        self.wide.set(count.saturating_add(1));
        Some(Wide {
            socket,
            is_wide: true,
            wide: self.wide.clone(),
        })
    }
}

/// One of the [`WIDE_ANSWERS_MAX`], until it is dropped.
#[derive(Debug)]
pub struct Wide {
    socket: OwnedFd,
    is_wide: bool,
    wide: Rc<Cell<usize>>,
}

impl Wide {
    /// Back to [`SOCKET_UNSENT_BYTES_MAX`]. It stays one of the many until it has been sent what was
    /// taken for it, which is so when the socket takes more.
    pub fn narrow(&mut self) {
        if std::mem::take(&mut self.is_wide) {
            // It was set a moment ago; of a broken socket the next write will tell.
            let _ = set(&self.socket, SOCKET_UNSENT_BYTES_MAX);
        }
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        self.narrow();
        self.wide.set(self.wide.get().saturating_sub(1));
    }
}

fn set(socket: &OwnedFd, bytes: u32) -> io::Result<()> {
    SockRef::from(socket).set_tcp_notsent_lowat(bytes)
}

fn warn_unbound(shard: usize, error: &io::Error) {
    tracing::warn!(
        shard,
        "this system lets no bound be set to what it takes for a client that does not read \
         ({error}): set net.ipv4.tcp_notsent_lowat, as tuning/sysctl.conf does"
    );
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn taken(stream: &TcpStream) -> u32 {
        SockRef::from(stream).tcp_notsent_lowat().expect("Linux")
    }

    #[test]
    fn a_wide_answer_is_narrow_before_another_is_wide() {
        let bound = UnsentBound::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let connect = || TcpStream::connect(address).expect("it listens");
        let streams: Vec<_> = (0..=WIDE_ANSWERS_MAX).map(|_| connect()).collect();
        for stream in &streams {
            bound.apply(0, stream);
            assert_eq!(taken(stream), SOCKET_UNSENT_BYTES_MAX);
        }
        let (one_more, first) = streams.split_last().expect("there are some");
        let mut wide: Vec<_> = first
            .iter()
            .map(|stream| bound.widen(stream).expect("there is one"))
            .collect();
        assert!(first.iter().all(|s| taken(s) == WIDE_UNSENT_BYTES_MAX));
        assert!(bound.widen(one_more).is_none());
        assert_eq!(taken(one_more), SOCKET_UNSENT_BYTES_MAX);
        // A narrow one still has its place: what it was sent before may not have gone.
        wide[0].narrow();
        assert_eq!(taken(&first[0]), SOCKET_UNSENT_BYTES_MAX);
        assert!(bound.widen(one_more).is_none());
        drop(wide);
        assert!(first.iter().all(|s| taken(s) == SOCKET_UNSENT_BYTES_MAX));
        assert!(bound.widen(one_more).is_some());
    }
}
