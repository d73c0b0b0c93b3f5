//! Tests that an interrupted supervised training continues to the same weights.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    endings::signal,
    outcomes::{fail, succeed},
    program::{Running, sqlenv},
};

/// Imitates the oracle, its corrections and the mixed demonstrators, in some seconds.
fn sft(out: &Path) -> Command {
    let mut command = sqlenv(&["sft", "--preset", "smoke", "--out"]);
    command.arg(out);
    command
}

fn finish(out: &Path) {
    succeed(&mut sft(out));
}

/// Sends SIGINT when the first stage begins, and returns the folder of its checkpoints.
fn interrupt(out: &Path) -> PathBuf {
    let mut running = Running(sft(out).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let mut lines = lines.by_ref().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("imitating the oracle")));
    signal(&running, "INT");
    let rest: Vec<String> = lines.collect();
    assert_eq!(running.0.wait().unwrap().code(), Some(130), "{rest:?}");
    let mut name = out.as_os_str().to_owned();
    name.push(".checkpoints");
    name.into()
}

#[test]
fn an_interrupted_training_continues_to_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, resumed) = (dir.path().join("whole"), dir.path().join("resumed"));
    finish(&whole);

    let checkpoints = interrupt(&resumed);
    assert!(!resumed.exists(), "a model was written before its end");
    let oracle = checkpoints.join("imitating-the-oracle");
    assert!(fs::read_dir(&oracle).unwrap().count() > 0, "no checkpoint");

    let printed = fail(sft(&resumed).args(["--seed", "1"]), 1);
    assert!(printed.contains(oracle.to_str().unwrap()), "{printed}");

    finish(&resumed);
    let weights = |out: &Path| fs::read(out.join("model.safetensors")).unwrap();
    assert!(
        weights(&whole) == weights(&resumed),
        "the weights differ from those of an uninterrupted training"
    );
    assert!(!checkpoints.exists(), "the checkpoints were not removed");
}

#[test]
fn questions_that_are_skipped_are_not_demonstrated() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model");
    let remedy = "lower warm_start.skip_questions";
    let skipped = ["--set", "warm_start.skip_questions=1000000"];
    let printed = fail(sft(&out).args(skipped), 1);
    assert!(printed.contains(remedy), "{printed}");
    // This database has no training questions.
    let printed = fail(sft(&out).args(["--databases", "zoo_2"]), 1);
    let has_none = printed.contains("has no questions to demonstrate");
    assert!(has_none && !printed.contains(remedy), "{printed}");
    assert!(!out.exists());

    // Nor does the policy play them. There are fewer than either stage would use.
    let data = dir.path().join("data");
    let build = "data procedural --databases 3 --questions 2 --out";
    let build: Vec<&str> = build.split(' ').collect();
    succeed(sqlenv(&build).arg(&data));
    let mut skipping = sft(&out);
    skipping.args(["--set", "warm_start.skip_questions=2", "--data"]);
    let output = skipping.arg(&data).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let episodes = |title: &str| printed.lines().find_map(|line| line.strip_prefix(title));
    let played = episodes("corrected episodes, warm start: ");
    let demonstrated = episodes("demonstrations, oracle: ");
    assert!(played.is_some() && played == demonstrated, "{printed}");
}

/// Conversations need no data, which would have no effect.
#[test]
fn transcripts_and_data_are_not_given_together() {
    let transcripts = ["sft", "--out", "none", "--transcripts", "none.jsonl"];
    for data in [["--data", "data"], ["--databases", "zoo_2"]] {
        let printed = fail(sqlenv(&transcripts).args(data), 2);
        assert!(printed.contains("cannot be used with"), "{printed}");
    }
}
