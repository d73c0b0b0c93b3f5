//! Tests what the metrics count.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use common::{Fixture, dataset};
use env::{EnvSettings, Environment};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

/// Too long for the quick budget, and far within the whole one.
const LONG: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c";

/// Keeps counters by name and outcome.
#[derive(Default)]
struct Counters(Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>);

impl Counters {
    /// Returns what is counted while `work` runs.
    fn during(work: impl Future<Output = ()>) -> Self {
        let counters = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        with_local_recorder(&counters, || runtime.block_on(work));
        counters
    }

    /// Returns what was counted under a name, by outcome.
    fn of(&self, name: &str) -> BTreeMap<String, u64> {
        let counters = self.0.lock().unwrap();
        let named = counters.iter().filter(|((own, _), _)| own == name);
        named
            .map(|((_, outcome), count)| (outcome.clone(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let outcome = key.labels().find(|label| label.key() == "outcome");
        let outcome = outcome.map_or("", |label| label.value());
        let mut counters = self.0.lock().unwrap();
        let counter = counters.entry((key.name().to_owned(), outcome.to_owned()));
        Counter::from_arc(Arc::clone(counter.or_default()))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
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
    let counters = Counters::during(async {
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
    let counters = Counters::during(async {
        for action in actions {
            fixture.play("cars-1", "", &[action]).await;
        }
    });
    let ended = [("correct", 1), ("exhausted", 4), ("incorrect", 2)];
    let ended = ended.map(|(outcome, count)| (outcome.to_owned(), count));
    let counted = counters.of("env_episodes_ended_total");
    assert_eq!(counted, BTreeMap::from(ended));
}
