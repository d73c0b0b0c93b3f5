//! Settings of OpenEnv's protocols.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::error::SettingError;

/// OpenEnv's own tools send messages of this size. A smaller limit would refuse them.
const MIN_MESSAGE_BYTES: usize = 1 << 20;

/// Settings of OpenEnv's protocols. Every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct OpenEnvConfig {
    /// Which routes are served.
    pub mode: Mode,
    /// Sessions open at once, over sockets and MCP. At least 1.
    #[default(4_096)]
    pub max_sessions: usize,
    /// A peer that sends nothing for half of this time is pinged, and dropped if it sends nothing
    /// for as long after the ping. Give more than twice the longest time for which a client blocks
    /// its own event loop. A message that is unfinished half of this time after it was noticed
    /// closes its socket with code 1008.
    #[default(120.0)]
    pub ping_seconds: f64,
    /// Bytes of one message or request body. A longer message closes the socket with code 1009, a
    /// longer body is answered by 413, and by a JSON-RPC error on `/mcp`. At least 1 MiB.
    #[default(4 << 20)]
    pub message_bytes: usize,
    /// When all sessions are taken, MCP sessions without a socket that were idle for this long are
    /// closed, and those that got no episode within 30 s.
    #[default(3_600.0)]
    pub session_idle_seconds: f64,
}

/// Which routes a server serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All routes.
    #[default]
    Simulation,
    /// All routes but `/reset`, `/step` and `/state`: agents act through tools and sockets only.
    Production,
}

impl FromStr for Mode {
    type Err = String;

    /// Reads a mode in any case.
    fn from_str(name: &str) -> Result<Self, String> {
        match name.to_ascii_lowercase().as_str() {
            "simulation" => Ok(Self::Simulation),
            "production" => Ok(Self::Production),
            _ => Err(format!(
                "unknown mode {name:?}; use simulation or production"
            )),
        }
    }
}

impl OpenEnvConfig {
    pub(crate) fn validate(&self) -> Result<(), SettingError> {
        let check = SettingError::unless;
        check(
            self.max_sessions > 0,
            "openenv.max_sessions",
            "give at least 1",
        )?;
        let is_large = self.message_bytes >= MIN_MESSAGE_BYTES;
        check(is_large, "openenv.message_bytes", "give at least 1048576")?;
        for (field, seconds) in [
            ("openenv.ping_seconds", self.ping_seconds),
            ("openenv.session_idle_seconds", self.session_idle_seconds),
        ] {
            let is_in_range = seconds > 0.0 && seconds <= 86_400.0;
            check(is_in_range, field, "give more than 0 and at most 86400")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_settings_are_named() {
        assert!(OpenEnvConfig::default().validate().is_ok());
        for (config, field) in [
            (r#"{"max_sessions": 0}"#, "openenv.max_sessions"),
            (r#"{"message_bytes": 1000}"#, "openenv.message_bytes"),
            (r#"{"ping_seconds": 0}"#, "openenv.ping_seconds"),
            (
                r#"{"session_idle_seconds": -1}"#,
                "openenv.session_idle_seconds",
            ),
        ] {
            let config: OpenEnvConfig = serde_json::from_str(config).unwrap();
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn modes_have_names() {
        assert_eq!("Production".parse(), Ok(Mode::Production));
        assert_eq!(
            serde_json::to_string(&Mode::Simulation).unwrap(),
            "\"simulation\""
        );
        assert!(
            "prod"
                .parse::<Mode>()
                .unwrap_err()
                .contains("use simulation")
        );
    }
}
