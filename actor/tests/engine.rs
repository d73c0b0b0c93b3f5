//! Tests the guarantee of the engine: a completion depends on weights, context, settings and
//! coordinates alone, and the recorded log-probabilities are those that the learner computes, bit
//! for bit.
#![allow(clippy::unwrap_used, reason = "a failed expectation fails the test")]

mod support;

use std::collections::BTreeMap;

use actor::{Completion, CompletionRequest, Engine};
use candle_core::{DType, Device};
use futures::future::join_all;
use policy::{
    Coordinates, DTypeChoice, Decoder, DecoderMode, DeviceChoice, Model, PackedRows, Placement,
    SamplingSettings, Weights,
};
use support::{engine_settings, model};

const CONTEXT_TOKENS: usize = 96;

fn request(model: &Model, member: u32) -> CompletionRequest {
    let text = format!("What is the {member}th prime number after {}?", member * 7);
    CompletionRequest {
        context: model.chat.encode(&text).unwrap(),
        max_tokens: 6 + member as usize % 5,
        coordinates: Coordinates {
            run_seed: 3,
            group: 5,
            member,
            ..Coordinates::default()
        },
    }
}

fn requests(model: &Model) -> Vec<(CompletionRequest, SamplingSettings)> {
    let filtered = SamplingSettings {
        temperature: 0.8,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.01,
    };
    let settings = [
        SamplingSettings::default(),
        SamplingSettings::greedy(),
        filtered,
    ];
    (0..12)
        .map(|member| (request(model, member), settings[member as usize % 3]))
        .collect()
}

async fn complete_all(
    engine: &Engine,
    requests: &[(CompletionRequest, SamplingSettings)],
) -> Vec<Completion> {
    let completions = join_all(
        requests
            .iter()
            .map(|(request, sampling)| engine.complete(request.clone(), *sampling)),
    )
    .await;
    completions.into_iter().map(Result::unwrap).collect()
}

fn spawn(model: &Model, slots: usize, pass_tokens: usize) -> Engine {
    Engine::spawn(
        model,
        0,
        CONTEXT_TOKENS,
        &engine_settings(slots, pass_tokens),
        Placement::default(),
    )
    .unwrap()
}

/// Returns the log-probabilities of the last tokens of a sequence, as training computes them.
fn training_logprobs(
    model: &Model,
    tokens: &[u32],
    completion: usize,
    temperature: f32,
) -> Vec<f32> {
    let decoder = Decoder::new(&model.config, &model.weights, DecoderMode::Train).unwrap();
    let mut packed = PackedRows::default();
    packed.push(tokens);
    let hidden = decoder.forward(&packed, None).unwrap();
    let before = hidden
        .narrow(0, tokens.len() - completion - 1, completion)
        .unwrap();
    let targets = &tokens[tokens.len() - completion..];
    let scored = decoder
        .token_logprobs(&before, targets, temperature)
        .unwrap();
    scored.logprobs.to_vec1().unwrap()
}

#[tokio::test]
async fn completions_do_not_depend_on_batching_slots_or_order() {
    let model = model(1);
    let requests = requests(&model);
    let wanted = complete_all(&spawn(&model, 12, 512), &requests).await;
    for (slots, pass_tokens) in [(1, 1), (3, 8), (64, 4096)] {
        assert_eq!(
            complete_all(&spawn(&model, slots, pass_tokens), &requests).await,
            wanted
        );
    }
    let mut reversed = requests.clone();
    reversed.reverse();
    let mut completions = complete_all(&spawn(&model, 5, 64), &reversed).await;
    completions.reverse();
    assert_eq!(completions, wanted);
}

#[tokio::test]
async fn recorded_logprobs_are_those_of_training() {
    let model = model(2);
    let requests = requests(&model);
    let completions = complete_all(&spawn(&model, 4, 16), &requests).await;
    for ((request, sampling), completion) in requests.iter().zip(&completions) {
        let tokens = [&request.context[..], &completion.tokens].concat();
        let temperature = sampling.logprob_temperature();
        let trained = training_logprobs(&model, &tokens, completion.tokens.len(), temperature);
        assert_eq!(bits(&trained), bits(&completion.logprobs));
    }
}

