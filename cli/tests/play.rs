//! Plays whole episodes over the in-process transport, with typed input and captured output.

use cli::play::{PlayResult, RevealedGold, play};
use proto::{
    EnvClient, Transport,
    v1::{
        InfoRequest, InfoResponse, ListQuestionsRequest, ListQuestionsResponse, Observation,
        ReplayRequest, ReplayResponse, ResetRequest, ResetResponse, StepRequest, StepResponse,
        env_server::{Env, EnvServer},
    },
};
use tonic::{Request, Response, Status};

/// An environment with a budget of two actions. The correct answer is 39. The token counts the
/// steps.
struct TwoSteps;

#[tonic::async_trait]
impl Env for TwoSteps {
    async fn reset(
        &self,
        request: Request<ResetRequest>,
    ) -> Result<Response<ResetResponse>, Status> {
        let question_id = request.into_inner().question_id;
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

async fn play_episode(question_id: &str, typed: &str) -> (anyhow::Result<PlayResult>, String) {
    let env = EnvClient::new(Transport::in_process(EnvServer::new(TwoSteps)));
    let request = ResetRequest {
        question_id: question_id.to_owned(),
        ..ResetRequest::default()
    };
    let reveal = |id: &str| {
        Some(RevealedGold {
            sql: format!("SELECT gold of {id}"),
            answer: "39".to_owned(),
        })
    };
    let mut shown = Vec::new();
    let outcome = play(env, request, reveal, typed.as_bytes(), &mut shown).await;
    (
        outcome,
        String::from_utf8(shown).expect("the views are text"),
    )
}

#[tokio::test]
async fn an_episode_is_played_to_its_end() {
    let (outcome, shown) = play_episode("q1", "\nhuh\nhelp\nd singer\na 39\nnever read\n").await;
    let outcome = outcome.unwrap();
    assert!(outcome.correct && outcome.finished);
    assert_eq!(outcome.episode_return, 1.25);
    let order = [
        "What is the mean age?",
        "- singer",
        "2 actions left",
        "is unknown",
        "DESCRIBE singer",
        "1 action left",
        "Right!",
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
    let (outcome, shown) = play_episode("q1", "d singer\nselect 1\n").await;
    assert!(outcome.unwrap().finished);
    assert!(shown.contains("Not right."), "{shown}");
}

#[tokio::test]
async fn leaving_tells_no_gold() {
    for typed in ["quit\n", "d singer\n"] {
        let (outcome, shown) = play_episode("q1", typed).await;
        assert!(!outcome.unwrap().finished);
        assert!(
            shown.contains("Left before the end.") && !shown.contains("Gold"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn an_unknown_question_is_an_error_that_names_it() {
    let (outcome, _) = play_episode("q2", "").await;
    let error = format!("{:#}", outcome.unwrap_err());
    assert_eq!(error, "cannot start an episode: no question \"q2\"");
}
