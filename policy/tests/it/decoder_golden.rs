//! Compares the decoder with transformers (recorded in `golden/models`) and with
//! candle-transformers (run here).

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use policy::ops::{Backend, LogprobGradients};
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, Gradients, PackedRows,
    ScoredTokens, TrainingPass, Weights, check_gradients,
};
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::common::flat;

const CPU: Device = Device::Cpu;
const TOLERANCE: f32 = 1e-4;
/// The models recorded in f32.
const RECORDED: [&str; 4] = ["qwen3_tied", "qwen3_untied", "qwen2_tied", "llama_tied"];

#[derive(Deserialize)]
struct Cases {
    batches: Vec<Batch>,
    greedy: Greedy,
}

#[derive(Deserialize)]
struct Batch {
    name: String,
    input_ids: Vec<Vec<u32>>,
    attention_mask: Vec<Vec<u8>>,
    logits: String,
    argmax_last: Vec<u32>,
    logprobs: BTreeMap<String, Logprobs>,
    cross_entropy: CrossEntropy,
}

#[derive(Deserialize)]
struct Logprobs {
    logps: Vec<Vec<f32>>,
    entropy: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct CrossEntropy {
    loss_mask: Vec<Vec<u8>>,
    n_tokens: usize,
    loss: f32,
    grad_total_l2: f64,
    grads: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    l2: f64,
    flat_index: Vec<usize>,
    value: Vec<f64>,
}

#[derive(Deserialize)]
struct Greedy {
    prompts: Vec<Vec<u32>>,
    tokens: Vec<Vec<u32>>,
    token_logps: Vec<Vec<f32>>,
}

impl Batch {
    /// Returns the real tokens of row `b`, and the column of the first.
    fn row(&self, b: usize) -> (Vec<u32>, usize) {
        let mask = &self.attention_mask[b];
        let start = mask.iter().position(|&m| m == 1).unwrap();
        let real = |(&token, &m): (&u32, &u8)| (m == 1).then_some(token);
        (
            self.input_ids[b]
                .iter()
                .zip(mask)
                .filter_map(real)
                .collect(),
            start,
        )
    }

    fn packed(&self) -> PackedRows {
        let mut packed = PackedRows::default();
        for b in 0..self.input_ids.len() {
            packed.push(&self.row(b).0);
        }
        packed
    }

    /// (row, column in the padded batch, index in the packed batch) of every real token.
    fn places(&self) -> Vec<(usize, usize, usize)> {
        let mut places = Vec::new();
        for b in 0..self.input_ids.len() {
            let (tokens, start) = self.row(b);
            for t in 0..tokens.len() {
                places.push((b, start + t, places.len()));
            }
        }
        places
    }
}

struct Golden {
    dir: PathBuf,
    config: DecoderConfig,
    weights: Weights,
    backend: Backend,
}

impl Golden {
    fn open(name: &str, backend: Backend) -> Self {
        let dir = folder(name);
        let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
        let config = DecoderConfig::from_json(&text).unwrap();
        let weights = Weights::load(&dir, &config, &CPU, DType::F32).unwrap();
        Self {
            dir,
            config,
            weights,
            backend,
        }
    }

    /// Opens all models on the kernels, or on the tensor operations of other devices.
    fn all() -> impl Iterator<Item = Self> {
        let backends = [Backend::CpuF32, Backend::TensorOps].into_iter();
        backends.flat_map(|backend| RECORDED.map(|name| Self::open(name, backend)))
    }

    fn cases(&self) -> Cases {
        let text = std::fs::read_to_string(self.dir.join("cases.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn expected(&self) -> BTreeMap<String, Tensor> {
        let bytes = std::fs::read(self.dir.join("expected.safetensors")).unwrap();
        let weights = Weights::from_bytes(&bytes, &CPU, DType::F32).unwrap();
        weights
            .iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.clone()))
            .collect()
    }

    fn decoder(&self, purpose: DecoderMode) -> Decoder {
        Decoder::on_backend(&self.config, &self.weights, purpose, self.backend).unwrap()
    }
}

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/models")
        .join(model)
}

fn close(found: f32, expected: f32, what: &str) {
    let error = (found - expected).abs();
    assert!(error <= TOLERANCE, "{what}: {found} instead of {expected}");
}

