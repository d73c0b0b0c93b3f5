//! The admin port of a role: `/metrics` for Prometheus, `/livez` and `/readyz` for Kubernetes.
//!
//! Liveness says that the process answers; readiness follows the flag that the role owns. Neither asks another service.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{Router, http::StatusCode, routing::get};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;

/// How often recorded samples are summed up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Whether the role takes work now; shared with the role.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Says that the role takes work (or stopped taking it).
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    fn status(&self) -> StatusCode {
        if self.0.load(Ordering::Acquire) {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// Starts recording metrics and serves them on `address` until the process ends.
///
/// # Errors
/// The address is in use, or metrics are recorded already.
pub async fn serve(address: SocketAddr, ready: Ready) -> Result<()> {
    let metrics: PrometheusHandle = PrometheusBuilder::new()
        .install_recorder()
        .context("cannot record metrics")?;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve the admin port on {address}; choose another with --admin")
    })?;
    let upkept = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            // Without it samples pile up for as long as nobody scrapes.
            upkept.run_upkeep();
        }
    });
    let router = Router::new()
        .route("/metrics", get(move || async move { metrics.render() }))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(move || async move { ready.status() }));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin port stopped");
        }
    });
    Ok(())
}
