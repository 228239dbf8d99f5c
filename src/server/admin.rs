//! The operator's plane, on its own listener: health, metrics, the latency
//! profile, bucket purge, and a page that shows them.
//!
//! It has no CORS. A request with a foreign `Origin`, or whose `Host` is not
//! loopback, is refused, so that a page in a browser on this machine cannot
//! reach it under a name of its own (decisions, CORS).

mod page;

use std::{
    borrow::Cow,
    future::poll_fn,
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use glommio::{net::TcpListener, timer::Timer};

use crate::{
    base::{limits::ADMIN_CONNECTIONS_MAX, time::format_rfc3339},
    http::{
        connection::{Connection, ConnectionLimits, DrainEvent, HeadEvent, Next},
        encode::ResponseHead,
        headers::{Field, Headers},
        parse::Method,
        target::{Target, parse_target, segments},
    },
    protocol::{
        error::{Refusal, error_body},
        stream_key::check_bucket,
    },
    server::{
        backup::{
            HOLD_TIMEOUT, STOP_PATIENCE,
            held::{self, Holding, NoHold},
        },
        core::Core,
        exchange::yield_if_needed,
        latency::{
            profile::Profile,
            report::{self, Detail},
        },
        metrics,
        socket::{Socket, SocketError},
        worker::{ACCEPT_PAUSE, Process},
    },
    shard::request::{Reply, Request},
};

/// How long a core may take to lay out its profile before the operator is told it is busy.
const PROFILE_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked for.
const PROFILE_POLL: Duration = Duration::from_micros(200);

/// Serves the admin plane until the process is to stop.
pub async fn serve(process: Arc<Process>, core: Rc<Core>, listener: TcpListener) {
    let seats = Rc::new(crate::server::seat::Seats::default());
    while !process.stop.load(Ordering::Acquire) {
        match listener.accept().await {
            Ok(stream) if seats.len() < ADMIN_CONNECTIONS_MAX => {
                let socket = Socket::new(stream, core.seats.take_uncounted());
                let place = seats.take();
                let (process, core) = (process.clone(), core.clone());
                glommio::spawn_local(async move {
                    // A broken or slow client of the operator's plane is closed, nothing more.
                    let _ = converse(&process, &core, socket).await;
                    drop(place);
                })
                .detach();
            }
            Ok(_) => {}
            Err(_) => {
                Timer::new(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(
    process: &Arc<Process>,
    core: &Rc<Core>,
    mut socket: Socket,
) -> Result<(), SocketError> {
    let limits = &core.limits;
    let mut connection = Connection::new(ConnectionLimits::from(limits));
    let mut out = Vec::new();
    let mut held = Held::default();
    // One deadline for a whole head, the wait before it included.
    socket.seat.set_timeout(limits.idle_timeout);
    loop {
        match connection.next_head() {
            HeadEvent::NeedInput => {
                if !receive(&mut socket, &mut connection, &mut held).await? {
                    return Ok(());
                }
                continue;
            }
            HeadEvent::Head => {
                if socket.seat.is_draining() {
                    connection.close_after_this();
                }
                let request = AdminRequest::new(&connection, process.admin_listen);
                connection.reject();
                let is_head = connection.method() == Method::Head;
                let answer = match request {
                    Ok(AdminRequest::Backup(step)) => step.answer(process, core, &mut held).await,
                    Ok(request) => request.answer(process, core).await,
                    Err(refusal) => Answer::refused(&refusal),
                };
                answer.write(is_head, connection.should_close(), core, &mut out);
            }
            HeadEvent::Refused(refusal) => {
                let body = error_body(refusal.code, refusal.message);
                Answer::json(refusal.status, body).write(false, true, core, &mut out);
            }
            HeadEvent::Truncated | HeadEvent::Closed => return Ok(()),
        }
        let next = connection.finish();
        socket.write_all(&out, limits.write_timeout).await?;
        out.clear();
        match next {
            Next::Head if held.holding.is_some() => socket.seat.set_timeout(HOLD_TIMEOUT),
            Next::Head => socket.seat.set_timeout(limits.idle_timeout),
            Next::Close => return Ok(()),
            Next::Drain => {
                socket.end_writing().await;
                socket.seat.set_timeout(limits.drain_timeout);
                while connection.drain() == DrainEvent::NeedInput {
                    let count = socket.read(connection.space()).await?;
                    connection.received(count);
                }
                return Ok(());
            }
        }
    }
}

/// What a connection holds for a backup.
#[derive(Default)]
struct Held {
    holding: Option<Holding>,
    /// It was given up, because the server goes down; whoever copies is to hear that.
    given_up: bool,
}

/// Takes in more of a request; false when the connection is to be closed, since the server goes down
/// and nothing has come. A hold ends at once then, but its connection is kept for [`STOP_PATIENCE`]:
/// the backup asks after it by then, and is told why it is over.
async fn receive(
    socket: &mut Socket,
    connection: &mut Connection,
    held: &mut Held,
) -> Result<bool, SocketError> {
    poll_fn(|cx| {
        if let Poll::Ready(read) = socket.poll_read(cx, connection.space()) {
            connection.received(read?);
            return Poll::Ready(Ok(true));
        }
        if socket.seat.is_draining() {
            if held.holding.take().is_some() {
                held.given_up = true;
                socket.seat.set_timeout(STOP_PATIENCE);
            } else if !held.given_up {
                return Poll::Ready(Ok(false));
            }
        }
        socket.poll_over(cx)
    })
    .await
}

/// What the operator asks for.
#[derive(Debug, PartialEq, Eq)]
enum AdminRequest {
    Live,
    Ready,
    MetricsText,
    MetricsJson,
    Latency(Detail),
    LatencyReset,
    Page(&'static page::Part),
    Purge(Box<str>),
    Backup(BackupStep),
}

/// A step of a backup; all of them on one connection, which is the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackupStep {
    Begin,
    Ask,
    End,
}

impl BackupStep {
    async fn answer(self, process: &Arc<Process>, core: &Rc<Core>, held: &mut Held) -> Answer {
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
    fn new(connection: &Connection, listen: SocketAddr) -> Result<Self, Refusal> {
        let headers = Headers::collect(connection.headers());
        if headers.has(Field::Origin) || !is_local(&headers, listen) {
            return Err(Refusal::InvalidRequest(
                "the admin plane answers no browser of another origin, and only on a loopback host"
                    .into(),
            ));
        }
        Self::route(connection.method(), connection.target())
    }

    fn route(method: Method, target: &[u8]) -> Result<Self, Refusal> {
        let Ok(Target::Path { path, query, .. }) = parse_target(target) else {
            return Err(Refusal::InvalidRequest(
                "the request target is malformed".into(),
            ));
        };
        let names: Vec<_> = segments(path).filter_map(Result::ok).collect();
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

    async fn answer(self, process: &Arc<Process>, core: &Rc<Core>) -> Answer {
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
            // Its answer needs the connection.
            Self::Backup(_) => Answer::refused(&Refusal::Internal),
            Self::Page(part) => Answer {
                content_type: part.content_type,
                policy: Some(page::POLICY),
                ..Answer::json(200, part.text.into())
            },
            Self::Purge(bucket) => match purge(process, core, &bucket).await {
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

/// Whether `Host` names this machine by a loopback name or address, or by the very address that
/// the operator chose to listen on.
fn is_local(headers: &Headers<'_>, listen: SocketAddr) -> bool {
    let Some(host) = headers.host() else {
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

/// Fences a bucket on every shard, then removes what it held. Answers when nothing is left but
/// what forks in other buckets inherited.
async fn purge(
    process: &Arc<Process>,
    core: &Rc<Core>,
    bucket: &str,
) -> Result<(u64, u64), Refusal> {
    let shards = 0..process.config.shards;
    let fences: Vec<_> = shards
        .clone()
        .map(|shard| core.call_shard(shard, Request::Fence(bucket.into())))
        .collect();
    for fence in fences {
        fence.await?;
    }
    let (mut total, mut inherited_bytes) = (0, 0);
    for shard in shards {
        loop {
            let slice = Request::PurgeSlice(bucket.into());
            let Reply::Purged {
                streams,
                inherited_bytes: kept,
            } = core.call_shard(shard, slice).await?
            else {
                return Err(Refusal::Internal);
            };
            total = streams.saturating_add(total);
            if streams == 0 {
                inherited_bytes = kept.saturating_add(inherited_bytes);
                break;
            }
        }
    }
    Ok((total, inherited_bytes))
}

struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
    allow: Option<&'static str>,
    policy: Option<&'static str>,
}

impl Answer {
    fn busy() -> Self {
        Self::refusing(503, "BUSY", "a core is too busy to lay out its profile")
    }

    fn refusing(status: u16, code: &str, message: &str) -> Self {
        Self::json(status, error_body(code, message))
    }

    fn json(status: u16, body: String) -> Self {
        Self {
            status,
            content_type: "application/json",
            body,
            allow: None,
            policy: None,
        }
    }

    fn refused(refusal: &Refusal) -> Self {
        Self {
            allow: match refusal {
                Refusal::MethodNotAllowed { allow } => Some(allow),
                _ => None,
            },
            ..Self::json(refusal.status(), refusal.body())
        }
    }

    fn write(&self, is_head: bool, close: bool, core: &Rc<Core>, out: &mut Vec<u8>) {
        let mut head = ResponseHead::new(out, self.status);
        head.date(&core.shared.borrow().date);
        head.header("Cache-Control", b"no-store");
        head.header("X-Content-Type-Options", b"nosniff");
        head.header("Content-Type", self.content_type.as_bytes());
        if let Some(allow) = self.allow {
            head.header("Allow", allow.as_bytes());
        }
        if let Some(policy) = self.policy {
            head.header("Content-Security-Policy", policy.as_bytes());
            head.header("Referrer-Policy", b"no-referrer");
        }
        if close {
            head.close();
        }
        if is_head {
            head.finish_with_length(self.body.len() as u64);
        } else {
            head.finish_with_body(self.body.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let to = |method, target: &str| AdminRequest::route(method, target.as_bytes());
        assert_eq!(to(Method::Get, "/__ursula/live"), Ok(AdminRequest::Live));
        assert_eq!(
            to(Method::Head, "/metrics?x=1"),
            Ok(AdminRequest::MetricsText)
        );
        assert_eq!(
            to(Method::Delete, "/__ursula/purge/demo"),
            Ok(AdminRequest::Purge("demo".into()))
        );
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
            assert_eq!(is_local(&headers, listen), local, "{host}");
        }
    }
}
