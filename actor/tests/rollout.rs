//! Tests the rollout state machine alone, with arbitrary completions and observations, no service
//! and no model.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

use std::sync::Arc;

use actor::{
    Completion, CompletionRequest, FinishReason, Rollout, RolloutLimits, RolloutRequest, prompt,
};
use policy::{Chat, Coordinates};
use proptest::prelude::*;
use proto::v1::{Action, Observation, StepResponse, Trajectory};

fn chat() -> Arc<Chat> {
    Arc::new(Chat::from_files(&policy::embedded::files()).unwrap())
}

fn first_observation() -> Observation {
    Observation {
        question: "How many books are there?".to_owned(),
        schema_info: "Available tables:\n- book".to_owned(),
        budget_remaining: 8,
        ..Observation::default()
    }
}

fn reply(result: &str, error: &str, done: bool) -> StepResponse {
    StepResponse {
        observation: Some(Observation {
            result: result.to_owned(),
            error: error.to_owned(),
            done,
            reward: Some(0.25),
            ..Observation::default()
        }),
        ..StepResponse::default()
    }
}

fn completion(tokens: Vec<u32>, finish_reason: FinishReason) -> Completion {
    Completion {
        logprobs: tokens.iter().map(|token| -1.0 - *token as f32).collect(),
        tokens,
        policy_version: 3,
        finish_reason,
    }
}

fn reset(
    chat: &Arc<Chat>,
    max_completion_tokens: usize,
    max_context_tokens: usize,
    observation: &Observation,
) -> (Rollout, RolloutRequest) {
    let limits = RolloutLimits {
        max_completion_tokens,
        max_context_tokens,
        shots: 0,
    };
    let coordinates = Coordinates {
        run_seed: 1,
        group: 2,
        member: 3,
        ..Coordinates::default()
    };
    Rollout::on_reset(chat.clone(), limits, coordinates, observation).unwrap()
}

fn begin(
    chat: &Arc<Chat>,
    max_completion_tokens: usize,
    max_context_tokens: usize,
) -> (Rollout, CompletionRequest) {
    let limits = (max_completion_tokens, max_context_tokens);
    let (rollout, request) = reset(chat, limits.0, limits.1, &first_observation());
    (rollout, completion_request(request))
}

fn completion_request(request: RolloutRequest) -> CompletionRequest {
    match request {
        RolloutRequest::Complete(request) => request,
        other => panic!("not a completion: {other:?}"),
    }
}

fn done(request: RolloutRequest) -> Trajectory {
    match request {
        RolloutRequest::Done(trajectory) => trajectory,
        other => panic!("not the end: {other:?}"),
    }
}

const QUERY: &str = "<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT COUNT(*) FROM book\"}}\n</tool_call>";
const ANSWER: &str =
    "<tool_call>\n{\"name\": \"answer\", \"arguments\": {\"value\": \"9\"}}\n</tool_call>";

