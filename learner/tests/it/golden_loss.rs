//! Advantages, losses, gradients and metrics against TRL 1.16.0's own output (`tests/golden/README.md`).

use learner::{
    advantage::{AdvantageSettings, advantages},
    loss::{
        LossInput, LossSettings, LossStats, LossType, SamplerCorrection, SamplingStats, Scale,
        loss, sampling_stats,
    },
};
use serde_json::Value;

const CASES: &str = include_str!("../golden/grpo_cases.json");

fn cases() -> Vec<Value> {
    let file: Value = serde_json::from_str(CASES).unwrap();
    file["cases"].as_array().unwrap().clone()
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn vector(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap_or(f64::NAN))
        .collect()
}

fn matrix(value: &Value) -> Option<Vec<Vec<f64>>> {
    Some(value.as_array()?.iter().map(vector).collect())
}

fn enumeration<T: serde::de::DeserializeOwned>(options: &Value, name: &str) -> T {
    serde_json::from_value(options[name].clone()).unwrap()
}

fn settings(options: &Value) -> LossSettings {
    let f = |name: &str| options[name].as_f64().unwrap();
    LossSettings {
        loss_type: enumeration(options, "loss_type"),
        clip_low: f("epsilon"),
        clip_high: number(&options["epsilon_high"]),
        dr_grpo_length: None,
        delta: number(&options["delta"]),
        ratio_level: enumeration(options, "importance_sampling_level"),
        kl_coef: f("beta"),
        kl_bias_correction: options["use_bias_correction_kl"].as_bool().unwrap(),
        sampler_correction: if options["use_sampler_correction"].as_bool().unwrap() {
            enumeration(options, "vllm_importance_sampling_mode")
        } else {
            SamplerCorrection::Off
        },
        sampler_clip_min: number(&options["vllm_importance_sampling_clip_min"]),
        sampler_clip_max: number(&options["vllm_importance_sampling_clip_max"]),
        off_policy_mask_threshold: number(&options["off_policy_mask_threshold"]),
        top_entropy_quantile: f("top_entropy_quantile"),
        entropy_coef: f("entropy_coef"),
        sapo_temperature_pos: f("sapo_temperature_pos"),
        sapo_temperature_neg: f("sapo_temperature_neg"),
        vespo_k_pos: f("vespo_k_pos"),
        vespo_lambda_pos: f("vespo_lambda_pos"),
        vespo_k_neg: f("vespo_k_neg"),
        vespo_lambda_neg: f("vespo_lambda_neg"),
        mask_truncated_completions: options["mask_truncated_completions"].as_bool().unwrap(),
    }
}

/// Equal to `tolerance` of the larger, with `floor` as the smallest scale.
fn close(got: f64, want: f64, tolerance: f64, floor: f64) -> bool {
    got == want || (got - want).abs() <= tolerance * want.abs().max(got.abs()).max(floor)
}

fn golden_advantages(case: &Value) -> learner::advantage::Advantages {
    let (options, inputs) = (&case["options"], &case["inputs"]);
    let rewards: Vec<Vec<Option<f64>>> = inputs["rewards_per_func"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row.as_array().unwrap().iter().map(number).collect())
        .collect();
    let settings = AdvantageSettings {
        scale_rewards: enumeration(options, "scale_rewards"),
        aggregation: enumeration(options, "multi_objective_aggregation"),
    };
    let group_size = options["num_generations"].as_u64().unwrap() as usize;
    advantages(
        &rewards,
        &vector(&inputs["reward_weights"]),
        group_size,
        settings,
    )
}

