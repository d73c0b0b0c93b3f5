//! `sqlenv health`: asks the admin port of a role whether the role is ready.
//!
//! For health checks of containers without a shell. The admin port is plain HTTP on every role, so
//! the check needs neither certificates nor tokens.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::args::HealthArgs;

/// Kubernetes and Docker by default wait longer than this, so the reason is still reported.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are read of a response. Those of an admin port are shorter.
const RESPONSE_BYTES: u64 = 4096;

/// Succeeds if the role is ready.
///
/// # Errors
/// Nothing answers at the address, or the role is not ready.
pub(crate) async fn health(args: &HealthArgs) -> Result<()> {
    let address = args.address;
    let response = timeout(PATIENCE, get(address))
        .await
        .map_err(|_| anyhow::anyhow!("it did not answer within {} s", PATIENCE.as_secs()))
        .and_then(|response| Ok(response?))
        .with_context(|| {
            format!("no admin port answers at {address}; give the role --admin {address}")
        })?;
    let status = response.lines().next().unwrap_or_default().trim();
    match status.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some("503") => bail!("the role at {address} is not ready: it starts or stops"),
        _ => bail!("{address} is not the admin port of a role: it answered {status:?}"),
    }
}

/// Returns the head of the response, and what follows it.
async fn get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream
        .take(RESPONSE_BYTES)
        .read_to_end(&mut response)
        .await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}
