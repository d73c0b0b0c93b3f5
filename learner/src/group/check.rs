//! The checks of a decoded group, whose counts `outline` has checked before.
//!
//! Pure. Each error names the field and what it may be. Bounds that no sampler and no environment
//! reaches catch numbers that a broken or hostile actor made up: one of them could own the update
//! of a whole step, or end the run.

use std::ops::Range;

use proto::v1::{Segment, Trajectory, Turn};

use super::GroupRules;

/// How far a log-probability may exceed 0, by the rounding of a softmax in single precision.
const LOGPROB_TOLERANCE: f32 = 1e-5;
/// The least log-probability of a sampled token. The smallest positive number in single precision,
/// in which samplers compute probabilities, is 2^-149, and its logarithm is -103.3. A token of a
/// lower probability has probability 0 there and cannot be drawn.
const MIN_LOGPROB: f32 = -104.0;
/// The largest reward and return. Rewards of the environment are around 1. Squares and sums of
/// larger ones than these could overflow.
const MAX_REWARD: f64 = 1e6;
/// Bytes of text that one sampled token decodes to. The longest tokens of common vocabularies have
/// 256 bytes, of which each may become a replacement character of 3 bytes.
const TOKEN_TEXT_BYTES: usize = 1_024;
/// Bytes of an observation or of the reason of a failure. Observations of the environment have a
/// few thousand.
const TEXT_BYTES: usize = 1 << 20;
/// Bytes of a name.
pub(super) const NAME_BYTES: usize = 256;

/// Checks a name that an actor sent.
pub(crate) fn name(field: &str, name: &str) -> Result<(), String> {
    text(field, name, NAME_BYTES)
}

/// Checks a member of a group.
pub(super) fn member(
    trajectory: &Trajectory,
    member: usize,
    rules: &GroupRules,
) -> Result<(), String> {
    if trajectory.member as usize != member {
        return Err(format!("has the number of member {}", trajectory.member));
    }
    check_episode(trajectory, rules)
}

/// Checks an episode by itself: its tokens, masks, turns and rewards.
///
/// # Errors
/// Names the field that breaks the contract.
pub(crate) fn check_episode(trajectory: &Trajectory, rules: &GroupRules) -> Result<(), String> {
    reward("episode_return", trajectory.episode_return)?;
    text("failure", &trajectory.failure, TEXT_BYTES)?;
    name("question_id", &trajectory.question_id)?;
    check_completeness(trajectory)?;
    for (number, segment) in trajectory.segments.iter().enumerate() {
        check_segment(segment, rules).map_err(|fault| format!("segment {number}: {fault}"))?;
    }
    for (number, turn) in trajectory.turns.iter().enumerate() {
        check_turn(turn, rules).map_err(|fault| format!("turn {number}: {fault}"))?;
    }
    check_masks(trajectory)
}

/// Checks that an episode with a reward was played to its end.
fn check_completeness(trajectory: &Trajectory) -> Result<(), String> {
    if trajectory.scored && !trajectory.failure.is_empty() {
        return Err("is scored, but names a failure".to_owned());
    }
    if trajectory.scored && trajectory.turns.is_empty() {
        return Err("is scored, but has no turn".to_owned());
    }
    Ok(())
}

/// Checks a demonstration that another rank sent.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn demonstration(demonstration: &Segment, rules: &GroupRules) -> Result<(), String> {
    let Segment {
        tokens,
        mask,
        logprobs,
    } = demonstration;
    if [mask.len(), logprobs.len()] != [tokens.len(); 2] {
        return Err(format!(
            "{} tokens have {} mask bytes and {} log-probabilities",
            tokens.len(),
            mask.len(),
            logprobs.len()
        ));
    }
    if tokens.len() > rules.max_context_tokens {
        let most = rules.max_context_tokens;
        return Err(format!(
            "{} tokens, more than rollout.max_context_tokens ({most})",
            tokens.len()
        ));
    }
    check_segment(demonstration, rules)
}

