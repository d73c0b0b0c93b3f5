//! Settings of the server: who may connect, and what a connection or a call may hold.
//!
//! Invariant: the default suits a trusted network, and no limit is infinite.

use std::{path::PathBuf, time::Duration};

use proto::{
    TlsConfig,
    serve::{ConnectionLimits, StreamLimit},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::sync::Semaphore;

use crate::error::SettingError;

/// Bytes of a request besides the argument and the token: tags and lengths.
const REQUEST_FRAMING_BYTES: usize = 1 << 10;
/// The longest time that a setting may name: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// Settings of the server. Every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// TLS. Absent: plain text, for a trusted network or behind a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// File with a token that every caller must send, as `authorization: Bearer TOKEN` (browsers:
    /// as the password of Basic authentication, with any name). Health checks need none. Absent:
    /// anyone may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer_token_file: Option<PathBuf>,
    /// Origins, such as `https://trainer.example`, whose pages may call this node from a browser.
    /// `*` means any. Pages of the node's own origin always may.
    pub allowed_origins: Vec<String>,
    /// Connections at once. Further ones are closed as they come.
    #[default(8_192)]
    pub max_connections: usize,
    /// gRPC calls at once on one connection. The peer holds further ones back.
    #[default(1_024)]
    pub max_calls_per_connection: u32,
    /// Calls at once over all connections, gRPC and HTTP. Further ones are refused with
    /// `RESOURCE_EXHAUSTED`, or 503. A socket counts until it is open, and each of its frames while
    /// it is answered; further frames get an error frame.
    #[default(8_192)]
    pub max_calls_in_flight: usize,
    /// Bytes of all request bodies at once, and as many of all responses that peers have not read
    /// yet. A call whose body exceeds what is left is refused in the same way, and a response that
    /// does is cut. At least `max_request_bytes` and `openenv.message_bytes`. What sockets receive
    /// counts as bodies do, from its arrival until it is answered, but for 16 KiB of each message.
    /// A socket that exceeds what is left is closed with code 1013.
    #[default(256 << 20)]
    pub max_body_bytes_in_flight: usize,
    /// Bytes of a gRPC request: the argument, and a token, which holds the history. The default
    /// exceeds the longest of both together. A longer request is refused with `OUT_OF_RANGE`.
    #[default(6 << 20)]
    pub max_request_bytes: usize,
    /// Seconds that a call, or the answer to a frame, may take, even if the caller sets a later
    /// deadline. More than twice `env.sql.wall_clock_seconds`.
    #[default(60.0)]
    pub max_call_seconds: f64,
    /// Seconds for a peer to finish the TLS handshake, for its first request, and for the head of
    /// each HTTP/1.1 request.
    #[default(30.0)]
    pub header_seconds: f64,
    /// Seconds between pings on an HTTP/2 connection.
    #[default(20.0)]
    pub keepalive_interval_seconds: f64,
    /// Seconds after which an unanswered ping ends the connection.
    #[default(10.0)]
    pub keepalive_timeout_seconds: f64,
    /// Seconds after which a client is asked to open a new connection, so that balancers can spread
    /// connections again. Sockets of OpenEnv's sessions are exempt.
    #[default(600.0)]
    pub max_connection_age_seconds: f64,
    /// Seconds for calls in flight to end when the server stops. When their connection is old, they
    /// have `max_call_seconds` if that is more.
    #[default(10.0)]
    pub connection_grace_seconds: f64,
    /// Seconds that a server still takes calls after it was told to stop, while its health is
    /// NOT_SERVING: the time that balancers need to notice.
    pub drain_seconds: f64,
}

