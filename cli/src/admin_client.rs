//! Gets pages of the admin port of a role, which is plain HTTP.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::http::{Request, StatusCode, Uri, header::HOST};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// A status is some 100 kB. Something else at the address may send anything.
const MAX_BYTES: usize = 32 << 20;

/// Gets the page at `path` below an address, such as `/readyz`.
///
/// # Errors
/// There is no answer within `patience`, or it is too long or no HTTP.
pub(crate) async fn get(
    address: &Uri,
    path: &str,
    patience: Duration,
) -> Result<(StatusCode, Bytes)> {
    match timeout(patience, page(address, path)).await {
        Ok(page) => page,
        Err(_) => bail!("no answer within {} s", patience.as_secs()),
    }
}

async fn page(address: &Uri, path: &str) -> Result<(StatusCode, Bytes)> {
    let authority = address.authority().context("the address has no host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host, port)).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let path = format!("{}{path}", address.path().trim_end_matches('/'));
    let request = Request::get(path).header(HOST, authority.as_str());
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BYTES)
        .collect()
        .await;
    connection.abort();
    match body {
        Ok(body) => Ok((status, body.to_bytes())),
        Err(error) => bail!("the answer broke off: {error}"),
    }
}
