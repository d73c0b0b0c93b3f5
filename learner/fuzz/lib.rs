//! What the fuzz targets share: a tiny model, the rules of a run, what must hold of groups that the
//! learner takes, and a mutator that begins with valid inputs.

use std::sync::Once;

use learner::{LearnerConfig, group::GroupRules};
use libfuzzer_sys::fuzzer_mutate;
use policy::{Chat, DecoderConfig, Model, Weights, embedded};
use proto::v1::Trajectory;

/// The `config.json` of [`model`].
pub const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 16,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
"vocab_size": 32, "tie_word_embeddings": true}"#;

/// Returns a model of 3,000 parameters. Its chat is that of the embedded policy, whose tokens have
/// no rows in it.
pub fn model() -> Model {
    let config = DecoderConfig::from_json(CONFIG).expect("a config");
    let files = embedded::files();
    Model {
        weights: Weights::random(&config, 1).expect("weights"),
        chat: Chat::from_files(&files).expect("a chat"),
        config,
        files,
    }
}

/// Returns the settings of a run with short episodes.
pub fn config() -> LearnerConfig {
    let mut config = LearnerConfig {
        group_size: 2,
        dynamic_sampling: false,
        micro_batch_tokens: 48,
        ..LearnerConfig::default()
    };
    config.rollout.step_budget = 3;
    config.rollout.max_context_tokens = 24;
    config.rollout.max_completion_tokens = 8;
    config.validate().expect("settings");
    config
}

/// Returns the rules of [`config`] for [`model`].
pub fn rules() -> GroupRules {
    GroupRules::new(&config(), 32)
}

/// Asserts the invariant of a group, written down again from the rules.
pub fn assert_fits(trajectories: &[Trajectory], rules: &GroupRules) {
    for trajectory in trajectories {
        assert!(trajectory.episode_return.abs() <= 1e6);
        assert!(trajectory.turns.len() <= rules.max_turns);
        assert!(trajectory.segments.len() <= rules.max_turns + 1);
        let mut sampled = 0;
        for segment in &trajectory.segments {
            let count = segment.tokens.len();
            assert!(count <= rules.max_context_tokens);
            assert_eq!((segment.mask.len(), segment.logprobs.len()), (count, count));
            assert!(
                segment
                    .tokens
                    .iter()
                    .all(|&id| (id as usize) < rules.vocab_size)
            );
            assert_ne!(segment.mask.first(), Some(&1));
            for (mask, logprob) in segment.mask.iter().zip(&segment.logprobs) {
                assert!(*mask == 0 || (*mask == 1 && (-104.0..=1e-5).contains(logprob)));
                sampled += u32::from(*mask);
            }
        }
        let of_turns = trajectory.turns.iter().map(|turn| turn.completion_tokens);
        assert_eq!(sampled, of_turns.sum::<u32>());
        assert!(trajectory.turns.iter().all(|turn| turn.reward.abs() <= 1e6));
    }
}

/// Changes an input as libFuzzer does, but begins with one of `seeds`.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    seeds: &[Vec<u8>],
) -> usize {
    let chosen = &seeds[seed as usize / 64 % seeds.len()];
    // libFuzzer begins with nothing. Now and then a fresh start reaches what its corpus does not.
    let is_fresh = size < 2 || seed.is_multiple_of(64);
    let size = match is_fresh && chosen.len() <= max_size {
        true => {
            data[..chosen.len()].copy_from_slice(chosen);
            chosen.len()
        }
        false => size,
    };
    fuzzer_mutate(data, size, max_size)
}

/// Lets the program catch panics of libraries, as it does in production. libFuzzer aborts at every
/// panic otherwise. One that the program does not catch still ends the run.
pub fn let_panics_be_caught() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            // Printed for the panic that ends the run; the others are few.
            eprintln!("{panic}");
        }));
    });
}
