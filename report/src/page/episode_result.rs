//! What the transcripts tell about the results and the actions of episodes. Pure.

use crate::records::{EpisodeRecord, Transcript};

/// The result of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EpisodeResult {
    /// The answer was right.
    Correct,
    /// The last query succeeded, but the answer was wrong.
    WrongSql,
    /// The last query before the wrong answer failed.
    SqlError,
    /// A wrong answer without any query.
    NoQuery,
    /// A turn had no well-formed tool call.
    Malformed,
    /// The step budget ended before an answer.
    BudgetSpent,
    /// It failed for a reason outside the agent.
    Failed,
}

impl EpisodeResult {
    pub(super) const ALL: [Self; 7] = [
        Self::Correct,
        Self::WrongSql,
        Self::SqlError,
        Self::NoQuery,
        Self::Malformed,
        Self::BudgetSpent,
        Self::Failed,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Correct => "right answer",
            Self::WrongSql => "wrong SQL or answer",
            Self::SqlError => "SQL error",
            Self::NoQuery => "no query",
            Self::Malformed => "malformed call",
            Self::BudgetSpent => "budget spent",
            Self::Failed => "failed",
        }
    }

    pub(super) fn of(episode: &EpisodeRecord) -> Self {
        let last_query = episode.steps.iter().rfind(|s| s.action_type == "QUERY");
        let has_answer = episode.steps.iter().any(|s| s.action_type == "ANSWER");
        let is_malformed = episode.steps.iter().any(|s| s.malformed);
        match last_query {
            _ if !episode.failure.is_empty() => Self::Failed,
            _ if episode.correct => Self::Correct,
            _ if is_malformed => Self::Malformed,
            _ if !has_answer => Self::BudgetSpent,
            None => Self::NoQuery,
            Some(query) if query.error.is_some() => Self::SqlError,
            Some(_) => Self::WrongSql,
        }
    }
}

/// The actions of the environment; the last element stands for all others.
pub(super) const ACTIONS: [&str; 5] = ["DESCRIBE", "SAMPLE", "QUERY", "ANSWER", "other"];

/// Counts the env steps of each kind in [`ACTIONS`].
pub(super) fn count_actions(transcripts: &[&Transcript]) -> [u64; ACTIONS.len()] {
    let mut counts = [0; ACTIONS.len()];
    for step in transcripts.iter().flat_map(|t| &t.episode.steps) {
        let known = ACTIONS.iter().position(|a| *a == step.action_type);
        counts[known.unwrap_or(ACTIONS.len() - 1)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{EnvStepRecord, PolicyName, tests::transcript};

    fn step(action_type: &str, failed: bool) -> EnvStepRecord {
        EnvStepRecord {
            completion: None,
            action_type: action_type.to_owned(),
            argument: String::new(),
            malformed: false,
            result: None,
            error: failed.then(|| "SQL error".to_owned()),
            reward: 0.0,
            components: Default::default(),
        }
    }

    #[test]
    fn results() {
        let malformed = EnvStepRecord {
            malformed: true,
            ..step("QUERY", true)
        };
        for (result, steps) in [
            (
                EpisodeResult::WrongSql,
                vec![
                    step("QUERY", true),
                    step("QUERY", false),
                    step("ANSWER", false),
                ],
            ),
            (
                EpisodeResult::SqlError,
                vec![
                    step("QUERY", false),
                    step("QUERY", true),
                    step("ANSWER", false),
                ],
            ),
            (
                EpisodeResult::NoQuery,
                vec![step("DESCRIBE", false), step("ANSWER", false)],
            ),
            (
                EpisodeResult::Malformed,
                vec![malformed, step("ANSWER", false)],
            ),
            (EpisodeResult::BudgetSpent, vec![step("SAMPLE", false); 15]),
            (EpisodeResult::BudgetSpent, vec![]),
        ] {
            let played = transcript(PolicyName::Grpo, "q", false, steps.clone());
            assert_eq!(EpisodeResult::of(&played.episode), result);
            assert_eq!(
                EpisodeResult::of(&transcript(PolicyName::Grpo, "q", true, steps).episode),
                EpisodeResult::Correct
            );
        }
        let mut failed = transcript(PolicyName::Grpo, "q", false, Vec::new());
        failed.episode.failure = "env-node is away".to_owned();
        assert_eq!(EpisodeResult::of(&failed.episode), EpisodeResult::Failed);
    }

    #[test]
    fn unknown_actions_count_as_other() {
        let played = transcript(
            PolicyName::Grpo,
            "q",
            false,
            vec![step("ANSWER", false), step("DROP", true)],
        );
        assert_eq!(count_actions(&[&played]), [0, 0, 0, 1, 1]);
    }
}
