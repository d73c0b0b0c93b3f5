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

/// Checks greedy, sampled and filtered completions, in any batch, with an update of the weights in
/// between.
#[tokio::test]
async fn recorded_logprobs_are_those_of_training() {
    let (old, new) = (model(2), model(3));
    let requests = requests(&old);
    for (choice, dtype) in [
        (DTypeChoice::F32, DType::F32),
        (DTypeChoice::Bf16, DType::BF16),
    ] {
        let placement = Placement {
            dtype: choice,
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
            of_version.weights = of_version.weights.to(&Device::Cpu, dtype).unwrap();
            let tokens = [&request.context[..], &completion.tokens].concat();
            let temperature = sampling.logprob_temperature();
            let trained =
                training_logprobs(&of_version, &tokens, completion.tokens.len(), temperature);
            assert_eq!(bits(&trained), bits(&completion.logprobs), "{choice}");
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
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
