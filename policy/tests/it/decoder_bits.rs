//! Tests batch invariance: a row's output is the same, bit for bit, in any batch and in any chunks.

use candle_core::{DType, Device, Tensor};
use policy::ops::{InstructionSet, LogprobGradients, log_softmax_at, with_instruction_set};
use policy::{
    Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, KvCache, PackedRows, ScoredTokens,
    TrainingPass, Weights,
};
use proptest::prelude::*;

use crate::common::tokens;

/// Head sizes, widths and a vocabulary that leave remainders in every kernel.
const SHAPES: [&str; 3] = [
    r#""model_type": "qwen3", "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
       "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 101, "tie_word_embeddings": true"#,
    r#""model_type": "qwen2", "hidden_size": 40, "intermediate_size": 70, "num_attention_heads": 4,
       "num_key_value_heads": 4, "head_dim": 10, "vocab_size": 67, "tie_word_embeddings": false"#,
    r#""model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
       "num_key_value_heads": 1, "head_dim": 48, "vocab_size": 130, "tie_word_embeddings": false"#,
];

/// Each shape in f32 and in bf16.
fn cases() -> impl Iterator<Item = (usize, DType)> {
    (0..SHAPES.len()).flat_map(|shape| [(shape, DType::F32), (shape, DType::BF16)])
}

struct Policy {
    config: DecoderConfig,
    train: Decoder,
    sample: Decoder,
}

impl Policy {
    fn new((shape, dtype): (usize, DType)) -> Self {
        let config =
            DecoderConfig::from_json(&format!("{{{}, \"num_hidden_layers\": 2}}", SHAPES[shape]))
                .unwrap();
        let weights = Weights::random(&config, 11).unwrap();
        let weights = weights.to(&Device::Cpu, dtype).unwrap();
        Self {
            train: Decoder::new(&config, &weights, DecoderMode::Train).unwrap(),
            sample: Decoder::new(&config, &weights, DecoderMode::Sample).unwrap(),
            config,
        }
    }

    /// The logits of every token of one row, run alone by the training decoder.
    fn alone(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let mut batch = PackedRows::default();
        batch.push(tokens);
        self.run(&self.train, &batch, None)
    }

    fn run(
        &self,
        decoder: &Decoder,
        batch: &PackedRows,
        cache: Option<&mut KvCache>,
    ) -> Vec<Vec<u32>> {
        let hidden = decoder.forward(batch, cache).unwrap();
        bits(&decoder.logits(&hidden).unwrap())
    }
}

fn bits(logits: &Tensor) -> Vec<Vec<u32>> {
    let logits = logits.to_dtype(DType::F32).unwrap();
    let rows = logits.to_vec2::<f32>().unwrap();
    rows.iter()
        .map(|row| row.iter().map(|x| x.to_bits()).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each row alone = all rows in one training batch = prefilled in random chunks to shuffled
    /// cache slots, with other rows joining and leaving in between.
    #[test]
    fn other_rows_and_chunks_change_no_bit(
        case in prop::sample::select(cases().collect::<Vec<_>>()),
        lengths in prop::collection::vec(1_usize..70, 1..6),
        chunks in prop::collection::vec(1_usize..40, 1..8),
    ) {
        let policy = Policy::new(case);
        let rows: Vec<Vec<u32>> = lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| tokens(i, len, policy.config.vocab_size))
            .collect();
        let alone: Vec<_> = rows.iter().map(|row| policy.alone(row)).collect();

        let mut together = PackedRows::default();
        rows.iter().for_each(|row| together.push(row));
        prop_assert_eq!(policy.run(&policy.train, &together, None), alone.concat());
        prop_assert_eq!(policy.run(&policy.sample, &together, None), alone.concat());

        let mut cache = policy.sample.kv_cache(rows.len(), 70).unwrap();
        let mut chunk = chunks.iter().cycle();
        while (0..rows.len()).any(|i| cache.length(i) < rows[i].len()) {
            let (mut batch, mut expected) = (PackedRows::default(), Vec::new());
            for (i, row) in rows.iter().enumerate().rev() {
                let past = cache.length(i);
                let len = chunk.next().unwrap().min(&(row.len() - past)).to_owned();
                if len > 0 {
                    batch.push_after(&row[past..past + len], past, i);
                    expected.extend_from_slice(&alone[i][past..past + len]);
                }
            }
            prop_assert_eq!(policy.run(&policy.sample, &batch, Some(&mut cache)), expected);
        }
    }
}

