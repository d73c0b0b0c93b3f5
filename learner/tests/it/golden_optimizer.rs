//! Compares AdamW, clipping and schedules with torch and transformers (`tests/golden/README.md`).

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use learner::{
    optimizer::{AdamW, Gradients, OptimizerSettings, Parameter, clip_factor, global_norm},
    schedule::{ScheduleKind, ScheduleSettings},
};
use serde_json::Value;

fn file(text: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file["cases"].as_array().unwrap().clone()
}

fn flat(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

fn tensors(value: &Value) -> Gradients {
    value
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, v)| (name.clone(), tensor(&flat(v))))
        .collect()
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(context: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{context}");
    for (got, want) in got.iter().zip(want) {
        let bound = tolerance * want.abs().max(1.0);
        assert!((got - want).abs() <= bound, "{context}: {got} != {want}");
    }
}

fn schedule(case: &Value) -> (ScheduleSettings, u64) {
    let schedule = &case["schedule"];
    let kind: ScheduleKind = serde_json::from_value(schedule["name"].clone()).unwrap();
    let warmup_steps = schedule["num_warmup_steps"].as_u64().unwrap_or(0);
    let total = schedule["num_training_steps"].as_u64().unwrap_or(0);
    (
        ScheduleSettings {
            kind,
            warmup_steps,
            min_factor: 0.0,
        },
        total,
    )
}

fn settings(case: &Value) -> OptimizerSettings {
    OptimizerSettings {
        learning_rate: case["lr"].as_f64().unwrap(),
        weight_decay: case["weight_decay"].as_f64().unwrap(),
        adam_beta1: case["betas"][0].as_f64().unwrap(),
        adam_beta2: case["betas"][1].as_f64().unwrap(),
        adam_epsilon: case["eps"].as_f64().unwrap(),
        max_grad_norm: case["max_grad_norm"].as_f64().unwrap_or(0.0),
    }
}

#[test]
fn adamw_equals_torch() {
    for case in file(include_str!("../golden/adamw.json")) {
        let id = case["id"].as_str().unwrap();
        let decayed: Vec<String> = serde_json::from_value(case["decayed_params"].clone()).unwrap();
        let mut parameters: BTreeMap<String, Parameter> = tensors(&case["initial_params"])
            .into_iter()
            .map(|(name, value)| {
                let decays = decayed.contains(&name);
                (name, Parameter { value, decays })
            })
            .collect();
        let base = case["lr"].as_f64().unwrap();
        let mut optimizer = AdamW::new(settings(&case));
        let (schedule, total) = schedule(&case);
        for (t, expected) in case["expected"].as_array().unwrap().iter().enumerate() {
            let rate = base * schedule.factor(t as u64, total);
            assert!(
                (rate - expected["lr"].as_f64().unwrap()).abs() < 1e-15,
                "{id} lr at {t}"
            );
            let gradients = tensors(&case["grads"][t]);
            let norm = global_norm(&gradients).unwrap();
            if let Some(want) = expected["grad_norm"].as_f64() {
                let context = format!("{id} norm at {t}");
                assert_close(&context, &[norm as f32], &[want as f32], 2e-6);
            }
            let factor = clip_factor(norm, optimizer.settings.max_grad_norm);
            optimizer
                .step(&mut parameters, gradients, factor, rate)
                .unwrap();
            for (name, want) in tensors(&expected["params"]) {
                let context = format!("{id} {name} after step {t}");
                assert_close(
                    &context,
                    &values(&parameters[&name].value),
                    &values(&want),
                    2e-6,
                );
            }
            check_moments(&format!("{id} at {t}"), &optimizer, expected);
        }
    }
}

/// Holds the running averages of gradients and of their squares against torch's.
fn check_moments(context: &str, optimizer: &AdamW, expected: &Value) {
    for (field, first) in [("exp_avg", true), ("exp_avg_sq", false)] {
        for (name, want) in expected[field].as_object().into_iter().flatten() {
            let moments = &optimizer.moments[name];
            let got = if first {
                &moments.first
            } else {
                &moments.second
            };
            assert_close(
                &format!("{context}: {field} {name}"),
                &values(got),
                &flat(want),
                2e-6,
            );
        }
    }
}

#[test]
fn clipping_equals_torch() {
    for case in file(include_str!("../golden/clip.json")) {
        let id = case["id"].as_str().unwrap();
        let gradients = tensors(&case["grads"]);
        let norm = global_norm(&gradients).unwrap();
        let want = case["expected"]["total_norm"].as_f64().unwrap() as f32;
        assert_close(id, &[norm as f32], &[want], 1e-6);
        let factor = clip_factor(norm, case["max_norm"].as_f64().unwrap());
        for (name, want) in tensors(&case["expected"]["grads"]) {
            let clipped = gradients[&name].affine(factor, 0.0).unwrap();
            let context = format!("{id} {name}");
            assert_close(&context, &values(&clipped), &values(&want), 1e-6);
        }
    }
}

#[test]
fn schedules_equal_transformers() {
    for case in file(include_str!("../golden/schedules.json")) {
        let kind: ScheduleKind = serde_json::from_value(case["name"].clone()).unwrap();
        let warmup_steps = case["num_warmup_steps"].as_u64().unwrap_or(0);
        let schedule = ScheduleSettings {
            kind,
            warmup_steps,
            min_factor: 0.0,
        };
        let total = case["num_training_steps"].as_u64().unwrap_or(0);
        for (t, want) in case["factor"].as_array().unwrap().iter().enumerate() {
            let (got, want) = (schedule.factor(t as u64, total), want.as_f64().unwrap());
            assert!(
                (got - want).abs() <= 1e-15,
                "{} at {t}: {got} != {want}",
                case["id"]
            );
        }
    }
}

#[test]
fn what_falls_ends_at_its_least_factor() {
    for kind in [ScheduleKind::Linear, ScheduleKind::Cosine] {
        let schedule = ScheduleSettings {
            kind,
            warmup_steps: 10,
            min_factor: 0.05,
        };
        assert_eq!(schedule.factor(0, 100), 0.0);
        assert_eq!(schedule.factor(10, 100), 1.0);
        assert!((schedule.factor(55, 100) - 0.525).abs() < 1e-12);
        assert!((schedule.factor(100, 100) - 0.05).abs() < 1e-12);
    }
}
