//! Bodies into stored messages: kept byte for byte, dropped, or refused.
//!
//! JSON Message Text, rules 1 to 4. Whole blocks of a body go through the
//! scanner where they lie; only what a piece leaves over is copied, to be
//! joined with the next one. The end of a body is filled up with spaces, which
//! show every number, literal and character that was cut short.
#![forbid(unsafe_code)]

use std::slice;

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

    /// At the start of a body, on a kernel of the caller's choice. What is stored is the same for
    /// all.
    #[inline]
    pub const fn with_kernel(kernel: Kernel) -> Self {
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
        let missing = BLOCK_BYTES.saturating_sub(self.pending_len);
        let waited;
        let (first, behind) = match piece.split_at_checked(missing) {
            Some((fill, behind)) if self.pending_len > 0 => {
                self.hold(fill);
                waited = self.pending;
                self.pending_len = 0;
                (slice::from_ref(&waited), behind)
            }
            // Nothing waits, or still less than a block.
            _ => (&[][..], piece),
        };
        let (blocks, rest) = if self.pending_len > 0 {
            (&[][..], behind)
        } else {
            behind.as_chunks()
        };
        if !(first.is_empty() && blocks.is_empty()) {
            self.scan([first, blocks], out)?;
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
        let held = self.pending.get(..self.pending_len).unwrap_or(&[]);
        let last = filled(held);
        let length = self.scanned.saturating_add(self.pending_len as u64);
        let end = self.scan([&[], slice::from_ref(&last)], out);
        let messages = conclude(end, length, out);
        self.failed = messages.err();
        messages
    }

    /// Keeps `bytes` for later. They are fewer than the block in waiting lacks, or just as many.
    #[inline]
    fn hold(&mut self, bytes: &[u8]) {
        let end = self.pending_len.saturating_add(bytes.len());
        if let Some(free) = self.pending.get_mut(self.pending_len..end) {
            free.copy_from_slice(bytes);
            self.pending_len = end;
        }
    }

    #[inline]
    fn scan(
        &mut self,
        parts: [&[[u8; BLOCK_BYTES]]; 2],
        out: &mut Vec<u8>,
    ) -> Result<End, JsonError> {
        let result = self.kernel.run(Some(&mut self.state), parts, out);
        let end = result.map_err(|stop| {
            let error = placed(stop, self.scanned);
            self.failed = Some(error);
            error
        })?;
        let [first, second] = parts.map(|part| part.as_flattened().len() as u64);
        self.scanned = self.scanned.saturating_add(first).saturating_add(second);
        Ok(end)
    }
}

impl Default for Normaliser {
    fn default() -> Self {
        Self::new()
    }
}

/// Appends the stored text of a whole `body` to `out`: messages, each followed by one LF. Returns
/// the number of messages. For a short body this takes a good part less time than [`Normaliser`].
///
/// # Errors
///
/// As [`Normaliser::feed`] and [`Normaliser::finish`].
pub fn normalise(body: &[u8], out: &mut Vec<u8>) -> Result<u64, JsonError> {
    normalise_on(Kernel::best(), body, out)
}

/// [`normalise`] on a kernel of the caller's choice.
///
/// # Errors
///
/// As [`normalise`].
pub fn normalise_on(kernel: Kernel, body: &[u8], out: &mut Vec<u8>) -> Result<u64, JsonError> {
    let (blocks, rest) = body.as_chunks();
    let last = filled(rest);
    let end = kernel.run(None, [blocks, slice::from_ref(&last)], out);
    conclude(end.map_err(|stop| placed(stop, 0)), body.len() as u64, out)
}

/// The last block of a body: `rest`, which is less than a block, and spaces.
#[inline]
fn filled(rest: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [b' '; BLOCK_BYTES];
    if let Some(start) = block.get_mut(..rest.len()) {
        start.copy_from_slice(rest);
    }
    block
}

/// What comes of a body of `length` bytes that was scanned to its end.
#[inline]
fn conclude(end: Result<End, JsonError>, length: u64, out: &mut Vec<u8>) -> Result<u64, JsonError> {
    match end {
        Ok(End::Single) => {
            out.push(b'\n');
            Ok(1)
        }
        Ok(End::Array(messages)) => Ok(messages),
        Ok(End::Nothing) => Err(JsonError::Empty),
        Ok(End::Inside) => Err(JsonError::Truncated),
        // Only the filling shows it: there the body would have to go on.
        Err(JsonError::Syntax { at, .. }) if at >= length => Err(JsonError::Truncated),
        Err(error) => Err(error),
    }
}

/// Why a pass stopped that began at byte `base` of the body.
#[cold]
fn placed(stop: Stop, base: u64) -> JsonError {
    match stop {
        Stop::Syntax(at, what) => JsonError::Syntax {
            at: base.saturating_add(at as u64),
            what,
        },
        Stop::Depth(at) => JsonError::Depth {
            at: base.saturating_add(at as u64),
        },
        Stop::Utf8(at) => JsonError::Utf8 {
            at: base.saturating_add_signed(at as i64),
        },
    }
}
