//! Gets pages of the admin port of a role, which is plain HTTP.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use axum::http::{Request, StatusCode, Uri, header::HOST};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

/// A status is some 100 kB. Something else at the address may send anything.
const MAX_BYTES: usize = 32 << 20;

/// Reads the address of an admin port: HOST:PORT, with or without `http://`.
pub(crate) fn parse_address(text: &str) -> Result<Uri> {
    // It is printed later.
    ensure!(
        !text.contains('@'),
        "an admin port asks for no password; give HOST:PORT"
    );
    let address = match text.split_once("://") {
        None => text,
        Some(("http", address)) => address,
        Some(("https", _)) => bail!(
            "{text}: an admin port speaks http only; give HOST:PORT, or open the page through a \
             tunnel or a proxy"
        ),
        Some(_) => bail!("{text} is not the address of an admin port; give HOST:PORT"),
    };
    let uri: Result<Uri, _> = format!("http://{address}").parse();
    let is_whole = |uri: &Uri| uri.port_u16().is_some() && uri.host() != Some("");
    uri.ok()
        .filter(is_whole)
        .with_context(|| format!("{text} is not an address with a port; give HOST:PORT"))
}

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
