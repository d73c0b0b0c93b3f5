//! What an actor does about episodes that fail: it warns, it waits before it plays them again, and
//! it decides when waiting for an env-node is in vain.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use proto::{
    EnvClient, RareWarning,
    v1::{InfoRequest, Trajectory},
};
use tokio::time::Instant;

use crate::{episode_settings::EpisodeSpec, error::ActorError, retry::LONGEST_PAUSE};

/// After so many rounds in a row that fail for a reason that does not pass, episodes are given up.
const MAX_LASTING: u32 = 3;
/// The least time before episodes are given up for such a reason. A proxy may answer by such a
/// status while an env-node starts.
const LASTING: Duration = Duration::from_secs(30);
/// The same as [`MAX_LASTING`] for rounds that fail although env-node answers.
const MAX_UNSERVED: u32 = 9;
/// An env-node that answers does so within this time.
const ANSWER: Duration = Duration::from_secs(10);

/// Warns of episodes that fail. All episodes of a run may fail for one reason, so few are logged.
#[derive(Default)]
pub(super) struct EpisodeWarnings {
    broken: Mutex<RareWarning>,
    unscored: Mutex<RareWarning>,
}

impl EpisodeWarnings {
    /// Notes an episode of which a call failed.
    pub(super) fn broken(&self, error: &ActorError, question_id: &str) {
        if let Some(episodes) = self.broken.lock().note() {
            tracing::warn!(%error, question_id, episodes, "an episode failed");
        }
    }

    /// Notes an episode that has ended. It may have no score for another reason than a call.
    pub(super) fn ended(&self, trajectory: &Trajectory) {
        if trajectory.scored {
            return;
        }
        if let Some(episodes) = self.unscored.lock().note() {
            tracing::warn!(
                error = trajectory.failure,
                question_id = trajectory.question_id,
                episodes,
                "an episode failed and gets no score"
            );
        }
    }
}

/// Why calls of an episode failed. The greatest one counts for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EnvFault {
    /// For a reason that does not pass.
    Lasting,
    /// Env-node answered that it cannot serve it now.
    Unserved,
    /// Env-node is away, or has too much work.
    Away,
}

impl EnvFault {
    pub(super) fn of(error: &ActorError) -> Self {
        match (error.may_pass(), error.is_answered_unavailable()) {
            (false, _) => Self::Lasting,
            (true, true) => Self::Unserved,
            (true, false) => Self::Away,
        }
    }
}

/// Rounds in a row in which episodes failed.
pub(super) struct FailedRounds {
    next_pause: Duration,
    /// Why the last round failed, how many rounds in a row failed for that, and the end of the
    /// first of them.
    last: Option<(EnvFault, u32, Instant)>,
}

impl FailedRounds {
    /// Begins with the pause after the first of them.
    pub(super) fn new(first_pause: Duration) -> Self {
        Self {
            next_pause: first_pause,
            last: None,
        }
    }

    /// Notes a round with the episodes that failed and the error that counts. Returns whether
    /// waiting is in vain: the reason does not pass; or env-node answers now and did after earlier
    /// rounds, so it cannot serve these episodes, for instance because their gold SQL takes longer
    /// than the limit. Without this the run would wait for them for ever.
    pub(super) async fn are_final(
        &mut self,
        error: &ActorError,
        env: &EnvClient,
        failed: &[(usize, EpisodeSpec)],
    ) -> bool {
        let mut fault = EnvFault::of(error);
        if fault == EnvFault::Unserved && !answers(env).await {
            fault = EnvFault::Away;
        }
        let is_final = self.note(fault, Instant::now());
        if is_final {
            let ids = failed.iter().map(|(_, spec)| spec.question_id.as_str());
            let ids: BTreeSet<&str> = ids.collect();
            tracing::error!(
                %error,
                questions = ?ids,
                "env-node does not serve some of these episodes; they get no score. Its log may \
                 say more"
            );
        }
        is_final
    }

    /// Notes a round that failed at `now`. Returns whether waiting is in vain.
    fn note(&mut self, fault: EnvFault, now: Instant) -> bool {
        let (rounds, since) = match self.last {
            Some((last, rounds, since)) if last == fault => (rounds + 1, since),
            _ => (1, now),
        };
        self.last = Some((fault, rounds, since));
        match fault {
            EnvFault::Lasting => {
                rounds >= MAX_LASTING && now.saturating_duration_since(since) >= LASTING
            }
            EnvFault::Unserved => rounds >= MAX_UNSERVED,
            EnvFault::Away => false,
        }
    }

    /// Waits before the next round. A call whose status does not pass has no pauses of its own,
    /// nor has one that is not retried.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause).await;
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns whether an env-node answers.
async fn answers(env: &EnvClient) -> bool {
    let mut env = env.clone();
    let answer = tokio::time::timeout(ANSWER, env.info(InfoRequest {})).await;
    matches!(answer, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes rounds that fail at these seconds. Returns which of them are final.
    fn finals(rounds: &[(EnvFault, u64)]) -> Vec<bool> {
        let began = Instant::now();
        let mut failures = FailedRounds::new(Duration::ZERO);
        let note = |&(fault, second): &(EnvFault, u64)| {
            failures.note(fault, began + Duration::from_secs(second))
        };
        rounds.iter().map(note).collect()
    }

    #[test]
    fn a_reason_that_does_not_pass_is_final_after_rounds_and_time() {
        use EnvFault::{Away, Lasting};
        let quick = [0, 1, 2, 29, 30].map(|second| (Lasting, second));
        assert_eq!(finals(&quick), [false, false, false, false, true]);
        let slow = [0, 40, 80].map(|second| (Lasting, second));
        assert_eq!(finals(&slow), [false, false, true]);
        let another = [(Lasting, 0), (Lasting, 20), (Away, 30), (Lasting, 40)];
        let later = [(Lasting, 50), (Lasting, 69), (Lasting, 70)];
        let is_final = finals(&[&another[..], &later].concat());
        assert_eq!(is_final.iter().position(|it| *it), Some(6), "{is_final:?}");
    }

    #[test]
    fn an_env_node_that_is_away_is_waited_for() {
        use EnvFault::{Away, Unserved};
        assert!(!finals(&[(Away, 1_000_000); 100]).contains(&true));
        let unserved = finals(&[(Unserved, 0); 9]);
        assert_eq!(unserved.iter().position(|it| *it), Some(8));
    }
}
