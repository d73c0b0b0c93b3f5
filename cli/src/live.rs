//! The live page of a learner or of `sqlenv train`, and its status as JSON.
//!
//! Invariant: watching changes nothing. The pages are read-only, and a run goes on if its status
//! cannot be made.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Json, Router,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use learner::{Learner, LearnerConfig, ObservedActor, ObservedEnvNode};
use parking_lot::{Mutex, MutexGuard};
use policy::Chat;
use proto::{latency_quantile, v1::Question};
use report::{
    ActorStatus, EnvNodeStatus, Evaluation, LearnerStepRecord, LiveEpisode, LiveStatus, RunFolder,
    RunInfo, RunRecords, RunSettings, RunStatus, TrainingStage, live_fragment, live_page,
    live_security_policy, shorten_steps,
};
use tokio::time::Instant;

use crate::status_source::{findings, live_episode};

/// What `/status.json` says before the run is open.
const STARTING: &str = "GRPO has not begun: the learner opens the run and asks its env-node for \
                        questions, or `sqlenv train` evaluates and trains the policies before GRPO";
/// How long the end of a run stays visible to those who watch it: longer than the pause between two
/// of their requests.
const LINGER: Duration = Duration::from_secs(3);
/// Who asked within this time is watching.
const WATCHING: Duration = Duration::from_secs(10);
/// More steps than this in memory are shortened.
const MAX_STEPS: usize = 600;

/// A run as its learner shows it; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct LiveRun(Arc<LiveShared>);

#[derive(Default)]
struct LiveShared {
    run: OnceLock<OpenRun>,
    records: Mutex<LiveRecords>,
}

/// What does not change while a run is open.
struct OpenRun {
    learner: Learner,
    info: RunInfo,
    settings: RunSettings,
    chat: Chat,
    questions: BTreeMap<String, Question>,
}

#[derive(Default)]
struct LiveRecords {
    state: Option<RunStatus>,
    steps: Vec<LearnerStepRecord>,
    evaluations: Vec<Evaluation>,
    /// Lines of the folder that could not be read when the run was opened, by file name.
    unreadable: BTreeMap<&'static str, usize>,
    /// When a step was made or an evaluation recorded.
    progressed: Option<Instant>,
    /// Whether this process plays an evaluation.
    is_evaluating: bool,
    is_after_grpo: bool,
    /// When somebody last asked for the status.
    watched: Option<Instant>,
}

