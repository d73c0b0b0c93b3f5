//! Tests that a distributed run has the evaluations of a local one.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::{
    http::free_address,
    outcomes::succeed,
    program::{serve, sqlenv, start_actor},
};

const SETTINGS: [&str; 9] = [
    "learner.curriculum=[{groups=3, difficulties=[\"level-0\", \"level-1\"]}]",
    "learner.steps=2",
    "learner.demonstration_weight=1",
    "learner.groups_per_step=2",
    "learner.checkpoint.every_steps=1",
    "evaluation.every_steps=1",
    "evaluation.questions=20",
    "evaluation.unseen_questions=20",
    "evaluation.curve_questions=20",
];

/// The evaluations of a run, by policy, step, split and mode.
pub(crate) fn evaluations(run_dir: &Path) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(run_dir.join("evaluations.jsonl")).unwrap_or_default();
    let record = |line| {
        let record: Value = serde_json::from_str(line).unwrap();
        let key = ["policy", "step", "split", "mode"].map(|field| record[field].to_string());
        (key.join(" "), record)
    };
    // A learner may be writing the last line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(record).collect()
}

pub(crate) fn weights(run_dir: &Path) -> Vec<u8> {
    fs::read(run_dir.join("model/model.safetensors")).unwrap()
}

/// Checks that both runs have the same best model, and that models have a card.
fn check_models(one: &Path, three: &Path) {
    let best = |run: &Path| fs::read(run.join("model-best/model.safetensors")).unwrap();
    assert!(best(one) == best(three));
    // A learner does not know the licence of the data, which its env-node has.
    for (run, licence) in [
        (one, "---\nlicense: apache-2.0\n"),
        (three, "base model: apache-2.0; data: not stated\n"),
    ] {
        let card = fs::read_to_string(run.join("model/README.md")).unwrap();
        for part in [
            licence,
            "2 steps of GRPO",
            "| random | 0 |",
            "groups_per_step = 2",
        ] {
            assert!(card.contains(part), "{part} is missing in\n{card}");
        }
        assert!(!card.contains("too high"), "{card}");
        // The accuracy for which the model was chosen, at either step, is no estimate of it.
        let card = fs::read_to_string(run.join("model-best/README.md")).unwrap();
        let row = |step| format!("| GRPO | {step} | eval, other questions | greedy |");
        assert!(card.contains(&row(1)) || card.contains(&row(2)), "{card}");
        for part in ["that number is too high", "--split eval --questions 20`"] {
            assert!(card.contains(part), "{part} is missing in\n{card}");
        }
    }
    let served = fs::read_to_string(three.join("model/README.md")).unwrap();
    assert!(!served.contains("license:"), "{served}");
}

/// The learner is killed (SIGKILL) after the first evaluation by actors. It does not know the gold
/// answers, so the oracle is missing.
#[test]
fn three_processes_give_the_weights_and_the_table_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let settings: Vec<&str> = SETTINGS.iter().flat_map(|it| ["--set", it]).collect();
    let runs_dir = dir.path().to_str().unwrap();
    let local = [
        &["train", "--runs-dir", runs_dir, "--name", "one"][..],
        &["--set", "imitation.enabled=false"][..],
        &settings[..],
    ]
    .concat();
    succeed(&mut sqlenv(&local));

    let three = dir.path().join("three");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    // A restarted learner needs the address of the first.
    let listen = free_address();
    let run_dir = three.to_str().unwrap();
    let args = [
        "learner",
        "--listen",
        &listen,
        "--env",
        &env,
        "--run-dir",
        run_dir,
    ];
    let args = [&args, &settings[..]].concat();
    let (mut learner, address) = serve(&args);
    let _actor = start_actor(&env, &address, &[]);
    learner.until(|| evaluations(&three).keys().any(|key| key.contains("base")));
    learner.0.kill().unwrap();
    learner.0.wait().unwrap();
    let (mut learner, _) = serve(&args);
    assert!(learner.0.wait().unwrap().success());

    let one = dir.path().join("one");
    assert!(weights(&one) == weights(&three));
    let text = fs::read_to_string(three.join("evaluations.jsonl")).unwrap();
    assert_eq!(text.lines().count(), evaluations(&three).len(), "{text}");
    let mut expected = evaluations(&one);
    expected.retain(|_, record| record["policy"] != "oracle");
    assert_eq!(evaluations(&three), expected);
    // Greedy and sampled: the curve at three steps, and `eval` at both ends; greedy: two splits.
    // Random: all three splits.
    assert_eq!(expected.len(), 2 * (3 + 2) + 2 * 2 + 3);
    check_models(&one, &three);
    let report = fs::read_to_string(three.join("report.html")).unwrap();
    assert!(!report.contains("Nothing has been evaluated"));
}
