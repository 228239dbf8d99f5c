//! The operator's plane, on its own listener: health, metrics, bucket purge.
//!
//! It has no CORS. A request with a foreign `Origin`, or whose `Host` is not
//! loopback, is refused, so that a page in a browser on this machine cannot
//! reach it under a name of its own (decisions, CORS).

use std::{net::SocketAddr, rc::Rc, sync::Arc, sync::atomic::Ordering};

use glommio::net::TcpListener;

use crate::{
    base::limits::ADMIN_CONNECTIONS_MAX,
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
        core::Core,
        metrics,
        socket::{Socket, SocketError},
        worker::{ACCEPT_PAUSE, Process},
    },
    shard::request::{Reply, Request},
};

/// Serves the admin plane until the process is to stop.
pub async fn serve(process: Arc<Process>, core: Rc<Core>, listener: TcpListener) {
    let seats = Rc::new(crate::server::seat::Seats::default());
    while !process.stop.load(Ordering::Acquire) {
        match listener.accept().await {
            Ok(stream) if seats.len() < ADMIN_CONNECTIONS_MAX => {
                let socket = Socket::new(stream, core.seats.take());
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
                glommio::timer::Timer::new(ACCEPT_PAUSE).await;
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
    // One deadline for a whole head, the wait before it included.
    socket.seat.set_timeout(limits.idle_timeout);
    loop {
        match connection.next_head() {
            HeadEvent::NeedInput => {
                let count = socket.read(connection.space()).await?;
                connection.received(count);
                continue;
            }
            HeadEvent::Head => {
                let request = AdminRequest::new(&connection, process.admin_listen);
                connection.reject();
                let is_head = connection.method() == Method::Head;
                let answer = match request {
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

/// What the operator asks for.
#[derive(Debug, PartialEq, Eq)]
enum AdminRequest {
    Live,
    Ready,
    MetricsText,
    MetricsJson,
    Purge(Box<str>),
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
        let Ok(Target::Path { path, .. }) = parse_target(target) else {
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
            ["__ursula", "purge", bucket] => {
                check_bucket(bucket)?;
                match method {
                    Method::Delete => Ok(Self::Purge((*bucket).into())),
                    _ => Err(Refusal::MethodNotAllowed { allow: "DELETE" }),
                }
            }
            _ => Err(Refusal::NotFound),
        }
    }

    async fn answer(self, process: &Arc<Process>, core: &Rc<Core>) -> Answer {
        match self {
            Self::Live => Answer::json(200, "{\"live\":true}".into()),
            Self::Ready => {
                let ready = process.ready.load(Ordering::Acquire);
                let failed = process
                    .metrics
                    .iter()
                    .any(|shard| shard.journal_failed.value() > 0);
                let status = if ready && !failed { 200 } else { 503 };
                let reason = match (ready, failed) {
                    (_, true) => "\"a shard's journal failed\"",
                    (false, _) => "\"starting or stopping\"",
                    (true, false) => "null",
                };
                Answer::json(
                    status,
                    format!("{{\"ready\":{},\"reason\":{reason}}}", status == 200),
                )
            }
            Self::MetricsText => Answer {
                status: 200,
                content_type: "text/plain; version=0.0.4",
                body: metrics::prometheus(&process.metrics),
                allow: None,
            },
            Self::MetricsJson => Answer::json(200, metrics::json(&process.metrics)),
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
            total += streams;
            if streams == 0 {
                inherited_bytes += kept;
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
}

impl Answer {
    fn json(status: u16, body: String) -> Self {
        Self {
            status,
            content_type: "application/json",
            body,
            allow: None,
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
