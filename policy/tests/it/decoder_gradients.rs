//! Checks every gradient: tensor operations against finite differences in f64, kernels against
//! tensor operations in f32.

use candle_core::{DType, Device, Result, Tensor};
use policy::ops::{self, Backend, LinearWeight, LogprobGradients, RopeTable, Targets, TokenSet};
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, Gradients, PackedRow, PackedRows,
    ScoredTokens, TrainingPass, Weights, check_gradients,
};

use crate::common::{assert_near, flat};

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

fn rows() -> Vec<PackedRow> {
    let row = |len| PackedRow {
        len,
        past: 0,
        slot: 0,
    };
    ROWS.into_iter().map(row).collect()
}

/// Rows of which some continue the prefix of others: as long, after two prefixes, of different
/// lengths of one.
fn continued_rows() -> Vec<PackedRow> {
    let row = |(len, past, slot)| PackedRow { len, past, slot };
    [
        (19, 0, 0),
        (5, 12, 0),
        (7, 19, 0),
        (9, 0, 0),
        (24, 9, 3),
        (1, 3, 0),
    ]
    .map(row)
    .into()
}

fn cos_sin() -> Tensor {
    let positions: Vec<u32> = ROWS.iter().flat_map(|&len| 0..len as u32).collect();
    let table = RopeTable::new((0..12).map(|i| 0.7_f32.powi(i)).collect());
    table.cos_sin(&positions, &CPU).unwrap()
}

fn weight(x: &Tensor) -> LinearWeight {
    LinearWeight::Tensor(x.clone())
}

type Op = dyn Fn(Backend, &[Tensor]) -> Result<Tensor>;
type BackwardOp = dyn Fn(Backend, &[Tensor], &Tensor) -> Result<Vec<Tensor>>;

/// An operation under test: its inputs' shapes, the operation and its backward pass. The reference
/// implementation is that of tensor operations in f64; kernels compute in f32.
struct Case {
    name: &'static str,
    shapes: Vec<Vec<usize>>,
    op: Box<Op>,
    backward: Box<BackwardOp>,
}

fn case(
    name: &'static str,
    shapes: &[&[usize]],
    op: impl Fn(Backend, &[Tensor]) -> Result<Tensor> + 'static,
    backward: impl Fn(Backend, &[Tensor], &Tensor) -> Result<Vec<Tensor>> + 'static,
) -> Case {
    Case {
        name,
        shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
        op: Box::new(op),
        backward: Box::new(backward),
    }
}

fn attention_case(name: &'static str, shapes: &[&[usize]], rows: fn() -> Vec<PackedRow>) -> Case {
    case(
        name,
        shapes,
        move |backend, x| backend.attention(&x[0], &x[1], &x[2], &rows()),
        move |backend, x, dy| {
            let rows = rows();
            let out = backend.attention(&x[0], &x[1], &x[2], &rows)?;
            let gradients = backend.attention_backward(&x[0], &x[1], &x[2], &rows, &out, dy)?;
            Ok(gradients.into())
        },
    )
}

fn targets() -> Vec<u32> {
    (0..TOKENS as u32).map(|i| i * 7 % 53).collect()
}

/// Sets of about half of the vocabulary, each with its target.
fn sets() -> Vec<TokenSet> {
    let set = |(row, target): (u32, u32)| {
        let mut words = [
            0x5a3c_96f0_u32.rotate_left(row),
            0x0f1e_2d3c_u32.rotate_left(2 * row),
        ];
        words[target as usize / 32] |= 1 << (target % 32);
        TokenSet::new(&words)
    };
    (0..).zip(targets()).map(set).collect()
}

