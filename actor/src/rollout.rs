//! The rollout of one episode: a state machine that turns observations and completions into a
//! trajectory. Pure.
//!
//! The rollout does no I/O. Each `on_*` method takes one event and returns the next
//! [`RolloutRequest`], which a driver carries out:
//!
//! ```text
//!             on_reset           on_completion
//!   reset ──────────► Complete ────────────────► Step ──┐
//!                        ▲                              │ on_step
//!                        └──────────────────────────────┴──► Done (observation.done)
//! ```
//!
//! Invariant: tokens are the truth. The prompt and each tool message are encoded once, on their
//! own. Completions are kept as they were sampled, because rendering and tokenizing them again may
//! give other tokens than the policy sampled, and their log-probabilities would be wrong. Every
//! completion token is recorded once with mask 1, with its log-probability and policy version.

use std::sync::Arc;

use policy::{Chat, ChatRole, Coordinates, Message, PolicyError};
use proto::v1::{Action, Observation, StepResponse, Trajectory, Turn};

use crate::{
    completion::{Completion, CompletionRequest, FinishReason},
    context::Context,
    prompt,
    tool_call::{self, ParsedCall},
    tool_schemas::tool_schemas,
};

/// What the rollout needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutRequest {
    /// A completion. Pass it to [`Rollout::on_completion`].
    Complete(CompletionRequest),
    /// The environment's response to an action. Pass it to [`Rollout::on_step`].
    Step(Action),
    /// Nothing. The episode has ended.
    Done(Trajectory),
}

/// Limits of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutLimits {
    /// Tokens that one turn may sample.
    pub max_completion_tokens: usize,
    /// Tokens that one segment may hold.
    pub max_context_tokens: usize,
    /// Solved examples before the question.
    pub shots: usize,
}

/// One running episode.
pub struct Rollout {
    chat: Arc<Chat>,
    limits: RolloutLimits,
    coordinates: Coordinates,
    context: Context,
    trajectory: Trajectory,
}

impl Rollout {
    /// Starts with the first observation of an episode. `coordinates` name its group and member.
    /// The episode ends at once if its prompt leaves no room for turns.
    ///
    /// # Errors
    /// The chat template cannot render the opening messages or the elision note.
    pub fn on_reset(
        chat: Arc<Chat>,
        limits: RolloutLimits,
        coordinates: Coordinates,
        observation: &Observation,
    ) -> Result<(Self, RolloutRequest), PolicyError> {
        let opening = prompt::opening(observation, limits.shots);
        let prompt = chat.prompt_ids(&opening, &tool_schemas())?;
        let elision_note =
            chat.tool_suffix_ids(&[Message::new(ChatRole::Tool, prompt::ELIDED_RESULT)])?;
        let mut rollout = Self {
            context: Context::new(prompt, elision_note, limits.max_context_tokens),
            chat,
            limits,
            coordinates,
            trajectory: Trajectory {
                member: coordinates.member,
                ..Trajectory::default()
            },
        };
        let is_too_long = match observation.budget_remaining {
            // No completion follows the only turn.
            1 => rollout.context.room_tokens() == 0,
            _ => !rollout
                .context
                .may_retain_turns(limits.max_completion_tokens),
        };
        let request = match is_too_long {
            true => rollout.end_at_prompt(),
            false => rollout.request_completion(),
        };
        Ok((rollout, request))
    }

    /// Takes the requested completion. Returns the action to step.
    ///
    /// # Errors
    /// The tokenizer cannot decode the completion.
    pub fn on_completion(
        &mut self,
        completion: &Completion,
    ) -> Result<RolloutRequest, PolicyError> {
        let span = self
            .context
            .push_completion(&completion.tokens, &completion.logprobs);
        let ParsedCall { action, malformed } =
            tool_call::parse(&self.chat.completion_text(&completion.tokens)?);
        self.trajectory.turns.push(Turn {
            segment: span.segment,
            completion_start: span.start,
            completion_tokens: span.tokens,
            policy_version: completion.policy_version,
            action: Some(action.clone()),
            malformed,
            truncated: completion.finish_reason == FinishReason::Length,
            ..Turn::default()
        });
        Ok(RolloutRequest::Step(action))
    }

