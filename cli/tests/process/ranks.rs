//! Tests a run of two ranks as processes, one of which is killed.

use std::{
    fs,
    io::Read as _,
    path::Path,
    process::Stdio,
    thread::{JoinHandle, sleep},
    time::Duration,
};

use crate::{
    endings::signal,
    program::{Running, serve, serve_with_log, smoke_learner, sqlenv, start_actor},
};

/// Groups of a random policy have no reward variance, so the loss needs an entropy term.
const SETTINGS: [&str; 12] = [
    "--set",
    "learner.steps=6",
    "--set",
    "learner.dynamic_sampling=false",
    "--set",
    "learner.loss.entropy_coef=0.01",
    "--set",
    "learner.demonstration_weight=0.5",
    "--set",
    "learner.ranks.count=2",
    "--set",
    "learner.ranks.timeout_seconds=120",
];

/// Less than the timeout of the settings.
const LIMIT: Duration = Duration::from_secs(60);

/// A learner with its rank and its actor.
struct Run {
    learner: Running,
    rank: Running,
    _actor: Running,
    address: String,
    learner_log: JoinHandle<String>,
}

fn start(env: &str, run_dir: &Path) -> Run {
    let mut learner = sqlenv(&smoke_learner(env, run_dir.to_str().unwrap()));
    let (learner, address, learner_log) = serve_with_log(learner.args(SETTINGS));
    let rank = ["rank", "--learner", &address, "--timeout-seconds", "2"];
    let rank = sqlenv(&rank).stderr(Stdio::piped()).spawn().unwrap();
    Run {
        learner,
        rank: Running(rank),
        _actor: start_actor(env, &address, &[]),
        address,
        learner_log,
    }
}

/// Waits for a process and returns its exit code.
fn ended_within(limit: Duration, process: &mut Running) -> Option<i32> {
    let pause = Duration::from_millis(10);
    for _ in 0..limit.as_millis() / pause.as_millis() {
        if let Some(status) = process.0.try_wait().unwrap() {
            return status.code();
        }
        sleep(pause);
    }
    panic!("it still runs after {limit:?}");
}

fn steps(run_dir: &Path) -> usize {
    fs::read_to_string(run_dir.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

/// Asserts that every step has gradients to sum over ranks.
fn assert_gradients(run_dir: &Path) {
    let text = fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap();
    for line in text.lines() {
        let step: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(step["grad_norm"].as_f64().unwrap() > 0.0, "{line}");
    }
}

fn weights(run_dir: &Path) -> Vec<u8> {
    fs::read(run_dir.join("checkpoints/step_6/trainer.safetensors")).unwrap()
}

/// Rank 1 is killed (SIGKILL). The learner fails with an error, and the restarted run has the same
/// result as an uninterrupted one. A rank that loses its learner reconnects for a while and then
/// fails.
#[test]
fn a_run_of_two_ranks_survives_a_killed_rank_and_a_killed_learner() {
    let dir = tempfile::tempdir().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let whole = dir.path().join("whole");
    let mut run = start(&env, &whole);
    assert!(run.learner.0.wait().unwrap().success());
    assert!(
        run.rank.0.wait().unwrap().success(),
        "the rank learns of the end"
    );
    assert_eq!(steps(&whole), 6);
    assert_gradients(&whole);

    let broken = dir.path().join("broken");
    let mut run = start(&env, &broken);
    run.learner.until(|| steps(&broken) >= 2);
    run.rank.0.kill().unwrap();
    assert_eq!(ended_within(LIMIT, &mut run.learner), Some(1));
    let log = run.learner_log.join().unwrap();
    assert!(log.contains("rank 1 of the run is gone"), "{log}");
    drop((run.learner, run.rank));

    let mut run = start(&env, &broken);
    let begun = steps(&broken);
    while steps(&broken) == begun && run.learner.0.try_wait().unwrap().is_none() {
        sleep(Duration::from_millis(10));
    }
    run.learner.0.kill().unwrap();
    let mut log = String::new();
    run.rank
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut log)
        .unwrap();
    assert_eq!(run.rank.0.wait().unwrap().code(), Some(1));
    assert!(
        log.contains(&run.address) && log.contains("the learner"),
        "{log}"
    );
    drop(run);

    let mut run = start(&env, &broken);
    assert!(run.learner.0.wait().unwrap().success());
    assert!(
        weights(&broken) == weights(&whole),
        "the resumed run differs"
    );
}

/// A cluster that stops a run signals its processes in any order. A learner writes its checkpoint
/// although its rank has got the signal before.
#[test]
fn a_rank_that_is_stopped_with_its_learner_lets_it_write_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut run = start(&env, dir.path());
    run.learner.until(|| steps(dir.path()) >= 2);
    signal(&run.rank, "TERM");
    sleep(Duration::from_millis(300));
    signal(&run.learner, "TERM");
    assert_eq!(ended_within(LIMIT, &mut run.learner), Some(130));
    assert_eq!(ended_within(LIMIT, &mut run.rank), Some(130));
    let latest = fs::read_to_string(dir.path().join("checkpoints/LATEST")).unwrap();
    assert_eq!(latest, format!("step_{}", steps(dir.path())));
}
