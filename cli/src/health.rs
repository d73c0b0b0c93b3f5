//! `sqlenv health`: asks the admin port of a role whether the role is ready.
//!
//! For health checks of containers without a shell. The admin port is plain HTTP on every role, so
//! the check needs neither certificates nor tokens.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use axum::http::StatusCode;

use crate::{admin_client, args::HealthArgs, config::WrongSettings};

/// Kubernetes and Docker by default wait longer than this, so the reason is still reported.
const PATIENCE: Duration = Duration::from_secs(2);

/// Succeeds if the role is ready.
///
/// # Errors
/// Nothing answers at the address, or the role is not ready.
pub(crate) async fn health(args: &HealthArgs) -> Result<()> {
    let uri = admin_client::parse_address(&args.address).map_err(WrongSettings)?;
    let address = uri.authority().map_or("", |it| it.as_str());
    let answer = admin_client::get(&uri, "/readyz", PATIENCE).await;
    if answer.as_ref().is_err_and(is_no_http) {
        bail!("{address} is not the admin port of a role: it does not speak HTTP");
    }
    let (status, _) = answer.with_context(|| {
        format!("no admin port answers at {address}; start the role with --admin")
    })?;
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::SERVICE_UNAVAILABLE => {
            bail!("the role at {address} is not ready: it starts or stops")
        }
        _ => bail!("{address} is not the admin port of a role: it answered {status}"),
    }
}

fn is_no_http(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<hyper::Error>();
    error.is_some_and(hyper::Error::is_parse)
}