/// Checks bf16 on the CPU: greedy, sampled and filtered completions, in any batch, with an update
/// of the weights in between.
#[tokio::test]
async fn in_bf16_recorded_logprobs_are_those_of_training() {
    let (old, new) = (model(2), model(3));
    let requests = requests(&old);
    let placement = Placement {
        dtype: DTypeChoice::Bf16,
        ..Placement::default()
    };
    let engine =
        Engine::spawn(&old, 0, CONTEXT_TOKENS, &engine_settings(4, 16), placement).unwrap();
    let (completions, updated) = tokio::join!(
        complete_all(&engine, &requests),
        engine.update_weights(1, new.weights.clone())
    );
    updated.unwrap();
    let after = complete_all(&engine, &requests).await;
    assert!(
        after
            .iter()
            .all(|completion| completion.policy_version == 1)
    );
    let asked = requests.iter().chain(&requests);
    for ((request, sampling), completion) in asked.zip(completions.iter().chain(&after)) {
        let mut of_version = [&old, &new][completion.policy_version as usize].clone();
        of_version.weights = of_version.weights.to(&Device::Cpu, DType::BF16).unwrap();
        let tokens = [&request.context[..], &completion.tokens].concat();
        let temperature = sampling.logprob_temperature();
        let trained = training_logprobs(&of_version, &tokens, completion.tokens.len(), temperature);
        assert_eq!(bits(&trained), bits(&completion.logprobs));
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs three turns of a conversation: with its slot kept, evicted between turns, and with every
/// turn on a new engine.
#[tokio::test]
async fn turns_that_reuse_their_slot_equal_turns_that_do_not() {
    let model = model(3);
    let mut outcomes = Vec::new();
    for engines in [
        vec![spawn(&model, 4, 64)],
        (0..3).map(|_| spawn(&model, 4, 64)).collect(),
    ] {
        outcomes.push(converse(&model, &engines, false).await);
    }
    outcomes.push(converse(&model, &[spawn(&model, 1, 64)], true).await);
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0], outcomes[2]);
}

async fn converse(model: &Model, engines: &[Engine], others_between: bool) -> Vec<Completion> {
    let mut context = model
        .chat
        .encode("Let us talk about prime numbers.")
        .unwrap();
    let mut completions = Vec::new();
    for turn in 0..3 {
        let engine = &engines[turn % engines.len()];
        let asked = CompletionRequest {
            context: context.clone(),
            max_tokens: 8,
            coordinates: Coordinates {
                turn: turn as u32,
                ..Coordinates::default()
            },
        };
        let completion = engine
            .complete(asked, SamplingSettings::default())
            .await
            .unwrap();
        context.extend(&completion.tokens);
        context.extend(model.chat.encode(" And the next one?").unwrap());
        completions.push(completion);
        if others_between {
            complete_all(engine, &requests(model)).await;
        }
    }
    completions
}

/// Updates the weights under running completions and conversations: each completion is entirely of
/// the version it states.
#[tokio::test]
async fn completions_are_of_the_version_they_state() {
    let (old, new) = (model(4), model(5));
    let requests = requests(&old);
    let by_old = complete_all(&spawn(&old, 12, 64), &requests).await;
    let mut by_new = complete_all(&spawn(&new, 12, 64), &requests).await;
    for completion in &mut by_new {
        completion.policy_version = 7;
    }
    let engine = spawn(&old, 2, 64);
    let first = engine
        .complete(requests[0].0.clone(), requests[0].1)
        .await
        .unwrap();
    assert_eq!(first, by_old[0]);
    let (during, updated) = tokio::join!(
        complete_all(&engine, &requests),
        engine.update_weights(7, new.weights.clone())
    );
    updated.unwrap();
    for (index, completion) in during.iter().enumerate() {
        let wanted = if completion.policy_version == 7 {
            &by_new
        } else {
            &by_old
        };
        assert_eq!(completion, &wanted[index]);
    }
    assert_eq!(complete_all(&engine, &requests).await, by_new);
}

#[tokio::test]
async fn weights_that_do_not_fit_are_rejected_and_the_old_ones_stay() {
    let model = model(4);
    let asked = request(&model, 1);
    let sampling = SamplingSettings::default();
    let engine = spawn(&model, 2, 64);
    let before = engine.complete(asked.clone(), sampling).await.unwrap();
    let error = engine
        .update_weights(1, Weights::new(BTreeMap::new()))
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("tensor"), "{error}");
    assert_eq!(engine.complete(asked, sampling).await.unwrap(), before);
}

#[test]
fn a_missing_device_is_rejected_with_the_remedy() {
    let placement = Placement {
        device: DeviceChoice::Cuda(4_000),
        ..Placement::default()
    };
    let settings = engine_settings(1, 64);
    let error = Engine::spawn(&model(6), 0, CONTEXT_TOKENS, &settings, placement).unwrap_err();
    assert!(error.to_string().starts_with("device: "), "{error}");
}

#[tokio::test]
async fn a_request_that_does_not_fit_is_rejected() {
    let model = model(6);
    let engine = spawn(&model, 1, 64);
    let good = request(&model, 1);
    let sampling = SamplingSettings::default();
    for (context, max_tokens) in [(vec![], 4), (vec![1; 90], 7), (good.context.clone(), 0)] {
        let asked = CompletionRequest {
            context,
            max_tokens,
            ..good.clone()
        };
        let error = engine
            .complete(asked, sampling)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("max_context_tokens"), "{error}");
    }
    engine.complete(good, sampling).await.unwrap();
}
