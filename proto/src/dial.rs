//! Turns addresses and credentials into channels.
//!
//! Invariant: an address or a file that cannot be used is an error here, before the first call.
//! Nothing is dialed yet.

use std::{error::Error as _, iter::successors, path::PathBuf, time::Duration};

use tonic::{
    codegen::http::{
        HeaderValue, Uri,
        uri::{Authority, InvalidUri},
    },
    transport::{Channel, Endpoint},
};

use crate::{
    bearer_token, client_tls::ClientTls, endpoints::MeasuredChannel, redial::RedialedChannel,
};

/// An address or a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address is not an HTTP URL of a host and a port alone.
    #[error(
        "cannot use address {address:?}: {reason}; give it as http://HOST:PORT or https://HOST:PORT"
    )]
    Address {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A file of the credentials cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A file with a certificate, a key or a token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {setting} {path}: {reason}", path = path.display())]
pub struct FileError {
    /// The setting, or the field of [`Credentials`].
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what the file should hold.
    pub reason: String,
}

/// How a client authenticates and which servers it trusts; by default not at all, and the system's
/// authorities.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Certificate authorities in PEM that sign `https` servers, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// This client's certificate and private key in PEM, for servers that require them.
    pub certificate_and_key_files: Option<(PathBuf, PathBuf)>,
    /// A bearer token that the server requires. Over `http` it crosses the network unencrypted.
    pub bearer_token_file: Option<PathBuf>,
}

impl Credentials {
    /// Returns the value of the authorization header, if there is one.
    pub(crate) fn bearer(&self) -> Result<Option<HeaderValue>, FileError> {
        let Some(path) = &self.bearer_token_file else {
            return Ok(None);
        };
        let token = bearer_token::read("bearer_token_file", path)?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .expect("a token is one line of ASCII: this is a bug");
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Reads the files that calls to an address need.
    pub(crate) fn read(&self, address: &Uri) -> Result<CredentialFiles, FileError> {
        let is_secure = address.scheme_str() == Some("https");
        Ok(CredentialFiles {
            bearer: self.bearer()?,
            tls: is_secure.then(|| ClientTls::read(self)).transpose()?,
        })
    }
}

/// What the files of credentials held when they were read.
#[derive(Clone, PartialEq)]
pub(crate) struct CredentialFiles {
    /// The value of the authorization header.
    pub(crate) bearer: Option<HeaderValue>,
    /// None over plain HTTP.
    tls: Option<ClientTls>,
}

/// Returns one channel for each address; at least one.
pub(crate) fn channels(
    addresses: &str,
    credentials: &Credentials,
) -> Result<Vec<MeasuredChannel>, TransportError> {
    // Addresses are printed and recorded. This comes before the list is split, since a password may
    // contain a comma.
    if let Some((_, host)) = addresses.rsplit_once('@') {
        return Err(TransportError::Address {
            address: host.to_owned(),
            reason: "a user name or a password before the @ is not sent, and would be printed; \
                     give a token by a file"
                .to_owned(),
        });
    }
    addresses
        .split(',')
        .map(|address| channel(address.trim(), credentials))
        .collect()
}

fn channel(address: &str, credentials: &Credentials) -> Result<MeasuredChannel, TransportError> {
    let uri = http_uri(address).map_err(|reason| TransportError::Address {
        address: address.to_owned(),
        reason,
    })?;
    let host = uri.host().unwrap_or_default();
    let name = uri
        .port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let channel = RedialedChannel::dial(uri, credentials)?;
    Ok(MeasuredChannel::new(channel, name))
}

/// Creates a channel. Its keep-alive pings detect a dead peer; without them it would wait forever
/// on a connection whose packets are dropped.
pub(crate) fn open(address: &Uri, files: &CredentialFiles) -> Result<Channel, TransportError> {
    let mut endpoint = Endpoint::from(address.clone());
    if let Some(tls) = &files.tls {
        endpoint = endpoint.tls_config(tls.config()?).map_err(|error| {
            let cause = successors(error.source(), |error| (*error).source()).last();
            TransportError::Address {
                address: address.to_string(),
                reason: cause.map_or_else(|| error.to_string(), ToString::to_string),
            }
        })?;
    }
    Ok(endpoint
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .connect_lazy())
}

/// Parses an HTTP URL of a host and a port alone. tonic accepts an address without a scheme or a
/// host and fails at each call instead. It drops a path and a query, and calls port 80 or 443 in
/// place of a port that is out of range.
fn http_uri(address: &str) -> Result<Uri, String> {
    let uri: Uri = address
        .parse()
        .map_err(|error: InvalidUri| error.to_string())?;
    match uri.scheme_str() {
        None => return Err("it has no scheme".to_owned()),
        Some("http" | "https") => {}
        Some(scheme) => return Err(format!("its scheme is {scheme}")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err("it has no host".to_owned());
    }
    if uri.port().is_none() && uri.authority().map(Authority::as_str) != uri.host() {
        return Err("its port is not a number up to 65535".to_owned());
    }
    // A fragment is no part of `uri`.
    if uri.path() != "/" || address.contains(['?', '#']) {
        return Err("it has a path, a query or a fragment, which would not be sent".to_owned());
    }
    Ok(uri)
}
