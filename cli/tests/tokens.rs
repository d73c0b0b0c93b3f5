//! Tests that sampled tokens reach the gradient of the learner unchanged: nothing is rendered or
//! tokenized again.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use std::sync::Arc;

use actor::{Completion, CompletionRequest, FinishReason, Rollout, RolloutLimits, RolloutRequest};
use learner::{
    LearnerConfig,
    group::{Group, GroupRules, StepGroups},
    trainer::Trainer,
};
use policy::{Chat, Coordinates, Decoder, DecoderMode, Model, PackedRows, ToolCall, embedded};
use proto::{
    EncodedGroup,
    v1::{Observation, StepResponse, SubmitRequest, Trajectory},
};

const LIMITS: RolloutLimits = RolloutLimits {
    max_completion_tokens: 256,
    max_context_tokens: 1024,
    shots: 0,
};

/// Encodes a call with one token per character, which a model can sample and the tokenizer would
/// merge.
fn unmerged(chat: &Chat, call: &ToolCall) -> Vec<u32> {
    let letters = call.to_text();
    let letters = letters
        .chars()
        .map(|letter| chat.encode(&letter.to_string()));
    let mut tokens: Vec<u32> = letters.flat_map(Result::unwrap).collect();
    tokens.push(chat.stop_ids()[0]);
    tokens
}

/// Runs one episode with tokens that the tokenizer would encode differently. Also returns the
/// sampled tokens and their log-probabilities.
fn play(model: &Model, decoder: &Decoder, member: u32) -> (Trajectory, Vec<u32>, Vec<f32>) {
    let chat = Arc::new(model.chat.clone());
    let place = Coordinates {
        member,
        ..Coordinates::default()
    };
    let question = Observation {
        question: "How many books are there?".to_owned(),
        schema_info: "Available tables:\n- book".to_owned(),
        budget_remaining: 8,
        ..Observation::default()
    };
    let (mut rollout, mut request) =
        Rollout::on_reset(chat.clone(), LIMITS, place, &question).unwrap();
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    let calls = [
        ToolCall::new("describe", "table_name", "book"),
        ToolCall::new("query", "sql", "SELECT count(*) FROM book"),
        ToolCall::new("answer", "value", "9"),
    ];
    for (turn, call) in calls.iter().enumerate() {
        let RolloutRequest::Complete(wanted) = request else {
            panic!("not a completion: {request:?}")
        };
        let completion = sampled(decoder, &wanted, unmerged(&chat, call));
        let text = chat.decode(&completion.tokens).unwrap();
        assert_ne!(chat.encode(&text).unwrap(), completion.tokens);
        tokens.extend(&completion.tokens);
        logprobs.extend(&completion.logprobs);
        let RolloutRequest::Step(action) = rollout.on_completion(&completion).unwrap() else {
            panic!("no action")
        };
        assert!(action.action_type.eq_ignore_ascii_case(&call.name));
        request = rollout.on_step(&reply(turn == 2, member == 0)).unwrap();
    }
    match request {
        RolloutRequest::Done(trajectory) => (trajectory, tokens, logprobs),
        other => panic!("not the end: {other:?}"),
    }
}

/// Returns `tokens` with the log-probabilities that sampling would have recorded.
fn sampled(decoder: &Decoder, request: &CompletionRequest, tokens: Vec<u32>) -> Completion {
    let whole = [&request.context[..], &tokens].concat();
    let mut rows = PackedRows::default();
    rows.push(&whole);
    let logits = decoder
        .logits(&decoder.forward(&rows, None).unwrap())
        .unwrap();
    let logits: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    let before = &logits[request.context.len() - 1..];
    let score = |(token, logits): (&u32, &Vec<f32>)| {
        policy::ops::log_softmax_at(logits, *token as usize, 1.0)
    };
    Completion {
        logprobs: tokens.iter().zip(before).map(score).collect(),
        tokens,
        policy_version: 0,
        finish_reason: FinishReason::StopToken,
    }
}

fn reply(done: bool, correct: bool) -> StepResponse {
    StepResponse {
        observation: Some(Observation {
            result: "1. 9".to_owned(),
            done,
            reward: Some(f64::from(u8::from(done && correct))),
            ..Observation::default()
        }),
        correct: done && correct,
        ..StepResponse::default()
    }
}

#[test]
fn sampled_tokens_reach_the_gradient_as_they_were_sampled() {
    let model = embedded::model(5).unwrap();
    let decoder = Decoder::new(&model.config, &model.weights, DecoderMode::Sample).unwrap();
    let config = LearnerConfig {
        group_size: 2,
        micro_batch_tokens: 1024,
        ..LearnerConfig::default()
    };
    let rules = GroupRules {
        max_context_tokens: LIMITS.max_context_tokens,
        ..GroupRules::new(&config, model.config.vocab_size)
    };

    let played: Vec<_> = (0..2)
        .map(|member| play(&model, &decoder, member))
        .collect();
    let request = SubmitRequest {
        trajectories: played
            .iter()
            .map(|(trajectory, ..)| trajectory.clone())
            .collect(),
        ..SubmitRequest::default()
    };
    let group = Arc::new(Group::new(EncodedGroup::from(&request), &rules).unwrap());

    for (trajectory, (_, tokens, logprobs)) in group.trajectories.iter().zip(&played) {
        let segment = &trajectory.segments[0];
        let at = (0..segment.tokens.len()).filter(|&at| segment.mask[at] == 1);
        let at: Vec<usize> = at.collect();
        assert_eq!(
            &at.iter().map(|&at| segment.tokens[at]).collect::<Vec<_>>(),
            tokens
        );
        let recorded = at.iter().map(|&at| segment.logprobs[at].to_bits());
        let wanted = logprobs.iter().map(|logprob| logprob.to_bits());
        assert!(recorded.eq(wanted));
    }

    // The log-probabilities of the learner equal the recorded ones only if it has the same tokens
    // at the same positions.
    let groups = StepGroups {
        kept: vec![group],
        ..StepGroups::default()
    };
    let mut trainer = Trainer::new(&config, 1, &model).unwrap();
    let metrics = trainer.step(&groups, 0).unwrap();
    assert_eq!(metrics["sampling/sampling_logp_difference/max"], 0.0);
    assert!(metrics["grad_norm"] > 0.0);
}
