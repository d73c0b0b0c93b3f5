//! What an actor does about episodes that fail: it warns, and it decides when waiting for an
//! env-node is in vain.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use proto::{
    EnvClient, RareWarning,
    v1::{InfoRequest, Trajectory},
};

use crate::{episode_settings::EpisodeSpec, error::ActorError};

/// After so many rounds in a row that fail for a reason that does not pass, episodes are given up.
/// In each round, calls are retried as configured.
const MAX_LASTING: u32 = 3;
/// The same for rounds that fail although env-node answers.
const MAX_UNSERVED: u32 = 9;
/// An env-node that answers does so within this time.
const ANSWER: Duration = Duration::from_secs(10);

/// Warns of episodes that get no score for another reason than a call. All episodes of a run may
/// have the same one, so few are logged.
#[derive(Default)]
pub(super) struct UnscoredWarning(Mutex<RareWarning>);

impl UnscoredWarning {
    /// Notes an episode that has ended.
    pub(super) fn note(&self, trajectory: &Trajectory) {
        if trajectory.scored {
            return;
        }
        if let Some(episodes) = self.0.lock().note() {
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

/// Rounds in a row in which episodes failed for one reason.
#[derive(Default)]
pub(super) struct FailedRounds {
    lasting: u32,
    unserved: u32,
}

impl FailedRounds {
    /// Notes a round with the episodes that failed. Returns whether waiting is in vain: the reason
    /// does not pass; or env-node answers now and did after earlier rounds, so it cannot serve
    /// these episodes, for instance because their gold SQL takes longer than the limit. Without
    /// this the run would wait for them for ever.
    pub(super) async fn are_final(
        &mut self,
        fault: EnvFault,
        env: &EnvClient,
        failed: &[(usize, EpisodeSpec)],
    ) -> bool {
        let is_unserved = fault == EnvFault::Unserved && answers(env).await;
        let next = |is_it: bool, rounds: u32| if is_it { rounds + 1 } else { 0 };
        self.lasting = next(fault == EnvFault::Lasting, self.lasting);
        self.unserved = next(is_unserved, self.unserved);
        if self.unserved >= MAX_UNSERVED {
            let ids = failed.iter().map(|(_, spec)| spec.question_id.as_str());
            let ids: BTreeSet<&str> = ids.collect();
            tracing::error!(
                questions = ?ids,
                "env-node answers, but cannot serve some of these episodes; they get no score. Its \
                 log and the warnings above say why"
            );
        }
        self.lasting >= MAX_LASTING || self.unserved >= MAX_UNSERVED
    }
}

/// Returns whether an env-node answers.
async fn answers(env: &EnvClient) -> bool {
    let mut env = env.clone();
    let answer = tokio::time::timeout(ANSWER, env.info(InfoRequest {})).await;
    matches!(answer, Ok(Ok(_)))
}
