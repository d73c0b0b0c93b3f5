//! The settings of the learner's server: who may connect, and what a connection or a call may hold.
//!
//! Invariant: the default suits a trusted network, and no limit is infinite.

use std::{path::PathBuf, time::Duration};

use proto::{
    MAX_MESSAGE_BYTES, TlsConfig,
    serve::{ConnectionLimits, StreamLimit},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::{
    bounds::{count, range},
    error::{LearnerError, Result},
};

/// The longest time that a setting may name: a day.
const MAX_SECONDS: f64 = 86_400.0;
/// The most of anything that a setting may name.
const MAX_COUNT: u64 = 1 << 20;
/// The longest that a shutdown waits for open calls. Only a dead connection takes that long, and
/// keep-alive pings end it before.
pub(crate) const MAX_DRAIN: Duration = Duration::from_secs(15);
/// What a peer may send on a stream, and on a connection, before it is read: weights and gradients
/// fill a long connection only with windows of this size.
const WINDOWS: (u32, u32) = (8 << 20, 16 << 20);
/// Files besides connections: standard streams, the runtime's own, the journal and the checkpoint
/// that is written, the object store, env-node, and the admin port.
const OTHER_FILES: usize = 128;

/// Who may connect to the learner, and what a connection or a call may hold. By default anyone may,
/// which suits a trusted network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct LearnerServerConfig {
    /// TLS. Absent: plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// File with the bearer token that actors must send. Absent: any actor may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor_token_file: Option<PathBuf>,
    /// File with the bearer token that ranks must send. Absent: any rank may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_token_file: Option<PathBuf>,
    /// Connections at once; an actor or a rank has one. Further ones are closed as they come. Less
    /// where the process may open fewer files, so that checkpoints can always be written.
    #[default(2_048)]
    pub max_connections: usize,
    /// Calls at once on one connection. The peer holds further ones back.
    #[default(1_024)]
    pub max_calls_per_connection: u32,
    /// Calls at once over all connections; weights streams count apart. Further ones are refused
    /// with `RESOURCE_EXHAUSTED`, and actors repeat them.
    #[default(8_192)]
    pub max_calls_in_flight: usize,
    /// Weights streams at once; an actor has one. Further ones are refused in the same way.
    #[default(2_048)]
    pub max_weights_streams: usize,
    /// Bytes of all submissions and other requests at once, until they are answered. A call whose
    /// body exceeds what is left is refused in the same way. At least 67108869, so that the largest
    /// group fits. A decoded group takes up to 4 times its bytes.
    #[default(256 << 20)]
    pub max_body_bytes_in_flight: usize,
    /// Seconds for the body of a request to arrive.
    #[default(60.0)]
    pub body_seconds: f64,
    /// Seconds for a peer to finish the TLS handshake, and for its first request.
    #[default(30.0)]
    pub header_seconds: f64,
    /// Seconds that a peer may leave a part of a response unread, such as 16 KiB of weights. Then
    /// its connection ends.
    #[default(120.0)]
    pub unread_seconds: f64,
    /// Seconds between pings on a connection.
    #[default(10.0)]
    pub keepalive_interval_seconds: f64,
    /// Seconds after which an unanswered ping ends the connection.
    #[default(5.0)]
    pub keepalive_timeout_seconds: f64,
}

