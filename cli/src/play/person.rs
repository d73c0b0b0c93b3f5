//! `sqlenv play` without a policy: a person plays one episode.
//!
//! Parsing a line and rendering an observation are pure functions. [`play`] connects them with the
//! environment. The player sees what a policy sees. The gold answer is shown only after the end,
//! and only if it is known.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write, stdin},
};

use anyhow::{Context as _, Result};
use data::Question;
use learner::config::RolloutConfig;
use proto::v1::{Action, Observation, ResetRequest, RewardComponents, StepRequest};
use rustyline::{DefaultEditor, error::ReadlineError};

use super::{Asked, gold_text};
use crate::stdout;

/// A parsed line of input.
#[derive(Debug, Clone, PartialEq)]
enum PlayerInput {
    Act(Action),
    Help,
    Quit,
    Empty,
    /// An unknown line, with a hint about what to type instead.
    Invalid(String),
}

/// The result of an episode.
#[derive(Debug, Default)]
struct Outcome {
    /// Whether the episode ended with a correct answer.
    correct: bool,
    /// The sum of the rewards.
    episode_return: f64,
    /// Whether the episode ended before the player left.
    finished: bool,
}

const VERBS: [(&str, &str, &str); 6] = [
    ("describe", "TABLE", "columns, types and row count"),
    ("sample", "TABLE", "the first five rows"),
    ("query", "SQL", "run a SELECT"),
    ("answer", "VALUE", "give the answer; this ends the episode"),
    ("help", "", "show this"),
    ("quit", "", "leave"),
];

const PROMPT: &str = "> ";

