//! Compares log-probabilities and entropies, by the kernel and by tensor operations, with TRL
//! 1.16.0 (`golden/logprobs.json`): values and gradients.

use candle_core::{DType, Device, Tensor};
use policy::ops::{Backend, LinearWeight, LogprobGradients};
use serde_json::Value;

use crate::common::{assert_near, flat, golden, numbers};

const CPU: Device = Device::Cpu;

fn cases(kind: &str) -> Vec<Value> {
    let mut cases = golden("logprobs.json")["cases"].as_array().unwrap().clone();
    cases.retain(|case| case["kind"] == kind);
    cases
}

fn targets(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

fn matrix(values: Vec<f64>, columns: usize, dtype: DType) -> Tensor {
    let rows = values.len() / columns;
    let tensor = Tensor::from_vec(values, (rows, columns), &CPU).unwrap();
    tensor.to_dtype(dtype).unwrap()
}

/// The logits are passed as hidden states, under an LM head that is the identity.
fn check_logits(case: &Value, dtype: DType, temperature: f32, scale: f64, tolerance: f64) {
    let id = case["id"].as_str().unwrap();
    let vocabulary = case["shape"]["V"].as_u64().unwrap() as usize;
    let scaled = numbers(&case["logits"]).iter().map(|x| x / scale).collect();
    let logits = matrix(scaled, vocabulary, dtype);
    let backend = Backend::of(&CPU, dtype);
    let identity = LinearWeight::Tensor(Tensor::eye(vocabulary, dtype, &CPU).unwrap());
    let expected = &case["expected"];
    let targets = targets(&case["token_ids"]);
    let [d_logprobs, d_entropies] =
        ["cotangent_logps", "cotangent_entropy"].map(|name| numbers(&case[name]));
    let none = vec![0.0; targets.len()];
    for (by, derivatives) in [
        ("logps", [&d_logprobs, &none]),
        ("entropy", [&none, &d_entropies]),
    ] {
        let found = backend
            .token_logprobs(&logits, &identity, &targets, temperature)
            .unwrap();
        let scores = match by {
            "logps" => flat(&found.logprobs),
            _ => flat(&found.entropies),
        };
        let what = format!("{id} {by}");
        assert_near(&scores, &numbers(&expected[by]), tolerance, &what);
        let derivatives = LogprobGradients {
            logprobs: derivatives[0].to_vec(),
            entropies: Some(derivatives[1].to_vec()),
        };
        let (dlogits, _) = backend
            .token_logprobs_backward(
                found,
                &logits,
                &identity,
                &targets,
                temperature,
                &derivatives,
            )
            .unwrap();
        let dlogits: Vec<f64> = flat(&dlogits).iter().map(|g| g / scale).collect();
        let gradient = &expected[&format!("dlogits_from_{by}")];
        assert_near(&dlogits, &numbers(gradient), tolerance, &what);
    }
}

/// In f64 the temperature is divided out beforehand: `token_logprobs` takes it in f32.
#[test]
fn tensor_op_scores_equal_trl_in_f64() {
    for case in cases("logits_f64") {
        let temperature = case["temperature"].as_f64().unwrap();
        check_logits(&case, DType::F64, 1.0, temperature, 1e-12);
    }
}

#[test]
fn the_kernel_s_scores_equal_trl_in_f32() {
    let cases = cases("logits_f64");
    assert_eq!(cases.len(), 5);
    for case in cases {
        let temperature = case["temperature"].as_f64().unwrap() as f32;
        check_logits(&case, DType::F32, temperature, 1.0, 1e-5);
    }
}

/// TRL's chunked LM head, which never holds all logits either.
#[test]
fn the_fused_head_equals_trl_s() {
    let cases = cases("fused_head_f32");
    assert_eq!(cases.len(), 2);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let width = case["shape"]["H"].as_u64().unwrap() as usize;
        let hidden = matrix(numbers(&case["hidden"]), width, DType::F32);
        let head = LinearWeight::Tensor(matrix(numbers(&case["weight"]), width, DType::F32));
        let temperature = case["temperature"].as_f64().unwrap() as f32;
        let targets = targets(&case["targets"]);
        let found = Backend::CpuF32
            .token_logprobs(&hidden, &head, &targets, temperature)
            .unwrap();
        let [d_logprobs, d_entropies] =
            ["cotangent_logps", "cotangent_entropy"].map(|name| numbers(&case[name]));
        let derivatives = LogprobGradients {
            logprobs: d_logprobs,
            entropies: Some(d_entropies),
        };
        let scores = [flat(&found.logprobs), flat(&found.entropies)];
        let (dhidden, dweight) = Backend::CpuF32
            .token_logprobs_backward(found, &hidden, &head, &targets, temperature, &derivatives)
            .unwrap();
        for (name, found) in [
            ("logps", &scores[0]),
            ("entropy", &scores[1]),
            ("dhidden", &flat(&dhidden)),
            ("dweight", &flat(&dweight)),
        ] {
            let expected = numbers(&case["expected"][name]);
            assert_near(found, &expected, 1e-5, &format!("{id} {name}"));
        }
    }
}
