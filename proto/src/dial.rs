//! Turns addresses and credentials into channels.
//!
//! Invariant: an address or a file that cannot be used is an error here, before the first call.
//! Nothing is dialed yet.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tonic::{
    codegen::http::{HeaderValue, Uri, uri::InvalidUri},
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};

use crate::endpoints::MeasuredChannel;

/// An address or a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address is not an HTTP URL with a host.
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
        const SETTING: &str = "bearer_token_file";
        let Some(path) = &self.bearer_token_file else {
            return Ok(None);
        };
        let text = read(SETTING, path)?;
        let refuse = |problem: &str| FileError {
            setting: SETTING,
            path: path.clone(),
            reason: format!("{problem}; give a text file that holds the token"),
        };
        let text = String::from_utf8_lossy(&text);
        let token = text.trim();
        if token.is_empty() {
            return Err(refuse("it is empty"));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| refuse("its text is not one line of ASCII"))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn tls(&self) -> Result<ClientTlsConfig, FileError> {
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca_file {
            None => tls.with_enabled_roots(),
            Some(path) => tls.ca_certificate(Certificate::from_pem(read("ca_file", path)?)),
        };
        if let Some((certificate, key)) = &self.certificate_and_key_files {
            const SETTING: &str = "certificate_and_key_files";
            tls = tls.identity(Identity::from_pem(
                read(SETTING, certificate)?,
                read(SETTING, key)?,
            ));
        }
        Ok(tls)
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|error| FileError {
        setting,
        path: path.to_owned(),
        reason: format!("{error}; give a file that this process may read"),
    })
}

/// Returns one channel for each address; at least one.
pub(crate) fn channels(
    addresses: &str,
    credentials: &Credentials,
) -> Result<Vec<MeasuredChannel>, TransportError> {
    addresses
        .split(',')
        .map(|address| channel(address.trim(), credentials))
        .collect()
}

/// Creates a channel. Its keep-alive pings detect a dead peer; without them it would wait forever
/// on a connection whose packets are dropped.
fn channel(address: &str, credentials: &Credentials) -> Result<MeasuredChannel, TransportError> {
    let refuse = |reason: String| TransportError::Address {
        address: address.to_owned(),
        reason,
    };
    let uri = http_uri(address).map_err(refuse)?;
    let is_secure = uri.scheme_str() == Some("https");
    // Without a user and a password, which an address may contain.
    let host = uri.host().unwrap_or_default();
    let name = uri
        .port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let mut endpoint = Endpoint::from(uri);
    if is_secure {
        endpoint = endpoint
            .tls_config(credentials.tls()?)
            .map_err(|error| refuse(error.to_string()))?;
    }
    let channel = endpoint
        .connect_timeout(Duration::from_secs(5))
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .connect_lazy();
    Ok(MeasuredChannel::new(channel, name))
}

/// Parses an HTTP URL with a host. tonic accepts an address without either and fails at each call
/// instead.
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
    Ok(uri)
}
