//! The rules of an episode, as a step on a value. Pure.
//!
//! [`parse`] reads what an action asks for, the caller fetches it from the database or the
//! verifier, and [`apply`] makes the next state.
//! Invariant: state, action and outcome determine the next state, the texts and the reward. There
//! is no clock, no randomness and no database here. After the end the state never changes.

use data::sql_text;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    reward::{self, RewardProfile, RewardState, StepEvent, StepReward},
    schema::Schema,
    truncate::truncated,
};

/// Bytes of an action's name that texts repeat.
const ACTION_NAME_BYTES: usize = 64;
/// Bytes of an unknown table's name that texts repeat.
const TABLE_NAME_BYTES: usize = 255;
/// Bytes of an argument that the history keeps. The history travels with every token and
/// observation.
const HISTORY_ARGUMENT_BYTES: usize = 4 << 10;
/// Bytes of history after which only the start of arguments is kept; room for 31 of the longest.
const HISTORY_BYTES: usize = 128 << 10;
/// Bytes of that start.
const LATE_ARGUMENT_BYTES: usize = 64;

/// Longest episode id, in characters, as OpenEnv counts it.
pub const MAX_EPISODE_ID_CHARS: usize = 255;

/// What an episode is started with. Empty fields and zeros take the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpisodeSpec {
    /// The question. Empty: `seed` draws one from `split`.
    pub question_id: String,
    /// The split that a question is drawn from. Empty: all questions.
    pub split: String,
    /// Seed of the draw; it is also part of the default episode id.
    pub seed: u64,
    /// Names the episode; at most [`MAX_EPISODE_ID_CHARS`] characters. Empty: `QUESTION_ID#SEED`.
    pub episode_id: String,
    /// Name of the reward profile. Empty: the default of the settings.
    pub reward_profile: String,
    /// Actions allowed. 0: the default of the settings.
    pub step_budget: u32,
}

/// One action of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// DESCRIBE, SAMPLE, QUERY or ANSWER, in any case.
    pub action_type: String,
    /// The table, the statement or the answer.
    pub argument: String,
}

/// What the agent sees after Reset or an action. Serialized, it has the fields of `SQLObservation`
/// in `SQLEnv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observation {
    /// The question's text.
    pub question: String,
    /// The table names, and the columns of the tables that were described.
    pub schema_info: String,
    /// What the action returned; empty if it failed.
    pub result: String,
    /// Why the action failed; empty if it did not.
    pub error: String,
    /// Actions made.
    pub step_count: u32,
    /// Actions left.
    pub budget_remaining: u32,
    /// Actions made, oldest first, as `TYPE argument`.
    pub action_history: Vec<String>,
    /// Whether the episode is over.
    #[serde(skip)]
    pub done: bool,
    /// The reward of the action; `None` after Reset.
    #[serde(skip)]
    pub reward: Option<f64>,
}

/// The state of an episode, which travels in the token. The gold answer is not in it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct EpisodeState {
    /// Name of the episode, chosen by the caller or derived from question and seed.
    #[prost(string, tag = "1")]
    pub(crate) episode_id: String,
    /// The question.
    #[prost(string, tag = "2")]
    pub(crate) question_id: String,
    /// How steps are rewarded.
    #[prost(enumeration = "RewardProfile", tag = "3")]
    pub(crate) reward_profile: i32,
    /// Actions allowed.
    #[prost(uint32, tag = "4")]
    pub(crate) step_budget: u32,
    /// Actions made, oldest first, as `TYPE argument`.
    #[prost(string, repeated, tag = "5")]
    pub(crate) history: Vec<String>,
    /// Indices of described tables, oldest first, each once.
    #[prost(uint32, repeated, tag = "6")]
    pub(crate) described: Vec<u32>,
    /// Keys of queries that count as asked before.
    #[prost(fixed64, repeated, tag = "7")]
    pub(crate) query_keys: Vec<u64>,
    /// The state of the reward profile.
    #[prost(message, required, tag = "8")]
    pub(crate) reward_state: RewardState,
    /// Whether the episode is over.
    #[prost(bool, tag = "9")]
    pub(crate) done: bool,
    /// Whether the episode ended with a correct answer.
    #[prost(bool, tag = "10")]
    pub(crate) correct: bool,
}

/// What an action asks for. A table is its index in the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParsedAction<'a> {
    /// Show a table's columns.
    Describe(usize),
    /// Show a table's first rows.
    Sample(usize),
    /// Run a statement.
    Query(&'a str),
    /// Check an answer.
    Answer(&'a str),
    /// The action cannot be carried out, for the given reason.
    Invalid(String),
}

/// What the caller got for a parsed action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ActionOutcome {
    /// The text of a table, for Describe and Sample.
    Text(String),
    /// A query's rows.
    Rows {
        /// The rows as text.
        text: String,
        /// The closeness to the gold rows, 0 to [`crate::progress::TOP_LEVEL`].
        level: u32,
    },
    /// What went wrong, for Query and Invalid.
    Error(String),
    /// Whether the answer is correct.
    Verified(bool),
}

/// The effect of an action.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transition {
    /// The state after it.
    pub(crate) state: EpisodeState,
    /// Whether the action was an answer. The history does not tell: it may hold unknown actions
    /// of a similar name, and answers that were too long.
    pub(crate) answered: bool,
    /// The observation's `result`.
    pub(crate) result: String,
    /// The observation's `error`.
    pub(crate) error: String,
    /// The step's reward.
    pub(crate) reward: StepReward,
}

impl EpisodeState {
    /// Actions made.
    pub(crate) fn step_count(&self) -> u32 {
        self.history.len() as u32
    }

