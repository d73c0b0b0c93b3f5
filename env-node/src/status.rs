//! Refusals on the wire: gRPC statuses with `google.rpc` details.
//!
//! Invariant: every status that this crate gives to a call of `Env` has an `ErrorInfo` of domain
//! `sqlenv` whose reason is one of the contract's [`Reason`]. If a pause may help, it has a
//! `RetryInfo`. Texts fit into HTTP/2's headers. Statuses of the transport have none of these
//! details: a request that is too long or cannot be decoded, and an unknown method. Foreign pages
//! are refused over HTTP (`serve/cors.rs`).

use std::time::Duration;

use env::{EnvError, TokenError, truncated};
use proto::reason_name;
pub(crate) use proto::v1::ErrorReason as Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of every `ErrorInfo`.
const DOMAIN: &str = "sqlenv";
/// Bytes of a message or name, since both may repeat words of the request.
pub(crate) const TEXT_BYTES: usize = 1_000;
/// The pause that `RetryInfo` asks for.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Makes a status with its reason, and a pause where a retry may help.
pub(crate) fn refusal(code: Code, reason: Reason, message: &str) -> Status {
    with_details(code, reason, message, ErrorDetails::new())
}

fn with_details(code: Code, reason: Reason, message: &str, mut details: ErrorDetails) -> Status {
    details.set_error_info(reason_name(reason), DOMAIN, []);
    if matches!(code, Code::ResourceExhausted | Code::Unavailable) {
        details.set_retry_info(Some(RETRY_DELAY));
    }
    Status::with_error_details(code, truncated(message, TEXT_BYTES), details)
}

/// Returns the status of a call whose caller expects another environment than this node's.
pub(crate) fn foreign_environment(message: &str) -> Status {
    let reason = Reason::ForeignEnvironment;
    let mut details = ErrorDetails::new();
    let description = truncated(message, TEXT_BYTES);
    details.add_precondition_failure_violation(reason_name(reason), "environment", description);
    with_details(Code::FailedPrecondition, reason, message, details)
}

/// Returns the status of an error.
pub(crate) fn of(error: EnvError) -> Status {
    let message = error.to_string();
    let mut details = ErrorDetails::new();
    let (code, reason) = match error {
        EnvError::NotFound { kind, name, .. } => {
            details.set_resource_info(kind, truncated(&name, TEXT_BYTES), "", "");
            (Code::NotFound, Reason::NotFound)
        }
        EnvError::Request { field, .. } => {
            details.add_bad_request_violation(field, truncated(&message, TEXT_BYTES));
            (Code::InvalidArgument, Reason::InvalidField)
        }
        EnvError::Token(error) => {
            let (code, reason) = of_token(&error);
            if code == Code::FailedPrecondition {
                let (kind, description) = (reason_name(reason), truncated(&message, TEXT_BYTES));
                details.add_precondition_failure_violation(kind, "token", description);
            }
            (code, reason)
        }
        EnvError::ChangedDatabase { .. } => return foreign_environment(&message),
        EnvError::Overloaded { .. } => (Code::ResourceExhausted, Reason::Overloaded),
        EnvError::WallClock { .. } => (Code::Unavailable, Reason::WallClock),
        EnvError::Internal(_) => (Code::Unavailable, Reason::NodeFault),
        EnvError::Setting { .. }
        | EnvError::Database { .. }
        | EnvError::Dataset { .. }
        | EnvError::SelfTest { .. } => (Code::Internal, Reason::DatabaseBroken),
    };
    with_details(code, reason, &message, details)
}

fn of_token(error: &TokenError) -> (Code, Reason) {
    match error {
        TokenError::Malformed(_) => (Code::Unauthenticated, Reason::TokenMalformed),
        TokenError::ForeignKey { .. } => (Code::Unauthenticated, Reason::TokenForeignKey),
        TokenError::Forged => (Code::Unauthenticated, Reason::TokenForged),
        TokenError::Expired(_) => (Code::FailedPrecondition, Reason::TokenExpired),
        TokenError::ForeignVersion { .. } => {
            (Code::FailedPrecondition, Reason::TokenForeignVersion)
        }
        TokenError::ForeignDatabase { .. } => {
            (Code::FailedPrecondition, Reason::TokenForeignDatabase)
        }
    }
}
