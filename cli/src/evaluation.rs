//! Evaluations of a run: which questions are asked of whom, and how the answers get into the run's folder.
//!
//! Invariant: the learning curve asks the first questions of `eval`, the comparison table the last ones, in an order that
//! no seed changes; so settings can be chosen by the curve, and more of it, without touching the table.

use std::{collections::BTreeMap, sync::Arc};

use actor::{
    CorrectCount, Engine, EngineSettings, EnvStepRecord, EpisodeRecord, EpisodeSettings,
    EvaluationMetrics, ModelPolicy, Policy, RolloutLimits,
};
use anyhow::Result;
use baselines::{OraclePolicy, RandomPolicy, ScriptedPolicy};
use data::Question;
use policy::{Chat, Model, SamplingSettings, random::derive_seed};
use proto::v1;
use report::{
    DecodingMode, Evaluation, PlayedStep, PolicyName, RewardComponents, RunFolder, Tally,
    Transcript,
};
use tokio_util::sync::CancellationToken;

use crate::{config::RunConfig, progress::Progress, setup::Setup, shutdown::unless_interrupted};

/// The held-out questions of a run.
pub struct EvaluationQuestions {
    /// Split name and questions of each block of the comparison table; `eval` first.
    pub table: Vec<(String, Vec<v1::Question>)>,
    /// Questions of the learning curve.
    pub curve: Vec<v1::Question>,
}

impl EvaluationQuestions {
    /// Chooses the questions.
    #[must_use]
    pub fn draw(config: &RunConfig, setup: &Setup) -> Self {
        let settings = &config.evaluation;
        let mut curve = shuffled(setup, "eval");
        let wanted = settings.questions + settings.curve_questions;
        // Too few for both: they are shared out in the wanted proportion.
        let for_table = if curve.len() < wanted {
            curve.len() * settings.questions / wanted
        } else {
            settings.questions
        };
        let mut table = vec![("eval".to_owned(), last(&mut curve, for_table))];
        for split in setup.dataset.split_names() {
            if split.starts_with("eval-unseen") {
                let mut questions = shuffled(setup, &split);
                table.push((split, last(&mut questions, settings.unseen_questions)));
            }
        }
        curve.truncate(settings.curve_questions);
        Self { table, curve }
    }
}

/// Takes the last `count` questions off, or as many as there are.
fn last(questions: &mut Vec<v1::Question>, count: usize) -> Vec<v1::Question> {
    questions.split_off(questions.len().saturating_sub(count))
}

/// The questions of a split in an order that depends on their ids alone.
#[must_use]
pub fn shuffled(setup: &Setup, split: &str) -> Vec<v1::Question> {
    let mut questions: Vec<&Question> = setup.dataset.split(split).collect();
    questions.sort_by_key(|question| derive_seed(0, &question.question_id));
    questions.into_iter().map(wire).collect()
}

/// What the agent's side may know of a question.
fn wire(question: &Question) -> v1::Question {
    v1::Question {
        question_id: question.question_id.clone(),
        question_text: question.question_text.clone(),
        database_name: question.database_name.clone(),
        split: question.split.clone(),
        difficulty: question.difficulty.clone(),
    }
}

/// Plays evaluations and turns them into records.
pub struct Evaluator<'a> {
    /// Settings of the run.
    pub config: &'a RunConfig,
    /// Questions and environment.
    pub setup: &'a Setup,
    /// Where long stages are shown.
    pub progress: &'a Progress,
    /// Breaks off what is being played.
    pub shutdown: &'a CancellationToken,
}

/// Who sits the examination, and when.
#[derive(Clone, Copy)]
pub struct EvaluatedPolicy {
    /// Whose play.
    pub policy: PolicyName,
    /// Version that plays.
    pub policy_version: u64,
    /// Learner steps done.
    pub step: u64,
    /// How tokens are chosen.
    pub mode: DecodingMode,
}

impl EvaluatedPolicy {
    /// Whether the run came as far before.
    ///
    /// # Errors
    /// The run's folder cannot be read.
    pub fn is_recorded(self, folder: &RunFolder, split: &str) -> Result<bool> {
        let known = folder.read()?.evaluations;
        Ok(known.iter().any(|known| {
            (known.policy, known.mode, known.step, known.split.as_str())
                == (self.policy, self.mode, self.step, split)
        }))
    }

    /// The title of a sitting.
    fn sits(self, split: &str) -> String {
        let Self { policy, mode, .. } = self;
        if policy.is_scripted() {
            format!("{policy} on {split}")
        } else {
            format!("{policy} on {split}, {mode}")
        }
    }
}

