//! Scrapes the admin ports of a run of four processes: env-node, learner, another rank, actor.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    thread::sleep,
    time::Duration,
};

use learner::metrics::STEP_METRICS;
use serde_json::Value;

use crate::{
    described,
    http::{free_address, get},
    names::{base, used},
    program::{Running, serve, smoke_learner, sqlenv, start_actor},
    promtool::check_scrape,
};

/// Every part of the loss is on, so that each step has all metrics.
const SETTINGS: [&str; 9] = [
    "learner.ranks.count=2",
    "learner.dynamic_sampling=false",
    "learner.loss.entropy_coef=0.01",
    "learner.loss.kl_coef=0.01",
    "learner.checkpoint.every_steps=1",
    "evaluation.every_steps=1",
    "evaluation.questions=8",
    "evaluation.unseen_questions=2",
    "evaluation.curve_questions=8",
];

/// The processes of a run, with their admin ports.
pub(crate) struct Roles {
    _env_node: Running,
    learner: Running,
    _others: [Running; 2],
    pub(crate) admin: BTreeMap<&'static str, String>,
    run_dir: PathBuf,
}

impl Roles {
    /// Starts a run of `steps` steps. Calls `served` with the admin ports when env-node and learner
    /// serve, before there is a rank or an actor.
    pub(crate) fn start(
        dir: &Path,
        steps: u64,
        served: impl Fn(&BTreeMap<&'static str, String>),
    ) -> Self {
        let admin = ["env-node", "learner", "rank", "actor"].map(|role| (role, free_address()));
        let admin: BTreeMap<_, _> = admin.into();
        let (_env_node, env) = serve(&[
            "env-node",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            &admin["env-node"],
        ]);
        let run_dir = dir.join("run");
        let steps = format!("learner.steps={steps}");
        let mut args = smoke_learner(&env, run_dir.to_str().unwrap());
        args.extend(["--admin", &admin["learner"]]);
        for setting in SETTINGS.iter().chain([&steps.as_str()]) {
            args.extend(["--set", setting]);
        }
        let (learner, address) = serve(&args);
        served(&admin);
        let mut rank = sqlenv(&["rank", "--learner", &address, "--admin", &admin["rank"]]);
        let rank = Running(rank.stderr(Stdio::null()).spawn().unwrap());
        let actor = start_actor(&env, &address, &["--admin", &admin["actor"]]);
        Self {
            _env_node,
            learner,
            _others: [rank, actor],
            admin,
            run_dir,
        }
    }

    /// Returns how the learner ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.learner.0.try_wait().unwrap()
    }

    /// Returns the metrics page of a role that runs.
    fn scrape(&self, role: &str) -> Option<String> {
        get(&self.admin[role], "/metrics")
    }

    /// Returns the record of a step.
    fn step(&self, step: u64) -> Option<BTreeMap<String, f64>> {
        let text = fs::read_to_string(self.run_dir.join("metrics.jsonl")).ok()?;
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut steps = lines.filter(|line: &Value| line["step"] == step);
        let record = steps.next()?;
        let metrics = record.as_object()?.iter();
        let kept = metrics
            .filter(|(name, _)| !["step", "stage", "policy_version"].contains(&name.as_str()));
        Some(
            kept.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
                .collect(),
        )
    }
}

/// Returns the samples of a page, by series.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

/// Asserts that a page has each metric of the role, with text and type, and nothing else.
fn assert_whole(role: &str, page: &str, expected: &BTreeMap<String, described::Described>) {
    let of = |comment: &str| -> BTreeMap<String, String> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(comment));
        let pair = |line: &str| {
            let (name, rest) = line.split_once(' ').unwrap();
            (name.to_owned(), rest.to_owned())
        };
        lines.map(pair).collect()
    };
    let (types, texts) = (of("# TYPE "), of("# HELP "));
    let is_histogram = |name: &str| types.get(name).is_some_and(|kind| kind == "histogram");
    let series = samples(page).into_keys();
    let names: BTreeSet<String> = series
        .map(|series| base(series.split('{').next().unwrap(), is_histogram))
        .collect();
    for described in [&types, &texts] {
        let described: BTreeSet<String> = described.keys().cloned().collect();
        let missing: Vec<&String> = names.symmetric_difference(&described).collect();
        assert!(
            missing.is_empty(),
            "{role}: text or type without {missing:?}"
        );
    }
    for (name, described) in expected {
        // One exists for each planned set, and a run may plan none.
        let is_of_sets = name.starts_with("learner_evaluation_");
        assert!(names.contains(name) || is_of_sets, "{role} has no {name}");
        assert!(
            is_of_sets || types[name] == described.kind,
            "{role}: {name}"
        );
    }
    check_scrape(page);
}

