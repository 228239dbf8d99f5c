//! How values are written: each unit reads what a person types and writes
//! what it would read back.
//!
//! Sizes are read by `bytesize` (decimal and binary prefixes told apart, exact
//! integers) and times by `jiff` (in the tree for dates already, and its
//! friendly format is both strict and printable). `bytesize` prints rounded
//! sizes, so they are written by [`amount`](crate::base::amount).

use std::{fmt::Display, net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use jiff::SignedDuration;
use toml::Value;
use tracing_subscriber::EnvFilter;

use crate::base::{amount::in_binary_units, limits::Durability};

/// Largest size in bytes that may be written: 1 EiB, past any disk and short of overflow.
const BYTES_MAX: u64 = 1 << 60;

/// A way of writing values.
pub trait Unit {
    /// What stands for a value in help, as in `--listen <ADDRESS:PORT>`.
    const PLACEHOLDER: &'static str;
    /// What the value counts or names, for comments.
    const MEASURE: &'static str;
    /// Whether several values make a list.
    const LIST: bool = false;
}

/// A [`Unit`] that holds values of type `T`.
pub trait Form<T>: Unit {
    /// The value of one or (of a list) more texts; or else what would have been right, to follow
    /// "write".
    fn read(texts: &[String]) -> Result<T, String>;

    /// The value as TOML; `None` when only its absence can be written.
    fn write(value: &T) -> Option<Value>;
}

/// The one text of a unit that makes no list.
fn only(texts: &[String]) -> Result<&str, String> {
    match texts {
        [text] => Ok(text.trim()),
        _ => Err(String::from("one value, not a list")),
    }
}

/// Non-empty items of a list, which may be written as several texts, with commas, or both.
fn items(texts: &[String]) -> impl Iterator<Item = &str> {
    texts
        .iter()
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

/// A size: `8MiB`, `8MB`, `8388608`.
pub struct Bytes;

impl Bytes {
    fn parse(texts: &[String]) -> Result<u64, String> {
        let wanted = || String::from("bytes as 8388608, 8MiB or 8MB, at most 1EiB");
        let size: ByteSize = only(texts)?.parse().map_err(|_| wanted())?;
        Some(size.as_u64())
            .filter(|&bytes| bytes <= BYTES_MAX)
            .ok_or_else(wanted)
    }

    fn print(bytes: u64) -> Value {
        in_binary_units(bytes).map_or_else(|| number(bytes), Value::String)
    }
}

impl Unit for Bytes {
    const PLACEHOLDER: &'static str = "BYTES";
    const MEASURE: &'static str = "bytes";
}

impl Form<u64> for Bytes {
    fn read(texts: &[String]) -> Result<u64, String> {
        Self::parse(texts)
    }

    fn write(value: &u64) -> Option<Value> {
        Some(Self::print(*value))
    }
}

impl Form<usize> for Bytes {
    fn read(texts: &[String]) -> Result<usize, String> {
        Self::parse(texts)?
            .try_into()
            .map_err(|_| String::from("a size this machine can address"))
    }

    fn write(value: &usize) -> Option<Value> {
        Some(Self::print(*value as u64))
    }
}

/// A time: `20s`, `500ms`, `1m 30s`; a plain number is seconds.
pub struct Time;

impl Unit for Time {
    const PLACEHOLDER: &'static str = "TIME";
    const MEASURE: &'static str = "time; a plain number is seconds";
}

impl Form<Duration> for Time {
    fn read(texts: &[String]) -> Result<Duration, String> {
        let wanted = || String::from("a time as 20s, 500ms, 1m30s or, in seconds, 20");
        let text = only(texts)?;
        if let Ok(seconds) = text.parse() {
            return Ok(Duration::from_secs(seconds));
        }
        let time: SignedDuration = text.parse().map_err(|_| wanted())?;
        time.try_into().map_err(|_| wanted())
    }

    fn write(value: &Duration) -> Option<Value> {
        let shown = SignedDuration::try_from(*value).unwrap_or(SignedDuration::MAX);
        Some(Value::String(format!("{shown:#}")))
    }
}

/// A number of things.
pub struct Count;

impl Unit for Count {
    const PLACEHOLDER: &'static str = "N";
    const MEASURE: &'static str = "count";
}

impl Form<usize> for Count {
    fn read(texts: &[String]) -> Result<usize, String> {
        only(texts)?
            .parse()
            .map_err(|_| String::from("a whole number"))
    }

    fn write(value: &usize) -> Option<Value> {
        Some(number(*value as u64))
    }
}

/// A number of microseconds, the unit being in the setting's name.
pub struct Micros;

impl Unit for Micros {
    const PLACEHOLDER: &'static str = "MICROSECONDS";
    const MEASURE: &'static str = "microseconds";
}

impl Form<u64> for Micros {
    fn read(texts: &[String]) -> Result<u64, String> {
        only(texts)?
            .parse()
            .map_err(|_| String::from("a whole number of microseconds"))
    }

    fn write(value: &u64) -> Option<Value> {
        Some(number(*value))
    }
}

/// A number of milliseconds, the unit being in the setting's name.
pub struct Millis;

impl Unit for Millis {
    const PLACEHOLDER: &'static str = "MILLISECONDS";
    const MEASURE: &'static str = "milliseconds";
}

impl Form<u64> for Millis {
    fn read(texts: &[String]) -> Result<u64, String> {
        only(texts)?
            .parse()
            .map_err(|_| String::from("a whole number of milliseconds"))
    }

    fn write(value: &u64) -> Option<Value> {
        Some(number(*value))
    }
}

/// An IP address with a port. No host names: what one resolves to may change between starts.
pub struct Address;

impl Unit for Address {
    const PLACEHOLDER: &'static str = "ADDRESS:PORT";
    const MEASURE: &'static str = "address:port";
}

impl Form<SocketAddr> for Address {
    fn read(texts: &[String]) -> Result<SocketAddr, String> {
        let wanted = "an IP address and a port, as 127.0.0.1:4437, 0.0.0.0:4437 or [::1]:4437";
        only(texts)?.parse().map_err(|_| String::from(wanted))
    }

    fn write(value: &SocketAddr) -> Option<Value> {
        Some(text(value))
    }
}

/// A directory.
pub struct Directory;

impl Unit for Directory {
    const PLACEHOLDER: &'static str = "DIRECTORY";
    const MEASURE: &'static str = "path";
}

impl Form<PathBuf> for Directory {
    fn read(texts: &[String]) -> Result<PathBuf, String> {
        match texts {
            [text] if !text.is_empty() => Ok(PathBuf::from(text)),
            _ => Err(String::from("the path of one directory")),
        }
    }

    fn write(value: &PathBuf) -> Option<Value> {
        Some(text(value.display()))
    }
}

/// `sync` or `os`.
pub struct DurabilityWord;

impl Unit for DurabilityWord {
    const PLACEHOLDER: &'static str = "sync|os";
    const MEASURE: &'static str = "sync or os";
}

impl Form<Durability> for DurabilityWord {
    fn read(texts: &[String]) -> Result<Durability, String> {
        let word = only(texts)?;
        let known = Durability::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word);
        known.ok_or_else(|| String::from("`sync` (survives power loss) or `os` (does not)"))
    }

    fn write(value: &Durability) -> Option<Value> {
        Some(text(value.as_str()))
    }
}

/// Core numbers and ranges: `0,2-3`; none for all.
pub struct Cores;

impl Unit for Cores {
    const PLACEHOLDER: &'static str = "CORES";
    const MEASURE: &'static str = "core numbers";
    const LIST: bool = true;
}

impl Form<Option<Vec<usize>>> for Cores {
    fn read(texts: &[String]) -> Result<Option<Vec<usize>>, String> {
        let wanted = || String::from("core numbers, each once, as 0,2 or 0-3");
        let mut cores = Vec::new();
        for item in items(texts) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let first: usize = first.parse().map_err(|_| wanted())?;
            let last: usize = last.parse().map_err(|_| wanted())?;
            if first > last || last >= 1 << 16 || cores.iter().any(|c| (first..=last).contains(c)) {
                return Err(wanted());
            }
            cores.extend(first..=last);
        }
        if cores.is_empty() {
            Err(wanted())
        } else {
            Ok(Some(cores))
        }
    }

    fn write(value: &Option<Vec<usize>>) -> Option<Value> {
        let cores = value.as_ref()?;
        Some(Value::Array(
            cores.iter().map(|&core| number(core as u64)).collect(),
        ))
    }
}