impl LearnerServerConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        for (field, value) in [
            ("server.max_connections", self.max_connections),
            (
                "server.max_calls_per_connection",
                self.max_calls_per_connection as usize,
            ),
            ("server.max_calls_in_flight", self.max_calls_in_flight),
            ("server.max_weights_streams", self.max_weights_streams),
        ] {
            count(field, value as u64, MAX_COUNT)?;
        }
        for (field, value) in [
            ("server.body_seconds", self.body_seconds),
            ("server.header_seconds", self.header_seconds),
            ("server.unread_seconds", self.unread_seconds),
            (
                "server.keepalive_interval_seconds",
                self.keepalive_interval_seconds,
            ),
            (
                "server.keepalive_timeout_seconds",
                self.keepalive_timeout_seconds,
            ),
        ] {
            range(field, value, 1e-3, MAX_SECONDS)?;
        }
        let bytes = self.max_body_bytes_in_flight;
        let (least, most) = (MAX_REQUEST_BYTES, u32::MAX as usize);
        if !(least..=most).contains(&bytes) {
            let problem = format!("is {bytes}; give {least}, the largest request, to {most}");
            let field = "server.max_body_bytes_in_flight";
            return Err(LearnerError::setting(field, problem));
        }
        Ok(())
    }

    /// Returns the limits of connections. The settings are validated.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max_connections: self.max_connections,
            max_calls_per_connection: self.max_calls_per_connection,
            header_timeout: Duration::from_secs_f64(self.header_seconds),
            keepalive_interval: Duration::from_secs_f64(self.keepalive_interval_seconds),
            keepalive_timeout: Duration::from_secs_f64(self.keepalive_timeout_seconds),
            // The streams of actors and ranks last as long as the run.
            max_age: None,
            grace: MAX_DRAIN,
            stream: StreamLimit::Unread(Duration::from_secs_f64(self.unread_seconds)),
            windows: Some(WINDOWS),
            is_http2_only: true,
        }
    }

    /// Lowers `max_connections` until a learner opens no more than `limit` files. Returns what was
    /// lowered, and the remedy, if it was.
    pub fn fit_open_files(&mut self, limit: u64) -> Option<String> {
        let wanted = OTHER_FILES + self.max_connections;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if wanted <= limit {
            return None;
        }
        // Half of a limit that is very low, so that something is left for either.
        let connections = limit.saturating_sub(OTHER_FILES).max(limit / 2).max(1);
        self.max_connections = self.max_connections.min(connections);
        Some(format!(
            "this process may open {limit} files: the learner takes {} connections at once; for \
             all that is set, allow it {wanted} (ulimit -n)",
            self.max_connections
        ))
    }
}

/// The largest request: the largest message in gRPC's frame.
pub(crate) const MAX_REQUEST_BYTES: usize = MAX_MESSAGE_BYTES + GRPC_FRAME_BYTES;
/// The bytes before a message: whether it is compressed, and its length.
pub(crate) const GRPC_FRAME_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        let default = LearnerServerConfig::default;
        default().validate().unwrap();
        type Change = fn(&mut LearnerServerConfig);
        let table: [(Change, &str); 5] = [
            (|it| it.max_connections = 0, "server.max_connections: is 0"),
            (
                |it| it.max_weights_streams = 1 << 30,
                "server.max_weights_streams",
            ),
            (
                |it| it.unread_seconds = f64::NAN,
                "server.unread_seconds: is NaN",
            ),
            (|it| it.header_seconds = 0.0, "server.header_seconds: is 0"),
            (
                |it| it.max_body_bytes_in_flight = 64 << 20,
                "give 67108869, the largest request",
            ),
        ];
        for (change, named) in table {
            let mut config = default();
            change(&mut config);
            let fault = config.validate().unwrap_err().to_string();
            assert!(fault.contains(named), "{fault}");
        }
    }

    #[test]
    fn a_low_limit_of_files_leaves_some_for_checkpoints() {
        for (limit, connections) in [
            (1 << 20, 2_048),
            (2_176, 2_048),
            (1_024, 896),
            (256, 128),
            (0, 1),
        ] {
            let mut config = LearnerServerConfig::default();
            let told = config.fit_open_files(limit);
            assert_eq!(config.max_connections, connections, "{limit}");
            assert_eq!(told.is_none(), limit >= 2_176, "{told:?}");
            assert!(told.is_none_or(|told| told.contains("allow it 2176 (ulimit -n)")));
        }
    }
}
