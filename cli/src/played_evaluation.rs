//! The evaluations of a learner process, which its actors play: what is planned, and how the
//! results become records.
//!
//! Invariant: questions, seeds and decoding are those of `sqlenv train`, so both give the same
//! numbers. The learner does not know the gold answers, so it has no oracle, and its transcripts
//! have no gold SQL.

use std::collections::BTreeMap;

use actor::evaluation_of;
use anyhow::{Context as _, Result};
use learner::{EvaluationPlan, EvaluationSet};
use policy::{Chat, SamplingSettings, random::derive_seed};
use proto::v1::{Question, Trajectory};
use report::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyName, RunFolder, Transcript};

use crate::{
    config::LearnerRole,
    evaluation::{EvaluatedPolicy, EvaluationQuestions, success_text},
    progress::Progress,
};

/// The split of new questions on the databases of the training.
const MAIN: &str = "eval";

/// Questions that are evaluated at one version.
struct PlannedSet {
    evaluated: EvaluatedPolicy,
    /// The split of the record.
    split: String,
    questions: Vec<Question>,
}

/// The evaluations that a run has not recorded yet.
pub(crate) struct PlayedEvaluations<'a> {
    sets: BTreeMap<(u64, String), PlannedSet>,
    folder: &'a RunFolder,
    chat: Chat,
    progress: &'a Progress,
}

impl<'a> PlayedEvaluations<'a> {
    /// Plans the learning curve and both ends of the comparison table, without what the folder has.
    pub(crate) fn plan(
        config: &LearnerRole,
        questions: &[Question],
        chat: Chat,
        folder: &'a RunFolder,
        progress: &'a Progress,
    ) -> Result<Self> {
        let drawn = EvaluationQuestions::draw(&config.evaluation, questions);
        let known = folder.read()?.evaluations;
        let (every, last) = (config.evaluation.every_steps, config.learner.steps);
        let mut planned = Self {
            sets: BTreeMap::new(),
            folder,
            chat,
            progress,
        };
        for step in 0..=last {
            if step == 0 || step == last {
                for (split, questions) in &drawn.table {
                    planned.add(&known, (step, DecodingMode::Greedy), split, questions);
                }
                let main = &drawn.table[0].1;
                planned.add(&known, (step, DecodingMode::Sampled), MAIN, main);
            }
            if every > 0 && (step.is_multiple_of(every) || step == last) {
                for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
                    planned.add(&known, (step, mode), CURVE_SPLIT, &drawn.curve);
                }
            }
        }
        Ok(planned)
    }

    fn add(
        &mut self,
        known: &[Evaluation],
        (step, mode): (u64, DecodingMode),
        split: &str,
        questions: &[Question],
    ) {
        let policy = match step {
            0 => PolicyName::Base,
            _ => PolicyName::Grpo,
        };
        let evaluated = EvaluatedPolicy { policy, step, mode };
        if questions.is_empty() || evaluated.is_among(known, split) {
            return;
        }
        let planned = PlannedSet {
            evaluated,
            split: split.to_owned(),
            questions: questions.to_vec(),
        };
        self.sets.insert((step, evaluated.title(split)), planned);
    }

    /// Returns the plan for the learner.
    pub(crate) fn for_learner(&self, config: &LearnerRole) -> EvaluationPlan {
        let mut plan = EvaluationPlan::new();
        for ((version, name), planned) in &self.sets {
            let ids = planned.questions.iter().map(|it| it.question_id.clone());
            plan.entry(*version).or_default().push(EvaluationSet {
                name: name.clone(),
                question_ids: ids.collect(),
                sampling: match planned.evaluated.mode {
                    DecodingMode::Greedy => SamplingSettings::greedy(),
                    DecodingMode::Sampled => config.learner.rollout.sampling,
                },
                seed: derive_seed(config.seed, "evaluation"),
            });
        }
        plan
    }

    /// Records a set that actors have played, and displays its result.
    pub(crate) fn record(&self, version: u64, name: &str, episodes: &[Trajectory]) -> Result<()> {
        let planned = self
            .sets
            .get(&(version, name.to_owned()))
            .with_context(|| {
                format!("{name} at version {version} was not planned: this is a bug")
            })?;
        let (metrics, episodes) = evaluation_of(&self.chat, &planned.questions, episodes);
        self.progress.say(&format!(
            "step {version}: {name}: {} episodes, {}",
            episodes.len(),
            success_text(&metrics)
        ));
        if planned.split == MAIN && planned.evaluated.mode == DecodingMode::Greedy {
            for episode in episodes {
                self.folder.append_transcript(&Transcript {
                    policy: planned.evaluated.policy,
                    gold_sql: String::new(),
                    gold_answer: String::new(),
                    episode,
                })?;
            }
        }
        // The evaluation comes last: a run that stops in between records both again.
        let evaluation = planned.evaluated.evaluation(&planned.split, metrics);
        self.folder.append_evaluation(&evaluation)?;
        Ok(())
    }
}
