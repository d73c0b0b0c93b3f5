//! An environment with one table `book`, as a stand-in for env-node.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actor::{EpisodeSettings, ExpectedEnvironment, Retry, RolloutLimits};
use policy::Model;
use proto::{
    Transport, env_client,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, Observation,
        Question, ReplayRequest, ReplayResponse, ResetRequest, ResetResponse, RewardComponents,
        StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

pub(crate) const STEP_BUDGET: u32 = 6;

/// Has two questions about one table `book`. The question `q-down` does not exist.
#[derive(Clone, Default)]
pub(crate) struct FakeEnv {
    hangs: bool,
    fail_every: usize,
    restart_every: usize,
    /// The first resets of each episode of member 1 that fail.
    failing_resets: usize,
    /// For how long, from the first Reset on, resets fail, and by which code.
    away: Option<(Duration, Code)>,
    /// After how many resets each one is refused, and by which status.
    refusal: Option<(usize, Status)>,
    calls: Arc<Mutex<usize>>,
    resets: Arc<Mutex<BTreeMap<String, usize>>>,
    first_reset: Arc<Mutex<Option<Instant>>>,
}

impl FakeEnv {
    /// Returns an environment in which every n-th call fails with UNAVAILABLE.
    pub(crate) fn failing(every: usize) -> Self {
        Self {
            fail_every: every,
            ..Self::default()
        }
    }

    /// Returns an environment that changes its key after every n-th call, and then rejects older
    /// tokens.
    pub(crate) fn restarting(every: usize) -> Self {
        Self {
            restart_every: every,
            ..Self::default()
        }
    }

    /// Returns an environment that cannot serve the episodes of member 1 so many times.
    pub(crate) fn failing_member(failing_resets: usize) -> Self {
        Self {
            failing_resets,
            ..Self::default()
        }
    }

    /// Returns an environment that serves no episode for this time from the first Reset on.
    pub(crate) fn away_for(time: Duration, code: Code) -> Self {
        Self {
            away: Some((time, code)),
            ..Self::default()
        }
    }

    /// Returns an environment that refuses its callers after so many resets.
    pub(crate) fn refusing_after(resets: usize, status: Status) -> Self {
        Self {
            refusal: Some((resets, status)),
            ..Self::default()
        }
    }

    /// Returns an environment that never responds to a step.
    pub(crate) fn hanging() -> Self {
        Self {
            hangs: true,
            ..Self::default()
        }
    }

    /// Returns the number of the current key.
    fn key(&self) -> usize {
        let calls = *self.calls.lock().unwrap();
        calls.checked_div(self.restart_every).unwrap_or(0)
    }

    pub(crate) fn transport(self) -> Transport {
        Transport::in_process(EnvServer::new(self))
    }

    /// Returns how often each episode was reset, by its id.
    pub(crate) fn resets(&self) -> BTreeMap<String, usize> {
        self.resets.lock().unwrap().clone()
    }

    fn count_call(&self) -> Result<(), Status> {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        if self.fail_every > 0 && calls.is_multiple_of(self.fail_every) {
            return Err(Status::unavailable("the node restarts"));
        }
        Ok(())
    }

    fn count_reset(&self, episode_id: String) -> Result<(), Status> {
        let of_member_1 = episode_id.ends_with("/1");
        let mut resets = self.resets.lock().unwrap();
        let count = resets.entry(episode_id).or_default();
        *count += 1;
        if of_member_1 && *count <= self.failing_resets {
            return Err(Status::unavailable("no memory for this episode"));
        }
        if let Some((time, code)) = self.away {
            let mut first = self.first_reset.lock().unwrap();
            if first.get_or_insert_with(Instant::now).elapsed() < time {
                return Err(Status::new(code, "the node starts"));
            }
        }
        match &self.refusal {
            Some((served, status)) if resets.values().sum::<usize>() > *served => {
                Err(status.clone())
            }
            _ => Ok(()),
        }
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
        self.count_call()?;
        let request = request.into_inner();
        self.count_reset(request.episode_id)?;
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

    async fn replay(&self, _: Request<ReplayRequest>) -> Result<Response<ReplayResponse>, Status> {
        Err(Status::unimplemented("an older node"))
    }

    /// The token is the key's number, `:`, the question id, one `+` per env step, and `d` once the
    /// table is described.
    async fn step(&self, request: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        self.count_call()?;
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
            ("QUERY", sql) if sql.contains("max") => ("1. 812".to_owned(), ""),
            ("QUERY", sql) if sql.contains("count") => ("1. 9".to_owned(), ""),
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

/// Returns settings of episodes on the fake environment.
pub(crate) fn episode_settings(
    model: &Model,
    env: FakeEnv,
    limits: RolloutLimits,
) -> EpisodeSettings {
    EpisodeSettings {
        env: env_client(env.transport()),
        chat: Arc::new(model.chat.clone()),
        limits,
        reward_profile: String::new(),
        step_budget: 0,
        expected: ExpectedEnvironment::default(),
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
