//! The three layers of a step's reward, in three profiles. Pure.
//!
//! Invariant: pure and exact. All arithmetic is in whole `Points` of 1e-4, in which every constant
//! and every progress level is a whole number. `episode.rs` decides what counts as a repeat,
//! `progress.rs` how rows become a level.
//!
//! # The default profile cannot be farmed
//!
//! A step that is not ANSWER earns, with `s = 15 / max(budget, 15)`:
//!
//! * `s × 0.02` for success, minus `s × 0.02` always, minus `s × 0.03` for a QUERY that was asked
//!   before in the episode, whether or not it failed. Comments and white space do not count.
//! * `+0.01` for the first successful QUERY of the episode.
//! * `0.15 × (Φ' - Φ)`, where Φ is the closeness of the last successful QUERY to the gold rows, 0
//!   at first. This term is not clipped.
//!
//! 1. *No cycle pays.* Over any run of steps that ends at the Φ it began with, the third term
//!    telescopes to 0, the first is never above 0, and the second is paid once in an episode. In
//!    particular, distinct trivial SELECTs earn nothing after the first, and repeats lose.
//! 2. *Shaping is bounded.* Over an episode the third term sums to 0.15 Φ, so it lies in [0, 0.15].
//!    The second lies in [0, 0.01]. The first lies in [-0.05 s × budget, 0], and s × budget ≤ 15.
//!    So the shaping lies in [-0.75, 0.16].
//! 3. *A correct answer outranks everything else.* An episode with one totals at least 1 - 0.75 =
//!    0.25; an episode without one totals at most 0.16.
//!
//! `s` keeps 2 and 3 true for every budget. A running cap would do so too, but it would be state
//! that the agent cannot see. This is potential-based shaping with gamma = 1 (Ng, Harada and
//! Russell 1999).

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::truncate::truncated;

/// Ten-thousandths of a unit of reward.
type Points = i32;

const POINTS_PER_UNIT: f64 = 10_000.0;
const CORRECT: Points = 10_000;
/// 0.15 over four levels.
const PROGRESS_PER_LEVEL: Points = 375;
const EXEC_OK: Points = 200;
const NEW_INFO: Points = 100;
/// Budgets up to this one pay the full cost per step in the default profile.
const FULL_COST_BUDGET: u32 = 15;

/// The rules that turn a step into a reward.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    prost::Enumeration,
)]
#[serde(rename_all = "kebab-case")]
#[repr(i32)]
pub enum RewardProfile {
    /// The project's own rules, without cycles that pay; see the module's documentation.
    Default = 0,
    /// The rules of `SQLEnv`'s last published code, clipping included.
    SqlenvFinal = 1,
    /// The rules of `SQLEnv`'s earlier design, with cumulative caps.
    SqlenvF003 = 2,
}

impl RewardProfile {
    /// All profiles, the default first.
    pub const ALL: [Self; 3] = [Self::Default, Self::SqlenvFinal, Self::SqlenvF003];
}

impl fmt::Display for RewardProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::SqlenvFinal => "sqlenv-final",
            Self::SqlenvF003 => "sqlenv-f003",
        })
    }
}

/// Bytes of an unknown profile's name that the error repeats.
const SHOWN_NAME_BYTES: usize = 64;

/// No profile has this name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown reward profile {0:?}; use default, sqlenv-final or sqlenv-f003")]
pub struct UnknownProfile(String);

impl FromStr for RewardProfile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.to_string() == name)
            .ok_or_else(|| UnknownProfile(truncated(name, SHOWN_NAME_BYTES).into_owned()))
    }
}

/// What a step did, as far as rewards depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepEvent {
    /// DESCRIBE, SAMPLE, or an action that was refused.
    Look {
        /// Whether it succeeded.
        ok: bool,
    },
    /// QUERY.
    Query {
        /// Closeness of the returned rows, 0 to [`crate::progress::TOP_LEVEL`]. `None` if it
        /// failed.
        level: Option<u32>,
        /// Whether it was asked before in the episode.
        repeated: bool,
    },
    /// ANSWER.
    Answer {
        /// What the verifier found.
        correct: bool,
    },
}

/// The reward of a step by layer, in units of reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RewardComponents {
    /// For running without error, minus the cost of the step and of repeats.
    pub operational: f64,
    /// For coming closer to the gold rows.
    pub progress: f64,
    /// For the answer.
    pub terminal: f64,
    /// What the profile's bounds take off the sum of the others, or add to it.
    pub clip: f64,
}

/// The state that a profile keeps from step to step; part of the episode token.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct RewardState {
    /// Level of the last successful QUERY; in `sqlenv-f003`, the best level so far.
    #[prost(uint32, tag = "1")]
    pub(crate) level: u32,
    /// Points paid for new information.
    #[prost(sint32, tag = "2")]
    pub(crate) new_info: i32,
    /// Points of all layers before the answer.
    #[prost(sint32, tag = "3")]
    pub(crate) shaping: i32,
}

/// The reward of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepReward {
    operational: Points,
    progress: Points,
    terminal: Points,
    clip: Points,
}

impl StepReward {
    /// Returns the step's reward, a decimal number of four places.
    pub(crate) fn total(&self) -> f64 {
        units(self.points())
    }

