//! The evaluations of a learner process, which its actors play: what is planned, and how the
//! results become records.
//!
//! Invariant: questions, seeds and decoding are those of `sqlenv train`, so both give the same
//! numbers. The learner does not know the gold answers, so it has no oracle, and its transcripts
//! have no gold SQL.

use std::{collections::BTreeMap, sync::Arc};

use actor::{ActorConfig, EpisodeRecord, EvaluationMetrics, evaluation_of};
use anyhow::{Context as _, Result, ensure};
use baselines::{RandomPolicy, ScriptedPolicy};
use learner::{EvaluationPlan, EvaluationSet};
use policy::{Chat, SamplingSettings, random::derive_seed};
use proto::{
    EnvClient,
    v1::{Question, Trajectory},
};
use report::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyName, RunFolder, Transcript};

use crate::{
    config::LearnerRole,
    evaluation::{EvaluatedPolicy, EvaluationQuestions, episode_settings, success_text},
    model_folder::is_best,
    progress::Progress,
};

/// The split of new questions on the databases of the training.
const MAIN: &str = "eval";

/// Questions that are evaluated at one version.
struct PlannedSet {
    evaluated: EvaluatedPolicy,
    /// The split of the record.
    split: String,
    questions: Arc<[Question]>,
    /// Their ids, as the learner gets them.
    ids: Arc<[String]>,
}

/// The evaluations that a run has not recorded yet.
pub(crate) struct PlayedEvaluations<'a> {
    sets: BTreeMap<(u64, String), PlannedSet>,
    /// Split and questions of each part of the comparison table.
    table: Vec<(String, Vec<Question>)>,
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
            table: drawn.table.clone(),
            folder,
            chat,
            progress,
        };
        let shared = |questions: &[Question]| {
            let ids = questions.iter().map(|it| it.question_id.clone());
            (Arc::from(questions), ids.collect::<Arc<[String]>>())
        };
        // Shared by all evaluations of a split, of which a long run has many.
        let table: Vec<_> = drawn
            .table
            .iter()
            .map(|(split, it)| (split, shared(it)))
            .collect();
        let curve = shared(&drawn.curve);
        for step in 0..=last {
            if step == 0 || step == last {
                for (split, questions) in &table {
                    planned.add(&known, (step, DecodingMode::Greedy), split, questions);
                }
                let main = &table[0].1;
                planned.add(&known, (step, DecodingMode::Sampled), MAIN, main);
            }
            if every > 0 && (step.is_multiple_of(every) || step == last) {
                for mode in [DecodingMode::Greedy, DecodingMode::Sampled] {
                    planned.add(&known, (step, mode), CURVE_SPLIT, &curve);
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
        (questions, ids): &(Arc<[Question]>, Arc<[String]>),
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
            questions: Arc::clone(questions),
            ids: Arc::clone(ids),
        };
        self.sets.insert((step, evaluated.title(split)), planned);
    }

    /// Plays the random policy in this process, which needs no actor, and records what the folder
    /// does not have. The baseline is part of the comparison table.
    pub(crate) async fn play_random(&self, config: &LearnerRole, env: &EnvClient) -> Result<()> {
        let chat = Arc::new(self.chat.clone());
        let policy = ScriptedPolicy::new(Arc::clone(&chat), RandomPolicy);
        let retry = ActorConfig::default().env_retry;
        let settings = episode_settings(env, &chat, &config.learner.rollout, retry);
        let evaluated = EvaluatedPolicy {
            policy: PolicyName::Random,
            step: 0,
            mode: DecodingMode::Greedy,
        };
        for (split, questions) in &self.table {
            if questions.is_empty() || evaluated.is_recorded(self.folder, split)? {
                continue;
            }
            let seed = derive_seed(config.seed, "evaluation");
            let concurrency = config.evaluation.concurrency;
            let played =
                actor::evaluate(&[&policy], &settings, questions, seed, concurrency, |_| ()).await;
            let (metrics, episodes) = played;
            let failed = metrics.failed;
            ensure!(
                failed == 0,
                "{failed} episodes of the random policy on {split} failed outside the policy; \
                 check that the env-nodes run, then start the learner again"
            );
            self.progress.say(&format!(
                "{}: {}",
                evaluated.title(split),
                success_text(&metrics)
            ));
            self.append(evaluated, split, metrics, without_completions(episodes))?;
        }
        Ok(())
    }

    /// Returns the plan for the learner.
    pub(crate) fn for_learner(&self, config: &LearnerRole) -> EvaluationPlan {
        let mut plan = EvaluationPlan::new();
        for ((version, name), planned) in &self.sets {
            plan.entry(*version).or_default().push(EvaluationSet {
                name: name.clone(),
                question_ids: Arc::clone(&planned.ids),
                sampling: match planned.evaluated.mode {
                    DecodingMode::Greedy => SamplingSettings::greedy(),
                    DecodingMode::Sampled => config.learner.rollout.sampling,
                },
                seed: derive_seed(config.seed, "evaluation"),
            });
        }
        plan
    }

    /// Records a set that actors have played, and displays its result. Calls `if_best`
    /// if the policy is the best of the run so far.
    pub(crate) fn record(
        &self,
        version: u64,
        name: &str,
        episodes: &[Trajectory],
        if_best: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
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
        let evaluation = planned
            .evaluated
            .evaluation(&planned.split, metrics.clone());
        if is_best(&self.folder.read()?.evaluations, &evaluation) {
            if_best()?;
        }
        self.append(planned.evaluated, &planned.split, metrics, episodes)
    }

    fn append(
        &self,
        evaluated: EvaluatedPolicy,
        split: &str,
        metrics: EvaluationMetrics,
        episodes: Vec<EpisodeRecord>,
    ) -> Result<()> {
        if split == MAIN && evaluated.mode == DecodingMode::Greedy {
            for episode in episodes {
                self.folder.append_transcript(&Transcript {
                    policy: evaluated.policy,
                    gold_sql: String::new(),
                    gold_answer: String::new(),
                    episode,
                })?;
            }
        }
        // The evaluation comes last: a run that stops in between records all of it again.
        let evaluation = evaluated.evaluation(split, metrics);
        Ok(self.folder.append_evaluation(&evaluation)?)
    }
}

/// Scripted policies have no completions of their own.
fn without_completions(mut episodes: Vec<EpisodeRecord>) -> Vec<EpisodeRecord> {
    let steps = episodes.iter_mut().flat_map(|episode| &mut episode.steps);
    steps.for_each(|step| step.completion = None);
    episodes
}
