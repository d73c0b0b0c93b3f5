//! The settings of the learner's server.

use std::path::PathBuf;

use proto::TlsConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who may connect to the learner. By default anyone may, which suits a trusted network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}

impl LearnerServerConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
