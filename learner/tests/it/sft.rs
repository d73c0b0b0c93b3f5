//! Tests supervised training.

use std::path::Path;

use candle_core::{DType, Device};

use crate::common::small_model;
use learner::{
    RunArguments,
    batch::{Prefixes, Sample, micro_batches},
    network::{Network, PassSettings},
    optimizer::OptimizerSettings,
    schedule::{ScheduleKind, ScheduleSettings},
    sft::{SftConfig, SftNext, SftOutcome, train},
};
use policy::{GradientCheckpointing, Model};
use proto::v1::Segment;

/// Episodes in which each assistant token repeats the token three places before it.
fn episodes(count: u32) -> Vec<Segment> {
    let episode = |seed: u32| {
        let base = [300 + seed % 7, 320 + seed % 5, 340 + seed % 3];
        let tokens: Vec<u32> = base
            .iter()
            .cycle()
            .take(9 + (seed as usize % 4))
            .copied()
            .collect();
        let mask = (0..tokens.len()).map(|at| u8::from(at >= 3)).collect();
        Segment {
            logprobs: vec![0.0; tokens.len()],
            mask,
            tokens,
        }
    };
    (0..count).map(episode).collect()
}

const ARGUMENTS: RunArguments = RunArguments {
    seed: 42,
    threads: 1,
};

fn config() -> SftConfig {
    SftConfig {
        budget_tokens: 12_000,
        context_weight: 0.3,
        micro_batch_tokens: 40,
        optimizer: OptimizerSettings {
            learning_rate: 1e-2,
            weight_decay: 0.01,
            adam_beta2: 0.98,
            ..OptimizerSettings::default()
        },
        schedule: ScheduleSettings {
            kind: ScheduleKind::Cosine,
            warmup_steps: 5,
            min_factor: 0.05,
        },
        ..SftConfig::default()
    }
}

/// Mean negative log-likelihood of the assistant tokens, in nats.
fn held_out_loss(model: &Model, episodes: &[Segment]) -> f64 {
    let sample = |episode: &Segment| Sample {
        tokens: episode.tokens.clone().into(),
        scored: (0..episode.mask.len())
            .filter(|&at| episode.mask[at] == 1)
            .collect(),
        ..Sample::default()
    };
    let samples: Vec<Sample<'_>> = episodes.iter().map(sample).collect();
    let network =
        Network::new(&model.config, &model.weights, OptimizerSettings::default()).unwrap();
    let pass = PassSettings {
        temperature: 1.0,
        threads: 1,
        checkpointing: GradientCheckpointing::Off,
    };
    let scores = network
        .scores(&micro_batches(&samples, 64, Prefixes::Shared), pass)
        .unwrap();
    let logprobs: Vec<f64> = scores.into_iter().flat_map(|s| s.logprobs).collect();
    -logprobs.iter().sum::<f64>() / logprobs.len() as f64
}

fn go_on(_: learner::sft::SftProgress) -> SftNext {
    SftNext::Continue
}

#[test]
fn training_learns_and_generalises() {
    let model = small_model(3);
    let (all, config) = (episodes(100), config());
    let (taught, held_out) = all.split_at(80);
    let before = held_out_loss(&model, held_out);
    let mut losses = Vec::new();
    let outcome = train(&model, taught, &config, ARGUMENTS, None, &mut |progress| {
        losses.push(progress.loss);
        SftNext::Continue
    })
    .unwrap();
    let model = Model {
        weights: outcome.weights,
        ..model
    };
    let after = held_out_loss(&model, held_out);
    assert!(before > 6.0, "random weights know nothing: {before}");
    assert!(after < 0.5 * before, "{before} -> {after}");
    assert_eq!(losses.len() as u64, outcome.steps);
    assert!(outcome.finished && outcome.tokens >= config.budget_tokens);
}

