//! Tests the decoder by tensor operations, as other devices run it, on the CPU. It compares them in
//! f32 with the kernels, in f64 the KV cache with the whole forward pass, and in f32 and bf16
//! sampling with training, bit for bit.

use candle_core::{DType, Device, Tensor};
use policy::ops::Backend;
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, KvCache, PackedRows, ScoredTokens,
    TrainingPass, Weights, embedded,
};
use proptest::prelude::*;

use crate::common::{flat, tokens};

const CPU: Device = Device::Cpu;

/// Grouped heads with norms; biases and one head a group; one key-value head.
const SHAPES: [&str; 3] = [
    r#""model_type": "qwen3", "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
       "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 101, "tie_word_embeddings": true"#,
    r#""model_type": "qwen2", "hidden_size": 40, "intermediate_size": 70, "num_attention_heads": 4,
       "num_key_value_heads": 4, "head_dim": 10, "vocab_size": 67, "tie_word_embeddings": false"#,
    r#""model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
       "num_key_value_heads": 1, "head_dim": 24, "vocab_size": 130, "tie_word_embeddings": false"#,
];

fn config(shape: usize) -> DecoderConfig {
    let text = format!("{{{}, \"num_hidden_layers\": 2}}", SHAPES[shape]);
    DecoderConfig::from_json(&text).unwrap()
}

fn decoder(config: &DecoderConfig, dtype: DType, mode: DecoderMode) -> Decoder {
    on(Backend::of(&CPU, dtype), config, dtype, mode)
}

fn on(backend: Backend, config: &DecoderConfig, dtype: DType, mode: DecoderMode) -> Decoder {
    let weights = Weights::random(config, 11).unwrap();
    let weights = weights.to(&CPU, dtype).unwrap();
    Decoder::on_backend(config, &weights, mode, backend).unwrap()
}

/// Returns the logits of every token of the batch.
fn run(decoder: &Decoder, batch: &PackedRows, cache: Option<&mut KvCache>) -> Vec<Vec<f64>> {
    let hidden = decoder.forward(batch, cache).unwrap();
    let logits = decoder.logits(&hidden).unwrap();
    logits.to_dtype(DType::F64).unwrap().to_vec2().unwrap()
}

fn packed(rows: &[Vec<u32>]) -> PackedRows {
    let mut batch = PackedRows::default();
    rows.iter().for_each(|row| batch.push(row));
    batch
}

