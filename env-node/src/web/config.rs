//! Settings of the page.

use serde::{Deserialize, Serialize};

/// Settings of the page; every field has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfig {
    /// Whether `/web` and OpenEnv's routes beside it are served.
    pub enabled: bool,
}

impl Default for WebConfig {
    fn default() -> Self {
        Self { enabled: true }
    }
}
