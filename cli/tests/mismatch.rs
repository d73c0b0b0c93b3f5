//! Tests that sampling and training have no mismatch: the log-probability that an engine records is
//! the one that the learner computes for the same token, bit for bit. Other rows of the batch, the
//! prefill of the context and new weights do not change it.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

use std::ops::Range;

use actor::{CompletionRequest, Engine, EngineSettings};
use futures::future::join_all;
use learner::{
    batch::{Prefixes, Sample, micro_batches},
    network::{PassSettings, scores},
};
use policy::{
    Coordinates, Decoder, DecoderConfig, DecoderMode, GradientCheckpointing, Model, Placement,
    SamplingSettings, Weights, random::derive_seed,
};

const GROUPS: u64 = 12;
const MEMBERS: u32 = 8;
const TURNS: u32 = 3;
const CONTEXT_TOKENS: usize = 640;
/// Token budgets of the micro-batches: for one conversation, for a few, and for most of them.
const BUDGETS: [usize; 3] = [640, 2_048, 16_384];

/// The settings of one engine.
struct Setting {
    slots: usize,
    pass_tokens: usize,
    prefix_sharing: bool,
    temperature: f32,
    swaps: bool,
}

const SETTINGS: [Setting; 9] = [
    setting(1, 512, true, 1.0, false),
    setting(2, 7, false, 0.7, false),
    setting(3, 1, true, 0.7, true),
    setting(8, 64, true, 1.0, false),
    setting(8, 64, false, 0.7, true),
    setting(16, 33, true, 0.7, false),
    setting(33, 100, true, 1.0, true),
    setting(64, 512, true, 0.7, false),
    setting(64, 4_096, false, 1.0, true),
];

const fn setting(
    slots: usize,
    pass_tokens: usize,
    prefix_sharing: bool,
    temperature: f32,
    swaps: bool,
) -> Setting {
    Setting {
        slots,
        pass_tokens,
        prefix_sharing,
        temperature,
        swaps,
    }
}

/// An episode: prompts and tool results, and the turns that were sampled between them.
struct Episode {
    tokens: Vec<u32>,
    turns: Vec<Turn>,
}

struct Turn {
    place: Range<usize>,
    policy_version: u64,
    logprobs: Vec<f32>,
}

/// The embedded policy, but narrow.
fn model() -> Model {
    let config = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 1024, "tie_word_embeddings": true,
    });
    let config = DecoderConfig::from_json(&config.to_string()).unwrap();
    Model {
        weights: weights(&config, 0),
        config,
        ..policy::embedded::model(0).unwrap()
    }
}

fn weights(config: &DecoderConfig, version: u64) -> Weights {
    Weights::random(config, version).unwrap()
}

/// A number below `bound` for each `label`.
fn below(bound: u64, label: &str) -> usize {
    (derive_seed(17, label) % bound) as usize
}

fn text(length: usize, label: &str) -> Vec<u32> {
    let token = |place| below(1_000, &format!("{label} {place}")) as u32;
    (0..length).map(token).collect()
}

/// Plays a member of a group; its prompt is its group's. The member that is told to gives the
/// engine new weights between its turns, while the others are in the midst of theirs.
async fn play(
    engine: &Engine,
    setting: &Setting,
    number: u64,
    member: u32,
    new: Option<Weights>,
) -> Episode {
    let group = number % GROUPS;
    let _permit = engine.acquire_permit().await;
    let mut new = new;
    let mut episode = Episode {
        tokens: text(
            30 + below(130, &format!("prompt {group}")),
            &format!("prompt {group}"),
        ),
        turns: Vec::new(),
    };
    for turn in 0..TURNS {
        let here = format!("{number} {member} {turn}");
        // Others come first now and then.
        for _ in 0..below(5, &here) {
            tokio::task::yield_now().await;
        }
        if turn == 1
            && let Some(weights) = new.take()
        {
            engine.update_weights(1, weights).await.unwrap();
        }
        let request = CompletionRequest {
            context: episode.tokens.clone(),
            max_tokens: 60 + below(75, &here),
            coordinates: Coordinates {
                group: number,
                member,
                turn,
                ..Coordinates::default()
            },
        };
        let sampling = SamplingSettings {
            temperature: setting.temperature,
            ..SamplingSettings::default()
        };
        let completion = engine.complete(request, sampling).await.unwrap();
        let start = episode.tokens.len();
        episode.tokens.extend(&completion.tokens);
        episode.turns.push(Turn {
            place: start..episode.tokens.len(),
            policy_version: completion.policy_version,
            logprobs: completion.logprobs,
        });
        episode.tokens.extend(text(5 + below(30, &here), &here));
    }
    episode
}

