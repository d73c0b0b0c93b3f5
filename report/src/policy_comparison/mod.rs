//! Policies compared on the same questions: their accuracy with intervals, paired tests against the
//! first policy, and pass@k.
//!
//! Pure. Invariant: all rows of a split have the same questions in the same order, so pairs of
//! answers can be compared.

mod page;
mod statistics;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use actor::{CorrectCount, EvaluationMetrics};
use serde::Serialize;

use self::statistics::{ClusterDifference, difference_interval, mcnemar, pass_at};

/// What an episode may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EpisodeLimits {
    /// Env steps.
    pub step_budget: u32,
    /// Tokens of a completion.
    pub completion_tokens: u32,
    /// Tokens of a context.
    pub context_tokens: u32,
}

/// A comparison as it is written to a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyComparison {
    /// Name of the dataset.
    pub dataset: String,
    /// Hash of questions and databases.
    pub data_sha256: String,
    /// The seed of the episodes.
    pub seed: u64,
    /// Sampling temperature of `sampled`.
    pub temperature: f32,
    /// Ids of the questions of each split, in order.
    pub questions: BTreeMap<String, Vec<String>>,
    /// One row for each policy, number of examples and split.
    pub rows: Vec<ComparisonRow>,
}

/// A policy on a split.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The policy as the user named it.
    pub policy: String,
    /// Solved examples before each question.
    pub shots: u32,
    /// The split.
    pub split: String,
    /// What an episode might take.
    pub limits: EpisodeLimits,
    /// Metrics of greedy decoding.
    pub greedy: EvaluationMetrics,
    /// Whether each question was answered with greedy decoding, in their order.
    pub correct: Vec<bool>,
    /// The difference to the first row of the split; none in that row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_first: Option<PairedDifference>,
    /// Metrics of sampling, if the policy was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledAccuracy>,
}

/// The difference between two policies on the same questions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PairedDifference {
    /// Accuracy of this policy less that of the first one, −1 to 1.
    pub accuracy: f64,
    /// 95 % interval of `accuracy`, grouped by database; none if there are too few databases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// Questions that only this policy answered.
    pub gained: u64,
    /// Questions that only the first policy answered.
    pub lost: u64,
    /// Two-sided p-value of McNemar's exact test.
    pub p_value: f64,
}

/// Accuracy over several samples for each question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledAccuracy {
    /// Samples for each question.
    pub samples: u64,
    /// Mean accuracy of a sample, 0 to 1.
    pub mean: f64,
    /// By k: the chance that one of k samples is right, 0 to 1.
    pub pass_at: BTreeMap<u64, f64>,
}

impl PolicyComparison {
    /// Adds a row. It gets its difference to the first one of its split, and its accuracy over
    /// `samples`: for each sample, whether each question was answered.
    pub fn push(&mut self, row: ComparisonRow, samples: &[Vec<bool>]) {
        let first = self.rows.iter().find(|it| it.split == row.split);
        let against_first = first.map(|it| PairedDifference::between(it, &row));
        self.rows.push(ComparisonRow {
            against_first,
            sampled: sampled(samples),
            ..row
        });
    }

    /// Returns the limits of each policy in words. They are those of its run or of a preset, so
    /// they may differ.
    fn limits_in_words(&self) -> String {
        let mut policies: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for row in &self.rows {
            let EpisodeLimits {
                step_budget,
                completion_tokens,
                context_tokens,
            } = row.limits;
            let limits = format!(
                "{step_budget} env steps, {completion_tokens} tokens a turn, {context_tokens} \
                 tokens of context"
            );
            policies.entry(limits).or_default().insert(&row.policy);
        }
        let of = |(limits, names): (String, BTreeSet<&str>)| {
            let names: Vec<&str> = names.into_iter().collect();
            format!("{limits} ({})", names.join(", "))
        };
        policies.into_iter().map(of).collect::<Vec<_>>().join("; ")
    }

    /// Returns the table as text for a terminal.
    pub fn text(&self) -> String {
        text::table(self)
    }

    /// Returns the comparison as an HTML page without scripts.
    pub fn page(&self) -> String {
        page::render(self)
    }
}

impl PairedDifference {
    /// Compares a policy with the first one. Both have the same questions in the same order.
    fn between(first: &ComparisonRow, policy: &ComparisonRow) -> Self {
        let (mut gained, mut lost) = (0, 0);
        for (first, policy) in first.correct.iter().zip(&policy.correct) {
            gained += u64::from(*policy && !*first);
            lost += u64::from(*first && !*policy);
        }
        let questions = policy.correct.len().max(1) as f64;
        Self {
            accuracy: (gained as f64 - lost as f64) / questions,
            interval: difference_interval(&by_database(first, policy)),
            gained,
            lost,
            p_value: mcnemar(gained, lost),
        }
    }
}

