//! Bytes between a socket and the machine that speaks HTTP: the only place
//! that knows how sockets are read and written.
//!
//! Every wait ends with the seat's deadline, so no client holds a task for
//! ever. A waiting read needs no buffer: each attempt reads into one that the
//! whole core shares.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    net::Shutdown,
    os::fd::{AsRawFd as _, RawFd},
    pin::Pin,
    task::{Context, Poll},
};

use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, send, sendmsg},
};

use crate::server::{
    budget::Budget,
    seat::Seat,
    unsent::{UnsentBound, Wide},
};

/// Parts that one call writes at most; the system's own bound is 1,024.
const PARTS_MAX: usize = 64;

/// Why a socket is of no more use.
#[derive(Debug)]
pub enum SocketError {
    /// The client did not do its part in time.
    TimedOut,
    /// What this client makes the server hold is more than there is memory for.
    Shed,
    /// It sent on and on where it has nothing to say.
    Flooded,
    /// The connection broke.
    Broken(io::Error),
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// A client's socket.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    /// Its deadline and the news of a drain.
    pub seat: Seat,
}

impl Socket {
    /// Takes over an accepted stream.
    #[must_use]
    pub fn new(stream: TcpStream, seat: Seat) -> Self {
        // Answers are written whole; waiting for more would only delay them.
        let _ = stream.set_nodelay(true);
        Self { stream, seat }
    }

    /// One attempt to read; 0 is the client's end.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match Pin::new(&mut self.stream).poll_read(cx, buffer) {
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Ok(count)) => {
                    self.seat.received(count);
                    return Poll::Ready(Ok(count));
                }
                other => return other,
            }
        }
    }

    /// Reads what there is; 0 is the client's end.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, SocketError> {
        poll_fn(|cx| {
            if let Poll::Ready(read) = self.poll_read(cx, buffer) {
                return Poll::Ready(Ok(read?));
            }
            self.poll_over(cx)
        })
        .await
    }

    /// Writes as much of `bytes` as the socket takes without a wait, and says how much that was.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn write_at_once(&mut self, bytes: &[u8]) -> Result<usize, SocketError> {
        poll_fn(|cx| match self.poll_write(cx, bytes) {
            Poll::Pending => Poll::Ready(Ok(0)),
            written => written,
        })
        .await
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, SocketError>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                Poll::Ready(Ok(0))
            }
            Poll::Ready(Ok(0)) => {
                let end = io::Error::from(io::ErrorKind::WriteZero);
                Poll::Ready(Err(end.into()))
            }
            Poll::Ready(Ok(count)) => {
                self.seat.sent(count);
                Poll::Ready(Ok(count))
            }
            other => other.map_err(SocketError::from),
        }
    }

    /// Writes all of `bytes`. The deadline moves with every byte the client takes.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn write_all(
        &mut self,
        bytes: &[u8],
        timeout: std::time::Duration,
    ) -> Result<(), SocketError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.seat.set_timeout(timeout);
            let written = poll_fn(|cx| match self.poll_write(cx, rest) {
                Poll::Pending => self.poll_over(cx),
                written => written,
            })
            .await?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of `out` and empties it. What the socket does not take at once is charged to
    /// `budget`, with `besides` more bytes that wait with it.
    ///
    /// # Errors
    /// [`SocketError`]; [`SocketError::Shed`] when there is no memory to wait with.
    pub async fn write_charged(
        &mut self,
        out: &mut Vec<u8>,
        besides: usize,
        budget: &Budget,
        timeout: std::time::Duration,
    ) -> Result<(), SocketError> {
        let written = self.write_at_once(out).await?;
        if written < out.len() {
            // Now it may be kept for long.
            out.drain(..written);
            out.shrink_to_fit();
            let mut charge = budget.charge();
            let held = out.capacity().saturating_add(besides);
            charge.keep(held).map_err(|_| SocketError::Shed)?;
            self.write_all(out, timeout).await?;
        }
        out.clear();
        Ok(())
    }

    /// Writes all of `parts`, in order, many with one call: a client that waits is woken once for
    /// them. The deadline moves with every byte the client takes.
    ///
    /// # Errors
    /// [`SocketError`].
    pub async fn write_all_of(
        &mut self,
        parts: impl Iterator<Item = &[u8]>,
        timeout: std::time::Duration,
    ) -> Result<(), SocketError> {
        let mut slices: Vec<IoSlice> = parts.map(IoSlice::new).collect();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        while let Some(first) = rest.first().copied() {
            self.seat.set_timeout(timeout);
            let some = rest.get(..PARTS_MAX).unwrap_or(rest);
            let written = poll_fn(|cx| {
                let sent = self.send_at_once(some).transpose();
                // The stream itself waits, with the first part in hand.
                let written = sent.map_or_else(|| self.poll_write(cx, &first), Poll::Ready);
                match written {
                    Poll::Pending => self.poll_over(cx),
                    written => written,
                }
            })
            .await?;
            IoSlice::advance_slices(&mut rest, written);
        }
        Ok(())
    }

    /// Writes what the socket takes at once; `None` if that is nothing.
    fn send_at_once(&self, parts: &[IoSlice]) -> Result<Option<usize>, SocketError> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(self.stream.as_raw_fd(), parts, &[], flags, None) {
            Ok(0) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Ok(count) => {
                self.seat.sent(count);
                Ok(Some(count))
            }
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Pending until the deadline.
    pub fn poll_over<T>(&self, cx: &Context<'_>) -> Poll<Result<T, SocketError>> {
        self.seat.wake_on_end(cx.waker());
        if self.seat.is_over() {
            return Poll::Ready(Err(SocketError::TimedOut));
        }
        Poll::Pending
    }

    /// Lets the kernel take more for this client, while it is sent much.
    #[must_use]
    pub fn widen(&self, bound: &UnsentBound) -> Option<Wide> {
        bound.widen(&self.stream)
    }

    /// A way to write to this socket for somebody else, who must let go of it before the socket.
    #[must_use]
    pub fn tap(&self) -> Tap {
        Tap(self.stream.as_raw_fd())
    }

    /// Ends the writing side: the client sees the end of what was written.
    pub async fn end_writing(&self) {
        // A client that is gone already has nothing to be told.
        let _ = self.stream.shutdown(Shutdown::Write).await;
    }
}

/// Writes to a socket that another task has; see [`Socket::tap`].
#[derive(Clone, Copy, Debug)]
pub struct Tap(RawFd);

impl Tap {
    /// Sends as much of `bytes` as the socket takes at once.
    ///
    /// # Errors
    /// The connection broke; its own task is to find out how.
    pub fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        match send(
            self.0,
            bytes,
            MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        ) {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            sent => sent,
        }
    }
}
