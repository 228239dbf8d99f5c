//! Stored messages as one JSON array, and where messages end.
//!
//! Stored text holds one LF behind each message and no other LF (JSON Message
//! Text, rule 2). So `m1 LF m2 LF` becomes `[m1,m2]` by putting a bracket in
//! front and replacing each LF: nothing is parsed, the length is known before
//! the first byte is, and the text may arrive in pieces cut anywhere. The
//! bytes of the messages themselves are never changed (rule 5).
#![forbid(unsafe_code)]

use memchr::{memchr, memrchr};

/// What ends every stored message.
const LF: u8 = b'\n';

/// Length in bytes of the array view of `stored_len` bytes of whole messages:
/// one more, for the opening bracket; that of `[]` if there are none.
pub const fn array_view_len(stored_len: u64) -> u64 {
    if stored_len == 0 {
        "[]".len() as u64
    } else {
        stored_len.saturating_add(1)
    }
}

/// Index behind the last LF in `bytes`: the end of its last whole message.
pub fn last_boundary(bytes: &[u8]) -> Option<usize> {
    memrchr(LF, bytes).map(|at| at.saturating_add(1))
}

/// Index behind the first LF in `bytes`: the end of its first message.
pub fn first_boundary(bytes: &[u8]) -> Option<usize> {
    memchr(LF, bytes).map(|at| at.saturating_add(1))
}

/// Turns `stored_len` bytes of stored text, given in pieces, into one array.
///
/// The caller gives whole messages: exactly `stored_len` bytes over all calls
/// of [`push`](Self::push), the last of them an LF.
#[derive(Clone, Debug)]
pub struct ArrayView {
    /// Stored bytes still to come.
    left: u64,
    /// Whether the opening bracket is out.
    opened: bool,
}

impl ArrayView {
    /// A view of `stored_len` bytes of whole messages.
    pub const fn new(stored_len: u64) -> Self {
        Self {
            left: stored_len,
            opened: false,
        }
    }

    /// Appends the view of the next `piece` of stored text to `out`.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        debug_assert!(piece.len() as u64 <= self.left, "more than announced");
        if piece.is_empty() {
            return;
        }
        self.open(out);
        // A select per byte, which compiles to wide compares and blends: as fast for one-byte
        // messages as for long ones, which a search for each LF is not (benches/lf_scan.rs).
        out.extend(piece.iter().map(|&b| if b == LF { b',' } else { b }));
        self.left = self.left.saturating_sub(piece.len() as u64);
        if self.left == 0
            && let Some(last) = out.last_mut()
        {
            debug_assert_eq!(*last, b',', "stored text ends with an LF");
            *last = b']';
        }
    }

    /// Appends what is still missing once all text was pushed: `[]` for none.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        debug_assert_eq!(self.left, 0, "less than announced");
        if !self.opened {
            self.open(out);
            out.push(b']');
        }
    }

    fn open(&mut self, out: &mut Vec<u8>) {
        if !self.opened {
            self.opened = true;
            out.push(b'[');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArrayView, array_view_len, first_boundary, last_boundary};

    fn view(pieces: &[&[u8]]) -> Vec<u8> {
        let stored_len = pieces.iter().map(|p| p.len() as u64).sum();
        let mut view = ArrayView::new(stored_len);
        let mut out = Vec::new();
        for piece in pieces {
            view.push(piece, &mut out);
        }
        view.finish(&mut out);
        assert_eq!(out.len() as u64, array_view_len(stored_len));
        out
    }

    #[test]
    fn no_message_is_an_empty_array() {
        assert_eq!(view(&[]), b"[]");
        assert_eq!(view(&[b""]), b"[]");
    }

    #[test]
    fn every_cut_gives_the_same_array() {
        let stored = b"{\"a\":\"x,y\"}\n1\n[]\n\"\\n\"\n";
        let expected = b"[{\"a\":\"x,y\"},1,[],\"\\n\"]";
        for first in 0..=stored.len() {
            for second in first..=stored.len() {
                let pieces = [&stored[..first], &stored[first..second], &stored[second..]];
                assert_eq!(view(&pieces), expected);
            }
        }
    }

    #[test]
    fn earlier_output_is_kept() {
        let mut out = b"before".to_vec();
        ArrayView::new(2).push(b"1\n", &mut out);
        assert_eq!(out, b"before[1]");
    }

    #[test]
    fn boundaries_are_behind_line_feeds() {
        assert_eq!(last_boundary(b"1\n22\n3"), Some(5));
        assert_eq!(first_boundary(b"1\n22\n3"), Some(2));
        assert_eq!(last_boundary(b"123"), None);
        assert_eq!(first_boundary(b""), None);
    }
}
