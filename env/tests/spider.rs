//! Runs the oracle on real data: it describes the tables, runs the gold SQL and answers. The test
//! needs `../shared/data/spider`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{Write as _, stderr},
    path::Path,
};

use data::{Dataset, Question, answer_text};
use env::{Action, EnvSettings, Environment, EpisodeSpec, SqlLimits};

#[tokio::test]
async fn the_oracle_is_right_on_every_question() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/spider");
    if !folder.exists() {
        // Past the test harness, which keeps what a passing test prints.
        let line = format!(
            "SKIPPED: the oracle on Spider, because {} is not there\n",
            folder.display()
        );
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    let dataset = Dataset::open(&folder, Some(&["all".to_owned()])).unwrap();
    let questions = dataset.questions.clone();
    let settings = EnvSettings {
        sql: SqlLimits {
            // Enough on the busiest machine: only work units may end a query.
            wall_clock_seconds: 600.0,
            ..SqlLimits::default()
        },
        ..EnvSettings::default()
    };
    let environment = Environment::open(dataset, settings).unwrap();
    let mut wrong = Vec::new();
    for question in &questions {
        let (correct, total, errors) = play_oracle(&environment, question).await;
        if !correct || (total - 1.15_f64).abs() > 1e-9 {
            wrong.push(format!(
                "{} {correct} {total} {errors} {}",
                question.question_id, question.gold_sql
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        questions.len(),
        wrong.join("\n")
    );
}

/// Plays an episode; returns whether it ended correctly, the return, and the errors.
async fn play_oracle(environment: &Environment, question: &Question) -> (bool, f64, String) {
    let spec = EpisodeSpec {
        question_id: question.question_id.clone(),
        reward_profile: "sqlenv-final".to_owned(),
        step_budget: 100,
        ..EpisodeSpec::default()
    };
    let mut token = environment.reset(spec, 0).unwrap().token;
    let (mut correct, mut total, mut errors) = (false, 0.0, String::new());
    let tables = question.tables_involved.iter();
    let describes = tables.map(|table| ("DESCRIBE", table.clone()));
    let rest = [
        ("QUERY", question.gold_sql.clone()),
        ("ANSWER", answer_text(question)),
    ];
    for (action_type, argument) in describes.chain(rest) {
        let action = Action {
            action_type: action_type.to_owned(),
            argument,
        };
        let reply = environment.step(token, &action, 0).await.unwrap();
        total += reply.observation.reward.unwrap();
        errors += &reply.observation.error;
        token = reply.token;
        correct = reply.correct;
    }
    (correct, total, errors)
}
