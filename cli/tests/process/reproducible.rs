//! Tests that a run is a function of its seed: the weights are the same with one or two threads,
//! and after an interruption.

use std::{fs, io::Read as _, path::Path, process::Stdio};

use serde_json::Value;

use crate::{
    endings::signal,
    evaluation::weights,
    outcomes::succeed,
    program::{Running, sqlenv},
};

fn train(runs_dir: &Path, name: &str, more: &[&str]) {
    let runs_dir = runs_dir.to_str().unwrap();
    let mut args = vec!["train", "--runs-dir", runs_dir, "--name", name];
    args.extend(more);
    succeed(&mut sqlenv(&args));
}

/// Returns the recorded steps of a stage of training.
fn steps(runs_dir: &Path, name: &str, stage: &str) -> Vec<Value> {
    let text = fs::read_to_string(runs_dir.join(name).join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let of_stage = records.filter(|record: &Value| record["stage"] == stage);
    of_stage.collect()
}

/// Asserts that learner and sampler of a synchronous run have the same policy, bit for bit.
pub(crate) fn assert_no_mismatch(runs_dir: &Path, name: &str) {
    let steps = steps(runs_dir, name, "grpo");
    assert!(!steps.is_empty());
    for step in steps {
        for (metric, wanted) in [
            ("staleness/max", 0.0),
            ("sampling/sampling_logp_difference/max", 0.0),
            ("sampling/kl_k3", 0.0),
            ("sampling/importance_sampling_ratio/min", 1.0),
            ("sampling/importance_sampling_ratio/max", 1.0),
        ] {
            assert_eq!(step[metric], wanted, "{metric}, step {}", step["step"]);
        }
    }
}

#[test]
fn one_thread_or_two_or_an_interruption_give_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let repeats = "learner.repeat={times=2, after_steps=2}";
    let steps = [
        "--preset",
        "smoke",
        "--set",
        "learner.steps=4",
        "--set",
        repeats,
    ];
    let with_threads = |name: &str, count: &str| {
        train(
            dir.path(),
            name,
            &[&steps[..], &["--set", &format!("threads={count}")]].concat(),
        );
    };
    with_threads("one", "1");
    with_threads("two", "2");
    let weights = |name: &str| weights(&dir.path().join(name));
    assert!(weights("one") == weights("two"), "1 and 2 threads differ");
    assert_no_mismatch(dir.path(), "two");
    let recorded = self::steps(dir.path(), "two", "grpo");
    let repeated = recorded.iter().filter(|it| it["groups/repeated"] != 0.0);
    assert_ne!(repeated.count(), 0, "no question came back");

    interrupt(dir.path(), "stopped", &steps);
    train(dir.path(), "stopped", &["--resume"]);
    assert!(
        weights("one") == weights("stopped"),
        "the resumed run differs"
    );
    let imitation = |name: &str| {
        let folder = dir.path().join(name).join("oracle-imitation");
        fs::read(folder.join("model.safetensors")).unwrap()
    };
    assert!(
        imitation("one") == imitation("stopped"),
        "the imitation of the resumed run differs"
    );

    // The model of a run from random weights is evaluated with the settings of its run.
    let model = dir.path().join("one").join("model");
    let eval = ["eval", "--questions", "2", "--model"];
    succeed(sqlenv(&eval).arg(&model));
    a_copied_model_is_used_without_its_run(&model, &dir.path().join("copied"));

    train(
        dir.path(),
        "other",
        &[&steps[..], &["--seed", "7"]].concat(),
    );
    assert!(weights("one") != weights("other"), "the seed has no effect");
}

/// Evaluates a copy of a model by the command of its card. The preset of models has contexts of
/// 4,096 tokens, and the model 2,048 positions.
fn a_copied_model_is_used_without_its_run(model: &Path, copy: &Path) {
    fs::create_dir(copy).unwrap();
    for file in fs::read_dir(model).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let copy = copy.to_str().unwrap();
    let card = ["eval", "--model", copy, "--split", "eval"];
    let evaluated = sqlenv(&card).args(["--questions", "2"]).output().unwrap();
    let printed = String::from_utf8_lossy(&evaluated.stderr).into_owned();
    assert!(evaluated.status.success(), "{printed}");
    let lowered = "learner.rollout.max_context_tokens is 2048 in place of the 4096";
    assert!(printed.contains(lowered), "{printed}");
    let dry = succeed(&mut sqlenv(&["train", "--dry-run", "--model", copy]));
    assert!(dry.contains("\nmax_context_tokens = 2048\n"), "{dry}");
}

/// Returns how many episodes the demonstrations of the oracle had, of each training in its turn.
fn demonstrated(printed: &str) -> Vec<u64> {
    let begun = printed.lines().filter_map(|line| {
        let episodes = line.strip_prefix("demonstrations, oracle: ")?;
        episodes.strip_suffix(" episodes")?.parse::<u64>().ok()
    });
    begun.collect()
}

#[test]
fn a_warm_start_counts_its_steps_on_and_does_not_limit_the_imitation() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["train", "--preset", "smoke", "--name", "run", "--runs-dir"];
    let output = sqlenv(&args)
        .arg(dir.path())
        .args(["--set", "warm_start.demonstrations=40"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    // The imitation has as many as its 5,000 tokens may need.
    assert_eq!(demonstrated(&printed), [40, 79], "{printed}");
    let warm_start = steps(dir.path(), "run", "sft");
    let numbers = warm_start.iter().map(|it| it["step"].as_u64().unwrap());
    assert!(numbers.eq(1..=warm_start.len() as u64));
    let tokens = warm_start
        .iter()
        .map(|it| it["num_tokens"].as_f64().unwrap());
    let tokens: Vec<f64> = tokens.collect();
    // The budgets of the preset are 20,000 and twice 5,000 tokens.
    assert!(
        tokens.is_sorted() && tokens.last() > Some(&29_000.0),
        "{tokens:?}"
    );
}

/// The learner finds the tokens that the sampler could choose from by itself.
#[test]
fn constrained_completions_have_no_mismatch() {
    let dir = tempfile::tempdir().unwrap();
    for constraint in ["tool_call", "sql"] {
        let setting = format!("learner.rollout.constraint={constraint}");
        train(
            dir.path(),
            constraint,
            &["--preset", "smoke", "--set", &setting],
        );
        assert_no_mismatch(dir.path(), constraint);
    }
    let [tool_call, sql] = ["tool_call", "sql"].map(|name| weights(&dir.path().join(name)));
    assert!(tool_call != sql);
}

/// Starts a run and sends SIGINT after its first GRPO step.
fn interrupt(runs_dir: &Path, name: &str, more: &[&str]) {
    let dir = runs_dir.to_str().unwrap();
    let mut args = vec!["train", "--runs-dir", dir, "--name", name];
    args.extend(more);
    let mut run = Running(sqlenv(&args).stderr(Stdio::piped()).spawn().unwrap());
    let metrics = runs_dir.join(name).join("metrics.jsonl");
    run.until(|| fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"grpo\"")));
    signal(&run, "INT");
    let mut log = String::new();
    let mut stderr = run.0.stderr.take().unwrap();
    stderr.read_to_string(&mut log).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(130), "{log}");
    let command = format!("sqlenv train --resume --name {name} --runs-dir {dir}");
    assert!(log.contains(&command), "{log}");
    let names_step =
        |line: &str| line.starts_with("step 0: ") && line.contains("on eval/curve, greedy: ");
    assert!(log.lines().any(names_step), "{log}");
}
