//! An environment on a small dataset.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod counters;
mod dataset;

pub(crate) use dataset::dataset;
use env::{Action, EnvError, EnvSettings, Environment, EpisodeSpec, ResetResult, StepResult};
use tempfile::TempDir;

/// The time of every call.
pub(crate) const NOW: u64 = 1_000;

/// An environment on the small dataset, and the folder, which lives as long as this.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) environment: Environment,
}

impl Fixture {
    pub(crate) fn new(settings: EnvSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::open(dataset(folder.path()), settings).unwrap();
        Self {
            folder,
            environment,
        }
    }

    pub(crate) fn reset(&self, question_id: &str, profile: &str) -> ResetResult {
        let spec = EpisodeSpec {
            question_id: question_id.to_owned(),
            reward_profile: profile.to_owned(),
            ..EpisodeSpec::default()
        };
        self.environment.reset(spec, NOW).unwrap()
    }

    pub(crate) async fn try_step(
        &self,
        token: &[u8],
        action_type: &str,
        argument: &str,
    ) -> Result<StepResult, EnvError> {
        step(&self.environment, token, action_type, argument).await
    }

    pub(crate) async fn step(&self, token: &[u8], action_type: &str, argument: &str) -> StepResult {
        self.try_step(token, action_type, argument).await.unwrap()
    }

    /// Plays actions from Reset on and returns every reply.
    pub(crate) async fn play(
        &self,
        question_id: &str,
        profile: &str,
        actions: &[(&str, &str)],
    ) -> Vec<StepResult> {
        let mut token = self.reset(question_id, profile).token;
        let mut replies = Vec::new();
        for (action_type, argument) in actions {
            let reply = self.step(&token, action_type, argument).await;
            token.clone_from(&reply.token);
            replies.push(reply);
        }
        replies
    }

    /// The observation of one QUERY in a fresh episode: result and error.
    pub(crate) async fn query(&self, sql: &str) -> (String, String) {
        let mut replies = self.play("cars-1", "default", &[("QUERY", sql)]).await;
        let observation = replies.remove(0).observation;
        (observation.result, observation.error)
    }
}

pub(crate) async fn step(
    environment: &Environment,
    token: &[u8],
    action_type: &str,
    argument: &str,
) -> Result<StepResult, EnvError> {
    let action = Action {
        action_type: action_type.to_owned(),
        argument: argument.to_owned(),
    };
    environment.step(token.to_vec(), &action, NOW).await
}

pub(crate) fn rewards(replies: &[StepResult]) -> Vec<f64> {
    let rewards = replies.iter().map(|reply| reply.observation.reward);
    rewards.map(Option::unwrap).collect()
}
