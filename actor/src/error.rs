//! The error type of the actor.

use std::error::Error as _;

use proto::{SnapshotError, has_reason, may_pass, refuses_caller, status_text, v1::ErrorReason};

/// Why an actor, an evaluation or an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum ActorError {
    /// A service did not respond, or rejected a call. Remedy: check that it runs at the given
    /// address. The status has the details.
    #[error("{}", call_text(call, status))]
    Call {
        /// Service and method, such as `Env.Reset`.
        call: &'static str,
        /// The last status of the service.
        status: Box<tonic::Status>,
    },
    /// A snapshot of the weights is damaged or does not fit the model. Remedy: restart the learner.
    /// Both sides must run the same version of the program.
    #[error("{0}; restart the learner if it persists")]
    Snapshot(#[from] SnapshotError),
    /// A setting of the learner or of the actor is out of range. Remedy: change the named field.
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
    /// The engine failed: a forward pass, a copy of the weights, or its thread, whose log has the
    /// reason. Remedy: restart the actor.
    #[error("the engine failed: {0}; restart the actor")]
    Engine(String),
}

/// Describes a failed call and what to do about it.
fn call_text(call: &str, status: &tonic::Status) -> String {
    let remedy = remedy(call, status);
    format!("{call} failed: {}{remedy}", status_text(status))
}

/// Returns what to do about a failed call, if that is clear. A status that may pass says nothing
/// about the call, so the remedy is to look at the service. A server without the method, or without
/// gRPC, is another one than the caller meant.
fn remedy(call: &str, status: &tonic::Status) -> &'static str {
    if may_pass(status) {
        return "; check that the service runs and is reachable";
    }
    match (status.code(), call.split('.').next()) {
        (tonic::Code::Unimplemented, Some("Env")) => {
            "; check that --env is the address of an env-node"
        }
        (tonic::Code::Unimplemented, Some("Learner")) => {
            "; check that --learner is the address of a learner"
        }
        _ => "",
    }
}

impl ActorError {
    /// Creates the error of a failed call.
    pub(crate) fn call(call: &'static str, status: tonic::Status) -> Self {
        Self::Call {
            call,
            status: Box::new(status),
        }
    }

    /// Returns whether a call to a service failed. Such an error says nothing about the episode.
    pub(crate) fn is_call_failure(&self) -> bool {
        matches!(self, Self::Call { .. })
    }

    /// Returns whether a call failed for a reason that may pass, such as a service that is away.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Call { status, .. } if may_pass(status))
    }

    /// Returns whether a service answered that it cannot serve the call now. A service that has too
    /// much work, or that cannot be reached, is another matter.
    pub(crate) fn is_answered_unavailable(&self) -> bool {
        matches!(self, Self::Call { status, .. }
            if status.code() == tonic::Code::Unavailable && status.source().is_none())
    }

    /// Returns whether a statement ran into the wall clock of env-node. If an agent's query does so
    /// again, the agent gets an observation. After many tries it is therefore the gold SQL.
    pub(crate) fn is_wall_clock(&self) -> bool {
        matches!(self, Self::Call { status, .. } if has_reason(status, ErrorReason::WallClock))
    }

    /// Returns whether env-node rejected an episode token, because it was sealed under another key,
    /// for another version, or has expired.
    pub(crate) fn is_rejected_token(&self) -> bool {
        use tonic::Code::{FailedPrecondition, Unauthenticated};
        matches!(self, Self::Call { status, .. }
            if matches!(status.code(), Unauthenticated | FailedPrecondition))
            && !self.is_refused_caller()
    }

    /// Returns whether a service refuses this actor rather than the call. A Reset has no episode
    /// token, so UNAUTHENTICATED concerns the actor there, also if a proxy gives no reason.
    pub(crate) fn is_refused_caller(&self) -> bool {
        matches!(self, Self::Call { call, status }
            if refuses_caller(status)
                || (*call == "Env.Reset" && status.code() == tonic::Code::Unauthenticated))
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    /// The codes are the same, and the episode is played again for a rejected token only.
    #[test]
    fn a_refused_caller_is_told_from_a_rejected_episode_token() {
        use Code::{FailedPrecondition, Unauthenticated};
        for (call, code, reason, is_refused) in [
            ("Env.Step", Unauthenticated, "BEARER_TOKEN_REFUSED", true),
            ("Env.Step", Unauthenticated, "TOKEN_FOREIGN_KEY", false),
            ("Env.Step", FailedPrecondition, "FOREIGN_ENVIRONMENT", true),
            ("Env.Step", FailedPrecondition, "TOKEN_EXPIRED", false),
            ("Env.Reset", Unauthenticated, "", true),
        ] {
            let details = ErrorDetails::with_error_info(reason, "sqlenv", []);
            let status = Status::with_error_details(code, "refused", details);
            let error = ActorError::call(call, status);
            assert_eq!(error.is_refused_caller(), is_refused, "{call}: {reason}");
            assert_eq!(error.is_rejected_token(), !is_refused, "{call}: {reason}");
        }
    }

    /// The first message is that of tonic for another service, the second one that for a port of
    /// metrics.
    #[test]
    fn a_wrong_address_is_named_by_its_flag() {
        let other_service = Status::unimplemented("");
        let metrics = Status::unimplemented("mapped from HTTP status code 404");
        for (call, status, text) in [
            (
                "Env.Info",
                other_service,
                "Env.Info failed: Operation is not implemented or not supported; check that --env \
                 is the address of an env-node",
            ),
            (
                "Learner.Join",
                metrics,
                "Learner.Join failed: mapped from HTTP status code 404; check that --learner is \
                 the address of a learner",
            ),
            (
                "Env.Step",
                Status::data_loss("another observation"),
                "Env.Step failed: another observation",
            ),
        ] {
            assert_eq!(ActorError::call(call, status).to_string(), text);
        }
    }

    #[test]
    fn a_failure_of_the_engine_names_the_remedy() {
        let error = ActorError::Engine("a forward pass failed: no memory".to_owned());
        assert_eq!(
            error.to_string(),
            "the engine failed: a forward pass failed: no memory; restart the actor"
        );
    }
}
