//! What the operator may ask for, how it is written, and what answers it.

use std::{
    borrow::Cow,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use glommio::timer::Timer;

use super::{Held, answer::Answer, page};
use crate::{
    base::time::format_rfc3339,
    http::{
        connection::Connection,
        headers::{Field, Headers},
        parse::Method,
        target::{Target, TargetError, parse_target, segments},
    },
    protocol::{error::Refusal, stream_key::check_bucket},
    server::{
        backup::held::{self, NoHold},
        core::Core,
        exchange::yield_if_needed,
        latency::{
            profile::Profile,
            report::{self, Detail},
        },
        metrics,
        purge::purge,
        worker::Process,
    },
};

/// How long a core may take to lay out its profile before the operator is told it is busy.
const PROFILE_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked for.
const PROFILE_POLL: Duration = Duration::from_micros(200);

/// What the operator asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum AdminRequest {
    /// Whether it runs.
    Live,
    /// Whether it serves.
    Ready,
    /// Counters and gauges, for Prometheus.
    MetricsText,
    /// The same in JSON.
    MetricsJson,
    /// The latency profile.
    Latency(Detail),
    /// To begin a new one.
    LatencyReset,
    /// A part of the page.
    Page(&'static page::Part),
    /// To remove a bucket.
    Purge(Box<str>),
    /// To hold what there is for a copy.
    Backup(BackupStep),
}

/// A step of a backup; all of them on one connection, which is the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupStep {
    /// Hold what there is now.
    Begin,
    /// Whether it is still held.
    Ask,
    /// Let go.
    End,
}

impl BackupStep {
    /// Takes the step for the connection that has `held`.
    pub async fn answer(self, process: &Arc<Process>, core: &Rc<Core>, held: &mut Held) -> Answer {
        if held.given_up || core.seats.is_draining() {
            held.holding = None;
            return Answer::refusing(
                503,
                Refusal::ShuttingDown.code(),
                "the server is being stopped, and no longer holds anything for a backup",
            );
        }
        if self == Self::Begin {
            return match held::hold(process, core).await {
                Ok((holding, directory)) => {
                    held.holding = Some(holding);
                    Answer::json(200, serde_json::json!(directory).to_string())
                }
                Err(NoHold::Taken) => Answer::refusing(
                    409,
                    "BACKUP_RUNNING",
                    "a backup is running: wait until it has ended. If it was killed, try again in \
                     some seconds: its hold goes when the system has closed its connection",
                ),
                Err(NoHold::Busy) => Answer::refusing(503, "BUSY", "a core is too busy; try again"),
            };
        }
        let answer = match &held.holding {
            None => Answer::refusing(404, "NO_BACKUP", "this connection holds nothing"),
            Some(holding) if holding.is_in_force() => Answer::json(200, "{\"held\":true}".into()),
            Some(_) => Answer::refusing(
                409,
                "BACKUP_BROKEN",
                "the server ran short of disk space, and gave back what it held for the backup",
            ),
        };
        if self == Self::End {
            held.holding = None;
        }
        answer
    }
}

impl AdminRequest {
    /// What the head on `connection` asks for, where the plane listens on `listen`.
    ///
    /// # Errors
    /// [`Refusal`] when it comes from elsewhere, or asks for what there is not.
    pub fn new(connection: &Connection, listen: SocketAddr) -> Result<Self, Refusal> {
        let headers = Headers::collect(connection.headers());
        let target = parse_target(connection.target());
        if headers.has(Field::Origin) || !is_local(&headers, target, listen) {
            return Err(Refusal::InvalidRequest(
                "the admin plane answers no browser of another origin, and only on a loopback host"
                    .into(),
            ));
        }
        Self::route(connection.method(), target)
    }

    fn route(method: Method, target: Result<Target<'_>, TargetError>) -> Result<Self, Refusal> {
        let malformed = || Refusal::InvalidRequest("the request target is malformed".into());
        let Ok(Target::Path { path, query, .. }) = target else {
            return Err(malformed());
        };
        let names: Vec<_> = segments(path)
            .collect::<Result<_, _>>()
            .map_err(|_| malformed())?;
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let is_read = matches!(method, Method::Get | Method::Head);
        let read = |request| {
            if is_read {
                Ok(request)
            } else {
                Err(Refusal::MethodNotAllowed { allow: "GET, HEAD" })
            }
        };
        match names.as_slice() {
            ["__ursula", "live"] => read(Self::Live),
            ["__ursula", "ready"] => read(Self::Ready),
            ["__ursula", "metrics"] => read(Self::MetricsJson),
            ["metrics"] => read(Self::MetricsText),
            ["__ursula", "latency"] if matches!(method, Method::Post | Method::Delete) => {
                Ok(Self::LatencyReset)
            }
            ["__ursula", "latency"] if is_read => Ok(Self::Latency(detail(query))),
            ["__ursula", "latency"] => Err(Refusal::MethodNotAllowed {
                allow: "GET, HEAD, POST, DELETE",
            }),
            ["__ursula", "purge", bucket] => {
                check_bucket(bucket)?;
                match method {
                    Method::Delete => Ok(Self::Purge((*bucket).into())),
                    _ => Err(Refusal::MethodNotAllowed { allow: "DELETE" }),
                }
            }
            ["__ursula", "backup"] => Ok(Self::Backup(match method {
                Method::Post => BackupStep::Begin,
                Method::Delete => BackupStep::End,
                _ if is_read => BackupStep::Ask,
                _ => {
                    return Err(Refusal::MethodNotAllowed {
                        allow: "GET, HEAD, POST, DELETE",
                    });
                }
            })),
            _ => match page::part(path) {
                Some(part) => read(Self::Page(part)),
                None => Err(Refusal::NotFound),
            },
        }
    }

