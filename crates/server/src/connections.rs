//! Connections: they are taken, served, and given up where the other side has gone quiet.
//!
//! A client owes something at three times: the next request's head, the rest of a body (`body.rs`), and the reading of
//! what was sent to it. Whoever is silent for too long then is let go. While an answer is being made it is the server's
//! turn, and no clock runs.

use crate::socket::Socket;
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_io_timeout::TimeoutStream;

/// Serves until `stop`, then takes no more connections and returns when those that are open have had their answers.
pub(crate) async fn serve(mut listener: TcpListener, router: Router, idle: Duration, stop: impl Future<Output = ()>) {
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let (socket, _) = tokio::select! {
            // Axum's: it waits a little where the system has no more sockets to give.
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut stop => break,
        };
        // Tokens are small and must not wait for others.
        let _ = socket.set_nodelay(true);
        let mut socket = TimeoutStream::new(Socket(socket));
        socket.set_write_timeout(Some(idle));
        let mut http = http1::Builder::new();
        // The clock of the head also runs while a connection is kept for another request.
        http.timer(TokioTimer::new()).header_read_timeout(idle);
        let service = TowerToHyperService::new(router.clone());
        let connection = open.watch(http.serve_connection(TokioIo::new(Box::pin(socket)), service));
        // How a connection broke is the client's affair: its requests have ended with it.
        tokio::spawn(async move { drop(connection.await) });
    }
    drop(listener);
    open.shutdown().await;
}