/// Browser origins; none, or `*`, for any.
pub struct Origins;

impl Unit for Origins {
    const PLACEHOLDER: &'static str = "ORIGIN";
    const MEASURE: &'static str = "list of origins, empty for any";
    const LIST: bool = true;
}

impl Form<Vec<String>> for Origins {
    fn read(texts: &[String]) -> Result<Vec<String>, String> {
        let origins: Vec<String> = items(texts).map(String::from).collect();
        if origins == ["*"] {
            return Ok(Vec::new());
        }
        if origins.iter().all(|origin| is_origin(origin)) {
            return Ok(origins);
        }
        Err(String::from(
            "origins as a browser sends them, as https://app.example.org or \
             http://localhost:3000 (no path, lower case), or * alone",
        ))
    }

    fn write(value: &Vec<String>) -> Option<Value> {
        Some(Value::Array(value.iter().map(text).collect()))
    }
}

/// Whether a browser could send this in `Origin`, where it is compared byte for byte.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let scheme_is_plain = scheme
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b"+-.0123456789".contains(&b));
    let host_is_plain = host
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._:[]".contains(&b));
    scheme_is_plain && !scheme.is_empty() && host_is_plain && !host.is_empty()
}

/// A `tracing` filter.
pub struct LogFilter;

impl Unit for LogFilter {
    const PLACEHOLDER: &'static str = "FILTER";
    const MEASURE: &'static str = "tracing filter";
}

impl Form<String> for LogFilter {
    fn read(texts: &[String]) -> Result<String, String> {
        // A filter has commas of its own; a list of directives joins into one.
        let filter = texts.join(",");
        match EnvFilter::try_new(&filter) {
            Ok(_) => Ok(filter),
            Err(error) => Err(format!(
                "a filter as info, debug or info,thalweg::storage=debug ({error})"
            )),
        }
    }

    fn write(value: &String) -> Option<Value> {
        Some(text(value))
    }
}

fn text(value: impl Display) -> Value {
    Value::String(value.to_string())
}

/// TOML's integers are signed; what they cannot hold is written as text, which reads the same.
fn number(value: u64) -> Value {
    i64::try_from(value).map_or_else(|_| text(value), Value::Integer)
}
