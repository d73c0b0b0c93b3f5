//! Credentials of the clients of an env-node and of a learner.

use std::path::PathBuf;

use clap::Parser;

/// Credentials of a client for the env-node at --env.
#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct EnvCredentials {
    /// File with the bearer token that the env-node requires.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_token_file: Option<PathBuf>,
    /// Certificate authorities (PEM) to trust for an https env-node, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) env_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), if the env-node requires one.
    #[arg(long, value_name = "FILE", requires = "env_key_file")]
    pub(crate) env_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of the certificate.
    #[arg(long, value_name = "FILE", requires = "env_certificate_file")]
    pub(crate) env_key_file: Option<PathBuf>,
}

/// Credentials of a client for the learner.
#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct LearnerCredentials {
    /// File with the bearer token that the learner requires of this role.
    #[arg(long, value_name = "FILE")]
    pub(crate) learner_token_file: Option<PathBuf>,
    /// Certificate authorities (PEM) to trust for an https learner, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) learner_ca_file: Option<PathBuf>,
    /// This client's certificate (PEM), if the learner requires one.
    #[arg(long, value_name = "FILE", requires = "learner_key_file")]
    pub(crate) learner_certificate_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "learner_certificate_file")]
    pub(crate) learner_key_file: Option<PathBuf>,
}
