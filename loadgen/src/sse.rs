//! Server-sent events as they arrive, cut anywhere.
//!
//! An event that lies whole in the input is handed on in place; only the beginning of one whose end is not in sight is kept.

/// An event may have this many bytes; what is longer is dropped and reported.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// One event, up to the empty line that ends it.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a>(&'a [u8]);

impl<'a> Event<'a> {
    /// Its type; empty for comments and for events without one.
    pub fn kind(&self) -> &'a [u8] {
        self.values(b"event").next().unwrap_or_default()
    }

    /// Its data, line by line.
    pub fn data(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.values(b"data")
    }

    fn values(&self, field: &'static [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let lines = self
            .0
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        lines.filter_map(move |line| {
            let value = line.strip_prefix(field)?.strip_prefix(b":")?;
            Some(value.strip_prefix(b" ").unwrap_or(value))
        })
    }
}

/// An event longer than any may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Cuts a byte stream into events.
#[derive(Debug, Default)]
pub struct EventParser {
    pending: Vec<u8>,
    /// Bytes of `pending` in which no end was found.
    scanned: usize,
}

impl EventParser {
    /// Forgets the beginning of an event.
    pub fn reset(&mut self) {
        self.pending.clear();
        self.scanned = 0;
    }

    /// Takes the next bytes and hands on each event they complete.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), TooLong> {
        if !self.pending.is_empty() {
            let before = self.pending.len();
            self.pending.extend_from_slice(bytes);
            let Some(end) = event_end(&self.pending, self.scanned) else {
                // The end is at most three bytes long, and the last of them may be yet to come.
                self.scanned = self.pending.len().saturating_sub(3);
                return if self.pending.len() > EVENT_BYTES_MAX {
                    Err(TooLong)
                } else {
                    Ok(())
                };
            };
            on_event(Event(&self.pending[..end]));
            bytes = &bytes[end.saturating_sub(before)..];
            self.reset();
        }
        let mut at = 0;
        while let Some(end) = event_end(bytes, at) {
            on_event(Event(&bytes[at..end]));
            at = end;
        }
        self.pending.extend_from_slice(&bytes[at..]);
        Ok(())
    }
}

/// One past the empty line that ends the event which starts at or before `from`.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).find_map(|at| {
        let after = &bytes[from + at + 1..];
        match after {
            [b'\n', ..] => Some(from + at + 2),
            [b'\r', b'\n', ..] => Some(from + at + 3),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::EventParser;

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = EventParser::default();
        let mut list = Vec::new();
        for chunk in chunks {
            parser
                .feed(chunk, &mut |event| {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let data: Vec<String> = event.data().map(text).collect();
                    list.push((text(event.kind()), data.join("|")));
                })
                .expect("short");
        }
        list
    }

    #[test]
    fn every_cut_gives_the_same_events() {
        for text in [
            "event: data\ndata: a\ndata:b\n\n: ping\n\nevent: control\ndata: {}\n\n",
            "event: data\r\ndata: a\r\ndata:b\r\n\r\n: ping\r\n\r\nevent: control\r\ndata: {}\r\n\r\n",
        ] {
            let whole = events(&[text.as_bytes()]);
            assert_eq!(whole[0], ("data".into(), "a|b".into()));
            assert_eq!(whole[1], (String::new(), String::new()));
            assert_eq!(whole[2], ("control".into(), "{}".into()));
            for cut in 0..=text.len() {
                assert_eq!(
                    events(&[&text.as_bytes()[..cut], &text.as_bytes()[cut..]]),
                    whole,
                    "cut at {cut}"
                );
            }
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(events(&bytes), whole);
        }
    }
}
