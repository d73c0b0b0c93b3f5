//! Settings of OpenEnv's faces.

use serde::{Deserialize, Serialize};

/// Settings of OpenEnv's faces; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenEnvConfig {
    /// Sessions that may live at once, over sockets and MCP.
    pub max_sessions: usize,
}

impl Default for OpenEnvConfig {
    fn default() -> Self {
        Self {
            max_sessions: 4_096,
        }
    }
}
