//! Settings of the server: who may connect, and what a connection or a call may hold.
//!
//! Invariant: the default suits a trusted network; every bound has a number, none is infinite.

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::error::SettingError;

/// Beside the argument and the token, a request holds tags and lengths.
const REQUEST_FRAMING_BYTES: usize = 1 << 10;
/// Longest time that any of the settings may name: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Settings of the server; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// TLS; absent: plain text, for a trusted network or behind a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// File that holds a secret which every caller must show, as `authorization: Bearer SECRET` (browsers: as the password
    /// of Basic authentication, with any name). Health checks need none. Absent: anyone may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<PathBuf>,
    /// Origins, such as `https://trainer.example`, whose pages may call this node from a browser; `*` means any. A page of
    /// the node's own origin always may.
    pub allowed_origins: Vec<String>,
    /// Connections at once; more are closed as they come.
    pub max_connections: usize,
    /// gRPC calls at once on one connection; the peer holds further ones back.
    pub max_calls_per_connection: u32,
    /// Calls at once over all connections, gRPC and HTTP; more are refused with `RESOURCE_EXHAUSTED`, or 503. A socket
    /// counts until it is open.
    pub max_calls_in_flight: usize,
    /// Bytes of all request bodies at once; a call whose body finds no room is refused alike. At least `max_request_bytes`
    /// and `openenv.message_bytes`. Messages on sockets are not counted.
    pub max_body_bytes_in_flight: usize,
    /// Bytes of a gRPC request: the argument, and a token, which holds the history. The default has room to spare for the
    /// longest of both. A longer request is refused with `OUT_OF_RANGE`.
    pub max_request_bytes: usize,
    /// Seconds that a call may take, whatever deadline the caller sets.
    pub max_call_seconds: f64,
    /// Seconds for a peer to finish the TLS handshake, for its first request, and for the head of every HTTP/1.1 request.
    pub header_seconds: f64,
    /// Seconds between pings on an HTTP/2 connection.
    pub keepalive_interval_seconds: f64,
    /// Seconds until an unanswered ping ends the connection.
    pub keepalive_timeout_seconds: f64,
    /// Seconds until a connection is asked to make way for a new one, so that balancers can spread it anew. Sockets of
    /// OpenEnv's sessions are exempt.
    pub max_connection_age_seconds: f64,
    /// Seconds for calls in flight to end, once their connection is old or the server stops.
    pub connection_grace_seconds: f64,
    /// Seconds that a server which was told to stop still takes calls, while health says so: the time for balancers to notice.
    pub drain_seconds: f64,
}

/// Files of TLS, in PEM. They are read again every minute, so that certificates can be renewed in place.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate, with the chain above it.
    pub certificate_file: PathBuf,
    /// The certificate's private key.
    pub key_file: PathBuf,
    /// Authorities of clients; given, a client without a certificate of theirs is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            tls: None,
            bearer_token_file: None,
            allowed_origins: Vec::new(),
            max_connections: 8_192,
            max_calls_per_connection: 1_024,
            max_calls_in_flight: 8_192,
            max_body_bytes_in_flight: 256 << 20,
            max_request_bytes: 6 << 20,
            max_call_seconds: 60.0,
            header_seconds: 30.0,
            keepalive_interval_seconds: 20.0,
            keepalive_timeout_seconds: 10.0,
            max_connection_age_seconds: 600.0,
            connection_grace_seconds: 10.0,
            drain_seconds: 0.0,
        }
    }
}

impl ServerConfig {
    /// Checks ranges; the longest argument over gRPC and the longest message over HTTP must get through.
    pub(crate) fn validate(
        &self,
        argument_bytes: usize,
        message_bytes: usize,
    ) -> Result<(), SettingError> {
        let refuse = |field, remedy: String| Err(SettingError { field, remedy });
        for (field, value) in [
            ("server.max_connections", self.max_connections),
            (
                "server.max_calls_per_connection",
                self.max_calls_per_connection as usize,
            ),
            ("server.max_calls_in_flight", self.max_calls_in_flight),
        ] {
            if !(1..=1 << 20).contains(&value) {
                return refuse(field, "give 1 to 1048576".to_owned());
            }
        }
        for (field, value) in [
            ("server.max_call_seconds", self.max_call_seconds),
            ("server.header_seconds", self.header_seconds),
            (
                "server.keepalive_interval_seconds",
                self.keepalive_interval_seconds,
            ),
            (
                "server.keepalive_timeout_seconds",
                self.keepalive_timeout_seconds,
            ),
            (
                "server.max_connection_age_seconds",
                self.max_connection_age_seconds,
            ),
        ] {
            if !(value > 0.0 && value <= MAX_SECONDS) {
                return refuse(field, "give more than 0 and at most 86400".to_owned());
            }
        }
        for (field, value) in [
            (
                "server.connection_grace_seconds",
                self.connection_grace_seconds,
            ),
            ("server.drain_seconds", self.drain_seconds),
        ] {
            if !(0.0..=MAX_SECONDS).contains(&value) {
                return refuse(field, "give 0 to 86400".to_owned());
            }
        }
        let least = argument_bytes.saturating_add(REQUEST_FRAMING_BYTES);
        if self.max_request_bytes < least {
            return refuse(
                "server.max_request_bytes",
                format!("give at least {least}, room for argument_bytes, or lower that"),
            );
        }
        let least = self.max_request_bytes.max(message_bytes);
        if !(least..=Semaphore::MAX_PERMITS).contains(&self.max_body_bytes_in_flight) {
            return refuse(
                "server.max_body_bytes_in_flight",
                format!("give at least {least}, room for one request"),
            );
        }
        Ok(())
    }
}

/// A duration from a setting that `validate` has passed.
pub(super) fn seconds(setting: f64) -> Duration {
    Duration::from_secs_f64(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        let default = ServerConfig::default;
        assert!(default().validate(1 << 20, 4 << 20).is_ok());
        for (config, field) in [
            (
                ServerConfig {
                    max_connections: 0,
                    ..default()
                },
                "server.max_connections",
            ),
            (
                ServerConfig {
                    max_call_seconds: f64::NAN,
                    ..default()
                },
                "server.max_call_seconds",
            ),
            (
                ServerConfig {
                    drain_seconds: -1.0,
                    ..default()
                },
                "server.drain_seconds",
            ),
            (
                ServerConfig {
                    max_request_bytes: 1 << 20,
                    ..default()
                },
                "server.max_request_bytes",
            ),
            (
                ServerConfig {
                    max_body_bytes_in_flight: 1 << 20,
                    ..default()
                },
                "server.max_body_bytes_in_flight",
            ),
        ] {
            let message = config.validate(1 << 20, 4 << 20).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
