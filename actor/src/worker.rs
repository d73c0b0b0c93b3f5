//! The actor's role: joins the learner, claims groups, rolls them out and submits them.
//!
//! An actor stores nothing that cannot be made again. A group that it held when it stopped is
//! handed out again when the lease expires, and becomes the same trajectories on any actor that
//! holds the same weights.

mod claim_loops;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use policy::{
    ChatRole, Constrainer, Constraint, Coordinates, Message, Model, Placement, SamplingSettings,
    Weights,
};
use proto::{
    Endpoints, EnvClient, LearnerClient, MAX_MESSAGE_BYTES, Snapshot, SnapshotError,
    v1::{
        ActorIdentity, ActorReport, EvaluationClaim, GroupClaim, InfoRequest, JoinRequest,
        JoinResponse, RolloutSettings, Trajectory,
    },
};
use tokio::sync::watch;

use self::claim_loops::WorkInProgress;
use crate::{
    config::ActorConfig,
    engine::Engine,
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    evaluate::evaluation_spec,
    learner_session::LearnerSession,
    metrics,
    model_policy::ModelPolicy,
    rollout::RolloutLimits,
    rollout_driver::run_episodes,
    weights::SnapshotStream,
};

/// How often an episode is rolled out if its service calls fail. Each time, the calls are retried
/// as configured.
const GROUP_ATTEMPTS: u32 = 3;
/// After so many rounds in a row that fail although env-node answers, their episodes are given up.
const MAX_REFUSALS: u32 = 3;
/// An env-node that answers does so within this time.
const ANSWER: Duration = Duration::from_secs(10);

