//! Tests settings: TRL's names and defaults, and errors that name the field.

use learner::{
    LearnerConfig,
    loss::{LossSettings, LossType},
    ranks::{RankSettings, ReduceBy},
    schedule::ScheduleKind,
};
use serde_json::json;
use sha2::{Digest, Sha256};

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
fn trl_names_are_accepted() {
    let config: LearnerConfig = serde_json::from_value(json!({
        "max_steps": 7, "num_generations": 4,
        "advantage": {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"},
        "loss": {
            "loss_type": "dr_grpo", "max_completion_length": 300, "epsilon": 0.1, "epsilon_high": 0.28, "beta": 0.04,
            "importance_sampling_level": "sequence", "use_bias_correction_kl": false,
            "vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": 2.0
        },
        "schedule": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5},
        "rollout": {"max_completion_tokens": 64, "sampling": {"temperature": 0.7}},
        "rewards": {"correct": 0.5, "return": 1.0},
        "checkpoint": {"save_steps": 5, "save_total_limit": 3}
    }))
    .unwrap();
    config.validate().unwrap();
    assert_eq!((config.steps, config.group_size), (7, 4));
    assert_eq!(
        (
            config.loss.clip_low,
            config.loss.clip_high.unwrap(),
            config.loss.kl_coef
        ),
        (0.1, 0.28, 0.04)
    );
    let divisor = |config: &LearnerConfig| {
        let context_tokens = config.rollout.max_context_tokens;
        config.loss.divisor(1.0, 1.0, context_tokens)
    };
    assert_eq!(divisor(&config), 300.0);
    let mut without_length = LearnerConfig::default();
    without_length.loss.loss_type = LossType::DrGrpo;
    assert_eq!(divisor(&without_length), 4096.0);
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

const WRONG_SETTINGS: [WrongSetting; 25] = [
    (|c| c.steps = 0, "steps"),
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

/// Who asks for NCCL is told where the program is built without it.
#[test]
fn nccl_is_refused_where_it_is_not_built_in() {
    let mut config = LearnerConfig::default();
    config.ranks.reduce = ReduceBy::Nccl;
    let fault = config.validate().err().map(|fault| fault.to_string());
    let is_refused = fault.is_some_and(|fault| fault.contains("ranks.reduce: is nccl"));
    assert_eq!(is_refused, !cfg!(feature = "nccl"));
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

/// A number that the loss ignores would look like a setting that has an effect.
#[test]
fn numbers_of_another_loss_are_refused() {
    for (numbers, field) in [
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
            json!({"type": "grpo", "vespo_k_neg": 1.0}),
            "loss.vespo_k_neg",
        ),
        (json!({"max_completion_length": 300}), "loss.dr_grpo_length"),
    ] {
        let loss: LossSettings = serde_json::from_value(numbers).unwrap();
        loss.validate()
            .expect("settings of earlier versions may hold them");
        let fault = loss.refuse_unused().unwrap_err().to_string();
        assert!(
            fault.contains(field) && fault.contains("leave it out"),
            "{fault}"
        );
    }
    let capped = json!({"loss_type": "cispo", "clip_high": 0.28});
    let loss: LossSettings = serde_json::from_value(capped).unwrap();
    loss.validate().expect("earlier versions accepted it");
    let fault = loss.refuse_unused().unwrap_err().to_string();
    assert!(fault.contains("loss.clip_high"), "{fault}");
    let complete = json!({"loss_type": "dr_grpo", "vespo_k_pos": 2.0, "sapo_temperature_pos": 1.0});
    let loss: LossSettings = serde_json::from_value(complete).unwrap();
    loss.refuse_unused().unwrap();
}

#[test]
fn settings_of_the_learner_that_have_no_effect_are_refused() {
    for (settings, field) in [
        (
            json!({"loss": {"vllm_importance_sampling_mode": "token_truncate"}}),
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
        config
            .validate()
            .expect("settings of earlier versions may hold them");
        let fault = config.refuse_unused().unwrap_err().to_string();
        assert!(fault.contains(field), "{settings}: {fault}");
    }
    let used = json!({"ratio_against": "learner",
        "loss": {"vllm_importance_sampling_mode": "token_truncate"}});
    let config: LearnerConfig = serde_json::from_value(used).unwrap();
    config.refuse_unused().unwrap();
    LearnerConfig::default().refuse_unused().unwrap();
}

/// What the first version that wrote checkpoints serialised, so that its runs resume.
#[test]
fn the_fingerprint_keeps_its_value() {
    let config = LearnerConfig::default();
    let json = concat!(
        r#"{"run_seed":7,"steps":0,"groups_per_step":16,"group_size":8,"max_groups_per_step":0,"#,
        r#""refill_zero_spread":true,"max_staleness":0,"lease_seconds":0,"num_iterations":1,"#,
        r#""ratio_against":"sampler","micro_batch_tokens":4096,"gradient_checkpointing":false,"#,
        r#""share_prefixes":true,"threads":0,"rewards":{"correct":1.0,"shaping":1.0,"return":0.0},"#,
        r#""advantage":{"scale_rewards":"group","aggregation":"sum_then_normalize"},"#,
        r#""loss":{"loss_type":"dapo","clip_low":0.2,"clip_high":null,"delta":null,"#,
        r#""ratio_level":"token","kl_coef":0.0,"kl_bias_correction":true,"#,
        r#""sampler_correction":"sequence_mask","sampler_clip_min":null,"sampler_clip_max":3.0,"#,
        r#""off_policy_mask_threshold":null,"top_entropy_quantile":1.0,"entropy_coef":0.0,"#,
        r#""sapo_temperature_pos":1.0,"sapo_temperature_neg":1.05,"vespo_k_pos":2.0,"#,
        r#""vespo_lambda_pos":3.0,"vespo_k_neg":3.0,"vespo_lambda_neg":2.0,"#,
        r#""mask_truncated_completions":false},"#,
        r#""optimizer":{"learning_rate":1e-6,"weight_decay":0.0,"adam_beta1":0.9,"#,
        r#""adam_beta2":0.999,"adam_epsilon":1e-8,"max_grad_norm":1.0},"#,
        r#""schedule":{"kind":"constant","warmup_steps":0,"min_factor":0.0},"#,
        r#""rollout":{"sampling":{"temperature":1.0,"top_k":0,"top_p":1.0,"min_p":0.0},"#,
        r#""max_completion_tokens":512,"max_context_tokens":4096,"step_budget":15,"#,
        r#""reward_profile":"","shots":0},"checkpoint":{"every_steps":10,"keep_last":2}}"#,
    );
    let digest = hex::encode(Sha256::digest(json));
    assert_eq!(config.fingerprint(7), digest);
}
