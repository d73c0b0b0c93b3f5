//! Compares advantages, losses, gradients and metrics with TRL 1.16.0's own output
//! (`tests/golden/README.md`).
//!
//! The loss is f64 by design. The decoder gives it f32 and takes its derivatives in f32. So every
//! case must agree to 1e-10 as it is, to 1e-5 with inputs rounded to f32, and to 1e-5 through the
//! kernel to the logits.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use learner::{
    LearnerConfig,
    config::RewardWeights,
    group::{Group, StepGroups, SubmissionHead},
    loss::{LossStats, LossType, SamplerCorrection, SamplingStats, sampling_stats},
    metrics::of_rollouts,
    scheduler::GroupSummary,
};
use policy::ops::{Backend, LinearWeight, LogprobGradients};
use proto::{EncodedGroup, v1::SubmitRequest};
use serde_json::Value;

use crate::golden_cases::{
    LossTokens, Micro, advantages_of, cases, group_size_of, matrix, micro_batches, rewards_of,
    rounded_cases, settings, vector, weights_of,
};

/// Equal to `tolerance` of the larger, with `floor` as the smallest scale.
fn close(got: f64, want: f64, tolerance: f64, floor: f64) -> bool {
    got == want || (got - want).abs() <= tolerance * want.abs().max(got.abs()).max(floor)
}

#[test]
fn advantages_equal_trl() {
    for case in cases() {
        let id = &case["id"];
        let got = advantages_of(&case);
        let want = vector(&case["expected"]["advantages"]);
        for (row, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                close(*got, *want, 1e-10, 1e-6),
                "{id} row {row}: {got} != {want}"
            );
        }
    }
}

/// The groups of a case as the learner holds them; only their rewards count.
fn groups(case: &Value) -> StepGroups {
    let mut rewards = rewards_of(case);
    rewards
        .iter_mut()
        .for_each(|row| row.resize(RewardWeights::COLUMNS.len(), None));
    let group = |rewards: &[Vec<Option<f64>>]| {
        Arc::new(Group {
            head: SubmissionHead::default(),
            encoded: EncodedGroup::from(&SubmitRequest::default()),
            trajectories: Vec::new(),
            rewards: rewards.to_vec(),
            summary: GroupSummary {
                kept: true,
                oldest_version: 0,
            },
        })
    };
    StepGroups {
        kept: rewards.chunks(group_size_of(case)).map(group).collect(),
        ..StepGroups::default()
    }
}

#[test]
fn reward_metrics_equal_trl() {
    for case in cases() {
        let (id, weights) = (&case["id"], weights_of(&case));
        let weight = |column: usize| weights.get(column).copied().unwrap_or(0.0);
        let rewards = RewardWeights {
            progress: 0.0,
            operational: 0.0,
            correct: weight(0),
            shaping: weight(1),
            episode_return: weight(2),
        };
        let config = LearnerConfig {
            rewards,
            ..LearnerConfig::default()
        };
        let got = of_rollouts(&groups(&case), &config, 0);
        let want = &case["expected"]["generation_metrics"];
        // TRL counts a group without rewards as one with variance, one of a single member as one
        // without, and a whole batch at once where the batch is what scales.
        let is_plain = case["options"]["scale_rewards"] != "batch"
            && group_size_of(&case) > 1
            && case["options"]["multi_objective_aggregation"] == "sum_then_normalize"
            && rewards_of(&case).iter().flatten().all(Option::is_some);
        let share = is_plain.then_some("frac_reward_zero_std");
        for name in ["reward", "reward_std"].into_iter().chain(share) {
            match (got.get(name), want[name].as_f64()) {
                (Some(&got), Some(want)) => {
                    assert!(close(got, want, 1e-6, 1e-6), "{id} {name}: {got} != {want}");
                }
                (got, want) => assert_eq!(got, want.as_ref(), "{id} {name}"),
            }
        }
    }
}

