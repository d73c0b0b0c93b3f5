//! A small model, and actors that act by themselves or call by call. The tests share them.

use std::{path::Path, sync::Arc, time::Duration};

use learner::{
    Learner, LearnerConfig, ReportedEvent, RunArguments, TrainEvent, TrainingQuestion,
    config::CheckpointConfig, questions::RepeatSettings,
};
use policy::{DecoderConfig, Model, Weights};
use proto::{
    EncodedEvaluation, EncodedGroup, LearnerClient, Transport,
    v1::{
        ClaimRequest, EvaluationClaim, GroupClaim, JoinRequest, JoinResponse, RewardComponents,
        Segment, SubmitEvaluationRequest, SubmitRequest, SubmitVerdict, Trajectory, Turn,
        WeightsRequest, WeightsResponse, claim_response::Outcome,
    },
};
use tokio::sync::{Notify, mpsc};
use tonic::{Status, Streaming};

/// A Qwen3 of two layers and width 32 with the embedded policy's text files.
pub(crate) fn small_model(seed: u64) -> Model {
    resized_model(seed, |full| DecoderConfig {
        hidden_size: 32,
        intermediate_size: 64,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        ..full
    })
}

/// A model of random weights, with the embedded policy's text files and its config after `resize`.
pub(crate) fn resized_model(
    seed: u64,
    resize: impl FnOnce(DecoderConfig) -> DecoderConfig,
) -> Model {
    let mut files = policy::embedded::files();
    let (_, bytes) = files
        .iter_mut()
        .find(|(name, _)| name == "config.json")
        .unwrap();
    let full = DecoderConfig::from_json(std::str::from_utf8(bytes).unwrap()).unwrap();
    let config = resize(full);
    *bytes = config.to_json().into_bytes();
    let weights = Weights::random(&config, seed).unwrap();
    Model::from_files(files, weights).unwrap()
}

/// A run of a few quick steps.
pub(crate) fn small_config() -> LearnerConfig {
    let mut config = LearnerConfig {
        steps: 4,
        groups_per_step: 3,
        group_size: 4,
        micro_batch_tokens: 64,
        // So that every test of a run has questions that come back.
        repeat: RepeatSettings {
            times: 2,
            after_steps: 2,
        },
        checkpoint: CheckpointConfig {
            every_steps: 1,
            keep_last: 10,
        },
        ..LearnerConfig::default()
    };
    config.optimizer.learning_rate = 1e-3;
    config.rollout.max_completion_tokens = 16;
    config.rollout.max_context_tokens = 64;
    config
}

pub(crate) fn questions() -> Vec<TrainingQuestion> {
    let question = |number| TrainingQuestion::new(&format!("question-{number}"), "easy");
    (0..7).map(question).collect()
}

fn mixed(parts: [u64; 4]) -> u64 {
    let mix = |state: u64, part: u64| {
        (state ^ part)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    parts.into_iter().fold(0x5151, mix)
}

/// The turns that sampled what `mask` says: one for each run of sampled tokens, and at least one.
pub(crate) fn turns(mask: &[u8], turn: &Turn) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (at, _) in mask.iter().enumerate().filter(|(_, mask)| **mask == 1) {
        match turns.last_mut() {
            Some(last) if last.completion_start + last.completion_tokens == at as u32 => {
                last.completion_tokens += 1;
            }
            _ => turns.push(Turn {
                completion_start: at as u32,
                completion_tokens: 1,
                ..turn.clone()
            }),
        }
    }
    if turns.is_empty() {
        turns.push(turn.clone());
    }
    turns
}

