//! The rules of the diagnosis. Each looks at one thing.
//!
//! Pure. Invariant: a rule is silent about what it does not know, so a short run or one that was
//! read from a folder has fewer findings, never wrong ones.

mod learning;
mod processes;
mod recent;

use super::{
    findings::{Diagnosed, Finding},
    status::LiveStatus,
};

type Rule = fn(&LiveStatus) -> Option<Diagnosed>;

/// All rules, with their names.
const RULES: [(&str, Rule); 17] = [
    ("stalled", processes::stalled),
    ("no-actor", processes::no_actor),
    ("actor-silent", processes::actor_silent),
    ("actor-old-weights", processes::actor_old_weights),
    ("env-node-errors", processes::env_node_errors),
    ("env-node-slow", processes::env_node_slow),
    ("learner-waits", processes::learner_waits),
    ("actors-wait", processes::actors_wait),
    ("episodes-failed", learning::episodes_failed),
    ("zero-variance", learning::zero_variance),
    ("malformed-calls", learning::malformed_calls),
    ("completions-cut", learning::completions_cut),
    ("entropy-collapse", learning::entropy_collapse),
    ("policy-far", learning::policy_far),
    ("sampler-mismatch", learning::sampler_mismatch),
    ("accuracy", learning::accuracy),
    ("reward-flat", learning::reward_flat),
];

