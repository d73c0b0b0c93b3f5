//! Replays whole runs of TRL 1.16.0's `GRPOTrainer` with the trainer (`tests/golden/README.md`):
//! its rows, divisors, advantages, masks, KL, rates, clipping and updates. Only the completions and
//! rewards are TRL's; the micro-batches are not.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use candle_core::{DType, Device};
use learner::{
    LearnerConfig,
    batch::{Prefixes, Sample, micro_batches},
    config::RatioAgainst,
    group::{Group, GroupRules, StepGroups},
    loss::{LossSettings, LossType, SamplerCorrection},
    metrics::Metrics,
    network::{Network, PassSettings},
    optimizer::Parameter,
    trainer::Trainer,
};
use policy::{DecoderConfig, GradientCheckpointing, Model, Weights};
use proto::{
    EncodedGroup,
    v1::{Segment, SubmitRequest, Trajectory, Turn},
};
use serde_json::{Value, json};

use crate::common::{small_model, turns};

/// Prompts of one of the runs' batches.
const GROUPS_PER_STEP: usize = 2;
/// Ends a completion; one that it does not end was cut.
const END: u32 = 2;
/// Stands for a sampler's log-probs, of which TRL kept none; far below what the policy gives its
/// likelier tokens.
const RECORDED_LOGPROB: f32 = -10.0;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file)
}