impl ServerConfig {
    /// Checks ranges. The longest argument over gRPC and the longest message over HTTP must fit
    /// into the limits on bytes.
    pub(crate) fn validate(
        &self,
        argument_bytes: usize,
        message_bytes: usize,
    ) -> Result<(), SettingError> {
        self.validate_ranges()?;
        SettingError::unless(
            self.allowed_origins
                .iter()
                .all(|origin| origin == "*" || may_be_sent(origin)),
            "server.allowed_origins",
            "give origins as browsers send them, such as https://trainer.example, without a path, \
             or *",
        )?;
        let least = argument_bytes.saturating_add(REQUEST_FRAMING_BYTES);
        SettingError::unless(
            self.max_request_bytes >= least,
            "server.max_request_bytes",
            format!("give at least {least}, so that argument_bytes fits, or lower argument_bytes"),
        )?;
        let least = self.max_request_bytes.max(message_bytes);
        let most = Semaphore::MAX_PERMITS;
        SettingError::unless(
            (least..=most).contains(&self.max_body_bytes_in_flight),
            "server.max_body_bytes_in_flight",
            format!("give {least}, so that one request fits, to {most}"),
        )
    }

    /// Returns the limits of connections. The settings are validated.
    pub(super) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max_connections: self.max_connections,
            max_calls_per_connection: self.max_calls_per_connection,
            header_timeout: Duration::from_secs_f64(self.header_seconds),
            keepalive_interval: Duration::from_secs_f64(self.keepalive_interval_seconds),
            keepalive_timeout: Duration::from_secs_f64(self.keepalive_timeout_seconds),
            // No call that is within its own limit is cut because its connection is old.
            max_age: Some((
                Duration::from_secs_f64(self.max_connection_age_seconds),
                Duration::from_secs_f64(self.connection_grace_seconds.max(self.max_call_seconds)),
            )),
            grace: Duration::from_secs_f64(self.connection_grace_seconds),
            // A call may take half of this. The other half is for the peer to read the response.
            stream: StreamLimit::Total(Duration::from_secs_f64(2.0 * self.max_call_seconds)),
            windows: None,
            is_http2_only: false,
        }
    }

    fn validate_ranges(&self) -> Result<(), SettingError> {
        let check = SettingError::unless;
        for (field, value) in [
            ("server.max_connections", self.max_connections),
            (
                "server.max_calls_per_connection",
                self.max_calls_per_connection as usize,
            ),
            ("server.max_calls_in_flight", self.max_calls_in_flight),
        ] {
            check((1..=1 << 20).contains(&value), field, "give 1 to 1048576")?;
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
            let is_in_range = value > 0.0 && value <= MAX_SECONDS;
            check(is_in_range, field, "give more than 0 and at most 86400")?;
        }
        for (field, value) in [
            (
                "server.connection_grace_seconds",
                self.connection_grace_seconds,
            ),
            ("server.drain_seconds", self.drain_seconds),
        ] {
            let is_in_range = (0.0..=MAX_SECONDS).contains(&value);
            check(is_in_range, field, "give 0 to 86400")?;
        }
        Ok(())
    }
}

/// Returns whether a browser may send this origin: a scheme, a host and perhaps a port, in lower
/// case and without a path, or `null`.
fn may_be_sent(origin: &str) -> bool {
    let is_plain = |text: &str| {
        let may_occur = |byte: u8| {
            byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"/?#@*".contains(&byte)
        };
        !text.is_empty() && text.bytes().all(may_occur)
    };
    let parts = origin.split_once("://");
    origin == "null" || parts.is_some_and(|(scheme, host)| is_plain(scheme) && is_plain(host))
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
                "server.max_body_bytes_in_flight cannot be used: give 6291456",
            ),
            (
                ServerConfig {
                    max_body_bytes_in_flight: usize::MAX,
                    ..default()
                },
                "so that one request fits, to 2305843009213693951",
            ),
        ] {
            let message = config.validate(1 << 20, 4 << 20).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }

    #[test]
    fn an_origin_that_no_browser_sends_is_refused() {
        for (origin, is_good) in [
            ("*", true),
            ("https://trainer.example", true),
            ("http://localhost:8080", true),
            ("null", true),
            ("chrome-extension://abcdef", true),
            ("trainer.example", false),
            ("https://Trainer.example", false),
            ("https://trainer.example/", false),
            ("https://*.example", false),
            ("", false),
        ] {
            let config = ServerConfig {
                allowed_origins: vec![origin.to_owned()],
                ..ServerConfig::default()
            };
            let checked = config.validate(1 << 20, 4 << 20);
            assert_eq!(checked.is_ok(), is_good, "{origin}");
        }
    }
}
