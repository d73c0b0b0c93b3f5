//! The actor's role: joins the learner, claims groups, plays them, hands them in.
//!
//! An actor keeps nothing that matters. What it was playing when it stops is given out again when the lease ends, and gives
//! the same trajectories on any actor that holds the same weights.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use candle_core::{DType, Device};
use futures::stream::{FuturesUnordered, StreamExt};
use policy::{ChatRole, Coordinates, Message, Model, Placement, SamplingSettings, Weights};
use proto::{
    EnvClient, LearnerClient,
    v1::{
        ClaimRequest, GroupClaim, JoinRequest, JoinResponse, RolloutSettings, SubmitRequest,
        SubmitVerdict, Trajectory, claim_response::Outcome,
    },
};
use tokio::sync::{Mutex, watch};

use crate::{
    config::ActorConfig,
    engine::Engine,
    episode_settings::{EpisodeSettings, EpisodeSpec},
    error::ActorError,
    metrics,
    model_policy::ModelPolicy,
    rollout::RolloutLimits,
    rollout_driver::run_episodes,
    weights::{Snapshot, Snapshots},
};

/// A group of long trajectories or a claim's reply may pass tonic's default of 4 MiB.
const MESSAGE_BYTES: usize = 256 << 20;

/// How often a member is played whose episode a service broke off; each time its calls are tried as often as configured.
const GROUP_ATTEMPTS: u32 = 3;