#[test]
fn token_by_token_is_one_prefill() {
    for case in cases() {
        let policy = Policy::new(case);
        let row = tokens(3, 67, policy.config.vocab_size);
        let mut cache = policy.sample.kv_cache(2, row.len()).unwrap();
        let mut stepwise = Vec::new();
        for (past, token) in row.iter().enumerate() {
            let mut batch = PackedRows::default();
            batch.push_after(&[*token], past, 1);
            stepwise.extend(policy.run(&policy.sample, &batch, Some(&mut cache)));
        }
        assert_eq!(stepwise, policy.alone(&row));
    }
}

#[test]
fn a_copied_prefix_and_a_reset_slot_serve_like_fresh_ones() {
    for case in cases() {
        a_copied_prefix_and_a_reset_slot_serve(&Policy::new(case));
    }
}

fn a_copied_prefix_and_a_reset_slot_serve(policy: &Policy) {
    let row = tokens(5, 60, policy.config.vocab_size);
    let other = tokens(6, 60, policy.config.vocab_size);
    let expected = policy.alone(&row);
    let mut cache = policy.sample.kv_cache(2, 64).unwrap();
    let run = |cache: &mut KvCache, tokens: &[u32], slot| {
        let mut batch = PackedRows::default();
        batch.push_after(tokens, cache.length(slot), slot);
        policy.run(&policy.sample, &batch, Some(cache))
    };
    run(&mut cache, &other, 1);
    run(&mut cache, &row[..45], 0);
    cache.copy_prefix(0, 1, 41).unwrap();
    assert_eq!(run(&mut cache, &row[41..], 1), expected[41..]);
    // A row that begins again in the middle of a page.
    let mut again = PackedRows::default();
    again.push_after(&row[37..], 37, 1);
    assert_eq!(
        policy.run(&policy.sample, &again, Some(&mut cache)),
        expected[37..]
    );
    cache.reset_slot(0);
    assert_eq!(run(&mut cache, &row, 0), expected);
}

#[test]
fn rows_that_continue_another_return_what_whole_rows_do() {
    for case in cases() {
        let policy = Policy::new(case);
        let whole = tokens(5, 67, policy.config.vocab_size);
        let other = tokens(6, 40, policy.config.vocab_size);
        let ending = |past: usize, seed: usize| {
            let rest = tokens(seed, 21, policy.config.vocab_size);
            ([&whole[..past], &rest].concat(), rest)
        };
        let mut batch = PackedRows::default();
        batch.push(&other);
        batch.push(&whole);
        let mut expected = [policy.alone(&other), policy.alone(&whole)].concat();
        // The longest past after a shorter one, and one that comes after a row in between.
        for (past, seed) in [(33, 7), (67, 8), (1, 9), (50, 10)] {
            let (row, rest) = ending(past, seed);
            batch.push_after(&rest, past, 1);
            expected.extend_from_slice(&policy.alone(&row)[past..]);
            if past == 1 {
                batch.push(&other);
                expected.extend(policy.alone(&other));
            }
        }
        assert_eq!(policy.run(&policy.train, &batch, None), expected);
        assert_eq!(policy.run(&policy.sample, &batch, None), expected);
    }
}

#[test]
fn the_learner_computes_the_logprob_that_was_sampled() {
    for case in cases() {
        let policy = Policy::new(case);
        for temperature in [1.0, 0.7, 1.3] {
            let row = tokens(9, 50, policy.config.vocab_size);
            let mut cache = policy.sample.kv_cache(1, 64).unwrap();
            let mut sampled = Vec::new();
            for past in 0..row.len() - 1 {
                let mut batch = PackedRows::default();
                batch.push_after(&row[past..=past], past, 0);
                let hidden = policy.sample.forward(&batch, Some(&mut cache)).unwrap();
                let logits = policy
                    .sample
                    .logits(&hidden)
                    .unwrap()
                    .to_vec2::<f32>()
                    .unwrap();
                sampled.push(log_softmax_at(
                    &logits[0],
                    row[past + 1] as usize,
                    temperature,
                ));
            }
            let mut batch = PackedRows::default();
            batch.push(&tokens(1, 33, policy.config.vocab_size));
            batch.push(&row);
            let hidden = policy.train.forward(&batch, None).unwrap();
            let hidden = hidden.narrow(0, 33, row.len() - 1).unwrap();
            let learned = policy
                .train
                .token_logprobs(&hidden, &row[1..], temperature)
                .unwrap();
            let learned = learned.logprobs.to_vec1::<f32>().unwrap();
            let as_bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(as_bits(&learned), as_bits(&sampled));
        }
    }
}

