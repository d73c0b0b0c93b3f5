//! The sampler without its thread: which tokens it computes, and that this does not change what it
//! samples.

#[path = "../../../env/tests/common/counters.rs"]
mod counters;

use std::sync::LazyLock;

use ::metrics::with_local_recorder;
use policy::{DecoderConfig, Placement, ops::Backend, random::derive_seed};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;

const PROMPT_TOKENS: usize = 200;
const MEMBERS: usize = 8;
const NEW_TOKENS: usize = 5;
/// More passes than the rows of a case have tokens.
const MOST_PASSES: usize = 40 * 128;

/// A minimal model. It never samples a stop token, because they are all beyond its vocabulary.
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let config = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 64, "tie_word_embeddings": true,
    });
    let config = DecoderConfig::from_json(&config.to_string()).unwrap();
    Model {
        weights: Weights::random(&config, 0).unwrap(),
        config,
        ..policy::embedded::model(0).unwrap()
    }
});

fn weights(version: u64) -> Weights {
    Weights::random(&MODEL.config, version).unwrap()
}

fn sampler(slots: usize, pass_tokens: usize, prefix_sharing: bool) -> Sampler {
    let settings = EngineSettings {
        slots,
        pass_tokens,
        prefix_sharing,
        ..EngineSettings::default()
    };
    Sampler::new(&MODEL, 0, 256, &settings, Placement::default()).unwrap()
}

/// Returns the first `length` tokens of the text with this number.
fn tokens(text: u64, length: usize) -> Vec<u32> {
    let token = |place: usize| (derive_seed(text, &place.to_string()) % 64) as u32;
    (0..length).map(token).collect()
}

type Response = oneshot::Receiver<Result<Completion, ActorError>>;

impl Sampler {
    fn request(&mut self, context: &[u32], member: usize) -> Response {
        let request = CompletionRequest {
            context: context.to_vec(),
            max_tokens: NEW_TOKENS,
            coordinates: Coordinates {
                member: member as u32,
                ..Coordinates::default()
            },
        };
        let (reply, response) = oneshot::channel();
        self.handle(EngineCommand::Complete(CompletionJob {
            request,
            sampling: SamplingSettings::default(),
            constrained: None,
            reply,
        }));
        response
    }

    fn request_group(&mut self) -> Vec<Response> {
        let prompt = tokens(0, PROMPT_TOKENS);
        (0..MEMBERS)
            .map(|member| self.request(&prompt, member))
            .collect()
    }

    fn pass_until_idle(&mut self) {
        while !self.batcher.is_idle() {
            self.pass();
        }
    }
}

/// Returns the prompt tokens computed during `work`. Decode computes all samples of a completion
/// but the last one, and they are subtracted.
fn prefilled_tokens(completions: usize, work: impl FnOnce()) -> usize {
    let counters = counters::Counters::default();
    with_local_recorder(&counters, work);
    let computed = counters.of("actor_computed_tokens_total")[""];
    computed as usize - completions * (NEW_TOKENS - 1)
}

#[test]
fn the_prompt_of_a_group_is_prefilled_once() {
    for (slots, pass_tokens, sharing, wanted) in [
        (MEMBERS, 512, true, PROMPT_TOKENS + MEMBERS - 1),
        // After three of four chunks, the rest is not worth waiting for.
        (
            MEMBERS,
            64,
            true,
            PROMPT_TOKENS + (MEMBERS - 1) * (PROMPT_TOKENS - 3 * 64),
        ),
        (3, 512, true, PROMPT_TOKENS + MEMBERS - 1),
        (MEMBERS, 512, false, MEMBERS * PROMPT_TOKENS),
    ] {
        let mut sampler = sampler(slots, pass_tokens, sharing);
        let prefilled = prefilled_tokens(MEMBERS, || {
            let mut responses = sampler.request_group();
            sampler.pass_until_idle();
            assert!(
                responses
                    .iter_mut()
                    .all(|response| matches!(response.try_recv(), Ok(Ok(_))))
            );
        });
        assert_eq!(
            prefilled, wanted,
            "{slots} slots, {pass_tokens} a pass, sharing {sharing}"
        );
    }
}

