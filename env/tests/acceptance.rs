//! Tests the specification's acceptance vectors for episodes (B) and rewards (C) on the environment
//! itself.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, NOW, rewards};
use data::{AnswerType, DatabaseFile, Dataset};
use env::{Action, EnvError, EnvSettings, Environment, EpisodeSpec, TokenError};

const GOLD: &str = "SELECT count(*) FROM Cars";

const KEY: &str = "an HMAC key that two nodes have in common";

/// The settings of nodes that share episodes.
fn shared() -> EnvSettings {
    EnvSettings {
        signing_key: Some(KEY.to_owned().into()),
        ..EnvSettings::default()
    }
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
    let fixture = Fixture::new(EnvSettings::default());
    let reset = fixture.reset("cars-1", "");
    let seen = reset.observation;
    assert_eq!(seen.question, "How many cars are there?");
    assert_eq!(
        seen.schema_info,
        "Available tables:\n- makers\n- Cars\n- fast\n- odd \"name"
    );
    assert_eq!((seen.step_count, seen.budget_remaining), (0, 15));
    assert_eq!((seen.reward, seen.done), (None, false));
    assert!(seen.action_history.is_empty() && seen.result.is_empty() && seen.error.is_empty());
    assert_eq!(reset.episode_id, "cars-1#0");

    let draw = |seed| {
        let spec = EpisodeSpec {
            seed,
            split: "train".to_owned(),
            ..EpisodeSpec::default()
        };
        fixture.environment.reset(spec, NOW).unwrap().question_id
    };
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = draw(seed);
        assert_eq!(first, draw(seed));
        drawn.insert(first);
    }
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), ["cars-1", "cars-2"]);
}

#[tokio::test]
async fn b3_to_b7_the_four_actions() {
    let fixture = Fixture::new(EnvSettings::default());
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
        replies[0].observation.result,
        format!("{columns}\nRow count: 40")
    );
    assert!(replies[0].observation.schema_info.ends_with(columns));
    assert_eq!(
        replies[1].observation.error,
        "Table 'nope' not found. Available tables: makers, Cars, fast, odd \"name"
    );
    assert_eq!(replies[1].observation.step_count, 2);
    assert_eq!(replies[2].observation.result.lines().count(), 5);
    assert_eq!(
        replies[2].observation.result.lines().next(),
        Some("1. 1 | 2 | 61 | 10.25 | 1971")
    );
    assert_eq!(replies[3].observation.result, "1. 40");
    let lines: Vec<&str> = replies[4].observation.result.lines().collect();
    assert_eq!(lines.len(), 21);
    assert_eq!(
        &lines[19..],
        ["20. 20", "... (first 20 rows shown, there are more)"]
    );
    let last = &replies[5].observation;
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
        let fixture = Fixture::new(EnvSettings {
            post_episode_penalty: penalty,
            ..EnvSettings::default()
        });
        let mut actions: Vec<(&str, &str)> = vec![("QUERY", GOLD); 15];
        actions.push(("ANSWER", "40"));
        let replies = fixture.play("cars-1", "sqlenv-final", &actions).await;
        let spent = &replies[14].observation;
        assert!(spent.done && spent.step_count == 15 && spent.budget_remaining == 0);
        assert_eq!(spent.reward, Some(0.0));
        assert!(!replies[13].observation.done);
        let over = &replies[15].observation;
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
    let fixture = Fixture::new(EnvSettings::default());
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
            reply.observation.reward,
            Some(if correct { 1.0 } else { 0.0 })
        );
        assert!(reply.observation.done);
    }
}

/// With the setting `ordered_tables`, the order counts where the gold SQL asks for one.
#[tokio::test]
async fn tables_can_be_asked_for_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut dataset = common::dataset(folder.path());
    let mut of_maker = dataset.questions.last().unwrap().clone();
    of_maker.question_id = "cars-4".to_owned();
    of_maker.gold_sql += " ORDER BY Maker";
    dataset.questions.push(of_maker);
    for ordered_tables in [false, true] {
        let settings = EnvSettings {
            ordered_tables,
            ..EnvSettings::default()
        };
        let environment = Environment::open(dataset.clone(), settings).unwrap();
        for (question, answer, correct) in [
            ("cars-3", "5 | 8\n1 | 8\n2 | 8\n3 | 8\n4 | 8", true),
            (
                "cars-4",
                "5 | 8\n1 | 8\n2 | 8\n3 | 8\n4 | 8",
                !ordered_tables,
            ),
            ("cars-4", "1 | 8\n2 | 8\n3 | 8\n4 | 8\n5 | 8", true),
        ] {
            let spec = EpisodeSpec {
                question_id: question.to_owned(),
                ..EpisodeSpec::default()
            };
            let token = environment.reset(spec, NOW).unwrap().token;
            let reply = common::step(&environment, &token, "ANSWER", answer).await;
            let case = format!("{question} {answer:?} {ordered_tables}");
            assert_eq!(reply.unwrap().correct, correct, "{case}");
        }
    }
}

/// A statement whose rows are not close to the gold rows.
const NO_PROGRESS: &str = "SELECT Name FROM makers";

