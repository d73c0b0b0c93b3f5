//! Plays episodes: fulfils a rollout's wishes with a policy and an environment.
//!
//! Invariant: the same code plays for training, evaluation and demonstrations. An episode that breaks off for a reason outside
//! the agent becomes an unscored trajectory with that reason; it never stops the others.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use policy::{Chat, Coordinates};
use proto::{
    EnvClient,
    v1::{Observation, ResetRequest, ResetResponse, StepRequest, StepResponse, Trajectory},
};

use crate::{
    error::ActorError,
    policies::{Policy, TurnView},
    retry::Retry,
    rollout::{Rollout, RolloutLimits, Wish, unplayed},
};

/// The terms that episodes share.
#[derive(Clone)]
pub struct Table {
    /// The environment.
    pub env: EnvClient,
    /// Turns messages into tokens.
    pub chat: Arc<Chat>,
    /// Bounds of each rollout.
    pub limits: RolloutLimits,
    /// Reward profile; empty for the node's default.
    pub reward_profile: String,
    /// Actions per episode; 0 for the node's default.
    pub step_budget: u32,
    /// How long calls are tried again.
    pub retry: Retry,
}

/// Which episode: a question and the place of its random numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    /// The question.
    pub question_id: String,
    /// Run seed, group and member.
    pub coordinates: Coordinates,
}

impl Table {
    /// Plays one episode.
    pub async fn play(&self, policy: &dyn Policy, seat: &Seat) -> Trajectory {
        Trajectory {
            question_id: seat.question_id.clone(),
            ..self.play_to_its_end(policy, seat).await
        }
    }

    async fn play_to_its_end(&self, policy: &dyn Policy, seat: &Seat) -> Trajectory {
        let member = seat.coordinates.member;
        let reset = match self.reset(seat).await {
            Ok(reset) => reset,
            Err(error) => return unplayed(member, error.to_string()),
        };
        let observation = reset.observation.unwrap_or_default();
        let begun = Rollout::on_reset(
            self.chat.clone(),
            self.limits,
            seat.coordinates,
            &observation,
        );
        match begun {
            Ok((rollout, wish)) => {
                self.fulfil(policy, seat, rollout, wish, reset.token, observation)
                    .await
            }
            Err(error) => unplayed(member, error.to_string()),
        }
    }

    /// Plays episodes, `concurrency` at a time; the trajectories come in the order of `seats`, `on_done` hears of each as it
    /// ends.
    pub async fn play_all(
        &self,
        policy: &dyn Policy,
        seats: &[Seat],
        concurrency: usize,
        mut on_done: impl FnMut(&Trajectory),
    ) -> Vec<Trajectory> {
        let mut playing = stream::iter(seats.iter().enumerate())
            .map(|(index, seat)| async move { (index, self.play(policy, seat).await) })
            .buffer_unordered(concurrency.max(1));
        let mut played = BTreeMap::new();
        while let Some((index, trajectory)) = playing.next().await {
            on_done(&trajectory);
            played.insert(index, trajectory);
        }
        played.into_values().collect()
    }

    async fn fulfil(
        &self,
        policy: &dyn Policy,
        seat: &Seat,
        mut rollout: Rollout,
        mut wish: Wish,
        mut token: Vec<u8>,
        mut observation: Observation,
    ) -> Trajectory {
        loop {
            let next = match wish {
                Wish::Done(trajectory) => return trajectory,
                Wish::Complete(wish) => {
                    let view = TurnView {
                        question_id: &seat.question_id,
                        observation: &observation,
                        wish: &wish,
                    };
                    let completion = policy.complete(view).await;
                    completion.and_then(|completion| Ok(rollout.on_completion(&completion)?))
                }
                Wish::Step(action) => {
                    let request = StepRequest {
                        token: std::mem::take(&mut token),
                        action: Some(action),
                    };
                    self.step(request).await.and_then(|reply| {
                        let wish = rollout.on_step(&reply)?;
                        token = reply.token;
                        observation = reply.observation.unwrap_or_default();
                        Ok(wish)
                    })
                }
            };
            wish = match next {
                Ok(wish) => wish,
                Err(error) => return rollout.fail(error.to_string()),
            };
        }
    }

    async fn reset(&self, seat: &Seat) -> Result<ResetResponse, ActorError> {
        let request = ResetRequest {
            question_id: seat.question_id.clone(),
            seed: seat.coordinates.run_seed,
            reward_profile: self.reward_profile.clone(),
            step_budget: self.step_budget,
            ..ResetRequest::default()
        };
        self.retry
            .call("Env.Reset", || {
                let (mut env, request) = (self.env.clone(), request.clone());
                async move { env.reset(request).await }
            })
            .await
    }

    /// Steps with the same token until an answer comes: Step is a pure function of token and action.
    async fn step(&self, request: StepRequest) -> Result<StepResponse, ActorError> {
        self.retry
            .call("Env.Step", || {
                let (mut env, request) = (self.env.clone(), request.clone());
                async move { env.step(request).await }
            })
            .await
    }
}
