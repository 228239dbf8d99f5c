//! The operator's plane, on its own listener: health, metrics, the latency
//! profile, bucket purge, and a page that shows them.
//!
//! It has no CORS. A request with a foreign `Origin`, or whose `Host` is not
//! loopback, is refused, so that a page in a browser on this machine cannot
//! reach it under a name of its own (decisions, CORS).

mod answer;
mod page;
mod request;

use std::{
    future::poll_fn,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use futures_lite::future;
use glommio::{net::TcpListener, timer::Timer};

use self::{answer::Answer, request::AdminRequest};
use crate::{
    base::limits::ADMIN_CONNECTIONS_MAX,
    http::{
        connection::{Connection, ConnectionLimits, DrainEvent, HeadEvent, Next},
        parse::Method,
    },
    protocol::error::error_body,
    server::{
        backup::{HOLD_TIMEOUT, STOP_PATIENCE, held::Holding},
        core::Core,
        socket::{Socket, SocketError},
        worker::{ACCEPT_PAUSE, Process},
    },
};

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
        // Who asks and reads without end must not keep the core to itself.
        future::yield_now().await;
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
                    future::yield_now().await;
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
