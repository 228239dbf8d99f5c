//! The conversation with the admin plane of a server whose directory is copied:
//! one connection, which is the hold.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc, OnceLock,
        mpsc::{self, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{BackupError, HOLD_TIMEOUT, STOP_PATIENCE, held::HeldDirectory};

const PATH: &str = "/__ursula/backup";
/// How often the hold is asked after: it must not be taken for one that nobody has, and a server that
/// goes down waits for it.
const INTERVAL: Duration = Duration::from_millis(250);
/// Longest answer, in bytes: a thousand shards take a fifth.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Longest line of an answer's head, in bytes.
const LINE_BYTES_MAX: u64 = 8 << 10;

const _: () = assert!(INTERVAL.as_millis() * 10 < HOLD_TIMEOUT.as_millis());
const _: () = assert!(INTERVAL.as_millis() * 4 < STOP_PATIENCE.as_millis());

/// A hold that a server has given.
pub(super) struct Hold {
    /// Set when it is over.
    lost: Arc<OnceLock<String>>,
    end: mpsc::Sender<()>,
    keeper: JoinHandle<()>,
}

impl Hold {
    /// Asks the admin plane at `address` for one.
    pub(super) fn begin(address: &str) -> Result<(Self, HeldDirectory), BackupError> {
        let mut connection = Connection::open(address).map_err(|source| BackupError::Admin {
            address: address.to_owned(),
            source,
        })?;
        let asked = connection.ask("POST");
        let (status, body) = asked.map_err(|source| BackupError::Admin {
            address: address.to_owned(),
            source,
        })?;
        let refused = |reason: String| BackupError::Refused {
            address: address.to_owned(),
            reason,
        };
        if status == 404 {
            let reason = "it knows no backups; is the server older than this program?";
            return Err(refused(reason.to_owned()));
        }
        if status == 400 {
            let reason = format!(
                "400 {}; give the address of the server's --admin-listen, not of --listen",
                message(&body)
            );
            return Err(refused(reason));
        }
        if status != 200 {
            return Err(refused(format!("{status} {}", message(&body))));
        }
        let held = serde_json::from_slice(&body)
            .map_err(|error| refused(format!("its answer makes no sense: {error}")))?;
        let lost = Arc::new(OnceLock::new());
        let (end, ended) = mpsc::channel();
        let hold = Self {
            keeper: thread::spawn({
                let lost = lost.clone();
                move || keep(connection, &ended, &lost)
            }),
            lost,
            end,
        };
        Ok((hold, held))
    }

    /// Whether it is in force still.
    pub(super) fn check(&self) -> Result<(), BackupError> {
        match self.lost.get() {
            Some(reason) => Err(BackupError::Lost {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Gives it back; an error if it was not in force until now.
    pub(super) fn end(self) -> Result<(), BackupError> {
        let _ = self.end.send(());
        if self.keeper.join().is_err() {
            return Err(BackupError::Lost {
                reason: String::from("the thread that kept the hold ended"),
            });
        }
        match self.lost.get() {
            Some(reason) => Err(BackupError::Lost {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// Asks after the hold until told to end it, or it is lost.
fn keep(mut connection: Connection, ended: &mpsc::Receiver<()>, lost: &OnceLock<String>) {
    loop {
        let method = match ended.recv_timeout(INTERVAL) {
            Ok(()) => "DELETE",
            Err(RecvTimeoutError::Timeout) => "GET",
            // Nobody wants it any more: it ends with the connection.
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let reason = match connection.ask(method) {
            Ok((200, _)) if method == "DELETE" => return,
            Ok((200, _)) => continue,
            Ok((_, body)) => message(&body),
            Err(error) => format!("the server is gone ({error})"),
        };
        let _ = lost.set(reason);
        return;
    }
}

/// What a refusal's body says.
fn message(body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = parsed.as_ref().and_then(|body| {
        let error = body.get("error")?;
        error.get("message")?.as_str()
    });
    match said {
        Some(said) => said.to_owned(),
        None => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: &str) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, HOLD_TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(HOLD_TIMEOUT))?;
                    stream.set_write_timeout(Some(HOLD_TIMEOUT))?;
                    stream.set_nodelay(true)?;
                    let stream = BufReader::new(stream);
                    return Ok(Self { stream });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// One request without a body; status and body of its answer.
    fn ask(&mut self, method: &str) -> io::Result<(u16, Vec<u8>)> {
        // The peer's own name may be one that the admin plane does not answer to.
        let host = self.stream.get_ref().peer_addr()?;
        let request =
            format!("{method} {PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| malformed("no status line"))?;
        let mut length = 0;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(malformed("a header without a colon"));
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(|_| malformed("no length"))?;
            }
        }
        if length > ANSWER_BYTES_MAX {
            return Err(malformed("an answer that is too long"));
        }
        let mut body = Vec::new();
        self.stream.by_ref().take(length).read_to_end(&mut body)?;
        if (body.len() as u64) < length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok((status, body))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut bounded = self.stream.by_ref().take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("{what}: is this an admin plane?"),
    )
}