fn run(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(&format!("run_{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The run's base; its texts do not matter here.
fn model(run: &Value) -> Model {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/golden/models");
    let folder = models.join(run["model"].as_str().unwrap());
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    Model {
        weights: Weights::load(&folder, &config, &Device::Cpu, DType::F32).unwrap(),
        config,
        ..small_model(1)
    }
}

fn config(run: &Value) -> LearnerConfig {
    let (options, optimizer) = (&run["options"], &run["optimizer"]);
    let iterations = options["num_iterations"].as_u64().unwrap();
    let mut config: LearnerConfig = serde_json::from_value(json!({
        "steps": optimizer["max_steps"].as_u64().unwrap() / iterations,
        "num_iterations": iterations,
        "groups_per_step": GROUPS_PER_STEP,
        "group_size": options["num_generations"],
        "micro_batch_tokens": 64,
        "rewards": {"correct": 0.0, "shaping": 0.0, "return": 1.0},
        "advantage": {"scale_rewards": options["scale_rewards"]},
        "loss": {
            "loss_type": options["loss_type"],
            "clip_low": options["epsilon"],
            "clip_high": options["epsilon_high"],
            "kl_coef": options["beta"],
            "kl_bias_correction": options["use_bias_correction_kl"],
            "mask_truncated_completions": options["mask_truncated_completions"]
        },
        "optimizer": {
            "learning_rate": optimizer["lr"],
            "weight_decay": optimizer["weight_decay"],
            "adam_beta1": optimizer["betas"][0],
            "adam_beta2": optimizer["betas"][1],
            "adam_epsilon": optimizer["eps"],
            "max_grad_norm": optimizer["max_grad_norm"]
        },
        "schedule": {"kind": optimizer["schedule"], "warmup_steps": optimizer["warmup_steps"]},
        "rollout": {"max_completion_tokens": 16, "max_context_tokens": 64},
        // The recorded log-probability is made up.
        "trust": {"refuse_logprob_differences": false}
    }))
    .unwrap();
    config.rollout.sampling.temperature = temperature(run);
    config.ratio_against = RatioAgainst::Learner;
    config.loss.sampler_correction = SamplerCorrection::Off;
    config.validate().unwrap();
    config
}

fn temperature(run: &Value) -> f32 {
    run["options"]["temperature"].as_f64().unwrap() as f32
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

fn trajectory(member: usize, prompt: &[u32], completion: &Value) -> Trajectory {
    let sampled: Vec<u8> = numbers(&completion["env_mask"]);
    let tokens = [prompt, &numbers::<u32>(&completion["ids"])].concat();
    let turn = Turn {
        truncated: tokens.last() != Some(&END),
        ..Turn::default()
    };
    let mask = [vec![0; prompt.len()], sampled].concat();
    Trajectory {
        member: member as u32,
        turns: turns(&mask, &turn),
        segments: vec![Segment {
            mask,
            logprobs: vec![RECORDED_LOGPROB; tokens.len()],
            tokens,
        }],
        episode_return: completion["reward"].as_f64().unwrap(),
        scored: true,
        ..Trajectory::default()
    }
}

fn group(index: usize, rollout: &Value, rules: &GroupRules) -> Arc<Group> {
    let prompt: Vec<u32> = numbers(&rollout["prompt_ids"]);
    let completions = rollout["completions"].as_array().unwrap();
    let members = completions.iter().enumerate();
    let request = SubmitRequest {
        group_index: index as u64,
        trajectories: members
            .map(|(member, completion)| trajectory(member, &prompt, completion))
            .collect(),
        ..SubmitRequest::default()
    };
    Arc::new(Group::new(EncodedGroup::from(&request), rules).unwrap())
}

/// The groups of each step.
fn batches(run: &Value, config: &LearnerConfig, vocab_size: usize) -> Vec<StepGroups> {
    let rules = GroupRules::new(config, vocab_size);
    let rollouts = run["rollouts"].as_array().unwrap();
    let groups: Vec<_> = (0..rollouts.len())
        .map(|index| group(index, &rollouts[index], &rules))
        .collect();
    let step = |kept: &[Arc<Group>]| StepGroups {
        kept: kept.to_vec(),
        ..StepGroups::default()
    };
    groups.chunks(GROUPS_PER_STEP).map(step).collect()
}

fn assert_close(name: &str, got: f64, want: f64, absolute: f64, relative: f64) {
    let allowed = absolute + relative * want.abs();
    assert!((got - want).abs() <= allowed, "{name}: {got} != {want}");
}

/// On-policy DAPO; GRPO with KL, a temperature, truncation masks and two updates a batch; CISPO
/// with KL and a cosine.
#[test]
fn runs_of_trl_s_are_made_again() {
    for name in ["dapo_onpolicy", "grpo_kl_2iter", "cispo_cosine"] {
        let run = run(name);
        let trainer = replay(&run);
        let last = run["steps"].as_array().unwrap().last().unwrap();
        check_parameters(trainer.network.parameters(), &last["params_after"]);
    }
}

fn replay(run: &Value) -> Trainer {
    let model = model(run);
    let config = config(run);
    let mut trainer = Trainer::new(&config, 1, &model).unwrap();
    let batches = batches(run, &config, model.config.vocab_size);
    let steps = run["steps"].as_array().unwrap();
    let steps = steps.chunks(config.num_iterations as usize);
    assert_eq!(batches.len(), steps.len());
    for (version, (groups, steps)) in batches.iter().zip(steps).enumerate() {
        check_scores(&trainer.network, run, &steps[0]);
        let metrics = trainer.step(groups, version as u64).unwrap();
        // Those of the batch's last update.
        let want = &steps[steps.len() - 1]["logs"];
        let check = |name: &str, absolute, relative| {
            let want = want[name].as_f64().unwrap();
            let name_here = format!("{} {name}", run["id"]);
            assert_close(&name_here, metrics[name], want, absolute, relative);
        };
        check("loss", 2e-5, 1e-4);
        check("grad_norm", 0.0, 1e-4);
        check("learning_rate", 1e-15, 0.0);
        // TRL averages these over micro-batches whatever their size.
        if steps[0]["micro_batches"].as_array().unwrap().len() == 1 {
            check("entropy", 1e-4, 0.0);
            check("kl", 1e-5, 1e-3);
            for name in want.as_object().unwrap().keys() {
                if name.starts_with("clip_ratio") {
                    check(name, 1e-6, 0.0);
                }
            }
        }
        check_rollouts(&metrics, &steps[0]["logs"]);
    }
    trainer
}

/// What a batch's first update logs of its completions, tokens and rewards, in f32.
fn check_rollouts(metrics: &Metrics, logs: &Value) {
    const OTHERS: [&str; 4] = ["num_tokens", "reward", "reward_std", "frac_reward_zero_std"];
    let mut checked = 0;
    for (name, want) in logs.as_object().unwrap() {
        if name.starts_with("completions/") || OTHERS.contains(&name.as_str()) {
            assert_close(name, metrics[name], want.as_f64().unwrap(), 1e-6, 1e-6);
            checked += 1;
        }
    }
    assert_eq!(checked, 11);
}

/// Log-probabilities and entropies of every token as TRL's model gave them before the step's first
/// update.
fn check_scores(network: &Network, run: &Value, step: &Value) {
    for micro in step["micro_batches"].as_array().unwrap() {
        let matrix = |name: &str| numbers::<Vec<f64>>(&micro[name]);
        let (prompts, prompt_mask) = (matrix("prompt_ids"), matrix("prompt_mask"));
        let (completions, mask) = (matrix("completion_ids"), matrix("completion_mask"));
        let mut samples = Vec::new();
        for row in 0..prompts.len() {
            let real = |ids: &[f64], mask: &[f64]| {
                let pairs = ids.iter().zip(mask).filter(|(_, mask)| **mask == 1.0);
                pairs.map(|(id, _)| *id as u32).collect::<Vec<_>>()
            };
            let prompt = real(&prompts[row], &prompt_mask[row]);
            let tokens = [prompt.clone(), real(&completions[row], &mask[row])].concat();
            let scored = (prompt.len()..tokens.len()).collect();
            let tokens = tokens.into();
            samples.push(Sample {
                tokens,
                scored,
                ..Sample::default()
            });
        }
        let pass = PassSettings {
            temperature: temperature(run),
            threads: 1,
            checkpointing: GradientCheckpointing::Off,
        };
        let packed = micro_batches(&samples, 1 << 12, Prefixes::Repeated);
        let scores = network.scores(&packed, pass).unwrap();
        let (logprobs, entropies) = (matrix("per_token_logps"), matrix("entropies"));
        for (micro, scores) in packed.iter().zip(&scores) {
            let places = micro.samples.iter().zip(&micro.scored);
            let places = places.flat_map(|(&row, &count)| (0..count).map(move |t| (row, t)));
            for (at, (row, t)) in places.enumerate() {
                let (found, wanted) = (scores.logprobs[at], logprobs[row][t]);
                assert_close("log-probability", found, wanted, 2e-4, 0.0);
                let (found, wanted) = (scores.entropies[at], entropies[row][t]);
                assert_close("entropy", found, wanted, 2e-4, 0.0);
            }
        }
    }
}

fn values(parameter: &Parameter) -> Vec<f32> {
    parameter.value.flatten_all().unwrap().to_vec1().unwrap()
}

fn check_parameters(parameters: &BTreeMap<String, Parameter>, expected: &Value) {
    for (name, want) in expected.as_object().unwrap() {
        let values = values(&parameters[name]);
        let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        let norm = want["l2"].as_f64().unwrap();
        assert_close(name, squares.sqrt(), norm, 0.0, 1e-5);
        for (got, want) in values.iter().zip(numbers::<f64>(&want["first"])) {
            assert_close(name, f64::from(*got), want, 5e-5, 0.0);
        }
    }
}

/// All weights after the last update. Under Adam an element whose gradient is near zero can move by
/// a whole rate in either direction, so one in a thousand may be further off.
#[test]
fn a_run_ends_with_trl_s_weights() {
    let run = run("dapo_onpolicy");
    let trainer = replay(&run);
    let bytes = std::fs::read(golden("run_dapo_onpolicy.safetensors")).unwrap();
    let expected = Weights::from_bytes(&bytes, &Device::Cpu, DType::F32).unwrap();
    let (mut all, mut far) = (0, 0);
    for (name, want) in expected.iter() {
        let want: Vec<f32> = want.flatten_all().unwrap().to_vec1().unwrap();
        let got = values(&trainer.network.parameters()[name]);
        assert_eq!(got.len(), want.len(), "{name}");
        let apart = got
            .iter()
            .zip(&want)
            .filter(|(a, b)| (*a - *b).abs() > 5e-5);
        far += apart.count();
        all += want.len();
    }
    assert_eq!(
        all,
        trainer
            .network
            .parameters()
            .values()
            .map(|p| p.value.elem_count())
            .sum::<usize>()
    );
    assert!(far * 1000 <= all, "{far} of {all} weights are not TRL's");
}

/// The policy has not moved yet, so the two losses differ by their divisors alone.
#[test]
fn dr_grpo_divides_by_its_rows_and_length() {
    let run = run("dapo_onpolicy");
    let model = model(&run);
    let mut config = config(&run);
    config.loss.loss_type = LossType::DrGrpo;
    let first = &run["steps"][0];
    let tokens = &first["micro_batches"][0]["num_items_in_batch"];
    let sum = first["logs"]["loss"].as_f64().unwrap() * tokens.as_f64().unwrap();
    for (given, length) in [(Some(16), 16.0), (None, 64.0)] {
        config.loss.dr_grpo_length = given;
        let groups = &batches(&run, &config, model.config.vocab_size)[0];
        let mut trainer = Trainer::new(&config, 1, &model).unwrap();
        let loss = trainer.step(groups, 0).unwrap()["loss"];
        assert_close("loss", loss, sum / (8.0 * length), 2e-5, 1e-4);
    }
}

/// The rate would stand still, and never come to its end.
#[test]
fn the_learning_rate_falls_in_steps_without_groups_too() {
    let run = run("cispo_cosine");
    let model = model(&run);
    let config = LearnerConfig {
        steps: 4,
        ..config(&run)
    };
    let groups = &batches(&run, &config, model.config.vocab_size)[0];
    let second_rate = |first: &StepGroups| {
        let mut trainer = Trainer::new(&config, 1, &model).unwrap();
        trainer.step(first, 0).unwrap();
        trainer.step(groups, 1).unwrap()["learning_rate"]
    };
    let expected = second_rate(groups);
    assert_eq!(second_rate(&StepGroups::default()), expected);
    // Two updates a step: this is the fourth of eight.
    let factor = config.schedule.factor(3, 8);
    assert_eq!(expected, config.optimizer.learning_rate * factor);
}

#[test]
fn a_ratio_against_the_sampler_is_reported_as_it_is() {
    let run = run("dapo_onpolicy");
    let model = model(&run);
    let config = LearnerConfig {
        ratio_against: RatioAgainst::Sampler,
        loss: LossSettings::default(),
        ..config(&run)
    };
    let groups = &batches(&run, &config, model.config.vocab_size)[0];
    let metrics = Trainer::new(&config, 1, &model)
        .unwrap()
        .step(groups, 0)
        .unwrap();
    let largest = metrics["sampling/importance_sampling_ratio/max"];
    assert!(largest > config.loss.sampler_clip_max.unwrap(), "{largest}");
}