/// Checks the whole text that the policy saw and wrote, and which of its tokens have mask 1.
#[test]
fn an_episode_reads_as_a_conversation() {
    let chat = chat();
    let (mut rollout, request) = begin(&chat, 64, 512);
    assert_eq!(
        (
            request.coordinates.member,
            request.coordinates.turn,
            request.max_tokens
        ),
        (3, 0, 64)
    );
    let query = chat.completion_ids(QUERY).unwrap();
    let step = rollout
        .on_completion(&completion(query, FinishReason::StopToken))
        .unwrap();
    let wanted = Action {
        action_type: "QUERY".to_owned(),
        argument: "SELECT COUNT(*) FROM book".to_owned(),
    };
    assert_eq!(step, RolloutRequest::Step(wanted));
    let request = completion_request(rollout.on_step(&reply("1. 9", "", false)).unwrap());
    assert_eq!(request.coordinates.turn, 1);
    let answer = chat.completion_ids(ANSWER).unwrap();
    rollout
        .on_completion(&completion(answer, FinishReason::StopToken))
        .unwrap();
    let mut last = reply("Answer submitted: correct.", "", true);
    last.correct = true;
    let trajectory = done(rollout.on_step(&last).unwrap());

    let segment = &trajectory.segments[0];
    let text = chat.decode(&segment.tokens).unwrap();
    let (head, tail) = text.split_once("How many books are there?").unwrap();
    assert!(head.starts_with("<|im_start|>system\n"));
    assert_eq!(
        tail,
        format!(
            "\nAvailable tables:\n- book<|im_end|>\n<|im_start|>assistant\n{QUERY}<|im_end|>\n<|im_start|>user\n<tool_response>\n\
             1. 9\n</tool_response><|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>"
        )
    );
    let sampled = segment
        .tokens
        .iter()
        .zip(&segment.mask)
        .filter(|(_, mask)| **mask == 1);
    let sampled: Vec<u32> = sampled.map(|(token, _)| *token).collect();
    assert_eq!(
        chat.decode(&sampled).unwrap(),
        format!("{QUERY}<|im_end|>{ANSWER}<|im_end|>")
    );
    assert!(trajectory.scored && trajectory.correct);
    assert_eq!((trajectory.member, trajectory.episode_return), (3, 0.5));
    assert_eq!(trajectory.turns[0].observation_text, "1. 9");
}

#[test]
fn a_truncated_completion_gets_an_unsampled_stop_token() {
    let chat = chat();
    let (mut rollout, _) = begin(&chat, 8, 512);
    let cut = chat
        .encode("<tool_call>\n{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT")
        .unwrap();
    let raw = rollout
        .on_completion(&completion(cut, FinishReason::Length))
        .unwrap();
    assert!(
        matches!(raw, RolloutRequest::Step(action) if action.action_type == "QUERY" && action.argument.ends_with("SELECT"))
    );
    let request = completion_request(
        rollout
            .on_step(&reply("", "SQL error: near \"<\": syntax error", false))
            .unwrap(),
    );
    let text = chat.decode(&request.context).unwrap();
    assert!(
        text.contains(
            "SELECT<|im_end|>\n<|im_start|>user\n<tool_response>\nError: SQL error: near"
        ),
        "{text}"
    );
    let trajectory = rollout.fail("the node is unreachable".to_owned());
    let turn = &trajectory.turns[0];
    assert!(turn.malformed && turn.truncated && turn.observation_is_error);
    assert!(!trajectory.scored);
    assert_eq!(trajectory.failure, "the node is unreachable");
    let masked = trajectory.segments[0]
        .mask
        .iter()
        .map(|mask| u32::from(*mask))
        .sum::<u32>();
    assert_eq!(masked, turn.completion_tokens);
}

/// A completion may be nearly as long as the context. The policy sees its last turn all the same.
#[test]
fn the_policy_sees_its_last_turn_where_no_longest_completion_fits_behind_it() {
    let chat = chat();
    let (_, first) = begin(&chat, 96, 512);
    let limit = first.context.len() + 96 + 8;
    let (mut rollout, request) = begin(&chat, 96, limit);
    let query = chat.completion_ids(QUERY).unwrap();
    rollout
        .on_completion(&completion(query.clone(), FinishReason::StopToken))
        .unwrap();
    let next = completion_request(rollout.on_step(&reply("1. 9", "", false)).unwrap());
    let seen = [&request.context[..], &query].concat();
    assert!(next.context.starts_with(&seen), "the query was left out");
    assert_eq!(next.max_tokens, limit - next.context.len());
    assert!((48..96).contains(&next.max_tokens), "{}", next.max_tokens);
}