/// Returns the difference of two policies on each database.
fn by_database(first: &ComparisonRow, policy: &ComparisonRow) -> Vec<ClusterDifference> {
    let of_first = &first.greedy.by_database;
    let difference = |(name, count): (&String, &CorrectCount)| ClusterDifference {
        questions: count.questions as f64,
        gained: count.correct as f64 - of_first.get(name).map_or(0.0, |it| it.correct as f64),
    };
    let databases = policy.greedy.by_database.iter();
    databases.map(difference).collect()
}

/// Returns the accuracy of samples, with pass@k for powers of two and for all samples.
fn sampled(samples: &[Vec<bool>]) -> Option<SampledAccuracy> {
    let count = samples.len() as u64;
    let questions = samples.first()?.len();
    let correct = |question: usize| samples.iter().filter(|sample| sample[question]).count() as u64;
    let correct: Vec<u64> = (0..questions).map(correct).collect();
    let mean = |value: &dyn Fn(u64) -> f64| {
        correct.iter().map(|correct| value(*correct)).sum::<f64>() / questions.max(1) as f64
    };
    let powers = std::iter::successors(Some(1), |k| Some(2 * k)).take_while(|k| *k < count);
    let pass_at_k = |k| (k, mean(&|correct| pass_at(k, count, correct)));
    Some(SampledAccuracy {
        samples: count,
        mean: mean(&|correct| correct as f64 / count as f64),
        pass_at: powers.chain([count]).map(pass_at_k).collect(),
    })
}

/// Returns a p-value as people write it.
fn p_in_words(p_value: f64) -> String {
    match p_value < 0.001 {
        true => "p < 0.001".to_owned(),
        false => format!("p = {p_value:.3}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use actor::SuccessRate;

    use super::*;

    fn row(policy: &str, correct: &[bool]) -> ComparisonRow {
        let count = CorrectCount {
            questions: correct.len() as u64,
            correct: correct.iter().filter(|it| **it).count() as u64,
        };
        ComparisonRow {
            policy: policy.to_owned(),
            shots: 0,
            split: "eval".to_owned(),
            limits: EpisodeLimits {
                step_budget: 8,
                completion_tokens: 96,
                context_tokens: 768,
            },
            greedy: EvaluationMetrics {
                success: SuccessRate::from(count),
                by_level: BTreeMap::from([("easy".to_owned(), count)]),
                by_database: BTreeMap::from([("library".to_owned(), count)]),
                ..EvaluationMetrics::default()
            },
            correct: correct.to_vec(),
            against_first: None,
            sampled: None,
        }
    }

    pub(crate) fn comparison() -> PolicyComparison {
        let mut comparison = PolicyComparison {
            dataset: "library & <co>".to_owned(),
            data_sha256: "ab".to_owned(),
            seed: 1,
            temperature: 1.0,
            questions: BTreeMap::from([("eval".to_owned(), vec!["q1".to_owned()])]),
            rows: Vec::new(),
        };
        let base = [true, false, false, false, false, false, false];
        comparison.push(row("base", &base), &[]);
        let trained = [false, true, true, true, true, true, true];
        let samples = [
            vec![true, true, false, true, true, true, true],
            vec![true, false, false, true, true, true, true],
        ];
        comparison.push(row("runs/run-001", &trained), &samples);
        comparison
    }

    #[test]
    fn rows_are_compared_with_the_first() {
        let comparison = comparison();
        assert_eq!(comparison.rows[0].against_first, None);
        assert_eq!(comparison.rows[0].sampled, None);
        let difference = comparison.rows[1].against_first.unwrap();
        assert_eq!((difference.gained, difference.lost), (6, 1));
        assert!((difference.p_value - 0.125).abs() < 1e-12);
        assert!((difference.accuracy - 5.0 / 7.0).abs() < 1e-12);
        assert_eq!(difference.interval, None, "one database");
        let sampled = comparison.rows[1].sampled.as_ref().unwrap();
        assert!((sampled.mean - 11.0 / 14.0).abs() < 1e-12, "{sampled:?}");
        let pass_at: Vec<_> = sampled
            .pass_at
            .iter()
            .map(|(k, rate)| (*k, *rate))
            .collect();
        assert_eq!(pass_at.len(), 2);
        assert!((pass_at[0].1 - 11.0 / 14.0).abs() < 1e-12);
        assert!((pass_at[1].1 - 6.0 / 7.0).abs() < 1e-12);
    }

    #[test]
    fn only_questions_on_which_policies_differ_count() {
        let first = row("first", &[true, true, false, false, true]);
        let policy = row("policy", &[true, false, true, false, false]);
        let difference = PairedDifference::between(&first, &policy);
        assert_eq!((difference.gained, difference.lost), (1, 2));
    }

    #[test]
    fn p_values_are_written_with_three_places() {
        assert_eq!(p_in_words(0.0204), "p = 0.020");
        assert_eq!(p_in_words(0.0002), "p < 0.001");
    }
}