/// A group as a function of its question, its index and the version that sampled it; about one in
/// four has zero variance.
pub(crate) fn group(claim: &GroupClaim, version: u64) -> Vec<Trajectory> {
    let bytes = claim.question_id.bytes();
    let rollout = bytes.fold(claim.group_index, |state, byte| {
        mixed([state, byte.into(), 0, 0])
    });
    let dull = mixed([rollout, version, 0, 0]).is_multiple_of(4);
    (0..claim.group_size)
        .map(|member| {
            let draw = |at: u64| mixed([rollout, version, u64::from(member), at]);
            let length = 6 + draw(100) as usize % 20;
            let mask: Vec<u8> = (0..length)
                .map(|at| u8::from(at >= 3 && at != length / 2))
                .collect();
            let correct = !dull && draw(7).is_multiple_of(2);
            let terminal = f64::from(u8::from(correct));
            let turn = Turn {
                policy_version: version,
                ..Turn::default()
            };
            let mut turns = turns(&mask, &turn);
            turns[0].reward_components = Some(RewardComponents {
                terminal,
                ..RewardComponents::default()
            });
            let segment = Segment {
                tokens: (0..length as u64)
                    .map(|at| 300 + (draw(at) % 500) as u32)
                    .collect(),
                logprobs: mask
                    .iter()
                    .map(|&sampled| -6.5 * f32::from(sampled))
                    .collect(),
                mask,
            };
            Trajectory {
                member,
                segments: vec![segment],
                turns,
                episode_return: terminal,
                correct,
                scored: true,
                question_id: claim.question_id.clone(),
                failure: String::new(),
                failure_is_final: false,
            }
        })
        .collect()
}

/// The episodes of a part of an evaluation, each with the tokens of a group's first member.
pub(crate) fn evaluated(claim: &EvaluationClaim, version: u64) -> Vec<Trajectory> {
    let episode = |question_id: &String| {
        let claim = GroupClaim {
            question_id: question_id.clone(),
            group_size: 1,
            ..GroupClaim::default()
        };
        let episode = group(&claim, version).remove(0);
        Trajectory {
            question_id: question_id.clone(),
            ..episode
        }
    };
    claim.question_ids.iter().map(episode).collect()
}

/// An actor that a test drives call by call.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) learner: LearnerClient,
    pub(crate) name: String,
    pub(crate) run_id: String,
}

impl Client {
    /// Calls a learner in this process.
    pub(crate) fn new(learner: &Learner, name: &str) -> Self {
        Self::over(Transport::in_process(learner.service()), learner, name)
    }

    /// Calls a learner over `transport`.
    pub(crate) fn over(transport: Transport, learner: &Learner, name: &str) -> Self {
        Self {
            learner: LearnerClient::new(transport),
            name: name.to_owned(),
            run_id: learner.run_id().to_owned(),
        }
    }

    /// Joins without an identity.
    pub(crate) async fn join(&mut self) -> Result<JoinResponse, Status> {
        let request = JoinRequest {
            actor_id: self.name.clone(),
            identity: None,
        };
        Ok(self.learner.join(request).await?.into_inner())
    }

    /// Claims with the weights of a version.
    pub(crate) async fn claim(&mut self, policy_version: u64) -> Result<Outcome, Status> {
        let request = ClaimRequest {
            actor_id: self.name.clone(),
            policy_version,
            run_id: self.run_id.clone(),
            ..ClaimRequest::default()
        };
        let response = self.learner.claim(request).await?.into_inner();
        Ok(response.outcome.unwrap())
    }

    /// Claims with the first weights, for which the learner must have a group.
    pub(crate) async fn claim_group(&mut self) -> GroupClaim {
        match self.claim(0).await.unwrap() {
            Outcome::Group(claim) => claim,
            other => panic!("expected a group, got {other:?}"),
        }
    }

    /// Submits a group under the lease of `claim`.
    pub(crate) async fn submit(
        &mut self,
        claim: &GroupClaim,
        trajectories: Vec<Trajectory>,
    ) -> Result<SubmitVerdict, Status> {
        let request = SubmitRequest {
            actor_id: self.name.clone(),
            group_index: claim.group_index,
            lease_id: claim.lease_id,
            trajectories,
            run_id: self.run_id.clone(),
        };
        let response = self.learner.submit(EncodedGroup::from(&request)).await?;
        Ok(response.into_inner().verdict())
    }

