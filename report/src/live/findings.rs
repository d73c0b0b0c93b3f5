//! What is wrong with a run, in words.
//!
//! Pure. The rules that find it are in [`super::rules`].

use serde::{Deserialize, Serialize};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run does not learn, or will not end.
    Problem,
    /// The run learns, but slower or less visibly than it could.
    Hint,
}

/// Something that is wrong with a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The name of the rule, for programs.
    pub rule: String,
    /// What was seen, with numbers.
    pub seen: String,
    /// What it means.
    pub meaning: String,
    /// What to change.
    pub remedy: String,
}

/// What a rule says of a status.
pub(super) struct Diagnosed {
    pub(super) severity: Severity,
    pub(super) seen: String,
    pub(super) meaning: &'static str,
    pub(super) remedy: String,
}
