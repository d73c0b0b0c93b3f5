//! The evaluations of a learner process, which its actors play: what is planned, and how the
//! results become records.
//!
//! Invariant: questions, seeds and decoding are those of `sqlenv train`, so both give the same
//! numbers. The learner does not know the gold answers, so it has no oracle, and its transcripts
//! have no gold SQL.

use std::{collections::BTreeMap, sync::Arc};

use actor::{EpisodeRecord, evaluation_of};
use anyhow::{Context as _, Result, bail};
use baselines::{RandomPolicy, ScriptedPolicy};
use learner::{EvaluationPlan, EvaluationSet};
use policy::{Chat, random::derive_seed};
use proto::{
    EnvClient,
    v1::{ActorIdentity, Question, Trajectory},
};
use report::{CURVE_SPLIT, DecodingMode, EVAL_SPLIT, Evaluation, PolicyName, RunFolder};

use crate::{
    config::LearnerRole,
    evaluation::{
        EvaluatedPolicy, EvaluationQuestions, failure_text, record, sampling,
        served_episode_settings, success_text, transcript,
    },
    model_folder::is_best,
    progress::Progress,
};

/// The evaluations of a run that actors play.
pub(crate) struct PlayedEvaluations<'a> {
    config: &'a LearnerRole,
    /// Split and questions of each part of the comparison table.
    table: Vec<(String, QuestionSet)>,
    /// The questions of the learning curve.
    curve: QuestionSet,
    folder: &'a RunFolder,
    chat: Chat,
    progress: &'a Progress,
}

/// Questions that are evaluated together.
struct QuestionSet {
    questions: Vec<Question>,
    /// Their ids. The plan of a long run has them many times.
    ids: Arc<[String]>,
}

impl QuestionSet {
    fn new(questions: Vec<Question>) -> Self {
        let ids = questions.iter().map(|it| it.question_id.clone());
        Self {
            ids: ids.collect(),
            questions,
        }
    }
}

/// Questions that are evaluated at one version.
struct PlannedSet<'a> {
    evaluated: EvaluatedPolicy,
    /// The split of the record.
    split: &'a str,
    questions: &'a QuestionSet,
}

impl<'a> PlayedEvaluations<'a> {
    /// Chooses the questions.
    pub(crate) fn new(
        config: &'a LearnerRole,
        questions: &[Question],
        chat: Chat,
        folder: &'a RunFolder,
        progress: &'a Progress,
    ) -> Self {
        let drawn = EvaluationQuestions::draw(&config.evaluation, questions);
        let table = drawn.table.into_iter();
        let table = table.map(|(split, questions)| (split, QuestionSet::new(questions)));
        Self {
            config,
            table: table.collect(),
            curve: QuestionSet::new(drawn.curve),
            folder,
            chat,
            progress,
        }
    }

