//! Collects what the roles describe, without a server.

use std::{collections::BTreeMap, sync::Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};

/// A described metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

#[derive(Default)]
struct Collector(Mutex<BTreeMap<String, Described>>);

impl Collector {
    fn add(&self, name: &KeyName, kind: &'static str, text: &SharedString) {
        let described = Described {
            kind,
            text: text.to_string(),
        };
        let mut all = self.0.lock().unwrap();
        let earlier = all.insert(name.as_str().to_owned(), described);
        assert_eq!(earlier, None, "{} is described twice", name.as_str());
    }

    fn assert_described(&self, key: &Key) {
        let all = self.0.lock().unwrap();
        assert!(all.contains_key(key.name()), "{key} is not described");
    }
}

impl Recorder for Collector {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.add(&name, "counter", &text);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.add(&name, "gauge", &text);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.add(&name, "histogram", &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.assert_described(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.assert_described(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.assert_described(key);
        Histogram::noop()
    }
}

/// A role, and what it calls when it opens its admin port.
type Role = (&'static str, &'static [fn()]);

/// Returns the metrics of each role, by name.
pub(crate) fn by_role() -> [(&'static str, BTreeMap<String, Described>); 4] {
    let roles: [Role; 4] = [
        (
            "env-node",
            &[env::metrics::describe, env_node::metrics::describe],
        ),
        ("actor", &[actor::metrics::describe]),
        (
            "learner",
            &[
                learner::metrics::describe,
                actor::metrics::describe_of_learner,
            ],
        ),
        ("rank", &[learner::metrics::describe_rank]),
    ];
    roles.map(|(role, describe)| {
        let collector = Collector::default();
        with_local_recorder(&collector, || {
            describe.iter().for_each(|describe| describe());
        });
        (role, collector.0.into_inner().unwrap())
    })
}

/// Returns the metrics of all roles, by name.
pub(crate) fn all() -> BTreeMap<String, Described> {
    let mut all = BTreeMap::new();
    for (role, metrics) in by_role() {
        for (name, described) in metrics {
            let earlier = all.insert(name.clone(), described.clone());
            let is_alike = earlier.is_none_or(|earlier| earlier == described);
            assert!(
                is_alike,
                "{name} of {role} is something else of another role"
            );
        }
    }
    all
}