#[test]
fn losses_gradients_and_metrics_equal_trl() {
    let cases = cases();
    assert_eq!(cases.len(), 132);
    for case in cases {
        for micro in micro_batches(&case) {
            check_micro_batch(&micro, 1e-10);
        }
        check_sampling(&case);
    }
}

#[test]
fn losses_of_rounded_log_probs_equal_trl() {
    for case in rounded_cases() {
        for micro in micro_batches(&case) {
            check_micro_batch(&micro, 1e-5);
        }
    }
}

/// Two logits a token, of which the first is the target's; the head is the identity.
#[test]
fn gradients_reach_the_logits_in_f32() {
    for case in rounded_cases() {
        for mut micro in micro_batches(&case) {
            let logits = micro.inputs.logprobs.iter();
            let logits: Vec<f32> = logits
                .flat_map(|&l| [l as f32, (-l.exp_m1()).ln() as f32])
                .collect();
            let share_of_the_other: Vec<f64> = logits
                .chunks(2)
                .map(|two| f64::from(two[1]).exp())
                .collect();
            let found = through_the_kernel(&mut micro, &logits);
            let wanted = micro
                .tokens
                .pick_at(&micro.expected["grad_per_token_logps"], micro.first);
            // The share of the other logit is what f32 rounds, so the scale is without it.
            let largest = wanted.iter().fold(0.0_f64, |max, g| max.max(g.abs()));
            let wanted = wanted
                .iter()
                .zip(&share_of_the_other)
                .map(|(g, share)| g * share);
            let wanted: Vec<f64> = wanted.collect();
            for (found, wanted) in found.iter().zip(&wanted) {
                let id = &case["id"];
                assert!(
                    close(*found, *wanted, 1e-5, largest),
                    "{id}: {found} != {wanted}"
                );
            }
        }
    }
}

/// The loss's gradient by the targets' logits, by way of log-probabilities from the kernel and
/// derivatives in f32.
fn through_the_kernel(micro: &mut Micro<'_>, logits: &[f32]) -> Vec<f64> {
    let rows = logits.len() / 2;
    if rows == 0 {
        return Vec::new();
    }
    let cpu = &Device::Cpu;
    let logits = Tensor::from_slice(logits, (rows, 2), cpu).unwrap();
    let backend = Backend::CpuF32;
    let head = LinearWeight::Tensor(Tensor::eye(2, DType::F32, cpu).unwrap());
    let targets = vec![0; rows];
    let scores = backend
        .token_logprobs(&logits, &head, &targets, 1.0)
        .unwrap();
    let logprobs: Vec<f32> = scores.logprobs.to_vec1().unwrap();
    micro.inputs.logprobs = logprobs.into_iter().map(f64::from).collect();
    let derivatives = LogprobGradients {
        logprobs: micro.loss().d_logprobs,
        entropies: None,
    };
    let (gradient, _) = backend
        .token_logprobs_backward(scores, &logits, &head, &targets, 1.0, &derivatives)
        .unwrap();
    let gradient: Vec<Vec<f32>> = gradient.to_vec2().unwrap();
    gradient.iter().map(|two| f64::from(two[0])).collect()
}

fn check_micro_batch(micro: &Micro<'_>, tolerance: f64) {
    let (id, got) = (&micro.case["id"], micro.loss());
    let want = micro.expected["loss"].as_f64().unwrap();
    // The terms of the loss nearly cancel, since the advantages of a group do. With rounded
    // log-probabilities a small loss is thus checked by its gradients alone.
    let gradient = matrix(&micro.expected["grad_per_token_logps"]).unwrap();
    let scale: f64 = gradient.iter().flatten().map(|g| g.abs()).sum();
    assert!(
        close(got.loss, want, tolerance, scale.max(1e-3)),
        "{id} loss: {} != {want}",
        got.loss
    );
    check_gradient(micro, "grad_per_token_logps", &got.d_logprobs, tolerance);
    match &got.d_entropies {
        Some(d_entropies) => check_gradient(micro, "grad_entropies", d_entropies, tolerance),
        None => assert!(
            micro.expected["grad_entropies"].is_null(),
            "{id}: no gradient of the entropies"
        ),
    }
    check_metrics(micro, &got.stats, tolerance);
}

