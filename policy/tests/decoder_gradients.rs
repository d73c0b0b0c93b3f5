//! Every gradient: compositions against finite differences in f64, kernels against compositions in f32.

#![allow(clippy::unwrap_used, reason = "helpers of tests may unwrap")]

use candle_core::{DType, Device, Result, Tensor, Var};
use policy::ops::{self, LinearWeight, RopeTable};
use policy::{Decoder, DecoderConfig, KvCache, PackedRows, Row, Use, Weights, check_gradients};

const CPU: Device = Device::Cpu;
const ROWS: [usize; 4] = [5, 1, 19, 40];
const TOKENS: usize = 65;

/// Deterministic values in (-1, 1).
fn values(shape: &[usize], seed: usize, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| {
        ((i + 1) as f64 * 0.618_033_988_749_895 + seed as f64 * 0.377).fract() * 2.0 - 1.0
    };
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::from_vec(values, shape, &CPU)
        .unwrap()
        .to_dtype(dtype)
        .unwrap()
}

fn rows() -> Vec<Row> {
    let row = |len| Row {
        len,
        past: 0,
        slot: 0,
    };
    ROWS.into_iter().map(row).collect()
}

fn table() -> (RopeTable, Vec<u32>) {
    let positions = ROWS.iter().flat_map(|&len| 0..len as u32).collect();
    (
        RopeTable::new((0..12).map(|i| 0.7_f32.powi(i)).collect()),
        positions,
    )
}

type Op = dyn Fn(&[Tensor]) -> Result<Tensor>;

/// An operation under test: its inputs' shapes, its kernel and its composition.
struct Case {
    name: &'static str,
    shapes: Vec<Vec<usize>>,
    kernel: Box<Op>,
    composed: Box<Op>,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    kernel: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    composed: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Case {
    Case {
        name,
        shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
        kernel: Box::new(kernel),
        composed: Box::new(composed),
    }
}

fn cases() -> Vec<Case> {
    let targets: Vec<u32> = (0..TOKENS as u32).map(|i| i * 7 % 53).collect();
    let other_targets = targets.clone();
    let both = |found: ops::TokenLogprobs| Tensor::stack(&[found.logprobs, found.entropies], 0);
    vec![
        case(
            "linear",
            &[&[TOKENS, 37], &[45, 37]],
            |x| ops::linear(&x[0], &LinearWeight::Tensor(x[1].clone())),
            |x| ops::linear_composed(&x[0], &x[1]),
        ),
        case(
            "rms_norm",
            &[&[TOKENS, 2, 37], &[37]],
            |x| ops::rms_norm(&x[0], &x[1], 1e-6),
            |x| ops::rms_norm_composed(&x[0], &x[1], 1e-6),
        ),
        case(
            "rope",
            &[&[TOKENS, 3, 24]],
            |x| ops::rope(&x[0], &table().0, &table().1),
            |x| ops::rope_composed(&x[0], &table().0, &table().1),
        ),
        case(
            "attention",
            &[&[TOKENS, 6, 24], &[TOKENS, 2, 24], &[TOKENS, 2, 24]],
            |x| ops::attention(&x[0], &x[1], &x[2], &rows()),
            |x| ops::attention_composed(&x[0], &x[1], &x[2], &rows()),
        ),
        case(
            "attention of wide heads",
            &[&[TOKENS, 3, 40], &[TOKENS, 3, 40], &[TOKENS, 3, 40]],
            |x| ops::attention(&x[0], &x[1], &x[2], &rows()),
            |x| ops::attention_composed(&x[0], &x[1], &x[2], &rows()),
        ),
        case(
            "swiglu",
            &[&[TOKENS, 21], &[TOKENS, 21]],
            |x| ops::swiglu(&x[0], &x[1]),
            |x| ops::swiglu_composed(&x[0], &x[1]),
        ),
        case(
            "token_logprobs",
            &[&[TOKENS, 37], &[53, 37]],
            move |x| both(ops::token_logprobs(&x[0], &x[1], &targets, 0.8)?),
            move |x| {
                both(ops::token_logprobs_composed(
                    &x[0],
                    &x[1],
                    &other_targets,
                    0.8,
                )?)
            },
        ),
    ]
}

/// A scalar that weighs every output element differently.
fn weighed(y: &Tensor) -> Tensor {
    let weights = values(y.dims(), 99, y.dtype());
    (y * weights).unwrap().sum_all().unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.flatten_all()
        .unwrap()
        .to_dtype(DType::F64)
        .unwrap()
        .to_vec1()
        .unwrap()
}

fn gradients(op: &Op, inputs: &[Tensor]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let vars: Vec<Var> = inputs
        .iter()
        .map(|x| Var::from_tensor(x).unwrap())
        .collect();
    let inputs: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let y = op(&inputs).unwrap();
    let gradients = weighed(&y).backward().unwrap();
    (
        flat(&y),
        vars.iter()
            .map(|var| flat(gradients.get(var).unwrap()))
            .collect(),
    )
}

fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    let scale = expected.iter().fold(1.0_f64, |max, x| max.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * scale,
            "{what}[{i}]: {found} instead of {expected}"
        );
    }
}

