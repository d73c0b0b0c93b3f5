//! Plays episodes: fulfils a rollout's wishes with a policy and an environment.
//!
//! Invariant: the same code plays for training, evaluation and demonstrations. An episode that breaks off for a reason outside
//! the agent becomes an unscored trajectory beside that reason; it never stops the others.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream};
use policy::{Chat, Coordinates};
use proto::{
    EnvClient,
    v1::{Observation, Trajectory},
};

use crate::{
    error::ActorError,
    policies::{Policy, TurnView},
    retry::Retry,
    rollout::{Rollout, RolloutLimits, Wish, unplayed},
    session::Session,
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

/// An episode as it was played.
#[derive(Debug)]
pub struct Played {
    /// What was sampled; without a score where the episode broke off.
    pub trajectory: Trajectory,
    /// The reason outside the agent for which it broke off.
    pub broken_by: Option<ActorError>,
}

impl Table {
    /// Plays one episode, which holds one of the policy's places for all its life.
    pub async fn play(&self, policy: &dyn Policy, seat: &Seat) -> Played {
        let _place = policy.place().await;
        let mut played = self
            .play_to_its_end(policy, seat)
            .await
            .unwrap_or_else(|error| Played {
                trajectory: unplayed(seat.coordinates.member, error.to_string()),
                broken_by: Some(error),
            });
        played.trajectory.question_id.clone_from(&seat.question_id);
        played
    }

    async fn play_to_its_end(
        &self,
        policy: &dyn Policy,
        seat: &Seat,
    ) -> Result<Played, ActorError> {
        let (session, observation) = Session::begin(self, seat).await?;
        let (rollout, wish) = Rollout::on_reset(
            self.chat.clone(),
            self.limits,
            seat.coordinates,
            &observation,
        )?;
        Ok(fulfil(policy, session, rollout, wish, observation).await)
    }

    /// Plays episodes, `concurrency` at a time; the results come in the order of `seats`, `on_done` hears of each as it
    /// ends.
    pub async fn play_all(
        &self,
        policy: &dyn Policy,
        seats: &[Seat],
        concurrency: usize,
        mut on_done: impl FnMut(&Trajectory),
    ) -> Vec<Played> {
        let mut playing = stream::iter(seats.iter().enumerate())
            .map(|(index, seat)| async move { (index, self.play(policy, seat).await) })
            .buffer_unordered(concurrency.max(1));
        let mut played = BTreeMap::new();
        while let Some((index, episode)) = playing.next().await {
            on_done(&episode.trajectory);
            played.insert(index, episode);
        }
        played.into_values().collect()
    }
}

async fn fulfil(
    policy: &dyn Policy,
    mut session: Session<'_>,
    mut rollout: Rollout,
    mut wish: Wish,
    mut observation: Observation,
) -> Played {
    loop {
        let next = match wish {
            Wish::Done(trajectory) => {
                return Played {
                    trajectory,
                    broken_by: None,
                };
            }
            Wish::Complete(wish) => {
                let view = TurnView {
                    question_id: session.question_id(),
                    observation: &observation,
                    wish: &wish,
                };
                let completion = policy.complete(view).await;
                completion.and_then(|completion| Ok(rollout.on_completion(&completion)?))
            }
            Wish::Step(action) => session.step(action).await.and_then(|reply| {
                let wish = rollout.on_step(&reply)?;
                observation = reply.observation.unwrap_or_default();
                Ok(wish)
            }),
        };
        wish = match next {
            Ok(wish) => wish,
            Err(error) => {
                return Played {
                    trajectory: rollout.fail(error.to_string()),
                    broken_by: Some(error),
                };
            }
        };
    }
}
