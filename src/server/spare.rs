//! Buffers that pass from one connection of a core to the next.
//!
//! A connection that waits for a request holds none, so that an idle one is
//! small; the next that has something to do takes what the last has left, which
//! is in the cache still. At most [`PARTS_MAX`] are kept, each of a usual size.

use std::cell::{Cell, RefCell};

use crate::{base::limits::KIB, http::connection::Buffers, server::latency::Timed};

/// Sets of buffers kept per core: about 1.5 MiB.
const PARTS_MAX: usize = 256;
/// Larger buffers of answers than this are not kept, in bytes. Sixteen answers fit: a connection
/// that pipelines does not grow another buffer for each lot of them.
const OUT_BYTES_MAX: usize = 16 * KIB;
/// Bytes of buffers of answers kept in all.
const OUT_BYTES_KEPT_MAX: usize = PARTS_MAX * 4 * KIB;
/// Longer lists of watches than this are not kept.
const WATCHES_MAX: usize = 64;

/// What a connection needs while a request is on its way.
#[derive(Debug, Default)]
pub struct Parts {
    /// What was received.
    pub buffers: Option<Buffers>,
    /// Answers to be written.
    pub out: Vec<u8>,
    /// Their watches.
    pub unwritten: Vec<Timed>,
}

/// A core's buffers of which no connection has need.
#[derive(Debug, Default)]
pub struct Spare {
    kept: RefCell<Vec<Parts>>,
    /// Bytes of their buffers of answers.
    out_bytes: Cell<usize>,
}

impl Spare {
    /// A set, empty, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Parts> {
        let parts = self.kept.borrow_mut().pop()?;
        let out_bytes = self.out_bytes.get().saturating_sub(parts.out.capacity());
        self.out_bytes.set(out_bytes);
        Some(parts)
    }

    /// Keeps `parts` for others, or drops them.
    pub fn put(&self, mut parts: Parts) {
        let mut kept = self.kept.borrow_mut();
        let out_bytes = self.out_bytes.get().saturating_add(parts.out.capacity());
        let is_usual = parts.buffers.is_some()
            && parts.out.capacity() <= OUT_BYTES_MAX
            && parts.unwritten.capacity() <= WATCHES_MAX;
        if is_usual && kept.len() < PARTS_MAX && out_bytes <= OUT_BYTES_KEPT_MAX {
            self.out_bytes.set(out_bytes);
            parts.out.clear();
            parts.unwritten.clear();
            kept.push(parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::limits::Limits,
        http::connection::{Connection, ConnectionLimits},
    };

    /// Those of a connection that has just served a small request.
    fn used() -> Parts {
        let mut connection = Connection::new(ConnectionLimits::from(&Limits::default()));
        connection.receive(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        connection.next_head();
        connection.reject();
        let _ = connection.finish();
        Parts {
            buffers: connection.release(),
            out: b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            unwritten: Vec::new(),
        }
    }

    #[test]
    fn what_one_lets_go_of_another_takes_empty() {
        let spare = Spare::default();
        assert!(spare.take().is_none());
        spare.put(used());
        let parts = spare.take().unwrap();
        assert!(parts.out.is_empty() && parts.out.capacity() > 0);
        let mut next = Connection::new(ConnectionLimits::from(&Limits::default()));
        next.lend(parts.buffers.unwrap());
        assert!(next.memory_bytes() > 0);
        assert!(!next.has_input());
        assert!(spare.take().is_none());
    }

    #[test]
    fn neither_many_nor_large_ones_are_kept() {
        let spare = Spare::default();
        spare.put(Parts::default());
        spare.put(Parts {
            out: Vec::with_capacity(OUT_BYTES_MAX + 1),
            ..used()
        });
        assert!(spare.take().is_none());
        for _ in 0..=PARTS_MAX {
            spare.put(used());
        }
        let kept = || std::iter::from_fn(|| spare.take()).count();
        assert_eq!(kept(), PARTS_MAX);
        for _ in 0..PARTS_MAX {
            spare.put(Parts {
                out: Vec::with_capacity(OUT_BYTES_MAX),
                ..used()
            });
        }
        assert_eq!(kept(), OUT_BYTES_KEPT_MAX / OUT_BYTES_MAX);
        spare.put(used());
        assert_eq!(kept(), 1);
    }
}