#[test]
fn compositions_follow_finite_differences() {
    for case in cases() {
        let inputs: Vec<Tensor> = (case.shapes.iter().enumerate())
            .map(|(i, shape)| values(shape, i, DType::F64))
            .collect();
        let (_, found) = gradients(&*case.composed, &inputs);
        for (at, input) in inputs.iter().enumerate() {
            let direction = values(input.dims(), 50 + at, DType::F64);
            let shifted = |step: f64| {
                let mut inputs = inputs.clone();
                inputs[at] = (input + (&direction * step).unwrap()).unwrap();
                weighed(&(case.composed)(&inputs).unwrap())
                    .to_scalar::<f64>()
                    .unwrap()
            };
            let expected = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            let directional: f64 = found[at]
                .iter()
                .zip(flat(&direction))
                .map(|(g, d)| g * d)
                .sum();
            assert_near(
                &[directional],
                &[expected],
                1e-7,
                &format!("{} input {at}", case.name),
            );
        }
    }
}

#[test]
fn kernels_follow_the_compositions() {
    for case in cases() {
        let shapes = case.shapes.iter().enumerate();
        let inputs: Vec<Tensor> = shapes
            .map(|(i, shape)| values(shape, i, DType::F64))
            .collect();
        let narrow: Vec<Tensor> = inputs
            .iter()
            .map(|x| x.to_dtype(DType::F32).unwrap())
            .collect();
        let (expected, expected_gradients) = gradients(&*case.composed, &inputs);
        let (found, found_gradients) = gradients(&*case.kernel, &narrow);
        assert_near(&found, &expected, 1e-5, case.name);
        for (i, (found, expected)) in found_gradients.iter().zip(&expected_gradients).enumerate() {
            assert_near(found, expected, 1e-5, &format!("{} input {i}", case.name));
        }
    }
}

/// Inputs that come as views of other tensors, as a decoder may hand them over.
#[test]
fn kernels_take_strided_inputs() {
    let x = values(&[37, TOKENS], 1, DType::F32);
    let weight = values(&[37], 2, DType::F32);
    let strided = ops::rms_norm(&x.t().unwrap(), &weight, 1e-6).unwrap();
    let contiguous = ops::rms_norm(&x.t().unwrap().contiguous().unwrap(), &weight, 1e-6).unwrap();
    assert_eq!(flat(&strided), flat(&contiguous));
}

fn configs() -> Vec<DecoderConfig> {
    let families = [
        ("qwen3", true, false),
        ("qwen2", true, false),
        ("llama", false, true),
    ];
    let parse = |(family, tied, bias): (&str, bool, bool)| {
        DecoderConfig::from_json(&format!(
            r#"{{"model_type": "{family}", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50,
            "tie_word_embeddings": {tied}, "attention_bias": {bias}}}"#
        ))
        .unwrap()
    };
    families.into_iter().map(parse).collect()
}

fn loss(decoder: &Decoder) -> Tensor {
    let mut batch = PackedRows::default();
    batch.push(&[1, 7, 3, 9, 22, 41]);
    batch.push(&[5, 6]);
    let hidden = decoder.forward(&batch, None).unwrap();
    let found = decoder.token_logprobs(&hidden, &batch.tokens, 1.0).unwrap();
    (found.logprobs.mean_all().unwrap() + found.entropies.mean_all().unwrap()).unwrap()
}

