//! The one error type of the actor.

use proto::SnapshotError;

/// Why an actor, an evaluation or an engine stopped.
#[derive(Debug, thiserror::Error)]
pub enum ActorError {
    /// A service did not answer, or refused. Remedy: see that it runs at the address given; the status says the rest.
    #[error("{call} failed: {status}; check that the service runs and is reachable")]
    Call {
        /// Service and method, as `Env.Reset`.
        call: &'static str,
        /// What the service said last.
        status: Box<tonic::Status>,
    },
    /// A snapshot arrived damaged or does not fit the model. Remedy: restart the learner; both sides must be one version.
    #[error("{0}; restart the learner if it persists")]
    Snapshot(#[from] SnapshotError),
    /// The learner's terms or the actor's own settings cannot be met. Remedy: change the field named.
    #[error("setting {field}: {reason}")]
    Setting {
        /// The field.
        field: &'static str,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The model failed, or could not be opened.
    #[error(transparent)]
    Policy(#[from] policy::PolicyError),
    /// The engine's thread is gone; its log says why. Remedy: restart the actor.
    #[error("the engine stopped: {0}; restart the actor")]
    Engine(String),
}

impl ActorError {
    /// An error of a call.
    pub(crate) fn call(call: &'static str, status: tonic::Status) -> Self {
        Self::Call {
            call,
            status: Box::new(status),
        }
    }

    /// Whether a service failed or refused, which says nothing about the episode.
    pub(crate) fn is_of_a_call(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    /// Whether a node did not take an episode's token: it was sealed under another key, for another version, or expired.
    pub(crate) fn is_refused_token(&self) -> bool {
        use tonic::Code::{FailedPrecondition, Unauthenticated};
        matches!(self, Self::Call { status, .. }
            if matches!(status.code(), Unauthenticated | FailedPrecondition))
    }
}
