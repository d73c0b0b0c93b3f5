//! How a client reaches a service: over TCP, or by a direct call to a server in the same process.
//!
//! tonic's generated clients accept any tower service, and its generated servers are tower
//! services, so one type-erased [`Transport`] covers both. Message encoding, size limits and status
//! codes are the same.

use std::{
    convert::Infallible,
    fmt,
    task::{Context, Poll},
};

use tonic::{
    Status, TimeoutExpired,
    body::Body,
    codegen::{Service, http},
};
use tower::{ServiceExt, util::BoxCloneSyncService};

use crate::{
    dial::{self, Credentials, TransportError},
    endpoints::Endpoints,
    failover::Failover,
    trace_context::TraceContext,
};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
type HttpService = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, BoxError>;

/// A connection to a service; cheap to clone.
#[derive(Clone)]
pub struct Transport {
    service: HttpService,
    endpoints: Endpoints,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    /// Dials without credentials; see [`Transport::dial_with`].
    pub fn dial(addresses: &str) -> Result<Self, TransportError> {
        Self::dial_with(addresses, &Credentials::default())
    }

    /// Connects to `addresses` on first use and again after a break: one `http://HOST:PORT` or
    /// `https://HOST:PORT`, or several separated by commas.
    ///
    /// Of several, the one that responded last is called until it fails; then the call goes to the
    /// next. If it does not respond in time, the calls that follow go to the next. Use several only
    /// for services whose calls are unary and may be repeated, such as `Env`. A deadline that
    /// passes is DEADLINE_EXCEEDED.
    ///
    /// If a server answers that it cannot serve a call or refuses the caller, its name is resolved
    /// again for the calls that follow. Then, and if a connection fails, the files of `credentials`
    /// are read again. Both happen at most every five seconds.
    ///
    /// # Errors
    /// An address is not an HTTP URL of a host and a port alone, or it has a password; or a file of
    /// `credentials` cannot be used.
    pub fn dial_with(addresses: &str, credentials: &Credentials) -> Result<Self, TransportError> {
        let channels = dial::channels(addresses, credentials)?;
        let endpoints = Endpoints::of(&channels);
        let with_trace = |mut request: http::Request<Body>| {
            TraceContext::current().write(request.headers_mut());
            request
        };
        let service = match <[_; 1]>::try_from(channels) {
            Ok([channel]) => {
                let channel = channel.map_err(explain);
                BoxCloneSyncService::new(channel.map_request(with_trace))
            }
            Err(channels) => {
                let failover = Failover::new(channels).map_err(explain);
                BoxCloneSyncService::new(failover.map_request(with_trace))
            }
        };
        Ok(Self { service, endpoints })
    }

    /// Returns the statistics of the servers; none for a server in this process.
    pub fn endpoints(&self) -> Endpoints {
        self.endpoints.clone()
    }

    /// Connects to `server`, a generated server, in this process.
    pub fn in_process<S>(server: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Self {
            service: BoxCloneSyncService::new(server.map_err(|never| match never {})),
            endpoints: Endpoints::default(),
        }
    }
}

/// Turns a passed deadline into DEADLINE_EXCEEDED, which tonic reports as CANCELLED.
fn explain(error: BoxError) -> BoxError {
    if is_timeout(&*error) {
        return Status::deadline_exceeded("the call's deadline passed").into();
    }
    error
}

/// Returns whether a deadline passed on this side.
pub(crate) fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .any(|error| error.is::<TimeoutExpired>())
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = <HttpService as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.service.call(request)
    }
}
