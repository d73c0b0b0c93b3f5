//! Plays whole episodes over the in-process transport, with typed input and captured output.

use data::AnswerType;
use learner::config::RolloutConfig;
use proto::{
    EnvClient, Transport,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, Observation,
        ReplayRequest, ReplayResponse, ResetRequest, ResetResponse, StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use serde_json::json;
use tonic::{Request, Response, Status};

use super::{Asked, person::play_episode};

/// An environment that has only episodes of two actions and one reward profile. The correct answer
/// is 39. The token counts the steps.
struct TwoSteps;

const PROFILE: &str = "sqlenv-final";

#[tonic::async_trait]
impl Env for TwoSteps {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let ResetRequest {
            question_id,
            step_budget,
            reward_profile,
            ..
        } = request.into_inner();
        if (step_budget, reward_profile.as_str()) != (2, PROFILE) {
            return Err(Status::invalid_argument("another budget or profile"));
        }
        if question_id != "q1" {
            return Err(Status::not_found(format!("no question {question_id:?}")));
        }
        Ok(Response::new(ResetResponse {
            token: vec![0],
            episode_id: "e".to_owned(),
            question_id,
            observation: Some(Observation {
                question: "What is the mean age?".to_owned(),
                schema_info: "Available tables:\n- singer".to_owned(),
                budget_remaining: 2,
                ..Observation::default()
            }),
        }))
    }

    async fn replay(&self, _: Request<ReplayRequest>) -> Result<Response<ReplayResponse>, Status> {
        Err(Status::unimplemented("an older node"))
    }

    async fn step(&self, request: Request<StepRequest>) -> Result<Response<StepResponse>, Status> {
        let StepRequest { token, action } = request.into_inner();
        let action = action.ok_or_else(|| Status::invalid_argument("no action"))?;
        let answered = action.action_type == "ANSWER";
        let correct = answered && action.argument == "39";
        let step_count = u32::from(token[0]) + 1;
        Ok(Response::new(StepResponse {
            token: vec![token[0] + 1],
            observation: Some(Observation {
                result: format!("{} {}", action.action_type, action.argument),
                step_count,
                budget_remaining: 2 - step_count,
                done: answered || step_count == 2,
                reward: Some(if correct { 1.0 } else { 0.25 }),
                ..Observation::default()
            }),
            reward_components: None,
            correct,
        }))
    }

    async fn list_questions(
        &self,
        _: Request<ListQuestionsRequest>,
    ) -> Result<Response<ListQuestionsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn info(&self, _: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}

/// Plays a question with this input, and returns what is shown.
async fn played(question_id: &str, typed: &str) -> anyhow::Result<String> {
    let gold = data::Question {
        question_id: question_id.to_owned(),
        question_text: "What is the mean age?".to_owned(),
        database_name: "concerts".to_owned(),
        gold_sql: format!("SELECT gold of {question_id}"),
        gold_answer: json!(39),
        answer_type: AnswerType::Integer,
        difficulty: "easy".to_owned(),
        tables_involved: vec!["singer".to_owned()],
        split: "train".to_owned(),
    };
    let asked = Asked {
        env: EnvClient::new(Transport::in_process(EnvServer::new(TwoSteps))),
        question: env_node::question(&gold),
        gold: Some(gold),
    };
    let rollout = RolloutConfig {
        step_budget: 2,
        reward_profile: PROFILE.to_owned(),
        ..RolloutConfig::default()
    };
    let mut shown = Vec::new();
    play_episode(asked, &rollout, typed.as_bytes(), &mut shown).await?;
    Ok(String::from_utf8(shown)?)
}

#[tokio::test]
async fn an_episode_is_played_to_its_end() {
    let typed = "\nhuh\nhelp\nd singer\na 39\nnever read\n";
    let shown = played("q1", typed).await.unwrap();
    let order = [
        "What is the mean age?",
        "- singer",
        "2 actions left",
        "is unknown",
        "DESCRIBE singer",
        "1 action left",
        "Right! Return +1.250.",
        "Gold answer: 39",
        "SELECT gold of q1",
    ];
    let mut rest = shown.as_str();
    for part in order {
        let at = rest
            .find(part)
            .unwrap_or_else(|| panic!("{part:?} is missing or out of order in:\n{shown}"));
        rest = &rest[at + part.len()..];
    }
}

#[tokio::test]
async fn the_budget_ends_an_episode_without_an_answer() {
    let shown = played("q1", "d singer\nselect 1\n").await.unwrap();
    assert!(shown.contains("Not right. Return +0.500."), "{shown}");
}

#[tokio::test]
async fn leaving_tells_no_gold() {
    for typed in ["quit\n", "d singer\n"] {
        let shown = played("q1", typed).await.unwrap();
        assert!(
            shown.contains("Left before the end.") && !shown.contains("Gold"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn an_unknown_question_is_an_error_that_names_it() {
    let error = format!("{:#}", played("q2", "").await.unwrap_err());
    assert_eq!(error, "cannot start an episode: no question \"q2\"");
}