/// Constrained to sets of tokens: the probability of the others is 0, and their logits have no
/// gradient.
fn restricted_logprobs_case() -> Case {
    fn score(backend: Backend, x: &[Tensor]) -> Result<ops::TokenLogprobs> {
        let (ids, sets) = (targets(), sets());
        let targets = Targets {
            ids: &ids,
            allowed: Some(&sets),
        };
        backend.token_logprobs(&x[0], &weight(&x[1]), targets, 0.8)
    }
    case(
        "restricted token_logprobs",
        &[&[TOKENS, 37], &[53, 37]],
        |backend, x| both(score(backend, x)?),
        |backend, x, dy| {
            let (ids, sets, derivatives) = (targets(), sets(), derivatives(dy));
            let targets = Targets {
                ids: &ids,
                allowed: Some(&sets),
            };
            let found = score(backend, x)?;
            let head = weight(&x[1]);
            let (dhidden, dhead) =
                backend.token_logprobs_backward(found, &x[0], &head, targets, 0.8, &derivatives)?;
            Ok(vec![dhidden, dhead])
        },
    )
}

/// The log-probability among a set is that of a vocabulary which consists of the set.
#[test]
fn a_set_is_the_whole_vocabulary_of_its_row() {
    let (hidden, head) = (
        values(&[1, 37], 3, DType::F64),
        values(&[53, 37], 4, DType::F64),
    );
    let (target, set) = (targets()[5], sets().swap_remove(5));
    let members: Vec<u32> = (0..53).filter(|&token| set.contains(token)).collect();
    let place = members.iter().position(|&token| token == target).unwrap() as u32;
    let smaller = head
        .index_select(&Tensor::new(members.as_slice(), head.device()).unwrap(), 0)
        .unwrap();
    for (backend, dtype, tolerance) in [
        (Backend::TensorOps, DType::F64, 1e-14),
        (Backend::CpuF32, DType::F32, 1e-6),
    ] {
        let [hidden, head, smaller] =
            [&hidden, &head, &smaller].map(|tensor| tensor.to_dtype(dtype).unwrap());
        let restricted = Targets {
            ids: &[target],
            allowed: Some(std::slice::from_ref(&set)),
        };
        let found = backend
            .token_logprobs(&hidden, &weight(&head), restricted, 0.8)
            .unwrap();
        let expected = backend
            .token_logprobs(&hidden, &weight(&smaller), &[place], 0.8)
            .unwrap();
        assert_near(
            &flat(&found.logprobs),
            &flat(&expected.logprobs),
            tolerance,
            "logprob",
        );
        assert_near(
            &flat(&found.entropies),
            &flat(&expected.entropies),
            tolerance,
            "entropy",
        );
    }
}

fn both(found: ops::TokenLogprobs) -> Result<Tensor> {
    Tensor::stack(&[found.logprobs, found.entropies], 0)
}

/// The gradient of [`both`] as that of its parts.
fn derivatives(dy: &Tensor) -> LogprobGradients {
    let dy = flat(dy);
    LogprobGradients {
        logprobs: dy[..TOKENS].to_vec(),
        entropies: Some(dy[TOKENS..].to_vec()),
    }
}

fn logprobs_case() -> Case {
    case(
        "token_logprobs",
        &[&[TOKENS, 37], &[53, 37]],
        |backend, x| both(backend.token_logprobs(&x[0], &weight(&x[1]), &targets(), 0.8)?),
        |backend, x, dy| {
            let (head, targets, derivatives) = (weight(&x[1]), targets(), derivatives(dy));
            let found = backend.token_logprobs(&x[0], &head, &targets, 0.8)?;
            let (dhidden, dhead) = backend.token_logprobs_backward(
                found,
                &x[0],
                &head,
                &targets,
                0.8,
                &derivatives,
            )?;
            Ok(vec![dhidden, dhead])
        },
    )
}

fn linear_case() -> Case {
    case(
        "linear",
        &[&[TOKENS, 37], &[45, 37]],
        |backend, x| {
            let [y] = backend.linears(&x[0], [&weight(&x[1])])?;
            Ok(y)
        },
        |backend, x, dy| {
            let mut gradients = vec![backend.linear_input_gradient(&[(dy, &weight(&x[1]))])?];
            gradients.extend(backend.linear_weight_gradients(&x[0], &[dy])?);
            Ok(gradients)
        },
    )
}

