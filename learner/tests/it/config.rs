//! Tests settings: TRL's defaults, and errors that name the field.

use std::collections::BTreeMap;

use crate::common::{ARGUMENTS, small_config, small_model};
use candle_core::Device;
use learner::{
    Learner, LearnerConfig,
    loss::{LossSettings, LossType},
    optimizer::Gradients,
    ranks::{RankSettings, ReduceBy, sum_alone},
    schedule::ScheduleKind,
};
use serde_json::json;

#[test]
fn defaults_are_usable_and_trl_s() {
    let config = LearnerConfig::default();
    config.validate().unwrap();
    assert_eq!(config.group_size, 8);
    assert_eq!(config.optimizer.learning_rate, 1e-6);
    let LossSettings {
        loss_type,
        clip_low,
        kl_coef,
        sampler_clip_max,
        ..
    } = config.loss;
    assert_eq!(
        (loss_type, clip_low, kl_coef, sampler_clip_max),
        (LossType::Dapo, 0.2, 0.0, Some(3.0))
    );
}

#[test]
fn what_is_written_is_read_again() {
    let config: LearnerConfig = serde_json::from_value(json!({
        "steps": 7,
        "group_size": 4,
        "advantage": {"aggregation": "normalize_then_sum"},
        "loss": {"loss_type": "dr_grpo", "dr_grpo_length": 300, "clip_high": 0.28},
        "schedule": {"kind": "constant_with_warmup", "warmup_steps": 5},
        "rollout": {"max_completion_tokens": 64, "sampling": {"temperature": 0.7}},
        "rewards": {"correct": 0.5, "return": 1.0}
    }))
    .unwrap();
    config.validate().unwrap();
    assert_eq!((config.steps, config.group_size), (7, 4));
    assert_eq!(config.schedule.kind, ScheduleKind::Constant);
    assert_eq!(config.rewards.weights(), [0.5, 1.0, 1.0, 0.0, 0.0]);
    let again = serde_json::to_value(&config).unwrap();
    assert_eq!(
        serde_json::from_value::<LearnerConfig>(again).unwrap(),
        config
    );
}

#[test]
fn unknown_fields_are_named() {
    let fault =
        serde_json::from_value::<LearnerConfig>(json!({"loss": {"epsilonn": 0.1}})).unwrap_err();
    assert!(fault.to_string().contains("epsilonn"), "{fault}");
    let whole_episode = json!({"rollout": {"max_completion_length": 64}});
    let fault = serde_json::from_value::<LearnerConfig>(whole_episode).unwrap_err();
    assert!(
        fault.to_string().contains("`max_completion_tokens`"),
        "{fault}"
    );
}