/// Returns whether the page of the learner shows what the run folder records of its last step.
fn shows_the_record(page: &BTreeMap<String, f64>, roles: &Roles) -> bool {
    let step = page["learner_step"] as u64;
    let Some(record) = roles.step(step).filter(|_| step > 0) else {
        return false;
    };
    for name in record.keys() {
        let is_known = STEP_METRICS.iter().any(|metric| metric.record == name);
        assert!(
            is_known,
            "{name} of metrics.jsonl is not in the table of step metrics"
        );
    }
    STEP_METRICS
        .iter()
        .all(|metric| match record.get(metric.record) {
            Some(value) => page[metric.name] == *value,
            None => page[metric.name].is_nan(),
        })
}

#[test]
fn every_role_has_its_metrics_from_its_start_and_they_are_those_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let described = described::by_role();
    let mut roles = Roles::start(dir.path(), 6, |admin| {
        for (role, expected) in described
            .iter()
            .filter(|it| ["env-node", "learner"].contains(&it.0))
        {
            let page = get(&admin[*role], "/metrics").unwrap();
            assert_whole(role, &page, expected);
        }
        // The limits of alerts begin with the training, which waits for its rank.
        let page = get(&admin["learner"], "/metrics").unwrap();
        assert_eq!(samples(&page)["learner_training"], 0.0);
    });
    let mut pages: BTreeMap<&str, String> = BTreeMap::new();
    let mut matches = 0;
    let status = loop {
        for (role, expected) in &described {
            let Some(page) = roles.scrape(role) else {
                continue;
            };
            if !pages.contains_key(role) {
                assert_whole(role, &page, expected);
            }
            pages.insert(role, page);
        }
        // The gauges are set one by one, so a scrape may come between them.
        matches += u32::from(shows_the_record(&samples(&pages["learner"]), &roles));
        if let Some(status) = roles.ended() {
            break status;
        }
        sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
    assert!(matches > 0, "no scrape had the metrics of a step");
    let names: BTreeSet<String> = pages
        .values()
        .flat_map(|page| samples(page).into_keys())
        .collect();
    for name in used() {
        let is_there = names.iter().any(|series| series.starts_with(&name));
        assert!(
            is_there,
            "the dashboard or an alert uses {name}, which no role has"
        );
    }
    assert_counted(&pages);
    assert_at_rest(&roles.scrape("env-node").unwrap());
}

/// Asserts that the last pages of a run have its work.
fn assert_counted(pages: &BTreeMap<&str, String>) {
    let value = |role: &str, series: &str| samples(&pages[role])[series];
    assert!(value("learner", "learner_trained_tokens_total") > 0.0);
    assert!(value("learner", "learner_weights_sent_bytes_total") > 0.0);
    assert!(value("learner", "learner_checkpoints_total") >= 1.0);
    assert!(value("actor", "actor_sampled_tokens_total") > 0.0);
    assert!(value("actor", "actor_call_seconds_count{call=\"Env.Step\"}") > 0.0);
    assert!(value("rank", "learner_rank_step") >= 1.0);
    let set = "{set=\"base on eval/curve, greedy\"}";
    let accuracy = value(
        "learner",
        &format!("learner_evaluation_accuracy_ratio{set}"),
    );
    assert!((0.0..=1.0).contains(&accuracy), "{accuracy}");
}

/// Asserts that nothing is being served any more, so that each beginning had its end.
fn assert_at_rest(page: &str) {
    let page = samples(page);
    let is_gauge = |series: &str| {
        ["env_calls_in_flight", "env_busy_threads", "env_queue_depth"]
            .iter()
            .any(|name| series.starts_with(name))
    };
    let left = page
        .iter()
        .filter(|(series, value)| is_gauge(series) && **value != 0.0);
    assert_eq!(left.count(), 0, "{page:?}");
}
