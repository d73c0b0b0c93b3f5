//! Advantages, losses, gradients and metrics against TRL 1.16.0's own output (`tests/golden/README.md`).
//!
//! The loss is f64 by design; what it reads is f32, as the decoder gives it, and its derivatives go back in f32. So every
//! case is held to 1e-10 as it stands, to 1e-5 with inputs rounded to f32, and to 1e-5 through the kernel to the logits.

use candle_core::{Device, Tensor, Var};
use learner::{
    advantage::{AdvantageSettings, advantages},
    loss::{
        LossInput, LossOutput, LossSettings, LossStats, LossType, SamplerCorrection, SamplingStats,
        Scale, loss, sampling_stats,
    },
};
use policy::ops::token_logprobs;
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

    /// Of a table that begins with row `first`.
    fn pick_at(&self, value: &Value, first: usize) -> Vec<f64> {
        let values = matrix(value).unwrap();
        let places = self.places.iter();
        places.map(|&(row, t)| values[row - first][t]).collect()
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

/// How exact the outputs must be.
#[derive(Clone, Copy)]
struct Tolerance {
    values: f64,
    metrics: f64,
}

const F64: Tolerance = Tolerance {
    values: 1e-10,
    metrics: 1e-9,
};
const F32: Tolerance = Tolerance {
    values: 1e-5,
    metrics: 1e-5,
};

#[test]
fn losses_gradients_and_metrics_equal_trl() {
    let cases = cases();
    assert_eq!(cases.len(), 132);
    for case in cases {
        for micro in micro_batches(&case) {
            check_micro_batch(&micro, F64);
        }
        check_sampling(&case);
    }
}

#[test]
fn losses_of_rounded_log_probs_equal_trl() {
    for case in rounded_cases() {
        for micro in micro_batches(&case) {
            check_micro_batch(&micro, F32);
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
                .kept
                .pick_at(&micro.expected["grad_per_token_logps"], micro.first);
            let wanted = wanted
                .iter()
                .zip(&share_of_the_other)
                .map(|(g, share)| g * share);
            let wanted: Vec<f64> = wanted.collect();
            let largest = wanted.iter().fold(0.0_f64, |max, g| max.max(g.abs()));
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

/// The loss's gradient by the targets' logits, by way of log-probabilities from the kernel and derivatives in f32.
fn through_the_kernel(micro: &mut Micro<'_>, logits: &[f32]) -> Vec<f64> {
    let rows = logits.len() / 2;
    if rows == 0 {
        return Vec::new();
    }
    let cpu = &Device::Cpu;
    let logits = Tensor::from_slice(logits, (rows, 2), cpu).unwrap();
    let logits = Var::from_tensor(&logits).unwrap();
    let head = Tensor::eye(2, candle_core::DType::F32, cpu).unwrap();
    let scores = token_logprobs(&logits, &head, &vec![0; rows], 1.0)
        .unwrap()
        .logprobs;
    let logprobs: Vec<f32> = scores.to_vec1().unwrap();
    micro.inputs.logprobs = logprobs.into_iter().map(f64::from).collect();
    let derivatives = micro.loss().d_logprobs;
    let derivatives: Vec<f32> = derivatives.iter().map(|&d| d as f32).collect();
    let surrogate = (scores * Tensor::new(derivatives, cpu).unwrap()).unwrap();
    let gradients = surrogate.sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(logits.as_tensor()).unwrap();
    let gradient: Vec<Vec<f32>> = gradient.to_vec2().unwrap();
    gradient.iter().map(|two| f64::from(two[0])).collect()
}

/// Log-probabilities as the decoder gives them. Cases with a ratio exactly at a clip bound are left out: rounded, it lies
/// on either side.
fn rounded_cases() -> Vec<Value> {
    let mut cases = cases();
    cases.retain(|case| {
        let micro = case["expected"]["micro_batches"].as_array().unwrap();
        let at_a_bound = |micro: &Value| !micro["grad_per_token_logps_inclusive_clamp"].is_null();
        !micro.iter().any(at_a_bound)
    });
    assert_eq!(cases.len(), 127);
    for case in &mut cases {
        for name in [
            "per_token_logps",
            "old_per_token_logps",
            "ref_per_token_logps",
            "sampling_per_token_logps",
        ] {
            round(&mut case["inputs"][name]);
        }
    }
    cases
}

fn round(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Number(number) => *value = f64::from(number.as_f64().unwrap() as f32).into(),
        _ => {}
    }
}

/// One of a case's micro-batches: what goes into our loss and what came out of TRL's.
struct Micro<'a> {
    case: &'a Value,
    expected: &'a Value,
    settings: LossSettings,
    kept: Kept,
    /// Its first row in the case.
    first: usize,
    inputs: Inputs,
}

/// One value for each loss token.
struct Inputs {
    logprobs: Vec<f64>,
    old: Option<Vec<f64>>,
    sampler: Option<Vec<f64>>,
    reference: Option<Vec<f64>>,
    entropies: Vec<f64>,
    advantages: Vec<f64>,
}

fn micro_batches<'a>(case: &'a Value) -> Vec<Micro<'a>> {
    let inputs = &case["inputs"];
    let mask = matrix(&case["expected"]["loss_mask"]).unwrap();
    let advantages = golden_advantages(case).advantages;
    let advantages = matrix(&inputs["advantages_override"])
        .unwrap_or_else(|| advantages.iter().map(|a| vec![*a; mask[0].len()]).collect());
    let micro = |expected: &'a Value| {
        let range: Vec<usize> = serde_json::from_value(expected["rows"].clone()).unwrap();
        let kept = Kept::new(&mask, range[0], range[1]);
        let pick = |name: &str| kept.pick_from(&inputs[name]);
        Micro {
            case,
            expected,
            settings: settings(&case["options"]),
            first: range[0],
            inputs: Inputs {
                logprobs: pick("per_token_logps").unwrap(),
                old: pick("old_per_token_logps"),
                sampler: pick("sampling_per_token_logps"),
                reference: pick("ref_per_token_logps"),
                entropies: pick("entropies").unwrap(),
                advantages: kept.pick(&advantages),
            },
            kept,
        }
    };
    let expected = case["expected"]["micro_batches"].as_array().unwrap();
    expected.iter().map(micro).collect()
}

