//! The actor's role: joins the learner, claims groups, rolls them out and submits them.
//!
//! An actor stores nothing that cannot be made again. A group that it held when it stopped is
//! handed out again when the lease expires, and becomes the same trajectories on any actor that
//! holds the same weights.

mod claim_loops;
mod failures;
mod settings;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use policy::{ChatRole, Constrainer, Coordinates, Message, Model, Placement, Weights};
use proto::{
    Endpoints, EnvClient, LearnerClient, MAX_MESSAGE_BYTES, Snapshot, SnapshotError, Transport,
    env_client,
    v1::{
        ActorIdentity, ActorReport, EvaluationClaim, GroupClaim, InfoRequest, InfoResponse,
        JoinRequest, JoinResponse, ModelFile, Trajectory,
    },
};
use tokio::sync::watch;

use self::{
    claim_loops::WorkInProgress,
    failures::{EnvFault, EpisodeWarnings, FailedRounds},
};
use crate::{
    config::ActorConfig,
    engine::Engine,
    episode_settings::{EpisodeSettings, EpisodeSpec, ExpectedEnvironment},
    error::ActorError,
    evaluate::evaluation_spec,
    learner_session::LearnerSession,
    metrics,
    model_policy::ModelPolicy,
    retry::Retry,
    rollout_driver::run_episodes,
    weights::SnapshotStream,
};