/// Plays the actor's role until the learner says the run is over or `shutdown` ends.
///
/// # Errors
/// The learner stays away or sends terms that cannot be met; broken episodes are no errors but unscored trajectories.
pub async fn run(
    env: EnvClient,
    learner: LearnerClient,
    actor_id: &str,
    config: ActorConfig,
    placement: Placement,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ActorError> {
    config.validate()?;
    metrics::describe();
    let learner = learner
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    tokio::select! {
        over = work(env, learner, actor_id, (&config, placement)) => over,
        () = shutdown => Ok(()),
    }
}

async fn work(
    env: EnvClient,
    learner: LearnerClient,
    actor_id: &str,
    (config, placement): (&ActorConfig, Placement),
) -> Result<(), ActorError> {
    let terms = join(&learner, actor_id, config).await?;
    let mut snapshots = Snapshots::new(learner.clone(), actor_id.to_owned(), config.learner_retry);
    let Some(first) = snapshots.next().await? else {
        return Ok(());
    };
    let (actor, published) =
        Actor::new(env, learner, actor_id, (config, placement), terms, &first)?;
    tokio::select! {
        over = actor.play_groups(config.concurrent_groups) => over,
        over = actor.follow(snapshots, published) => over,
    }
}

async fn join(
    learner: &LearnerClient,
    actor_id: &str,
    config: &ActorConfig,
) -> Result<JoinResponse, ActorError> {
    let request = JoinRequest {
        actor_id: actor_id.to_owned(),
    };
    config
        .learner_retry
        .call("Learner.Join", || {
            let (mut learner, request) = (learner.clone(), request.clone());
            async move { learner.join(request).await }
        })
        .await
}

/// A joined actor.
struct Actor {
    actor_id: String,
    run_seed: u64,
    learner: LearnerClient,
    config: ActorConfig,
    engine: Engine,
    settings: EpisodeSettings,
    policy: ModelPolicy,
    version: watch::Receiver<u64>,
}

impl Actor {
    fn new(
        env: EnvClient,
        learner: LearnerClient,
        actor_id: &str,
        (config, placement): (&ActorConfig, Placement),
        terms: JoinResponse,
        first: &Snapshot,
    ) -> Result<(Self, watch::Sender<u64>), ActorError> {
        let settings = terms.rollout.unwrap_or_default();
        let (limits, sampling) = checked(&settings)?;
        let files = terms
            .model_files
            .into_iter()
            .map(|file| (file.name, file.content));
        let model = Model::from_files(files.collect(), weights(first)?)?;
        // A template that cannot carry tool results shows here, not in every episode.
        model
            .chat
            .tool_suffix_ids(&[Message::new(ChatRole::Tool, "1. 1")])?;
        let engine = Engine::spawn(
            &model,
            first.policy_version,
            limits.max_context_tokens,
            &config.engine,
            placement,
        )?;
        metrics::set_policy_version(first.policy_version);
        let (published, version) = watch::channel(first.policy_version);
        tracing::info!(
            actor_id,
            run_id = terms.run_id,
            policy_version = first.policy_version,
            "joined"
        );
        let episode_settings = EpisodeSettings {
            env,
            chat: Arc::new(model.chat),
            limits,
            reward_profile: settings.reward_profile,
            step_budget: settings.step_budget,
            retry: config.env_retry,
        };
        let actor = Self {
            actor_id: actor_id.to_owned(),
            run_seed: terms.run_seed,
            learner,
            config: config.clone(),
            policy: ModelPolicy::new(engine.clone(), sampling),
            engine,
            settings: episode_settings,
            version,
        };
        Ok((actor, published))
    }

    /// Gives each new snapshot to the engine, until the run is over: what is still played then is of no use.
    async fn follow(
        &self,
        mut snapshots: Snapshots,
        published: watch::Sender<u64>,
    ) -> Result<(), ActorError> {
        while let Some(snapshot) = snapshots.next().await? {
            self.engine
                .update_weights(snapshot.policy_version, weights(&snapshot)?)
                .await?;
            metrics::set_policy_version(snapshot.policy_version);
            published.send_replace(snapshot.policy_version);
        }
        Ok(())
    }

    /// Plays until one loop hears that the run is over, or fails: what the others still play is of no use then.
    async fn play_groups(&self, concurrent_groups: usize) -> Result<(), ActorError> {
        let claimer = Mutex::new(());
        let mut loops: FuturesUnordered<_> = (0..concurrent_groups)
            .map(|_| self.play_one_after_another(&claimer))
            .collect();
        loops.next().await.unwrap_or(Ok(()))
    }

    /// Only the loop that holds `claimer` asks for work, so that an idle actor asks no more often than it was told.
    async fn play_one_after_another(&self, claimer: &Mutex<()>) -> Result<(), ActorError> {
        loop {
            let claim = {
                let _turn = claimer.lock().await;
                self.next_group().await?
            };
            let Some(claim) = claim else {
                return Ok(());
            };
            let trajectories = self.play_group(&claim).await?;
            self.submit(&claim, trajectories).await?;
        }
    }

    /// Asks until there is a group to play; none if the run is over.
    async fn next_group(&self) -> Result<Option<GroupClaim>, ActorError> {
        loop {
            match self.claim().await? {
                // Handed out before a restart that took the learner to an older version: it is void.
                Some(Outcome::Group(claim)) if claim.min_policy_version > self.version() => {}
                Some(Outcome::Group(claim)) => return Ok(Some(claim)),
                Some(Outcome::Wait(wait)) => self.idle(wait.retry_after_milliseconds).await,
                Some(Outcome::Finished(_)) => return Ok(None),
                None => {
                    let status = tonic::Status::internal("a claim without an outcome");
                    return Err(ActorError::call("Learner.Claim", status));
                }
            }
        }
    }

    fn version(&self) -> u64 {
        *self.version.borrow()
    }

    async fn claim(&self) -> Result<Option<Outcome>, ActorError> {
        let response = self
            .config
            .learner_retry
            .call("Learner.Claim", || {
                let mut learner = self.learner.clone();
                let request = ClaimRequest {
                    actor_id: self.actor_id.clone(),
                    policy_version: self.version(),
                };
                async move { learner.claim(request).await }
            })
            .await?;
        Ok(response.outcome)
    }

    /// Waits as told, or for new weights: they are what a stale actor waits for.
    async fn idle(&self, milliseconds: u32) {
        metrics::record_idle(milliseconds);
        let mut version = self.version.clone();
        // The clone has seen no change since the first weights; without this it would not wait.
        version.mark_unchanged();
        let pause = Duration::from_millis(milliseconds.into());
        // Either way it is time to ask again.
        let _ = tokio::time::timeout(pause, version.changed()).await;
    }

    /// Plays a group. Members that a call broke off are played again, since an unscored one teaches nothing.
    async fn play_group(&self, claim: &GroupClaim) -> Result<Vec<Trajectory>, ActorError> {
        let mut unplayed: Vec<EpisodeSpec> = (0..claim.group_size)
            .map(|member| self.episode_spec(claim, member))
            .collect();
        let mut group = BTreeMap::new();
        for _ in 0..GROUP_ATTEMPTS {
            let outcomes = run_episodes(
                &self.policy,
                &self.settings,
                &unplayed,
                unplayed.len(),
                metrics::count_episode,
            )
            .await;
            let mut broken = Vec::new();
            for (spec, outcome) in unplayed.into_iter().zip(outcomes) {
                match outcome.error {
                    // Without an engine nothing can be sampled, and the agent is not to blame.
                    Some(gone @ ActorError::Engine(_)) => return Err(gone),
                    Some(error) if error.is_call_failure() => {
                        tracing::warn!(%error, group = claim.group_index, "an episode broke off");
                        broken.push(spec);
                    }
                    _ => {}
                }
                group.insert(outcome.trajectory.member, outcome.trajectory);
            }
            unplayed = broken;
            if unplayed.is_empty() {
                break;
            }
        }
        Ok(group.into_values().collect())
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

    /// Hands a group in; safe to repeat, and the verdict is for the learner's books.
    async fn submit(
        &self,
        claim: &GroupClaim,
        trajectories: Vec<Trajectory>,
    ) -> Result<(), ActorError> {
        let request = SubmitRequest {
            actor_id: self.actor_id.clone(),
            group_index: claim.group_index,
            lease_id: claim.lease_id,
            trajectories,
        };
        let response = self
            .config
            .learner_retry
            .call("Learner.Submit", || {
                let (mut learner, request) = (self.learner.clone(), request.clone());
                async move { learner.submit(request).await }
            })
            .await?;
        metrics::count_group(verdict_name(response.verdict()));
        Ok(())
    }
}

fn weights(snapshot: &Snapshot) -> Result<Weights, ActorError> {
    Weights::from_bytes(&snapshot.body, &Device::Cpu, DType::F32).map_err(|error| {
        ActorError::Snapshot {
            policy_version: snapshot.policy_version,
            reason: error.to_string(),
        }
    })
}

fn verdict_name(verdict: SubmitVerdict) -> &'static str {
    match verdict {
        SubmitVerdict::Unspecified => "unspecified",
        SubmitVerdict::Accepted => "accepted",
        SubmitVerdict::Duplicate => "duplicate",
        SubmitVerdict::Stale => "stale",
    }
}

/// The learner's terms as limits and sampling settings.
fn checked(settings: &RolloutSettings) -> Result<(RolloutLimits, SamplingSettings), ActorError> {
    for (field, value) in [
        (
            "rollout.max_completion_tokens",
            settings.max_completion_tokens,
        ),
        ("rollout.max_context_tokens", settings.max_context_tokens),
    ] {
        if value == 0 {
            let reason =
                "the learner sent 0, need 1 or more: set it in the learner's config".to_owned();
            return Err(ActorError::Setting { field, reason });
        }
    }
    let sampling = settings
        .sampling
        .map_or_else(SamplingSettings::default, |sampling| SamplingSettings {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
        });
    sampling.validate()?;
    let limits = RolloutLimits {
        max_completion_tokens: settings.max_completion_tokens as usize,
        max_context_tokens: settings.max_context_tokens as usize,
        shots: settings.shots as usize,
    };
    Ok((limits, sampling))
}