#[test]
fn the_next_member_continues_the_prefill_of_an_abandoned_one() {
    let mut sampler = sampler(MEMBERS, 64, true);
    let prefilled = prefilled_tokens(MEMBERS - 1, || {
        let mut responses = sampler.request_group();
        sampler.pass();
        responses.remove(0);
        sampler.pass_until_idle();
    });
    assert_eq!(
        prefilled,
        PROMPT_TOKENS + (MEMBERS - 2) * (PROMPT_TOKENS - 3 * 64)
    );
}

#[test]
fn new_weights_prefill_a_prompt_again() {
    let mut sampler = sampler(MEMBERS, 512, true);
    let prefilled = prefilled_tokens(MEMBERS, || {
        let _responses = sampler.request_group();
        sampler.pass();
        sampler.update_weights(1, &weights(1)).unwrap();
        sampler.pass_until_idle();
    });
    assert_eq!(prefilled, 2 * PROMPT_TOKENS + MEMBERS - 2);
}

/// Checks what a GPU runs, in both dtypes: conversations that share prompts, are prefilled in
/// chunks and get new weights between turns.
#[test]
fn engines_on_tensor_ops_record_what_a_whole_forward_pass_computes() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 0.1)] {
        let settings = EngineSettings {
            slots: 5,
            pass_tokens: 40,
            ..EngineSettings::default()
        };
        let mut sampler = on_tensor_ops(dtype, 256, &settings);
        let cpu_weights = |version| weights(version).to(&Device::Cpu, dtype).unwrap();
        let contexts: Vec<Vec<u32>> = (0..9)
            .map(|row| [tokens(row % 3, 60), tokens(10 + row, row as usize)].concat())
            .collect();
        let mut responses: Vec<Response> = contexts
            .iter()
            .enumerate()
            .map(|(member, context)| sampler.request(context, member))
            .collect();
        (0..6).for_each(|_| sampler.pass());
        sampler.update_weights(1, &cpu_weights(1)).unwrap();
        sampler.pass_until_idle();
        let mut versions = [0; 2];
        for (context, response) in contexts.iter().zip(&mut responses) {
            let completion = response.try_recv().unwrap().unwrap();
            versions[completion.policy_version as usize] += 1;
            let weights = cpu_weights(completion.policy_version);
            let whole = whole_forward(&weights, context, &completion.tokens);
            for (recorded, whole) in completion.logprobs.iter().zip(whole) {
                assert!(
                    (recorded - whole).abs() < tolerance,
                    "{recorded} for {whole} in {dtype:?}"
                );
            }
        }
        assert!(versions[0] > 0 && versions[1] > 0, "{versions:?}");
    }
}

/// Returns a sampler as on a GPU.
fn on_tensor_ops(dtype: DType, context_tokens: usize, settings: &EngineSettings) -> Sampler {
    let weights = MODEL.weights.to(&Device::Cpu, dtype).unwrap();
    let backend = Backend::TensorOps;
    let decoder =
        Decoder::on_backend(&MODEL.config, &weights, DecoderMode::Sample, backend).unwrap();
    Sampler::of_decoder(decoder, &MODEL, 0, context_tokens, settings).unwrap()
}

/// Returns the log-probabilities of the completion, as training on a GPU computes them.
fn whole_forward(weights: &Weights, context: &[u32], completion: &[u32]) -> Vec<f32> {
    let backend = Backend::TensorOps;
    let decoder = Decoder::on_backend(&MODEL.config, weights, DecoderMode::Train, backend).unwrap();
    let mut packed = PackedRows::default();
    packed.push(&[context, completion].concat());
    let hidden = decoder.forward(&packed, None).unwrap();
    let before = hidden
        .narrow(0, context.len() - 1, completion.len())
        .unwrap();
    let scored = decoder.token_logprobs(&before, completion, 1.0).unwrap();
    scored.logprobs.to_vec1().unwrap()
}

/// The same random numbers choose the same tokens on each device.
#[test]
fn engines_on_tensor_ops_sample_what_the_kernels_do() {
    let complete = |mut sampler: Sampler| {
        let mut responses = sampler.request_group();
        sampler.pass_until_idle();
        let completions = responses
            .iter_mut()
            .map(|response| response.try_recv().unwrap().unwrap());
        completions
            .map(|completion| completion.tokens)
            .collect::<Vec<_>>()
    };
    let settings = EngineSettings {
        slots: MEMBERS,
        pass_tokens: 64,
        ..EngineSettings::default()
    };
    let on_tensor_ops = on_tensor_ops(DType::F32, 256, &settings);
    assert_eq!(
        complete(on_tensor_ops),
        complete(sampler(MEMBERS, 64, true))
    );
}

