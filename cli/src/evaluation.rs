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
    Engine, EngineSettings, EpisodeRecord, EpisodeSettings, EvaluationMetrics, ExpectedEnvironment,
    ModelPolicy, Policy, Retry, RolloutLimits,
};
use anyhow::{Result, ensure};
use baselines::{OraclePolicy, RandomPolicy, ScriptedPolicy};
use data::Question;
use learner::config::RolloutConfig;
use policy::{Chat, Constrainer, Model, SamplingSettings, random::derive_seed};
use proto::{EnvClient, v1};
use report::{
    CURVE_SPLIT, DecodingMode, EVAL_SPLIT, Evaluation, PolicyName, RunFolder, Transcript,
};
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
        let mut curve = of_split(questions, EVAL_SPLIT);
        // The settings may be any number, also one that stands for all questions.
        let there = curve.len() as u128;
        let wanted = settings.questions as u128 + settings.curve_questions as u128;
        // If there are too few for both, each gets its share of them.
        let for_table = if there < wanted {
            (there * settings.questions as u128).div_ceil(wanted) as usize
        } else {
            settings.questions
        };
        let main = split_off_last(&mut curve, for_table);
        let mut table = vec![(EVAL_SPLIT.to_owned(), main)];
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

/// Describes the accuracy of an evaluation, with the reason of a failed episode if there is one.
pub(crate) fn success_text(metrics: &EvaluationMetrics, episodes: &[EpisodeRecord]) -> String {
    let success = metrics.success;
    let mut text = format!(
        "{:.1} % correct ({:.1}–{:.1})",
        100.0 * success.success_rate,
        100.0 * success.wilson_low,
        100.0 * success.wilson_high
    );
    if let Some(failures) = failure_text(metrics, episodes) {
        text += &format!(", {failures}");
    }
    text
}

/// Says how many episodes failed, and why the first did; none if none failed.
pub(crate) fn failure_text(
    metrics: &EvaluationMetrics,
    episodes: &[EpisodeRecord],
) -> Option<String> {
    let first = episodes.iter().find(|it| !it.failure.is_empty())?;
    let (failed, reason) = (metrics.failed, report::safe_line(&first.failure));
    let question_id = report::safe_line(&first.question_id);
    Some(format!(
        "{failed} failed and count as wrong; {question_id}: {reason}"
    ))
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
        expected: ExpectedEnvironment::default(),
        retry,
    }
}

/// Returns the settings of a learner's episodes on an env-node that must serve `identity`.
pub(crate) fn served_episode_settings(
    env: &EnvClient,
    identity: &v1::ActorIdentity,
    chat: &Arc<Chat>,
    rollout: &RolloutConfig,
) -> EpisodeSettings {
    EpisodeSettings {
        expected: identity.into(),
        ..episode_settings(env, chat, rollout, Retry::default())
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
    Ok(ModelPolicy::new(
        engine.clone(),
        sampling,
        constrainer.map(Arc::new),
    ))
}

/// Returns how a model that is rolled out as in training chooses its tokens in this mode.
pub(crate) fn sampling(mode: DecodingMode, rollout: &RolloutConfig) -> SamplingSettings {
    match mode {
        DecodingMode::Greedy => SamplingSettings::greedy(),
        DecodingMode::Sampled => rollout.sampling,
    }
}

/// Returns copies of a policy as [`Evaluator::evaluate`] takes them.
pub(crate) fn copies<P: Policy>(policies: &[P]) -> Vec<&dyn Policy> {
    policies
        .iter()
        .map(|policy| policy as &dyn Policy)
        .collect()
}

/// Returns an episode as the record of a policy, with the gold answer if it is known.
pub(crate) fn transcript(
    policy: PolicyName,
    mut episode: EpisodeRecord,
    gold: Option<&Question>,
) -> Transcript {
    if policy.is_scripted() {
        // Scripted policies have no completions of their own.
        for step in &mut episode.steps {
            step.completion = None;
        }
    }
    Transcript {
        policy,
        gold_sql: gold.map_or_else(String::new, |it| it.gold_sql.clone()),
        gold_answer: gold.map_or_else(String::new, data::answer_text),
        episode,
    }
}

/// Records an evaluation in the folder of a run, and the transcripts of the main one.
pub(crate) fn record(
    folder: &RunFolder,
    evaluation: &Evaluation,
    transcripts: impl IntoIterator<Item = Transcript>,
) -> Result<()> {
    if evaluation.split == EVAL_SPLIT && evaluation.mode == DecodingMode::Greedy {
        folder.append_transcripts(transcripts)?;
    }
    // The evaluation comes last: a run that stops in between records all of it again.
    Ok(folder.append_evaluation(evaluation)?)
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
        Ok(self.is_among(&folder.evaluations()?, split))
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

    /// Starts engines that together have a slot for each episode that an evaluation runs at once.
    fn spawn(&self, model: &Model, policy_version: u64, count: usize) -> Result<Vec<Engine>> {
        let config = self.config;
        let settings = EngineSettings {
            slots: config.evaluation.concurrency.div_ceil(count),
            ..config.actor.engine.clone()
        };
        let context_tokens = config.learner.rollout.max_context_tokens as usize;
        let placement = config.placement();
        let spawn = |_| Engine::spawn(model, policy_version, context_tokens, &settings, placement);
        Ok((0..count).map(spawn).collect::<Result<_, _>>()?)
    }

    /// Returns what plays: a scripted policy, or a model on each engine.
    pub(crate) fn policies(
        &self,
        name: PolicyName,
        engines: &[Engine],
        chat: &Arc<Chat>,
        mode: DecodingMode,
    ) -> Result<Vec<Box<dyn Policy>>> {
        if name.is_scripted() {
            return Ok(vec![self.scripted(name, chat)]);
        }
        let models = self.models(engines, chat, mode)?.into_iter();
        Ok(models.map(|it| Box::new(it) as Box<dyn Policy>).collect())
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
        model_policy(engine, chat, rollout, sampling(mode, rollout))
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
        stage.finish(&success_text(&metrics, &episodes));
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
        let (env, retry) = (self.setup.env_client(), self.config.actor.env_retry);
        episode_settings(&env, chat, rollout, retry)
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
        let with_gold = |episode: &EpisodeRecord| {
            let gold = questions.get(episode.question_id.as_str()).copied()?;
            Some(transcript(policy, episode.clone(), Some(gold)))
        };
        episodes.iter().filter_map(with_gold).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_questions_are_shared_by_table_and_curve_whatever_is_wanted() {
        let question = |number: u32| v1::Question {
            question_id: format!("q{number}"),
            split: EVAL_SPLIT.to_owned(),
            ..v1::Question::default()
        };
        let there: Vec<v1::Question> = (0..500).map(question).collect();
        let most = 1_000_000_000_000_000_000;
        for (questions, curve_questions, drawn) in [
            (400, 60, (400, 60)),
            (400, 200, (334, 166)),
            (most, 200, (500, 0)),
            (200, most, (1, 499)),
            (usize::MAX, usize::MAX, (250, 250)),
        ] {
            let settings = EvaluationConfig {
                questions,
                curve_questions,
                ..EvaluationConfig::default()
            };
            let found = EvaluationQuestions::draw(&settings, &there);
            let found = (found.table[0].1.len(), found.curve.len());
            assert_eq!(found, drawn, "{questions} and {curve_questions}");
        }
    }
}
