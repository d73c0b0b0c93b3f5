//! The status of a run.
//!
//! Invariant: what is not known is absent. A status that was read from a run folder has no actors
//! and no env-nodes, since only a learner that runs knows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::findings::Finding;
use crate::{
    page::Evaluations,
    records::{
        DecodingMode, EVAL_SPLIT, EpisodeRecord, Evaluation, LearnerStepRecord, RunStatus,
        TrainingStage,
    },
    run_records::RunRecords,
};

/// More steps are shortened to this number.
const MAX_STEPS: usize = 300;
/// The last steps stay as they are.
const WHOLE_STEPS: usize = 100;
/// The estimate of the time that is left is from this number of steps.
const ETA_STEPS: usize = 20;

/// The status of a run at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Name of the run.
    pub name: String,
    /// Whether it has ended.
    pub state: RunStatus,
    /// Description of the base model.
    pub model: String,
    /// The newest learner step of GRPO, which is the newest policy version.
    pub step: u64,
    /// Seconds until the last step, from the time of the last ones; evaluations come on top. None
    /// if no step is left.
    pub eta_seconds: Option<f64>,
    /// Seconds since a step was made or an evaluation was recorded. Of a folder, the duration of a
    /// stage counts as well.
    pub silent_seconds: Option<f64>,
    /// Whether an evaluation is being played, for which the training waits. Only a running learner
    /// says so.
    #[serde(default)]
    pub is_evaluating: bool,
    /// Settings that explain the numbers.
    #[serde(default)]
    pub settings: RunSettings,
    /// Metrics by step, oldest first. Of a long run, earlier ones are means of several steps.
    #[serde(default)]
    pub steps: Vec<LearnerStepRecord>,
    /// All evaluations, without their breakdown by level and database.
    #[serde(default)]
    pub evaluations: Vec<Evaluation>,
    /// Whether a running learner says this, so that `actors` and `env_nodes` are known.
    #[serde(default)]
    pub is_live: bool,
    /// The actors that called lately.
    #[serde(default)]
    pub actors: Vec<ActorStatus>,
    /// The env-nodes that actors report.
    #[serde(default)]
    pub env_nodes: Vec<EnvNodeStatus>,
    /// The newest episodes, newest first.
    #[serde(default)]
    pub episodes: Vec<LiveEpisode>,
    /// What is wrong with the run; see [`super::diagnose`].
    #[serde(default)]
    pub findings: Vec<Finding>,
}

/// Settings of the learner that the status and its diagnosis need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSettings {
    /// `learner.steps`.
    pub steps: Option<u64>,
    /// `learner.group_size`.
    pub group_size: Option<u64>,
    /// `learner.max_staleness`.
    pub max_staleness: Option<u64>,
    /// `learner.lease_seconds`.
    pub lease_seconds: Option<u64>,
    /// Whether `learner.demonstration_weight` is above 0.
    pub demonstrates: Option<bool>,
}

/// An actor as the learner sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ActorStatus {
    /// Its name. Actors choose it, so it may contain anything.
    pub id: String,
    /// The policy version of its last claim.
    pub policy_version: Option<u64>,
    /// How many versions it is behind the learner.
    pub version_lag: Option<u64>,
    /// Whether it has a connection for weights.
    pub is_connected: bool,
    /// Seconds since its last call.
    pub silent_seconds: f64,
    /// Groups that it holds under a lease.
    pub groups_in_flight: u64,
    /// Groups of it that were accepted.
    pub groups_done: u64,
    /// Sampled tokens per second of about the last minute.
    pub tokens_per_second: Option<f64>,
    /// Share of that time in which its engine computed.
    pub busy_share: Option<f64>,
}

/// An env-node as the actors see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvNodeStatus {
    /// HOST:PORT as actors were given it.
    pub address: String,
    /// Calls since the actors started.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Calls of about the last minute.
    pub recent_calls: u64,
    /// Those that failed.
    pub recent_errors: u64,
    /// Mean latency of about the last minute.
    pub mean_latency_seconds: Option<f64>,
    /// The latency that 95 % of these calls stayed below, approximately.
    pub p95_latency_seconds: Option<f64>,
}

