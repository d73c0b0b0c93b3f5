//! Refusals on the wire: gRPC statuses with `google.rpc` details.
//!
//! Invariant: every status of this node carries an `ErrorInfo` of domain `sqlenv` whose reason is one of [`Reason`], the
//! list in `env.proto`; what may pass carries a `RetryInfo`. Texts are short enough for HTTP/2's headers.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{error::EnvError, rows::cut, token::TokenError};

/// The domain of every `ErrorInfo`.
const DOMAIN: &str = "sqlenv";
/// Bytes of a message or name; a caller's own words can come back in it.
const TEXT_BYTES: usize = 1_000;
/// Pause that `RetryInfo` asks for.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Why a call was refused, for programs. `env.proto` says what each means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NotFound,
    InvalidField,
    TokenMalformed,
    TokenForeignKey,
    TokenForged,
    TokenExpired,
    TokenForeignVersion,
    TokenForeignDatabase,
    Overloaded,
    WallClock,
    NodeFault,
    DatabaseBroken,
    DeadlineExceeded,
    BearerTokenRefused,
}

impl Reason {
    /// The reason as `ErrorInfo` spells it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NOT_FOUND",
            Self::InvalidField => "INVALID_FIELD",
            Self::TokenMalformed => "TOKEN_MALFORMED",
            Self::TokenForeignKey => "TOKEN_FOREIGN_KEY",
            Self::TokenForged => "TOKEN_FORGED",
            Self::TokenExpired => "TOKEN_EXPIRED",
            Self::TokenForeignVersion => "TOKEN_FOREIGN_VERSION",
            Self::TokenForeignDatabase => "TOKEN_FOREIGN_DATABASE",
            Self::Overloaded => "OVERLOADED",
            Self::WallClock => "WALL_CLOCK",
            Self::NodeFault => "NODE_FAULT",
            Self::DatabaseBroken => "DATABASE_BROKEN",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::BearerTokenRefused => "BEARER_TOKEN_REFUSED",
        }
    }
}

/// A status with its reason, and a pause where a retry may help.
pub(crate) fn refusal(code: Code, reason: Reason, message: &str) -> Status {
    with_details(code, reason, message, ErrorDetails::new())
}

fn with_details(code: Code, reason: Reason, message: &str, mut details: ErrorDetails) -> Status {
    details.set_error_info(reason.as_str(), DOMAIN, []);
    if matches!(code, Code::ResourceExhausted | Code::Unavailable) {
        details.set_retry_info(Some(RETRY_DELAY));
    }
    Status::with_error_details(code, cut(message, TEXT_BYTES), details)
}

impl From<EnvError> for Status {
    fn from(error: EnvError) -> Self {
        let message = error.to_string();
        let mut details = ErrorDetails::new();
        let (code, reason) = match error {
            EnvError::NotFound { kind, name, .. } => {
                details.set_resource_info(kind, cut(&name, TEXT_BYTES), "", "");
                (Code::NotFound, Reason::NotFound)
            }
            EnvError::Request { field, .. } => {
                details.add_bad_request_violation(field, cut(&message, TEXT_BYTES));
                (Code::InvalidArgument, Reason::InvalidField)
            }
            EnvError::Token(error) => {
                let (code, reason) = of_token(&error);
                if code == Code::FailedPrecondition {
                    let description = cut(&message, TEXT_BYTES);
                    details.add_precondition_failure_violation(
                        reason.as_str(),
                        "token",
                        description,
                    );
                }
                (code, reason)
            }
            EnvError::Overloaded { .. } => (Code::ResourceExhausted, Reason::Overloaded),
            EnvError::WallClock { .. } => (Code::Unavailable, Reason::WallClock),
            EnvError::Internal(_) => (Code::Unavailable, Reason::NodeFault),
            EnvError::Config { .. } | EnvError::Database { .. } | EnvError::Dataset { .. } => {
                (Code::Internal, Reason::DatabaseBroken)
            }
        };
        with_details(code, reason, &message, details)
    }
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