    /// Returns what is evaluated at a version, by title: a point of the learning curve if one is
    /// due, and the comparison table at both ends of the run.
    fn sets_of<'s>(&'s self, version: u64) -> BTreeMap<String, PlannedSet<'s>> {
        let last = self.config.learner.steps;
        let policy = match version {
            0 => PolicyName::Base,
            _ => PolicyName::Grpo,
        };
        let mut sets = BTreeMap::new();
        let mut add = |split: &'s str, questions: &'s QuestionSet, mode: DecodingMode| {
            let evaluated = EvaluatedPolicy {
                policy,
                step: version,
                mode,
            };
            let planned = PlannedSet {
                evaluated,
                split,
                questions,
            };
            if !questions.questions.is_empty() {
                sets.insert(evaluated.title(split), planned);
            }
        };
        if version == 0 || version == last {
            for (split, questions) in &self.table {
                add(split, questions, DecodingMode::Greedy);
                if split == EVAL_SPLIT {
                    add(split, questions, DecodingMode::Sampled);
                }
            }
        }
        if self.config.evaluation.is_due(version, last) {
            add(CURVE_SPLIT, &self.curve, DecodingMode::Greedy);
            add(CURVE_SPLIT, &self.curve, DecodingMode::Sampled);
        }
        sets
    }

    /// Plays the random policy in this process, which needs no actor, and records what the folder
    /// does not have. The baseline is part of the comparison table.
    pub(crate) async fn play_random(
        &self,
        env: &EnvClient,
        identity: &ActorIdentity,
    ) -> Result<()> {
        let config = self.config;
        let chat = Arc::new(self.chat.clone());
        let policy = ScriptedPolicy::new(Arc::clone(&chat), RandomPolicy);
        let settings = served_episode_settings(env, identity, &chat, &config.learner.rollout);
        let evaluated = EvaluatedPolicy {
            policy: PolicyName::Random,
            step: 0,
            mode: DecodingMode::Greedy,
        };
        for (split, QuestionSet { questions, .. }) in &self.table {
            if questions.is_empty() || evaluated.is_recorded(self.folder, split)? {
                continue;
            }
            let seed = derive_seed(config.seed, "evaluation");
            let concurrency = config.evaluation.concurrency;
            let played =
                actor::evaluate(&[&policy], &settings, questions, seed, concurrency, |_| ()).await;
            let (metrics, episodes) = played;
            if let Some(failures) = failure_text(&metrics, &episodes) {
                bail!(
                    "episodes of the random policy on {split}: {failures}; check that the \
                     env-nodes run, then start the learner again"
                );
            }
            self.progress.print(&format!(
                "{}: {}",
                evaluated.title(split),
                success_text(&metrics, &episodes)
            ));
            self.append(&evaluated.evaluation(split, metrics), episodes)?;
        }
        Ok(())
    }

    /// Returns the plan for the learner, without what the folder has.
    pub(crate) fn for_learner(&self) -> Result<EvaluationPlan> {
        let config = self.config;
        let known = self.folder.evaluations()?;
        let mut plan = EvaluationPlan::new();
        for version in config.evaluation.evaluated_steps(config.learner.steps) {
            let mut sets = self.sets_of(version);
            sets.retain(|_, it| !it.evaluated.is_among(&known, it.split));
            let set = |(name, planned): (String, PlannedSet<'_>)| EvaluationSet {
                name,
                question_ids: Arc::clone(&planned.questions.ids),
                sampling: sampling(planned.evaluated.mode, &config.learner.rollout),
                seed: derive_seed(config.seed, "evaluation"),
            };
            if !sets.is_empty() {
                plan.insert(version, sets.into_iter().map(set).collect());
            }
        }
        Ok(plan)
    }

    /// Records a set that actors have played, and displays its result. Calls `if_best` with the
    /// evaluation before it is recorded, if the policy is the best of the run so far.
    pub(crate) fn record(
        &self,
        version: u64,
        name: &str,
        episodes: &[Trajectory],
        if_best: impl FnOnce(&Evaluation) -> Result<()>,
    ) -> Result<()> {
        let planned = self.sets_of(version).remove(name).with_context(|| {
            format!("{name} at version {version} was not planned: this is a bug")
        })?;
        let questions = &planned.questions.questions;
        let (metrics, episodes) = evaluation_of(&self.chat, questions, episodes);
        self.progress.print(&format!(
            "step {version}: {name}: {} episodes, {}",
            episodes.len(),
            success_text(&metrics, &episodes)
        ));
        let evaluation = planned.evaluated.evaluation(planned.split, metrics);
        if is_best(&self.folder.evaluations()?, &evaluation) {
            if_best(&evaluation)?;
        }
        self.append(&evaluation, episodes)
    }

    fn append(&self, evaluation: &Evaluation, episodes: Vec<EpisodeRecord>) -> Result<()> {
        let episodes = episodes.into_iter();
        let transcripts = episodes.map(|it| transcript(evaluation.policy, it, None));
        record(self.folder, evaluation, transcripts)
    }
}
