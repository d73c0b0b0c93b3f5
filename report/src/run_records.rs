//! The records that a run folder contains.

use std::collections::BTreeMap;

use crate::{
    live::{Finding, Severity},
    records::{
        DecodingMode, Evaluation, LearnerStepRecord, NEW_WORDS_SPLIT, PolicyName, RunInfo,
        StageTime, Transcript,
    },
};

/// The records of a run folder: the input of the report.
#[derive(Debug, Default)]
pub struct RunRecords {
    /// `run.json`.
    pub info: Option<RunInfo>,
    /// `config.toml`, as text.
    pub config: Option<String>,
    /// `metrics.jsonl`, ordered by stage and step.
    pub steps: Vec<LearnerStepRecord>,
    /// `evaluations.jsonl`, ordered by policy, split, mode and step.
    pub evaluations: Vec<Evaluation>,
    /// `transcripts.jsonl`, ordered by policy and question.
    pub transcripts: Vec<Transcript>,
    /// `timing.json`, in the order of the stages.
    pub timing: Vec<StageTime>,
    /// Number of lines that could not be read, by file name.
    pub unreadable: BTreeMap<&'static str, usize>,
}

impl RunRecords {
    /// Adds an evaluation in its order. It replaces one of the same policy, split, mode and step.
    pub fn add(&mut self, evaluation: Evaluation) {
        let key = evaluation_key(&evaluation);
        let found = self.evaluations.binary_search_by_key(&key, evaluation_key);
        match found {
            Ok(at) => self.evaluations[at] = evaluation,
            Err(at) => self.evaluations.insert(at, evaluation),
        }
    }

    /// Returns a hint for each file that could not be read whole, since the report lacks a part of
    /// it.
    pub fn damage(&self) -> Vec<Finding> {
        let finding = |(file, lines): (&&str, &usize)| Finding {
            severity: Severity::Hint,
            rule: "records-damaged".to_owned(),
            seen: match lines {
                1 => format!("One line of {file} could not be read."),
                _ => format!("{lines} lines of {file} could not be read."),
            },
            meaning: "Tables and curves do not contain these records. After a crash the last line \
                      is incomplete, and the resumed run writes it again."
                .to_owned(),
            remedy: format!("Restore {file} from a copy, unless the run crashed."),
        };
        self.unreadable.iter().map(finding).collect()
    }

    /// Returns whether these are of a pretraining: it has no `run.json`, and is evaluated on new
    /// words.
    pub(crate) fn is_of_pretraining(&self) -> bool {
        let mut evaluations = self.evaluations.iter();
        self.info.is_none() && evaluations.any(|it| it.split == NEW_WORDS_SPLIT)
    }

    /// Returns whether there is nothing that a run writes.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { info, config, .. } = self;
        info.is_none() && config.is_none() && self.steps.is_empty() && self.evaluations.is_empty()
    }
}

/// Returns what tells two evaluations of a run apart, in their order.
pub(crate) fn evaluation_key(it: &Evaluation) -> (PolicyName, String, DecodingMode, u64) {
    (it.policy, it.split.clone(), it.mode, it.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::EvaluationMetrics;

    #[test]
    fn an_evaluation_is_added_in_its_order() {
        let mut records = RunRecords::default();
        for (split, step, policy_version) in
            [("eval", 3, 3), ("a", 2, 2), ("a", 1, 1), ("eval", 3, 4)]
        {
            records.add(Evaluation {
                policy: PolicyName::Grpo,
                policy_version,
                step,
                split: split.to_owned(),
                mode: DecodingMode::Greedy,
                metrics: EvaluationMetrics::default(),
            });
        }
        let versions = records.evaluations.iter().map(|it| it.policy_version);
        assert!(versions.eq([1, 2, 4]), "{:?}", records.evaluations);
    }
}
