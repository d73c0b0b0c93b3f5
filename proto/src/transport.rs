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
#[error("cannot use address {address:?}: {reason}; give it as http://HOST:PORT")]
pub struct TransportError {
    address: String,
    reason: String,
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
    /// The address is not a URI, or not one of a host by plain HTTP.
    pub fn dial(address: &str) -> Result<Self, TransportError> {
        let uri = plain_http_uri(address).map_err(|reason| TransportError {
            address: address.to_owned(),
            reason,
        })?;
        let channel: Channel = Endpoint::from(uri)
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

/// tonic takes an address without scheme or host as well, and only fails at each call.
fn plain_http_uri(address: &str) -> Result<http::Uri, String> {
    let uri: http::Uri = address
        .parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match uri.scheme_str() {
        None => return Err("it has no scheme".to_owned()),
        Some("http") => {}
        Some(scheme) => return Err(format!("its scheme is {scheme}, only http is spoken")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err("it has no host".to_owned());
    }
    Ok(uri)
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