fn check_segment(segment: &Segment, rules: &GroupRules) -> Result<(), String> {
    let Segment {
        tokens,
        mask,
        logprobs,
    } = segment;
    let is_unknown = |&&token: &&u32| token as usize >= rules.vocab_size;
    if let Some(token) = tokens.iter().find(is_unknown) {
        return Err(format!(
            "token {token} is not in the vocabulary of {}",
            rules.vocab_size
        ));
    }
    if mask.first() == Some(&1) {
        return Err("the first token cannot be sampled, because no token precedes it".to_owned());
    }
    if mask.iter().any(|&byte| byte > 1) {
        return Err("mask bytes must be 0 or 1".to_owned());
    }
    let sampled = mask.iter().zip(logprobs).filter(|(mask, _)| **mask == 1);
    let possible = MIN_LOGPROB..=LOGPROB_TOLERANCE;
    match sampled
        .map(|(_, logprob)| *logprob)
        .find(|logprob| !possible.contains(logprob))
    {
        Some(logprob) => Err(format!(
            "a sampled token has log-prob {logprob}; a sampler gives {MIN_LOGPROB} to 0"
        )),
        None => Ok(()),
    }
}

/// Checks what a turn holds besides its place.
fn check_turn(turn: &Turn, rules: &GroupRules) -> Result<(), String> {
    let completion = turn.completion_tokens as usize;
    if completion > rules.max_completion_tokens {
        return Err(format!(
            "{completion} sampled tokens, more than max_completion_tokens ({})",
            rules.max_completion_tokens
        ));
    }
    reward("reward", turn.reward)?;
    if let Some(components) = &turn.reward_components {
        reward("reward_components.operational", components.operational)?;
        reward("reward_components.progress", components.progress)?;
        reward("reward_components.terminal", components.terminal)?;
        reward("reward_components.clip", components.clip)?;
    }
    if let Some(action) = &turn.action {
        let most = TOKEN_TEXT_BYTES * rules.max_completion_tokens;
        text("action.action_type", &action.action_type, most)?;
        text("action.argument", &action.argument, most)?;
    }
    text("observation_text", &turn.observation_text, TEXT_BYTES)
}

fn reward(field: &str, value: f64) -> Result<(), String> {
    match value.abs() <= MAX_REWARD {
        true => Ok(()),
        false => Err(format!(
            "{field} is {value}; rewards lie between -{MAX_REWARD} and {MAX_REWARD}"
        )),
    }
}

fn text(field: &str, text: &str, most: usize) -> Result<(), String> {
    match text.len() <= most {
        true => Ok(()),
        false => Err(format!(
            "{field} has {} bytes, more than {most}",
            text.len()
        )),
    }
}

/// Checks the masks against the turns: both say which tokens the policy sampled. The loss reads the
/// mask, staleness and metrics read the turns, so a difference would train on tokens of an unknown
/// policy version.
fn check_masks(trajectory: &Trajectory) -> Result<(), String> {
    let given = |segment: &Segment| vec![0; segment.tokens.len()];
    let mut masks: Vec<Vec<u8>> = trajectory.segments.iter().map(given).collect();
    // Turns are in order, so no token belongs to two of them.
    let mut end = (0, 0);
    for (number, turn) in trajectory.turns.iter().enumerate() {
        let range = completion_range(turn);
        // A turn that sampled nothing occupies no tokens.
        if range.is_empty() {
            continue;
        }
        let mask = masks.get_mut(turn.segment as usize);
        let Some(mask) = mask.and_then(|mask| mask.get_mut(range.clone())) else {
            return Err(format!(
                "turn {number}: tokens {range:?} are not in segment {}",
                turn.segment
            ));
        };
        if (turn.segment, range.start) < end {
            return Err(format!(
                "turn {number}: tokens {range:?} of segment {} do not follow the turn before",
                turn.segment
            ));
        }
        end = (turn.segment, range.end);
        mask.fill(1);
    }
    for (number, (segment, expected)) in trajectory.segments.iter().zip(&masks).enumerate() {
        let mut pairs = segment.mask.iter().zip(expected);
        if let Some(at) = pairs.position(|(found, expected)| found != expected) {
            return Err(format!(
                "segment {number}: the mask of token {at} is {}, but the turns say {}",
                segment.mask[at], expected[at]
            ));
        }
    }
    Ok(())
}

/// Returns the range of a turn's completion in its segment.
fn completion_range(turn: &Turn) -> Range<usize> {
    let start = turn.completion_start as usize;
    start..start + turn.completion_tokens as usize
}