#[test]
fn advantages_equal_trl() {
    for case in cases() {
        let id = &case["id"];
        let got = golden_advantages(&case);
        let want = vector(&case["expected"]["advantages"]);
        for (row, (got, want)) in got.advantages.iter().zip(&want).enumerate() {
            assert!(
                close(*got, *want, 1e-10, 1e-6),
                "{id} row {row}: {got} != {want}"
            );
        }
        let metrics = &case["expected"]["generation_metrics"];
        for (name, got) in [
            ("reward", got.reward_mean),
            ("reward_std", got.reward_std),
            ("frac_reward_zero_std", got.zero_std_share),
        ] {
            match metrics[name].as_f64() {
                Some(want) => {
                    assert!(close(got, want, 1e-6, 1e-6), "{id} {name}: {got} != {want}");
                }
                None => assert!(got.is_nan(), "{id} {name}: {got} should be undefined"),
            }
        }
    }
}

/// The loss tokens of rows `first..last`, and where each stood in its row.
struct Kept {
    rows: Vec<usize>,
    places: Vec<(usize, usize)>,
}

impl Kept {
    fn new(mask: &[Vec<f64>], first: usize, last: usize) -> Self {
        let mut kept = Self {
            rows: Vec::new(),
            places: Vec::new(),
        };
        for (row, row_mask) in mask.iter().enumerate().take(last).skip(first) {
            let before = kept.places.len();
            let set = (0..row_mask.len()).filter(|&t| row_mask[t] != 0.0);
            kept.places.extend(set.map(|t| (row, t)));
            kept.rows.push(kept.places.len() - before);
        }
        kept
    }

    fn pick(&self, values: &[Vec<f64>]) -> Vec<f64> {
        self.places.iter().map(|&(row, t)| values[row][t]).collect()
    }

    fn pick_from(&self, value: &Value) -> Option<Vec<f64>> {
        matrix(value).map(|values| self.pick(&values))
    }
}

/// TRL's divisors for one of its micro-batches.
fn scale(case: &Value, settings: &LossSettings, kept: &Kept) -> Scale {
    let options = &case["options"];
    let training = options["training"].as_bool().unwrap();
    let f = |name: &str| options[name].as_f64().unwrap();
    let accumulation = if training {
        f("gradient_accumulation_steps")
    } else {
        1.0
    };
    let per_generation = if training {
        f("steps_per_generation")
    } else {
        1.0
    };
    let (rows, longest) = (kept.rows.len() as f64, f("max_completion_length"));
    let divisor = match settings.loss_type {
        LossType::Dapo | LossType::Cispo | LossType::Vespo => {
            let items = case["expected"]["num_items_in_batch"].as_f64().unwrap();
            settings.divisor(rows, items, longest) * accumulation / per_generation
        }
        _ => settings.divisor(rows, kept.places.len() as f64, longest) * accumulation,
    };
    Scale {
        divisor,
        entropy_share: 1.0 / accumulation,
    }
}

#[test]
fn losses_gradients_and_metrics_equal_trl() {
    for case in cases() {
        let settings = settings(&case["options"]);
        let mask = matrix(&case["expected"]["loss_mask"]).unwrap();
        let advantages = golden_advantages(&case).advantages;
        let per_token = matrix(&case["inputs"]["advantages_override"])
            .unwrap_or_else(|| advantages.iter().map(|a| vec![*a; mask[0].len()]).collect());
        for micro in case["expected"]["micro_batches"].as_array().unwrap() {
            let range: Vec<usize> = serde_json::from_value(micro["rows"].clone()).unwrap();
            let kept = Kept::new(&mask, range[0], range[1]);
            check_micro_batch(&case, micro, &settings, &kept, &per_token, range[0]);
        }
        check_sampling(&case, &settings, &mask);
    }
}

