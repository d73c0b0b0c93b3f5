//! The thread's work without its thread: what is fed, and that it does not change what is sampled.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use ::metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use policy::{DTypeChoice, Placement, ops::with_tensor_ops, random::derive_seed};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;

const PROMPT_TOKENS: usize = 200;
const MEMBERS: usize = 8;
const NEW_TOKENS: usize = 5;
/// More than all rows of a case have tokens.
const MOST_PASSES: usize = 40 * 128;

/// As small as can be. It never samples a stop token: all of them lie beyond its vocabulary.
static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let config = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "vocab_size": 64, "tie_word_embeddings": true,
    });
    let config = DecoderConfig::from_json(&config.to_string()).unwrap();
    Model {
        weights: Weights::random(&config, 0).unwrap(),
        config,
        ..policy::tiny::model(0).unwrap()
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

/// The first `length` tokens of a text of its own for each `text`.
fn tokens(text: u64, length: usize) -> Vec<u32> {
    let token = |place: usize| (derive_seed(text, &place.to_string()) % 64) as u32;
    (0..length).map(token).collect()
}

type Answer = oneshot::Receiver<Result<Completion, ActorError>>;

impl Sampler {
    fn ask(&mut self, context: &[u32], member: usize) -> Answer {
        let request = CompletionRequest {
            context: context.to_vec(),
            max_tokens: NEW_TOKENS,
            sampling: SamplingSettings::default(),
            coordinates: Coordinates {
                member: member as u32,
                ..Coordinates::default()
            },
        };
        let (reply, answer) = oneshot::channel();
        self.obey(Command::Complete(request, reply));
        answer
    }

    fn ask_group(&mut self) -> Vec<Answer> {
        let prompt = tokens(0, PROMPT_TOKENS);
        (0..MEMBERS)
            .map(|member| self.ask(&prompt, member))
            .collect()
    }

    fn pass_until_idle(&mut self) {
        while !self.batcher.is_idle() {
            self.pass();
        }
    }
}

/// Counts what the metric of fed tokens is given.
#[derive(Default)]
struct Fed(Arc<AtomicU64>);

impl Recorder for Fed {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == "actor_fed_tokens_total" {
            Counter::from_arc(self.0.clone())
        } else {
            Counter::noop()
        }
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Tokens fed during `work`, prompts only: all samples of a group but the last ones are fed too.
fn fed_prompts(completions: usize, work: impl FnOnce()) -> usize {
    let fed = Fed::default();
    with_local_recorder(&fed, work);
    fed.0.load(Ordering::Relaxed) as usize - completions * (NEW_TOKENS - 1)
}

#[test]
fn slots_fit_the_bytes_that_they_may_take() {
    let of = |kv_cache_bytes, slots| EngineSettings {
        kv_cache_bytes,
        slots,
        ..EngineSettings::default()
    };
    let slots = |settings: &EngineSettings, free| {
        affordable_slots(1 << 20, 1 << 10, cache_bytes(settings, free), settings)
    };
    // A slot takes 1 GiB. Left open: 2 GiB on the CPU, elsewhere a quarter of what is free.
    assert_eq!(slots(&of(0, 64), None), 2);
    assert_eq!(slots(&of(0, 64), Some(80 << 30)), 20);
    assert_eq!(slots(&of(0, 8), Some(80 << 30)), 8);
    assert_eq!(slots(&of(5 << 30, 64), Some(80 << 30)), 5);
    assert_eq!(slots(&of(1, 64), None), 1);
}

#[test]
fn members_of_a_group_feed_their_prompt_once() {
    for (slots, pass_tokens, sharing, wanted) in [
        (MEMBERS, 512, true, PROMPT_TOKENS + MEMBERS - 1),
        // After three of four chunks, what is left is not worth waiting for.
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
        let fed = fed_prompts(MEMBERS, || {
            let mut answers = sampler.ask_group();
            sampler.pass_until_idle();
            assert!(
                answers
                    .iter_mut()
                    .all(|answer| matches!(answer.try_recv(), Ok(Ok(_))))
            );
        });
        assert_eq!(
            fed, wanted,
            "{slots} slots, {pass_tokens} a pass, sharing {sharing}"
        );
    }
}

#[test]
fn the_next_member_goes_on_where_an_abandoned_one_stopped() {
    let mut sampler = sampler(MEMBERS, 64, true);
    let fed = fed_prompts(MEMBERS - 1, || {
        let mut answers = sampler.ask_group();
        sampler.pass();
        answers.remove(0);
        sampler.pass_until_idle();
    });
    assert_eq!(
        fed,
        PROMPT_TOKENS + (MEMBERS - 2) * (PROMPT_TOKENS - 3 * 64)
    );
}

#[test]
fn new_weights_feed_a_prompt_anew() {
    let mut sampler = sampler(MEMBERS, 512, true);
    let fed = fed_prompts(MEMBERS, || {
        let _answers = sampler.ask_group();
        sampler.pass();
        sampler.swap(1, &weights(1)).unwrap();
        sampler.pass_until_idle();
    });
    assert_eq!(fed, 2 * PROMPT_TOKENS + MEMBERS - 2);
}

/// What another device runs, in its two dtypes: conversations that share prompts, come in chunks and get new weights in
/// their midst.
#[test]
fn composed_engines_record_what_a_whole_forward_pass_computes() {
    for (dtype, tolerance) in [(DTypeChoice::F32, 1e-5), (DTypeChoice::Bf16, 0.1)] {
        with_tensor_ops(|| {
            let settings = EngineSettings {
                slots: 5,
                pass_tokens: 40,
                ..EngineSettings::default()
            };
            let placement = Placement {
                dtype,
                ..Placement::default()
            };
            let mut sampler = Sampler::new(&MODEL, 0, 256, &settings, placement).unwrap();
            let dtype = sampler.dtype();
            let at_home = |version| weights(version).to(&Device::Cpu, dtype).unwrap();
            let contexts: Vec<Vec<u32>> = (0..9)
                .map(|row| [tokens(row % 3, 60), tokens(10 + row, row as usize)].concat())
                .collect();
            let mut answers: Vec<Answer> = contexts
                .iter()
                .enumerate()
                .map(|(member, context)| sampler.ask(context, member))
                .collect();
            (0..6).for_each(|_| sampler.pass());
            sampler.swap(1, &at_home(1)).unwrap();
            sampler.pass_until_idle();
            let mut versions = [0; 2];
            for (context, answer) in contexts.iter().zip(&mut answers) {
                let completion = answer.try_recv().unwrap().unwrap();
                versions[completion.policy_version as usize] += 1;
                let weights = at_home(completion.policy_version);
                let whole = whole_forward(&weights, context, &completion.tokens);
                for (recorded, whole) in completion.logprobs.iter().zip(whole) {
                    assert!(
                        (recorded - whole).abs() < tolerance,
                        "{recorded} for {whole} in {dtype:?}"
                    );
                }
            }
            assert!(versions[0] > 0 && versions[1] > 0, "{versions:?}");
        });
    }
}

/// Log-probabilities of the completion as training computes them.
fn whole_forward(weights: &Weights, context: &[u32], completion: &[u32]) -> Vec<f32> {
    let decoder = Decoder::new(&MODEL.config, weights, DecoderMode::Train).unwrap();
    let mut packed = PackedRows::default();
    packed.push(&[context, completion].concat());
    let hidden = decoder.forward(&packed, None).unwrap();
    let before = hidden
        .narrow(0, context.len() - 1, completion.len())
        .unwrap();
    let scored = decoder.token_logprobs(&before, completion, 1.0).unwrap();
    scored.logprobs.to_vec1().unwrap()
}

/// The same numbers choose the same tokens, whichever device draws.
#[test]
fn composed_engines_sample_what_the_kernels_do() {
    let complete = || {
        let mut sampler = sampler(MEMBERS, 64, true);
        let mut answers = sampler.ask_group();
        sampler.pass_until_idle();
        let completions = answers
            .iter_mut()
            .map(|answer| answer.try_recv().unwrap().unwrap());
        completions
            .map(|completion| completion.tokens)
            .collect::<Vec<_>>()
    };
    assert_eq!(with_tensor_ops(complete), complete());
}

/// What happens to the engine between two passes.
#[derive(Clone, Debug)]
enum Happening {
    /// A row arrives whose context is `shared` tokens of one of three texts, then `own` tokens.
    Arrives {
        text: u64,
        shared: usize,
        own: usize,
    },
    /// A caller goes away.
    Leaves(prop::sample::Index),
    Swap,
    Pass,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0u64..3, 0usize..80, 1usize..40)
            .prop_map(|(text, shared, own)| Happening::Arrives { text, shared, own }),
        1 => any::<prop::sample::Index>().prop_map(Happening::Leaves),
        1 => Just(Happening::Swap),
        3 => Just(Happening::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_each_row_gets_its_own_completion(
        slots in 1usize..5,
        pass_tokens in 1usize..100,
        happenings in prop::collection::vec(happening(), 1..40),
    ) {
        let mut engine = sampler(slots, pass_tokens, true);
        let mut rows: Vec<(Vec<u32>, Option<Answer>)> = Vec::new();
        for happening in happenings {
            match happening {
                Happening::Arrives { text, shared, own } => {
                    let context = [tokens(text, shared), tokens(9 + rows.len() as u64, own)].concat();
                    let answer = engine.ask(&context, rows.len());
                    rows.push((context, Some(answer)));
                }
                Happening::Leaves(index) if !rows.is_empty() => {
                    let row = index.index(rows.len());
                    rows[row].1 = None;
                }
                Happening::Leaves(_) => {}
                Happening::Swap => {
                    let version = engine.edition.policy_version + 1;
                    engine.swap(version, &weights(version)).unwrap();
                }
                Happening::Pass => { engine.pass(); }
            }
        }
        let mut passes = 0;
        while !engine.batcher.is_idle() {
            engine.pass();
            passes += 1;
            prop_assert!(passes < MOST_PASSES, "rows wait for each other");
        }
        for (member, (context, answer)) in rows.into_iter().enumerate() {
            let Some(mut answer) = answer else { continue };
            let completion = answer.try_recv().unwrap().unwrap();
            let mut alone = sampler(1, 512, false);
            let version = completion.policy_version;
            alone.swap(version, &weights(version)).unwrap();
            let mut wanted = alone.ask(&context, member);
            alone.pass_until_idle();
            prop_assert_eq!(completion, wanted.try_recv().unwrap().unwrap());
        }
    }
}
