//! The seam between episodes and whoever plays them: a [`Policy`] supplies completions.
//!
//! Models sample them; scripts choose an action and have it written as the call a model would make. So every policy plays
//! through the same rollout, and a script's trajectories are demonstrations as they stand.

use std::sync::Arc;

use async_trait::async_trait;
use policy::{Chat, Coordinates, SamplingSettings};
use proto::v1::{Action, Observation};

use crate::{
    engine::{CompletionRequest, Engine, Place},
    error::ActorError,
    rollout::{Completion, CompletionWish, Stop},
    tool_call,
};

/// What a policy may know when its turn comes.
#[derive(Clone, Copy, Debug)]
pub struct TurnView<'a> {
    /// The question played.
    pub question_id: &'a str,
    /// The newest observation.
    pub observation: &'a Observation,
    /// The tokens to follow, where to draw and how far to go.
    pub wish: &'a CompletionWish,
}

/// Supplies completions. Equal views give equal completions.
#[async_trait]
pub trait Policy: Send + Sync {
    /// Completes one turn.
    ///
    /// # Errors
    /// A reason outside the agent, such as a stopped engine; it ends the episode without a score.
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError>;

    /// Waits for a place for one more episode, to be held while it lasts. None where any number may play at once.
    async fn place(&self) -> Option<Place> {
        None
    }
}

/// A model on an engine.
#[derive(Clone, Debug)]
pub struct ModelPolicy {
    engine: Engine,
    sampling: SamplingSettings,
}

impl ModelPolicy {
    /// Samples from `engine` under `sampling`; temperature 0 is greedy.
    #[must_use]
    pub fn new(engine: Engine, sampling: SamplingSettings) -> Self {
        Self { engine, sampling }
    }
}

#[async_trait]
impl Policy for ModelPolicy {
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError> {
        self.engine
            .complete(CompletionRequest {
                context: view.wish.context.clone(),
                max_tokens: view.wish.max_tokens,
                sampling: self.sampling,
                coordinates: view.wish.coordinates,
            })
            .await
    }

    async fn place(&self) -> Option<Place> {
        Some(self.engine.place().await)
    }
}

/// Chooses actions by rule: a pure function of the question, the newest observation and the coordinates.
pub trait Script: Send + Sync {
    /// The next action.
    fn act(&self, question_id: &str, observation: &Observation, coordinates: Coordinates)
    -> Action;
}

/// A script that speaks the words of a chat.
#[derive(Clone, Debug)]
pub struct ScriptedPolicy<S> {
    chat: Arc<Chat>,
    script: S,
}

impl<S: Script> ScriptedPolicy<S> {
    /// Has `script` speak through `chat`.
    #[must_use]
    pub fn new(chat: Arc<Chat>, script: S) -> Self {
        Self { chat, script }
    }
}

#[async_trait]
impl<S: Script> Policy for ScriptedPolicy<S> {
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError> {
        let action = self
            .script
            .act(view.question_id, view.observation, view.wish.coordinates);
        let tokens = self
            .chat
            .completion_ids(&tool_call::of(&action).to_text())?;
        Ok(Completion {
            logprobs: vec![0.0; tokens.len()],
            tokens,
            policy_version: 0,
            stop: Stop::Token,
        })
    }
}