/// Returns what is wrong with a run: problems first, then hints.
pub fn diagnose(status: &LiveStatus) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES
        .iter()
        .filter_map(|(name, rule)| {
            let found = rule(status)?;
            Some(Finding {
                severity: found.severity,
                rule: (*name).to_owned(),
                seen: found.seen,
                meaning: found.meaning.to_owned(),
                remedy: found.remedy,
            })
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        live::{
            findings::Severity,
            status::{
                ActorStatus, EnvNodeStatus,
                tests::{status, step},
            },
        },
        records::{
            CorrectCount, DecodingMode, Evaluation, EvaluationMetrics, PolicyName, RunStatus,
        },
    };

    fn evaluation(step: u64, correct: u64) -> Evaluation {
        let questions = 200;
        Evaluation {
            policy: PolicyName::Grpo,
            policy_version: step,
            step,
            split: "eval/curve".to_owned(),
            mode: DecodingMode::Greedy,
            metrics: EvaluationMetrics {
                success: CorrectCount { questions, correct }.into(),
                ..EvaluationMetrics::default()
            },
        }
    }

    /// A run of 60 steps that learns, with a busy actor and a quick env-node.
    fn healthy() -> LiveStatus {
        let steps = (1..=60_u64).map(|number| {
            let noise = if number % 2 == 0 { 0.02 } else { -0.02 };
            let reward = 0.2 + number as f64 / 100.0 + noise;
            let metrics = [
                ("reward", reward),
                ("rewards/correct/mean", reward),
                ("frac_reward_zero_std", 0.4),
                ("tools/malformed_frequency", 0.02),
                ("completions/clipped_ratio", 0.01),
                ("completions/mean_length", 120.0),
                ("entropy", 0.3 - number as f64 / 400.0),
                ("kl", 0.02),
                ("clip_ratio/region_mean", 0.05),
                ("sampling/sampling_logp_difference/mean", 0.001),
                ("episodes/failed", 0.0),
                ("groups/kept", 16.0),
                ("groups/left_out", 4.0),
                ("step_time", 10.0),
                ("time/wait_for_batch", 7.0),
            ];
            step(number, &metrics)
        });
        let mut healthy = status(steps.collect());
        healthy.evaluations = vec![evaluation(0, 80), evaluation(30, 110), evaluation(60, 108)];
        healthy.is_live = true;
        healthy.silent_seconds = Some(4.0);
        healthy.actors = vec![ActorStatus {
            id: "actor".to_owned(),
            policy_version: Some(60),
            version_lag: Some(0),
            is_connected: true,
            silent_seconds: 12.0,
            groups_in_flight: 8,
            groups_done: 900,
            tokens_per_second: Some(4_000.0),
            busy_share: Some(0.8),
        }];
        healthy.env_nodes = vec![EnvNodeStatus {
            address: "node:8000".to_owned(),
            calls: 10_000,
            errors: 3,
            recent_calls: 400,
            recent_errors: 0,
            mean_latency_seconds: Some(0.004),
            p95_latency_seconds: Some(0.012),
        }];
        healthy
    }

    /// Sets a metric of the last 10 steps.
    fn set(status: &mut LiveStatus, metric: &str, value: f64) {
        for step in status.steps.iter_mut().rev().take(10) {
            step.metrics.insert(metric.to_owned(), value);
        }
    }

    fn actor(change: fn(&mut ActorStatus)) -> impl Fn(&mut LiveStatus) {
        move |status| change(&mut status.actors[0])
    }

    fn metric(name: &'static str, value: f64) -> impl Fn(&mut LiveStatus) {
        move |status| set(status, name, value)
    }

    /// What a rule must find: its name, what breaks the run, and the numbers that it must show.
    type Case = (&'static str, Box<dyn Fn(&mut LiveStatus)>, &'static str);

    fn process_cases() -> Vec<Case> {
        vec![
            (
                "stalled",
                Box::new(|it| it.silent_seconds = Some(1_000.0)),
                "16 min 40 s",
            ),
            (
                "no-actor",
                Box::new(|it| {
                    it.actors.clear();
                    it.silent_seconds = Some(90.0);
                }),
                "No actor",
            ),
            (
                "actor-silent",
                Box::new(actor(|it| it.silent_seconds = 400.0)),
                "6 min 40 s",
            ),
            (
                "actor-old-weights",
                Box::new(actor(|it| it.version_lag = Some(7))),
                "7 versions behind",
            ),
            (
                "env-node-errors",
                Box::new(|it| it.env_nodes[0].recent_errors = 100),
                "25.0 %",
            ),
            (
                "env-node-slow",
                Box::new(|it| it.env_nodes[0].p95_latency_seconds = Some(4.0)),
                "4.0 s",
            ),
            (
                "learner-waits",
                Box::new(metric("time/wait_for_batch", 9.8)),
                "98.0 %",
            ),
            (
                "actors-wait",
                Box::new(|it| {
                    set(it, "time/wait_for_batch", 1.0);
                    it.actors[0].busy_share = Some(0.1);
                }),
                "10.0 %",
            ),
        ]
    }

    fn learning_cases() -> Vec<Case> {
        vec![
            (
                "episodes-failed",
                Box::new(metric("episodes/failed", 40.0)),
                "40 of 160",
            ),
            (
                "zero-variance",
                Box::new(metric("frac_reward_zero_std", 0.95)),
                "95.0 %",
            ),
            (
                "malformed-calls",
                Box::new(metric("tools/malformed_frequency", 0.5)),
                "50.0 %",
            ),
            (
                "completions-cut",
                Box::new(metric("completions/clipped_ratio", 0.5)),
                "120 tokens",
            ),
            (
                "entropy-collapse",
                Box::new(metric("entropy", 0.002)),
                "0.002",
            ),
            (
                "policy-far",
                Box::new(metric("clip_ratio/region_mean", 0.6)),
                "60.0 %",
            ),
            ("policy-far", Box::new(metric("kl", 2.0)), "2 nats"),
            (
                "sampler-mismatch",
                Box::new(metric("sampling/sampling_logp_difference/mean", 0.1)),
                "0.1 nats",
            ),
            (
                "accuracy",
                Box::new(|it| it.evaluations.push(evaluation(70, 40))),
                "55.0 % at step 30 to 20.0 % at step 70",
            ),
            (
                "accuracy",
                Box::new(|it| it.evaluations.clear()),
                "60 steps",
            ),
            (
                "reward-flat",
                Box::new(|it| {
                    for (number, step) in it.steps.iter_mut().enumerate() {
                        let noise = if number % 2 == 0 { 0.02 } else { -0.02 };
                        step.metrics.insert("reward".to_owned(), 0.5 + noise);
                    }
                }),
                "0.5",
            ),
        ]
    }

    #[test]
    fn a_healthy_run_has_no_finding() {
        assert_eq!(diagnose(&healthy()), []);
        let mut from_folder = healthy();
        from_folder.is_live = false;
        from_folder.actors.clear();
        from_folder.env_nodes.clear();
        assert_eq!(diagnose(&from_folder), []);
        // The data have no question of `eval`.
        let mut on_new_databases = healthy();
        for evaluation in &mut on_new_databases.evaluations {
            "eval-unseen".clone_into(&mut evaluation.split);
        }
        assert_eq!(diagnose(&on_new_databases), []);
        on_new_databases.evaluations.truncate(1);
        let remedy = &diagnose(&on_new_databases)[0].remedy;
        assert!(remedy.contains("the split `eval`"), "{remedy}");
        assert_eq!(diagnose(&status(Vec::new())), []);
        assert_eq!(diagnose(&status(vec![step(1, &[("entropy", 0.0)])])), []);
    }

    #[test]
    fn each_rule_finds_its_case_and_nothing_else() {
        let cases: Vec<Case> = process_cases()
            .into_iter()
            .chain(learning_cases())
            .collect();
        for (rule, break_run, shown) in &cases {
            let mut status = healthy();
            break_run(&mut status);
            let findings = diagnose(&status);
            let names: Vec<&str> = findings.iter().map(|it| it.rule.as_str()).collect();
            assert_eq!(names, [*rule]);
            assert!(findings[0].seen.contains(shown), "{:?}", findings[0]);
            assert!(!findings[0].remedy.is_empty() && !findings[0].meaning.is_empty());
        }
        let tested: BTreeSet<&str> = cases.iter().map(|(rule, ..)| *rule).collect();
        let all: BTreeSet<&str> = RULES.iter().map(|(name, _)| *name).collect();
        assert_eq!(tested, all);
    }

    #[test]
    fn a_run_that_has_ended_waits_for_nobody() {
        let mut ended = healthy();
        ended.state = RunStatus::Finished;
        ended.silent_seconds = Some(1e6);
        ended.actors[0].is_connected = false;
        ended.actors[0].silent_seconds = 1e6;
        assert_eq!(diagnose(&ended), []);
    }

    /// `sqlenv train` prints it, for otherwise the run looks like any other.
    #[test]
    fn a_run_that_ended_without_a_gradient_is_named_however_short_it_is() {
        let untrained = |number: u64| {
            let metrics = [
                ("frac_reward_zero_std", 1.0),
                ("rewards/correct/mean", 0.0),
                ("groups/kept", 0.0),
                ("groups/left_out", 64.0),
            ];
            step(number, &metrics)
        };
        for steps in [1, 2, 10] {
            let mut ended = status((1..=steps).map(untrained).collect());
            ended.state = RunStatus::Interrupted;
            let found = diagnose(&ended);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].rule, "zero-variance");
            assert!(
                found[0].meaning.ends_with("those of the start."),
                "{found:?}"
            );
            assert!(
                found[0].remedy.contains("learner.rewards.shaping = 1"),
                "{found:?}"
            );
        }
        let mut unscored = status(vec![step(1, &[("groups/kept", 0.0)])]);
        unscored.state = RunStatus::Interrupted;
        assert_eq!(diagnose(&unscored)[0].rule, "zero-variance");
        // It may still find a group with a gradient.
        assert_eq!(diagnose(&status(vec![untrained(1)])), []);
        let mut trained = status(vec![untrained(1), untrained(2)]);
        set(&mut trained, "groups/kept", 1.0);
        set(&mut trained, "frac_reward_zero_std", 0.5);
        trained.state = RunStatus::Interrupted;
        assert_eq!(diagnose(&trained), []);
    }

    #[test]
    fn demonstrations_are_advised_only_to_a_run_without_them() {
        for demonstrates in [None, Some(false), Some(true)] {
            let (mut status, is_set) = (healthy(), demonstrates == Some(true));
            status.settings.demonstrates = demonstrates;
            set(&mut status, "frac_reward_zero_std", 1.0);
            set(&mut status, "rewards/correct/mean", 0.0);
            if is_set {
                set(&mut status, "demonstrations/count", 4.0);
            }
            let found = diagnose(&status);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].remedy.contains("demonstration_weight"), !is_set);
            assert_eq!(found[0].meaning.contains("demonstrations"), is_set);
        }
    }

    /// The limit of 120 s alone would be wrong for a run with long steps.
    #[test]
    fn a_run_is_judged_by_its_own_steps_however_few() {
        let mut slow = status(vec![step(1, &[("step_time", 600.0)])]);
        slow.silent_seconds = Some(5_900.0);
        assert_eq!(diagnose(&slow), []);
        slow.silent_seconds = Some(6_100.0);
        let found = diagnose(&slow);
        assert_eq!(found[0].rule, "stalled");
        assert!(
            found[0].seen.ends_with("a step took 10 min 00 s."),
            "{found:?}"
        );
        let mut without_a_step = status(Vec::new());
        without_a_step.silent_seconds = Some(1e6);
        assert_eq!(diagnose(&without_a_step), []);
    }

    #[test]
    fn a_run_that_is_evaluated_does_not_stand_still() {
        let mut evaluated = healthy();
        evaluated.silent_seconds = Some(1_000.0);
        assert_eq!(diagnose(&evaluated)[0].rule, "stalled");
        evaluated.is_evaluating = true;
        assert_eq!(diagnose(&evaluated), []);
        // Its actors play the evaluation.
        evaluated.actors.clear();
        assert_eq!(diagnose(&evaluated)[0].rule, "no-actor");
    }

    /// `model-best` has the first of them, too.
    #[test]
    fn the_best_policy_is_the_first_with_its_accuracy() {
        let mut fallen = healthy();
        fallen.evaluations = [(0, 80), (20, 110), (40, 110), (60, 40)]
            .map(|(step, correct)| evaluation(step, correct))
            .into();
        let found = diagnose(&fallen);
        assert_eq!(found[0].rule, "accuracy");
        assert!(found[0].seen.contains("at step 20 to"), "{found:?}");
        assert!(
            found[0].remedy.starts_with("Take the policy of step 20,"),
            "{found:?}"
        );
    }

    #[test]
    fn an_actor_that_left_is_a_hint_and_one_that_hangs_a_problem() {
        let mut status = healthy();
        let mut left = status.actors[0].clone();
        left.is_connected = false;
        left.silent_seconds = 100.0;
        status.actors.push(left);
        assert_eq!(diagnose(&status)[0].severity, Severity::Hint);
        status.actors[1].is_connected = true;
        status.actors[1].silent_seconds = 1_000.0;
        assert_eq!(diagnose(&status)[0].severity, Severity::Problem);
    }

    #[test]
    fn remedies_name_settings_that_exist() {
        let settings = include_str!("../../../../docs/settings.md");
        let roots = ["learner.", "actor.", "evaluation.", "data."];
        let mut names: BTreeSet<String> = BTreeSet::new();
        for (_, break_run, _) in process_cases().into_iter().chain(learning_cases()) {
            let mut status = healthy();
            break_run(&mut status);
            for finding in diagnose(&status) {
                let words = finding
                    .remedy
                    .split(|c: char| !(c.is_alphanumeric() || "._".contains(c)));
                let words = words.filter(|word| roots.iter().any(|root| word.starts_with(root)));
                names.extend(words.map(|word| word.trim_end_matches('.').to_owned()));
            }
        }
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(settings.contains(&format!("`{name}`")), "{name}");
        }
    }
}
