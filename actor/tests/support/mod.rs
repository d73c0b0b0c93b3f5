//! Stand-ins for the two services: an environment of one table, and a learner that hands out a fixed number of groups.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use actor::{EngineSettings, Retry, RolloutLimits, Table};
use futures::Stream;
use policy::{Model, Weights};
use proto::{
    EncodedGroup, EnvClient, LearnerClient, Snapshot, Transport,
    v1::{
        ClaimRequest, ClaimResponse, Finished, GroupClaim, InfoRequest, InfoResponse, JoinRequest,
        JoinResponse, ListQuestionsRequest, ListQuestionsResponse, ModelFile, Observation,
        Question, ResetRequest, ResetResponse, RewardComponents, RolloutSettings, SamplingSettings,
        StepRequest, StepResponse, SubmitResponse, SubmitVerdict, Trajectory, Wait, WeightsRequest,
        WeightsResponse,
        claim_response::Outcome,
        env_server::{Env, EnvServer},
        learner_server::{Learner, LearnerServer},
        weights_response::Part,
    },
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

pub(crate) const STEP_BUDGET: u32 = 6;

/// The embedded policy with random weights.
pub(crate) fn model(seed: u64) -> Model {
    policy::tiny::model(seed).unwrap()
}

/// Two questions about one table `book`; question `q-down` is always unavailable.
#[derive(Clone, Default)]
pub(crate) struct FakeEnv {
    hangs: bool,
    falter_every: usize,
    restart_every: usize,
    calls: Arc<Mutex<usize>>,
}

impl FakeEnv {
    /// An environment of which every n-th call fails with UNAVAILABLE.
    pub(crate) fn faltering(every: usize) -> Self {
        Self {
            falter_every: every,
            ..Self::default()
        }
    }

    /// An environment that takes a new key after every n-th call: tokens from before are refused.
    pub(crate) fn restarting(every: usize) -> Self {
        Self {
            restart_every: every,
            ..Self::default()
        }
    }

    /// An environment that never answers a step.
    pub(crate) fn hanging() -> Self {
        Self {
            hangs: true,
            ..Self::default()
        }
    }

    /// The number of the key in use.
    fn key(&self) -> usize {
        let calls = *self.calls.lock().unwrap();
        calls.checked_div(self.restart_every).unwrap_or(0)
    }

    pub(crate) fn client(self) -> EnvClient {
        EnvClient::new(Transport::in_process(EnvServer::new(self)))
    }

    fn falter(&self) -> Result<(), Status> {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        if self.falter_every > 0 && calls.is_multiple_of(self.falter_every) {
            return Err(Status::unavailable("the node restarts"));
        }
        Ok(())
    }
}

const LISTED: &str = "Available tables:\n- book";
const COLUMNS: &str = "Table 'book' columns:\n- title: TEXT\n- pages: INTEGER";

fn gold(question_id: &str) -> &'static str {
    if question_id == "q-max" { "812" } else { "9" }
}