#[test]
fn instruction_sets_agree_forward_and_backward() {
    for (shape, dtype) in cases() {
        let config = Policy::new((shape, dtype)).config;
        let weights = Weights::random(&config, 5).unwrap();
        let weights = weights.to(&Device::Cpu, dtype).unwrap();
        let decoder = Decoder::new(&config, &weights, DecoderMode::Train).unwrap();
        let mut batch = PackedRows::default();
        batch.push(&tokens(1, 37, config.vocab_size));
        batch.push(&tokens(2, 5, config.vocab_size));
        batch.push_after(&tokens(3, 9, config.vocab_size), 21, 0);
        let predictors: Vec<u32> = (0..batch.tokens.len() as u32).collect();
        let scored = ScoredTokens {
            predictors: &predictors,
            targets: (&batch.tokens).into(),
            temperature: 0.9,
        };
        let ones = vec![1.0; predictors.len()];
        let derivatives = LogprobGradients {
            logprobs: ones.clone(),
            entropies: Some(ones),
        };
        let everything = || {
            let pass = TrainingPass::forward(&decoder, &batch, scored, GradientCheckpointing::Off)
                .unwrap();
            let mut all = bits(&decoder.forward(&batch, None).unwrap());
            all.extend(bits(&pass.token_logprobs().logprobs.unsqueeze(0).unwrap()));
            for gradient in pass.backward(&derivatives).unwrap().values() {
                let gradient = gradient.flatten_all().unwrap();
                all.extend(bits(&gradient.unsqueeze(0).unwrap()));
            }
            all
        };
        let sets = InstructionSet::available();
        eprintln!("compared: {sets:?}");
        let results: Vec<_> = sets
            .iter()
            .map(|&set| with_instruction_set(set, everything).unwrap())
            .collect();
        assert!(
            results.windows(2).all(|pair| pair[0] == pair[1]),
            "shape {shape} in {dtype:?}"
        );
    }
}

#[test]
fn rows_that_do_not_fit_are_refused_with_the_reason() {
    let policy = Policy::new((0, DType::F32));
    let mut cache = policy.sample.kv_cache(2, 8).unwrap();
    let batch = |rows: &[(usize, usize, usize)]| {
        let mut batch = PackedRows::default();
        for &(len, past, slot) in rows {
            batch.push_after(&vec![1; len], past, slot);
        }
        batch
    };
    let cases = [
        (batch(&[(9, 0, 0)]), "at most 8"),
        (batch(&[(1, 1, 0)]), "holds only 0"),
        (batch(&[(1, 0, 2)]), "2 slots"),
        (batch(&[(1, 0, 1), (2, 0, 1)]), "same slot"),
        (batch(&[(0, 0, 0)]), "empty"),
        (
            PackedRows {
                tokens: vec![101],
                ..batch(&[(1, 0, 0)])
            },
            "vocabulary",
        ),
    ];
    for (batch, reason) in cases {
        let message = policy
            .sample
            .forward(&batch, Some(&mut cache))
            .unwrap_err()
            .to_string();
        assert!(message.contains(reason), "{message}");
        assert_eq!(cache.length(0) + cache.length(1), 0);
    }
    let message = policy
        .sample
        .forward(&batch(&[(1, 3, 0)]), None)
        .unwrap_err()
        .to_string();
    assert!(message.contains("KV cache"), "{message}");
    assert!(cache.copy_prefix(0, 1, 1).is_err());
    let weights = Weights::random(&policy.config, 0).unwrap();
    assert!(
        Decoder::new(
            &Policy::new((1, DType::F32)).config,
            &weights,
            DecoderMode::Sample
        )
        .is_err()
    );
}

/// More keys than any kernel reads at once.
#[test]
fn a_long_row_has_the_same_bits_in_chunks() {
    for dtype in [DType::F32, DType::BF16] {
        let policy = Policy::new((0, dtype));
        let row = tokens(4, 1_400, policy.config.vocab_size);
        let mut cache = policy.sample.kv_cache(2, row.len()).unwrap();
        let mut found = Vec::new();
        for (chunk, past) in [
            (&row[..1_000], 0),
            (&row[1_000..1_399], 1_000),
            (&row[1_399..], 1_399),
        ] {
            let mut batch = PackedRows::default();
            batch.push_after(chunk, past, 1);
            found.extend(policy.run(&policy.sample, &batch, Some(&mut cache)));
        }
        assert_eq!(found, policy.alone(&row), "{dtype:?}");
    }
}
