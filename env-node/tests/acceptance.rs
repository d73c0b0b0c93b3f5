//! The specification's acceptance vectors for episodes (B) and rewards (C), over the in-process transport.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, rewards, step_request};
use env_node::EnvConfig;
use proto::v1::{ListQuestionsRequest, ResetRequest, StepResponse};
use tonic::Code;

const GOLD: &str = "SELECT count(*) FROM Cars";

fn observation(reply: &StepResponse) -> &proto::v1::Observation {
    reply.observation.as_ref().unwrap()
}

fn close(left: &[f64], right: &[f64]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| (left - right).abs() < 1e-9)
}

#[tokio::test]
async fn b1_b2_reset() {
    let fixture = Fixture::new(EnvConfig::default());
    let reset = fixture.reset("cars-1", "").await;
    let seen = reset.observation.unwrap();
    assert_eq!(seen.question, "How many cars are there?");
    assert_eq!(
        seen.schema_info,
        "Available tables:\n- makers\n- Cars\n- fast\n- odd \"name"
    );
    assert_eq!((seen.step_count, seen.budget_remaining), (0, 15));
    assert_eq!((seen.reward, seen.done), (None, false));
    assert!(seen.action_history.is_empty() && seen.result.is_empty() && seen.error.is_empty());
    assert_eq!(reset.episode_id, "cars-1#0");

    let draw = async |seed| {
        let request = ResetRequest {
            seed,
            split: "train".to_owned(),
            ..ResetRequest::default()
        };
        fixture
            .client
            .clone()
            .reset(request)
            .await
            .unwrap()
            .into_inner()
    };
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = draw(seed).await;
        assert_eq!(first.question_id, draw(seed).await.question_id);
        drawn.insert(first.question_id);
    }
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), ["cars-1", "cars-2"]);
}

#[tokio::test]
async fn b3_to_b7_the_four_actions() {
    let fixture = Fixture::new(EnvConfig::default());
    let replies = fixture
        .play(
            "cars-1",
            "default",
            &[
                ("DESCRIBE", "cars"),
                ("DESCRIBE", "nope"),
                ("sample", "Cars"),
                ("QUERY", GOLD),
                ("QUERY", "SELECT Id FROM Cars WHERE Id <= 25"),
                ("QUERY", "SELECT Salary FROM Cars"),
            ],
        )
        .await;
    let columns = "Table 'Cars' columns:\n- Id: INTEGER\n- Maker: INTEGER\n- Horsepower: TEXT\n- Accelerate: REAL\n- Year: INTEGER";
    assert_eq!(
        observation(&replies[0]).result,
        format!("{columns}\nRow count: 40")
    );
    assert!(observation(&replies[0]).schema_info.ends_with(columns));
    assert_eq!(
        observation(&replies[1]).error,
        "Table 'nope' not found. Available tables: makers, Cars, fast, odd \"name"
    );
    assert_eq!(observation(&replies[1]).step_count, 2);
    assert_eq!(observation(&replies[2]).result.lines().count(), 5);
    assert_eq!(
        observation(&replies[2]).result.lines().next(),
        Some("1. 1 | 2 | 61 | 10.25 | 1971")
    );
    assert_eq!(observation(&replies[3]).result, "1. 40");
    let lines: Vec<&str> = observation(&replies[4]).result.lines().collect();
    assert_eq!(lines.len(), 21);
    assert_eq!(
        &lines[19..],
        ["20. 20", "... (first 20 rows shown, there are more)"]
    );
    let last = observation(&replies[5]);
    assert_eq!(
        (last.error.as_str(), last.result.as_str()),
        ("SQL error: no such column: Salary", "")
    );
    assert_eq!(last.budget_remaining, 9);
    assert_eq!(last.action_history[1], "DESCRIBE nope");
}

#[tokio::test]
async fn b10_b11_the_budget_ends_an_episode() {
    for (penalty, after) in [(0.0, 0.0), (0.1, -0.1)] {
        let fixture = Fixture::new(EnvConfig {
            post_episode_penalty: penalty,
            ..EnvConfig::default()
        });
        let mut actions: Vec<(&str, &str)> = vec![("QUERY", GOLD); 15];
        actions.push(("ANSWER", "40"));
        let replies = fixture.play("cars-1", "sqlenv-final", &actions).await;
        let spent = observation(&replies[14]);
        assert!(spent.done && spent.step_count == 15 && spent.budget_remaining == 0);
        assert_eq!(spent.reward, Some(0.0));
        assert!(!observation(&replies[13]).done);
        let over = observation(&replies[15]);
        assert!(
            over.done && over.error.contains("Episode is over"),
            "{}",
            over.error
        );
        assert_eq!((over.step_count, over.reward), (15, Some(after)));
        assert!(!replies[15].correct);
        assert_eq!(replies[15].token, replies[14].token);
    }
}

#[tokio::test]
async fn b12_answers() {
    let fixture = Fixture::new(EnvConfig::default());
    for (question, answer, correct) in [
        ("cars-1", "40", true),
        ("cars-1", "Answer: 40.0", true),
        ("cars-1", "41", false),
        ("cars-1", "", false),
        ("cars-1", "   ", false),
        ("cars-2", "italy, France, Germany, Ireland", true),
        ("cars-2", "Italy, France", false),
        ("cars-3", "5 | 8\n1 | 8\n2 | 8\n3 | 8\n4 | 8", true),
        ("cars-3", "1 | 8", false),
    ] {
        let reply = fixture
            .play(question, "default", &[("ANSWER", answer)])
            .await
            .remove(0);
        assert_eq!(reply.correct, correct, "{question} {answer:?}");
        assert_eq!(
            observation(&reply).reward,
            Some(if correct { 1.0 } else { 0.0 })
        );
        assert!(observation(&reply).done);
    }
}