fn check_gradient(micro: &Micro<'_>, name: &str, got: &[f64], tolerance: f64) {
    let id = &micro.case["id"];
    let want = matrix(&micro.expected[name]).unwrap();
    let largest = want
        .iter()
        .flatten()
        .fold(0.0_f64, |max, g| max.max(g.abs()));
    let mut expected_elsewhere = want.clone();
    for (&(row, t), got) in micro.tokens.places.iter().zip(got) {
        let row = row - micro.first;
        expected_elsewhere[row][t] = 0.0;
        assert!(
            close(*got, want[row][t], tolerance, largest),
            "{id} {name} [{row},{t}]: {got} != {}",
            want[row][t]
        );
    }
    let elsewhere = expected_elsewhere.iter().flatten().all(|g| *g == 0.0);
    assert!(elsewhere, "{id} {name}: TRL has gradient on a masked token");
}

fn check_metrics(micro: &Micro<'_>, stats: &LossStats, tolerance: f64) {
    let (id, options) = (&micro.case["id"], &micro.case["options"]);
    let got = stats.metrics();
    if stats.tokens == 0.0 {
        // TRL reports 0, although it has measured nothing.
        assert!(got.is_empty(), "{id}: {got:?}");
        return;
    }
    for (name, want) in micro.expected["metrics"].as_object().unwrap() {
        if name == "entropy_coef" {
            continue;
        }
        let Some(mut want) = want.as_f64() else {
            assert!(!got.contains_key(name), "{id} {name} should be undefined");
            continue;
        };
        let by_rows = !matches!(
            micro.settings.loss_type,
            LossType::Dapo | LossType::Cispo | LossType::Vespo
        );
        if name == "policy_loss" && by_rows {
            want /= options["gradient_accumulation_steps"].as_f64().unwrap();
        }
        // TRL's shares are f32.
        let tolerance = if name.contains("clip") {
            1e-6
        } else {
            tolerance
        };
        let value = got
            .get(name)
            .unwrap_or_else(|| panic!("{id}: no metric {name}"));
        assert!(
            close(*value, want, tolerance, 1e-3),
            "{id} {name}: {value} != {want}"
        );
    }
}

fn check_sampling(case: &Value) {
    let settings = settings(&case["options"]);
    let mask = matrix(&case["expected"]["loss_mask"]).unwrap();
    if settings.sampler_correction == SamplerCorrection::Off {
        return;
    }
    let tokens = LossTokens::new(&mask, 0, mask.len());
    let old = tokens
        .pick_from(&case["inputs"]["old_per_token_logps"])
        .unwrap();
    let sampler = tokens
        .pick_from(&case["inputs"]["sampling_per_token_logps"])
        .unwrap();
    let stats: SamplingStats = sampling_stats(&old, &sampler, &tokens.rows, &settings);
    // TRL has no such metric: the definition, over the tokens whose log-probability the sampler
    // knows.
    let differences = old.iter().zip(&sampler).map(|(old, sampler)| old - sampler);
    let known: Vec<f64> = differences.filter(|d| !d.is_nan()).collect();
    let k3 = known.iter().map(|d| d.exp() - 1.0 - d).sum::<f64>() / known.len().max(1) as f64;
    for (name, got) in stats.metrics() {
        let want = match name.as_str() {
            "sampling/kl_k3" => k3,
            _ => case["expected"]["generation_metrics"][&name]
                .as_f64()
                .unwrap(),
        };
        assert!(
            close(got, want, 1e-10, 1e-3),
            "{} {name}: {got} != {want}",
            case["id"]
        );
    }
}