/// Baselines mask what a model did by itself with 2.
#[test]
fn a_token_with_another_mask_does_not_count() {
    let weights = |episodes: &[Segment]| {
        let settings = SftConfig {
            budget_tokens: 200,
            ..config()
        };
        let trained = train(
            &small_model(3),
            episodes,
            &settings,
            ARGUMENTS,
            None,
            &mut go_on,
        )
        .unwrap();
        trained.weights.to_bytes().unwrap()
    };
    let ignored = |token: u32| {
        let mut episodes = episodes(8);
        for episode in &mut episodes {
            // The last token is not the context of another.
            *episode.tokens.last_mut().unwrap() = token;
            *episode.mask.last_mut().unwrap() = 2;
        }
        episodes
    };
    assert!(weights(&ignored(5)) == weights(&ignored(6)));
    let mut learned = ignored(5);
    for episode in &mut learned {
        *episode.mask.last_mut().unwrap() = 1;
    }
    assert!(weights(&ignored(5)) != weights(&learned));
}

#[test]
fn threads_do_not_change_a_bit() {
    let (model, episodes) = (small_model(3), episodes(20));
    let bytes = |threads| {
        let config = SftConfig {
            budget_tokens: 800,
            ..config()
        };
        train(
            &model,
            &episodes,
            &config,
            RunArguments {
                threads,
                ..ARGUMENTS
            },
            None,
            &mut go_on,
        )
        .unwrap()
        .weights
        .to_bytes()
        .unwrap()
    };
    let one = bytes(1);
    assert!(one == bytes(2));
    assert!(one == bytes(5));
}

#[test]
fn a_training_that_is_broken_off_says_so() {
    let mut told = 0;
    let outcome = train(
        &small_model(3),
        &episodes(20),
        &config(),
        ARGUMENTS,
        None,
        &mut |progress| {
            told = progress.step;
            if progress.step == 3 {
                SftNext::Stop
            } else {
                SftNext::Continue
            }
        },
    )
    .unwrap();
    assert_eq!((told, outcome.steps, outcome.finished), (3, 3, false));
}

/// Trains, with checkpoints in `folder`. Writes one after step 2 and stops after step `last`.
fn train_until(folder: Option<&Path>, last: u64, seed: u64) -> learner::Result<SftOutcome> {
    let config = SftConfig {
        budget_tokens: 800,
        ..config()
    };
    let arguments = RunArguments { seed, ..ARGUMENTS };
    let mut next = |progress: learner::sft::SftProgress| match progress.step {
        2 => SftNext::Checkpoint,
        step if step >= last => SftNext::Stop,
        _ => SftNext::Continue,
    };
    let (model, episodes) = (small_model(3), episodes(20));
    train(&model, &episodes, &config, arguments, folder, &mut next)
}

#[test]
fn a_training_continues_from_its_checkpoint_to_the_same_weights() {
    let place = tempfile::tempdir().unwrap();
    let folder = Some(place.path());
    let whole = train_until(None, u64::MAX, 42).unwrap();
    assert!(whole.finished && whole.steps > 6);

    let part = train_until(folder, 5, 42).unwrap();
    assert_eq!((part.steps, part.finished), (5, false));
    // As after a kill: the newest checkpoint is damaged, and the one after step 2 is used.
    std::fs::remove_file(place.path().join("step_5/trainer.safetensors")).unwrap();
    // As after a kill while a checkpoint was written.
    let abandoned = place.path().join(".step_4.partial");
    std::fs::create_dir(&abandoned).unwrap();
    let rest = train_until(folder, u64::MAX, 42).unwrap();
    assert!(!abandoned.exists());
    assert!(rest.finished);
    assert_eq!((rest.steps, rest.tokens), (whole.steps, whole.tokens));
    assert!(rest.weights.to_bytes().unwrap() == whole.weights.to_bytes().unwrap());

    // A training that has ended makes no other update.
    let again = train_until(folder, 0, 42).unwrap();
    assert_eq!((again.steps, again.finished), (whole.steps, true));
    assert!(again.weights.to_bytes().unwrap() == whole.weights.to_bytes().unwrap());
}