fn check_micro_batch(
    case: &Value,
    micro: &Value,
    settings: &LossSettings,
    kept: &Kept,
    advantages: &[Vec<f64>],
    first: usize,
) {
    let (id, inputs) = (&case["id"], &case["inputs"]);
    let old = kept.pick_from(&inputs["old_per_token_logps"]);
    let sampler = kept.pick_from(&inputs["sampling_per_token_logps"]);
    let reference = kept.pick_from(&inputs["ref_per_token_logps"]);
    let input = LossInput {
        rows: &kept.rows,
        logprobs: &kept.pick_from(&inputs["per_token_logps"]).unwrap(),
        old: old.as_deref(),
        sampler: sampler.as_deref(),
        reference: reference.as_deref(),
        entropies: &kept.pick_from(&inputs["entropies"]).unwrap(),
        advantages: &kept.pick(advantages),
    };
    let scale = scale(case, settings, kept);
    let got = loss(&input, settings, scale);

    let want = micro["loss"].as_f64().unwrap();
    assert!(
        close(got.loss, want, 1e-10, 1e-3),
        "{id} loss: {} != {want}",
        got.loss
    );
    check_gradient(
        id,
        micro,
        "grad_per_token_logps",
        kept,
        &got.d_logprobs,
        first,
    );
    if let Some(d_entropies) = &got.d_entropies {
        check_gradient(id, micro, "grad_entropies", kept, d_entropies, first);
    } else {
        assert!(
            micro["grad_entropies"].is_null(),
            "{id}: no gradient of the entropies"
        );
    }
    check_metrics(id, micro, settings, &got.stats, case);
}

fn check_gradient(id: &Value, micro: &Value, name: &str, kept: &Kept, got: &[f64], first: usize) {
    let want = matrix(&micro[name]).unwrap();
    let largest = want
        .iter()
        .flatten()
        .fold(0.0_f64, |max, g| max.max(g.abs()));
    let mut expected_elsewhere = want.clone();
    for (&(row, t), got) in kept.places.iter().zip(got) {
        let want = want[row - first][t];
        expected_elsewhere[row - first][t] = 0.0;
        assert!(
            close(*got, want, 1e-10, largest),
            "{id} {name} [{row},{t}]: {got} != {want}"
        );
    }
    let elsewhere = expected_elsewhere.iter().flatten().all(|g| *g == 0.0);
    assert!(elsewhere, "{id} {name}: TRL has gradient on a masked token");
}

fn check_metrics(
    id: &Value,
    micro: &Value,
    settings: &LossSettings,
    stats: &LossStats,
    case: &Value,
) {
    let got = stats.metrics();
    for (name, want) in micro["metrics"].as_object().unwrap() {
        if name == "entropy_coef" {
            continue;
        }
        let Some(mut want) = want.as_f64() else {
            assert!(!got.contains_key(name), "{id} {name} should be undefined");
            continue;
        };
        let by_rows = !matches!(
            settings.loss_type,
            LossType::Dapo | LossType::Cispo | LossType::Vespo
        );
        if name == "policy_loss" && by_rows {
            want /= case["options"]["gradient_accumulation_steps"]
                .as_f64()
                .unwrap();
        }
        let tolerance = if name.contains("clip") { 1e-6 } else { 1e-9 };
        let value = got
            .get(name)
            .unwrap_or_else(|| panic!("{id}: no metric {name}"));
        assert!(
            close(*value, want, tolerance, 1e-3),
            "{id} {name}: {value} != {want}"
        );
    }
}

fn check_sampling(case: &Value, settings: &LossSettings, mask: &[Vec<f64>]) {
    if settings.sampler_correction == SamplerCorrection::Off {
        return;
    }
    let kept = Kept::new(mask, 0, mask.len());
    let old = kept
        .pick_from(&case["inputs"]["old_per_token_logps"])
        .unwrap();
    let sampler = kept
        .pick_from(&case["inputs"]["sampling_per_token_logps"])
        .unwrap();
    let stats: SamplingStats = sampling_stats(&old, &sampler, &kept.rows, settings);
    for (name, got) in stats.metrics() {
        let want = case["expected"]["generation_metrics"][&name]
            .as_f64()
            .unwrap();
        assert!(
            close(got, want, 1e-9, 1e-3),
            "{} {name}: {got} != {want}",
            case["id"]
        );
    }
}