/// Runs an actor until the learner says that the run is over or `shutdown` ends. The learner gets
/// the statistics of `env_nodes`, the endpoints of `env`.
///
/// # Errors
/// The learner cannot be reached, or it sends settings that cannot be used. An episode that fails
/// is not an error but an unscored trajectory.
pub async fn run(
    (env, env_nodes): (EnvClient, Endpoints),
    learner: LearnerClient,
    actor_id: &str,
    config: ActorConfig,
    placement: Placement,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ActorError> {
    config.validate()?;
    let learner = learner
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tokio::select! {
        over = work((env, env_nodes), learner, actor_id, (&config, placement)) => over,
        () = shutdown => Ok(()),
    }
}

async fn work(
    env: (EnvClient, Endpoints),
    learner: LearnerClient,
    actor_id: &str,
    (config, placement): (&ActorConfig, Placement),
) -> Result<(), ActorError> {
    let identity = identity(&env.0, config).await?;
    let request = JoinRequest {
        actor_id: actor_id.to_owned(),
        identity: Some(identity.clone()),
    };
    let join = async || learner.clone().join(request.clone()).await;
    let joined = config.learner_retry.call("Learner.Join", join).await?;
    let mut snapshots = SnapshotStream::new(
        learner.clone(),
        (actor_id, &joined.run_id),
        config.learner_retry,
    );
    let Some(first) = snapshots.next().await? else {
        return Ok(());
    };
    let concurrent_groups = within_leases(config.concurrent_groups, joined.max_leases_per_actor);
    // Opening the model blocks, and a signal does not wait for it.
    let (id, of_process) = (actor_id.to_owned(), config.clone());
    let open = move || {
        let of_actor = (id.as_str(), identity);
        Actor::new(
            env,
            learner,
            of_actor,
            (&of_process, placement),
            joined,
            &first,
        )
    };
    let opened = tokio::task::spawn_blocking(open).await;
    let (actor, published) =
        opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    // The end of the run arrives on the weights stream alone, so that it also stops an actor in the
    // middle of a group.
    tokio::select! {
        failed = actor.run_claim_loops(concurrent_groups) => failed,
        over = actor.follow(snapshots, published) => over,
    }
}

/// Returns what the learner must know to accept this actor.
async fn identity(env: &EnvClient, config: &ActorConfig) -> Result<ActorIdentity, ActorError> {
    let info = async || env.clone().info(InfoRequest {}).await;
    let info = config.env_retry.call("Env.Info", info).await?;
    Ok(ActorIdentity {
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        environment_version: info.environment_version,
        data_sha256: info.data_sha256,
        reward_profile: info.default_reward_profile,
    })
}

/// Returns how many groups to run at a time: as configured, if the learner gives as many leases.
fn within_leases(concurrent_groups: usize, max_leases: u32) -> usize {
    let most = match max_leases {
        0 => usize::MAX,
        most => most as usize,
    };
    if most < concurrent_groups {
        tracing::warn!(
            "actor.concurrent_groups is {concurrent_groups}, but the learner gives an actor \
             {most} groups at a time; raise learner.trust.max_leases_per_actor"
        );
    }
    concurrent_groups.min(most)
}

/// A joined actor.
struct Actor {
    run_seed: u64,
    learner: LearnerSession,
    engine: Engine,
    /// The env-nodes that are called, for the report.
    env_nodes: Endpoints,
    settings: EpisodeSettings,
    policy: ModelPolicy,
    /// Constrains completions, also those of evaluations.
    constrainer: Option<Arc<Constrainer>>,
    version: watch::Receiver<u64>,
    in_progress: WorkInProgress,
}

impl Actor {
    fn new(
        (env, env_nodes): (EnvClient, Endpoints),
        learner: LearnerClient,
        (actor_id, identity): (&str, ActorIdentity),
        (config, placement): (&ActorConfig, Placement),
        joined: JoinResponse,
        first: &Snapshot,
    ) -> Result<(Self, watch::Sender<u64>), ActorError> {
        let settings = joined.rollout.unwrap_or_default();
        let (limits, sampling) = convert_settings(&settings)?;
        let files = joined
            .model_files
            .into_iter()
            .map(|file| (file.name, file.content.into()));
        let model = Model::from_files(files.collect(), weights(first)?)?;
        // A chat template that cannot render tool results fails here rather than in every episode.
        model
            .chat
            .tool_suffix_ids(&[Message::new(ChatRole::Tool, "1. 1")])?;
        let engine = Engine::spawn(
            &model,
            first.policy_version,
            limits.max_context_tokens,
            &config.engine,
            // Weights travel in the dtype in which the learner computes, and another one would give
            // other log-probabilities.
            placement.or_dtype_of(&model.weights),
        )?;
        metrics::set_policy_version(first.policy_version);
        let (published, version) = watch::channel(first.policy_version);
        tracing::info!(
            actor_id,
            run_id = %joined.run_id,
            policy_version = first.policy_version,
            "joined"
        );
        let constraint = constraint(settings.constraint());
        let chat = Arc::new(model.chat.with_thinking(settings.thinking));
        let constrainer = Constrainer::new(constraint, &chat, limits.shots)?.map(Arc::new);
        let episode_settings = EpisodeSettings {
            env,
            chat,
            limits,
            reward_profile: settings.reward_profile,
            step_budget: settings.step_budget,
            retry: config.env_retry,
        };
        let actor = Self {
            run_seed: joined.run_seed,
            learner: LearnerSession {
                client: learner,
                actor_id: actor_id.to_owned(),
                run_id: joined.run_id,
                identity,
                retry: config.learner_retry,
            },
            policy: ModelPolicy::new(engine.clone(), sampling).constrained(constrainer.clone()),
            constrainer,
            engine,
            env_nodes,
            settings: episode_settings,
            version,
            in_progress: WorkInProgress::default(),
        };
        Ok((actor, published))
    }

    /// Swaps each new snapshot into the engine, until the run is over; what is still being rolled
    /// out then is not needed.
    async fn follow(
        &self,
        mut snapshots: SnapshotStream,
        published: watch::Sender<u64>,
    ) -> Result<(), ActorError> {
        while let Some(snapshot) = snapshots.next().await? {
            let version = snapshot.policy_version;
            // Episodes go on meanwhile: weights of gigabytes take seconds to copy.
            let read = tokio::task::spawn_blocking(move || weights(&snapshot)).await;
            let read =
                read.map_err(|_| ActorError::Engine("reading weights panicked".to_owned()))?;
            self.engine.update_weights(version, read?).await?;
            // From here on the weights version is visible: claims name it and new completions are
            // sampled with it.
            metrics::set_policy_version(version);
            published.send_replace(version);
        }
        Ok(())
    }

    /// Describes this actor to people who watch the run.
    fn report(&self) -> ActorReport {
        let (sampled_tokens, busy) = self.engine.work();
        ActorReport {
            sampled_tokens,
            busy_seconds: busy.as_secs_f64(),
            env_nodes: self.env_nodes.reports(),
        }
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Waits for other weights than those of `version`, or as long as the learner says.
    async fn wait_for_other_than(&self, version: u64, milliseconds: u32) {
        let mut newest = self.version.clone();
        let pause = Duration::from_millis(milliseconds.into());
        // Either way it is time to claim again.
        let _ = tokio::time::timeout(pause, newest.wait_for(|newest| *newest != version)).await;
    }

    /// Rolls out a group. Waits for an env-node that is away: an episode that it fails would have
    /// no score, so an outage would change the weights. If the lease expires meanwhile, the group
    /// goes to another actor, which may reach an env-node.
    async fn roll_out(&self, claim: &GroupClaim) -> Result<Vec<Trajectory>, ActorError> {
        let specs = (0..claim.group_size).map(|member| self.episode_spec(claim, member));
        let specs: Vec<EpisodeSpec> = specs.collect();
        let mut refusals = Refusals::default();
        loop {
            let (trajectories, fault) = self.play(&self.policy, &specs).await?;
            let env = &self.settings.env;
            if fault.is_none() || refusals.are_final(fault, env, &specs).await {
                return Ok(trajectories);
            }
        }
    }

    /// Plays a part of an evaluation: one episode of each question, with the claim's sampling.
    /// Waits for an env-node that is away, since an episode that it fails would count as wrong.
    /// Returns none if the learner has another version by then.
    async fn evaluate(
        &self,
        claim: &EvaluationClaim,
    ) -> Result<Option<Vec<Trajectory>>, ActorError> {
        let sampling = claim.sampling.unwrap_or_default();
        let policy = ModelPolicy::new(self.engine.clone(), sampling_settings(&sampling))
            .constrained(self.constrainer.clone());
        let ids = claim.question_ids.iter();
        let specs: Vec<EpisodeSpec> = ids
            .map(|question_id| evaluation_spec(question_id, claim.seed))
            .collect();
        let mut refusals = Refusals::default();
        while claim.policy_version == self.version() {
            let (trajectories, fault) = self.play(&policy, &specs).await?;
            let env = &self.settings.env;
            if fault.is_none() || refusals.are_final(fault, env, &specs).await {
                return Ok(Some(trajectories));
            }
        }
        Ok(None)
    }

    /// Plays episodes and returns their trajectories in order. Those whose calls failed are played
    /// again. The second value says why some failed in the end that env-node may serve later.
    async fn play(
        &self,
        policy: &ModelPolicy,
        specs: &[EpisodeSpec],
    ) -> Result<(Vec<Trajectory>, Option<EnvFault>), ActorError> {
        let mut pending: Vec<(usize, EpisodeSpec)> = specs.iter().cloned().enumerate().collect();
        let mut played = BTreeMap::new();
        let mut fault = None;
        for _ in 0..GROUP_ATTEMPTS {
            let specs: Vec<EpisodeSpec> = pending.iter().map(|(_, spec)| spec.clone()).collect();
            let outcomes = run_episodes(
                &[policy],
                &self.settings,
                &specs,
                specs.len(),
                |_, trajectory| metrics::count_episode(trajectory),
            )
            .await;
            let mut broken = Vec::new();
            fault = None;
            for ((place, spec), outcome) in pending.into_iter().zip(outcomes) {
                match outcome.error {
                    // Without its engine an actor cannot sample at all.
                    Some(gone @ ActorError::Engine(_)) => return Err(gone),
                    Some(error) if error.is_call_failure() => {
                        let question_id = &spec.question_id;
                        tracing::warn!(%error, question_id, "an episode failed");
                        fault = fault.max(EnvFault::of(&error));
                        broken.push((place, spec));
                    }
                    _ => {}
                }
                played.insert(place, outcome.trajectory);
            }
            pending = broken;
            if pending.is_empty() {
                break;
            }
        }
        Ok((played.into_values().collect(), fault))
    }

    fn episode_spec(&self, claim: &GroupClaim, member: u32) -> EpisodeSpec {
        EpisodeSpec {
            question_id: claim.question_id.clone(),
            coordinates: Coordinates {
                run_seed: self.run_seed,
                group: claim.group_index,
                member,
                turn: 0,
                position: 0,
            },
        }
    }
}

/// Why episodes failed that env-node may serve later. The greater one counts for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EnvFault {
    /// It answered that it cannot serve them.
    Unserved,
    /// It is away, or has too much work.
    Away,
}

impl EnvFault {
    fn of(error: &ActorError) -> Option<Self> {
        let fault = match error.is_answered_unavailable() {
            true => Self::Unserved,
            false => Self::Away,
        };
        error.may_pass().then_some(fault)
    }
}

/// Rounds in a row in which episodes failed although env-node answers.
#[derive(Default)]
struct Refusals(u32);

impl Refusals {
    /// Notes a round. Returns whether waiting is in vain: env-node answers now and did after
    /// earlier rounds, so it cannot serve these episodes, for instance because their gold SQL takes
    /// longer than the limit. Without this the run would wait for them for ever.
    async fn are_final(
        &mut self,
        fault: Option<EnvFault>,
        env: &EnvClient,
        episodes: &[EpisodeSpec],
    ) -> bool {
        let mut env = env.clone();
        let answer = tokio::time::timeout(ANSWER, env.info(InfoRequest {})).await;
        self.0 = match (fault, answer) {
            (Some(EnvFault::Unserved), Ok(Ok(_))) => self.0 + 1,
            _ => 0,
        };
        let are_final = self.0 >= MAX_REFUSALS;
        if are_final {
            let ids: BTreeSet<&str> = episodes.iter().map(|it| it.question_id.as_str()).collect();
            tracing::error!(
                questions = ?ids,
                "env-node answers, but cannot serve some of these episodes; they get no score. Its \
                 log and the warnings above say why"
            );
        }
        are_final
    }
}

/// Reads a snapshot in the dtype that it travels in; the engine converts what it does not compute
/// in.
fn weights(snapshot: &Snapshot) -> Result<Weights, ActorError> {
    Weights::from_bytes_as_stored(snapshot.body()).map_err(|error| {
        let (policy_version, reason) = (snapshot.policy_version, error.to_string());
        SnapshotError {
            policy_version,
            reason,
        }
        .into()
    })
}

fn constraint(constraint: proto::v1::Constraint) -> Constraint {
    match constraint {
        proto::v1::Constraint::Unspecified => Constraint::None,
        proto::v1::Constraint::ToolCall => Constraint::ToolCall,
        proto::v1::Constraint::Sql => Constraint::Sql,
    }
}

/// Converts the message of sampling settings.
fn sampling_settings(sampling: &proto::v1::SamplingSettings) -> SamplingSettings {
    SamplingSettings {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
    }
}

/// Converts the learner's settings to limits and sampling settings.
fn convert_settings(
    settings: &RolloutSettings,
) -> Result<(RolloutLimits, SamplingSettings), ActorError> {
    for (field, value) in [
        (
            "rollout.max_completion_tokens",
            settings.max_completion_tokens,
        ),
        ("rollout.max_context_tokens", settings.max_context_tokens),
    ] {
        if value == 0 {
            let reason =
                "the learner sent 0, but it must be 1 or more; change it in the learner's settings"
                    .to_owned();
            return Err(ActorError::Setting { field, reason });
        }
    }
    let sampling = settings.sampling.as_ref();
    let sampling = sampling.map_or_else(SamplingSettings::default, sampling_settings);
    sampling.validate()?;
    let limits = RolloutLimits {
        max_completion_tokens: settings.max_completion_tokens as usize,
        max_context_tokens: settings.max_context_tokens as usize,
        shots: settings.shots as usize,
    };
    Ok((limits, sampling))
}
