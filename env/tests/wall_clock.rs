//! Tests the wall clock: the first hit of a step is a fault of the machine, and only a second hit
//! of the same step is answered.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Fixture, dataset};
use env::{EnvError, EnvSettings, Environment, SqlLimits};

/// A hundred million rows: no machine counts them in time.
const HEAVY: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c, Cars d, Cars e";

fn settings() -> EnvSettings {
    EnvSettings {
        sql: SqlLimits {
            work_units: u64::MAX,
            wall_clock_seconds: 0.2,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    }
}

#[tokio::test]
async fn a_step_is_refused_once_and_then_answered() {
    let fixture = Fixture::new(settings());
    for question in ["cars-1", "cars-2"] {
        // Each step gets its retry, also where another one had the same SQL.
        let token = fixture.reset(question, "default").token;
        let error = fixture.try_step(&token, "QUERY", HEAVY).await.unwrap_err();
        assert!(matches!(error, EnvError::WallClock { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("0.2 s") && message.contains("retry"),
            "{message}"
        );
        for _ in 0..2 {
            let observation = fixture.step(&token, "QUERY", HEAVY).await.observation;
            assert_eq!(
                observation.error,
                "SQL error: query stopped after 0.2 s; make it simpler"
            );
            assert_eq!(observation.step_count, 1);
        }
    }
}

#[tokio::test]
async fn gold_sql_that_hits_it_is_never_taken_for_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut dataset = dataset(folder.path());
    for question in &mut dataset.questions {
        HEAVY.clone_into(&mut question.gold_sql);
    }
    let environment = Environment::open(dataset, settings()).unwrap();
    let fixture = Fixture {
        folder,
        environment,
    };
    // Light queries, and an answer that needs the gold rows.
    let token = fixture.reset("cars-2", "default").token;
    for (action_type, argument) in [("QUERY", "SELECT 1"), ("ANSWER", "Italy")] {
        for _ in 0..3 {
            let step = fixture.try_step(&token, action_type, argument).await;
            let error = step.unwrap_err();
            assert!(matches!(error, EnvError::WallClock { .. }), "{error}");
            let message = error.to_string();
            assert!(
                message.contains("the gold SQL of question \"cars-2\""),
                "{message}"
            );
        }
    }
}