    /// Does it. A backup's step needs its connection: [`BackupStep::answer`].
    pub async fn answer(self, process: &Arc<Process>, core: &Rc<Core>) -> Answer {
        match self {
            Self::Live => Answer::json(200, "{\"live\":true}".into()),
            Self::Ready => {
                let ready = process.ready.load(Ordering::Acquire);
                let any = |metric: fn(&metrics::ShardMetrics) -> &metrics::Metric| {
                    process
                        .metrics
                        .iter()
                        .any(|shard| metric(shard).value() > 0)
                };
                // What lasts first: a failed journal takes a restart, pressure passes.
                let reason: Option<Cow<'_, str>> = if any(|shard| &shard.journal_failed) {
                    Some("a shard's journal failed".into())
                } else if any(|shard| &shard.directory_gone) {
                    let dir = process.config.data_dir.display();
                    let what = "the data directory was removed, or its file system is not mounted";
                    Some(format!("{what}: {dir}").into())
                } else if any(|shard| &shard.disk_pressure) {
                    Some("a shard takes no writes for want of disk space".into())
                } else if ready {
                    None
                } else {
                    Some("starting or stopping".into())
                };
                let status = if reason.is_none() { 200 } else { 503 };
                let body = serde_json::json!({ "ready": reason.is_none(), "reason": reason });
                Answer::json(status, body.to_string())
            }
            Self::MetricsText => match profiles(process, false).await {
                Some(profiles) => {
                    let mut text = metrics::prometheus(info(process), &process.metrics);
                    text.push_str(&report::prometheus(&profiles));
                    Answer {
                        content_type: "text/plain; version=0.0.4",
                        ..Answer::json(200, text)
                    }
                }
                None => Answer::busy(),
            },
            Self::MetricsJson => Answer::json(200, metrics::json(info(process), &process.metrics)),
            Self::Latency(detail) => match profiles(process, false).await {
                Some(profiles) => latency(&profiles, detail).await,
                None => Answer::busy(),
            },
            Self::LatencyReset => match profiles(process, true).await {
                Some(_) => Answer::json(200, "{\"reset\":true}".into()),
                None => Answer::busy(),
            },
            Self::Backup(_) => Answer::refused(&Refusal::Internal),
            Self::Page(part) => Answer {
                content_type: part.content_type,
                policy: Some(page::POLICY),
                ..Answer::json(200, part.text.into())
            },
            Self::Purge(bucket) => match purge(core, process.config.shards, &bucket).await {
                Ok((streams, inherited_bytes)) => Answer::json(
                    200,
                    format!(
                        "{{\"bucket\":\"{bucket}\",\"streams\":{streams},\"inherited_bytes\":{inherited_bytes}}}"
                    ),
                ),
                Err(refusal) => Answer::refused(&refusal),
            },
        }
    }
}

fn info(process: &Process) -> metrics::Info {
    metrics::Info {
        durability: process.config.durability,
    }
}

/// What a query asks of the latency profile: `?hdr=false` leaves the histograms out, `?steps=true`
/// brings the coarse ones that the page subtracts.
fn detail(query: Option<&[u8]>) -> Detail {
    let asks = |wanted: &[u8]| {
        let mut pairs = query.unwrap_or_default().split(|&byte| byte == b'&');
        pairs.any(|pair| pair == wanted)
    };
    Detail {
        hdr: !asks(b"hdr=false"),
        steps: asks(b"steps=true"),
    }
}

/// A copy of every core's profile, after a reset if one is wanted; `None` when a core is too busy
/// to lay one out.
async fn profiles(process: &Process, reset: bool) -> Option<Vec<Arc<Profile>>> {
    let shelves = || process.metrics.iter().map(|shard| &shard.latency);
    let tickets: Vec<u64> = shelves().map(|shelf| shelf.ask(reset)).collect();
    (0..tickets.len()).for_each(|core| process.post.nudge(core));
    let mut waited = Duration::ZERO;
    loop {
        // Lets this core's own mailbox see the nudge, too.
        Timer::new(PROFILE_POLL).await;
        let copies = shelves().zip(&tickets);
        let copies: Option<Vec<_>> = copies.map(|(shelf, &ticket)| shelf.take(ticket)).collect();
        if copies.is_some() {
            return copies;
        }
        waited = waited.saturating_add(PROFILE_POLL);
        if waited >= PROFILE_PATIENCE {
            return None;
        }
    }
}

