//! The fake server's snapshots and bootstrap: as much as `loadgen` asks for, with faults.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;

use crate::server::{State, Stream, Wrong};

/// Bytes of updates one bootstrap returns, so that readers have to go on with ordinary reads.
const BOOTSTRAP_BYTES: usize = 20_000;

/// What a stream has beside its bytes.
#[derive(Default)]
pub struct Extras {
    snapshot: Option<Snapshot>,
    parts: Vec<Vec<u8>>,
}

struct Snapshot {
    offset: usize,
    content_type: String,
    body: Vec<u8>,
}

impl Snapshot {
    fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.content_type.len() as u64).to_le_bytes());
        hasher.update(self.content_type.as_bytes());
        hasher.update(&self.body);
        hasher.finalize().to_hex().to_string()
    }

    fn headers(&self) -> String {
        format!(
            "Stream-Snapshot-Offset: {:020}\r\nStream-Snapshot-Digest: {}\r\n",
            self.offset,
            self.digest()
        )
    }
}

/// A request to a path under a stream's.
pub struct Request<'a> {
    /// GET, PUT or POST.
    pub method: &'a str,
    /// The stream's path.
    pub stream: &'a str,
    /// What follows it.
    pub subresource: &'a str,
    /// By lower-case name.
    pub headers: &'a HashMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

/// The stream's path and what follows it, if anything of the extensions does.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let at = path
        .find("/snapshot/")
        .or_else(|| path.find("/bootstrap"))?;
    Some((&path[..at], &path[at + 1..]))
}

/// Answers it.
pub fn answer(state: &State, request: Request<'_>, output: &mut TcpStream) -> Option<()> {
    let mut streams = state.streams.lock().ok()?;
    let stream = streams.get_mut(request.stream)?;
    let path: Vec<&str> = request.subresource.split('/').collect();
    let (head, body) = match (request.method, path.as_slice()) {
        ("GET", ["bootstrap"]) => bootstrap(state.wrong, stream)?,
        ("GET", ["snapshot", _]) => {
            let snapshot = stream.extras.snapshot.as_ref()?;
            let mut body = snapshot.body.clone();
            if state.wrong == Wrong::AltersSnapshot {
                body[0] ^= 1;
            }
            (format!("200 OK\r\n{}", snapshot.headers()), body)
        }
        ("POST", ["snapshot", _, "parts"]) => {
            stream.extras.parts.push(request.body);
            (
                format!(
                    "201 Created\r\nStream-Snapshot-Part: part-{}\r\n",
                    stream.extras.parts.len() - 1
                ),
                Vec::new(),
            )
        }
        ("PUT", ["snapshot", offset]) => publish(stream, &request, offset.parse().ok()?)?,
        _ => ("404 Not Found\r\n".to_owned(), Vec::new()),
    };
    drop(streams);
    let length = if head.starts_with("204") {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    output
        .write_all(format!("HTTP/1.1 {head}{length}\r\n").as_bytes())
        .ok()?;
    output.write_all(&body).ok()
}

fn publish(stream: &mut Stream, request: &Request<'_>, offset: usize) -> Option<(String, Vec<u8>)> {
    let mut body = request.body.clone();
    let in_parts = request.headers.contains_key("stream-snapshot-parts");
    if in_parts {
        let ids = std::str::from_utf8(&request.body).ok()?.lines();
        let parts: Option<Vec<&[u8]>> = ids
            .map(|id| {
                Some(
                    stream
                        .extras
                        .parts
                        .get(id.strip_prefix("part-")?.parse::<usize>().ok()?)?
                        .as_slice(),
                )
            })
            .collect();
        body = parts?.concat();
    }
    let content_type = request.headers.get("content-type")?.clone();
    let snapshot = Snapshot {
        offset,
        content_type,
        body,
    };
    if in_parts && request.headers.get("stream-snapshot-digest") != Some(&snapshot.digest()) {
        return Some(("400 Bad Request\r\n".into(), Vec::new()));
    }
    let head = format!("204 No Content\r\n{}", snapshot.headers());
    stream.extras.snapshot = Some(snapshot);
    Some((head, Vec::new()))
}

fn bootstrap(wrong: Wrong, stream: &Stream) -> Option<(String, Vec<u8>)> {
    let snapshot = stream.extras.snapshot.as_ref()?;
    let bytes = stream.bytes();
    let cap = match wrong {
        Wrong::Oversize => usize::MAX - snapshot.offset,
        _ => BOOTSTRAP_BYTES,
    };
    let end = bytes.len().min(snapshot.offset + cap);
    let skipped = if wrong == Wrong::BootstrapSkips {
        256
    } else {
        0
    };
    let updates = &bytes[snapshot.offset + skipped..end];
    let mut body = format!("--b\r\nContent-Type: {}\r\n\r\n", snapshot.content_type).into_bytes();
    body.extend_from_slice(&snapshot.body);
    body.extend_from_slice(b"\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n");
    body.extend_from_slice(updates);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let whole = end == bytes.len() || wrong == Wrong::BootstrapFalseUpToDate;
    let head = format!(
        "200 OK\r\nContent-Type: multipart/mixed; boundary=b\r\nStream-Snapshot-Offset: {:020}\r\nStream-Next-Offset: {end:020}\r\n{}",
        snapshot.offset,
        if whole {
            "Stream-Up-To-Date: true\r\n"
        } else {
            ""
        }
    );
    Some((head, body))
}