    /// Submits a part of an evaluation under the lease of `claim`.
    pub(crate) async fn submit_evaluation(
        &mut self,
        claim: &EvaluationClaim,
        trajectories: Vec<Trajectory>,
    ) -> Result<(), Status> {
        let request = SubmitEvaluationRequest {
            actor_id: self.name.clone(),
            run_id: self.run_id.clone(),
            part_id: claim.part_id,
            lease_id: claim.lease_id,
            trajectories,
        };
        let request = EncodedEvaluation::from(&request);
        self.learner.submit_evaluation(request).await.map(drop)
    }

    /// Returns a request for the weights that are newer than a version.
    pub(crate) fn weights_request(&self, after_version: Option<u64>) -> WeightsRequest {
        WeightsRequest {
            actor_id: self.name.clone(),
            after_version,
            run_id: self.run_id.clone(),
        }
    }

    /// Opens the stream of the weights that are newer than a version.
    pub(crate) async fn weights(
        &mut self,
        after_version: Option<u64>,
    ) -> Result<Streaming<WeightsResponse>, Status> {
        let request = self.weights_request(after_version);
        Ok(self.learner.weights(request).await?.into_inner())
    }
}

/// Claims and submits until it is aborted.
pub(crate) async fn actor(learner: Learner, name: String) {
    act(learner, name, group).await;
}

/// Claims, and submits the groups that `play` makes.
pub(crate) async fn act(
    learner: Learner,
    name: String,
    play: fn(&GroupClaim, u64) -> Vec<Trajectory>,
) {
    let mut client = Client::new(&learner, &name);
    loop {
        let policy_version = learner.snapshot().policy_version;
        match client.claim(policy_version).await.unwrap() {
            Outcome::Wait(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            Outcome::Group(claim) => {
                let trajectories = play(&claim, policy_version);
                client.submit(&claim, trajectories).await.unwrap();
            }
            Outcome::Evaluation(claim) => {
                let trajectories = evaluated(&claim, policy_version);
                client
                    .submit_evaluation(&claim, trajectories)
                    .await
                    .unwrap();
            }
        }
    }
}

/// Returns where a run reports to if no test reads it.
pub(crate) fn unread_events() -> mpsc::Sender<ReportedEvent> {
    let (sender, mut events) = mpsc::channel::<ReportedEvent>(1);
    tokio::spawn(async move {
        while let Some((_, recorded)) = events.recv().await {
            let _ = recorded.send(());
        }
    });
    sender
}

/// Trains with `actors` actors, stopping after step `stop_after`; returns the events and the last
/// snapshot's bytes.
pub(crate) async fn train(
    learner: &Learner,
    actors: usize,
    stop_after: Option<u64>,
) -> (Vec<TrainEvent>, Vec<u8>) {
    let tasks: Vec<_> = (0..actors)
        .map(|number| tokio::spawn(actor(learner.clone(), format!("actor-{number}"))))
        .collect();
    let (sender, mut receiver) = mpsc::channel::<ReportedEvent>(1);
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let watcher = tokio::spawn(async move {
        let mut events = Vec::new();
        while let Some((event, recorded)) = receiver.recv().await {
            if matches!(&event, TrainEvent::Step { step, .. } if Some(*step) == stop_after) {
                stop.notify_one();
            }
            events.push(event);
            let _ = recorded.send(());
        }
        events
    });
    learner
        .train(sender, async move { stopped.notified().await })
        .await
        .unwrap();
    let events = watcher.await.unwrap();
    for task in tasks {
        task.abort();
        // It holds the run open until it has ended; it may have panicked.
        let _ = task.await;
    }
    (events, learner.snapshot().body().to_vec())
}

pub(crate) const ARGUMENTS: RunArguments = RunArguments {
    seed: 5,
    threads: 1,
};

pub(crate) fn open(config: LearnerConfig, folder: &Path) -> learner::Result<Learner> {
    open_with(config, ARGUMENTS, folder)
}

pub(crate) fn open_with(
    config: LearnerConfig,
    arguments: RunArguments,
    folder: &Path,
) -> learner::Result<Learner> {
    Learner::open(config, arguments, small_model(1), questions(), folder)
}
