//! Server-sent events, parsed as the HTML standard tells a browser to.

use serde_json::Value;

use super::http::{Connection, Head, Request};

/// One dispatched event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field.
    pub kind: String,
    /// The `data:` lines, joined by LF.
    pub data: String,
}

impl Event {
    /// The data as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The data as the bytes it encodes (binary streams).
    #[track_caller]
    pub fn bytes(&self) -> Vec<u8> {
        use base64::Engine as _;
        use base64::engine::general_purpose::STANDARD;
        let text: String = self.data.chars().filter(|c| !"\r\n".contains(*c)).collect();
        STANDARD
            .decode(text)
            .unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// An open SSE response.
#[derive(Debug)]
pub struct EventSource {
    /// The head of the response.
    pub head: Head,
    connection: Connection,
    parser: Parser,
    ended: bool,
}

impl EventSource {
    /// Sends `request` and expects an SSE response to begin.
    #[track_caller]
    pub fn open(request: &Request) -> Self {
        let mut connection = request.open();
        let head = connection.read_head();
        assert_eq!(head.status, 200, "SSE did not start: {head:?}");
        let content_type = head.header("content-type").unwrap_or_default();
        assert!(
            content_type.starts_with("text/event-stream"),
            "no SSE: {head:?}"
        );
        assert_eq!(
            head.header("transfer-encoding"),
            Some("chunked"),
            "of {head:?}"
        );
        Self {
            head,
            connection,
            parser: Parser::default(),
            ended: false,
        }
    }

    /// The next event; `None` once the server has ended the response.
    #[track_caller]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.parser.take_event() {
                return Some(event);
            }
            if !self.read_more() {
                return None;
            }
        }
    }

    /// The next event, which must be of `kind`.
    #[track_caller]
    pub fn expect(&mut self, kind: &str) -> Event {
        let event = self
            .next_event()
            .unwrap_or_else(|| panic!("ended instead of {kind}"));
        assert_eq!(event.kind, kind, "of {event:?}");
        event
    }

    /// The next event, which must be a control event, as JSON.
    #[track_caller]
    pub fn control(&mut self) -> Value {
        self.expect("control").json()
    }

    /// Asserts that the server ends the response without another event.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let event = self.next_event();
        assert!(event.is_none(), "an event after the last one: {event:?}");
    }

    /// Waits for a comment line, reading past events.
    #[track_caller]
    pub fn next_comment(&mut self) -> Option<String> {
        loop {
            if let Some(comment) = self.parser.comments.pop() {
                return Some(comment);
            }
            if !self.read_more() {
                return None;
            }
        }
    }

    /// Reads all events and the bytes of the data events until a control
    /// event says that the reader is at the tail.
    #[track_caller]
    pub fn until_up_to_date(&mut self, decode: impl Fn(&Event) -> Vec<u8>) -> (Vec<u8>, Value) {
        let mut bytes = Vec::new();
        loop {
            let event = self
                .next_event()
                .expect("the response goes on until its tail");
            match event.kind.as_str() {
                "data" => bytes.extend(decode(&event)),
                "control" => {
                    let control = event.json();
                    if control["upToDate"] == true {
                        return (bytes, control);
                    }
                }
                _ => panic!("unexpected {event:?}"),
            }
        }
    }

    #[track_caller]
    fn read_more(&mut self) -> bool {
        if self.ended {
            return false;
        }
        match self.connection.read_chunk() {
            Some(chunk) => self.parser.push(&chunk),
            None => self.ended = true,
        }
        !self.ended
    }
}

/// The parser: lines end with LF, CR or CRLF, wherever chunks are cut.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    after_cr: bool,
    kind: String,
    data: Vec<String>,
    has_data: bool,
    events: std::collections::VecDeque<Event>,
    comments: Vec<String>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let ends_crlf = self.after_cr && byte == b'\n';
            self.after_cr = byte == b'\r';
            match byte {
                b'\n' if ends_crlf => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    self.end_line(&line);
                }
                _ => self.line.push(byte),
            }
        }
    }

    fn end_line(&mut self, line: &[u8]) {
        let line = std::str::from_utf8(line)
            .unwrap_or_else(|_| panic!("an event stream is UTF-8: {line:?}"));
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => self.comments.push(value.to_owned()),
            "event" => self.kind = value.to_owned(),
            "data" => {
                self.has_data = true;
                self.data.push(value.to_owned());
            }
            _ => panic!("neither a browser nor our clients know the field {field:?}"),
        }
    }

    fn dispatch(&mut self) {
        let kind = std::mem::take(&mut self.kind);
        let data = std::mem::take(&mut self.data).join("\n");
        if std::mem::take(&mut self.has_data) {
            self.events.push_back(Event { kind, data });
        }
    }

    fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