/// An episode of the training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveEpisode {
    /// The group that it belongs to.
    pub group_index: u64,
    /// The actor that played it.
    pub actor_id: String,
    /// The question and what the policy did.
    #[serde(flatten)]
    pub episode: EpisodeRecord,
}

impl LiveStatus {
    /// Returns the status of a run folder's records. The name is that of the folder if the run says
    /// no other.
    pub fn of_records(records: &RunRecords, folder_name: &str, settings: RunSettings) -> Self {
        let info = records.info.as_ref();
        let grpo = records
            .steps
            .iter()
            .filter(|it| it.stage == TrainingStage::Grpo);
        let step = grpo.map(|it| it.step).max().unwrap_or(0);
        let mut evaluations = records.evaluations.clone();
        for evaluation in &mut evaluations {
            evaluation.metrics.by_level.clear();
            evaluation.metrics.by_database.clear();
        }
        let state = info.map_or(RunStatus::Running, |info| info.status);
        let mut status = Self {
            name: info.map_or(folder_name, |info| &info.name).to_owned(),
            state,
            model: info.map_or_else(String::new, |info| info.model.clone()),
            step,
            eta_seconds: None,
            silent_seconds: None,
            is_evaluating: false,
            settings,
            steps: shorten_steps(records.steps.clone()),
            evaluations,
            is_live: false,
            actors: Vec::new(),
            env_nodes: Vec::new(),
            episodes: Vec::new(),
            findings: Vec::new(),
        };
        status.eta_seconds = status.estimate();
        status
    }

    /// Returns the records from which the charts of the report are drawn.
    pub(crate) fn chart_records(&self) -> RunRecords {
        RunRecords {
            steps: self.steps.clone(),
            evaluations: self.evaluations.clone(),
            ..RunRecords::default()
        }
    }

    /// Returns the GRPO steps, oldest first.
    pub(crate) fn grpo_steps(&self) -> impl DoubleEndedIterator<Item = &LearnerStepRecord> {
        let steps = self.steps.iter();
        steps.filter(|step| step.stage == TrainingStage::Grpo)
    }

    /// Returns the step and how many there are: `step 12/40`.
    pub fn position(&self) -> String {
        self.position_of(self.step)
    }

    /// Returns a step and how many there are.
    pub fn position_of(&self, step: u64) -> String {
        match self.settings.steps {
            None => format!("step {step}"),
            Some(steps) => format!("step {step}/{steps}"),
        }
    }

    /// Returns what a running run does, for a status without `eta_seconds`.
    pub fn activity(&self) -> &'static str {
        match self.settings.steps {
            Some(steps) if self.step >= steps => "all steps are made; evaluations may follow",
            _ => "running",
        }
    }

    /// Returns a metric of the newest GRPO step.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let newest = self.grpo_steps().next_back()?;
        newest.metrics.get(name).copied()
    }

    /// Returns step and value of a metric of the GRPO steps that have it.
    pub fn series(&self, name: &str) -> Vec<(f64, f64)> {
        let value = |step: &LearnerStepRecord| Some((step.step as f64, *step.metrics.get(name)?));
        let finite = |(_, value): &(f64, f64)| value.is_finite();
        self.grpo_steps().filter_map(value).filter(finite).collect()
    }

    /// Returns the learning curve with greedy decoding, oldest first.
    pub fn accuracy(&self) -> Vec<&Evaluation> {
        let evaluations = Evaluations(&self.evaluations);
        let curve = evaluations.history(evaluations.curve_split(), DecodingMode::Greedy);
        match curve.is_empty() {
            true => evaluations.history(EVAL_SPLIT, DecodingMode::Greedy),
            false => curve,
        }
    }

    /// Returns the sampled tokens per second of the connected actors; none if none reports it.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let connected = self.actors.iter().filter(|actor| actor.is_connected);
        let rates = connected.filter_map(|actor| actor.tokens_per_second);
        rates.reduce(|sum, rate| sum + rate)
    }

    fn estimate(&self) -> Option<f64> {
        let left = self.settings.steps?.saturating_sub(self.step);
        if left == 0 || self.state != RunStatus::Running {
            return None;
        }
        let times = self.grpo_steps().rev().take(ETA_STEPS);
        let times: Vec<f64> = times
            .filter_map(|step| step.metrics.get("step_time").copied())
            .collect();
        (!times.is_empty()).then(|| left as f64 * times.iter().sum::<f64>() / times.len() as f64)
    }
}

