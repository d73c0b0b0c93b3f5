//! Completions: what a rollout requests from a policy, and what the policy returns.

use policy::Coordinates;

/// Requests the completion of one turn.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// All tokens before the completion, at least one.
    pub context: Vec<u32>,
    /// The completion has at most this many tokens, at least one.
    pub max_tokens: usize,
    /// The coordinates of the first token's random number. The number of each later token follows
    /// by position.
    pub coordinates: Coordinates,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The policy sampled a stop token, which is the completion's last token.
    StopToken,
    /// The completion reached its token limit.
    Length,
}

/// A sampled or scripted completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids, including the stop token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token.
    pub logprobs: Vec<f32>,
    /// The policy version that sampled all of the tokens.
    pub policy_version: u64,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
}
