//! One episode as the policy lives it: a state machine that turns observations and completions into a trajectory.
//!
//! Sans-IO: inputs go in through `on_*`, each answers with a [`Wish`] that a driver fulfils. Invariant: tokens are the truth.
//! The prompt and each tool message are encoded once, on their own; completions are kept as they were sampled; nothing is
//! rendered again. Every completion token is recorded once with mask 1, beside its log-probability and policy version.

use std::sync::Arc;

use policy::{Chat, Coordinates, Message, PolicyError, Role};
use proto::v1::{Action, Observation, StepResponse, Trajectory, Turn};

use crate::{
    context::Context,
    prompt,
    tool_call::{self, ParsedCall},
    tool_schemas::tool_schemas,
};

/// How completions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// With a stop token, which is the completion's last.
    Token,
    /// At the token limit.
    Length,
}

/// A sampled or scripted completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids, the stop token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token.
    pub logprobs: Vec<f32>,
    /// The version that sampled all of them.
    pub policy_version: u64,
    /// Why it ended.
    pub stop: Stop,
}

/// What a completion is to follow.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionWish {
    /// All tokens that the model sees.
    pub context: Vec<u32>,
    /// Where the turn's first random number lies.
    pub coordinates: Coordinates,
    /// Tokens to sample at most, at least one.
    pub max_tokens: usize,
}

/// What the rollout needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// A completion; hand it to [`Rollout::on_completion`].
    Complete(CompletionWish),
    /// The environment's reply to an action; hand it to [`Rollout::on_step`].
    Step(Action),
    /// Nothing; the episode is over.
    Done(Trajectory),
}

/// The bounds of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutLimits {
    /// Tokens one turn may sample.
    pub max_completion_tokens: usize,
    /// Tokens one segment may hold.
    pub max_context_tokens: usize,
    /// Solved examples in front of the question.
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
    /// Begins with the first observation of an episode; `coordinates` name its group and member.
    ///
    /// # Errors
    /// The chat template cannot render the opening or the elision note.
    pub fn on_reset(
        chat: Arc<Chat>,
        limits: RolloutLimits,
        coordinates: Coordinates,
        observation: &Observation,
    ) -> Result<(Self, Wish), PolicyError> {
        let opening = prompt::opening(observation, limits.shots);
        let prompt = chat.prompt_ids(&opening, &tool_schemas())?;
        let note = chat.tool_suffix_ids(&[Message::new(Role::Tool, prompt::ELIDED_RESULT)])?;
        let mut rollout = Self {
            context: Context::new(prompt, note, limits.max_context_tokens),
            chat,
            limits,
            coordinates,
            trajectory: Trajectory {
                member: coordinates.member,
                ..Trajectory::default()
            },
        };
        let wish = rollout.wish_completion();
        Ok((rollout, wish))
    }

    /// Takes the completion wished for; answers with the action to step.
    ///
    /// # Errors
    /// The tokenizer cannot decode the completion.
    pub fn on_completion(&mut self, completion: &Completion) -> Result<Wish, PolicyError> {
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
            truncated: completion.stop == Stop::Length,
            ..Turn::default()
        });
        Ok(Wish::Step(action))
    }

    /// Takes the environment's reply to the last action; answers with the next completion or the trajectory.
    ///
    /// # Errors
    /// The chat template cannot render the tool message.
    pub fn on_step(&mut self, reply: &StepResponse) -> Result<Wish, PolicyError> {
        let nothing = Observation::default();
        let observation = reply.observation.as_ref().unwrap_or(&nothing);
        self.record_reply(reply, observation);
        if observation.done {
            self.trajectory.correct = reply.correct;
            self.trajectory.scored = true;
            return Ok(Wish::Done(self.take_trajectory()));
        }
        let closing = self.missing_stop_token();
        let result = self
            .chat
            .tool_suffix_ids(&[prompt::tool_message(observation)])?;
        self.context
            .push_result(&closing, &result, self.limits.max_completion_tokens);
        Ok(self.wish_completion())
    }

    /// Breaks off for a reason outside the agent: what was sampled so far, without a score.
    #[must_use]
    pub fn fail(mut self, reason: String) -> Trajectory {
        Trajectory {
            failure: reason,
            ..self.take_trajectory()
        }
    }

    fn record_reply(&mut self, reply: &StepResponse, observation: &Observation) {
        let turn = self
            .trajectory
            .turns
            .last_mut()
            .expect("a reply follows an action: this is a bug");
        turn.reward = observation.reward.unwrap_or(0.0);
        turn.reward_components = reply.reward_components;
        turn.observation_is_error = !observation.error.is_empty();
        turn.observation_text = if turn.observation_is_error {
            observation.error.clone()
        } else {
            observation.result.clone()
        };
        self.trajectory.episode_return += turn.reward;
    }

    /// The next completion, or the end where even the prompt leaves no room.
    fn wish_completion(&mut self) -> Wish {
        let room = self.context.room_tokens();
        if room == 0 {
            self.trajectory.failure = format!(
                "the opening prompt has {} tokens, max_context_tokens is {}: raise it or use fewer shots",
                self.context.tokens().len(),
                self.limits.max_context_tokens
            );
            return Wish::Done(self.take_trajectory());
        }
        Wish::Complete(CompletionWish {
            context: self.context.tokens().to_vec(),
            coordinates: Coordinates {
                turn: self.trajectory.turns.len() as u32,
                position: 0,
                ..self.coordinates
            },
            max_tokens: self.limits.max_completion_tokens.min(room),
        })
    }

    /// The end-of-turn token where the last completion was cut before it: the template's next tokens expect it.
    fn missing_stop_token(&self) -> Vec<u32> {
        let stop_ids = self.chat.stop_ids();
        match self.context.tokens().last() {
            Some(last) if stop_ids.contains(last) => Vec::new(),
            _ => stop_ids.iter().take(1).copied().collect(),
        }
    }

    fn take_trajectory(&mut self) -> Trajectory {
        let mut trajectory = std::mem::take(&mut self.trajectory);
        trajectory.segments = self.context.segments().to_vec();
        trajectory
    }
}

/// The trajectory of an episode that could not begin.
#[must_use]
pub fn unplayed(member: u32, reason: String) -> Trajectory {
    Trajectory {
        member,
        failure: reason,
        ..Trajectory::default()
    }
}