#[tokio::test]
async fn c1_to_c7_rewards() {
    let fixture = Fixture::new(EnvConfig::default());
    let no_progress = "SELECT Name FROM makers";
    for (profile, actions, expected) in [
        (
            "sqlenv-final",
            vec![
                ("DESCRIBE", "Cars"),
                ("QUERY", no_progress),
                ("QUERY", GOLD),
                ("QUERY", GOLD),
                ("QUERY", "SELECT Salary FROM Cars"),
            ],
            vec![0.0, 0.01, 0.15, -0.03, -0.02],
        ),
        (
            "sqlenv-final",
            vec![
                ("DESCRIBE", "Cars"),
                ("DESCRIBE", "makers"),
                ("QUERY", GOLD),
                ("ANSWER", "40"),
            ],
            vec![0.0, 0.0, 0.15, 1.0],
        ),
        (
            "sqlenv-final",
            vec![
                ("QUERY", "SELEC"),
                ("DESCRIBE", "Cars"),
                ("DESCRIBE", "makers"),
                ("QUERY", GOLD),
                ("ANSWER", "40"),
            ],
            vec![-0.02, 0.0, 0.0, 0.15, 1.0],
        ),
        (
            "sqlenv-f003",
            vec![
                ("DESCRIBE", "Cars"),
                ("DESCRIBE", "makers"),
                ("QUERY", GOLD),
                ("ANSWER", "40"),
            ],
            vec![0.015, 0.015, 0.15, 1.0],
        ),
        (
            "default",
            vec![
                ("DESCRIBE", "Cars"),
                ("QUERY", "SELEC"),
                ("QUERY", "SELEC ;"),
                ("QUERY", GOLD),
                ("ANSWER", "40"),
            ],
            vec![0.0, -0.02, -0.05, 0.16, 1.0],
        ),
    ] {
        let replies = fixture.play("cars-1", profile, &actions).await;
        assert!(
            close(&rewards(&replies), &expected),
            "{profile}: {:?}",
            rewards(&replies)
        );
        for reply in &replies {
            let layers = reply.reward_components.unwrap();
            let sum = layers.operational + layers.progress + layers.terminal + layers.clip;
            assert!((sum - observation(reply).reward.unwrap()).abs() < 1e-12);
        }
    }
}

#[tokio::test]
async fn a_step_is_a_function_of_token_and_action() {
    let key = "an HMAC key that two nodes have in common";
    let config = || EnvConfig {
        signing_key: Some(key.to_owned().into()),
        ..EnvConfig::default()
    };
    let (one, other) = (Fixture::new(config()), Fixture::new(config()));
    let start = one.reset("cars-1", "default").await.token;
    let described = one.step(&start, "DESCRIBE", "Cars").await;
    assert_eq!(
        one.step(&start, "DESCRIBE", "Cars").await,
        described,
        "a retry"
    );
    assert_eq!(
        other.step(&start, "DESCRIBE", "Cars").await,
        described,
        "another node"
    );
    let fork = other.step(&start, "ANSWER", "40").await;
    assert!(fork.correct && !described.correct);
    let on = other.step(&described.token, "ANSWER", "40").await;
    assert_eq!(
        observation(&on).action_history,
        ["DESCRIBE Cars", "ANSWER 40"]
    );
}

#[tokio::test]
async fn the_token_never_holds_the_gold_answer() {
    let fixture = Fixture::new(EnvConfig::default());
    let replies = fixture
        .play(
            "cars-2",
            "default",
            &[
                ("DESCRIBE", "makers"),
                ("QUERY", "SELECT Country FROM makers"),
            ],
        )
        .await;
    for reply in replies {
        let text = String::from_utf8_lossy(&reply.token).into_owned();
        assert!(!text.contains("Germany") && !text.contains("IS NOT NULL"));
    }
}

#[tokio::test]
async fn bad_calls_are_refused_with_a_remedy() {
    let fixture = Fixture::new(EnvConfig::default());
    let mut client = fixture.client.clone();
    let token = fixture.reset("cars-1", "").await.token;
    let mut forged = token.clone();
    *forged.last_mut().unwrap() ^= 1;
    for (token, code, part) in [
        (Vec::new(), Code::Unauthenticated, "malformed"),
        (forged, Code::Unauthenticated, "forged or altered"),
        (
            Fixture::new(EnvConfig::default())
                .reset("cars-1", "")
                .await
                .token,
            Code::Unauthenticated,
            "signing_key",
        ),
    ] {
        let status = client
            .step(step_request(&token, "DESCRIBE", "Cars"))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code);
        assert!(status.message().contains(part), "{}", status.message());
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
        assert_eq!(status.code(), code);
        assert!(status.message().contains(part), "{}", status.message());
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
    let strict = Fixture::new(EnvConfig {
        signing_key: key(),
        token_ttl_seconds: 0,
        ..EnvConfig::default()
    });
    let lenient = Fixture::new(EnvConfig {
        signing_key: key(),
        argument_bytes: 100,
        ..EnvConfig::default()
    });
    let token = strict.reset("cars-1", "").await.token;
    let status = lenient
        .client
        .clone()
        .step(step_request(&token, "ANSWER", "40"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("environment version"),
        "{}",
        status.message()
    );
}

#[tokio::test]
async fn questions_are_listed_in_pages_without_answers() {
    let fixture = Fixture::new(EnvConfig::default());
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