fn rms_norm_cases() -> [Case; 2] {
    [
        case(
            "rms_norm",
            &[&[TOKENS, 2, 37], &[37]],
            |backend, x| backend.rms_norm(&x[0], &x[1], 1e-6),
            |backend, x, dy| {
                let (dx, dweight) = backend.rms_norm_backward(&x[0], &x[1], 1e-6, dy, None)?;
                Ok(vec![dx, dweight])
            },
        ),
        case(
            "rms_norm beside a skip",
            &[&[TOKENS, 37], &[37]],
            |backend, x| backend.rms_norm(&x[0], &x[1], 1e-6)? + &x[0],
            |backend, x, dy| {
                let (dx, dweight) = backend.rms_norm_backward(&x[0], &x[1], 1e-6, dy, Some(dy))?;
                Ok(vec![dx, dweight])
            },
        ),
    ]
}

fn rope_case() -> Case {
    case(
        "rope",
        &[&[TOKENS, 3, 24]],
        |backend, x| backend.rope(&x[0], &cos_sin()),
        |backend, _, dy| Ok(vec![backend.rope_backward(dy, &cos_sin())?]),
    )
}

fn attention_cases() -> [Case; 3] {
    [
        attention_case(
            "attention",
            &[&[TOKENS, 6, 24], &[TOKENS, 2, 24], &[TOKENS, 2, 24]],
            rows,
        ),
        attention_case(
            "attention of wide heads",
            &[&[TOKENS, 3, 40], &[TOKENS, 3, 40], &[TOKENS, 3, 40]],
            rows,
        ),
        attention_case(
            "attention of continued rows",
            &[&[TOKENS, 6, 24], &[TOKENS, 2, 24], &[TOKENS, 2, 24]],
            continued_rows,
        ),
    ]
}

fn swiglu_case() -> Case {
    case(
        "swiglu",
        &[&[TOKENS, 21], &[TOKENS, 21]],
        |backend, x| backend.swiglu(&x[0], &x[1]),
        |backend, x, dy| {
            let (dgate, dup) = backend.swiglu_backward(&x[0], &x[1], dy)?;
            Ok(vec![dgate, dup])
        },
    )
}

fn rows_case() -> Case {
    case(
        "select_rows and add_rows",
        &[&[TOKENS, 7]],
        |_, x| ops::select_rows(&x[0], &targets()),
        |backend, x, dy| {
            let sum = backend.add_rows(x[0].zeros_like()?, &targets(), dy)?;
            Ok(vec![sum])
        },
    )
}

fn cases() -> Vec<Case> {
    let mut cases = vec![linear_case()];
    cases.extend(rms_norm_cases());
    cases.push(rope_case());
    cases.extend(attention_cases());
    cases.extend([
        swiglu_case(),
        logprobs_case(),
        restricted_logprobs_case(),
        rows_case(),
    ]);
    cases
}

/// Weights every output element differently.
fn weights_of(y: &Tensor) -> Tensor {
    values(y.dims(), 99, y.dtype())
}

/// Returns the weighted sum of all output elements.
fn weighed(y: &Tensor) -> f64 {
    let sum = (y * weights_of(y)).unwrap().sum_all().unwrap();
    sum.to_scalar::<f64>().unwrap()
}

/// Returns the operation's result and the gradients of its weighted sum.
fn gradients(case: &Case, backend: Backend, inputs: &[Tensor]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let y = (case.op)(backend, inputs).unwrap();
    let gradients = (case.backward)(backend, inputs, &weights_of(&y)).unwrap();
    (flat(&y), gradients.iter().map(flat).collect())
}

fn inputs(case: &Case, dtype: DType) -> Vec<Tensor> {
    let shapes = case.shapes.iter().enumerate();
    shapes
        .map(|(i, shape)| values(shape, i, DType::F64).to_dtype(dtype).unwrap())
        .collect()
}

