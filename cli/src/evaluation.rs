//! Evaluations of a run: their questions, their policies, and their records.
//!
//! Invariant: the learning curve uses the first questions of `eval` and the comparison table the
//! last ones, in an order that no seed changes. So no question of the table has an effect on
//! settings that are chosen by the curve. Another wording of its query may have.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use actor::{
    Engine, EngineSettings, EpisodeRecord, EpisodeSettings, EvaluationMetrics, ModelPolicy, Policy,
    Retry, RolloutLimits,
};
use anyhow::{Result, ensure};
use baselines::{OraclePolicy, RandomPolicy, ScriptedPolicy};
use data::Question;
use learner::config::RolloutConfig;
use policy::{Chat, Constrainer, Model, SamplingSettings, random::derive_seed};
use proto::{EnvClient, v1};
use report::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyName, RunFolder, Transcript};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{EvaluationConfig, RunConfig},
    progress::Progress,
    setup::Setup,
    shutdown::unless_interrupted,
    threads,
};

/// The questions that a run is evaluated on.
pub(crate) struct EvaluationQuestions {
    /// Split and questions of each part of the comparison table; `eval` is the first.
    pub(crate) table: Vec<(String, Vec<v1::Question>)>,
    pub(crate) curve: Vec<v1::Question>,
}

impl EvaluationQuestions {
    /// Chooses from the questions of all splits.
    pub(crate) fn draw(settings: &EvaluationConfig, questions: &[v1::Question]) -> Self {
        let mut curve = of_split(questions, "eval");
        let wanted = settings.questions + settings.curve_questions;
        // If there are too few for both, each gets its share of them.
        let for_table = if curve.len() < wanted {
            (curve.len() * settings.questions).div_ceil(wanted)
        } else {
            settings.questions
        };
        let mut table = vec![("eval".to_owned(), split_off_last(&mut curve, for_table))];
        let splits: BTreeSet<&str> = questions.iter().map(|it| it.split.as_str()).collect();
        for split in splits {
            if split.starts_with("eval-unseen") {
                let mut questions = of_split(questions, split);
                let questions = split_off_last(&mut questions, settings.unseen_questions);
                table.push((split.to_owned(), questions));
            }
        }
        curve.truncate(settings.curve_questions);
        Self { table, curve }
    }

    /// Returns the questions of the table that belong to a split or to a part of it.
    pub(crate) fn of_split(&self, split: &str) -> Vec<v1::Question> {
        let questions = self.table.iter().flat_map(|(_, questions)| questions);
        of_split(&questions.cloned().collect::<Vec<_>>(), split)
    }
}

/// Removes and returns the last `count` questions, or as many as there are.
fn split_off_last(questions: &mut Vec<v1::Question>, count: usize) -> Vec<v1::Question> {
    questions.split_off(questions.len().saturating_sub(count))
}

/// Returns the questions of a split and its parts, in an order that depends only on their ids.
fn of_split(questions: &[v1::Question], split: &str) -> Vec<v1::Question> {
    let part = format!("{split}/");
    let is_in = |it: &&v1::Question| it.split == split || it.split.starts_with(&part);
    let mut questions: Vec<v1::Question> = questions.iter().filter(is_in).cloned().collect();
    questions.sort_by_key(|question| derive_seed(0, &question.question_id));
    questions
}

/// Returns the questions of a split in an order that depends only on their ids.
pub(crate) fn shuffled(setup: &Setup, split: &str) -> Vec<v1::Question> {
    of_split(&setup.questions(), split)
}

/// Returns [`shuffled`] questions. A split without questions is an error that names the others.
pub(crate) fn questions(setup: &Setup, split: &str) -> Result<Vec<v1::Question>> {
    let questions = shuffled(setup, split);
    ensure!(
        !questions.is_empty(),
        "split {split:?} has no questions; --split takes one of {}",
        setup.dataset.split_names().join(", ")
    );
    Ok(questions)
}

/// Returns the questions of a split that a comparison table of at most `count` of them has.
pub(crate) fn table_questions(
    setup: &Setup,
    split: &str,
    count: Option<usize>,
) -> Result<Vec<v1::Question>> {
    let mut questions = questions(setup, split)?;
    Ok(split_off_last(&mut questions, count.unwrap_or(usize::MAX)))
}

/// Describes the accuracy of an evaluation.
pub(crate) fn success_text(metrics: &EvaluationMetrics) -> String {
    let success = metrics.success;
    let mut text = format!(
        "{:.1} % correct ({:.1}–{:.1})",
        100.0 * success.success_rate,
        100.0 * success.wilson_low,
        100.0 * success.wilson_high
    );
    if metrics.failed > 0 {
        text += &format!(", {} failed and count as wrong", metrics.failed);
    }
    text
}

