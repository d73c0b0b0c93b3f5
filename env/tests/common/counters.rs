//! Keeps what the metrics say. The tests of `actor`, `env-node` and `learner` use it too.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

/// Keeps counters and gauges by name and by the values of their labels, with spaces between them.
#[derive(Default)]
pub(crate) struct Counters(Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>);

impl Counters {
    /// Returns what was counted under a name, by the values of the labels. A gauge has the bits of
    /// its `f64`.
    pub(crate) fn of(&self, name: &str) -> BTreeMap<String, u64> {
        let counters = self.0.lock().unwrap();
        let named = counters.iter().filter(|((own, _), _)| own == name);
        named
            .map(|((_, labels), count)| (labels.clone(), count.load(Ordering::Relaxed)))
            .collect()
    }

    fn register(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<&str> = key.labels().map(Label::value).collect();
        let mut counters = self.0.lock().unwrap();
        let counter = counters.entry((key.name().to_owned(), labels.join(" ")));
        Arc::clone(counter.or_default())
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
