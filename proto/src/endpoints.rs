//! Statistics of the calls that a transport made to each of its servers.
//!
//! Invariant: every call is counted once when it ends, also if its caller stopped waiting. A call
//! without a response counts as an error.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
};

use crate::{redial::RedialedChannel, transport::BoxError, v1::EndpointReport};

/// Buckets of latencies: the last one holds those of 16 s and more.
const LATENCY_BUCKETS: usize = 16;

/// The servers of a transport with the calls that they got; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Endpoints(Arc<[Arc<Endpoint>]>);

impl Endpoints {
    /// Returns the statistics of each server since the transport was opened.
    pub fn reports(&self) -> Vec<EndpointReport> {
        self.0.iter().map(|endpoint| endpoint.report()).collect()
    }

    pub(crate) fn of(channels: &[MeasuredChannel]) -> Self {
        Self(channels.iter().map(|it| Arc::clone(&it.endpoint)).collect())
    }
}

/// The calls of one server.
#[derive(Debug, Default)]
struct Endpoint {
    address: String,
    calls: AtomicU64,
    errors: AtomicU64,
    latency_microseconds: AtomicU64,
    latency_buckets: [AtomicU64; LATENCY_BUCKETS],
}

impl Endpoint {
    fn record(&self, latency: Duration, is_error: bool) {
        self.calls.fetch_add(1, Relaxed);
        self.errors.fetch_add(is_error.into(), Relaxed);
        let microseconds = latency.as_micros() as u64;
        self.latency_microseconds.fetch_add(microseconds, Relaxed);
        self.latency_buckets[latency_bucket(latency)].fetch_add(1, Relaxed);
    }

    fn report(&self) -> EndpointReport {
        let buckets = self.latency_buckets.iter();
        EndpointReport {
            address: self.address.clone(),
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            latency_seconds: self.latency_microseconds.load(Relaxed) as f64 / 1e6,
            latency_buckets: buckets.map(|bucket| bucket.load(Relaxed)).collect(),
        }
    }
}

/// Returns the bucket of a latency: the number of binary digits of its whole milliseconds.
fn latency_bucket(latency: Duration) -> usize {
    let digits = u128::BITS - latency.as_millis().leading_zeros();
    (digits as usize).min(LATENCY_BUCKETS - 1)
}

/// Returns about the latency in seconds that a share of the calls stayed below, as Prometheus
/// computes it: interpolated in its bucket. None without calls.
pub fn latency_quantile(calls: &EndpointReport, share: f64) -> Option<f64> {
    let counts = calls.latency_buckets.iter().map(|count| *count as f64);
    let total: f64 = counts.clone().sum();
    let wanted = share.clamp(0.0, 1.0) * total;
    let mut below = 0.0;
    for (bucket, count) in counts.enumerate() {
        if count > 0.0 && below + count >= wanted {
            let upper = 2f64.powi(bucket as i32) / 1e3;
            let lower = if bucket == 0 { 0.0 } else { upper / 2.0 };
            return Some(lower + (upper - lower) * (wanted - below) / count);
        }
        below += count;
    }
    None
}

/// A channel whose calls are counted.
#[derive(Clone)]
pub(crate) struct MeasuredChannel {
    channel: RedialedChannel,
    endpoint: Arc<Endpoint>,
}

impl MeasuredChannel {
    /// Counts the calls of `channel` under `address`.
    pub(crate) fn new(channel: RedialedChannel, address: String) -> Self {
        let endpoint = Arc::new(Endpoint {
            address,
            ..Endpoint::default()
        });
        Self { channel, endpoint }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.endpoint.address
    }
}

impl Service<http::Request<Body>> for MeasuredChannel {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut ongoing = OngoingCall {
            endpoint: Arc::clone(&self.endpoint),
            began: Instant::now(),
            is_error: true,
        };
        let call = self.channel.call(request);
        Box::pin(async move {
            let response = call.await?;
            let status = Status::from_header_map(response.headers());
            ongoing.is_error = status.is_some_and(|it| it.code() == Code::Unavailable);
            drop(ongoing);
            Ok(response)
        })
    }
}

/// A call that is counted when it is dropped, which also happens if its caller gave up.
struct OngoingCall {
    endpoint: Arc<Endpoint>,
    began: Instant,
    is_error: bool,
}

impl Drop for OngoingCall {
    fn drop(&mut self) {
        self.endpoint.record(self.began.elapsed(), self.is_error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_the_buckets_of_the_contract() {
        for (milliseconds, bucket) in [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 3),
            (16_383, 14),
            (16_384, 15),
            (u64::MAX, 15),
        ] {
            let latency = Duration::from_millis(milliseconds);
            assert_eq!(latency_bucket(latency), bucket, "{milliseconds} ms");
        }
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let calls = |latency_buckets: &[u64]| EndpointReport {
            latency_buckets: latency_buckets.to_vec(),
            ..EndpointReport::default()
        };
        let p95 = |buckets: &[u64]| latency_quantile(&calls(buckets), 0.95);
        assert_eq!(p95(&[]), None);
        assert_eq!(p95(&[0, 0]), None);
        // 100 calls of 4 to 8 ms.
        assert!((p95(&[0, 0, 0, 100]).unwrap() - 0.0078).abs() < 1e-9);
        assert_eq!(p95(&[95, 0, 5]), Some(0.001));
        assert!(p95(&[u64::MAX, u64::MAX]).unwrap() < 0.002);
    }

    #[test]
    fn a_call_counts_once_also_if_its_caller_gives_up() {
        let endpoint = Arc::new(Endpoint::default());
        endpoint.record(Duration::from_millis(5), false);
        drop(OngoingCall {
            endpoint: Arc::clone(&endpoint),
            began: Instant::now(),
            is_error: true,
        });
        let report = endpoint.report();
        assert_eq!((report.calls, report.errors), (2, 1));
        assert_eq!(report.latency_buckets.iter().sum::<u64>(), 2);
        assert!(report.latency_seconds >= 0.005);
    }
}
