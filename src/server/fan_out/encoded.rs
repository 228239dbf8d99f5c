//! An event encoded once for all members of a crowd that are at its start: a
//! data event and its control event, in one chunk where the answer is chunked.

use std::cell::Cell;

use bytes::Bytes;

use crate::{
    http::encode,
    protocol::sse::{self, Control},
    server::event_stream::{Fetched, HEAD_ROOM, Shape},
};

/// An event as it is sent.
#[derive(Debug)]
pub struct Encoded {
    /// How it is written.
    pub shape: Shape,
    /// The offset that it begins at.
    pub start: u64,
    /// The offset after it.
    pub end: u64,
    /// The tail when it was fetched.
    pub tail: u64,
    /// All of it: the data event and a control event without a client's own cursor, in a chunk.
    pub whole: Bytes,
    /// The data event alone.
    pub data: Bytes,
    /// Waited for, and to be sent even if the tail has moved since.
    pub is_awaited: Cell<bool>,
}

impl Encoded {
    /// Encodes what was fetched from `start` on, with the cursor that clients without their own get.
    pub fn new(fetched: Fetched, start: u64, shape: Shape, cursor: u64, is_awaited: bool) -> Self {
        let Fetched {
            end,
            tail,
            mut text,
            charge,
            ..
        } = fetched;
        let data_end = text.len();
        let control = Control {
            next: end,
            cursor,
            up_to_date: end == tail,
            closed: false,
        };
        sse::control_event(&control, &mut text);
        let mut whole_start = HEAD_ROOM;
        if shape.chunked {
            let mut head = Vec::with_capacity(HEAD_ROOM);
            let len = text.len().saturating_sub(HEAD_ROOM);
            encode::chunk_start(&mut head, len as u64);
            whole_start = whole_start.saturating_sub(head.len());
            if let Some(room) = text.get_mut(whole_start..HEAD_ROOM) {
                room.copy_from_slice(&head);
            }
            encode::chunk_end(&mut text);
        }
        let text = charge.with(text);
        Self {
            shape,
            start,
            end,
            tail,
            whole: text.slice(whole_start..),
            data: text.slice(HEAD_ROOM..data_end),
            is_awaited: Cell::new(is_awaited),
        }
    }

    /// Writes it into `out` with a client's own cursor.
    pub fn with_cursor(&self, cursor: u64, out: &mut Vec<u8>) {
        let control = Control {
            next: self.end,
            cursor,
            up_to_date: self.end == self.tail,
            closed: false,
        };
        let mut text = Vec::with_capacity(128);
        sse::control_event(&control, &mut text);
        out.clear();
        self.shape.push(&[&self.data, &text], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_chunk_with_its_control_event() {
        let budget = crate::server::budget::Budget::new(1 << 20);
        let shape = |chunked| Shape {
            bytes_max: 64,
            framing: sse::Framing::Text,
            surface: crate::protocol::stream_key::Surface::Base,
            chunked,
        };
        let event = |chunked| {
            let mut text = vec![0; HEAD_ROOM];
            sse::data_event(sse::Framing::Text, b"ab", false, &mut text);
            let fetched = Fetched {
                end: 7,
                tail: 9,
                closed: false,
                text,
                charge: budget.charge(),
            };
            Encoded::new(fetched, 5, shape(chunked), 3, false)
        };
        let text = b"event: data\ndata:ab\n\nevent: control\ndata:{\"streamNextOffset\":\"00000000000000000007\",\"streamCursor\":\"3\"}\n\n";
        let plain = event(false);
        assert_eq!(plain.whole, text[..]);
        let chunk = event(true);
        let (head, rest) = chunk.whole.split_at(4);
        assert_eq!(head, format!("{:x}\r\n", text.len()).as_bytes());
        assert_eq!(rest, [&text[..], b"\r\n"].concat());
        // With the same cursor a client's own event is no other.
        let mut own = Vec::new();
        chunk.with_cursor(3, &mut own);
        assert_eq!(own, chunk.whole);
        plain.with_cursor(4, &mut own);
        let other = String::from_utf8_lossy(text).replace(":\"3\"", ":\"4\"");
        assert_eq!(String::from_utf8_lossy(&own), other);
    }
}