    /// Takes the environment's response to the last action. Returns the next completion request or
    /// the trajectory.
    ///
    /// # Errors
    /// The chat template cannot render the tool message.
    pub fn on_step(&mut self, response: &StepResponse) -> Result<RolloutRequest, PolicyError> {
        let empty = Observation::default();
        let observation = response.observation.as_ref().unwrap_or(&empty);
        let turn = self
            .trajectory
            .turns
            .last_mut()
            .expect("a response follows an action: this is a bug");
        record_response(turn, response);
        self.trajectory.episode_return += turn.reward;
        if observation.done {
            self.trajectory.correct = response.correct;
            self.trajectory.scored = true;
            return Ok(RolloutRequest::Done(self.take_trajectory()));
        }
        let closing = self.missing_stop_token();
        let result = self
            .chat
            .tool_suffix_ids(&[prompt::tool_message(observation)])?;
        self.context
            .push_result(&closing, &result, self.limits.max_completion_tokens);
        Ok(self.request_completion())
    }

    /// Ends the episode for a reason outside the agent. Returns what was sampled so far, unscored.
    pub fn fail(mut self, reason: String) -> Trajectory {
        Trajectory {
            failure: reason,
            ..self.take_trajectory()
        }
    }

    /// Ends an episode whose prompt is too long, before its first turn. The trajectory has no
    /// tokens, because a learner refuses more than fit a context.
    fn end_at_prompt(&mut self) -> RolloutRequest {
        self.trajectory.failure = format!(
            "the prompt has {} tokens, but learner.rollout.max_context_tokens is {}, which leaves \
             no room for turns: raise it, up to the model's max_position_embeddings, or use fewer \
             shots, a shorter question, or databases of fewer tables",
            self.context.tokens().len(),
            self.limits.max_context_tokens
        );
        self.trajectory.failure_is_final = true;
        RolloutRequest::Done(std::mem::take(&mut self.trajectory))
    }

    /// Returns the next completion request. There is room for it, since the prompt leaves some.
    fn request_completion(&self) -> RolloutRequest {
        RolloutRequest::Complete(CompletionRequest {
            context: self.context.tokens().to_vec(),
            coordinates: Coordinates {
                turn: self.trajectory.turns.len() as u32,
                position: 0,
                ..self.coordinates
            },
            max_tokens: self
                .limits
                .max_completion_tokens
                .min(self.context.room_tokens()),
        })
    }

    /// Returns the end-of-turn token if the last completion was truncated before it. The tool
    /// message's tokens were rendered to follow that token. It was not sampled, so its mask is 0.
    fn missing_stop_token(&self) -> Vec<u32> {
        let stop_ids = self.chat.stop_ids();
        match self.context.tokens().last() {
            Some(last) if stop_ids.contains(last) => Vec::new(),
            _ => stop_ids.iter().take(1).copied().collect(),
        }
    }

    fn take_trajectory(&mut self) -> Trajectory {
        Trajectory {
            segments: self.context.take_segments(),
            ..std::mem::take(&mut self.trajectory)
        }
    }
}

/// Notes in a turn what its action led to.
pub(crate) fn record_response(turn: &mut Turn, response: &StepResponse) {
    let empty = Observation::default();
    let observation = response.observation.as_ref().unwrap_or(&empty);
    turn.reward = observation.reward.unwrap_or(0.0);
    turn.reward_components = response.reward_components;
    turn.observation_is_error = !observation.error.is_empty();
    turn.observation_text = if turn.observation_is_error {
        observation.error.clone()
    } else {
        observation.result.clone()
    };
}

/// Returns the trajectory of an episode that could not start.
pub(crate) fn failed_trajectory(member: u32, reason: String) -> Trajectory {
    Trajectory {
        member,
        failure: reason,
        ..Trajectory::default()
    }
}
