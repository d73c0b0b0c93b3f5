//! What a status means to its caller: its text in words, whether it may pass, and whether it
//! concerns the caller.

use std::error::Error;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::v1::ErrorReason;

/// Describes a status in one line without Rust's debug format: its message, or what its code means
/// if it has none, and the cause at the end of its chain of errors.
pub fn status_text(status: &Status) -> String {
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    let cause = std::iter::successors(status.source(), |error| (*error).source()).last();
    match cause.map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message}: {cause}"),
        _ => message.to_owned(),
    }
}

/// Returns whether the status may pass. A status with a source was made on this side of a
/// connection that broke. UNKNOWN is another status of a call whose connection broke.
pub fn may_pass(status: &Status) -> bool {
    let is_of_connection = status.source().is_some();
    is_of_connection
        || matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Aborted
                | Code::Cancelled
                | Code::Unknown
        )
}

/// Returns a reason as `ErrorInfo` spells it: without the prefix of the enum.
pub fn reason_name(reason: ErrorReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("ERROR_REASON_").unwrap_or(name)
}

/// Returns whether the details of a status name this reason.
pub fn has_reason(status: &Status, reason: ErrorReason) -> bool {
    let info = status.get_details_error_info();
    info.is_some_and(|info| info.reason == reason_name(reason))
}

/// Returns whether a service refuses the caller rather than the call: it serves another environment
/// than the caller expects, or it, or a proxy in front of it, does not take the caller's token.
pub fn refuses_caller(status: &Status) -> bool {
    use ErrorReason::{BearerTokenRefused, ForeignEnvironment};
    let mut reasons = [BearerTokenRefused, ForeignEnvironment].into_iter();
    status.code() == Code::PermissionDenied || reasons.any(|reason| has_reason(status, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn statuses_are_described_in_words() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let cases = [
            (Status::unavailable("no node"), "no node"),
            (
                Status::unavailable(""),
                "The service is currently unavailable",
            ),
            (Status::from_error(Box::new(refused)), "connection refused"),
        ];
        for (status, expected) in cases {
            assert_eq!(status_text(&status), expected);
        }
    }
}