/// Shortens a long list of steps: the last ones stay, and earlier ones become means of runs of
/// steps. Stages stay apart.
pub fn shorten_steps(steps: Vec<LearnerStepRecord>) -> Vec<LearnerStepRecord> {
    if steps.len() <= MAX_STEPS {
        return steps;
    }
    let (earlier, last) = steps.split_at(steps.len() - WHOLE_STEPS);
    let length = earlier.len().div_ceil(MAX_STEPS - WHOLE_STEPS);
    let stages = earlier.chunk_by(|a, b| a.stage == b.stage);
    let means = stages.flat_map(|stage| stage.chunks(length)).map(mean_step);
    means.chain(last.iter().cloned()).collect()
}

/// Returns the mean of steps of one stage, with the number of the last.
fn mean_step(steps: &[LearnerStepRecord]) -> LearnerStepRecord {
    let mut sums: BTreeMap<&String, (f64, f64)> = BTreeMap::new();
    for (name, value) in steps.iter().flat_map(|step| &step.metrics) {
        if value.is_finite() {
            let (sum, count) = sums.entry(name).or_default();
            *sum += value;
            *count += 1.0;
        }
    }
    let means = sums
        .into_iter()
        .map(|(name, (sum, count))| (name.clone(), sum / count));
    let last = &steps[steps.len() - 1];
    LearnerStepRecord {
        metrics: means.collect(),
        ..last.clone()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a step of GRPO with these metrics.
    pub(crate) fn step(step: u64, metrics: &[(&str, f64)]) -> LearnerStepRecord {
        let metrics = metrics
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        LearnerStepRecord {
            step,
            stage: TrainingStage::Grpo,
            policy_version: step,
            metrics: metrics.collect(),
        }
    }

    /// Returns the status of a run with these steps.
    pub(crate) fn status(steps: Vec<LearnerStepRecord>) -> LiveStatus {
        let records = RunRecords {
            steps,
            ..RunRecords::default()
        };
        let settings = RunSettings {
            steps: Some(1_000),
            group_size: Some(8),
            max_staleness: Some(0),
            lease_seconds: Some(300),
            demonstrates: Some(false),
        };
        LiveStatus::of_records(&records, "run", settings)
    }

    #[test]
    fn a_long_run_is_shortened_but_not_its_last_steps() {
        let long: Vec<_> = (1..=10_000)
            .map(|number| step(number, &[("reward", number as f64)]))
            .collect();
        let short = shorten_steps(long.clone());
        assert!(short.len() <= MAX_STEPS, "{}", short.len());
        assert_eq!(
            short[short.len() - WHOLE_STEPS..],
            long[long.len() - WHOLE_STEPS..]
        );
        assert_eq!((short[0].step, short[0].metrics["reward"]), (50, 25.5));
        assert_eq!(shorten_steps(long[..300].to_vec()), long[..300]);
    }

    #[test]
    fn the_time_left_is_that_of_the_last_steps() {
        let last = status(vec![step(1_000, &[("step_time", 2.0)])]);
        assert_eq!(last.eta_seconds, None);
        let steps = (1..=100).map(|number| {
            let seconds = if number <= 80 { 100.0 } else { 2.0 };
            step(number, &[("step_time", seconds)])
        });
        let status = status(steps.collect());
        assert_eq!(status.eta_seconds, Some(900.0 * 2.0));
        assert_eq!(status.step, 100);
    }

    #[test]
    fn a_status_survives_its_json() {
        let mut before = status(vec![step(1, &[("reward", 0.25)])]);
        before.actors.push(ActorStatus {
            id: "a".to_owned(),
            busy_share: Some(0.5),
            ..ActorStatus::default()
        });
        let json = serde_json::to_string(&before).unwrap();
        let after: LiveStatus = serde_json::from_str(&json).unwrap();
        assert_eq!(after, before);
    }
}