/// An event between two forward passes.
#[derive(Clone, Debug)]
enum EngineEvent {
    /// A request whose context is `shared` tokens of one of three texts, then `own` tokens.
    Request {
        text: u64,
        shared: usize,
        own: usize,
    },
    /// A caller stops waiting.
    Abandon(prop::sample::Index),
    UpdateWeights,
    Pass,
}

fn engine_event() -> impl Strategy<Value = EngineEvent> {
    prop_oneof![
        4 => (0u64..3, 0usize..80, 1usize..40)
            .prop_map(|(text, shared, own)| EngineEvent::Request { text, shared, own }),
        1 => any::<prop::sample::Index>().prop_map(EngineEvent::Abandon),
        1 => Just(EngineEvent::UpdateWeights),
        3 => Just(EngineEvent::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn after_any_events_each_row_gets_its_own_completion(
        slots in 1usize..5,
        pass_tokens in 1usize..100,
        events in prop::collection::vec(engine_event(), 1..40),
    ) {
        let mut engine = sampler(slots, pass_tokens, true);
        let mut rows: Vec<(Vec<u32>, Option<Response>)> = Vec::new();
        for event in events {
            match event {
                EngineEvent::Request { text, shared, own } => {
                    let own = tokens(9 + rows.len() as u64, own);
                    let context = [tokens(text, shared), own].concat();
                    let response = engine.request(&context, rows.len());
                    rows.push((context, Some(response)));
                }
                EngineEvent::Abandon(index) if !rows.is_empty() => {
                    let row = index.index(rows.len());
                    rows[row].1 = None;
                }
                EngineEvent::Abandon(_) => {}
                EngineEvent::UpdateWeights => {
                    let version = engine.weights.policy_version + 1;
                    engine.update_weights(version, &weights(version)).unwrap();
                }
                EngineEvent::Pass => { engine.pass(); }
            }
        }
        let mut passes = 0;
        while !engine.batcher.is_idle() {
            engine.pass();
            passes += 1;
            prop_assert!(passes < MOST_PASSES, "rows wait for each other");
        }
        for (member, (context, response)) in rows.into_iter().enumerate() {
            let Some(mut response) = response else { continue };
            let completion = response.try_recv().unwrap().unwrap();
            let mut alone = sampler(1, 512, false);
            let version = completion.policy_version;
            alone.update_weights(version, &weights(version)).unwrap();
            let mut wanted = alone.request(&context, member);
            alone.pass_until_idle();
            prop_assert_eq!(completion, wanted.try_recv().unwrap().unwrap());
        }
    }
}

/// The cache has pages of 32 tokens.
#[test]
fn slots_are_counted_in_whole_pages() {
    let page_bytes = KvCache::slot_bytes(&MODEL.config, Backend::TensorOps, DType::F32, 32);
    // Keys and values of 8 numbers in 2 layers.
    assert_eq!(page_bytes, 32 * 2 * 8 * 2 * 4);
    let settings = EngineSettings {
        slots: 8,
        kv_cache_bytes: 4 * page_bytes as u64,
        ..EngineSettings::default()
    };
    let slots = |context_tokens| on_tensor_ops(DType::F32, context_tokens, &settings).slots();
    assert_eq!([31, 32, 33, 64, 65].map(slots), [4, 4, 2, 2, 1]);
}

#[test]
fn contexts_beyond_the_positions_of_the_model_are_refused() {
    let config = DecoderConfig {
        max_positions: 64,
        ..MODEL.config.clone()
    };
    let model = Model {
        config,
        ..MODEL.clone()
    };
    let open = |tokens| {
        let settings = EngineSettings::default();
        Sampler::new(&model, 0, tokens, &settings, Placement::default())
    };
    assert!(open(64).is_ok());
    let refusal = open(65).err().unwrap().to_string();
    assert!(
        refusal.contains("is 65") && refusal.contains("of 64 tokens"),
        "{refusal}"
    );
}
