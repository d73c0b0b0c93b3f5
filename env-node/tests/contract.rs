//! Tests `sqlenv.v1.Env` over the in-process transport: pages of questions and the content of Info.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Fixture;
use env::EnvSettings;
use proto::v1::ListQuestionsRequest;

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
