//! Retries of calls while a service cannot be reached.
//!
//! Invariant: only calls that are safe to repeat are made here, and only statuses that may pass are
//! retried; any other status is final at once. The pauses double from 50 ms to 2 s.

use std::time::Duration;

use proto::{TRACES, may_pass, status_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use tokio::time::Instant;
use tonic::{Response, Status};
use tracing::Instrument as _;

use crate::{error::ActorError, metrics, outage::Outages};

/// Shared by all callers of the process, so that an outage has one message.
static OUTAGES: Outages = Outages::new();

/// The pause after the first attempt of a call, and after the first round of episodes that failed.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts of a call, and between two rounds of episodes.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a caller keeps trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// Seconds that one attempt may take.
    #[default(60)]
    pub call_timeout_seconds: u32,
    /// Attempts after the first; once the pauses have grown, two seconds apart.
    #[default(30)]
    pub attempts: u32,
}

/// Pauses for [`FIRST_PAUSE`] before something other than a call is tried again.
pub(crate) async fn pause() {
    tokio::time::sleep(FIRST_PAUSE).await;
}

impl Retry {
    /// Makes a call and repeats it while its status may pass.
    pub(crate) async fn call<T>(
        &self,
        name: &'static str,
        attempt: impl AsyncFn() -> Result<Response<T>, Status>,
    ) -> Result<T, ActorError> {
        let limit = Duration::from_secs(self.call_timeout_seconds.into());
        let mut pause = FIRST_PAUSE;
        let mut attempts_left = self.attempts;
        loop {
            let began = Instant::now();
            let span = tracing::trace_span!(
                target: TRACES, "call", otel.name = name, otel.kind = "client"
            );
            let answer = tokio::time::timeout(limit, attempt())
                .instrument(span)
                .await;
            metrics::record_call(name, began.elapsed());
            let status = match answer {
                Ok(Ok(response)) => {
                    warn(OUTAGES.succeeded(name, Instant::now().into_std()));
                    return Ok(response.into_inner());
                }
                Ok(Err(status)) => status,
                Err(_) => {
                    Status::deadline_exceeded(format!("no answer within {} s", limit.as_secs()))
                }
            };
            if attempts_left == 0 || !may_pass(&status) {
                return Err(ActorError::call(name, status));
            }
            tracing::debug!(call = name, status = status_text(&status), "retrying");
            metrics::count_retry(name);
            warn(OUTAGES.failed(name, &status, Instant::now().into_std()));
            attempts_left -= 1;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn warn(message: Option<String>) {
    if let Some(message) = message {
        tracing::warn!("{message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const QUICK: Retry = Retry {
        call_timeout_seconds: 1,
        attempts: 2,
    };

    #[tokio::test]
    async fn passing_states_are_waited_for() {
        let calls = Cell::new(0);
        let answer = QUICK
            .call("Test.Call", || {
                calls.set(calls.get() + 1);
                let done = calls.get() == 3;
                async move {
                    if done {
                        Ok(Response::new(7))
                    } else {
                        Err(Status::unavailable("away"))
                    }
                }
            })
            .await;
        assert_eq!(answer.unwrap(), 7);
        assert_eq!(calls.get(), 3);
    }

    #[tokio::test]
    async fn lasting_states_and_worn_patience_are_errors() {
        for (status, calls_made) in [
            (Status::not_found("no such question"), 1),
            (Status::unavailable("away"), 3),
        ] {
            let calls = Cell::new(0);
            let answer: Result<(), _> = QUICK
                .call("Test.Call", || {
                    calls.set(calls.get() + 1);
                    let status = status.clone();
                    async move { Err(status) }
                })
                .await;
            let message = answer.unwrap_err().to_string();
            assert!(message.starts_with("Test.Call failed: "), "{message}");
            assert!(message.contains(status.message()), "{message}");
            assert_eq!(calls.get(), calls_made);
        }
    }

    #[tokio::test]
    async fn an_attempt_that_hangs_counts_as_a_passing_state() {
        let retry = Retry {
            attempts: 0,
            ..QUICK
        };
        let answer: Result<(), _> = retry.call("Test.Call", std::future::pending).await;
        assert!(
            answer
                .unwrap_err()
                .to_string()
                .contains("no answer within 1 s")
        );
    }
}
