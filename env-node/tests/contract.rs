//! Tests `sqlenv.v1.Env` over the in-process transport: statuses, pages and the content of Info.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, step_request};
use env::EnvSettings;
use proto::v1::{ListQuestionsRequest, ResetRequest};
use tonic::{Code, Status};

fn assert_refused(status: &Status, code: Code, part: &str) {
    assert_eq!(status.code(), code);
    assert!(status.message().contains(part), "{}", status.message());
}

#[tokio::test]
async fn bad_calls_are_refused_with_a_remedy() {
    let fixture = Fixture::new(EnvSettings::default());
    let mut client = fixture.client.clone();
    let token = fixture.reset("cars-1", "").await.token;
    let mut forged = token.clone();
    *forged.last_mut().unwrap() ^= 1;
    let other = Fixture::new(EnvSettings::default());
    let foreign = other.reset("cars-1", "").await.token;
    for (token, part) in [
        (Vec::new(), "malformed"),
        (forged, "forged or altered"),
        (foreign, "signing_key"),
    ] {
        let status = client
            .step(step_request(&token, "DESCRIBE", "Cars"))
            .await
            .unwrap_err();
        assert_refused(&status, Code::Unauthenticated, part);
    }
    let reset = |change: fn(&mut ResetRequest)| {
        let mut request = ResetRequest::default();
        change(&mut request);
        request
    };
    for (request, code, part) in [
        (
            reset(|r| r.question_id = "nope".to_owned()),
            Code::NotFound,
            "ListQuestions",
        ),
        (
            reset(|r| r.split = "test".to_owned()),
            Code::NotFound,
            "there are: eval-unseen, eval-unseen/domain, train",
        ),
        (
            reset(|r| r.reward_profile = "sparse".to_owned()),
            Code::InvalidArgument,
            "sqlenv-f003",
        ),
        (
            reset(|r| r.step_budget = 5_000),
            Code::InvalidArgument,
            "give 1 to 1000",
        ),
        (
            reset(|r| r.episode_id = "x".repeat(256)),
            Code::InvalidArgument,
            "at most 255",
        ),
    ] {
        let status = client.reset(request).await.unwrap_err();
        assert_refused(&status, code, part);
    }
}

#[tokio::test]
async fn tokens_of_other_rules_or_another_time_are_refused() {
    let key = || {
        Some(
            "an HMAC key that two nodes have in common"
                .to_owned()
                .into(),
        )
    };
    let strict = Fixture::new(EnvSettings {
        signing_key: key(),
        token_ttl_seconds: 0,
        ..EnvSettings::default()
    });
    let lenient = Fixture::new(EnvSettings {
        signing_key: key(),
        argument_bytes: 100,
        ..EnvSettings::default()
    });
    let token = strict.reset("cars-1", "").await.token;
    let status = lenient
        .client
        .clone()
        .step(step_request(&token, "ANSWER", "40"))
        .await
        .unwrap_err();
    assert_refused(&status, Code::FailedPrecondition, "environment version");
}

#[tokio::test]
async fn questions_are_listed_in_pages_without_answers() {
    let fixture = Fixture::new(EnvSettings::default());
    let mut client = fixture.client.clone();
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListQuestionsRequest {
            page_size: 2,
            page_token,
            ..ListQuestionsRequest::default()
        };
        let page = client.list_questions(request).await.unwrap().into_inner();
        assert_eq!(page.total_size, 3);
        ids.extend(
            page.questions
                .into_iter()
                .map(|question| question.question_id),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["cars-1", "cars-2", "cars-3"]);
}

#[tokio::test]
async fn questions_are_filtered_and_counted() {
    let fixture = Fixture::new(EnvSettings::default());
    let mut client = fixture.client.clone();
    let unseen = ListQuestionsRequest {
        split: "eval-unseen".to_owned(),
        database_name: "cars".to_owned(),
        ..ListQuestionsRequest::default()
    };
    assert_eq!(
        client
            .list_questions(unseen)
            .await
            .unwrap()
            .into_inner()
            .total_size,
        1
    );
    for (request, code) in [
        (
            ListQuestionsRequest {
                database_name: "x".to_owned(),
                ..Default::default()
            },
            Code::NotFound,
        ),
        (
            ListQuestionsRequest {
                page_token: "x".to_owned(),
                ..Default::default()
            },
            Code::InvalidArgument,
        ),
    ] {
        assert_eq!(
            client.list_questions(request).await.unwrap_err().code(),
            code
        );
    }
    let info = client
        .info(proto::v1::InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.default_reward_profile, "default");
    assert_eq!(info.databases.len(), 1);
    let splits: Vec<_> = info
        .splits
        .iter()
        .map(|split| (split.name.as_str(), split.question_count))
        .collect();
    assert_eq!(
        splits,
        [("eval-unseen", 1), ("eval-unseen/domain", 1), ("train", 2)]
    );
}