/// The latency profile, of all shards together and of each.
async fn latency(profiles: &[Arc<Profile>], detail: Detail) -> Answer {
    let written = async {
        let mut overall: Option<Profile> = None;
        let mut shards = Vec::new();
        let per_shard = Detail {
            steps: false,
            ..detail
        };
        for profile in profiles {
            match &mut overall {
                Some(overall) => overall.add(profile),
                None => overall = Some(Profile::clone(profile)),
            }
            shards.push(report::series_json(profile, per_shard)?);
            // This core has streams to serve, and there may be many shards.
            yield_if_needed().await;
        }
        let overall = overall.ok_or("there is no shard")?;
        Ok::<_, String>(serde_json::json!({
            "since": format_rfc3339(overall.since_ms),
            "meanings": report::meanings_json(),
            "overall": report::series_json(&overall, detail)?,
            "shards": shards,
        }))
    };
    match written.await {
        Ok(json) => Answer::json(200, json.to_string()),
        Err(error) => {
            tracing::error!("the latency profile cannot be written: {error}");
            Answer::refused(&Refusal::Internal)
        }
    }
}

/// Whether `Host`, or the target that overrules it, names this machine by a loopback name or address,
/// or by the very address that the operator chose to listen on.
fn is_local<'b>(
    headers: &Headers<'b>,
    target: Result<Target<'b>, TargetError>,
    listen: SocketAddr,
) -> bool {
    let authority = match target {
        Ok(Target::Path { authority, .. }) => authority,
        _ => None,
    };
    let Some(host) = headers.host(authority) else {
        // HTTP/1.0 without a host: no browser.
        return true;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() || ip == listen.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let to =
            |method, target: &str| AdminRequest::route(method, parse_target(target.as_bytes()));
        assert_eq!(to(Method::Get, "/__ursula/live"), Ok(AdminRequest::Live));
        assert_eq!(
            to(Method::Head, "/metrics?x=1"),
            Ok(AdminRequest::MetricsText)
        );
        assert_eq!(
            to(Method::Delete, "/__ursula/purge/demo"),
            Ok(AdminRequest::Purge("demo".into()))
        );
        // What is not understood of a path is not left out: a purge cannot be taken back.
        for malformed in ["%zz", "%ff", "a%2Fb", ".."] {
            let target = format!("/__ursula/{malformed}/purge/demo");
            let refused = to(Method::Delete, &target);
            assert!(refused.is_err(), "{target}");
            let target = format!("/__ursula/purge/{malformed}/demo");
            assert!(to(Method::Delete, &target).is_err(), "{target}");
        }
        assert!(matches!(
            to(Method::Delete, "/__ursula/purge/x"),
            Err(Refusal::InvalidBucketId(_))
        ));
        assert!(matches!(
            to(Method::Post, "/__ursula/live"),
            Err(Refusal::MethodNotAllowed { .. })
        ));
        assert_eq!(to(Method::Get, "/demo/s"), Err(Refusal::NotFound));
        let whole = Detail {
            hdr: true,
            steps: false,
        };
        let latency = "/__ursula/latency";
        assert_eq!(to(Method::Get, latency), Ok(AdminRequest::Latency(whole)));
        let page = Detail {
            hdr: false,
            steps: true,
        };
        let query = format!("{latency}?hdr=false&steps=true");
        assert_eq!(to(Method::Get, &query), Ok(AdminRequest::Latency(page)));
        assert_eq!(to(Method::Post, latency), Ok(AdminRequest::LatencyReset));
        assert_eq!(to(Method::Delete, latency), Ok(AdminRequest::LatencyReset));
        assert!(to(Method::Put, latency).is_err());
        assert!(matches!(to(Method::Get, "/"), Ok(AdminRequest::Page(_))));
        assert!(to(Method::Post, "/").is_err());
    }

    #[test]
    fn only_loopback_hosts_are_answered() {
        let listen: SocketAddr = "10.0.0.5:4438".parse().unwrap();
        for (host, local) in [
            ("localhost:4438", true),
            ("127.0.0.1", true),
            ("[::1]:4438", true),
            ("10.0.0.5:4438", true),
            ("evil.example", false),
            ("10.0.0.6", false),
        ] {
            let fields = [(&b"host"[..], host.as_bytes())];
            let headers = Headers::collect(fields.into_iter());
            let plain = parse_target(b"/metrics");
            assert_eq!(is_local(&headers, plain, listen), local, "{host}");
            let whole = format!("http://{host}/metrics");
            for other in ["localhost", "evil.example"] {
                let fields = [(&b"host"[..], other.as_bytes())];
                let headers = Headers::collect(fields.into_iter());
                let absolute = parse_target(whole.as_bytes());
                assert_eq!(is_local(&headers, absolute, listen), local, "{whole}");
            }
        }
    }
}