/// Returns the settings of episodes that are rolled out as in training.
pub(crate) fn episode_settings(
    env: &EnvClient,
    chat: &Arc<Chat>,
    rollout: &RolloutConfig,
    retry: Retry,
) -> EpisodeSettings {
    let chat = match rollout.thinking {
        true => Arc::new(Chat::clone(chat).with_thinking(true)),
        false => Arc::clone(chat),
    };
    EpisodeSettings {
        env: env.clone(),
        chat,
        limits: RolloutLimits {
            max_completion_tokens: rollout.max_completion_tokens as usize,
            max_context_tokens: rollout.max_context_tokens as usize,
            shots: rollout.shots as usize,
        },
        reward_profile: rollout.reward_profile.clone(),
        step_budget: rollout.step_budget,
        retry,
    }
}

/// Returns the policy that samples on `engine` within the constraint of the rollouts.
pub(crate) fn model_policy(
    engine: &Engine,
    chat: &Arc<Chat>,
    rollout: &RolloutConfig,
    sampling: SamplingSettings,
) -> Result<ModelPolicy> {
    let constrainer = Constrainer::new(rollout.constraint, chat, rollout.shots as usize)?;
    Ok(ModelPolicy::new(engine.clone(), sampling).constrained(constrainer.map(Arc::new)))
}

/// Starts engines that together have a slot for each episode that an evaluation runs at once. The
/// first of the pair is the policy version, the second the tokens of a context.
pub(crate) fn spawn_engines(
    config: &RunConfig,
    model: &Model,
    (policy_version, context_tokens): (u64, u32),
    count: usize,
) -> Result<Vec<Engine>> {
    let settings = EngineSettings {
        slots: config.evaluation.concurrency.div_ceil(count),
        ..config.actor.engine.clone()
    };
    let (context_tokens, placement) = (context_tokens as usize, config.placement());
    let spawn = |_| Engine::spawn(model, policy_version, context_tokens, &settings, placement);
    Ok((0..count).map(spawn).collect::<Result<_, _>>()?)
}

/// Returns copies of a policy as [`Evaluator::evaluate`] takes them.
pub(crate) fn copies(policies: &[ModelPolicy]) -> Vec<&dyn Policy> {
    policies
        .iter()
        .map(|policy| policy as &dyn Policy)
        .collect()
}

/// Evaluates policies and makes the records.
pub(crate) struct Evaluator<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) setup: &'a Setup,
    pub(crate) progress: &'a Progress,
    pub(crate) shutdown: &'a CancellationToken,
}

/// Names the policy and the moment of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct EvaluatedPolicy {
    pub(crate) policy: PolicyName,
    /// Learner steps before the evaluation, which are the version of the policy.
    pub(crate) step: u64,
    pub(crate) mode: DecodingMode,
}

impl EvaluatedPolicy {
    /// Tells whether the folder already has this evaluation.
    pub(crate) fn is_recorded(self, folder: &RunFolder, split: &str) -> Result<bool> {
        Ok(self.is_among(&folder.read()?.evaluations, split))
    }

    /// Tells whether the evaluations contain this one.
    pub(crate) fn is_among(self, known: &[Evaluation], split: &str) -> bool {
        known.iter().any(|known| {
            (known.policy, known.mode, known.step, known.split.as_str())
                == (self.policy, self.mode, self.step, split)
        })
    }

    /// Makes the record.
    pub(crate) fn evaluation(self, split: &str, metrics: EvaluationMetrics) -> Evaluation {
        Evaluation {
            policy: self.policy,
            policy_version: self.step,
            step: self.step,
            split: split.to_owned(),
            mode: self.mode,
            metrics,
        }
    }

    pub(crate) fn title(self, split: &str) -> String {
        let Self { policy, mode, .. } = self;
        if policy.is_scripted() {
            format!("{policy} on {split}")
        } else {
            format!("{policy} on {split}, {mode}")
        }
    }

    /// Returns the title with the step, for points of the learning curve and for what GRPO trains.
    pub(crate) fn title_with_step(self, split: &str) -> String {
        if split == CURVE_SPLIT || self.policy == PolicyName::Grpo {
            format!("step {}: {}", self.step, self.title(split))
        } else {
            self.title(split)
        }
    }
}

