//! Tests the three roles as processes over TCP, with the loss of an actor.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

use crate::{
    evaluation::{evaluations, weights},
    outcomes::{fail, succeed},
    program::{Running, serve, serve_with, smoke_learner, sqlenv, start_actor},
    reproducible::assert_no_mismatch,
};

/// A run of 6 small steps with two actors. One is killed (SIGKILL) after the first step, and a
/// third actor replaces it.
#[test]
fn a_run_over_tcp_survives_a_killed_actor() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let run_dir = run_dir.to_str().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = smoke_learner(&env, run_dir);
    args.extend([
        "--set",
        "learner.steps=6",
        "--set",
        "learner.lease_seconds=2",
    ]);
    let (mut learner, address) = serve(&args);
    let actor = |id: &str| start_actor(&env, &address, &["--id", id]);
    let mut first = actor("first");
    let _second = actor("second");
    let metrics = Path::new(run_dir).join("metrics.jsonl");
    let steps = || std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    learner.until(|| steps() > 0);
    first.0.kill().unwrap();
    let _third = actor("third");
    let status = learner.0.wait().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(steps(), 6);
    let info = std::fs::read_to_string(Path::new(run_dir).join("run.json")).unwrap();
    assert!(info.contains("\"finished\""), "{info}");
    other_settings_are_refused(&args, Path::new(run_dir));
    other_evaluations_are_refused(&args);
    a_run_continues_on_its_own_data_only(&args, Path::new(run_dir));
    absent_difficulties_are_refused(&env, &dir.path().join("absent"));
    let weights = |dir| std::fs::read(Path::new(run_dir).join(dir).join("model.safetensors"));
    assert!(weights("model").unwrap() == weights("checkpoints/step_6/hf").unwrap());
    assert!(Path::new(run_dir).join("report.html").exists());
}

/// An actor without a setting computes in the dtype of the learner.
#[test]
fn a_run_in_bf16_over_tcp_has_no_mismatch() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("bf16");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = smoke_learner(&env, run_dir.to_str().unwrap());
    // The base policy has rewards that vary, which random weights have not.
    args.extend(["--set", "dtype=bf16", "--set", "model.random_weights=false"]);
    let (mut learner, address) = serve(&args);
    let _actor = start_actor(&env, &address, &[]);
    assert!(learner.0.wait().unwrap().success());
    assert_no_mismatch(dir.path(), "bf16");
    let saved = weights(&run_dir);
    assert!(String::from_utf8_lossy(&saved[..4_096]).contains("\"dtype\":\"BF16\""));
}

/// A learner refuses other settings than those of the run, which stay unchanged, and models with
/// other weights or another tokenizer.
fn other_settings_are_refused(args: &[&str], run_dir: &Path) {
    let config = || std::fs::read_to_string(run_dir.join("config.toml")).unwrap();
    let before = config();
    let model = run_dir.with_file_name("other");
    policy::embedded::base().unwrap().save(&model).unwrap();
    let tokenizer = model.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&tokenizer).unwrap();
    std::fs::write(tokenizer, text + "\n").unwrap();
    for (other, part) in [
        (["--seed", "9"], "other settings"),
        (["--set", "dtype=bf16"], "other settings"),
        (["--set", "model.random_weights=false"], "other settings"),
        (
            ["--model", model.to_str().unwrap()],
            "another tokenizer_config.json",
        ),
    ] {
        let text = fail(sqlenv(args).args(other), 2);
        assert!(text.contains(part), "{text}");
        assert_eq!(config(), before);
    }
}

/// A learner refuses a curriculum that its env-node has no questions for. It has evaluated nothing
/// yet, so that a run with other settings may begin in the folder.
fn absent_difficulties_are_refused(env: &str, run_dir: &Path) {
    let learner = smoke_learner(env, run_dir.to_str().unwrap());
    let curriculum = "learner.curriculum=[{groups=1, difficulties=[\"absent\"]}]";
    let text = fail(sqlenv(&learner).args(["--set", curriculum]), 2);
    assert!(text.contains("the training questions have"), "{text}");
    assert!(evaluations(run_dir).is_empty());
}