/// Returns the largest difference.
fn gap(found: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Prefills the rows in slots of their own in chunks, several rows a pass, and returns each row's
/// logits.
fn prefill(
    decoder: &Decoder,
    cache: &mut KvCache,
    rows: &[Vec<u32>],
    chunks: &[usize],
) -> Vec<Vec<Vec<f64>>> {
    let mut found = vec![Vec::new(); rows.len()];
    let mut chunk = chunks.iter().cycle();
    while (0..rows.len()).any(|i| cache.length(i) < rows[i].len()) {
        let (mut batch, mut lens) = (PackedRows::default(), Vec::new());
        for (i, row) in rows.iter().enumerate().rev() {
            let past = cache.length(i);
            let len = *chunk.next().unwrap().min(&(row.len() - past));
            if len > 0 {
                batch.push_after(&row[past..past + len], past, i);
                lens.push((i, len));
            }
        }
        let mut logits = run(decoder, &batch, Some(&mut *cache)).into_iter();
        for (i, len) in lens {
            found[i].extend(logits.by_ref().take(len));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// Ragged batches of prefill chunks and decode steps through the paged cache equal the whole
    /// forward pass.
    #[test]
    fn batching_and_chunking_change_nothing(
        shape in 0..SHAPES.len(),
        lengths in prop::collection::vec(1_usize..70, 1..6),
        chunks in prop::collection::vec(prop_oneof![Just(1_usize), 1_usize..40], 1..8),
    ) {
        let config = config(shape);
        let decoder = decoder(&config, DType::F64, DecoderMode::Sample);
        let rows: Vec<Vec<u32>> = lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| tokens(i, len, config.vocab_size))
            .collect();
        let mut cache = decoder.kv_cache(rows.len(), 70).unwrap();
        let found = prefill(&decoder, &mut cache, &rows, &chunks);
        for (row, found) in rows.iter().zip(found) {
            let alone = run(&decoder, &packed(std::slice::from_ref(row)), None);
            prop_assert!(gap(&found, &alone) < 1e-12);
        }
    }
}

/// Members of a group share the pages of their prompt; what each writes after it is its own.
#[test]
fn slots_that_share_a_prefix_continue_as_if_alone() {
    let config = config(0);
    let decoder = decoder(&config, DType::F64, DecoderMode::Sample);
    let prompt = tokens(5, 45, config.vocab_size);
    let members: Vec<Vec<u32>> = (0..4)
        .map(|i| [&prompt[..], &tokens(20 + i, 30, config.vocab_size)].concat())
        .collect();
    let mut cache = decoder.kv_cache(4, 80).unwrap();
    let mut batch = PackedRows::default();
    batch.push_after(&prompt, 0, 0);
    run(&decoder, &batch, Some(&mut cache));
    for (slot, shared) in [(1, 45), (2, 40), (3, 32)] {
        cache.copy_prefix(0, slot, shared).unwrap();
    }
    let begun: Vec<usize> = (0..4).map(|slot| cache.length(slot)).collect();
    let found = prefill(&decoder, &mut cache, &members, &[1]);
    for ((member, found), begun) in members.iter().zip(&found).zip(begun) {
        let alone = run(&decoder, &packed(std::slice::from_ref(member)), None);
        assert!(gap(found, &alone[begun..]) < 1e-12);
    }
}

/// In f32 tensor operations equal the kernels up to the order of sums: whole rows, rows that
/// continue others, and the cache.
#[test]
fn tensor_ops_agree_with_the_kernels() {
    for shape in 0..SHAPES.len() {
        let config = config(shape);
        let rows = [37, 1, 20].map(|len| tokens(len, len, config.vocab_size));
        let mut batch = packed(&rows);
        batch.push_after(&tokens(9, 7, config.vocab_size), 20, 0);
        let kernels = decoder(&config, DType::F32, DecoderMode::Sample);
        let expected = run(&kernels, &batch, None);
        let tensor_ops = on(Backend::TensorOps, &config, DType::F32, DecoderMode::Sample);
        assert!(gap(&run(&tensor_ops, &batch, None), &expected) < 1e-5);
        let mut cache = tensor_ops.kv_cache(3, 40).unwrap();
        let found = prefill(&tensor_ops, &mut cache, &rows, &[5, 1, 9]).concat();
        assert!(gap(&found, &expected[..58]) < 1e-5);
    }
}

/// Returns the log-probabilities of the tokens after each row's first, as training scores them.
fn trained(decoder: &Decoder, rows: &[Vec<u32>], temperature: f64) -> Vec<f64> {
    let batch = packed(rows);
    let (mut predictors, mut targets, mut first) = (Vec::new(), Vec::new(), 0);
    for row in rows {
        predictors.extend(first..first + row.len() as u32 - 1);
        targets.extend_from_slice(&row[1..]);
        first += row.len() as u32;
    }
    let scored = ScoredTokens {
        predictors: &predictors,
        targets: (&targets).into(),
        temperature: temperature as f32,
    };
    let pass = TrainingPass::forward(decoder, &batch, scored, GradientCheckpointing::On).unwrap();
    let logprobs: &Tensor = &pass.token_logprobs().logprobs;
    logprobs.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// Returns the mean |difference|, and the k3 estimate of the KL divergence (Schulman,
/// "Approximating KL divergence", 2020).
fn mismatch(sampled: &[f64], trained: &[f64]) -> (f64, f64) {
    assert_eq!(sampled.len(), trained.len());
    let mean = |f: fn(f64) -> f64| {
        let terms = trained.iter().zip(sampled).map(|(a, b)| f(a - b));
        terms.sum::<f64>() / sampled.len() as f64
    };
    (mean(f64::abs), mean(|ratio| ratio.exp() - 1.0 - ratio))
}

const CHUNKS: [&[usize]; 3] = [&[1], &[128], &[7, 1, 30]];

fn rows_of(config: &DecoderConfig) -> Vec<Vec<u32>> {
    let lengths = [90, 17, 64, 33, 41].into_iter().enumerate();
    lengths
        .map(|(i, len)| tokens(i, len, config.vocab_size))
        .collect()
}

/// The logits of a sampler that prefills through the cache, in any chunks, equal those of a learner
/// that has whole rows, bit for bit, because products have one shape whatever the batch.
#[test]
fn tensor_op_sampling_is_training_bit_for_bit() {
    for dtype in [DType::F32, DType::BF16] {
        sampling_is_training(dtype);
    }
}

fn sampling_is_training(dtype: DType) {
    let config = embedded::model(0).unwrap().config;
    let rows = rows_of(&config);
    let [sampler, learner] = [DecoderMode::Sample, DecoderMode::Train]
        .map(|mode| on(Backend::TensorOps, &config, dtype, mode));
    let whole = run(&learner, &packed(&rows), None);
    for chunks in CHUNKS {
        let mut cache = sampler.kv_cache(rows.len(), 128).unwrap();
        let found = prefill(&sampler, &mut cache, &rows, chunks).concat();
        assert_eq!(found, whole, "{dtype:?}, chunks {chunks:?}");
    }
    let mut first = 0;
    for row in &rows {
        let alone = run(&learner, &packed(std::slice::from_ref(row)), None);
        assert_eq!(alone, whole[first..first + row.len()], "{dtype:?}, alone");
        first += row.len();
    }
}

/// The error of bf16: its log-probabilities against those of f32.
#[test]
fn bf16_is_near_f32() {
    let config = embedded::model(0).unwrap().config;
    let rows = rows_of(&config);
    let trained = |backend, dtype| {
        let decoder = on(backend, &config, dtype, DecoderMode::Train);
        [1.0, 0.7].map(|temperature| trained(&decoder, &rows, temperature))
    };
    let exact = trained(Backend::CpuF32, DType::F32);
    let rounded = [
        trained(Backend::CpuBf16, DType::BF16),
        trained(Backend::TensorOps, DType::BF16),
    ];
    for (rounded, exact) in rounded
        .iter()
        .flat_map(|rounded| rounded.iter().zip(&exact))
    {
        let (mean, k3) = mismatch(rounded, exact);
        println!("bf16 against f32: mean {mean:.2e}, k3 {k3:.2e}");
        assert!(mean < 2e-2 && k3 < 3e-4, "mean {mean}, k3 {k3}");
    }
}

/// In bf16 every parameter has a gradient close to that of f32: the angle between them is small.
#[test]
fn gradients_in_bf16_point_where_those_of_f32_do() {
    for shape in 0..SHAPES.len() {
        let config = config(shape);
        let rows = [
            tokens(1, 30, config.vocab_size),
            tokens(2, 12, config.vocab_size),
        ];
        let gradients = [DType::BF16, DType::F32].map(|dtype| {
            let decoder = decoder(&config, dtype, DecoderMode::Train);
            let batch = packed(&rows);
            let predictors: Vec<u32> = (0..batch.tokens.len() as u32).collect();
            let scored = ScoredTokens {
                predictors: &predictors,
                targets: (&batch.tokens).into(),
                temperature: 1.0,
            };
            let derivatives = policy::ops::LogprobGradients {
                logprobs: vec![1.0; predictors.len()],
                entropies: None,
            };
            let pass =
                TrainingPass::forward(&decoder, &batch, scored, GradientCheckpointing::On).unwrap();
            pass.backward(&derivatives).unwrap()
        });
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (name, exact) in &gradients[1] {
            let (exact, found) = (flat(exact), flat(gradients[0].get(name).unwrap()));
            let cosine = dot(&exact, &found) / (dot(&exact, &exact) * dot(&found, &found)).sqrt();
            assert!(cosine > 0.995, "{name}: cosine {cosine}");
        }
    }
}
