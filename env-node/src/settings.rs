//! Settings of what serves an environment.

use env::EnvSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    error::SettingError, openenv::config::OpenEnvConfig, serve::config::ServerConfig,
    web::config::WebConfig,
};

/// Settings of an env-node's server; every field has a default.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnvNodeSettings {
    /// The server: who may connect and how long a connection lives.
    pub server: ServerConfig,
    /// OpenEnv's protocols.
    pub openenv: OpenEnvConfig,
    /// The page for people.
    pub web: WebConfig,
}

impl EnvNodeSettings {
    /// Checks ranges. The longest argument that the environment takes must get through, and so must
    /// the response to a query that hits the wall clock.
    ///
    /// # Errors
    /// The setting that is out of range.
    pub fn validate(&self, env: &EnvSettings) -> Result<(), SettingError> {
        self.server
            .validate(env.argument_bytes, self.openenv.message_bytes)?;
        // The query, and the gold SQL after it.
        let least = 2.0 * env.sql.wall_clock_seconds;
        SettingError::unless(
            self.server.max_call_seconds > least,
            "server.max_call_seconds",
            format!("give more than {least}, or lower env.sql.wall_clock_seconds"),
        )?;
        self.openenv.validate()?;
        self.web.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_outlasts_the_wall_clock_of_its_queries() {
        let mut env = EnvSettings::default();
        for (seconds, is_allowed) in [(2.0, true), (29.0, true), (30.0, false)] {
            env.sql.wall_clock_seconds = seconds;
            let checked = EnvNodeSettings::default().validate(&env);
            let error = checked.map_err(|error| error.to_string());
            assert_eq!(error.is_ok(), is_allowed, "{seconds}");
            if let Err(message) = error {
                assert!(message.contains("more than 60"), "{message}");
            }
        }
    }
}