/// A change to the settings, and the field that the error names.
type WrongSetting = (fn(&mut LearnerConfig), &'static str);

const WRONG_SETTINGS: [WrongSetting; 26] = [
    (|c| c.steps = 0, "steps"),
    (|c| c.steps = 1_000_000_000, "steps"),
    (|c| c.groups_per_step = 0, "groups_per_step"),
    (|c| c.group_size = 1, "group_size"),
    (|c| c.ranks.count = 0, "ranks.count"),
    (|c| c.ranks.timeout_seconds = 0, "ranks.timeout_seconds"),
    (|c| c.max_groups_per_step = 3, "max_groups_per_step"),
    (|c| c.micro_batch_tokens = 100, "micro_batch_tokens"),
    (|c| c.loss.clip_low = 1.5, "loss.clip_low"),
    (
        |c| c.loss.top_entropy_quantile = f64::NAN,
        "loss.top_entropy_quantile",
    ),
    (
        |c| c.optimizer.learning_rate = 0.0,
        "optimizer.learning_rate",
    ),
    (
        |c| c.optimizer.adam_epsilon = 1e-60,
        "optimizer.adam_epsilon",
    ),
    (
        |c| c.optimizer.adam_beta2 = 0.999_999_999_9,
        "optimizer.adam_beta2",
    ),
    (|c| c.optimizer.adam_beta1 = 1.0, "optimizer.adam_beta1"),
    (
        |c| c.optimizer.weight_decay = f64::INFINITY,
        "optimizer.weight_decay",
    ),
    (|c| c.rewards.shaping = f64::NAN, "rewards.shaping"),
    (
        |c| c.loss.sampler_clip_max = Some(0.0),
        "loss.sampler_clip_max",
    ),
    (
        |c| c.loss.sampler_clip_min = Some(4.0),
        "loss.sampler_clip_min",
    ),
    (|c| c.loss.vespo_k_pos = f64::INFINITY, "loss.vespo_k_pos"),
    (|c| c.loss.delta = Some(0.0), "loss.delta"),
    (|c| c.loss.dr_grpo_length = Some(0), "loss.dr_grpo_length"),
    (|c| c.loss.loss_type = LossType::Cispo, "loss.clip_high"),
    (|c| c.rollout.sampling.temperature = 0.0, "temperature"),
    (
        |c| c.rollout.max_context_tokens = 512,
        "rollout.max_context_tokens",
    ),
    (|c| c.rollout.shots = 2, "rollout.shots"),
    (
        |c| c.rewards = serde_json::from_value(json!({"correct": 0, "shaping": 0})).unwrap(),
        "rewards",
    ),
];

#[test]
fn what_cannot_be_used_is_named_with_its_remedy() {
    for (change, field) in WRONG_SETTINGS {
        let mut config = LearnerConfig::default();
        change(&mut config);
        let fault = config.validate().unwrap_err().to_string();
        assert!(fault.contains(field), "{field}: {fault}");
    }
}

/// Who asks for NCCL is told where the program is built without it, or the device is the CPU.
#[test]
fn nccl_is_refused_where_it_is_not_built_in() {
    let mut config = LearnerConfig::default();
    config.ranks.reduce = ReduceBy::Nccl;
    let fault = config.validate().err().map(|fault| fault.to_string());
    let is_refused = fault.is_some_and(|fault| fault.contains("ranks.reduce: is nccl"));
    assert_eq!(is_refused, !cfg!(feature = "nccl"));
    let summed = sum_alone(&Device::Cpu, &BTreeMap::new(), Gradients::new());
    let fault = summed.err().unwrap().to_string();
    assert!(fault.contains("ranks.reduce: is nccl"), "{fault}");
}

#[test]
fn the_fingerprint_follows_what_shapes_the_weights() {
    let base = LearnerConfig::default();
    let same = [
        LearnerConfig {
            lease_seconds: 5,
            ..base.clone()
        },
        LearnerConfig {
            steps: 99,
            ..base.clone()
        },
    ];
    assert!(
        same.iter()
            .all(|config| config.fingerprint(42) == base.fingerprint(42))
    );
    let mut cosine = base.clone();
    cosine.schedule.kind = ScheduleKind::Cosine;
    let longer = LearnerConfig {
        steps: 99,
        ..cosine.clone()
    };
    assert_ne!(
        cosine.fingerprint(42),
        longer.fingerprint(42),
        "the rate depends on the steps"
    );
    assert_ne!(base.fingerprint(1), base.fingerprint(42));
    let ranks = |count, timeout_seconds| {
        let ranks = RankSettings {
            count,
            timeout_seconds,
            ..RankSettings::default()
        };
        LearnerConfig {
            ranks,
            ..base.clone()
        }
        .fingerprint(42)
    };
    assert_ne!(ranks(2, 9), base.fingerprint(42), "ranks order the sums");
    assert_eq!(ranks(2, 9), ranks(2, 99));
    assert_eq!(ranks(1, 9), base.fingerprint(42));
}

/// With some of them no token would be trained on which learner and sampler agree.
#[test]
fn bounds_that_leave_out_a_ratio_of_1_are_refused() {
    for (numbers, problem) in [
        (json!({"delta": 0.9}), "loss.delta: is 0.9, but"),
        (
            json!({"delta": 1.2}),
            "loss.delta: is 1.2, but a cap up to 1 + clip_high (1.2) takes the gradient of tokens \
             that the clip leaves; give a larger number",
        ),
        (
            json!({"sampler_clip_max": 0.9}),
            "loss.sampler_clip_max: is 0.9; give a number from 1 up",
        ),
        (
            json!({"sampler_clip_min": 1.1}),
            "loss.sampler_clip_min: is 1.1; give a number from 0 to 1",
        ),
    ] {
        let loss: LossSettings = serde_json::from_value(numbers).unwrap();
        let fault = loss.validate().unwrap_err().to_string();
        assert!(fault.contains(problem), "{fault}");
    }
    let usable = json!({"delta": 1.3, "clip_high": 0.28, "sampler_clip_min": 1.0,
        "sampler_clip_max": 1.0});
    let loss: LossSettings = serde_json::from_value(usable).unwrap();
    loss.validate().unwrap();
}

#[test]
fn usable_settings_that_hardly_anybody_means_are_warned_of() {
    let warnings = |settings: serde_json::Value| {
        let config: LearnerConfig = serde_json::from_value(settings).unwrap();
        config.validate().unwrap();
        config.warnings()
    };
    for usual in [
        json!({}),
        json!({"schedule": {"kind": "linear", "warmup_steps": 39, "min_factor": 0.1}}),
        json!({"steps": 2, "num_iterations": 2, "schedule": {"warmup_steps": 3}}),
        json!({"ratio_against": "learner", "max_staleness": 2, "num_iterations": 2,
            "loss": {"clip_high": 0.3}}),
        json!({"ratio_against": "learner", "loss": {"loss_type": "cispo", "clip_high": 5.0}}),
        json!({"max_staleness": 2, "loss": {"clip_low": 0.1, "sampler_correction": "off"}}),
    ] {
        assert_eq!(warnings(usual), Vec::<String>::new());
    }
    for (unusual, named) in [
        (
            json!({"rollout": {"sampling": {"top_k": 50, "min_p": 0.05}}}),
            "filters tokens by top_k, min_p, but",
        ),
        (
            json!({"rollout": {"sampling": {"top_p": 0.9}}}),
            "filters tokens by top_p, but",
        ),
        (
            json!({"schedule": {"warmup_steps": 40}}),
            "learner.schedule.warmup_steps is 40, but the run makes 40 updates",
        ),
        (
            json!({"schedule": {"min_factor": 0.1}}),
            "learner.schedule.min_factor is 0.1, but",
        ),
        (
            json!({"ratio_against": "learner", "loss": {"clip_high": 0.3, "delta": 4.0}}),
            "learner.loss sets clip_high, delta, but",
        ),
        (
            json!({"ratio_against": "learner",
                "loss": {"loss_type": "sapo", "sapo_temperature_neg": 2.0}}),
            "learner.loss sets sapo_temperature_neg, but",
        ),
        (
            json!({"ratio_against": "learner", "max_staleness": 2,
                "loss": {"sampler_correction": "off"}}),
            "learner.max_staleness is 2, but",
        ),
    ] {
        let found = warnings(unusual);
        assert!(found.len() == 1 && found[0].contains(named), "{found:?}");
    }
}

/// A setting that the loss ignores would look as if it had an effect.
#[test]
fn settings_that_the_loss_does_not_use_are_refused() {
    for (settings, field) in [
        (
            json!({"sapo_temperature_pos": 2.0}),
            "loss.sapo_temperature_pos",
        ),
        (
            json!({"loss_type": "vespo", "clip_high": 0.3}),
            "loss.clip_high",
        ),
        (json!({"loss_type": "sapo", "delta": 4.0}), "loss.delta"),
        (
            json!({"loss_type": "grpo", "vespo_k_neg": 1.0}),
            "loss.vespo_k_neg",
        ),
        (json!({"dr_grpo_length": 300}), "loss.dr_grpo_length"),
        (
            json!({"sampler_correction": "off", "sampler_clip_max": 2.0}),
            "loss.sampler_clip_max",
        ),
        (
            json!({"sampler_correction": "off", "sampler_clip_min": 0.5}),
            "loss.sampler_clip_min",
        ),
        (
            json!({"kl_bias_correction": false}),
            "loss.kl_bias_correction: is set, but kl_coef = 0",
        ),
        (
            json!({"loss_type": "vespo", "ratio_level": "sequence"}),
            "loss.ratio_level",
        ),
        (
            json!({"loss_type": "vespo", "ratio_level": "sequence", "kl_coef": 0.1,
                "kl_bias_correction": false}),
            "loss.ratio_level",
        ),
    ] {
        let loss: LossSettings = serde_json::from_value(settings).unwrap();
        let fault = loss.validate().unwrap_err().to_string();
        assert!(
            fault.contains(field) && fault.contains("leave it out"),
            "{fault}"
        );
    }
    let capped = json!({"loss_type": "cispo", "clip_high": 0.28});
    let loss: LossSettings = serde_json::from_value(capped).unwrap();
    let fault = loss.validate().unwrap_err().to_string();
    assert!(fault.contains("loss.clip_high"), "{fault}");
    for usable in [
        // A run's file has all settings, also the defaults.
        json!({"loss_type": "dr_grpo", "vespo_k_pos": 2.0, "sapo_temperature_pos": 1.0}),
        json!({"loss_type": "vespo", "ratio_level": "token", "kl_coef": 0.0,
            "kl_bias_correction": true, "sampler_correction": "off", "sampler_clip_max": 3.0}),
        json!({"loss_type": "vespo", "ratio_level": "sequence", "kl_coef": 0.1}),
        json!({"kl_coef": 0.1, "kl_bias_correction": false, "sampler_clip_max": 1e300}),
    ] {
        let loss: LossSettings = serde_json::from_value(usable).unwrap();
        loss.validate().unwrap();
    }
}

#[test]
fn a_run_without_training_questions_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (config, model) = (small_config(), small_model(1));
    let opened = Learner::open(config, ARGUMENTS, model, Vec::new(), folder.path());
    let fault = opened.err().unwrap().to_string();
    let expected = "setting questions: are none of the split `train`, on which a run trains; ";
    assert!(fault.starts_with(expected), "{fault}");
}

#[test]
fn settings_of_the_learner_that_have_no_effect_are_refused() {
    for (settings, field) in [
        (
            json!({"loss": {"sampler_correction": "token_truncate"}}),
            "loss.sampler_correction",
        ),
        (
            json!({"advantage": {"aggregation": "normalize_then_sum", "scale_rewards": "none"}}),
            "advantage.scale_rewards",
        ),
        (
            json!({"dynamic_sampling": false, "oversampling": 2.0}),
            "oversampling",
        ),
    ] {
        let config: LearnerConfig = serde_json::from_value(settings.clone()).unwrap();
        let fault = config.validate().unwrap_err().to_string();
        assert!(fault.contains(field), "{settings}: {fault}");
    }
    let used = json!({"ratio_against": "learner",
        "loss": {"sampler_correction": "token_truncate"}});
    let config: LearnerConfig = serde_json::from_value(used).unwrap();
    config.validate().unwrap();
}
