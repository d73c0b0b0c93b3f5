//! The environment's half of one episode: Reset, then one Step for each action.
//!
//! Invariant: a node that lost its keys or its data's version in a restart costs nothing. It refuses the old token, and the
//! episode is led back to where it stood by the actions already taken; equal actions give equal observations, which is
//! checked, so neither completions nor coordinates change.

use policy::Coordinates;
use proto::v1::{Action, Observation, ResetRequest, ResetResponse, StepRequest, StepResponse};

use crate::{
    error::ActorError,
    metrics,
    play::{Seat, Table},
};

/// How often one step leads its episode back before it breaks off.
const REPLAYS: u32 = 8;

/// One episode at an environment.
pub(crate) struct Session<'a> {
    table: &'a Table,
    seat: &'a Seat,
    token: Vec<u8>,
    past: Vec<(Action, Observation)>,
}

impl<'a> Session<'a> {
    /// Begins the episode; answers with its first observation.
    pub(crate) async fn begin(
        table: &'a Table,
        seat: &'a Seat,
    ) -> Result<(Self, Observation), ActorError> {
        let reset = reset(table, seat).await?;
        let session = Self {
            table,
            seat,
            token: reset.token,
            past: Vec::new(),
        };
        Ok((session, reset.observation.unwrap_or_default()))
    }

    /// The question played.
    pub(crate) fn question_id(&self) -> &'a str {
        &self.seat.question_id
    }

    /// Takes the next action.
    pub(crate) async fn step(&mut self, action: Action) -> Result<StepResponse, ActorError> {
        let mut answer = step(self.table, &self.token, &action).await;
        for _ in 0..REPLAYS {
            match &answer {
                Err(error) if error.is_refused_token() => {
                    tracing::info!(%error, "replaying the episode");
                    metrics::count_replay();
                    self.table.retry.pause().await;
                    answer = self.replay_and_step(&action).await;
                }
                _ => break,
            }
        }
        let reply = answer?;
        self.token.clone_from(&reply.token);
        self.past
            .push((action, reply.observation.clone().unwrap_or_default()));
        Ok(reply)
    }

    /// Takes all past actions anew, then the next one.
    async fn replay_and_step(&self, action: &Action) -> Result<StepResponse, ActorError> {
        let mut token = reset(self.table, self.seat).await?.token;
        for (past, seen) in &self.past {
            let reply = step(self.table, &token, past).await?;
            if reply.observation.as_ref() != Some(seen) {
                let status = tonic::Status::data_loss(
                    "the environment answers a replayed action otherwise than before its restart",
                );
                return Err(ActorError::call("Env.Step", status));
            }
            token = reply.token;
        }
        step(self.table, &token, action).await
    }
}

async fn reset(table: &Table, seat: &Seat) -> Result<ResetResponse, ActorError> {
    let Coordinates {
        run_seed,
        group,
        member,
        ..
    } = seat.coordinates;
    let request = ResetRequest {
        question_id: seat.question_id.clone(),
        seed: run_seed,
        // Episodes that take the same actions stay apart: a node tells the retry of a step by its token.
        episode_id: format!("{run_seed:x}/{group}/{member}"),
        reward_profile: table.reward_profile.clone(),
        step_budget: table.step_budget,
        ..ResetRequest::default()
    };
    table
        .retry
        .call("Env.Reset", || {
            let (mut env, request) = (table.env.clone(), request.clone());
            async move { env.reset(request).await }
        })
        .await
}

/// Steps with the same token until an answer comes: Step is a pure function of token and action.
async fn step(table: &Table, token: &[u8], action: &Action) -> Result<StepResponse, ActorError> {
    table
        .retry
        .call("Env.Step", || {
            let mut env = table.env.clone();
            let request = StepRequest {
                token: token.to_vec(),
                action: Some(action.clone()),
            };
            async move { env.step(request).await }
        })
        .await
}