#[test]
fn logits_are_those_of_transformers() {
    for model in Golden::all() {
        let expected = model.expected();
        for purpose in [DecoderMode::Train, DecoderMode::Sample] {
            let decoder = model.decoder(purpose);
            for batch in model.cases().batches {
                let hidden = decoder.forward(&batch.packed(), None).unwrap();
                let logits = decoder.logits(&hidden).unwrap().to_vec2::<f32>().unwrap();
                let expected = expected[&batch.logits].to_vec3::<f32>().unwrap();
                for (b, column, at) in batch.places() {
                    for (found, expected) in logits[at].iter().zip(&expected[b][column]) {
                        close(
                            *found,
                            *expected,
                            &format!("{:?} {}", model.dir, batch.name),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn logprobs_entropies_and_best_tokens_are_those_of_trl() {
    for model in Golden::all() {
        let decoder = model.decoder(DecoderMode::Train);
        for batch in model.cases().batches {
            let packed = batch.packed();
            let hidden = decoder.forward(&packed, None).unwrap();
            let logits = decoder.logits(&hidden).unwrap().to_vec2::<f32>().unwrap();
            let places = batch.places();
            for (temperature, expected) in &batch.logprobs {
                let mut targets = packed.tokens.clone();
                targets.rotate_left(1);
                let temperature: f32 = temperature.parse().unwrap();
                let found = decoder
                    .token_logprobs(&hidden, &targets, temperature)
                    .unwrap();
                let logprobs = found.logprobs.to_vec1::<f32>().unwrap();
                let entropies = found.entropies.to_vec1::<f32>().unwrap();
                for pair in places.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                    let (b, column, at) = pair[0];
                    close(logprobs[at], expected.logps[b][column], "log-probability");
                    close(entropies[at], expected.entropy[b][column], "entropy");
                }
            }
            for (b, &best) in batch.argmax_last.iter().enumerate() {
                let last = places.iter().rfind(|place| place.0 == b).unwrap().2;
                assert_eq!(
                    argmax(&logits[last]),
                    best,
                    "{:?} {}",
                    model.dir,
                    batch.name
                );
            }
        }
    }
}

#[test]
fn loss_and_gradients_are_those_of_transformers() {
    for model in Golden::all() {
        for batch in model.cases().batches {
            check_cross_entropy(&model, &batch);
        }
    }
}

/// For one batch of one model all gradients are recorded.
#[test]
fn every_value_of_the_gradients_is_that_of_transformers() {
    let model = Golden::open("qwen3_tied", Backend::CpuF32);
    let cases = model.cases();
    let batch = cases
        .batches
        .iter()
        .find(|b| b.name == "right_pad")
        .unwrap();
    let (_, gradients) = cross_entropy(&model.decoder(DecoderMode::Train), batch);
    let expected = model.expected();
    for (name, found) in &gradients {
        let expected = flat(&expected[&format!("right_pad.grad.{name}")]);
        let found = flat(found);
        assert_eq!(found.len(), expected.len(), "{name}");
        let norm = batch.cross_entropy.grads[name].l2;
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (found - expected).abs();
            assert!(error <= 1e-4 * norm, "{name}[{at}]: {found} for {expected}");
        }
    }
}

/// The mean cross-entropy of the batch's scored tokens, and its gradient.
fn cross_entropy(decoder: &Decoder, batch: &Batch) -> (f64, Gradients) {
    let packed = batch.packed();
    let mut chosen = Vec::new();
    let places = batch.places();
    for pair in places.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        if batch.cross_entropy.loss_mask[pair[1].0][pair[1].1] == 1 {
            chosen.push(pair[0].2 as u32);
        }
    }
    assert_eq!(chosen.len(), batch.cross_entropy.n_tokens);
    let targets: Vec<u32> = chosen
        .iter()
        .map(|&at| packed.tokens[at as usize + 1])
        .collect();
    let scored = ScoredTokens {
        predictors: &chosen,
        targets: (&targets).into(),
        temperature: 1.0,
    };
    let pass = TrainingPass::forward(decoder, &packed, scored, GradientCheckpointing::Off).unwrap();
    let share = 1.0 / chosen.len() as f64;
    let loss = -share * flat(&pass.token_logprobs().logprobs).iter().sum::<f64>();
    let derivatives = LogprobGradients {
        logprobs: vec![-share; chosen.len()],
        entropies: None,
    };
    (loss, pass.backward(&derivatives).unwrap())
}

fn check_cross_entropy(model: &Golden, batch: &Batch) {
    let expected = &batch.cross_entropy;
    let (loss, gradients) = cross_entropy(&model.decoder(DecoderMode::Train), batch);
    assert!(
        (loss - f64::from(expected.loss)).abs() <= 2e-5,
        "loss {loss} instead of {}",
        expected.loss
    );
    let names = model.weights.iter().map(|(name, _)| name);
    check_gradients(&gradients, names).unwrap();
    let mut total = 0.0;
    for (name, gradient) in &gradients {
        let expected = &expected.grads[name];
        let gradient = flat(gradient);
        let squares: f64 = gradient.iter().map(|g| g * g).sum();
        total += squares;
        let error = (squares.sqrt() - expected.l2).abs();
        assert!(
            error <= 1e-4 * expected.l2,
            "{name}: {} instead of {}",
            squares.sqrt(),
            expected.l2
        );
        for (&at, value) in expected.flat_index.iter().zip(&expected.value) {
            let error = (gradient[at] - value).abs();
            assert!(
                error <= 1e-4 * expected.l2,
                "{name}[{at}]: {} instead of {value}",
                gradient[at]
            );
        }
    }
    assert!((total.sqrt() - expected.grad_total_l2).abs() <= 1e-4 * expected.grad_total_l2);
}

#[test]
fn greedy_tokens_are_those_of_generate() {
    for model in Golden::all() {
        let decoder = model.decoder(DecoderMode::Sample);
        let greedy = model.cases().greedy;
        let longest = greedy.prompts.iter().map(Vec::len).max().unwrap() + greedy.tokens[0].len();
        let mut cache = decoder.kv_cache(greedy.prompts.len(), longest).unwrap();
        let mut next = greedy.prompts.clone();
        for step in 0..greedy.tokens[0].len() {
            let mut batch = PackedRows::default();
            for (slot, tokens) in next.iter().enumerate() {
                batch.push_after(tokens, cache.length(slot), slot);
            }
            let hidden = decoder.forward(&batch, Some(&mut cache)).unwrap();
            let logits = decoder.logits(&hidden).unwrap().to_vec2::<f32>().unwrap();
            let mut last = 0;
            for (slot, tokens) in next.iter_mut().enumerate() {
                last += tokens.len();
                let token = argmax(&logits[last - 1]);
                assert_eq!(
                    token, greedy.tokens[slot][step],
                    "{:?}, step {step}",
                    model.dir
                );
                let logprob = policy::ops::log_softmax_at(&logits[last - 1], token as usize, 1.0);
                close(
                    logprob,
                    greedy.token_logps[slot][step],
                    "greedy log-probability",
                );
                *tokens = vec![token];
            }
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as u32
}

#[test]
fn the_older_config_layout_reads_alike() {
    for name in RECORDED {
        let read = |file: &str| {
            let text = std::fs::read_to_string(folder(name).join(file)).unwrap();
            DecoderConfig::from_json(&text).unwrap()
        };
        assert_eq!(read("config_v4.json"), read("config.json"), "{name}");
    }
}

#[test]
fn weights_stored_in_bf16_run_in_f32() {
    of_bf16_weights(
        Backend::CpuF32,
        "logits_f32compute",
        |found, expected, _| {
            close(found, expected, "logit of bf16 weights");
        },
    );
}

/// The tolerance is that of the recording: twice the largest difference between torch in bf16 and
/// in f32. The mean difference is held to twice torch's own.
#[test]
fn bf16_computes_what_torch_does() {
    for backend in [Backend::CpuBf16, Backend::TensorOps] {
        let (mut sum, mut count, mut of_torch) = (0.0, 0, 0.0_f64);
        of_bf16_weights(backend, "logits_bf16", |found, expected, batch| {
            let difference = f64::from((found - expected).abs());
            let tolerance = batch.tolerance["logits_bf16_atol"].as_f64().unwrap();
            assert!(difference < tolerance, "{backend:?}: {found} {expected}");
            (sum, count) = (sum + difference, count + 1);
            let measured = &batch.measured["mean_abs_logit_bf16_vs_f32compute"];
            of_torch = of_torch.max(measured.as_f64().unwrap());
        });
        let mean = sum / f64::from(count);
        println!("{backend:?}: mean difference {mean:.4}, torch in bf16 and f32 {of_torch:.4}");
        assert!(mean < 2.0 * of_torch, "{backend:?}: {mean} {of_torch}");
    }
}

/// What the recording says of a batch.
struct RecordedBatch<'a> {
    tolerance: &'a serde_json::Value,
    measured: &'a serde_json::Value,
}

/// Calls `compare` with each logit of the model whose weights are bf16, and the recorded one.
fn of_bf16_weights(
    backend: Backend,
    recorded: &str,
    mut compare: impl FnMut(f32, f32, RecordedBatch<'_>),
) {
    let dtype = match backend {
        Backend::CpuF32 => DType::F32,
        _ => DType::BF16,
    };
    let model = Golden::open("qwen3_tied_bf16", Backend::CpuF32);
    let text = std::fs::read_to_string(model.dir.join("cases.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = model.expected();
    let weights = model.weights.to(&CPU, dtype).unwrap();
    let decoder =
        Decoder::on_backend(&model.config, &weights, DecoderMode::Sample, backend).unwrap();
    for batch in cases["batches"].as_array().unwrap() {
        let read = |key: &str| serde_json::from_value::<Vec<Vec<u32>>>(batch[key].clone()).unwrap();
        let (ids, mask) = (read("input_ids"), read("attention_mask"));
        let key = batch[recorded].as_str().unwrap();
        let expected = expected[key].to_dtype(DType::F32).unwrap();
        let expected = expected.to_vec3::<f32>().unwrap();
        for (b, ids) in ids.iter().enumerate() {
            let places: Vec<usize> = (0..ids.len()).filter(|&t| mask[b][t] == 1).collect();
            let mut packed = PackedRows::default();
            packed.push(&places.iter().map(|&t| ids[t]).collect::<Vec<_>>());
            let hidden = decoder.forward(&packed, None).unwrap();
            let logits = decoder.logits(&hidden).unwrap().to_vec2::<f32>().unwrap();
            for (found, &t) in logits.iter().zip(&places) {
                for (found, expected) in found.iter().zip(&expected[b][t]) {
                    let batch = RecordedBatch {
                        tolerance: &cases["tolerance"],
                        measured: &batch["measured"],
                    };
                    compare(*found, *expected, batch);
                }
            }
        }
    }
}

/// candle-transformers' inference-only Qwen3 on random weights.
#[test]
fn candle_transformers_agrees_on_random_weights() {
    use candle_nn::{Activation, VarBuilder};
    use candle_transformers::models::qwen3;

    let config = DecoderConfig::from_json(
        r#"{"model_type": "qwen3", "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 300,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "max_position_embeddings": 128}"#,
    )
    .unwrap();
    let weights = Weights::random(&config, 7).unwrap();
    let tensors = weights
        .iter()
        .map(|(name, tensor)| (name.to_owned(), tensor.clone()));
    let vb = VarBuilder::from_tensors(tensors.collect(), DType::F32, &CPU);
    let oracle_config = qwen3::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        num_hidden_layers: config.layers,
        num_attention_heads: config.heads,
        head_dim: config.head_dim,
        attention_bias: false,
        num_key_value_heads: config.kv_heads,
        max_position_embeddings: config.max_positions,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: true,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    };
    let mut oracle = qwen3::ModelForCausalLM::new(&oracle_config, vb).unwrap();
    let decoder = Decoder::new(&config, &weights, DecoderMode::Sample).unwrap();
    let tokens: Vec<u32> = (0..100).map(|i| (i * 37 + i * i * 11) % 300).collect();
    let mut packed = PackedRows::default();
    packed.push(&tokens);
    let hidden = decoder.forward(&packed, None).unwrap();
    let found = decoder
        .logits(&hidden.narrow(0, tokens.len() - 1, 1).unwrap())
        .unwrap();
    let input = Tensor::new(tokens, &CPU).unwrap().unsqueeze(0).unwrap();
    let expected = oracle.forward(&input, 0).unwrap().flatten_all().unwrap();
    let found = found.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (found, expected) in found.iter().zip(expected.to_vec1::<f32>().unwrap()) {
        assert!(
            (found - expected).abs() < 1e-5,
            "{found} instead of {expected}"
        );
    }
}
