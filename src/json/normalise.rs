//! Bodies into stored messages: kept byte for byte, dropped, or refused.
//!
//! JSON Message Text, rules 1 to 4. Whole blocks of a body go through the
//! scanner where they lie; only what a piece leaves over is copied, to be
//! joined with the next one. The end of a body is filled up with spaces, which
//! show every number, literal and character that was cut short.
#![forbid(unsafe_code)]

use crate::json::error::JsonError;
use crate::json::grammar::{BLOCK_BYTES, End};
use crate::json::scan::{Kernel, State, Stop};

/// Turns one body, given in pieces of any size, into stored text.
///
/// After an error the same error is all that is ever returned.
#[derive(Clone, Debug)]
pub struct Normaliser {
    kernel: Kernel,
    state: State,
    /// The first `pending_len` bytes are waiting for the rest of their block.
    pending: [u8; BLOCK_BYTES],
    pending_len: usize,
    /// Bytes of the body that went through the scanner.
    scanned: u64,
    failed: Option<JsonError>,
}

impl Normaliser {
    /// At the start of a body.
    #[inline]
    pub fn new() -> Self {
        Self::with_kernel(Kernel::best())
    }

    /// At the start of a body, on one of [`kernel_names`], to compare them. What is stored is the
    /// same for all.
    pub fn for_kernel(name: &str) -> Option<Self> {
        Kernel::available()
            .find(|kernel| kernel.name() == name)
            .map(Self::with_kernel)
    }

    /// With a kernel of the caller's choice.
    #[inline]
    pub(super) const fn with_kernel(kernel: Kernel) -> Self {
        Self {
            kernel,
            state: State::new(),
            pending: [b' '; BLOCK_BYTES],
            pending_len: 0,
            scanned: 0,
            failed: None,
        }
    }

    /// Judges the next `piece` of the body and appends to `out` what can be stored of it so far:
    /// messages, each followed by one LF. Up to 63 bytes wait for the next piece.
    ///
    /// Reserves the size of the piece and up to two blocks more.
    ///
    /// # Errors
    ///
    /// If what came so far cannot be the start of a body. `out` may have grown and is the
    /// caller's to truncate; what it held before is untouched.
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), JsonError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut rest = piece;
        if self.pending_len > 0 {
            let (fill, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - self.pending_len));
            self.hold(fill);
            rest = behind;
            if self.pending_len < BLOCK_BYTES {
                return Ok(());
            }
            self.pending_len = 0;
            let block = self.pending;
            self.scan(&[block], out)?;
        }
        let (blocks, rest) = rest.as_chunks();
        if !blocks.is_empty() {
            self.scan(blocks, out)?;
        }
        self.hold(rest);
        Ok(())
    }

    /// Ends the body. Returns the number of its messages, which is 0 for `[]`: whether that is an
    /// error is the caller's to say.
    ///
    /// # Errors
    ///
    /// If the body is not whole or was refused before. `out` is as after an error of
    /// [`feed`](Self::feed).
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<u64, JsonError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut block = [b' '; BLOCK_BYTES];
        let held = self.pending.iter().take(self.pending_len);
        for (to, from) in block.iter_mut().zip(held) {
            *to = *from;
        }
        let length = self.scanned + self.pending_len as u64;
        let scanned = self.scan(&[block], out).map_err(|error| match error {
            // Only the filling shows it: there the body would have to go on.
            JsonError::Syntax { at, .. } if at >= length => JsonError::Truncated,
            other => other,
        });
        let messages = scanned.and_then(|()| match self.state.grammar.end() {
            End::Inside => Err(JsonError::Truncated),
            End::Nothing => Err(JsonError::Empty),
            End::Array(messages) => Ok(messages),
            End::Single => {
                out.push(b'\n');
                Ok(1)
            }
        });
        self.failed = messages.err();
        messages
    }

    /// Keeps `bytes` for later. They are fewer than the block in waiting lacks, or just as many.
    #[inline]
    fn hold(&mut self, bytes: &[u8]) {
        for (to, from) in self.pending.iter_mut().skip(self.pending_len).zip(bytes) {
            *to = *from;
        }
        self.pending_len += bytes.len();
    }

    #[inline]
    fn scan(&mut self, blocks: &[[u8; BLOCK_BYTES]], out: &mut Vec<u8>) -> Result<(), JsonError> {
        let result = self.kernel.run(&mut self.state, blocks, out);
        result.map_err(|stop| {
            let base = self.scanned;
            let error = match stop {
                Stop::Syntax(at, what) => JsonError::Syntax {
                    at: base + at as u64,
                    what,
                },
                Stop::Depth(at) => JsonError::Depth {
                    at: base + at as u64,
                },
                Stop::Utf8(at) => JsonError::Utf8 {
                    at: base.saturating_add_signed(at as i64),
                },
            };
            self.failed = Some(error);
            error
        })?;
        self.scanned += blocks.as_flattened().len() as u64;
        Ok(())
    }
}

impl Default for Normaliser {
    fn default() -> Self {
        Self::new()
    }
}

/// The instruction sets with a scanner that this CPU can run, the fastest first. [`Normaliser::new`]
/// takes the first.
pub fn kernel_names() -> impl Iterator<Item = &'static str> {
    Kernel::available().map(|kernel| kernel.name())
}

/// Appends the stored text of a whole `body` to `out`: messages, each followed by one LF. Returns
/// the number of messages.
///
/// # Errors
///
/// As [`Normaliser::feed`] and [`Normaliser::finish`].
pub fn normalise(body: &[u8], out: &mut Vec<u8>) -> Result<u64, JsonError> {
    let mut normaliser = Normaliser::new();
    normaliser.feed(body, out)?;
    normaliser.finish(out)
}