/// Parses a line: a verb or its first letters (`q` is query), then its argument. Bare SQL is a
/// query.
fn parse(line: &str) -> PlayerInput {
    let line = line.trim();
    let (verb, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let verb = verb.to_lowercase();
    let argument = argument.trim();
    if verb.is_empty() {
        return PlayerInput::Empty;
    }
    if verb == "select" || verb == "with" {
        return act("query", line);
    }
    if verb == "?" {
        return PlayerInput::Help;
    }
    match VERBS.iter().find(|(name, ..)| name.starts_with(&verb)) {
        Some(("help", ..)) => PlayerInput::Help,
        Some(("quit", ..)) => PlayerInput::Quit,
        Some((name, what, _)) if argument.is_empty() => {
            PlayerInput::Invalid(format!("{name} needs an argument: {name} {what}"))
        }
        Some((name, ..)) => act(name, argument),
        None => PlayerInput::Invalid(format!(
            "{verb:?} is unknown. Type describe, sample, query, answer, help or quit."
        )),
    }
}

fn act(verb: &str, argument: &str) -> PlayerInput {
    PlayerInput::Act(Action {
        action_type: verb.to_uppercase(),
        argument: argument.to_owned(),
    })
}

fn help() -> String {
    let mut text = "Type, in full or by the first letters:\n".to_owned();
    for (verb, what, does) in VERBS {
        let usage = format!("{verb} {what}");
        let _ = writeln!(text, "  {usage:<16} {does}");
    }
    text + "Answers: one value, or a, b, c for a list, or rows as x | y.\n"
}

/// Renders the first observation of an episode.
fn opening(observation: &Observation) -> String {
    format!(
        "\n{}\n\n{}\n\n{}\n",
        observation.question,
        observation.schema_info.trim_end(),
        budget(observation.budget_remaining)
    )
}

/// Renders the observation after an action.
fn reply(observation: &Observation, components: Option<&RewardComponents>) -> String {
    let mut text = String::new();
    if observation.error.is_empty() {
        let result = observation.result.trim_end();
        let result = if result.is_empty() {
            "(nothing)"
        } else {
            result
        };
        let _ = writeln!(text, "{}", indent(result));
    } else {
        let _ = writeln!(text, "{}", indent(observation.error.trim_end()));
        if let Some(hint) = hint(&observation.error) {
            let _ = writeln!(text, "  → {hint}");
        }
    }
    let reward = observation.reward.unwrap_or(0.0);
    let _ = write!(text, "  reward {reward:+.3}");
    let parts = components.map(reward_layers).unwrap_or_default();
    if !parts.is_empty() {
        let _ = write!(text, " ({parts})");
    }
    if !observation.done {
        let _ = write!(text, " · {}", budget(observation.budget_remaining));
    }
    text + "\n"
}

fn reward_layers(components: &RewardComponents) -> String {
    let named = [
        ("operational", components.operational),
        ("progress", components.progress),
        ("terminal", components.terminal),
        ("clip", components.clip),
    ];
    let shown = named.iter().filter(|(_, value)| *value != 0.0);
    shown
        .map(|(name, value)| format!("{name} {value:+.3}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn budget(left: u32) -> String {
    match left {
        1 => "1 action left: answer now".to_owned(),
        n => format!("{n} actions left"),
    }
}

fn hint(error: &str) -> Option<&'static str> {
    let error = error.to_lowercase();
    let hints = [
        ("no such column", "describe the table to see its columns"),
        (
            "no such table",
            "the table names are listed above; describe one",
        ),
        ("ambiguous column", "write it as table.column"),
        (
            "syntax error",
            "one SELECT statement, quotes around text: 'Paris'",
        ),
    ];
    hints
        .iter()
        .find(|(pattern, _)| error.contains(pattern))
        .map(|(_, hint)| *hint)
}

fn indent(text: &str) -> String {
    text.lines()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Renders the result of an episode: correct or not, the return, and the gold answer if it is
/// given.
fn closing(outcome: &Outcome, gold: Option<&Question>) -> String {
    let result = match (outcome.finished, outcome.correct) {
        (false, _) => "Left before the end.",
        (true, true) => "Right!",
        (true, false) => "Not right.",
    };
    let mut text = format!("\n{result} Return {:+.3}.\n", outcome.episode_return);
    if let Some(gold) = gold.filter(|_| outcome.finished) {
        text += &gold_text(gold);
    }
    text
}

/// Asks for a line. Returns none at the end of the input.
///
/// A terminal has an editor, which also brings earlier lines back (arrow keys). Other input has
/// none: rustyline would apply the backspaces in it, and it panics if one follows a character of
/// more than 255 bytes.
fn ask(editor: &mut Option<DefaultEditor>, output: &mut impl Write) -> Result<Option<String>> {
    writeln!(output)?;
    let Some(editor) = editor else {
        write!(output, "{PROMPT}")?;
        output.flush()?;
        let mut line = String::new();
        let bytes = stdin().read_line(&mut line)?;
        return Ok((bytes > 0).then_some(line));
    };
    output.flush()?;
    match editor.readline(PROMPT) {
        Ok(line) => {
            // A line that cannot be remembered can still be played.
            let _ = editor.add_history_entry(line.as_str());
            Ok(Some(line))
        }
        Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
        Err(fault) => Err(fault).context("cannot read from the terminal"),
    }
}

/// Plays one episode with the budget and the rewards of rollouts.
///
/// Waiting for a line blocks the calling task.
pub(super) async fn play(mut asked: Asked, rollout: &RolloutConfig) -> Result<()> {
    let editor = stdin().is_terminal().then(DefaultEditor::new);
    let mut editor = editor.transpose().context("cannot use the terminal")?;
    let mut output = stdout::lock();
    let request = ResetRequest {
        question_id: asked.question.question_id,
        reward_profile: rollout.reward_profile.clone(),
        step_budget: rollout.step_budget,
        ..ResetRequest::default()
    };
    let start = asked
        .env
        .reset(request)
        .await
        .map_err(|s| refusal("cannot start an episode", &s))?
        .into_inner();
    let first = start
        .observation
        .context("the environment replied without an observation")?;
    write!(output, "{}\n{}", opening(&first), help())?;
    let mut token = start.token;
    let mut outcome = Outcome::default();
    while !outcome.finished {
        let Some(action) = read_action(&mut editor, &mut output)? else {
            break;
        };
        let request = StepRequest {
            token: token.clone(),
            action: Some(action),
        };
        let step = asked
            .env
            .step(request)
            .await
            .map_err(|s| refusal("the environment refused the step", &s))?
            .into_inner();
        let seen = step
            .observation
            .context("the environment replied without an observation")?;
        write!(output, "{}", reply(&seen, step.reward_components.as_ref()))?;
        token = step.token;
        outcome.correct = step.correct;
        outcome.finished = seen.done;
        outcome.episode_return += seen.reward.unwrap_or(0.0);
    }
    write!(output, "{}", closing(&outcome, asked.gold.as_ref()))?;
    output.flush()?;
    Ok(())
}

/// Reads lines until one is an action. Returns `None` if the player quits or the input ends.
fn read_action(
    editor: &mut Option<DefaultEditor>,
    output: &mut impl Write,
) -> Result<Option<Action>> {
    loop {
        let Some(line) = ask(editor, output)? else {
            return Ok(None);
        };
        match parse(&line) {
            PlayerInput::Act(action) => return Ok(Some(action)),
            PlayerInput::Quit => return Ok(None),
            PlayerInput::Empty => {}
            PlayerInput::Help => write!(output, "{}", help())?,
            PlayerInput::Invalid(hint) => writeln!(output, "  {hint}")?,
        }
    }
}

fn refusal(what: &str, status: &tonic::Status) -> anyhow::Error {
    // The message names the problem and the remedy. The status code would add nothing.
    anyhow::anyhow!("{what}: {}", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(action_type: &str, argument: &str) -> PlayerInput {
        PlayerInput::Act(Action {
            action_type: action_type.to_owned(),
            argument: argument.to_owned(),
        })
    }

    #[test]
    fn lines_are_understood() {
        for (line, command) in [
            ("describe singer", action("DESCRIBE", "singer")),
            ("  D   singer ", action("DESCRIBE", "singer")),
            ("s x", action("SAMPLE", "x")),
            ("q SELECT 1,  2", action("QUERY", "SELECT 1,  2")),
            ("select 1", action("QUERY", "select 1")),
            (
                "With a AS (SELECT 1) SELECT * FROM a",
                action("QUERY", "With a AS (SELECT 1) SELECT * FROM a"),
            ),
            ("answer Robbin CV", action("ANSWER", "Robbin CV")),
            ("a 42", action("ANSWER", "42")),
            ("", PlayerInput::Empty),
            ("help", PlayerInput::Help),
            ("h", PlayerInput::Help),
            ("?", PlayerInput::Help),
            ("quit", PlayerInput::Quit),
            ("QUIT now", PlayerInput::Quit),
            ("qui", PlayerInput::Quit),
            (
                "query",
                PlayerInput::Invalid("query needs an argument: query SQL".to_owned()),
            ),
            (
                "q",
                PlayerInput::Invalid("query needs an argument: query SQL".to_owned()),
            ),
        ] {
            assert_eq!(parse(line), command, "{line:?}");
        }
        assert!(
            matches!(parse("drop table x"), PlayerInput::Invalid(hint) if hint.contains("drop"))
        );
    }

    #[test]
    fn a_reply_shows_result_reward_by_layer_and_budget() {
        let seen = Observation {
            result: "1. 39".to_owned(),
            reward: Some(0.16),
            budget_remaining: 1,
            ..Observation::default()
        };
        let components = RewardComponents {
            operational: 0.01,
            progress: 0.15,
            terminal: 0.0,
            clip: 0.0,
        };
        assert_eq!(
            reply(&seen, Some(&components)),
            "  1. 39\n  reward +0.160 (operational +0.010, progress +0.150) · 1 action left: answer now\n"
        );
    }

    #[test]
    fn an_error_comes_with_a_hint() {
        let seen = Observation {
            error: "SQL error: no such column: Salary".to_owned(),
            reward: Some(-0.02),
            budget_remaining: 9,
            ..Observation::default()
        };
        let shown = reply(&seen, None);
        assert!(shown.contains("→ describe the table"), "{shown}");
        assert!(shown.contains("reward -0.020 · 9 actions left"), "{shown}");
    }
}