/// Profile, actions and the rewards of the actions.
type RewardCase = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [f64],
);

const REWARD_CASES: &[RewardCase] = &[
    (
        "sqlenv-final",
        &[
            ("DESCRIBE", "Cars"),
            ("QUERY", NO_PROGRESS),
            ("QUERY", GOLD),
            ("QUERY", GOLD),
            ("QUERY", "SELECT Salary FROM Cars"),
        ],
        &[0.0, 0.01, 0.15, -0.03, -0.02],
    ),
    (
        "sqlenv-final",
        &[
            ("DESCRIBE", "Cars"),
            ("DESCRIBE", "makers"),
            ("QUERY", GOLD),
            ("ANSWER", "40"),
        ],
        &[0.0, 0.0, 0.15, 1.0],
    ),
    (
        "sqlenv-final",
        &[
            ("QUERY", "SELEC"),
            ("DESCRIBE", "Cars"),
            ("DESCRIBE", "makers"),
            ("QUERY", GOLD),
            ("ANSWER", "40"),
        ],
        &[-0.02, 0.0, 0.0, 0.15, 1.0],
    ),
    (
        "sqlenv-f003",
        &[
            ("DESCRIBE", "Cars"),
            ("DESCRIBE", "makers"),
            ("QUERY", GOLD),
            ("ANSWER", "40"),
        ],
        &[0.015, 0.015, 0.15, 1.0],
    ),
    (
        "default",
        &[
            ("DESCRIBE", "Cars"),
            ("QUERY", "SELEC"),
            ("QUERY", "SELEC ;"),
            ("QUERY", GOLD),
            ("ANSWER", "40"),
        ],
        &[0.0, -0.02, -0.05, 0.16, 1.0],
    ),
];

#[tokio::test]
async fn c1_to_c7_rewards() {
    let fixture = Fixture::new(EnvSettings::default());
    for (profile, actions, expected) in REWARD_CASES {
        let replies = fixture.play("cars-1", profile, actions).await;
        let rewards = rewards(&replies);
        assert!(close(&rewards, expected), "{profile}: {rewards:?}");
        for reply in &replies {
            let layers = reply.reward_components;
            let sum = layers.operational + layers.progress + layers.terminal + layers.clip;
            assert!((sum - reply.observation.reward.unwrap()).abs() < 1e-12);
        }
    }
}

#[tokio::test]
async fn a_step_is_a_function_of_token_and_action() {
    let (one, other) = (Fixture::new(shared()), Fixture::new(shared()));
    let start = one.reset("cars-1", "default").token;
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
        on.observation.action_history,
        ["DESCRIBE Cars", "ANSWER 40"]
    );
}

/// Half of an episode would be about one question, and half about another. Other questions beside
/// it change nothing.
#[tokio::test]
async fn a_token_of_another_question_or_database_is_refused() {
    type Change = fn(&mut Dataset);
    let table: [(Change, bool); 7] = [
        (|it| it.questions.truncate(1), true),
        (|it| it.questions[0].split = "eval".to_owned(), true),
        (|it| it.questions[0].question_text.push('?'), false),
        (|it| it.questions[0].gold_sql.push(';'), false),
        (
            |it| it.questions[0].gold_answer = serde_json::json!(41),
            false,
        ),
        (|it| it.questions[0].answer_type = AnswerType::Float, false),
        (
            |it| {
                let file = it.databases.get_mut("cars").unwrap();
                let connection = rusqlite::Connection::open(&file.path).unwrap();
                connection
                    .execute_batch("DELETE FROM Cars WHERE Id = 40")
                    .unwrap();
                *file = DatabaseFile::open("cars", &file.path).unwrap();
            },
            false,
        ),
    ];
    let token = Fixture::new(shared()).reset("cars-1", "default").token;
    for (row, (change, is_served)) in table.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let mut dataset = common::dataset(folder.path());
        change(&mut dataset);
        let environment = Environment::open(dataset, shared()).unwrap();
        match common::step(&environment, &token, "DESCRIBE", "Cars").await {
            Ok(_) => assert!(is_served, "row {row}"),
            Err(EnvError::Token(TokenError::ForeignDatabase { .. })) => {
                assert!(!is_served, "row {row}");
            }
            Err(other) => panic!("row {row}: {other}"),
        }
    }
}

#[tokio::test]
async fn a_token_expires_by_the_time_of_the_caller() {
    let fixture = Fixture::new(EnvSettings {
        token_ttl_seconds: 60,
        ..EnvSettings::default()
    });
    let token = fixture.reset("cars-1", "default").token;
    let action = Action {
        action_type: "DESCRIBE".to_owned(),
        argument: "Cars".to_owned(),
    };
    let step = async |now: u64| fixture.environment.step(token.clone(), &action, now).await;
    step(NOW + 60).await.unwrap();
    let refused = step(NOW + 63).await.unwrap_err();
    assert!(
        matches!(refused, EnvError::Token(TokenError::Expired(3))),
        "{refused}"
    );
}

#[tokio::test]
async fn the_token_never_holds_the_gold_answer() {
    let fixture = Fixture::new(EnvSettings::default());
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
