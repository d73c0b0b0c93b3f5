//! Tests that an error of a person is answered by a message that names the thing and what to do.

use std::{fs, path::Path};

use crate::{
    outcomes::{fail, succeed},
    program::{serve, smoke_learner, sqlenv},
};

/// Checks that a command fails, with any exit code, and that its error has these parts.
fn check(args: &[&str], parts: &[&str]) {
    let output = sqlenv(args).output().unwrap();
    assert!(!output.status.success(), "{args:?} should fail");
    let text = String::from_utf8_lossy(&output.stderr);
    for part in parts {
        assert!(
            text.contains(part),
            "{args:?} should mention {part:?}, printed: {text}"
        );
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn wrong_words() {
    check(&["trian"], &["trian", "train"]);
    check(&["train", "--sed", "3"], &["--sed", "--seed"]);
    check(&["train", "--set", "learner.stepz=3"], &["stepz", "steps"]);
    check(&["train", "--set", "steps"], &["steps", "KEY=VALUE"]);
    check(&["train", "--config", "nowhere.toml"], &["nowhere.toml"]);
    for name in ["", "../elsewhere", "/tmp/elsewhere"] {
        check(&["train", "--name", name], &["--name", "--runs-dir"]);
    }
    check(&["train", "--set", "learner.steps=abc"], &["learner.steps"]);
    check(
        &["train", "--resume", "--seed", "7"],
        &["--resume", "--seed"],
    );
    for (flag, value) in [
        ("--seconds=-1", "-1"),
        ("--episodes=0", "0"),
        ("--in-flight=x", "x"),
    ] {
        check(&["bench", "env", flag], &[value, "give"]);
    }
    let groups = ["bench", "policy", "--parts", "groups", "--rows", "4"];
    check(&groups, &["--rows", "multiple of 8"]);
    check(&["eval"], &["--model", "--policy random"]);
    let random = ["eval", "--policy", "random"];
    for (flag, value, part) in [
        ("--shots", "2", "0, 1 or 3"),
        ("--temperature=-1", "--questions=1", "temperature"),
        ("--temperature", "nan", "temperature"),
        (
            "--set",
            "learner.rollout.reward_profile=nice",
            "sqlenv-final",
        ),
    ] {
        check(&[&random[..], &[flag, value]].concat(), &[part]);
    }
    check(&["train", "--log", "=loud="], &["--log"]);
    check(
        &["eval", "--split", "nosuch", "--policy", "random"],
        &["nosuch", "eval", "train"],
    );
    check(&["play", "--question", "nosuch"], &["nosuch"]);
    check(&["report", "nowhere"], &["nowhere"]);
    check(&["import-gguf", "nowhere.gguf", "out"], &["nowhere.gguf"]);
    check(&["import-gguf", "README.md", "out"], &["README.md", "GGUF"]);
    check(
        &[
            "actor",
            "--env",
            "not an address",
            "--learner",
            "http://127.0.0.1:1",
        ],
        &["--env", "http://HOST:PORT"],
    );
    check(
        &["play", "--env", "http://127.0.0.1:1"],
        &["Connection refused", "check the address (http or https)"],
    );
}

#[test]
fn numbers_of_procedural_data_beyond_the_limits() {
    for (flag, value, part) in [
        ("--databases", "0", "1..=1000000"),
        ("--questions", "18446744073709551615", "1..=10000"),
        ("--declared-percent", "101", "..=100"),
    ] {
        let args = ["data", "procedural", "--out", "words", flag, value];
        check(&args, &[flag, part]);
    }
}

#[test]
fn wrong_folders() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    check(&["eval", "--model", path], &[path, "config.json"]);
    check(
        &["eval", "--model", "/nowhere"],
        &["/nowhere", "config.json"],
    );
    check(&["eval", "--data", path, "--policy", "random"], &[path]);
    check(&["data", "check", "/nowhere"], &["/nowhere"]);
    check(
        &["train", "--resume", "--runs-dir", path, "--name", "gone"],
        &["gone"],
    );
    check(
        &["train", "--runs-dir", "/proc/nowhere"],
        &["/proc/nowhere"],
    );
    check(
        &["eval", "--policy", "random", "--questions", "0"],
        &["--questions", "1 or more"],
    );
}

/// A page that a person wrote is not replaced by a report of nothing.
#[test]
fn a_folder_that_is_no_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let page = dir.path().join("report.html");
    fs::write(&page, "years of work").unwrap();
    for command in ["report", "doctor"] {
        check(&[command, path], &[path, "runs/NAME"]);
    }
    assert_eq!(fs::read_to_string(page).unwrap(), "years of work");
}

