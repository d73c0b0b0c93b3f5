//! `sqlenv play --policy`: a policy plays one episode, and a person watches.

use std::{fmt::Write as _, sync::Arc};

use actor::{Engine, EngineSettings, EnvStepRecord, EpisodeRecord};
use anyhow::{Result, ensure};
use data::Question;
use policy::{SamplingSettings, random::derive_seed};

use super::{Asked, ask, gold_text};
use crate::{
    args::{PlayArgs, PlayPolicy},
    config::RunConfig,
    evaluation::{episode_settings, model_policy},
    progress::Progress,
    setup, stdout,
};

/// Lines of a result that are shown, and characters of a line.
const MOST_LINES: usize = 12;
const MOST_CHARACTERS: usize = 400;
/// The context of an episode, if the model has as much.
const LONG_CONTEXT_TOKENS: u32 = 4096;

/// Lets a policy play and prints the episode.
pub(super) async fn play(
    args: &PlayArgs,
    policy: PlayPolicy,
    mut config: RunConfig,
    progress: &Progress,
) -> Result<()> {
    let model = setup::chosen_model(policy == PlayPolicy::Base, &config)?;
    // One episode needs little memory, so it may have more context than an episode of a training.
    let positions = u32::try_from(model.config.max_positions).unwrap_or(u32::MAX);
    let rollout = &mut config.learner.rollout;
    rollout.max_context_tokens = rollout
        .max_context_tokens
        .max(LONG_CONTEXT_TOKENS)
        .min(positions);
    let Asked {
        env,
        question,
        gold,
    } = ask(args, &config, progress).await?;
    let rollout = &config.learner.rollout;
    let settings = EngineSettings {
        slots: 1,
        ..config.actor.engine.clone()
    };
    let context_tokens = rollout.max_context_tokens as usize;
    let engine = Engine::spawn(&model, 0, context_tokens, &settings, config.placement())?;
    let chat = Arc::new(model.chat.clone());
    let (_, episodes) = actor::evaluate(
        &[&model_policy(
            &engine,
            &chat,
            rollout,
            SamplingSettings::greedy(),
        )?],
        &episode_settings(&env, &chat, rollout, config.actor.env_retry),
        &[question],
        derive_seed(config.seed, "play"),
        1,
        |_| {},
    )
    .await;
    show(&episodes[0], gold.as_ref())
}

/// Prints the episode. `gold` is the question if its answer is known.
fn show(episode: &EpisodeRecord, gold: Option<&Question>) -> Result<()> {
    ensure!(
        episode.failure.is_empty(),
        "the episode failed: {}",
        episode.failure
    );
    stdout::print(transcript(episode, gold))
}

fn transcript(episode: &EpisodeRecord, gold: Option<&Question>) -> String {
    let mut text = format!("{}\n", episode.question);
    let mut answer = None;
    for step in &episode.steps {
        if step.action_type == "ANSWER" && !step.malformed {
            answer = Some(&step.argument);
        } else {
            text += &format_step(step);
        }
    }
    text += &match answer {
        Some(answer) => format!("\nAnswer: {answer}\n"),
        None => format!("\nNo answer after {} actions.\n", episode.steps.len()),
    };
    if let Some(question) = gold {
        let verdict = if episode.correct {
            "Correct."
        } else {
            "Not correct."
        };
        text += &format!("{verdict}\n{}", gold_text(question));
    }
    text
}

/// Formats an action that is not an answer, with its result.
fn format_step(step: &EnvStepRecord) -> String {
    let mut text = match step.malformed {
        true => "\n(a malformed call)\n".to_owned(),
        false => format!("\n{} {}\n", step.action_type.to_lowercase(), step.argument),
    };
    let shown = [&step.result, &step.error].into_iter().flatten();
    let lines: Vec<&str> = shown.flat_map(|part| part.lines()).collect();
    for line in lines.iter().take(MOST_LINES) {
        let line: String = line.chars().take(MOST_CHARACTERS).collect();
        let _ = writeln!(text, "  {line}");
    }
    if lines.len() > MOST_LINES {
        let _ = writeln!(text, "  ... {} more lines", lines.len() - MOST_LINES);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(action_type: &str, argument: &str, result: &str) -> EnvStepRecord {
        EnvStepRecord {
            completion: None,
            action_type: action_type.to_owned(),
            argument: argument.to_owned(),
            malformed: false,
            result: Some(result.to_owned()),
            error: None,
            reward: 0.0,
            components: Default::default(),
        }
    }

    fn episode(steps: Vec<EnvStepRecord>) -> EpisodeRecord {
        EpisodeRecord {
            question_id: "q".to_owned(),
            question: "How many?".to_owned(),
            database: "d".to_owned(),
            difficulty: String::new(),
            correct: false,
            reward: 0.0,
            failure: String::new(),
            steps,
        }
    }

    #[test]
    fn an_answer_without_gold_has_no_verdict() {
        let steps = vec![
            step("DESCRIBE", "gull", "Table 'gull' columns:\n- id: INTEGER"),
            step("ANSWER", "42", "Answer submitted: incorrect."),
        ];
        assert_eq!(
            transcript(&episode(steps), None),
            "How many?\n\ndescribe gull\n  Table 'gull' columns:\n  - id: INTEGER\n\nAnswer: 42\n"
        );
    }

    #[test]
    fn long_results_are_cut_and_a_missing_answer_is_said() {
        let text = transcript(
            &episode(vec![step("QUERY", "SELECT 1", &"row\n".repeat(20))]),
            None,
        );
        assert!(text.contains("... 8 more lines"), "{text}");
        assert!(text.ends_with("No answer after 1 actions.\n"), "{text}");
    }
}
