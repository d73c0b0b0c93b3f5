//! Runs a policy that chooses actions as a policy that completes tokens.

use std::sync::Arc;

use actor::{ActorError, Completion, FinishReason, Policy, TurnView, tool_call};
use async_trait::async_trait;
use policy::{Chat, Coordinates};
use proto::v1::{Action, Observation};
use tokio::sync::OwnedSemaphorePermit;

/// Chooses actions: a pure function of the question, the newest observation and the coordinates.
pub trait ActionPolicy: Send + Sync {
    /// Returns the next action.
    fn act(&self, question_id: &str, observation: &Observation, coordinates: Coordinates)
    -> Action;
}

/// Writes the actions of a policy as the tool calls that a model would sample.
#[derive(Clone, Debug)]
pub struct ScriptedPolicy<P> {
    chat: Arc<Chat>,
    actions: P,
}

impl<P: ActionPolicy> ScriptedPolicy<P> {
    /// Creates a policy that encodes `actions` with `chat`.
    pub fn new(chat: Arc<Chat>, actions: P) -> Self {
        Self { chat, actions }
    }
}

#[async_trait]
impl<P: ActionPolicy> Policy for ScriptedPolicy<P> {
    async fn complete(&self, view: TurnView<'_>) -> Result<Completion, ActorError> {
        let action = self
            .actions
            .act(view.question_id, view.observation, view.request.coordinates);
        completion_of(&self.chat, &action)
    }

    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        None
    }
}

/// Returns an action as the completion that a model would sample, of policy version 0.
pub(crate) fn completion_of(chat: &Chat, action: &Action) -> Result<Completion, ActorError> {
    let tokens = chat.completion_ids(&tool_call::from_action(action).to_text())?;
    Ok(Completion {
        logprobs: vec![0.0; tokens.len()],
        tokens,
        policy_version: 0,
        finish_reason: FinishReason::StopToken,
    })
}