/// Every turn would be left out, and the policy would repeat its first call to the end.
#[test]
fn an_episode_whose_prompt_leaves_no_room_for_turns_ends_before_the_first() {
    let chat = chat();
    let (_, first) = begin(&chat, 96, 512);
    let limit = first.context.len() + 48;
    let several = first_observation();
    let (_, request) = reset(&chat, 96, limit, &several);
    let failed = done(request);
    assert!(!failed.scored && failed.turns.is_empty() && failed.segments.is_empty());
    let named = format!("learner.rollout.max_context_tokens is {limit}, which leaves no room");
    assert!(failed.failure.contains(&named), "{}", failed.failure);
    assert!(failed.failure_is_final);
    completion_request(reset(&chat, 96, limit + 1, &several).1);
    let only = Observation {
        budget_remaining: 1,
        ..several
    };
    let request = completion_request(reset(&chat, 96, limit, &only).1);
    assert_eq!(request.max_tokens, 48);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_episode_gives_a_consistent_trajectory(
        limit in 48usize..160,
        turns in prop::collection::vec((prop::collection::vec(0u32..900, 1..24), prop_oneof![0usize..30, 0usize..400], any::<bool>()), 1..10),
    ) {
        const MOST: usize = 16;
        let chat = chat();
        let (mut rollout, mut request) = begin(&chat, MOST, limit);
        let first = request.context.clone();
        let last = turns.len() - 1;
        let mut sampled = Vec::new();
        for (index, (tokens, result, stops)) in turns.iter().enumerate() {
            prop_assert!(request.context.len() + request.max_tokens <= limit);
            prop_assert_eq!(request.max_tokens, MOST, "there is room for a whole completion");
            prop_assert_eq!(request.coordinates.turn as usize, index);
            let mut tokens: Vec<u32> = tokens.iter().copied().take(request.max_tokens).collect();
            let stop = if *stops { FinishReason::StopToken } else { FinishReason::Length };
            if *stops {
                *tokens.last_mut().unwrap() = chat.stop_ids()[0];
            }
            sampled.extend(&tokens);
            rollout.on_completion(&completion(tokens.clone(), stop)).unwrap();
            let reply = reply(&"ab ".repeat(*result), "", index == last);
            let shown = prompt::tool_message(reply.observation.as_ref().unwrap());
            let closing: &[u32] = if *stops { &[] } else { &chat.stop_ids()[..1] };
            let suffix = chat.tool_suffix_ids(&[shown]).unwrap();
            let whole = [&request.context[..], &tokens, closing, &suffix].concat();
            let next = rollout.on_step(&reply).unwrap();
            if index < last {
                let fits = whole.len() + MOST <= limit;
                request = completion_request(next);
                prop_assert_eq!(request.context == whole, fits, "tokens are dropped only if the room runs out");
            } else {
                check(&done(next), &first, limit, &sampled)?;
            }
        }
    }
}

/// Checks that the turns cover the mask, and that the tokens with mask 1 are the sampled ones, in
/// order and with their own log-probabilities. Each segment starts with the prompt and fits the
/// limit.
fn check(
    trajectory: &Trajectory,
    prompt: &[u32],
    limit: usize,
    sampled: &[u32],
) -> Result<(), TestCaseError> {
    let mut found = Vec::new();
    for turn in &trajectory.turns {
        let segment = &trajectory.segments[turn.segment as usize];
        let start = turn.completion_start as usize;
        let span = start..start + turn.completion_tokens as usize;
        prop_assert!(segment.mask[span.clone()].iter().all(|mask| *mask == 1));
        for (token, logprob) in segment.tokens[span.clone()]
            .iter()
            .zip(&segment.logprobs[span])
        {
            prop_assert_eq!(*logprob, -1.0 - *token as f32);
            found.push(*token);
        }
    }
    prop_assert_eq!(&found, sampled);
    let masked: usize = trajectory
        .segments
        .iter()
        .flat_map(|segment| &segment.mask)
        .map(|mask| usize::from(*mask))
        .sum();
    prop_assert_eq!(masked, sampled.len());
    for segment in &trajectory.segments {
        let length = segment.tokens.len();
        prop_assert!(length <= limit && segment.tokens.starts_with(prompt));
        prop_assert_eq!(
            (segment.mask.len(), segment.logprobs.len()),
            (length, length)
        );
        for (mask, logprob) in segment.mask.iter().zip(&segment.logprobs) {
            prop_assert_eq!(*mask == 1, *logprob != 0.0);
        }
    }
    Ok(())
}
