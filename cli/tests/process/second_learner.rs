//! Tests that a learner stops when another one opens its run.

use std::{fs, sync::LazyLock};

use crate::{
    evaluation::weights,
    outcomes::{fail, succeed},
    program::{serve, serve_with_log, sqlenv, start_actor},
};

pub(crate) const SETTINGS: [&str; 6] = [
    "learner.steps=2",
    "learner.groups_per_step=2",
    "learner.checkpoint.every_steps=1",
    "evaluation.every_steps=0",
    "evaluation.questions=8",
    "evaluation.unseen_questions=0",
];

/// The weights of a run of one process with [`SETTINGS`].
pub(crate) static TRAINED_ALONE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let settings: Vec<&str> = SETTINGS.iter().flat_map(|it| ["--set", it]).collect();
    let runs_dir = dir.path().to_str().unwrap();
    let train = ["train", "--runs-dir", runs_dir, "--name", "alone"];
    let without_imitation = ["--set", "imitation.enabled=false"];
    succeed(&mut sqlenv(
        &[&train, &settings[..], &without_imitation].concat(),
    ));
    weights(&dir.path().join("alone"))
});

/// Returns the arguments of a learner with [`SETTINGS`].
pub(crate) fn learner_args<'a>(listen: &'a str, env: &'a str, run_dir: &'a str) -> Vec<&'a str> {
    let mut args = vec![
        "learner",
        "--listen",
        listen,
        "--env",
        env,
        "--run-dir",
        run_dir,
    ];
    args.extend(SETTINGS.iter().flat_map(|it| ["--set", it]));
    args
}

/// A removed lock file stands for a shared volume that does not share locks.
#[test]
fn a_learner_stops_when_another_opens_its_folder_and_the_other_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let run = dir.path().join("shared");
    let args = learner_args("127.0.0.1:0", &env, run.to_str().unwrap());
    let (mut older, older_address, log) = serve_with_log(&mut sqlenv(&args));
    let text = fail(&mut sqlenv(&args), 1);
    assert!(text.contains("is in use by another process"), "{text}");

    fs::remove_file(run.join(".lock")).unwrap();
    let (mut newer, newer_address) = serve(&args);
    // The older one learns of it with its first evaluation.
    let _actor = start_actor(&env, &older_address, &[]);
    assert!(!older.0.wait().unwrap().success());
    let text = log.join().unwrap();
    assert!(
        text.contains("another learner has opened the run"),
        "{text}"
    );
    let _actor = start_actor(&env, &newer_address, &[]);
    assert!(newer.0.wait().unwrap().success());
    assert!(weights(&run) == *TRAINED_ALONE);
}