impl LiveRun {
    fn lock(&self) -> MutexGuard<'_, LiveRecords> {
        self.0.records.lock()
    }

    /// Shows a run that is open now, with the records that its folder has.
    pub(crate) fn begin(
        &self,
        learner: Learner,
        info: &RunInfo,
        config: &LearnerConfig,
        chat: Chat,
        questions: &[Question],
        folder: &RunFolder,
    ) {
        let questions = questions
            .iter()
            .map(|it| (it.question_id.clone(), it.clone()));
        let version = learner.snapshot().policy_version;
        let open = OpenRun {
            learner,
            info: info.clone(),
            settings: RunSettings {
                steps: Some(config.steps),
                group_size: Some(config.group_size as u64),
                max_staleness: Some(config.max_staleness),
                lease_seconds: Some(config.lease_seconds.into()),
                demonstrates: Some(config.demonstration_weight > 0.0),
            },
            chat,
            questions: questions.collect(),
        };
        let known = folder.read().unwrap_or_else(|error| {
            tracing::warn!("the live page lacks what the run has recorded: {error:#}");
            RunRecords::default()
        });
        let mut records = self.lock();
        records.steps = known.steps;
        // The run repeats the steps after its checkpoint.
        let is_made = |it: &LearnerStepRecord| it.step <= version;
        records
            .steps
            .retain(|it| it.stage != TrainingStage::Grpo || is_made(it));
        records.evaluations = known.evaluations;
        records.unreadable = known.unreadable;
        records.progressed = Some(Instant::now());
        drop(records);
        // A second run in one process would be a bug; its page stays that of the first.
        let _ = self.0.run.set(open);
    }

    /// Adds a step.
    pub(crate) fn step(&self, step: &LearnerStepRecord) {
        let mut records = self.lock();
        records.steps.push(step.clone());
        if records.steps.len() > MAX_STEPS {
            records.steps = shorten_steps(std::mem::take(&mut records.steps));
        }
        records.progressed = Some(Instant::now());
    }

    /// Reads the evaluations of the run folder again.
    pub(crate) fn evaluated(&self, folder: &RunFolder) {
        match folder.evaluations() {
            Ok(known) => self.lock().evaluations = known,
            Err(error) => tracing::warn!("the live page lacks an evaluation: {error:#}"),
        }
        self.lock().progressed = Some(Instant::now());
    }

    /// Sets whether this process plays an evaluation, in which it makes no steps.
    pub(crate) fn set_evaluating(&self, is_evaluating: bool) {
        self.lock().is_evaluating = is_evaluating;
    }

    /// Shows what the run does after GRPO, in which it needs no actors and makes no steps.
    pub(crate) fn grpo_ended(&self) {
        self.lock().is_after_grpo = true;
    }

    /// Shows that the run has ended.
    pub(crate) fn end(&self, state: RunStatus) {
        self.lock().state = Some(state);
    }

    /// Keeps the process for a moment if somebody watches, so that they see the end.
    pub(crate) async fn linger(&self) {
        let watched = self.lock().watched;
        if watched.is_some_and(|watched| watched.elapsed() < WATCHING) {
            tokio::time::sleep(LINGER).await;
        }
    }

    /// Returns the pages for the admin port.
    pub(crate) fn pages(&self) -> Router {
        let page = |render: fn(Option<&LiveStatus>) -> String| {
            let live = self.clone();
            get(move || async move { html(render(live.watch().as_ref())) })
        };
        let live = self.clone();
        let status = move || async move {
            match live.watch() {
                Some(status) => (PRIVATE, Json(status)).into_response(),
                None => (StatusCode::SERVICE_UNAVAILABLE, PRIVATE, STARTING).into_response(),
            }
        };
        Router::new()
            .route("/", page(live_page))
            .route("/fragment", page(live_fragment))
            .route("/status.json", get(status))
    }

    /// Returns the status for somebody who watches; none before the run is open.
    fn watch(&self) -> Option<LiveStatus> {
        self.lock().watched = Some(Instant::now());
        self.status()
    }

    fn status(&self) -> Option<LiveStatus> {
        let run = self.0.run.get()?;
        let (records, progressed) = self.records(&run.info);
        let mut status = LiveStatus::of_records(&records, "", run.settings);
        status.episodes = run.episodes();
        if self.lock().is_after_grpo {
            status.findings = findings(&status, &records);
            return Some(status);
        }
        status.is_live = true;
        status.silent_seconds = progressed.map(|it| it.elapsed().as_secs_f64());
        // Actors play the evaluations of a distributed run.
        status.is_evaluating = self.lock().is_evaluating || run.learner.is_evaluating();
        let version = run.learner.snapshot().policy_version;
        let (actors, env_nodes) = run.learner.observe_actors();
        status.actors = actors
            .into_iter()
            .map(|it| actor_status(it, version))
            .collect();
        status.env_nodes = env_nodes.into_iter().map(env_node_status).collect();
        status.findings = findings(&status, &records);
        Some(status)
    }

    fn records(&self, info: &RunInfo) -> (RunRecords, Option<Instant>) {
        let records = self.lock();
        let info = RunInfo {
            status: records.state.unwrap_or(RunStatus::Running),
            ..info.clone()
        };
        let copy = RunRecords {
            info: Some(info),
            steps: records.steps.clone(),
            evaluations: records.evaluations.clone(),
            unreadable: records.unreadable.clone(),
            ..RunRecords::default()
        };
        (copy, records.progressed)
    }
}

impl OpenRun {
    fn episodes(&self) -> Vec<LiveEpisode> {
        let recent = self.learner.recent_episodes().into_iter();
        let readable = |it: learner::RecentEpisode| {
            let id = &it.trajectory.question_id;
            let question = self.questions.get(id).cloned().unwrap_or_else(|| Question {
                question_id: id.clone(),
                ..Question::default()
            });
            live_episode(
                &self.chat,
                it.group_index,
                it.actor_id,
                question,
                &it.trajectory,
            )
        };
        recent.map(readable).collect()
    }
}

/// Headers of everything here: not stored, not shown in another site's page, not guessed to be of
/// another type.
const PRIVATE: [(HeaderName, &str); 4] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

fn html(page: String) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, live_security_policy()),
    ];
    (PRIVATE, kind, page).into_response()
}

fn actor_status(actor: ObservedActor, version: u64) -> ActorStatus {
    ActorStatus {
        version_lag: actor
            .policy_version
            .map(|held| version.saturating_sub(held)),
        policy_version: actor.policy_version,
        id: actor.id,
        is_connected: actor.is_connected,
        silent_seconds: actor.silent.as_secs_f64(),
        groups_in_flight: actor.groups_in_flight,
        groups_done: actor.groups_done,
        tokens_per_second: actor.tokens_per_second,
        busy_share: actor.busy_share,
    }
}

fn env_node_status(node: ObservedEnvNode) -> EnvNodeStatus {
    let recent = &node.recent;
    let mean = (recent.calls > 0).then(|| recent.latency_seconds / recent.calls as f64);
    EnvNodeStatus {
        calls: node.calls,
        errors: node.errors,
        recent_calls: recent.calls,
        recent_errors: recent.errors,
        mean_latency_seconds: mean,
        p95_latency_seconds: latency_quantile(recent, 0.95),
        address: node.address,
    }
}
