//! Tests how commands end on a signal and on a closed pipe, and how they wait for one.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    evaluation::weights,
    outcomes::{fail, succeed},
    program::{Running, serve, serve_with_log, smoke_learner, sqlenv, start_actor},
    second_learner::{TRAINED_ALONE, learner_args},
};

/// Sends a signal, such as `INT`.
pub(crate) fn signal(process: &Running, signal: &str) {
    // The shell's own `kill`, since not every machine has the program.
    let mut kill = Command::new("sh");
    let id = process.0.id();
    kill.args(["-c", &format!("kill -s {signal} {id}")]);
    assert!(kill.status().unwrap().success());
}

/// One SIGINT ends a command that cannot be resumed.
#[test]
fn an_evaluation_ends_at_the_first_signal() {
    let mut command = sqlenv(&["eval", "--policy", "random", "--split", "train"]);
    let one_at_a_time = ["--set", "evaluation.concurrency=1"];
    let child = command
        .args(one_at_a_time)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    while !lines
        .next()
        .unwrap()
        .unwrap()
        .starts_with("random on train")
    {}
    signal(&running, "INT");
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    let last = lines.last().unwrap().unwrap();
    assert_eq!(last, "interrupted");
}

/// The learner names the command that continues its run.
#[test]
fn a_learner_ends_with_the_command_that_continues() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("my run");
    let run_dir = run_dir.to_str().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let args = smoke_learner(&env, run_dir);
    let (mut learner, _, log) = serve_with_log(&mut sqlenv(&args));
    signal(&learner, "INT");
    assert_eq!(learner.0.wait().unwrap().code(), Some(130));
    let log = log.join().unwrap();
    let command = format!("sqlenv {} '{run_dir}'", args[..args.len() - 1].join(" "));
    assert!(log.contains(&command), "{command}: {log}");
}

/// A folder in place of the file stands for a full disk.
#[test]
fn a_learner_that_cannot_record_its_metrics_stops_and_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let args = learner_args("127.0.0.1:0", &env, run.to_str().unwrap());
    let (mut learner, address, log) = serve_with_log(&mut sqlenv(&args));
    fs::create_dir(run.join("metrics.jsonl")).unwrap();
    let actor = start_actor(&env, &address, &[]);
    assert_eq!(learner.0.wait().unwrap().code(), Some(1));
    let log = log.join().unwrap();
    assert!(log.contains("the metrics of step 1 cannot be"), "{log}");
    let status = || fs::read_to_string(run.join("run.json")).unwrap();
    assert!(status().contains("\"interrupted\""), "{}", status());
    drop(actor);

    fs::remove_dir(run.join("metrics.jsonl")).unwrap();
    let (mut learner, address) = serve(&args);
    let _actor = start_actor(&env, &address, &[]);
    assert!(learner.0.wait().unwrap().success());
    assert!(weights(&run) == *TRAINED_ALONE);
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let steps: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let steps: Vec<_> = steps.iter().map(|it| it["step"].as_u64()).collect();
    assert_eq!(steps, [Some(1), Some(2)], "no step is lost");
}

/// Kubernetes would take an evicted actor that ends with 0 for one whose run is over, and start no
/// other.
#[test]
fn an_actor_that_a_signal_ends_exits_with_130() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = smoke_learner(&env, run_dir.to_str().unwrap());
    args.extend(["--set", "learner.steps=1000"]);
    let (_learner, learner) = serve(&args);
    let mut actor = sqlenv(&["actor", "--learner", &learner, "--env", &env]);
    let child = actor.stderr(Stdio::piped()).spawn().unwrap();
    let mut actor = Running(child);
    let mut lines = BufReader::new(actor.0.stderr.take().unwrap()).lines();
    let begun = lines.find(|line| line.as_ref().unwrap().starts_with("actor "));
    assert!(begun.is_some());
    signal(&actor, "TERM");
    assert_eq!(actor.0.wait().unwrap().code(), Some(130));
}

/// This is the case of `sqlenv data stats | true`.
#[test]
fn a_reader_may_leave() {
    let mut child = sqlenv(&["data", "stats"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

/// The pipe is read once, also if its settings are wrong.
#[test]
fn a_pipe_of_settings_is_named_while_nothing_writes_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("settings");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let mut train = sqlenv(&["train", "--dry-run", "--config", pipe.to_str().unwrap()]);
    let mut train = Running(train.stderr(Stdio::piped()).spawn().unwrap());
    let mut errors = BufReader::new(train.0.stderr.take().unwrap());
    let (sender, said) = mpsc::channel();
    thread::spawn(move || {
        let (mut line, mut rest) = (String::new(), String::new());
        errors.read_line(&mut line).unwrap();
        sender.send(line).unwrap();
        errors.read_to_string(&mut rest).unwrap();
        sender.send(rest)
    });
    let limit = Duration::from_secs(60);
    let text = said.recv_timeout(limit).unwrap();
    let waiting = format!("waiting until the settings {}", pipe.display());
    assert!(text.contains(&waiting), "{text}");
    fs::write(&pipe, "[learner]\nstepz = 3\n").unwrap();
    let text = said.recv_timeout(limit).unwrap();
    assert_eq!(train.0.wait().unwrap().code(), Some(2), "{text}");
    assert!(text.contains("stepz"), "{text}");
}

/// A job that is started again continues its run, and does not mix two runs of one name.
#[test]
fn the_same_command_starts_a_run_and_resumes_it() {
    let dir = tempfile::tempdir().unwrap();
    let runs_dir = dir.path().to_str().unwrap();
    let mut train = vec!["train", "--preset", "smoke", "--runs-dir", runs_dir];
    train.extend(["--name", "one", "--or-resume"]);
    succeed(&mut sqlenv(&train));
    let run = dir.path().join("one");
    let before = weights(&run);
    // Both its evaluations are recorded, and a later checkpoint is the newest.
    let evaluated = run.join("checkpoints/step_1/hf/model.safetensors");
    assert!(evaluated.is_file());
    fs::write(&evaluated, "unreadable").unwrap();
    succeed(&mut sqlenv(&train));
    assert!(weights(&run) == before);
    let text = fail(sqlenv(&train).args(["--seed", "9"]), 2);
    assert!(text.contains("has other settings"), "{text}");
    a_learner_does_not_take_a_run_of_one_process(&run);
    a_damaged_journal_replaces_no_output(&run);
}

/// A learner knows neither the rules nor the other stages of such a run.
fn a_learner_does_not_take_a_run_of_one_process(run: &Path) {
    let config = || fs::read_to_string(run.join("config.toml")).unwrap();
    let before = config();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let learner = smoke_learner(&env, run.to_str().unwrap());
    let text = fail(&mut sqlenv(&learner), 2);
    assert!(text.contains("is a run of `sqlenv train`"), "{text}");
    assert_eq!(config(), before);
}

fn a_damaged_journal_replaces_no_output(run: &Path) {
    let out = run.with_file_name("trajectories.jsonl");
    let [run_dir, path] = [run, out.as_path()].map(|it| it.to_str().unwrap());
    let args = ["trajectories", run_dir, "--out", path];
    succeed(&mut sqlenv(&args));
    let before = fs::read_to_string(&out).unwrap();
    assert!(!before.is_empty());
    for file in fs::read_dir(run.join("journal")).unwrap() {
        let file = file.unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        // The head of the file stays.
        bytes.iter_mut().skip(64).for_each(|it| *it = 0xff);
        fs::write(&file, bytes).unwrap();
    }
    fail(&mut sqlenv(&args), 1);
    assert_eq!(fs::read_to_string(&out).unwrap(), before);
}
