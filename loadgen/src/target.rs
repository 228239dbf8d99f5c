//! Servers under test: where a stream lives and what its surface promises beyond the base protocol.

use std::net::{SocketAddr, ToSocketAddrs};

use clap::ValueEnum;

use crate::record::Form;

/// The cap on one response, in stored bytes, of servers that promise one.
pub const RESPONSE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The kind of server, and which of its surfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Surface {
    /// Thalweg, `/v1/stream/{path}`: the base protocol.
    ThalwegBase,
    /// Thalweg, `/{bucket}/{stream}`: the extensions.
    ThalwegBucket,
    /// Any server of the base protocol; the URL's path is the prefix of its streams.
    Base,
    /// Ursula, `/{bucket}/{stream}`.
    Ursula,
}

impl Surface {
    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            Surface::ThalwegBase => "thalweg-base",
            Surface::ThalwegBucket => "thalweg-bucket",
            Surface::Base => "base",
            Surface::Ursula => "ursula",
        }
    }
}

/// One server, and the names one run uses there.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where to connect.
    pub address: SocketAddr,
    /// Which rules hold.
    pub surface: Surface,
    /// POST here and nowhere else: a bare server without streams.
    pub raw_post: Option<String>,
    authority: String,
    prefix: String,
    bucket: String,
}

impl Target {
    /// Reads a URL. `run` names this run's streams and is made of hexadecimal digits.
    pub fn new(
        url: &str,
        surface: Surface,
        raw_post: Option<String>,
        run: &str,
    ) -> Result<Target, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("{url}: only http:// URLs can be measured"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let with_port = if authority.contains(':') {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let address = with_port
            .to_socket_addrs()
            .map_err(|error| format!("{authority}: {error}"))?
            .next()
            .ok_or_else(|| format!("{authority}: no address"))?;
        let path = path.trim_matches('/');
        let prefix = match (surface, path) {
            (Surface::ThalwegBase, "") => "/v1/stream".to_owned(),
            (_, "") => String::new(),
            (_, path) => format!("/{path}"),
        };
        Ok(Target {
            address,
            surface,
            raw_post,
            authority: authority.to_owned(),
            prefix,
            bucket: format!("lg-{run}"),
        })
    }

    /// The path of a stream.
    pub fn path(&self, stream: u32) -> String {
        if let Some(path) = &self.raw_post {
            return path.clone();
        }
        let separator = if self.surface == Surface::Base {
            '-'
        } else {
            '/'
        };
        format!("{}/{}{separator}s{stream:06}", self.prefix, self.bucket)
    }

    /// A request's first lines, without the empty line that ends its head.
    pub fn request_head(&self, method: &str, path: &str) -> String {
        format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.authority)
    }

    /// What follows the path in a request without a body.
    pub fn request_tail(&self) -> Vec<u8> {
        format!(" HTTP/1.1\r\nHost: {}\r\n\r\n", self.authority).into_bytes()
    }

    /// Whether offsets are byte positions in decimal, so that they can be checked against what was returned.
    pub fn offsets_count_bytes(&self) -> bool {
        self.surface != Surface::Base
    }

    /// The cap on stored bytes of one response, if one is promised.
    pub fn response_bytes_max(&self) -> Option<u64> {
        (self.surface != Surface::Base).then_some(RESPONSE_BYTES_MAX)
    }

    /// Whether responses end between messages.
    pub fn cuts_between_messages(&self, form: Form) -> bool {
        form == Form::Json && matches!(self.surface, Surface::ThalwegBase | Surface::Base)
    }

    /// Whether there are snapshots and bootstrap.
    pub fn has_snapshots(&self) -> bool {
        matches!(self.surface, Surface::ThalwegBucket | Surface::Ursula)
    }
}

#[cfg(test)]
mod tests {
    use super::{Surface, Target};

    #[test]
    fn streams_live_where_each_surface_has_them() {
        let path = |url, surface| {
            Target::new(url, surface, None, "0a")
                .expect("valid")
                .path(7)
        };
        assert_eq!(
            path("http://127.0.0.1:1", Surface::ThalwegBase),
            "/v1/stream/lg-0a/s000007"
        );
        assert_eq!(
            path("http://127.0.0.1:1/", Surface::ThalwegBucket),
            "/lg-0a/s000007"
        );
        assert_eq!(
            path("http://127.0.0.1:1/v1/stream/", Surface::Base),
            "/v1/stream/lg-0a-s000007"
        );
        assert!(Target::new("https://x", Surface::Base, None, "0a").is_err());
    }
}
