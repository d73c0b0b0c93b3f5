//! Tests that an outage of all env-nodes delays a run and does not change it.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread::sleep,
    time::Duration,
};

use crate::{
    evaluation::{evaluations, weights},
    http::free_address,
    program::{Running, serve, sqlenv, start_actor},
    second_learner::{TRAINED_ALONE, learner_args},
};

/// The calls of the actor run out of retries at once, so that the outage is longer than they last.
#[test]
fn groups_wait_for_an_env_node_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let listen = free_address();
    let env_node = || serve(&["env-node", "--listen", &listen]);
    let (first, env) = env_node();
    let run = dir.path().join("run");
    let (mut learner, address) = serve(&learner_args("127.0.0.1:0", &env, run.to_str().unwrap()));
    let impatient = ["--set", "actor.env_retry.attempts=1"];
    let _actor = start_actor(&env, &address, &impatient);
    let is_base = |key: &String| key.contains("base") && key.contains("sampled");
    learner.until(|| evaluations(&run).keys().any(is_base));
    // The last evaluation before the first group is recorded.
    drop(first);
    sleep(Duration::from_secs(3));
    assert!(
        learner.0.try_wait().unwrap().is_none(),
        "ended in the outage"
    );
    let (_second, _) = env_node();
    assert!(learner.0.wait().unwrap().success());
    assert!(weights(&run) == *TRAINED_ALONE);
    let failed = evaluations(&run)
        .values()
        .filter(|it| it.get("failed").is_some())
        .count();
    assert_eq!(failed, 0);
}

/// The actor ends with the reason, and the learner waits for the data of its run.
#[test]
fn an_env_node_that_returns_with_other_data_does_not_change_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let listen = free_address();
    let env_node = |more: &[&str]| serve(&[&["env-node", "--listen", &listen], more].concat());
    let (first, env) = env_node(&[]);
    let run = dir.path().join("run");
    let (mut learner, address) = serve(&learner_args("127.0.0.1:0", &env, run.to_str().unwrap()));
    let actor = sqlenv(&["actor", "--env", &env, "--learner", &address])
        .stderr(Stdio::piped())
        .spawn();
    let is_base = |key: &String| key.contains("base") && key.contains("sampled");
    learner.until(|| evaluations(&run).keys().any(is_base));
    drop(first);
    let (other, _) = env_node(&["--databases", "brewery"]);
    let ended = actor.unwrap().wait_with_output().unwrap();
    let log = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{log}");
    let reason = "error: Env.Reset failed: this node serves data";
    assert!(log.contains(reason) && log.contains("--databases"), "{log}");
    assert!(learner.0.try_wait().unwrap().is_none(), "the run goes on");
    drop(other);
    let (_same, _) = env_node(&[]);
    let _actor = start_actor(&env, &address, &[]);
    assert!(learner.0.wait().unwrap().success());
    assert!(weights(&run) == *TRAINED_ALONE);
}

/// Nothing serves there. Without a word, a mistyped address looks like a slow start.
#[test]
fn a_learner_names_what_it_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let env = "http://127.0.0.1:1";
    let args = learner_args("127.0.0.1:0", env, run.to_str().unwrap());
    let child = sqlenv(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut learner = Running(child);
    let mut lines = BufReader::new(learner.0.stderr.take().unwrap()).lines();
    let mut line_with = |part: &str| loop {
        let line = lines.next().expect("the learner ended").unwrap();
        if line.contains(part) {
            break line;
        }
    };
    let waits = line_with("reading the questions of --env");
    assert!(waits.contains(env), "{waits}");
    let away = line_with("are repeated");
    assert!(away.contains("env-node"), "{away}");
}