#[test]
fn backward_passes_follow_finite_differences() {
    for case in cases() {
        let inputs = inputs(&case, DType::F64);
        let (_, found) = gradients(&case, Backend::TensorOps, &inputs);
        assert_eq!(found.len(), inputs.len());
        for (at, input) in inputs.iter().enumerate() {
            let direction = values(input.dims(), 50 + at, DType::F64);
            let shifted = |step: f64| {
                let mut inputs = inputs.clone();
                inputs[at] = (input + (&direction * step).unwrap()).unwrap();
                weighed(&(case.op)(Backend::TensorOps, &inputs).unwrap())
            };
            let expected = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            let directional: f64 = found[at]
                .iter()
                .zip(flat(&direction))
                .map(|(g, d)| g * d)
                .sum();
            let what = format!("{} input {at}", case.name);
            assert_near(&[directional], &[expected], 1e-7, &what);
        }
    }
}

#[test]
fn kernels_follow_the_tensor_ops() {
    for case in cases() {
        let [wide, narrow] = [DType::F64, DType::F32].map(|dtype| inputs(&case, dtype));
        let (expected, expected_gradients) = gradients(&case, Backend::TensorOps, &wide);
        let (found, found_gradients) = gradients(&case, Backend::CpuF32, &narrow);
        assert_near(&found, &expected, 1e-5, case.name);
        for (i, (found, expected)) in found_gradients.iter().zip(&expected_gradients).enumerate() {
            assert_near(found, expected, 1e-5, &format!("{} input {i}", case.name));
        }
    }
}

/// More logits than are kept: they are computed in chunks, and again in the backward pass.
#[test]
fn logits_that_are_not_kept_change_no_bit() {
    let (rows, vocabulary, width) = (300, 70_000, 8);
    let hidden = values(&[rows, width], 1, DType::F32);
    let head = weight(&values(&[vocabulary, width], 2, DType::F32));
    let targets: Vec<u32> = (0..rows as u32).map(|i| i * 211).collect();
    let derivatives: Vec<f64> = (0..rows).map(|i| (i as f64 * 0.37).sin()).collect();
    let run = |from: usize, to: usize| {
        let hidden = hidden.narrow(0, from, to - from).unwrap();
        let targets = &targets[from..to];
        let found = Backend::CpuF32
            .token_logprobs(&hidden, &head, targets, 0.9)
            .unwrap();
        let scores = [flat(&found.logprobs), flat(&found.entropies)];
        let derivatives = LogprobGradients {
            logprobs: derivatives[from..to].to_vec(),
            entropies: Some(derivatives[from..to].to_vec()),
        };
        let (dhidden, _) = Backend::CpuF32
            .token_logprobs_backward(found, &hidden, &head, targets, 0.9, &derivatives)
            .unwrap();
        [scores.as_slice(), &[flat(&dhidden)]].concat()
    };
    let together = run(0, rows);
    let (first, second) = (run(0, 150), run(150, rows));
    for (i, together) in together.iter().enumerate() {
        assert_eq!(*together, [first[i].as_slice(), &second[i]].concat());
    }
}