/// A supervisor must not start a command again whose settings are wrong.
#[test]
fn wrong_settings_end_a_command_as_wrong_flags_do() {
    let node = ["env-node", "--listen", "127.0.0.1:0", "--set"];
    let learner = ["learner", "--listen", "127.0.0.1:0"];
    for args in [
        &["train", "--set", "learner.stepz=3"][..],
        &["train", "--config", "nowhere.toml"],
        &["train", "--dry-run", "--set", "env.sql.rows=0"],
        &["train", "--dry-run", "--set", "env.sql.statement_bytes=50"],
        &[
            "train",
            "--dry-run",
            "--set",
            "env_node.server.max_call_seconds=nan",
        ],
        &["env-node", "--set", "env.step_budgets=3"],
        &["env-node", "--listen", "localhost:8000"],
        &["doctor", "data"],
        &[&learner[..], &["--env", "127.0.0.1:1", "--run-dir", "run"]].concat(),
        &[
            &learner[..],
            &["--env", "http://127.0.0.1:1", "--run-dir", ""],
        ]
        .concat(),
        &[
            &learner[..],
            &["--env", "http://127.0.0.1:1", "--run-dir", "gcs://a/b"],
        ]
        .concat(),
        &[
            &learner[..],
            &["--env", "http://127.0.0.1:1", "--run-dir", "data"],
        ]
        .concat(),
        &["train", "--stepz"],
        &["train", "--set", "learner.ranks.count=2"],
        &["train", "--set", "learner.lease_seconds=60"],
        &["train", "--set", "learner.trust.verified_share=0.5"],
        &["train", "--name", "../elsewhere"],
        &["train", "--dry-run", "--name", "../elsewhere"],
        &[&node[..], &["env.step_budget=0"]].concat(),
        &[&node[..], &["env_node.server.max_connections=0"]].concat(),
        &["eval", "--policy", "random", "--shots", "2"],
        &["settings", "--log", "=loud="],
    ] {
        fail(&mut sqlenv(args), 2);
    }
}

/// The images set the variable to the project's own data.
#[test]
fn the_variable_of_the_data_yields_to_settings() {
    let dir_with = |args: &[&str]| {
        let mut command = sqlenv(&["train", "--dry-run"]);
        let output = command.args(args).env("SQLENV_DATA", "data").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let settings: toml::Table = text.parse().unwrap();
        settings["data"]["dir"].as_str().unwrap().to_owned()
    };
    assert_eq!(dir_with(&[]), "data");
    assert_eq!(dir_with(&["--set", "data.dir=docs"]), "docs");
    assert_eq!(dir_with(&["--data", "proto"]), "proto");

    let mut stats = sqlenv(&["data", "stats"]);
    let text = fail(stats.env("SQLENV_DATA", "no-such-data"), 1);
    assert!(text.contains("no-such-data"), "{text}");
}

#[test]
fn an_env_node_that_is_away_is_named() {
    let nobody = ["--env", "http://127.0.0.1:1"];
    for command in [&["play"][..], &["eval", "--policy", "random"]] {
        check(
            &[command, &nobody].concat(),
            &["http://127.0.0.1:1", "sqlenv env-node"],
        );
    }
}

/// All databases that this env-node serves are for evaluations.
#[test]
fn a_learner_without_training_questions_says_so_before_it_begins_a_run() {
    let mut node = vec!["env-node", "--listen", "127.0.0.1:0"];
    node.extend(["--databases", "zoo_2"]);
    let (_node, address) = serve(&node);
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let learner = smoke_learner(&address, run_dir.to_str().unwrap());
    let refusal = "serves no question of the split `train`";
    check(&learner, &[&address, refusal, "docs/data.md"]);
    assert!(!run_dir.join("checkpoints").exists());
}