/// Runs an actor until the learner says that the run is over or `shutdown` ends.
///
/// # Errors
/// The learner cannot be reached, or it sends settings that cannot be used. Env-node serves another
/// environment than the run's, or refuses this actor. Any other episode that fails is not an error
/// but an unscored trajectory.
pub async fn run(
    env: Transport,
    learner: Transport,
    actor_id: &str,
    config: ActorConfig,
    placement: Placement,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ActorError> {
    config.validate()?;
    let learner = LearnerClient::new(learner)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tokio::select! {
        over = work(env, learner, actor_id, &config, placement) => over,
        () = shutdown => Ok(()),
    }
}

async fn work(
    env: Transport,
    learner: LearnerClient,
    actor_id: &str,
    config: &ActorConfig,
    placement: Placement,
) -> Result<(), ActorError> {
    let env_nodes = env.endpoints();
    let env = env_client(env);
    let identity = identity(&env, config).await?;
    let request = JoinRequest {
        actor_id: actor_id.to_owned(),
        identity: Some(identity.clone()),
    };
    let join = async || learner.clone().join(request.clone()).await;
    let response = config.learner_retry.call("Learner.Join", join).await?;
    let mut snapshots = SnapshotStream::new(
        learner.clone(),
        (actor_id, &response.run_id),
        config.learner_retry,
    );
    let Some(first) = snapshots.next().await? else {
        return Ok(());
    };
    let concurrent_groups = within_leases(config.concurrent_groups, response.max_leases_per_actor);
    let joined = Joined {
        env,
        env_nodes,
        learner,
        actor_id: actor_id.to_owned(),
        identity,
        response,
    };
    // Opening the model blocks, and a signal does not wait for it.
    let config = config.clone();
    let open = move || Actor::new(joined, &config, placement, &first);
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

/// Asks an env-node what it serves.
///
/// # Errors
/// It refuses the call, or does not answer as long as `retry` says.
pub async fn env_info(env: &EnvClient, retry: &Retry) -> Result<InfoResponse, ActorError> {
    let info = async || env.clone().info(InfoRequest {}).await;
    retry.call("Env.Info", info).await
}

/// Returns what the learner must know to accept this actor.
async fn identity(env: &EnvClient, config: &ActorConfig) -> Result<ActorIdentity, ActorError> {
    let info = env_info(env, &config.env_retry).await?;
    Ok(ActorIdentity {
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        environment_version: info.environment_version,
        data_sha256: info.data_sha256,
        reward_profile: info.default_reward_profile,
    })
}

/// Returns how many groups to run at a time: as configured, if the learner gives as many leases.
fn within_leases(concurrent_groups: usize, max_leases: u32) -> usize {
    let most = max_leases as usize;
    if most < concurrent_groups {
        tracing::warn!(
            "actor.concurrent_groups is {concurrent_groups}, but the learner gives an actor \
             {most} groups at a time; raise learner.trust.max_leases_per_actor"
        );
    }
    concurrent_groups.min(most)
}

/// Opens the model that the learner has sent.
fn opened(files: Vec<ModelFile>, first: &Snapshot) -> Result<Model, ActorError> {
    let files = files
        .into_iter()
        .map(|file| (file.name, file.content.into()));
    let model = Model::from_files(files.collect(), weights(first)?)?;
    // A chat template that cannot render tool results fails here rather than in every episode.
    let result = Message::new(ChatRole::Tool, "1. 1");
    model.chat.tool_suffix_ids(&[result])?;
    Ok(model)
}

/// What an actor has once it has joined a run.
struct Joined {
    env: EnvClient,
    env_nodes: Endpoints,
    learner: LearnerClient,
    actor_id: String,
    identity: ActorIdentity,
    response: JoinResponse,
}

/// An actor that plays.
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
    warnings: EpisodeWarnings,
    /// The pause before failed episodes are played again.
    first_pause: Duration,
}

impl Actor {
    fn new(
        joined: Joined,
        config: &ActorConfig,
        placement: Placement,
        first: &Snapshot,
    ) -> Result<(Self, watch::Sender<u64>), ActorError> {
        let response = joined.response;
        let rollout = response.rollout.unwrap_or_default();
        let limits = settings::limits(&rollout)?;
        let sampling = settings::sampling(rollout.sampling.as_ref())?;
        let model = opened(response.model_files, first)?;
        let engine = Engine::spawn(
            &model,
            first.policy_version,
            limits.max_context_tokens,
            &config.engine,
            settings::placement_for(&model.weights, placement),
        )?;
        metrics::set_policy_version(first.policy_version);
        let (published, version) = watch::channel(first.policy_version);
        tracing::info!(
            actor_id = %joined.actor_id, run_id = %response.run_id,
            policy_version = first.policy_version, "joined"
        );
        let constraint = settings::constraint(rollout.constraint());
        let chat = Arc::new(model.chat.with_thinking(rollout.thinking));
        let constrainer = Constrainer::new(constraint, &chat, limits.shots)?.map(Arc::new);
        let settings = EpisodeSettings {
            env: joined.env,
            chat,
            limits,
            // An env-node that is started again may have another default.
            reward_profile: match rollout.reward_profile.as_str() {
                "" => joined.identity.reward_profile.clone(),
                _ => rollout.reward_profile,
            },
            expected: ExpectedEnvironment::from(&joined.identity),
            step_budget: rollout.step_budget,
            retry: config.env_retry,
        };
        let actor = Self {
            run_seed: response.run_seed,
            learner: LearnerSession {
                client: joined.learner,
                actor_id: joined.actor_id,
                run_id: response.run_id,
                identity: joined.identity,
                retry: config.learner_retry,
                replay_seconds: response.replay_seconds,
            },
            policy: ModelPolicy::new(engine.clone(), sampling, constrainer.clone()),
            constrainer,
            engine,
            env_nodes: joined.env_nodes,
            settings,
            version,
            in_progress: WorkInProgress::default(),
            warnings: EpisodeWarnings::default(),
            first_pause: config.first_pause,
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
    async fn roll_out(&self, claim: &GroupClaim) -> Result<Option<Vec<Trajectory>>, ActorError> {
        let specs = (0..claim.group_size).map(|member| self.episode_spec(claim, member));
        self.play(&self.policy, specs.collect(), || true).await
    }

    /// Plays a part of an evaluation: one episode of each question, with the claim's sampling.
    /// Waits for an env-node that is away, since an episode that it fails would count as wrong.
    /// Returns none if the learner has another version by then.
    async fn evaluate(
        &self,
        claim: &EvaluationClaim,
    ) -> Result<Option<Vec<Trajectory>>, ActorError> {
        let sampling = settings::sampling(claim.sampling.as_ref())?;
        let policy = ModelPolicy::new(self.engine.clone(), sampling, self.constrainer.clone());
        let ids = claim.question_ids.iter();
        let specs = ids.map(|question_id| evaluation_spec(question_id, claim.seed));
        let is_wanted = || claim.policy_version == self.version();
        self.play(&policy, specs.collect(), is_wanted).await
    }

    /// Plays episodes and returns their trajectories in order, or none if they are not wanted any
    /// more. Episodes whose calls failed are played again after a pause, until env-node serves them
    /// or waiting is in vain. The others keep their trajectories, which are functions of weights
    /// and coordinates.
    async fn play(
        &self,
        policy: &ModelPolicy,
        specs: Vec<EpisodeSpec>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<Vec<Trajectory>>, ActorError> {
        let mut pending: Vec<(usize, EpisodeSpec)> = specs.into_iter().enumerate().collect();
        let mut played = BTreeMap::new();
        let mut failures = FailedRounds::new(self.first_pause);
        while is_wanted() {
            let specs: Vec<EpisodeSpec> = pending.iter().map(|(_, spec)| spec.clone()).collect();
            let concurrency = specs.len();
            let count = |_, trajectory: &Trajectory| {
                // The others may be played again.
                if trajectory.scored {
                    metrics::count_episode(trajectory);
                }
            };
            let outcomes =
                run_episodes(&[policy], &self.settings, &specs, concurrency, count).await;
            let (mut broken, mut errors) = (Vec::new(), Vec::new());
            for ((place, spec), outcome) in pending.into_iter().zip(outcomes) {
                match outcome.error {
                    // Without its engine an actor cannot sample at all.
                    Some(gone @ ActorError::Engine(_)) => return Err(gone),
                    // An operator has to change its token or its env-nodes, and learns of it so.
                    Some(refused) if refused.is_refused_caller() => return Err(refused),
                    Some(error) if error.is_call_failure() => {
                        self.warnings.broken(&error, &spec.question_id);
                        errors.push(error);
                        broken.push((place, spec));
                    }
                    _ => self.warnings.ended(&outcome.trajectory),
                }
                played.insert(place, outcome.trajectory);
            }
            pending = broken;
            let env = &self.settings.env;
            let is_final = match errors.iter().max_by_key(|error| EnvFault::of(error)) {
                None => true,
                Some(error) => failures.are_final(error, env, &pending).await,
            };
            if is_final {
                // Other reasons, such as a disk that fails, may be repaired.
                for ((place, _), error) in pending.iter().zip(&errors) {
                    if let Some(failed) = played.get_mut(place) {
                        failed.failure_is_final = error.is_wall_clock();
                    }
                }
                let unscored = played.values().filter(|trajectory| !trajectory.scored);
                unscored.for_each(metrics::count_episode);
                return Ok(Some(played.into_values().collect()));
            }
            failures.pause().await;
        }
        Ok(None)
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
