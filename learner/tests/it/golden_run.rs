//! A whole run of TRL 1.16.0's `GRPOTrainer` replayed by the trainer (`tests/golden/README.md`): its rows, divisor,
//! advantages, rates, clipping and updates. Only the completions and rewards are TRL's; the micro-batches are not.

use std::{path::Path, sync::Arc};

use learner::{
    LearnerConfig,
    config::RatioAgainst,
    group::{Group, GroupRules},
    loss::{LossSettings, LossType, SamplerCorrection},
    trainer::{StepGroups, Trainer},
};
use policy::{DecoderConfig, Model, Weights};
use proto::v1::{Segment, SubmitRequest, Trajectory};
use serde_json::{Value, json};

use crate::common::small_model;

/// Prompts of one of the run's batches.
const GROUPS_PER_STEP: usize = 2;
/// Stands for a sampler's log-probs, of which TRL kept none; far below what the policy gives its likelier tokens.
const RECORDED_LOGPROB: f32 = -10.0;

fn run() -> Value {
    serde_json::from_str(include_str!("../golden/dapo_run.json")).unwrap()
}

/// The run's base; its texts do not matter here.
fn model() -> Model {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/golden/models");
    let folder = models.join("qwen3_tied");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    let cpu = candle_core::Device::Cpu;
    Model {
        weights: Weights::load(&folder, &config, &cpu, candle_core::DType::F32).unwrap(),
        config,
        ..small_model(1)
    }
}

fn config(run: &Value) -> LearnerConfig {
    let (options, optimizer) = (&run["options"], &run["optimizer"]);
    let mut config: LearnerConfig = serde_json::from_value(json!({
        "steps": optimizer["max_steps"],
        "groups_per_step": GROUPS_PER_STEP,
        "group_size": options["num_generations"],
        "micro_batch_tokens": 64,
        "rewards": {"correct": 0.0, "shaping": 0.0, "return": 1.0},
        "advantage": {"scale_rewards": options["scale_rewards"]},
        "loss": {"loss_type": options["loss_type"], "epsilon": options["epsilon"], "beta": options["beta"]},
        "optimizer": {
            "learning_rate": optimizer["lr"],
            "weight_decay": optimizer["weight_decay"],
            "adam_beta1": optimizer["betas"][0],
            "adam_beta2": optimizer["betas"][1],
            "adam_epsilon": optimizer["eps"],
            "max_grad_norm": optimizer["max_grad_norm"]
        },
        "rollout": {"max_completion_tokens": 16, "max_context_tokens": 64}
    }))
    .unwrap();
    config.ratio_against = RatioAgainst::Learner;
    config.loss.sampler_correction = SamplerCorrection::Off;
    config.validate().unwrap();
    config
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

fn trajectory(member: usize, prompt: &[u32], completion: &Value) -> Trajectory {
    let sampled: Vec<u8> = numbers(&completion["env_mask"]);
    let tokens = [prompt, &numbers::<u32>(&completion["ids"])].concat();
    Trajectory {
        member: member as u32,
        segments: vec![Segment {
            mask: [vec![0; prompt.len()], sampled].concat(),
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
    Arc::new(Group::new(request, rules).unwrap())
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
        left_out: Vec::new(),
    };
    groups.chunks(GROUPS_PER_STEP).map(step).collect()
}

fn assert_close(name: &str, got: f64, want: f64, absolute: f64, relative: f64) {
    let allowed = absolute + relative * want.abs();
    assert!((got - want).abs() <= allowed, "{name}: {got} != {want}");
}

#[test]
fn a_run_of_trl_s_is_made_again() {
    let (run, model) = (run(), model());
    let config = config(&run);
    let mut trainer = Trainer::new(&config, &model).unwrap();
    let batches = batches(&run, &config, model.config.vocab_size);
    let steps = run["steps"].as_array().unwrap();
    assert_eq!(batches.len(), steps.len());
    for (version, (groups, step)) in batches.iter().zip(steps).enumerate() {
        let metrics = trainer.step(groups, version as u64).unwrap();
        let want = |name: &str| step[name].as_f64().unwrap();
        assert_close("loss", metrics["loss"], want("loss"), 2e-5, 1e-4);
        assert_close("norm", metrics["grad_norm"], want("grad_norm"), 0.0, 1e-4);
        assert_eq!(metrics["learning_rate"], want("learning_rate"));
    }
    for (name, want) in run["params_after"].as_object().unwrap() {
        let values = &trainer.network.parameters()[name].values;
        let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
        assert_close(
            name,
            squares.sqrt(),
            want["l2"].as_f64().unwrap(),
            0.0,
            1e-5,
        );
        for (got, want) in values.iter().zip(numbers::<f64>(&want["first"])) {
            assert_close(name, f64::from(*got), want, 5e-5, 0.0);
        }
    }
}

/// The policy has not moved yet, so the two losses differ by their divisors alone.
#[test]
fn dr_grpo_divides_by_its_rows_and_length() {
    let (run, model) = (run(), model());
    let mut config = config(&run);
    config.loss.loss_type = LossType::DrGrpo;
    let first = &run["steps"][0];
    let sum = first["loss"].as_f64().unwrap() * first["tokens"].as_f64().unwrap();
    for (given, length) in [(Some(16), 16.0), (None, 64.0)] {
        config.loss.dr_grpo_length = given;
        let groups = &batches(&run, &config, model.config.vocab_size)[0];
        let mut trainer = Trainer::new(&config, &model).unwrap();
        let loss = trainer.step(groups, 0).unwrap()["loss"];
        assert_close("loss", loss, sum / (8.0 * length), 2e-5, 1e-4);
    }
}

#[test]
fn a_ratio_against_the_sampler_is_reported_as_it_is() {
    let (run, model) = (run(), model());
    let config = LearnerConfig {
        ratio_against: RatioAgainst::Sampler,
        loss: LossSettings::default(),
        ..config(&run)
    };
    let groups = &batches(&run, &config, model.config.vocab_size)[0];
    let metrics = Trainer::new(&config, &model)
        .unwrap()
        .step(groups, 0)
        .unwrap();
    let largest = metrics["sampling/importance_sampling_ratio/max"];
    assert!(largest > config.loss.sampler_clip_max.unwrap(), "{largest}");
}