/// `train` finds it before it makes a folder, which `--resume` would choose.
#[test]
fn a_training_without_training_questions_leaves_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let runs_dir = dir.path().to_str().unwrap();
    let train = ["train", "--preset", "smoke", "--databases", "zoo_2"];
    let train = [&train[..], &["--runs-dir", runs_dir]].concat();
    check(
        &train,
        &["no question of the split `train`", "docs/data.md"],
    );
    assert_eq!(fs::read_dir(runs_dir).unwrap().count(), 0);
}

/// The learner would otherwise name it only when an env-node has answered.
#[test]
fn a_model_that_is_absent_is_named_before_the_learner_waits() {
    let learner = ["learner", "--env", "http://127.0.0.1:1", "--run-dir", "run"];
    let model = ["--set", "model.dir=/nowhere"];
    check(&[&learner[..], &model].concat(), &["model.dir", "/nowhere"]);
}

/// The questions are those of the data at hand, so the env-node must have them.
#[test]
fn an_env_node_with_other_data_is_named_before_anything_is_played() {
    let node = [
        "env-node",
        "--listen",
        "127.0.0.1:0",
        "--databases",
        "zoo_2",
    ];
    let (_node, address) = serve(&node);
    check(
        &[
            "eval",
            "--policy",
            "random",
            "--questions",
            "3",
            "--env",
            &address,
        ],
        &[&address, "other data", "--data", "--databases"],
    );
}

/// A learner needs the solutions of its env-node's questions only to demonstrate them.
#[test]
fn a_learner_refuses_data_that_it_does_not_read_or_that_are_not_its_env_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let node = [
        "env-node",
        "--listen",
        "127.0.0.1:0",
        "--databases",
        "trial",
    ];
    let (_node, env) = serve(&node);
    let mut learner = smoke_learner(&env, run_dir.to_str().unwrap());
    learner.extend(["--databases", "warehouse"]);
    check(
        &learner,
        &["--databases", "only with learner.demonstration_weight"],
    );
    learner.extend(["--set", "learner.demonstration_weight=1"]);
    check(
        &learner,
        &[&env, "serves other data", "--data", "--databases"],
    );
}

/// This model has 2,048 positions.
#[test]
fn contexts_beyond_the_model_are_refused_before_a_run_begins() {
    let dir = tempfile::tempdir().unwrap();
    let runs_dir = dir.path().to_str().unwrap();
    let context = "learner.rollout.max_context_tokens=4096";
    let model = ["--model", "policy/embedded", "--set", context];
    let refused = |args: &[&str]| {
        let text = fail(sqlenv(args).args(model), 2);
        for part in ["learner.rollout.max_context_tokens: is 4096", "2048"] {
            assert!(text.contains(part), "{text}");
        }
    };
    refused(&["train", "--runs-dir", runs_dir]);
    refused(&["train", "--dry-run"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let preset_alone = ["train", "--preset", "model", "--dry-run"];
    let text = fail(&mut sqlenv(&preset_alone), 2);
    assert!(text.contains("error: without --model DIR"), "{text}");

    let (_node, address) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let run_dir = dir.path().join("run");
    let learner = ["learner", "--listen", "127.0.0.1:0", "--env", &address];
    let run = ["--run-dir", run_dir.to_str().unwrap()];
    refused(&[&learner[..], &run].concat());
}

#[test]
fn a_folder_that_is_no_model_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
    let out = dir.path().to_str().unwrap();
    check(
        &["sft", "--preset", "smoke", "--out", out],
        &[out, "choose another"],
    );
    assert!(dir.path().join("thesis.txt").is_file());
}

#[test]
fn a_run_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mine")).unwrap();
    fs::write(dir.path().join("mine/config.toml"), "").unwrap();
    let runs_dir = dir.path().to_str().unwrap();
    check(
        &["train", "--runs-dir", runs_dir, "--name", "mine"],
        &["mine", "--resume", "--name"],
    );
    // A run would replace the folder `model`.
    let thesis = dir.path().join("other/model/thesis.txt");
    fs::create_dir_all(thesis.parent().unwrap()).unwrap();
    fs::write(&thesis, "years of work").unwrap();
    let train = ["train", "--preset", "smoke", "--runs-dir", runs_dir];
    let printed = fail(sqlenv(&train).args(["--name", "other"]), 2);
    assert!(printed.contains("choose another run folder"), "{printed}");
    assert!(thesis.is_file());
}

