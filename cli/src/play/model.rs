//! `sqlenv play --policy`: a policy plays one episode, and a person watches.

use std::{fmt::Write as _, sync::Arc};

use actor::{
    Engine, EngineSettings, EnvStepRecord, EpisodeRecord, EpisodeSpec, evaluation_of, run_episode,
};
use anyhow::{Result, ensure};
use data::Question;
use learner::config::RolloutConfig;
use policy::{Coordinates, SamplingSettings, random::derive_seed};
use proto::v1::Turn;

use super::{Asked, ask, gold_text};
use crate::{
    args::{PlayArgs, PlayPolicy},
    config::RunConfig,
    evaluation::{episode_settings, model_policy},
    model_source,
    progress::Progress,
    setup, stdout,
};

/// Lines of a result that are shown, and characters of a line.
const MOST_LINES: usize = 12;
const MOST_CHARACTERS: usize = 400;
/// Characters of a malformed call that are shown.
const MALFORMED_CHARACTERS: usize = 200;
/// The context of an episode, if the model has as much.
const LONG_CONTEXT_TOKENS: u32 = 4096;

/// Lets a policy play and prints the episode.
pub(super) async fn play(
    args: &PlayArgs,
    policy: PlayPolicy,
    mut config: RunConfig,
    progress: &Progress,
) -> Result<()> {
    let model = match policy {
        PlayPolicy::Base => setup::embedded_base(&config.model)?,
        PlayPolicy::Model => setup::named_model(&config)?,
    };
    // One episode needs little memory, so it may have more context than an episode of a training.
    let wanted = &mut config.learner.rollout.max_context_tokens;
    *wanted = model_source::fitted_context(LONG_CONTEXT_TOKENS.max(*wanted), &model.config);
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
    let spec = EpisodeSpec {
        question_id: question.question_id.clone(),
        coordinates: Coordinates {
            run_seed: derive_seed(config.seed, "play"),
            ..Coordinates::default()
        },
    };
    let trajectory = run_episode(
        &model_policy(&engine, &chat, rollout, SamplingSettings::greedy())?,
        &episode_settings(&env, &chat, rollout, config.actor.env_retry),
        &spec,
    )
    .await
    .trajectory;
    let (_, episodes) = evaluation_of(&chat, &[question], [&trajectory]);
    let cuts = trajectory.turns.iter().map(|turn| cut(turn, rollout));
    show(&episodes[0], &cuts.collect::<Vec<_>>(), gold.as_ref())
}

/// Names the limit that cut the completion of a turn, if one did.
fn cut(turn: &Turn, rollout: &RolloutConfig) -> Option<String> {
    let tokens = turn.completion_tokens;
    let limit = match tokens >= rollout.max_completion_tokens {
        true => "learner.rollout.max_completion_tokens",
        false => "learner.rollout.max_context_tokens",
    };
    turn.truncated
        .then(|| format!("{limit} cut it after {tokens} tokens"))
}

/// Prints the episode. `cuts` has for each step what cut its completion. `gold` is the question if
/// its answer is known.
fn show(episode: &EpisodeRecord, cuts: &[Option<String>], gold: Option<&Question>) -> Result<()> {
    ensure!(
        episode.failure.is_empty(),
        "the episode failed: {}",
        episode.failure
    );
    stdout::print(transcript(episode, cuts, gold))
}

fn transcript(episode: &EpisodeRecord, cuts: &[Option<String>], gold: Option<&Question>) -> String {
    let mut text = format!("{}\n", episode.question);
    let mut answer = None;
    for (number, step) in episode.steps.iter().enumerate() {
        if step.action_type == "ANSWER" && !step.malformed {
            answer = Some(&step.argument);
        } else {
            let cut = cuts.get(number).and_then(Option::as_deref);
            text += &format_step(step, cut);
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

/// Formats an action that is not an answer, with its result. `cut` names the limit that cut it.
fn format_step(step: &EnvStepRecord, cut: Option<&str>) -> String {
    let mut text = match step.malformed {
        true => malformed_call(&step.argument, cut),
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

/// Formats what the model wrote in place of a call, on one line.
fn malformed_call(written: &str, cut: Option<&str>) -> String {
    let words: Vec<&str> = written.split_whitespace().collect();
    let line = words.join(" ");
    let mut shown: String = line.chars().take(MALFORMED_CHARACTERS).collect();
    if shown.len() < line.len() {
        shown += " ...";
    }
    let cut = cut.map_or_else(String::new, |cut| format!("; {cut}"));
    format!("\n(a malformed call{cut}) {shown}\n")
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
            transcript(&episode(steps), &[], None),
            "How many?\n\ndescribe gull\n  Table 'gull' columns:\n  - id: INTEGER\n\nAnswer: 42\n"
        );
    }

    #[test]
    fn long_results_are_cut_and_a_missing_answer_is_said() {
        let text = transcript(
            &episode(vec![step("QUERY", "SELECT 1", &"row\n".repeat(20))]),
            &[],
            None,
        );
        assert!(text.contains("... 8 more lines"), "{text}");
        assert!(text.ends_with("No answer after 1 actions.\n"), "{text}");
    }
    #[test]
    fn a_malformed_call_is_shown_with_the_limit_that_cut_it() {
        let long = format!("<tool_call>\n{{\"name\": {}", "x".repeat(300));
        let malformed = |argument: &str| EnvStepRecord {
            malformed: true,
            ..step("QUERY", argument, "no such table")
        };
        let turn = Turn {
            completion_tokens: 96,
            truncated: true,
            ..Turn::default()
        };
        let rollout = RolloutConfig {
            max_completion_tokens: 96,
            ..RolloutConfig::default()
        };
        let steps = vec![malformed("I do not know."), malformed(&long)];
        let whole = cut(&Turn::default(), &rollout);
        let text = transcript(&episode(steps), &[whole, cut(&turn, &rollout)], None);
        let first = "\n(a malformed call) I do not know.\n  no such table\n";
        assert!(text.contains(first), "{text}");
        let limit = "; learner.rollout.max_completion_tokens cut it after 96 tokens) <tool_call> {";
        assert!(text.contains(limit), "{text}");
        assert!(text.contains("xxx ...\n"), "{text}");
        assert!(!text.contains(&"x".repeat(200)), "{text}");
    }
}