    /// Returns the reward by layer. The layers sum to [`Self::total`], up to rounding.
    pub(crate) fn components(&self) -> RewardComponents {
        RewardComponents {
            operational: units(self.operational),
            progress: units(self.progress),
            terminal: units(self.terminal),
            clip: units(self.clip),
        }
    }

    /// Returns the reward of an action after the end.
    pub(crate) fn penalty(amount: f64) -> Self {
        Self {
            operational: -(amount * POINTS_PER_UNIT).round() as Points,
            ..Self::default()
        }
    }

    fn points(&self) -> Points {
        self.operational + self.progress + self.terminal + self.clip
    }

    /// Clips the sum of all layers to `[least, greatest]`.
    fn clipped(mut self, least: Points, greatest: Points) -> Self {
        let raw = self.points();
        self.clip += raw.clamp(least, greatest) - raw;
        self
    }
}

fn units(points: Points) -> f64 {
    f64::from(points) / POINTS_PER_UNIT
}

/// Returns the reward of a step and the state of the profile after it. `spent` says that the step
/// used up the budget of `step_budget` actions.
pub(crate) fn score(
    profile: RewardProfile,
    step_budget: u32,
    reward_state: &RewardState,
    event: StepEvent,
    spent: bool,
) -> (RewardState, StepReward) {
    if let StepEvent::Answer { correct } = event {
        let terminal = if correct { CORRECT } else { 0 };
        let reward = StepReward {
            terminal,
            ..StepReward::default()
        };
        return (*reward_state, reward);
    }
    let (mut after, reward) = match profile {
        RewardProfile::Default => score_default(step_budget, reward_state, event),
        // In SQLEnv running out of budget is terminal and pays 0, whatever the action found.
        _ if spent => (*reward_state, StepReward::default()),
        RewardProfile::SqlenvFinal => score_final(reward_state, event),
        RewardProfile::SqlenvF003 => score_f003(reward_state, event),
    };
    after.shaping += reward.points();
    (after, reward)
}

fn score_default(
    step_budget: u32,
    reward_state: &RewardState,
    event: StepEvent,
) -> (RewardState, StepReward) {
    let scaled = |points: Points| {
        let budget = step_budget.max(FULL_COST_BUDGET);
        (i64::from(points) * i64::from(FULL_COST_BUDGET) / i64::from(budget)) as Points
    };
    let new_info = if reward_state.new_info == 0 {
        new_query(event, NEW_INFO)
    } else {
        0
    };
    let level = level_of(event).unwrap_or(reward_state.level);
    let reward = StepReward {
        operational: scaled(if_ok(event, EXEC_OK)) - scaled(200) - scaled(if_repeated(event, 300))
            + new_info,
        progress: level_change(reward_state.level, level),
        ..StepReward::default()
    };
    (remember(reward_state, level, new_info), reward)
}

fn score_final(reward_state: &RewardState, event: StepEvent) -> (RewardState, StepReward) {
    let new_info = new_query(event, NEW_INFO);
    let level = level_of(event).unwrap_or(reward_state.level);
    let reward = StepReward {
        operational: if_ok(event, EXEC_OK) - 200 - if_repeated(event, 300) + new_info,
        progress: level_change(reward_state.level, level),
        ..StepReward::default()
    };
    (
        remember(reward_state, level, new_info),
        reward.clipped(-1_000, 1_500),
    )
}

fn score_f003(reward_state: &RewardState, event: StepEvent) -> (RewardState, StepReward) {
    let new_info = new_query(event, NEW_INFO).min(1_000 - reward_state.new_info);
    let level = level_of(event).unwrap_or(0).max(reward_state.level);
    let reward = StepReward {
        operational: if_ok(event, EXEC_OK) - 50 - if_repeated(event, 100) + new_info,
        progress: level_change(reward_state.level, level),
        ..StepReward::default()
    };
    let reward = reward.clipped(-1_000, 1_500);
    let room = (-2_000 - reward_state.shaping, 5_000 - reward_state.shaping);
    (
        remember(reward_state, level, new_info),
        reward.clipped(room.0, room.1),
    )
}

fn remember(reward_state: &RewardState, level: u32, new_info: Points) -> RewardState {
    RewardState {
        level,
        new_info: reward_state.new_info + new_info,
        shaping: reward_state.shaping,
    }
}

fn level_of(event: StepEvent) -> Option<u32> {
    match event {
        StepEvent::Query { level, .. } => level,
        _ => None,
    }
}

fn level_change(before: u32, after: u32) -> Points {
    PROGRESS_PER_LEVEL * (after as Points - before as Points)
}

fn if_ok(event: StepEvent, points: Points) -> Points {
    match event {
        StepEvent::Look { ok: true } | StepEvent::Query { level: Some(_), .. } => points,
        _ => 0,
    }
}

fn if_repeated(event: StepEvent, points: Points) -> Points {
    match event {
        StepEvent::Query { repeated: true, .. } => points,
        _ => 0,
    }
}

fn new_query(event: StepEvent, points: Points) -> Points {
    match event {
        StepEvent::Query {
            level: Some(_),
            repeated: false,
        } => points,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
