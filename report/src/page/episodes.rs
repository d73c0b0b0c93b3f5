//! What transcripts tell: how episodes ended, which actions were taken, and which questions to show. Pure.
//!
//! Invariant: the choice of questions depends on outcomes and ids alone, so nobody can pick the pretty ones.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::records::{PolicyName, Transcript};

/// How an episode ended; the first that fits, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// The answer was right.
    Correct,
    /// The last query ran; the answer was wrong all the same.
    WrongSql,
    /// The last query before the wrong answer failed.
    SqlError,
    /// Answered wrongly without any query.
    NoQuery,
    /// A turn held no well-formed tool call.
    Malformed,
    /// No answer within the budget.
    BudgetSpent,
}

impl Ending {
    pub(super) const ALL: [Self; 6] = [
        Self::Correct,
        Self::WrongSql,
        Self::SqlError,
        Self::NoQuery,
        Self::Malformed,
        Self::BudgetSpent,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Correct => "right answer",
            Self::WrongSql => "wrong SQL or answer",
            Self::SqlError => "SQL error",
            Self::NoQuery => "no query",
            Self::Malformed => "malformed call",
            Self::BudgetSpent => "budget spent",
        }
    }

    pub(super) fn of(transcript: &Transcript) -> Self {
        let last_query = transcript.steps.iter().rfind(|s| s.action_type == "QUERY");
        let answered = transcript.steps.iter().any(|s| s.action_type == "ANSWER");
        if transcript.correct {
            Self::Correct
        } else if transcript.steps.iter().any(|s| s.malformed) {
            Self::Malformed
        } else if !answered {
            Self::BudgetSpent
        } else {
            match last_query {
                None => Self::NoQuery,
                Some(query) if query.error.is_some() => Self::SqlError,
                Some(_) => Self::WrongSql,
            }
        }
    }
}

/// The actions, and last what the environment does not know.
pub(super) const ACTIONS: [&str; 5] = ["DESCRIBE", "SAMPLE", "QUERY", "ANSWER", "other"];

/// Steps of each kind in [`ACTIONS`].
pub(super) fn count_actions(transcripts: &[&Transcript]) -> [u64; ACTIONS.len()] {
    let mut counts = [0; ACTIONS.len()];
    for step in transcripts.iter().flat_map(|t| &t.steps) {
        let known = ACTIONS.iter().position(|a| *a == step.action_type);
        counts[known.unwrap_or(ACTIONS.len() - 1)] += 1;
    }
    counts
}

/// The same question as several policies played it.
pub(super) struct Played<'a> {
    pub(super) before: &'a Transcript,
    pub(super) after: &'a Transcript,
    pub(super) random: Option<&'a Transcript>,
}

/// How the outcome changed from before to after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// Wrong, then right.
    Gained,
    /// Right, then wrong.
    Lost,
    /// Wrong both times.
    StillWrong,
    /// Right both times.
    StillRight,
}

impl Change {
    pub(super) const ALL: [Self; 4] =
        [Self::Gained, Self::Lost, Self::StillWrong, Self::StillRight];

    /// Questions of this kind on the page; what one kind lacks is left empty.
    pub(super) fn shown(self) -> usize {
        match self {
            Self::Gained | Self::Lost => 4,
            Self::StillWrong | Self::StillRight => 2,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gained => "gained",
            Self::Lost => "lost",
            Self::StillWrong => "still wrong",
            Self::StillRight => "still right",
        }
    }
}

impl Played<'_> {
    pub(super) fn change(&self) -> Change {
        match (self.before.correct, self.after.correct) {
            (false, true) => Change::Gained,
            (true, false) => Change::Lost,
            (false, false) => Change::StillWrong,
            (true, true) => Change::StillRight,
        }
    }
}

/// Questions that both the warm start and GRPO played, in the order of their ids' SHA-256.
pub(super) fn side_by_side(transcripts: &[Transcript]) -> Vec<Played<'_>> {
    let of = |policy: PolicyName| -> BTreeMap<&str, &Transcript> {
        let played = transcripts.iter().filter(|t| t.policy == policy);
        played.map(|t| (t.question_id.as_str(), t)).collect()
    };
    let (random, before) = (of(PolicyName::Random), of(PolicyName::WarmStart));
    let mut all: Vec<Played<'_>> = of(PolicyName::Grpo)
        .into_iter()
        .filter_map(|(id, after)| {
            Some(Played {
                before: before.get(id)?,
                after,
                random: random.get(id).copied(),
            })
        })
        .collect();
    all.sort_by_cached_key(|p| <[u8; 32]>::from(Sha256::digest(&p.after.question_id)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{PlayedStep, RewardComponents};

    fn step(action_type: &str, failed: bool) -> PlayedStep {
        PlayedStep {
            completion: None,
            action_type: action_type.to_owned(),
            argument: String::new(),
            malformed: false,
            result: None,
            error: failed.then(|| "SQL error".to_owned()),
            reward: 0.0,
            components: RewardComponents::default(),
        }
    }

    fn episode(policy: PolicyName, id: &str, correct: bool, steps: Vec<PlayedStep>) -> Transcript {
        Transcript {
            policy,
            question_id: id.to_owned(),
            question: String::new(),
            database: String::new(),
            difficulty: String::new(),
            gold_sql: String::new(),
            gold_answer: String::new(),
            correct,
            reward: 0.0,
            steps,
        }
    }

    #[test]
    fn endings() {
        let malformed = PlayedStep {
            malformed: true,
            ..step("QUERY", true)
        };
        for (ending, steps) in [
            (
                Ending::WrongSql,
                vec![
                    step("QUERY", true),
                    step("QUERY", false),
                    step("ANSWER", false),
                ],
            ),
            (
                Ending::SqlError,
                vec![
                    step("QUERY", false),
                    step("QUERY", true),
                    step("ANSWER", false),
                ],
            ),
            (
                Ending::NoQuery,
                vec![step("DESCRIBE", false), step("ANSWER", false)],
            ),
            (Ending::Malformed, vec![malformed, step("ANSWER", false)]),
            (Ending::BudgetSpent, vec![step("SAMPLE", false); 15]),
            (Ending::BudgetSpent, vec![]),
        ] {
            let played = episode(PolicyName::Grpo, "q", false, steps.clone());
            assert_eq!(Ending::of(&played), ending);
            assert_eq!(
                Ending::of(&episode(PolicyName::Grpo, "q", true, steps)),
                Ending::Correct
            );
        }
    }

    #[test]
    fn unknown_actions_count_as_other() {
        let played = episode(
            PolicyName::Grpo,
            "q",
            false,
            vec![step("ANSWER", false), step("DROP", true)],
        );
        assert_eq!(count_actions(&[&played]), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn only_questions_played_before_and_after_are_compared() {
        let all = [
            episode(PolicyName::Random, "a", false, vec![]),
            episode(PolicyName::WarmStart, "a", false, vec![]),
            episode(PolicyName::Grpo, "a", true, vec![]),
            episode(PolicyName::Grpo, "b", true, vec![]),
        ];
        let found = side_by_side(&all);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].change(), Change::Gained);
        assert!(found[0].random.is_some());
    }
}