fn in_dtype(weights: &Weights, dtype: DType) -> Weights {
    let convert = |(name, x): (&str, &Tensor)| (name.to_owned(), x.to_dtype(dtype).unwrap());
    Weights::new(weights.iter().map(convert).collect())
}

#[test]
fn every_parameter_of_every_family_gets_the_gradient_of_f64() {
    for config in configs() {
        let weights = Weights::random(&config, 3).unwrap();
        let all = [DType::F32, DType::F64].map(|dtype| {
            let vars = in_dtype(&weights, dtype).trainable().unwrap();
            let decoder = Decoder::new(&config, &vars.view(), Use::Train).unwrap();
            let gradients = loss(&decoder).backward().unwrap();
            check_gradients(&vars, &gradients).unwrap();
            vars.iter()
                .map(|(name, var)| (name.to_owned(), flat(gradients.get(var).unwrap())))
                .collect::<Vec<_>>()
        });
        for ((name, found), (_, expected)) in all[0].iter().zip(&all[1]) {
            assert!(
                expected.iter().any(|g| *g != 0.0),
                "{name} has no influence"
            );
            assert_near(found, expected, 1e-5, name);
        }
    }
}

#[test]
fn the_guard_names_a_parameter_without_gradient() {
    let config = &configs()[0];
    let vars = Weights::random(config, 3).unwrap().trainable().unwrap();
    let some = vars.iter().next().unwrap().1.sum_all().unwrap();
    let message = check_gradients(&vars, &some.backward().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("model.layers.0.input_layernorm.weight"),
        "{message}"
    );
}

#[test]
fn a_decoder_of_variables_sees_them_change() {
    let config = &configs()[0];
    let vars = Weights::random(config, 3).unwrap().trainable().unwrap();
    let decoder = Decoder::new(config, &vars.view(), Use::Train).unwrap();
    let (snapshot, before) = (
        vars.snapshot().unwrap(),
        loss(&decoder).to_scalar::<f32>().unwrap(),
    );
    for (_, var) in vars.iter() {
        var.set(&(var.as_tensor() * 0.9).unwrap()).unwrap();
    }
    assert_ne!(loss(&decoder).to_scalar::<f32>().unwrap(), before);
    let old = Decoder::new(config, &snapshot, Use::Sample).unwrap();
    assert_eq!(loss(&old).to_scalar::<f32>().unwrap(), before);
}

/// Other dtypes take the compositions; the cache is made of tensors then.
#[test]
fn a_decoder_in_f64_samples_through_its_cache() {
    for config in configs() {
        let weights = in_dtype(&Weights::random(&config, 3).unwrap(), DType::F64);
        let decoder = Decoder::new(&config, &weights, Use::Sample).unwrap();
        let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
        let mut whole = PackedRows::default();
        whole.push(&tokens);
        let expected = decoder
            .logits(&decoder.forward(&whole, None).unwrap())
            .unwrap();
        let mut cache = KvCache::on(&config, 3, 16, &CPU, DType::F64).unwrap();
        let mut found = Vec::new();
        for (past, chunk) in [(0, &tokens[..5]), (5, &tokens[5..6]), (6, &tokens[6..])] {
            let mut batch = PackedRows::default();
            batch.push_cached(chunk, past, 2);
            let hidden = decoder.forward(&batch, Some(&mut cache)).unwrap();
            found.extend(flat(&decoder.logits(&hidden).unwrap()));
        }
        assert_near(&found, &flat(&expected), 1e-12, "logits");
        cache.copy_prefix(2, 0, 7).unwrap();
        let mut batch = PackedRows::default();
        batch.push_cached(&tokens[7..], 7, 0);
        let hidden = decoder.forward(&batch, Some(&mut cache)).unwrap();
        let last = flat(&decoder.logits(&hidden).unwrap());
        assert_near(
            &last,
            &flat(&expected.narrow(0, 7, 1).unwrap()),
            1e-12,
            "copied prefix",
        );
    }
}
