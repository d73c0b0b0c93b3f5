//! Tests a group whose prompt is prefilled once: the gradient of every weight is that of whole
//! rows, and every score has the same bits.

use std::collections::BTreeMap;

use candle_core::{DType, Tensor};
use learner::batch::{MicroBatch, Prefixes, Sample, micro_batches};
use policy::{
    Decoder, DecoderMode, GradientCheckpointing, Model, TrainingPass, Weights,
    ops::LogprobGradients,
};

use crate::common::small_model;

const BUDGET_TOKENS: usize = 400;

/// Two groups of five: a prompt of 60 tokens, two of them shared by all; completions of 1 to 33
/// tokens with gaps that are not scored.
fn samples(vocabulary: u32) -> Vec<Sample<'static>> {
    let token = |seed: usize, at: usize| ((seed * 7919 + at * at * 31 + at) as u32) % vocabulary;
    let sample = |group: usize, member: usize| {
        let prompt = (0..60).map(|at| token(if at < 2 { 0 } else { group + 1 }, at));
        let completion = (0..1 + member * 8).map(|at| token(100 + group * 10 + member, at));
        let tokens: Vec<u32> = prompt.chain(completion).collect();
        let scored = (60..tokens.len()).filter(|at| at % 9 != 4).collect();
        let tokens = tokens.into();
        Sample {
            tokens,
            scored,
            ..Sample::default()
        }
    };
    let members = |group| (0..5).map(move |member| sample(group, member));
    (0..2).flat_map(members).collect()
}

fn derivative(sample: usize, place: usize) -> f64 {
    ((sample * 13 + place * 5) as f64).sin()
}

/// Log-probabilities of each sample's scored tokens, and the summed gradient of each weight.
type Trained = (BTreeMap<usize, Vec<f64>>, BTreeMap<String, Vec<f64>>);

fn train(decoder: &Decoder, all: &[Sample<'_>], prefixes: Prefixes) -> Trained {
    let (mut logprobs, mut gradients) = (BTreeMap::new(), BTreeMap::<_, Vec<f64>>::new());
    for micro in micro_batches(all, BUDGET_TOKENS, prefixes) {
        let derivatives = derivatives(&micro);
        let scored = micro.scored_tokens(0.9);
        let pass =
            TrainingPass::forward(decoder, &micro.packed, scored, GradientCheckpointing::Off)
                .unwrap();
        let mut found = flat(&pass.token_logprobs().logprobs).into_iter();
        for (&sample, &count) in micro.samples.iter().zip(&micro.scored) {
            logprobs.insert(sample, found.by_ref().take(count).collect());
        }
        let derivatives = LogprobGradients {
            logprobs: derivatives.clone(),
            entropies: Some(derivatives),
        };
        for (name, gradient) in pass.backward(&derivatives).unwrap() {
            let gradient = flat(&gradient);
            let sum = gradients
                .entry(name)
                .or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
    }
    (logprobs, gradients)
}

fn derivatives(micro: &MicroBatch) -> Vec<f64> {
    let counts = micro.samples.iter().zip(&micro.scored);
    counts
        .flat_map(|(&sample, &count)| (0..count).map(move |place| derivative(sample, place)))
        .collect()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    flat.to_vec1().unwrap()
}

fn decoder(model: &Model, dtype: DType) -> Decoder {
    let convert = |(name, x): (&str, &Tensor)| (name.to_owned(), x.to_dtype(dtype).unwrap());
    let weights = Weights::new(model.weights.iter().map(convert).collect());
    Decoder::new(&model.config, &weights, DecoderMode::Train).unwrap()
}

fn computed_tokens(all: &[Sample<'_>], prefixes: Prefixes) -> usize {
    let batches = micro_batches(all, BUDGET_TOKENS, prefixes);
    batches.iter().map(|micro| micro.packed.tokens.len()).sum()
}

#[test]
fn a_shared_prompt_leaves_every_gradient_as_it_was() {
    let model = small_model(5);
    let all = samples(model.config.vocab_size as u32);
    assert!(
        2 * computed_tokens(&all, Prefixes::Shared) < computed_tokens(&all, Prefixes::Repeated)
    );
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        let decoder = decoder(&model, dtype);
        let [shared, repeated] =
            [Prefixes::Shared, Prefixes::Repeated].map(|way| train(&decoder, &all, way));
        if dtype == DType::F32 {
            assert_eq!(shared.0, repeated.0, "log-probabilities");
        }
        assert_eq!(shared.1.len(), repeated.1.len());
        for (name, expected) in &repeated.1 {
            let largest = expected.iter().fold(0.0_f64, |max, g| max.max(g.abs()));
            assert!(largest > 0.0, "{name} has no influence");
            for (found, expected) in shared.1[name].iter().zip(expected) {
                let error = (found - expected).abs() / largest;
                assert!(error <= tolerance, "{name} in {dtype:?}: {error:e}");
            }
        }
    }
}