#[test]
fn broken_data() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    succeed(&mut sqlenv(&["data", "build", "--out", data]));
    let database = Path::new(data).join("databases/warehouse/warehouse.sqlite");
    let mut bytes = fs::read(&database).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&database, &bytes).unwrap();
    check(
        &["eval", "--data", data, "--policy", "random"],
        &["warehouse.sqlite"],
    );
    bytes[5_000] ^= 1;
    fs::write(&database, bytes).unwrap();
    fs::write(
        Path::new(data).join("questions/eval.jsonl"),
        "{\"question_id\": 3}\n",
    )
    .unwrap();
    check(&["data", "stats", data], &["eval.jsonl"]);
}

/// Names of files, and what is in them, are somebody else's text.
#[test]
fn errors_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "\u{1b}]0;title\u{7}\u{1b}[31m\u{9b}1m\u{202e}";
    let folder = dir.path().join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("manifest.json"), "{}").unwrap();
    let text = fail(&mut sqlenv(&["data", "stats", folder.to_str().unwrap()]), 1);
    assert!(
        text.contains("manifest.json") && text.contains("]0;title"),
        "{text:?}"
    );
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    let config = serde_json::json!({"model_type": name}).to_string();
    fs::write(model.join("config.json"), config).unwrap();
    let args = [
        "eval",
        "--split",
        "train",
        "--model",
        model.to_str().unwrap(),
    ];
    let refused = fail(&mut sqlenv(&args), 1);
    assert!(refused.contains("model_type"), "{refused:?}");
    for text in [text, refused] {
        let controls = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(controls), "{text:?}");
    }
}

/// A log line quotes the text of a file, here of a checkpoint.
#[test]
fn logs_do_not_control_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("run/checkpoints/step_1");
    fs::create_dir_all(&checkpoint).unwrap();
    fs::write(checkpoint.join("state.json"), "{\"\u{1b}[31m\u{9b}1m\": 1}").unwrap();
    let run = dir.path().join("run");
    let text = fail(&mut sqlenv(&["trajectories", run.to_str().unwrap()]), 1);
    assert!(text.contains("checkpoint skipped"), "{text:?}");
    // Not even colours: a log file has none.
    let controls = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(controls), "{text:?}");
}

#[test]
fn transcripts_without_a_conversation_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (empty, out) = (path("empty.jsonl"), path("out"));
    fs::write(&empty, "\n").unwrap();
    let imitate = |file: &str| sqlenv(&["sft", "--out", &out, "--transcripts", file]);
    let text = fail(&mut imitate(&empty), 1);
    assert!(text.contains("empty.jsonl has no conversation"), "{text}");
    let (long, sql) = (path("long.jsonl"), "SELECT 'x' ".repeat(3_000));
    let call = serde_json::json!({
        "id": "c",
        "type": "function",
        "function": {"name": "query", "arguments": serde_json::json!({"sql": sql}).to_string()},
    });
    let conversation = serde_json::json!({"messages": [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1. x"},
    ]});
    fs::write(&long, conversation.to_string()).unwrap();
    let text = fail(&mut imitate(&long), 1);
    let reason = "left out: 1 longer than the model's context of 2048 tokens";
    assert!(text.contains(reason), "{text}");
}

/// The work of hours is not lost to a mistyped path.
#[test]
fn outputs_are_tried_before_the_work() {
    let nowhere = "/proc/none/out";
    for args in [
        &["sft", "--preset", "scratch", "--out", nowhere][..],
        &["pretrain", "--out", nowhere],
        &[
            "eval", "--policy", "random", "--split", "eval", "--json", nowhere,
        ],
        &[
            "eval",
            "--policy",
            "random",
            "--split",
            "eval",
            "--transcripts",
            nowhere,
        ],
        &["data", "tokenizer", "--out", nowhere],
        &["data", "build", "--out", nowhere],
        &["data", "procedural", "--databases", "500", "--out", nowhere],
        &["import-gguf", "none.gguf", nowhere],
        &["gpu-check", "--device", "cpu", "--out", nowhere],
    ] {
        let text = fail(&mut sqlenv(args), 1);
        assert!(
            text.contains(nowhere) || text.contains("/proc/none"),
            "{args:?}: {text}"
        );
        for work in ["episodes in", "demonstrations:", "imitating", "decoder"] {
            assert!(!text.contains(work), "{args:?} began: {text}");
        }
    }
}
