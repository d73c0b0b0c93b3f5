//! The admin port of a role: `/metrics` for Prometheus, `/livez` and `/readyz` for Kubernetes. The
//! learner adds its live page.
//!
//! Liveness means that the process responds. Readiness follows a flag that the role sets. Neither
//! depends on another service.

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
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tokio::net::TcpListener;

/// The upper bounds of the buckets of histograms, by the unit at the end of their names. They span
/// all that a metric with the unit can be: from a lookup in a cache to the longest claim, from an
/// empty query to the limit of its memory and work.
const BUCKETS: [(&str, &[f64]); 3] = [
    (
        "_seconds",
        &[
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            30.0, 60.0, 300.0,
        ],
    ),
    (
        "_bytes",
        &[
            16_384.0,
            65_536.0,
            262_144.0,
            1_048_576.0,
            4_194_304.0,
            16_777_216.0,
            67_108_864.0,
            268_435_456.0,
        ],
    ),
    ("_work_units", &[1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]),
];

/// The interval at which recorded samples are aggregated.
const UPKEEP: Duration = Duration::from_secs(5);

/// Whether the role accepts work. The role and the admin port share the flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Sets whether the role accepts work.
    pub(crate) fn set(&self, ready: bool) {
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

/// Starts recording metrics, which `describe` describes, and serves them on `address` until the
/// process ends, if one is given. Returns the flag that the port reports.
pub(crate) async fn serve(address: Option<SocketAddr>, describe: fn()) -> Result<Readiness> {
    serve_with(address, describe, Router::new()).await
}

/// Does the same, and also serves `pages`.
pub(crate) async fn serve_with(
    address: Option<SocketAddr>,
    describe: fn(),
    pages: Router,
) -> Result<Readiness> {
    let ready = Readiness::default();
    let Some(address) = address else {
        return Ok(ready);
    };
    let metrics = record_metrics().context("cannot install the metrics recorder")?;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve the admin port on {address}; choose another with --admin")
    })?;
    // Before the port answers, so that even its first page has all metrics.
    describe();
    let process = Collector::default();
    process.describe();
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            // Without upkeep, samples accumulate until the next scrape.
            upkeep.run_upkeep();
        }
    });
    let router = pages
        .route(
            "/metrics",
            get(move || async move {
                process.collect();
                metrics.render()
            }),
        )
        .route("/livez", get(|| async { "ok" }))
        .route(
            "/readyz",
            get({
                let ready = ready.clone();
                move || async move { ready.status() }
            }),
        );
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin port stopped");
        }
    });
    Ok(ready)
}

/// Installs the recorder of the process. Without buckets a histogram would become a summary, whose
/// quantiles cannot be added up over processes.
fn record_metrics() -> Result<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    for (unit, buckets) in BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Suffix(unit.to_owned()), buckets)?;
    }
    Ok(builder.install_recorder()?)
}