async fn sample(model: &Model, setting: &Setting, run: u64) -> Vec<Episode> {
    let settings = EngineSettings {
        slots: setting.slots,
        pass_tokens: setting.pass_tokens,
        prefix_sharing: setting.prefix_sharing,
        ..EngineSettings::default()
    };
    let engine = Engine::spawn(model, 0, CONTEXT_TOKENS, &settings, Placement::default()).unwrap();
    let episodes = (0..GROUPS).flat_map(|group| (0..MEMBERS).map(move |member| (group, member)));
    let played = episodes.map(|(group, member)| {
        let swaps_here = setting.swaps && (group, member) == (GROUPS / 2, 0);
        let new = swaps_here.then(|| weights(&model.config, 1));
        play(&engine, setting, run * GROUPS + group, member, new)
    });
    join_all(played).await
}

/// Scores the turns of one version as the learner does; answers with their number of tokens.
fn compare(config: &DecoderConfig, setting: &Setting, episodes: &[Episode], version: u64) -> usize {
    let decoder = Decoder::new(config, &weights(config, version), DecoderMode::Train).unwrap();
    let (mut samples, mut recorded) = (Vec::new(), Vec::new());
    for episode in episodes {
        let turns = episode.turns.iter();
        let turns: Vec<&Turn> = turns
            .filter(|turn| turn.policy_version == version)
            .collect();
        samples.push(Sample {
            tokens: (&episode.tokens).into(),
            scored: turns.iter().flat_map(|turn| turn.place.clone()).collect(),
            ..Sample::default()
        });
        recorded.push(
            turns
                .iter()
                .flat_map(|turn| turn.logprobs.clone())
                .collect::<Vec<f32>>(),
        );
    }
    for budget in BUDGETS {
        let micro_batches = micro_batches(&samples, budget, Prefixes::Shared);
        let pass = PassSettings {
            temperature: setting.temperature,
            threads: 2,
            checkpointing: GradientCheckpointing::Off,
        };
        let learned = scores(&decoder, &micro_batches, pass).unwrap();
        for (micro, scores) in micro_batches.iter().zip(learned) {
            let sampled: Vec<u32> = micro
                .gather(&recorded)
                .into_iter()
                .map(f32::to_bits)
                .collect();
            let learned: Vec<u32> = scores
                .logprobs
                .iter()
                .map(|&value| (value as f32).to_bits())
                .collect();
            assert!(
                sampled == learned,
                "at {} slots, {} tokens a pass, version {version}, budget {budget}",
                setting.slots,
                setting.pass_tokens
            );
        }
    }
    recorded.iter().map(Vec::len).sum()
}

#[tokio::test]
async fn recorded_logprobs_are_the_learners_bit_for_bit() {
    let model = model();
    let runs = SETTINGS
        .iter()
        .zip(0..)
        .map(|(setting, run)| sample(&model, setting, run));
    let mut tokens = 0;
    for (setting, episodes) in SETTINGS.iter().zip(join_all(runs).await) {
        let is_mixed =
            |episode: &&Episode| episode.turns[0].policy_version != episode.turns[2].policy_version;
        assert_eq!(
            episodes.iter().any(|episode| is_mixed(&episode)),
            setting.swaps
        );
        for version in 0..=u64::from(setting.swaps) {
            tokens += compare(&model.config, setting, &episodes, version);
        }
    }
    println!("{tokens} sampled tokens, each of the learner's bits");
    assert!(tokens >= 200_000, "only {tokens} tokens were compared");
}