/// Inputs that are views of other tensors, as a decoder may pass them.
#[test]
fn kernels_take_strided_inputs() {
    let x = values(&[37, TOKENS], 1, DType::F32);
    let weight = values(&[37], 2, DType::F32);
    let norm = |x: &Tensor| Backend::CpuF32.rms_norm(x, &weight, 1e-6).unwrap();
    let x = x.t().unwrap();
    let (strided, contiguous) = (norm(&x), norm(&x.contiguous().unwrap()));
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

/// The mean log-probability plus the mean entropy of a small batch, and its gradient.
fn loss(decoder: &Decoder, keep: GradientCheckpointing) -> (f64, Gradients) {
    let mut batch = PackedRows::default();
    batch.push(&[1, 7, 3, 9, 22, 41]);
    batch.push(&[5, 6]);
    let predictors: Vec<u32> = (0..batch.tokens.len() as u32).collect();
    let scored = ScoredTokens {
        predictors: &predictors,
        targets: (&batch.tokens).into(),
        temperature: 1.0,
    };
    let pass = TrainingPass::forward(decoder, &batch, scored, keep).unwrap();
    let share = vec![1.0 / predictors.len() as f64; predictors.len()];
    let scores = [
        &pass.token_logprobs().logprobs,
        &pass.token_logprobs().entropies,
    ]
    .map(flat);
    let loss = scores.concat().iter().sum::<f64>() * share[0];
    let derivatives = LogprobGradients {
        logprobs: share.clone(),
        entropies: Some(share),
    };
    (loss, pass.backward(&derivatives).unwrap())
}

fn in_dtype(weights: &Weights, dtype: DType) -> Weights {
    let convert = |(name, x): (&str, &Tensor)| (name.to_owned(), x.to_dtype(dtype).unwrap());
    Weights::new(weights.iter().map(convert).collect())
}

#[test]
fn every_parameter_of_every_family_gets_the_gradient_of_f64() {
    for config in configs() {
        let weights = Weights::random(&config, 3).unwrap();
        let backends = [
            (DType::F32, Backend::CpuF32),
            (DType::F64, Backend::TensorOps),
        ];
        let all = backends.map(|(dtype, backend)| {
            let weights = in_dtype(&weights, dtype);
            let decoder =
                Decoder::on_backend(&config, &weights, DecoderMode::Train, backend).unwrap();
            let (_, gradients) = loss(&decoder, GradientCheckpointing::Off);
            check_gradients(&gradients, weights.iter().map(|(name, _)| name)).unwrap();
            let flat = |(name, x): (&String, &Tensor)| (name.clone(), flat(x));
            gradients.iter().map(flat).collect::<Vec<_>>()
        });
        assert_eq!(all[0].len(), weights.iter().count());
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
fn layers_computed_again_change_no_bit() {
    for config in configs() {
        let weights = Weights::random(&config, 3).unwrap();
        let decoder = Decoder::new(&config, &weights, DecoderMode::Train).unwrap();
        let [kept, again] = [GradientCheckpointing::Off, GradientCheckpointing::On]
            .map(|keep| loss(&decoder, keep));
        assert_eq!(kept.0, again.0);
        for (name, gradient) in &kept.1 {
            assert_eq!(flat(gradient), flat(again.1.get(name).unwrap()), "{name}");
        }
    }
}

#[test]
fn the_guard_names_a_parameter_without_gradient() {
    let config = &configs()[0];
    let decoder = Decoder::new(
        config,
        &Weights::random(config, 3).unwrap(),
        DecoderMode::Train,
    )
    .unwrap();
    let (_, gradients) = loss(&decoder, GradientCheckpointing::Off);
    let names = ["model.norm.weight", "model.layers.7.extra"];
    let message = check_gradients(&gradients, names.into_iter())
        .unwrap_err()
        .to_string();
    assert!(message.contains("model.layers.7.extra"), "{message}");
}

#[test]
fn a_decoder_for_sampling_says_that_it_has_no_backward_pass() {
    let config = &configs()[0];
    let decoder = Decoder::new(
        config,
        &Weights::random(config, 3).unwrap(),
        DecoderMode::Sample,
    )
    .unwrap();
    let mut batch = PackedRows::default();
    batch.push(&[1, 2]);
    let scored = ScoredTokens {
        predictors: &[0],
        targets: (&[2]).into(),
        temperature: 1.0,
    };
    let pass = TrainingPass::forward(&decoder, &batch, scored, GradientCheckpointing::Off).unwrap();
    let derivatives = LogprobGradients {
        logprobs: vec![1.0],
        entropies: None,
    };
    let message = pass.backward(&derivatives).unwrap_err().to_string();
    assert!(message.contains("sampling"), "{message}");
}