impl Evaluator<'_> {
    /// A random or oracle policy.
    #[must_use]
    pub fn scripted(&self, name: PolicyName, chat: &Arc<Chat>) -> Box<dyn Policy> {
        match name {
            PolicyName::Oracle => Box::new(ScriptedPolicy::new(
                Arc::clone(chat),
                OraclePolicy(Arc::clone(&self.setup.solutions)),
            )),
            _ => Box::new(ScriptedPolicy::new(Arc::clone(chat), RandomPolicy)),
        }
    }

    /// An engine that plays `model`.
    ///
    /// # Errors
    /// The model does not fit its own config.
    pub fn engine(&self, model: &Model, policy_version: u64) -> Result<Engine> {
        let settings = EngineSettings {
            slots: self.config.evaluation.concurrency,
            ..self.config.actor.engine.clone()
        };
        let context_tokens = self.config.learner.rollout.max_context_tokens as usize;
        Ok(Engine::spawn(
            model,
            policy_version,
            context_tokens,
            &settings,
            self.config.placement(),
        )?)
    }

    /// A policy on an engine.
    #[must_use]
    pub fn model(&self, engine: &Engine, mode: DecodingMode) -> ModelPolicy {
        let sampling = match mode {
            DecodingMode::Greedy => SamplingSettings::greedy(),
            DecodingMode::Sampled => self.config.learner.rollout.sampling,
        };
        ModelPolicy::new(engine.clone(), sampling)
    }

    /// Has `policy` play `questions` of `split`; answers with the record and the episodes.
    ///
    /// # Errors
    /// [`Interrupted`](crate::shutdown::Interrupted) where a signal comes first.
    pub async fn examine(
        &self,
        evaluated: EvaluatedPolicy,
        policy: &dyn Policy,
        chat: &Arc<Chat>,
        split: &str,
        questions: &[v1::Question],
    ) -> Result<(Evaluation, Vec<EpisodeRecord>)> {
        let title = evaluated.sits(split);
        let stage = self
            .progress
            .stage(&title, questions.len() as u64, "episodes");
        let seed = derive_seed(self.config.seed, "evaluation");
        let settings = self.episode_settings(chat);
        let play = actor::evaluate(
            policy,
            &settings,
            questions,
            seed,
            self.config.evaluation.concurrency,
            |done| stage.set(done as u64),
        );
        let (metrics, episodes) = unless_interrupted(self.shutdown, play).await?;
        let success = metrics.success;
        let mut result = format!(
            "{:.1} % correct ({:.1}–{:.1})",
            100.0 * success.success_rate,
            100.0 * success.wilson_low,
            100.0 * success.wilson_high
        );
        if metrics.failed > 0 {
            result += &format!(", {} broke off and count as wrong", metrics.failed);
        }
        stage.finish(&result);
        Ok((record(evaluated, split, &metrics), episodes))
    }

    /// The terms of every episode here.
    #[must_use]
    pub fn episode_settings(&self, chat: &Arc<Chat>) -> EpisodeSettings {
        let rollout = &self.config.learner.rollout;
        EpisodeSettings {
            env: self.setup.env(),
            chat: Arc::clone(chat),
            limits: RolloutLimits {
                max_completion_tokens: rollout.max_completion_tokens as usize,
                max_context_tokens: rollout.max_context_tokens as usize,
                shots: rollout.shots as usize,
            },
            reward_profile: rollout.reward_profile.clone(),
            step_budget: rollout.step_budget,
            retry: self.config.actor.env_retry,
        }
    }

    /// The transcripts of played episodes.
    #[must_use]
    pub fn transcripts(&self, policy: PolicyName, episodes: &[EpisodeRecord]) -> Vec<Transcript> {
        let questions: BTreeMap<&str, &Question> = self
            .setup
            .dataset
            .questions
            .iter()
            .map(|question| (question.question_id.as_str(), question))
            .collect();
        episodes
            .iter()
            .filter_map(|episode| {
                let question = questions.get(episode.question_id.as_str())?;
                Some(transcript(policy, question, episode))
            })
            .collect()
    }
}

fn record(evaluated: EvaluatedPolicy, split: &str, metrics: &EvaluationMetrics) -> Evaluation {
    let tallies = |counts: &BTreeMap<String, CorrectCount>| {
        let tally = |count: &CorrectCount| Tally {
            questions: count.questions,
            correct: count.correct,
        };
        counts
            .iter()
            .map(|(name, count)| (name.clone(), tally(count)))
            .collect()
    };
    Evaluation {
        policy: evaluated.policy,
        policy_version: evaluated.policy_version,
        step: evaluated.step,
        split: split.to_owned(),
        mode: evaluated.mode,
        questions: metrics.success.questions,
        correct: metrics.success.correct,
        success_rate: metrics.success.success_rate,
        wilson_low: metrics.success.wilson_low,
        wilson_high: metrics.success.wilson_high,
        mean_reward: metrics.mean_reward,
        mean_steps: metrics.mean_steps,
        malformed_rate: metrics.malformed_rate,
        failed: metrics.failed,
        by_level: tallies(&metrics.by_level),
        by_database: tallies(&metrics.by_database),
    }
}

fn transcript(policy: PolicyName, question: &Question, episode: &EpisodeRecord) -> Transcript {
    Transcript {
        policy,
        question_id: question.question_id.clone(),
        question: question.question_text.clone(),
        database: question.database_name.clone(),
        difficulty: question.difficulty.clone(),
        gold_sql: question.gold_sql.clone(),
        gold_answer: data::answer_text(question),
        correct: episode.correct,
        reward: episode.reward,
        steps: episode
            .steps
            .iter()
            .map(|step| played(policy, step))
            .collect(),
    }
}

fn played(policy: PolicyName, step: &EnvStepRecord) -> PlayedStep {
    PlayedStep {
        completion: (!policy.is_scripted())
            .then(|| step.completion.clone())
            .flatten(),
        action_type: step.action_type.clone(),
        argument: step.argument.clone(),
        malformed: step.malformed,
        result: step.result.clone(),
        error: step.error.clone(),
        reward: step.reward,
        components: RewardComponents {
            operational: step.components.operational,
            progress: step.components.progress,
            terminal: step.components.terminal,
            clip: step.components.clip,
        },
    }
}
