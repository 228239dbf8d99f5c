//! What the server itself says of the same requests: Thalweg's latency profile, beside the client's own figures.
//!
//! The profile is emptied when measurement begins and read when it ends, each within one interval of the observer, so it holds
//! nearly the same requests. `request` is the server's time for one: from when its bytes are there to when its answer is with the
//! kernel. What the client has beyond that is what lies between the two: both kernels' TCP, the wait in the server's socket until its
//! task runs, the wait in the client's until its thread does. At a fixed rate the client counts from when a request was due; the time
//! until it was sent is in the difference too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

const PATH: &str = "/__ursula/latency";
/// Time limit of one request to the admin plane: a busy core of the server may take five seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The series of whole requests.
pub const REQUEST: &str = "request";
/// Series in the order in which they are shown: the whole, then its stages as a request meets them. What else there is comes behind.
const ORDER: [&str; 10] = [
    REQUEST, "head", "body", "mailbox", "decide", "staging", "journal", "wake", "write", "wait",
];

/// The server's own profile of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerLatency {
    /// The admin plane it came from.
    pub url: String,
    /// Its series that have counted something, `request` first and its stages behind it.
    pub series: Vec<Series>,
}

/// One series: a stage, or whole requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// How many times it counted.
    pub count: u64,
    /// The mean, microseconds.
    pub mean_us: f64,
    /// Half are no longer.
    pub p50_us: f64,
    /// 90 % are no longer.
    pub p90_us: f64,
    /// 99 % are no longer.
    pub p99_us: f64,
    /// 99.9 % are no longer.
    pub p999_us: f64,
    /// The greatest.
    pub max_us: f64,
}

impl ServerLatency {
    /// A series by name.
    pub fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    fn parse(url: &str, body: &[u8]) -> io::Result<ServerLatency> {
        let answer: Value = serde_json::from_slice(body)?;
        let all = answer.get("overall").and_then(Value::as_object);
        let all =
            all.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no latency profile"))?;
        let mut series: Vec<Series> = all
            .iter()
            .map(|(name, times)| {
                let number = |field: &str| times.get(field).and_then(Value::as_f64).unwrap_or(0.0);
                Series {
                    name: name.clone(),
                    count: times.get("count").and_then(Value::as_u64).unwrap_or(0),
                    mean_us: number("mean_us"),
                    p50_us: number("p50_us"),
                    p90_us: number("p90_us"),
                    p99_us: number("p99_us"),
                    p999_us: number("p99_9_us"),
                    max_us: number("max_us"),
                }
            })
            .filter(|series| series.count > 0)
            .collect();
        let place = |series: &Series| {
            let known = ORDER.iter().position(|name| *name == series.name);
            known.unwrap_or(ORDER.len())
        };
        series.sort_by_key(place);
        Ok(ServerLatency {
            url: url.to_owned(),
            series,
        })
    }
}

/// Empties the profile when measurement begins, and reads it when it ends.
#[derive(Debug)]
pub struct Watch {
    url: String,
    address: SocketAddr,
    emptied: bool,
    read: Option<io::Result<ServerLatency>>,
}

impl Watch {
    /// For the admin plane at `url`, which has a profile.
    pub fn new(url: &str) -> Result<Watch, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("--server-latency {url}: {what}");
        let authority = url.strip_prefix("http://").unwrap_or(url);
        let authority = authority.trim_end_matches('/');
        let mut addresses = authority.to_socket_addrs().map_err(|error| wrong(&error))?;
        let address = addresses.next().ok_or_else(|| wrong(&"no address"))?;
        let watch = Watch {
            url: url.to_owned(),
            address,
            emptied: false,
            read: None,
        };
        watch.fetch().map_err(|error| wrong(&error))?;
        Ok(watch)
    }

    /// To be called often: empties at the first call after `from`, reads at the first after `to`.
    pub fn look(&mut self, now: u64, from: u64, to: u64) {
        if !self.emptied && now >= from {
            self.emptied = true;
            if let Err(error) = self.ask("DELETE", PATH) {
                self.read = Some(Err(error));
            }
        } else if self.read.is_none() && now >= to {
            self.read = Some(self.fetch());
        }
    }

    /// The profile, or why there is none.
    pub fn finish(self) -> Result<ServerLatency, String> {
        match self.read {
            Some(Ok(profile)) => Ok(profile),
            Some(Err(error)) => Err(format!("{}: {error}", self.url)),
            None => Err(format!(
                "{}: the measurement ended before it was asked",
                self.url
            )),
        }
    }

    fn fetch(&self) -> io::Result<ServerLatency> {
        let body = self.ask("GET", &format!("{PATH}?hdr=false"))?;
        ServerLatency::parse(&self.url, &body)
    }

    fn ask(&self, method: &str, path: &str) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let host = self.address;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        let end = memchr::memmem::find(&answer, b"\r\n\r\n");
        let (Some(end), true) = (end, answer.starts_with(b"HTTP/1.1 200 ")) else {
            let first = answer
                .split(|&byte| byte == b'\r')
                .next()
                .unwrap_or_default();
            let first = String::from_utf8_lossy(first).into_owned();
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("it answered {first:?}"),
            ));
        };
        Ok(answer.split_off(end + 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_counted_nothing_is_left_out_and_requests_come_first() {
        let body = br#"{"since":"x","overall":{
            "head":{"count":2,"mean_us":1.5,"p50_us":1,"p90_us":2,"p99_us":3,"p99_9_us":4,"max_us":5},
            "body":{"count":0,"mean_us":0,"p50_us":0,"p90_us":0,"p99_us":0,"p99_9_us":0,"max_us":0},
            "request":{"count":2,"mean_us":10,"p50_us":9,"p90_us":10,"p99_us":11,"p99_9_us":12,"max_us":13}}}"#;
        let profile = ServerLatency::parse("http://a", body).expect("parses");
        let names: Vec<&str> = profile.series.iter().map(|series| &*series.name).collect();
        assert_eq!(names, [REQUEST, "head"]);
        let head = profile.series("head").expect("it is there");
        let figures = (head.count, head.mean_us, head.p999_us, head.max_us);
        assert_eq!(figures, (2, 1.5, 4.0, 5.0));
        assert!(ServerLatency::parse("http://a", b"{}").is_err());
        assert!(ServerLatency::parse("http://a", b"<html>").is_err());
    }
}