/// A learner refuses evaluations on other questions than those of the run.
fn other_evaluations_are_refused(args: &[&str]) {
    let other = ["--set", "evaluation.curve_questions=7"];
    let text = fail(sqlenv(args).args(other), 2);
    assert!(text.contains("evaluation.curve_questions is 7"), "{text}");
}

/// A learner refuses the env-node of other data.
fn a_run_continues_on_its_own_data_only(args: &[&str], run_dir: &Path) {
    let info = || std::fs::read_to_string(run_dir.join("run.json")).unwrap();
    let before = info();
    let other = "env-node --listen 127.0.0.1:0 --databases warehouse";
    let (_other_node, other_env) = serve(&other.split(' ').collect::<Vec<_>>());
    let mut args = args.to_vec();
    let env = args.iter().position(|arg| *arg == "--env").unwrap() + 1;
    args[env] = &other_env;
    let text = fail(&mut sqlenv(&args), 1);
    assert!(text.contains("began with other questions"), "{text}");
    assert_eq!(info(), before);
}

/// An actor whose learner is away reports it in words, and continues to try.
#[test]
fn an_actor_reports_that_its_learner_is_away() {
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    // No server listens there.
    let args = ["actor", "--env", &env, "--learner", "http://127.0.0.1:1"];
    let mut actor = Running(sqlenv(&args).stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(actor.0.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let away = lines.find(|line| line.contains("calls of the learner have failed"));
    let away = away.expect("the actor ended without the message");
    assert!(away.contains("Connection refused"), "{away}");
    assert!(!away.contains("Error("), "{away}");
    assert!(actor.0.try_wait().unwrap().is_none());
}

/// The error for an occupied port names the address and the flag.
#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = fail(&mut sqlenv(&["env-node", "--listen", &address]), 1);
    assert!(
        text.contains(&address) && text.contains("--listen"),
        "{text}"
    );
}

/// An env-node opens the files of its settings before it reports that it serves.
#[test]
fn a_token_file_that_is_absent_is_named_before_the_node_serves() {
    let setting = "env_node.server.bearer_token_file=/absent/token";
    let node = ["env-node", "--listen", "127.0.0.1:0", "--set", setting];
    let text = fail(&mut sqlenv(&node), 1);
    assert!(
        text.contains("/absent/token") && !text.contains("serves on"),
        "{text}"
    );
}

/// OpenEnv's variables are defaults: explicit settings have priority, and empty variables are
/// ignored.
#[test]
fn openenvs_variables_set_an_env_node() {
    let mut node = sqlenv(&["env-node", "--set", "env_node.openenv.max_sessions=0"]);
    node.envs([("MAX_CONCURRENT_ENVS", "8"), ("OPENENV_MODE", "")]);
    let text = fail(&mut node, 2);
    assert!(text.contains("openenv.max_sessions"), "{text}");
    let mut node = sqlenv(&["env-node"]);
    node.env_remove("SQLENV_LISTEN")
        .env("MAX_CONCURRENT_ENVS", "0")
        .envs([("HOST", "127.0.0.1"), ("PORT", "0")]);
    let text = fail(&mut node, 2);
    assert!(text.contains("openenv.max_sessions"), "{text}");
    let mut node = sqlenv(&["env-node"]);
    node.env_remove("SQLENV_LISTEN").env("PORT", "0");
    let (_node, address) = serve_with(&mut node);
    assert!(!address.ends_with(":8000"), "{address}");
}

/// An env-node with a bearer token accepts clients that send it. Other clients learn which flag
/// they need.
#[test]
fn a_token_file_opens_an_env_node() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let file = file.to_str().unwrap();
    let setting = format!("env_node.server.bearer_token_file={file}");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0", "--set", &setting]);
    let eval = [
        "eval",
        "--policy",
        "random",
        "--questions",
        "2",
        "--env",
        &env,
    ];
    let text = fail(&mut sqlenv(&eval), 1);
    assert!(text.contains("--env-token-file"), "{text}");
    succeed(sqlenv(&eval).args(["--env-token-file", file]));
}