#[tonic::async_trait]
impl Env for FakeEnv {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        self.falter()?;
        let request = request.into_inner();
        if request.question_id == "q-down" {
            return Err(Status::not_found("no question q-down"));
        }
        Ok(Response::new(ResetResponse {
            token: format!("{}:{}", self.key(), request.question_id).into_bytes(),
            episode_id: String::new(),
            observation: Some(Observation {
                question: format!("What is {}?", request.question_id),
                schema_info: LISTED.to_owned(),
                budget_remaining: STEP_BUDGET,
                ..Observation::default()
            }),
            question_id: request.question_id,
        }))
    }

    /// The token is the key's number, `:`, the question id, then one `+` a step, then `d` once the table is described.
    async fn step(&self, request: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        self.falter()?;
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let StepRequest { token, action } = request.into_inner();
        let action = action.unwrap();
        let token = String::from_utf8(token).unwrap();
        let (key, token) = token.split_once(':').unwrap();
        if key != self.key().to_string() {
            return Err(Status::unauthenticated(
                "token was sealed under another key",
            ));
        }
        let question_id = token.trim_end_matches(['+', 'd']).to_owned();
        let step_count = token.matches('+').count() as u32 + 1;
        let is_answer = action.action_type == "ANSWER";
        let correct = is_answer && action.argument == gold(&question_id);
        let (result, error) = match (action.action_type.as_str(), action.argument.as_str()) {
            ("DESCRIBE", "book") => (format!("{COLUMNS}\nRow count: 9"), ""),
            ("SAMPLE", "book") => ("1. Moby Dick | 812\n2. Emma | 474".to_owned(), ""),
            ("QUERY", sql) if sql.contains("MAX") => ("1. 812".to_owned(), ""),
            ("QUERY", sql) if sql.contains("COUNT") => ("1. 9".to_owned(), ""),
            ("QUERY", _) => (String::new(), "SQL error: near \"x\": syntax error"),
            ("ANSWER", _) => (String::new(), ""),
            _ => (String::new(), "Table not found. Available tables: book"),
        };
        let described =
            token.ends_with('d') || (action.action_type == "DESCRIBE" && error.is_empty());
        let reward = if correct { 1.0 } else { 0.01 };
        Ok(Response::new(StepResponse {
            token: format!(
                "{key}:{question_id}{}{}",
                "+".repeat(step_count as usize),
                if described { "d" } else { "" }
            )
            .into_bytes(),
            observation: Some(Observation {
                question: String::new(),
                schema_info: if described {
                    format!("{LISTED}\n{COLUMNS}")
                } else {
                    LISTED.to_owned()
                },
                result,
                error: error.to_owned(),
                step_count,
                budget_remaining: STEP_BUDGET - step_count,
                done: is_answer || step_count == STEP_BUDGET,
                reward: Some(reward),
                ..Observation::default()
            }),
            reward_components: Some(RewardComponents {
                terminal: reward,
                ..RewardComponents::default()
            }),
            correct,
        }))
    }

    /// One question a page.
    async fn list_questions(
        &self,
        request: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        let all = questions();
        let index: usize = request.into_inner().page_token.parse().unwrap_or(0);
        let next = index + 1;
        Ok(Response::new(ListQuestionsResponse {
            questions: vec![all[index].clone()],
            next_page_token: if next < all.len() {
                next.to_string()
            } else {
                String::new()
            },
            total_size: all.len() as u32,
        }))
    }

    async fn info(&self, _request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Ok(Response::new(InfoResponse::default()))
    }
}

pub(crate) fn questions() -> Vec<Question> {
    [("q-max", "level-1"), ("q-count", "level-0")]
        .map(|(id, level)| Question {
            question_id: id.to_owned(),
            question_text: format!("What is {id}?"),
            database_name: "library".to_owned(),
            split: "eval".to_owned(),
            difficulty: level.to_owned(),
        })
        .to_vec()
}

/// The terms of episodes against a fake environment.
pub(crate) fn table(model: &Model, env: FakeEnv, limits: RolloutLimits) -> Table {
    Table {
        env: env.client(),
        chat: Arc::new(model.chat.clone()),
        limits,
        reward_profile: String::new(),
        step_budget: 0,
        retry: Retry::default(),
    }
}

pub(crate) fn limits(max_completion_tokens: usize, max_context_tokens: usize) -> RolloutLimits {
    RolloutLimits {
        max_completion_tokens,
        max_context_tokens,
        shots: 0,
    }
}

pub(crate) fn engine_settings(slots: usize, pass_tokens: usize) -> EngineSettings {
    EngineSettings {
        slots,
        pass_tokens,
        ..EngineSettings::default()
    }
}

/// Hands out `groups` groups of `group_size`; the second half needs policy version 1, which is published half-way.
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
}

impl FakeLearner {
    pub(crate) fn new(model: &Model, later: &Weights, groups: u64, group_size: u32) -> Self {
        let file = |(name, content): &(String, Vec<u8>)| ModelFile {
            name: name.clone(),
            content: content.clone(),
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
        }))
    }

    pub(crate) fn client(&self) -> LearnerClient {
        let server = LearnerServer::new(self.clone());
        LearnerClient::new(Transport::in_process(server))
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
                max_context_tokens: 160,
                step_budget: STEP_BUDGET,
                reward_profile: String::new(),
                shots: 0,
            }),
            policy_version: 0,
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
        let messages: Vec<_> = snapshot.messages().map(Ok).collect();
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }
}
