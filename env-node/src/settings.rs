//! Settings of what serves an environment.

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
    /// Checks ranges. `argument_bytes` is the length of the longest argument that the environment
    /// takes: it must get through.
    pub(crate) fn validate(&self, argument_bytes: usize) -> Result<(), SettingError> {
        self.server
            .validate(argument_bytes, self.openenv.message_bytes)?;
        self.openenv.validate()?;
        self.web.validate()
    }
}