impl Micro<'_> {
    fn loss(&self) -> LossOutput {
        let inputs = &self.inputs;
        let input = LossInput {
            rows: &self.kept.rows,
            logprobs: &inputs.logprobs,
            old: inputs.old.as_deref(),
            sampler: inputs.sampler.as_deref(),
            reference: inputs.reference.as_deref(),
            entropies: &inputs.entropies,
            advantages: &inputs.advantages,
        };
        let scale = scale(self.case, &self.settings, &self.kept);
        loss(&input, &self.settings, scale)
    }
}

fn check_micro_batch(micro: &Micro<'_>, tolerance: Tolerance) {
    let (id, got) = (&micro.case["id"], micro.loss());
    let want = micro.expected["loss"].as_f64().unwrap();
    assert!(
        close(got.loss, want, tolerance.values, 1e-3),
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

fn check_gradient(micro: &Micro<'_>, name: &str, got: &[f64], tolerance: Tolerance) {
    let id = &micro.case["id"];
    let want = matrix(&micro.expected[name]).unwrap();
    let largest = want
        .iter()
        .flatten()
        .fold(0.0_f64, |max, g| max.max(g.abs()));
    let mut expected_elsewhere = want.clone();
    for (&(row, t), got) in micro.kept.places.iter().zip(got) {
        let row = row - micro.first;
        expected_elsewhere[row][t] = 0.0;
        assert!(
            close(*got, want[row][t], tolerance.values, largest),
            "{id} {name} [{row},{t}]: {got} != {}",
            want[row][t]
        );
    }
    let elsewhere = expected_elsewhere.iter().flatten().all(|g| *g == 0.0);
    assert!(elsewhere, "{id} {name}: TRL has gradient on a masked token");
}

fn check_metrics(micro: &Micro<'_>, stats: &LossStats, tolerance: Tolerance) {
    let (id, options) = (&micro.case["id"], &micro.case["options"]);
    let got = stats.metrics();
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
            tolerance.metrics
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
    let kept = Kept::new(&mask, 0, mask.len());
    let old = kept
        .pick_from(&case["inputs"]["old_per_token_logps"])
        .unwrap();
    let sampler = kept
        .pick_from(&case["inputs"]["sampling_per_token_logps"])
        .unwrap();
    let stats: SamplingStats = sampling_stats(&old, &sampler, &kept.rows, &settings);
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
