//! Tests a socket on a port whose limits are shorter than its life.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::ws::{WebSocket, WebSocketUpgrade},
    routing::any,
};
use futures::{SinkExt, StreamExt};
use hyper::{Request, body::Incoming};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tower::Service as _;

use super::*;

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

async fn open(address: SocketAddr) -> Option<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let opened = client_async(format!("ws://{address}/ws"), stream).await;
    opened.ok().map(|(socket, _)| socket)
}

async fn assert_echoes(socket: &mut WebSocketStream<TcpStream>) {
    for word in ["one", "two"] {
        socket.send(Message::text(word)).await.unwrap();
        let reply = socket.next().await.unwrap().unwrap();
        assert_eq!(reply.into_text().unwrap(), word);
    }
}

/// All limits are shorter than the socket's life.
#[tokio::test]
async fn an_upgraded_socket_outlives_the_limits_and_keeps_its_permit() {
    let config = ServerConfig {
        max_connections: 1,
        header_seconds: 1.0,
        max_call_seconds: 1.0,
        max_connection_age_seconds: 1.0,
        connection_grace_seconds: 1.0,
        ..ServerConfig::default()
    };
    let upgrade = async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
    let router = Router::new().route("/ws", any(upgrade));
    let port = Port {
        limits: config.connection_limits(),
        tls: ServerTls::open(None).unwrap(),
        draining: CancellationToken::new(),
        refused: |_| {},
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(async move {
        let respond = move |request: Request<Incoming>| router.clone().call(request);
        let stopped = async { stopped.await.unwrap_or(()) };
        let mut connections = port.serve_until(listener, respond, stopped).await;
        while connections.join_next().await.is_some() {}
    });

    let mut socket = open(address).await.unwrap();
    // An old connection would be cut after its age and the grace.
    sleep(Duration::from_millis(2_500)).await;
    // The connection's task is over, and its permit is not free.
    let mut refused = TcpStream::connect(address).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
    assert_echoes(&mut socket).await;
    drop(socket);
    let returned = async {
        loop {
            if let Some(socket) = open(address).await {
                return socket;
            }
        }
    };
    let mut socket = timeout(Duration::from_secs(10), returned)
        .await
        .expect("the permit is returned");
    stop.send(()).unwrap();
    served.await.unwrap();
    assert_echoes(&mut socket).await;
}
