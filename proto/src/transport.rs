//! How a client reaches a service: over TCP, or straight into a server in the same process.
//!
//! tonic's generated clients accept any tower service, and its generated servers are tower services, so one type-erased
//! [`Transport`] serves both. Message encoding, size limits and status codes behave alike.

use std::{
    convert::Infallible,
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use tonic::{
    body::Body,
    codegen::{Service, http},
    transport::{Channel, Endpoint},
};
use tower::{
    ServiceExt,
    util::{BoxCloneSyncService, MapErr},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Inner = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, BoxError>;

/// An address could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use address {address:?}: {source}; give it as http://HOST:PORT")]
pub struct TransportError {
    address: String,
    source: tonic::transport::Error,
}

/// A way to a service, cheap to clone.
#[derive(Clone)]
pub struct Transport(Inner);

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl Transport {
    /// Dials `address` (`http://HOST:PORT`) on first use and again after a break.
    ///
    /// Keepalive pings find a dead peer; without them a channel never recovers from a black-holed connection.
    ///
    /// # Errors
    /// The address is not a URI.
    pub fn dial(address: &str) -> Result<Self, TransportError> {
        let endpoint =
            Endpoint::from_shared(address.to_owned()).map_err(|source| TransportError {
                address: address.to_owned(),
                source,
            })?;
        let channel: Channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(16 << 20)
            .connect_lazy();
        Ok(Self(BoxCloneSyncService::new(MapErr::new(
            channel,
            BoxError::from,
        ))))
    }

    /// Calls `server`, a generated server, in this process.
    pub fn in_process<S>(server: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Self(BoxCloneSyncService::new(
            server.map_err(|never| match never {}),
        ))
    }
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = <Inner as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.call(request)
    }
}
