//! The SLURM script, with stand-ins for SLURM and for the program.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use deploy_checks::root;

use crate::{folder, is_accepted, program};

/// Runs the tasks of a step on this machine, and passes SIGTERM on to their first processes alone.
const SRUN: &str = r#"#!/bin/bash
tasks=3 children=() status=0
while [[ $1 == --* ]]; do
  [[ $1 != --ntasks=* ]] || tasks=${1#*=}
  shift
done
trap 'kill "${children[@]}"' TERM
for ((task = 0; task < tasks; task++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURMD_NODENAME=node "$@" &
  children+=($!)
done
for child in "${children[@]}"; do wait "$child" || status=1; done
exit $status
"#;

const SCONTROL: &str = r#"#!/bin/bash
[ "$1" = show ] && echo node || echo "$1" >>"$CALLS"
"#;

/// Notes its command line, with the addresses that it takes from the environment. The first
/// env-node fails, an actor needs the second one, and the learner ends when there is an actor.
const PROGRAM: &str = r#"#!/bin/bash
set -u
env_nodes() { grep --count ^env-node "$CALLS"; }
case $1 in
  train) exec "$REAL" "$@" ;;
  health) [ "$(env_nodes)" = 2 ] || exit 1 ;;
  learner)
    echo "$* --env=$SQLENV_ENV" >>"$CALLS"
    for _ in {1..600}; do
      grep --quiet ^actor "$CALLS" && exit
      sleep 0.1
    done
    exit 1
    ;;
  rank) echo "$* --learner=$SQLENV_LEARNER" >>"$CALLS" ;;
  actor)
    echo "$* --learner=$SQLENV_LEARNER --env=$SQLENV_ENV" >>"$CALLS"
    [ "$(env_nodes)" = 2 ] || exit 1
    ;;
  env-node)
    # The script may stop the env-node as soon as the others have seen this call.
    trap 'echo stopped >>"$CALLS"; exit' TERM
    echo "$*" >>"$CALLS"
    [ "$(env_nodes)" = 2 ] || exit 1
    while :; do sleep 0.1; done
    ;;
esac
"#;

/// Runs the script. Returns whether it succeeded, and the file of the calls.
#[expect(
    clippy::disallowed_methods,
    reason = "the script finds its programs by PATH"
)]
fn submit(name: &str, settings: &Path) -> (bool, PathBuf) {
    let folder = folder().join(name);
    fs::create_dir_all(&folder).unwrap();
    for (name, script) in [("srun", SRUN), ("scontrol", SCONTROL), ("sqlenv", PROGRAM)] {
        let file = folder.join(name);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let calls = folder.join("calls");
    fs::write(&calls, "").unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let status = Command::new("bash")
        .arg(root().join("deploy/slurm/sqlenv.sbatch"))
        .env("PATH", path)
        .env("CALLS", &calls)
        .env("REAL", fs::canonicalize(program()).unwrap())
        .env("PROGRAM", folder.join("sqlenv"))
        .env("SETTINGS", settings)
        .env("SECRETS", "/run/secrets")
        .env("RUN_DIR", folder.join("run"))
        .env("RANKS", "2")
        .env("SLURM_JOB_ID", "1")
        .env("SLURM_JOB_NODELIST", "node")
        .env("SLURM_JOB_NUM_NODES", "1")
        .status()
        .unwrap();
    (status.success(), calls)
}

/// Returns the arguments of a call, each value with its flag.
fn arguments(call: &str) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    for word in call.split(' ') {
        match arguments.last_mut() {
            Some(flag) if flag.starts_with("--") && !flag.contains('=') => {
                flag.extend(["=", word]);
            }
            _ => arguments.push(word.to_owned()),
        }
    }
    arguments
}

#[test]
fn slurm_starts_all_roles_with_arguments_that_the_program_accepts() {
    let settings = root().join("deploy/settings.toml");
    let (has_succeeded, calls) = submit("run", &settings);
    assert!(has_succeeded);
    // The script does not wait for the env-node, which it stops at its end.
    let is_stopped = || fs::read_to_string(&calls).unwrap().contains("stopped");
    for _ in 0..600 {
        if is_stopped() {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    assert!(is_stopped(), "the env-node runs on");
    let calls = fs::read_to_string(&calls).unwrap();
    let mut roles: Vec<&str> = calls
        .split('\n')
        .filter_map(|it| it.split(' ').next())
        .collect();
    roles.sort_unstable();
    let expected = [
        "", "actor", "env-node", "env-node", "learner", "rank", "stopped",
    ];
    assert_eq!(roles, expected, "{calls}");
    // A learner may wait for an env-node for half an hour, and a rank by default for 5 minutes.
    assert!(calls.contains(" --timeout-seconds 3600 "), "{calls}");
    for call in calls.lines().filter(|it| it.contains("--")) {
        is_accepted(&arguments(call), &settings);
    }
}

/// An attempt that fails is queued again, and would fail again.
#[test]
fn slurm_starts_nothing_with_wrong_settings() {
    let settings = folder().join("wrong.toml");
    fs::write(&settings, "[learner]\nstepz = 3\n").unwrap();
    let (has_succeeded, calls) = submit("wrong", &settings);
    assert!(!has_succeeded);
    assert_eq!(fs::read_to_string(calls).unwrap(), "");
}
