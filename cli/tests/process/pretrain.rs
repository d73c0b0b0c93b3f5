//! Tests that pretraining is a function of its seed, also when it is killed and continued.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    endings::signal,
    evaluation::weights,
    outcomes::{fail, succeed},
    program::{Running, sqlenv},
};

/// Two shards of a few databases. The second one has messy schemas, too.
fn pretrain(out: &Path) -> Command {
    let mut command = sqlenv(&["pretrain"]);
    for setting in [
        "pretrain.shards=2",
        "pretrain.simple_shards=1",
        "pretrain.tidy_shards=1",
        "pretrain.databases_per_shard=12",
        "pretrain.questions_per_database=3",
        "pretrain.evaluate_every_shards=1",
        "evaluation.questions=6",
    ] {
        command.args(["--set", setting]);
    }
    command.arg("--out").arg(out);
    command
}

fn finish(out: &Path) {
    succeed(&mut pretrain(out));
}

#[test]
fn a_killed_pretraining_continues_to_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    finish(&whole);
    let config = fs::read_to_string(whole.join("config.toml")).unwrap();
    assert!(config.contains("\nlearning_rate = 0.002\n"), "{config}");
    let report = fs::read_to_string(whole.join("report.html")).unwrap();
    assert!(
        report.contains("<h1>The pretrained policy answers"),
        "{report}"
    );

    // The preset of a model limits the demonstrations of its warm start. Pretraining has them all.
    let limited = || {
        let mut command = pretrain(&killed);
        command.args(["--set", "warm_start.demonstrations=2"]);
        command
    };
    let mut running = Running(limited().stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let is_second = |line: &String| line.starts_with("shard 2 of 2");
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| is_second(&line))
    );
    running.0.kill().unwrap();
    drop(running);
    succeed(&mut limited());

    assert!(weights(&whole) == weights(&killed), "the weights differ");
    let evaluations = |out: &Path| fs::read_to_string(out.join("evaluations.jsonl")).unwrap();
    assert_eq!(evaluations(&whole), evaluations(&killed));
    // Two evaluations on four splits.
    assert_eq!(evaluations(&whole).lines().count(), 8);

    let printed = fail(limited().args(["--seed", "1"]), 1);
    assert!(printed.contains("other settings"), "{printed}");
    let shape = dir.path().join("shape");
    fs::create_dir(&shape).unwrap();
    let embedded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/embedded"));
    for name in [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(embedded.join(name), shape.join(name)).unwrap();
    }
    let config = fs::read_to_string(embedded.join("config.json")).unwrap();
    let other_theta = config.replace("\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    assert_ne!(config, other_theta);
    fs::write(shape.join("config.json"), other_theta).unwrap();
    let printed = fail(limited().arg("--architecture").arg(&shape), 1);
    assert!(printed.contains("other model files"), "{printed}");
}

/// A signal does not wait for the other databases of the shard.
#[test]
fn a_signal_ends_the_build_of_a_shard() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = pretrain(dir.path());
    command.args(["--set", "pretrain.databases_per_shard=4000"]);
    let mut running = Running(command.stderr(Stdio::null()).spawn().unwrap());
    running.until(|| dir.path().join(".shard.new/databases").exists());
    signal(&running, "TERM");
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    // A shard appears when all its databases are built.
    for name in ["shard", ".shard.new"] {
        assert!(!dir.path().join(name).exists(), "{name}");
    }
}

/// The work of days is not lost to a file in the way of its result.
#[test]
fn a_folder_in_place_of_the_model_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("thesis.txt"), "years of work").unwrap();
    let printed = fail(&mut pretrain(dir.path()), 1);
    assert!(printed.contains("choose another"), "{printed}");
    assert!(!printed.contains("shard 1"), "{printed}");
    assert!(!dir.path().join("config.toml").exists());
}

/// A user's own data need not have the splits on which base policies are evaluated.
#[test]
fn splits_without_questions_are_not_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let (data, out) = (dir.path().join("data"), dir.path().join("out"));
    let data = data.to_str().unwrap();
    let build = "data procedural --databases 3 --questions 2 --out";
    let mut build: Vec<&str> = build.split(' ').collect();
    build.push(data);
    succeed(&mut sqlenv(&build));
    let mut command = pretrain(&out);
    command.args(["--set", "pretrain.shards=1", "--data", data]);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    let skipped = "no question has the split eval-unseen/domain";
    assert!(printed.contains(skipped), "{printed}");
    let evaluations = fs::read_to_string(out.join("evaluations.jsonl")).unwrap();
    assert_eq!(evaluations.lines().count(), 2, "held-out words alone");

    let mut command = pretrain(&dir.path().join("of-one-database"));
    command.args(["--set", "pretrain.shards=1", "--databases", "zoo_2"]);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains(skipped), "{printed}");
    assert!(!printed.contains("split eval-unseen/database"), "{printed}");
}

#[test]
fn a_training_continues_from_the_weights_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    finish(&first);
    let continued = |model: &Path| {
        let mut command = pretrain(&second);
        command.args(["--set", "pretrain.corrected_shards=0", "--model"]);
        command.arg(model);
        command
    };
    succeed(&mut continued(&first.join("model")));

    // The training goes on where the first one ended, and not from random weights.
    let losses = |out: &Path| -> Vec<f64> {
        let metrics = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let loss = |text: &str| line(text)["loss"].as_f64().unwrap();
        metrics.lines().map(loss).collect()
    };
    assert!(losses(&second)[0] < losses(&first)[1]);

    // The settings name the same folder, but its weights are others.
    let weights = |out: &Path| out.join("model/model.safetensors");
    fs::copy(weights(&second), weights(&first)).unwrap();
    let printed = fail(&mut continued(&first.join("model")), 1);
    assert!(printed.contains("other model files"), "{printed}");
}