impl Evaluator<'_> {
    /// Returns the random or the oracle policy.
    pub(crate) fn scripted(&self, name: PolicyName, chat: &Arc<Chat>) -> Box<dyn Policy> {
        let chat = Arc::clone(chat);
        match name {
            PolicyName::Oracle => {
                let oracle = OraclePolicy(Arc::clone(&self.setup.solutions));
                Box::new(ScriptedPolicy::new(chat, oracle))
            }
            _ => Box::new(ScriptedPolicy::new(chat, RandomPolicy)),
        }
    }

    /// Starts an engine that samples from `model`, beside other work of this process.
    pub(crate) fn engine(&self, model: &Model, policy_version: u64) -> Result<Engine> {
        Ok(self.spawn(model, policy_version, 1)?.swap_remove(0))
    }

    /// Starts as many engines as the process has threads for.
    pub(crate) fn engines(&self, model: &Model, policy_version: u64) -> Result<Vec<Engine>> {
        self.spawn(model, policy_version, threads::engines(self.config)?)
    }

    fn spawn(&self, model: &Model, policy_version: u64, count: usize) -> Result<Vec<Engine>> {
        let context_tokens = self.config.learner.rollout.max_context_tokens;
        spawn_engines(self.config, model, (policy_version, context_tokens), count)
    }

    /// Returns a policy for each engine.
    pub(crate) fn models(
        &self,
        engines: &[Engine],
        chat: &Arc<Chat>,
        mode: DecodingMode,
    ) -> Result<Vec<ModelPolicy>> {
        let policy = |engine| self.model(engine, chat, mode);
        engines.iter().map(policy).collect()
    }

    /// Returns a policy that samples on `engine`.
    pub(crate) fn model(
        &self,
        engine: &Engine,
        chat: &Arc<Chat>,
        mode: DecodingMode,
    ) -> Result<ModelPolicy> {
        let rollout = &self.config.learner.rollout;
        let sampling = match mode {
            DecodingMode::Greedy => SamplingSettings::greedy(),
            DecodingMode::Sampled => rollout.sampling,
        };
        model_policy(engine, chat, rollout, sampling)
    }

    /// Runs one episode per question and returns the record and the episodes. `policies` are copies
    /// of one policy, which share the questions.
    pub(crate) async fn evaluate(
        &self,
        evaluated: EvaluatedPolicy,
        policies: &[&dyn Policy],
        chat: &Arc<Chat>,
        split: &str,
        questions: &[v1::Question],
    ) -> Result<(Evaluation, Vec<EpisodeRecord>)> {
        let title = evaluated.title_with_step(split);
        let total = Some(questions.len() as u64);
        let stage = match split {
            CURVE_SPLIT => self.progress.brief_stage(&title, total, "episodes"),
            _ => self.progress.stage(&title, total, "episodes"),
        };
        let settings = self.episode_settings(chat);
        let evaluation = actor::evaluate(
            policies,
            &settings,
            questions,
            derive_seed(self.config.seed, "evaluation"),
            self.config.evaluation.concurrency,
            |done| stage.set(done as u64),
        );
        let (metrics, episodes) = unless_interrupted(self.shutdown, evaluation).await?;
        stage.finish(&success_text(&metrics));
        learner::metrics::evaluation_played(
            &evaluated.title(split),
            evaluated.step,
            metrics.success.success_rate,
        );
        Ok((evaluated.evaluation(split, metrics), episodes))
    }

    /// Returns the settings of all episodes of evaluations and demonstrations.
    pub(crate) fn episode_settings(&self, chat: &Arc<Chat>) -> EpisodeSettings {
        let rollout = &self.config.learner.rollout;
        episode_settings(&self.setup.env, chat, rollout, self.config.actor.env_retry)
    }

    /// Adds policy and gold answers to the episodes of an evaluation.
    pub(crate) fn transcripts(
        &self,
        policy: PolicyName,
        episodes: &[EpisodeRecord],
    ) -> Vec<Transcript> {
        let questions = self.setup.dataset.questions.iter();
        let questions: HashMap<&str, &Question> =
            questions.map(|q| (q.question_id.as_str(), q)).collect();
        let transcript = |episode: &EpisodeRecord| {
            let question = questions.get(episode.question_id.as_str())?;
            let mut episode = episode.clone();
            if policy.is_scripted() {
                // Scripted policies have no completions of their own.
                episode
                    .steps
                    .iter_mut()
                    .for_each(|step| step.completion = None);
            }
            Some(Transcript {
                policy,
                gold_sql: question.gold_sql.clone(),
                gold_answer: data::answer_text(question),
                episode,
            })
        };
        episodes.iter().filter_map(transcript).collect()
    }
}
