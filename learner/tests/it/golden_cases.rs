//! Converts the golden cases of the loss (`tests/golden/README.md`) to the input of our loss.

use learner::{
    advantage::{AdvantageSettings, advantages},
    loss::{LossDivisors, LossInput, LossOutput, LossSettings, LossType, SamplerCorrection, loss},
};
use serde_json::Value;

const CASES: &str = include_str!("../golden/grpo_cases.json");

pub(crate) fn cases() -> Vec<Value> {
    let file: Value = serde_json::from_str(CASES).unwrap();
    file["cases"].as_array().unwrap().clone()
}

/// Log-probabilities as the decoder gives them. Cases with a ratio exactly at a clip bound are left
/// out: rounded, it lies on either side.
pub(crate) fn rounded_cases() -> Vec<Value> {
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

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

pub(crate) fn vector(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap_or(f64::NAN))
        .collect()
}

pub(crate) fn matrix(value: &Value) -> Option<Vec<Vec<f64>>> {
    Some(value.as_array()?.iter().map(vector).collect())
}

fn enumeration<T: serde::de::DeserializeOwned>(options: &Value, name: &str) -> T {
    serde_json::from_value(options[name].clone()).unwrap()
}

pub(crate) fn settings(options: &Value) -> LossSettings {
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

pub(crate) fn rewards_of(case: &Value) -> Vec<Vec<Option<f64>>> {
    let rows = case["inputs"]["rewards_per_func"].as_array().unwrap();
    let row = |row: &Value| row.as_array().unwrap().iter().map(number).collect();
    rows.iter().map(row).collect()
}

pub(crate) fn weights_of(case: &Value) -> Vec<f64> {
    vector(&case["inputs"]["reward_weights"])
}

pub(crate) fn group_size_of(case: &Value) -> usize {
    case["options"]["num_generations"].as_u64().unwrap() as usize
}

pub(crate) fn advantages_of(case: &Value) -> Vec<f64> {
    let settings = AdvantageSettings {
        scale_rewards: enumeration(&case["options"], "scale_rewards"),
        aggregation: enumeration(&case["options"], "multi_objective_aggregation"),
    };
    advantages(
        &rewards_of(case),
        &weights_of(case),
        group_size_of(case),
        settings,
    )
}

/// The loss tokens of rows `first..last`, and where each stood in its row.
pub(crate) struct LossTokens {
    pub(crate) rows: Vec<usize>,
    pub(crate) places: Vec<(usize, usize)>,
}

impl LossTokens {
    pub(crate) fn new(mask: &[Vec<f64>], first: usize, last: usize) -> Self {
        let mut tokens = Self {
            rows: Vec::new(),
            places: Vec::new(),
        };
        for (row, row_mask) in mask.iter().enumerate().take(last).skip(first) {
            let before = tokens.places.len();
            let set = (0..row_mask.len()).filter(|&t| row_mask[t] != 0.0);
            tokens.places.extend(set.map(|t| (row, t)));
            tokens.rows.push(tokens.places.len() - before);
        }
        tokens
    }

    fn pick(&self, values: &[Vec<f64>]) -> Vec<f64> {
        self.places.iter().map(|&(row, t)| values[row][t]).collect()
    }

    pub(crate) fn pick_from(&self, value: &Value) -> Option<Vec<f64>> {
        matrix(value).map(|values| self.pick(&values))
    }

    /// Of a table that begins with row `first`.
    pub(crate) fn pick_at(&self, value: &Value, first: usize) -> Vec<f64> {
        let values = matrix(value).unwrap();
        let places = self.places.iter();
        places.map(|&(row, t)| values[row - first][t]).collect()
    }
}

/// One of a case's micro-batches: what goes into our loss and what came out of TRL's.
pub(crate) struct Micro<'a> {
    pub(crate) case: &'a Value,
    pub(crate) expected: &'a Value,
    pub(crate) settings: LossSettings,
    pub(crate) tokens: LossTokens,
    /// Its first row in the case.
    pub(crate) first: usize,
    pub(crate) inputs: Inputs,
}

/// One value for each loss token.
pub(crate) struct Inputs {
    pub(crate) logprobs: Vec<f64>,
    pub(crate) old: Option<Vec<f64>>,
    pub(crate) sampler: Option<Vec<f64>>,
    pub(crate) reference: Option<Vec<f64>>,
    pub(crate) entropies: Vec<f64>,
    pub(crate) advantages: Vec<f64>,
}

pub(crate) fn micro_batches<'a>(case: &'a Value) -> Vec<Micro<'a>> {
    let inputs = &case["inputs"];
    let mask = matrix(&case["expected"]["loss_mask"]).unwrap();
    let advantages = advantages_of(case);
    let advantages = matrix(&inputs["advantages_override"])
        .unwrap_or_else(|| advantages.iter().map(|a| vec![*a; mask[0].len()]).collect());
    let micro = |expected: &'a Value| {
        let range: Vec<usize> = serde_json::from_value(expected["rows"].clone()).unwrap();
        let tokens = LossTokens::new(&mask, range[0], range[1]);
        let pick = |name: &str| tokens.pick_from(&inputs[name]);
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
                advantages: tokens.pick(&advantages),
            },
            tokens,
        }
    };
    let expected = case["expected"]["micro_batches"].as_array().unwrap();
    expected.iter().map(micro).collect()
}

impl Micro<'_> {
    pub(crate) fn loss(&self) -> LossOutput {
        let inputs = &self.inputs;
        let input = LossInput {
            rows: &self.tokens.rows,
            completion_lengths: &self.tokens.rows,
            logprobs: &inputs.logprobs,
            old: inputs.old.as_deref(),
            sampler: inputs.sampler.as_deref(),
            reference: inputs.reference.as_deref(),
            entropies: &inputs.entropies,
            advantages: &inputs.advantages,
        };
        let divisors = divisors(self.case, &self.settings, &self.tokens);
        loss(&input, &self.settings, divisors)
    }
}

/// TRL's divisors for one of its micro-batches.
fn divisors(case: &Value, settings: &LossSettings, tokens: &LossTokens) -> LossDivisors {
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
    let (rows, longest) = (tokens.rows.len() as f64, f("max_completion_length") as u32);
    let divisor = match settings.loss_type {
        LossType::Dapo | LossType::Cispo | LossType::Vespo => {
            let items = case["expected"]["num_items_in_batch"].as_f64().unwrap();
            settings.divisor(rows, items, longest) * accumulation / per_generation
        }
        _ => settings.divisor(rows, tokens.places.len() as f64, longest) * accumulation,
    };
    LossDivisors {
        policy: divisor,
        entropy_share: 1.0 / accumulation,
    }
}