    /// Returns what the agent sees in this state, with `result`, `error` and `reward` left empty.
    pub(crate) fn observation(&self, question_text: &str, schema: &Schema) -> Observation {
        Observation {
            question: question_text.to_owned(),
            schema_info: schema.info(&self.described),
            step_count: self.step_count(),
            budget_remaining: self.step_budget.saturating_sub(self.step_count()),
            action_history: self.history.clone(),
            done: self.done,
            ..Observation::default()
        }
    }
}

/// Reads what `action` asks for. Action and table names match in any case, and with white space
/// around them.
pub(crate) fn parse<'a>(
    action: &'a Action,
    schema: &Schema,
    argument_bytes: usize,
) -> ParsedAction<'a> {
    let argument = action.argument.as_str();
    if argument.len() > argument_bytes {
        return ParsedAction::Invalid(format!(
            "The argument has {} bytes; at most {argument_bytes} are allowed.",
            argument.len()
        ));
    }
    let table = |parsed: fn(usize) -> ParsedAction<'a>| match schema.find(argument) {
        Some(index) => parsed(index),
        None => ParsedAction::Invalid(format!(
            "Table '{}' not found. Available tables: {}",
            truncated(argument.trim(), TABLE_NAME_BYTES),
            schema.names()
        )),
    };
    match action_name(action).as_str() {
        "DESCRIBE" => table(ParsedAction::Describe),
        "SAMPLE" => table(ParsedAction::Sample),
        "QUERY" => ParsedAction::Query(argument),
        "ANSWER" => ParsedAction::Answer(argument),
        other => ParsedAction::Invalid(format!(
            "Unknown action '{other}'. Use one of DESCRIBE, SAMPLE, QUERY, ANSWER."
        )),
    }
}

/// Returns the state, the texts and the reward after `action`, which was parsed as `parsed` and got
/// `outcome`.
pub(crate) fn apply(
    state: &EpisodeState,
    action: &Action,
    parsed: &ParsedAction<'_>,
    outcome: ActionOutcome,
) -> Transition {
    let mut state = state.clone();
    state.history.push(history_entry(&state.history, action));
    let answered = matches!(parsed, ParsedAction::Answer(_));
    let spent = !answered && state.step_count() >= state.step_budget;

    if let (ParsedAction::Describe(table), ActionOutcome::Text(_)) = (parsed, &outcome) {
        let table = *table as u32;
        if !state.described.contains(&table) {
            state.described.push(table);
        }
    }
    let event = match (parsed, &outcome) {
        (ParsedAction::Query(sql), outcome) => query_event(&mut state, sql, outcome),
        (ParsedAction::Answer(_), outcome) => StepEvent::Answer {
            correct: *outcome == ActionOutcome::Verified(true),
        },
        (_, outcome) => StepEvent::Look {
            ok: matches!(outcome, ActionOutcome::Text(_)),
        },
    };
    let (reward_state, reward) = reward::score(
        state.reward_profile(),
        state.step_budget,
        &state.reward_state,
        event,
        spent,
    );
    state.reward_state = reward_state;
    state.done = answered || spent;
    state.correct = event == StepEvent::Answer { correct: true };
    let (result, error) = match outcome {
        ActionOutcome::Text(text) | ActionOutcome::Rows { text, .. } => (text, String::new()),
        ActionOutcome::Error(error) => (String::new(), error),
        ActionOutcome::Verified(true) => ("Answer submitted: correct.".to_owned(), String::new()),
        ActionOutcome::Verified(false) => {
            ("Answer submitted: incorrect.".to_owned(), String::new())
        }
    };
    Transition {
        state,
        answered,
        result,
        error,
        reward,
    }
}

/// Returns the effect of any action after the end: an error, and a reward of minus `penalty`.
pub(crate) fn apply_after_end(state: &EpisodeState, penalty: f64) -> Transition {
    Transition {
        state: state.clone(),
        answered: false,
        result: String::new(),
        error: "Episode is over. Reset to start another.".to_owned(),
        reward: StepReward::penalty(penalty),
    }
}

/// Returns an action as the history keeps it after the `earlier` ones.
fn history_entry(earlier: &[String], action: &Action) -> String {
    let held: usize = earlier.iter().map(String::len).sum();
    let room = HISTORY_BYTES.saturating_sub(held);
    let kept = room.clamp(LATE_ARGUMENT_BYTES, HISTORY_ARGUMENT_BYTES);
    let argument = truncated(action.argument.trim(), kept);
    let entry = format!("{} {argument}", action_name(action));
    entry.trim_end().to_owned()
}

fn action_name(action: &Action) -> String {
    let name = action.action_type.trim();
    truncated(name, ACTION_NAME_BYTES).to_ascii_uppercase()
}

/// Records the query where the profile counts it as asked, and returns whether it was asked before.
fn query_event(state: &mut EpisodeState, sql: &str, outcome: &ActionOutcome) -> StepEvent {
    let level = match outcome {
        ActionOutcome::Rows { level, .. } => Some(*level),
        _ => None,
    };
    let profile = state.reward_profile();
    let counts = level.is_some() || profile == RewardProfile::Default;
    let key = query_key(profile, sql);
    let repeated = counts && state.query_keys.contains(&key);
    if counts && !repeated {
        state.query_keys.push(key);
    }
    StepEvent::Query { level, repeated }
}

/// Identifies a query: by its normal form in the default profile, by its exact text in the others,
/// as `SQLEnv` does.
fn query_key(profile: RewardProfile, sql: &str) -> u64 {
    let digest = match profile {
        RewardProfile::Default => Sha256::digest(sql_text::normal_form(sql)),
        RewardProfile::SqlenvFinal | RewardProfile::SqlenvF003 => Sha256::digest(sql),
    };
    let mut key = [0; 8];
    key.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(key)
}

#[cfg(test)]
mod tests;
