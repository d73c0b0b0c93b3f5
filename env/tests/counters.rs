//! Tests what the metrics count.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::{Fixture, counters::Counters, dataset};
use env::{EnvSettings, Environment};
use metrics::with_local_recorder;

/// Too long for the quick budget, and far within the whole one.
const LONG: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c";

/// Returns what is counted while `work` runs.
fn counted(work: impl Future<Output = ()>) -> Counters {
    let counters = Counters::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    with_local_recorder(&counters, || runtime.block_on(work));
    counters
}

/// The first query of an episode runs again if the gold SQL after it is long.
#[test]
fn a_query_counts_once_however_often_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let mut dataset = dataset(folder.path());
    for question in &mut dataset.questions {
        LONG.clone_into(&mut question.gold_sql);
    }
    let environment = Environment::open(dataset, EnvSettings::default()).unwrap();
    let fixture = Fixture {
        folder,
        environment,
    };
    let statements = ["SELECT 1", "SELECT 1", LONG, "SELECT nothing"];
    let counters = counted(async {
        for sql in statements {
            fixture.query(sql).await;
        }
    });
    assert_eq!(counters.of("env_queries_total").values().sum::<u64>(), 4);
}

/// What is refused is no answer, however it is called.
#[test]
fn an_episode_is_incorrect_only_if_it_was_answered() {
    let fixture = Fixture::new(EnvSettings {
        step_budget: 1,
        argument_bytes: 100,
        ..EnvSettings::default()
    });
    let long = "x".repeat(101);
    let actions = [
        ("answer", "40"),
        ("ANSWER", "41"),
        ("ANSWER", ""),
        ("ANSWER", long.as_str()),
        ("ANSWERS", "40"),
        ("ANSWER ME", "40"),
        ("DESCRIBE", "Cars"),
    ];
    let counters = counted(async {
        for action in actions {
            fixture.play("cars-1", "", &[action]).await;
        }
    });
    let ended = [("correct", 1), ("exhausted", 4), ("incorrect", 2)];
    let ended = ended.map(|(outcome, count)| (outcome.to_owned(), count));
    let counted = counters.of("env_episodes_ended_total");
    assert_eq!(counted, BTreeMap::from(ended));
}
