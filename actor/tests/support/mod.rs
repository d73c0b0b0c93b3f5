//! Stand-ins for the two services: an environment, and a learner that hands out a fixed number of
//! groups.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

pub(crate) mod env;

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use actor::{ActorConfig, EngineSettings};
use futures::Stream;
use policy::{Model, Weights};
use proto::{
    EncodedEvaluation, EncodedGroup, Snapshot, Transport,
    v1::{
        ClaimRequest, ClaimResponse, Finished, GroupClaim, JoinRequest, JoinResponse, ModelFile,
        RolloutSettings, SamplingSettings, SubmitEvaluationResponse, SubmitResponse, SubmitVerdict,
        Trajectory, Wait, WeightsRequest, WeightsResponse,
        claim_response::Outcome,
        learner_server::{Learner, LearnerServer},
        weights_response::Part,
    },
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use env::{STEP_BUDGET, questions};

/// Returns the embedded policy with random weights.
pub(crate) fn model(seed: u64) -> Model {
    policy::embedded::model(seed).unwrap()
}

pub(crate) fn engine_settings(slots: usize, pass_tokens: usize) -> EngineSettings {
    EngineSettings {
        slots,
        pass_tokens,
        ..EngineSettings::default()
    }
}

pub(crate) fn config(slots: usize, concurrent_groups: usize) -> ActorConfig {
    ActorConfig {
        concurrent_groups,
        engine: engine_settings(slots, 64),
        ..ActorConfig::default()
    }
}

/// Hands out `groups` groups of `group_size`; the second half needs policy version 1, which is
/// published half-way.
#[derive(Clone)]
pub(crate) struct FakeLearner(Arc<LearnerState>);

struct LearnerState {
    model_files: Vec<ModelFile>,
    snapshots: Vec<Vec<u8>>,
    version: watch::Sender<u64>,
    over: watch::Sender<bool>,
    groups: u64,
    group_size: u32,
    claimed: Mutex<u64>,
    submitted: Mutex<BTreeMap<u64, Vec<Trajectory>>>,
    /// No submission is answered before so many groups are claimed.
    claims_before_answers: u64,
    max_context_tokens: u32,
    /// The number of streams of weights to come that break within their snapshot.
    breaking_streams: Mutex<u32>,
}

impl FakeLearner {
    pub(crate) fn new(model: &Model, later: &Weights, groups: u64, group_size: u32) -> Self {
        let file = |(name, content): &(String, Vec<u8>)| ModelFile {
            name: name.clone(),
            content: content.clone().into(),
        };
        Self(Arc::new(LearnerState {
            model_files: model.files.iter().map(file).collect(),
            snapshots: vec![model.weights.to_bytes().unwrap(), later.to_bytes().unwrap()],
            version: watch::Sender::new(0),
            over: watch::Sender::new(false),
            groups,
            group_size,
            claimed: Mutex::new(0),
            submitted: Mutex::default(),
            claims_before_answers: 0,
            max_context_tokens: 160,
            breaking_streams: Mutex::default(),
        }))
    }

    /// Answers no submission before so many groups are claimed.
    pub(crate) fn answering_after_claims(mut self, claims: u64) -> Self {
        let state = Arc::get_mut(&mut self.0).unwrap();
        state.claims_before_answers = claims;
        self
    }

    /// Limits contexts to so many tokens.
    pub(crate) fn with_context_tokens(mut self, tokens: u32) -> Self {
        let state = Arc::get_mut(&mut self.0).unwrap();
        state.max_context_tokens = tokens;
        self
    }

    /// Breaks the first streams of weights within their snapshot.
    pub(crate) fn breaking_streams(self, streams: u32) -> Self {
        *self.0.breaking_streams.lock().unwrap() = streams;
        self
    }

    pub(crate) fn transport(&self) -> Transport {
        Transport::in_process(LearnerServer::new(self.clone()))
    }

    /// Tells the actors' streams that the run is over.
    pub(crate) fn finish(&self) {
        self.0.over.send_replace(true);
    }

    /// Groups handed out so far.
    pub(crate) fn claimed(&self) -> u64 {
        *self.0.claimed.lock().unwrap()
    }

    pub(crate) fn submitted(&self) -> BTreeMap<u64, Vec<Trajectory>> {
        self.0.submitted.lock().unwrap().clone()
    }

    fn needs_version(&self, group: u64) -> u64 {
        u64::from(group >= self.0.groups / 2)
    }
}

#[tonic::async_trait]
impl Learner for FakeLearner {
    type WeightsStream = Pin<Box<dyn Stream<Item = Result<WeightsResponse, Status>> + Send>>;

    async fn join(&self, _request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        Ok(Response::new(JoinResponse {
            run_id: "test".to_owned(),
            max_leases_per_actor: 64,
            run_seed: 11,
            model_files: self.0.model_files.clone(),
            rollout: Some(RolloutSettings {
                sampling: Some(SamplingSettings {
                    temperature: 1.0,
                    top_k: 0,
                    top_p: 1.0,
                    min_p: 0.0,
                }),
                max_completion_tokens: 10,
                max_context_tokens: self.0.max_context_tokens,
                step_budget: STEP_BUDGET,
                reward_profile: String::new(),
                thinking: false,
                constraint: 0,
                shots: 0,
            }),
            policy_version: 0,
            replay_seconds: 0,
        }))
    }

    async fn claim(
        &self,
        request: Request<ClaimRequest>,
    ) -> Result<Response<ClaimResponse>, Status> {
        let mut claimed = self.0.claimed.lock().unwrap();
        let group = *claimed;
        let outcome = if group == self.0.groups
            || request.into_inner().policy_version < self.needs_version(group)
        {
            Outcome::Wait(Wait {
                retry_after_milliseconds: 5,
            })
        } else {
            *claimed += 1;
            Outcome::Group(GroupClaim {
                group_index: group,
                lease_id: group + 100,
                question_id: questions()[group as usize % 2].question_id.clone(),
                group_size: self.0.group_size,
                min_policy_version: self.needs_version(group),
                lease_seconds: 60,
            })
        };
        Ok(Response::new(ClaimResponse {
            outcome: Some(outcome),
        }))
    }

    async fn submit(
        &self,
        request: Request<EncodedGroup>,
    ) -> Result<Response<SubmitResponse>, Status> {
        let request = request.into_inner().decode().unwrap();
        assert_eq!(request.lease_id, request.group_index + 100);
        while *self.0.claimed.lock().unwrap() < self.0.claims_before_answers {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut submitted = self.0.submitted.lock().unwrap();
        submitted.insert(request.group_index, request.trajectories);
        if submitted.len() as u64 == self.0.groups / 2 {
            self.0.version.send_replace(1);
        }
        if submitted.len() as u64 == self.0.groups {
            self.finish();
        }
        Ok(Response::new(SubmitResponse {
            verdict: SubmitVerdict::Accepted as i32,
        }))
    }

    async fn submit_evaluation(
        &self,
        _request: Request<EncodedEvaluation>,
    ) -> Result<Response<SubmitEvaluationResponse>, Status> {
        Err(Status::unimplemented("this learner hands out groups only"))
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let (mut newest, mut over) = (self.0.version.subscribe(), self.0.over.subscribe());
        let wanted = request
            .into_inner()
            .after_version
            .map_or(0, |version| version + 1);
        // A stream that stays open without news would hide a lost wake-up; end it now and then.
        tokio::select! {
            _ = newest.wait_for(|version| *version >= wanted) => {}
            _ = over.wait_for(|over| *over) => {
                let part = Some(Part::Finished(Finished {}));
                let last = futures::stream::iter([Ok(WeightsResponse { part })]);
                return Ok(Response::new(Box::pin(last)));
            }
            () = tokio::time::sleep(Duration::from_secs(5)) => {
                return Err(Status::unavailable("no news"));
            }
        }
        let version = *newest.borrow();
        let snapshot = Snapshot::new(version, self.0.snapshots[version as usize].clone());
        let mut messages: Vec<_> = snapshot.messages().map(Ok).collect();
        let mut breaking = self.0.breaking_streams.lock().unwrap();
        if *breaking > 0 {
            *breaking -= 1;
            messages.pop();
        }
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }
}