#[test]
fn a_checkpoint_of_another_training_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = Some(place.path());
    train_until(folder, 3, 42).unwrap();
    let fault = train_until(folder, 3, 43).unwrap_err().to_string();
    assert!(fault.contains("remove the folder"), "{fault}");

    let train_with = |model: &Model, gradient_checkpointing: bool| {
        let config = SftConfig {
            budget_tokens: 800,
            gradient_checkpointing,
            ..config()
        };
        let stop = &mut |_| SftNext::Abort;
        train(model, &episodes(20), &config, ARGUMENTS, folder, stop)
    };
    let in_bf16 = Model {
        weights: small_model(3)
            .weights
            .to(&Device::Cpu, DType::BF16)
            .unwrap(),
        ..small_model(3)
    };
    let fault = train_with(&in_bf16, false).unwrap_err().to_string();
    assert!(fault.contains("remove the folder"), "{fault}");
    // It saves memory and changes no weight.
    let resumed = train_with(&small_model(3), true).unwrap();
    assert_eq!((resumed.steps, resumed.finished), (4, false));
    assert!(!place.path().join("step_4").exists(), "it was aborted");
}

#[test]
fn checkpoints_that_cannot_be_written_are_found_before_the_training() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("checkpoints");
    std::fs::write(&file, "a file").unwrap();
    let mut steps = 0;
    let mut count = |_| {
        steps += 1;
        SftNext::Continue
    };
    let (model, episodes) = (small_model(3), episodes(20));
    let trained = train(
        &model,
        &episodes,
        &config(),
        ARGUMENTS,
        Some(&file),
        &mut count,
    );
    let fault = trained.unwrap_err().to_string();
    assert!(fault.contains("checkpoints"), "{fault}");
    assert_eq!(steps, 0);
}

#[test]
fn nothing_to_learn_is_an_error() {
    let unmasked = Segment {
        tokens: vec![300, 301],
        mask: vec![0, 0],
        logprobs: vec![0.0; 2],
    };
    let config = SftConfig {
        context_weight: 0.0,
        ..config()
    };
    for episodes in [vec![], vec![unmasked]] {
        let fault = train(
            &small_model(3),
            &episodes,
            &config,
            ARGUMENTS,
            None,
            &mut go_on,
        )
        .unwrap_err();
        let expected = format!(
            "none of {} episodes has a token to learn; give demonstrations or conversations with \
             text of the assistant",
            episodes.len()
        );
        assert_eq!(fault.to_string(), expected);
    }
}

/// Several sections have these settings, and the caller names which.
#[test]
fn a_wrong_setting_is_named_as_in_its_section() {
    type Change = fn(&mut SftConfig);
    let wrong: [(Change, &str); 4] = [
        (|it| it.batch_episodes = 0, "setting batch_episodes: is 0; "),
        (|it| it.block_batches = 0, "setting block_batches: is 0; "),
        (
            |it| it.micro_batch_tokens = 0,
            "setting micro_batch_tokens: is 0; ",
        ),
        (
            |it| it.context_weight = 2.0,
            "setting context_weight: is 2; ",
        ),
    ];
    for (change, expected) in wrong {
        let mut config = config();
        change(&mut config);
        let fault = config.validate().unwrap_err().to_string();
        assert!(fault.starts_with(expected), "{fault}");
    }
}

#[test]
fn weights_that_blow_up_end_the_training() {
    let mut config = config();
    config.schedule.warmup_steps = 0;
    config.optimizer.learning_rate = 3e38;
    let fault = train(
        &small_model(3),
        &episodes(20),
        &config,
        ARGUMENTS,
        None,
        &mut go_on,
    )
    .unwrap_err();
    let fault = fault.to_string();
    assert!(fault.starts_with("update 1 is not finite"), "{fault}");
    config.optimizer.learning_rate = 1e39;
    let fault = train(
        &small_model(3),
        &episodes(20),
        &config,
        ARGUMENTS,
        None,
        &mut go_on,
    )
    .unwrap_err();
    assert!(
        fault.to_string().contains("optimizer.learning_rate"),
        "{fault}"
    );
}

#[test]
fn weights_after_a_diverged_update_are_those_before_it() {
    let model = small_model(3);
    let mut network =
        Network::new(&model.config, &model.weights, OptimizerSettings::default()).unwrap();
    let before = network.weights().to_bytes().unwrap();
    let gradients = network
        .parameters()
        .iter()
        .map(|(name, parameter)| (name.clone(), parameter.value.ones_like().unwrap()))
        .collect();
    network.update(gradients, 1e39).unwrap_err();
    assert_eq!(network.weights().to_bytes().unwrap(), before);
}
