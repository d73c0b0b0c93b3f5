//! Tests what the metrics count.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use common::{Fixture, dataset};
use env::{EnvSettings, Environment};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

/// Too long for the quick budget, and far within the whole one.
const LONG: &str = "SELECT count(*) FROM Cars a, Cars b, Cars c";

/// Counts queries of all outcomes.
#[derive(Default)]
struct Queries(Arc<AtomicU64>);

impl Recorder for Queries {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "env_queries_total" => Counter::from_arc(Arc::clone(&self.0)),
            _ => Counter::noop(),
        }
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
    let queries = Queries::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    with_local_recorder(&queries, || {
        runtime.block_on(async {
            for sql in statements {
                fixture.query(sql).await;
            }
        });
    });
    assert_eq!(queries.0.load(Ordering::Relaxed), 4);
}
