//! Tests a learner whose port takes more connections than the process may open files.

use std::{net::TcpStream, process::Command};

use crate::program::{serve, serve_with_log, smoke_learner, sqlenv, start_actor};

const FILES: usize = 256;

/// Silent connections take no files from the checkpoints.
#[test]
fn idle_connections_leave_files_for_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let learner = sqlenv(&smoke_learner(&env, run_dir.to_str().unwrap()));
    let mut limited = Command::new("sh");
    limited
        .args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" \"$@\"")])
        .arg(learner.get_program())
        .args(learner.get_args())
        .args(["--set", "learner.steps=6"])
        .args(["--set", "learner.checkpoint.every_steps=1"])
        .current_dir(learner.get_current_dir().unwrap());
    let (mut learner, address, log) = serve_with_log(&mut limited);
    let _actor = start_actor(&env, &address, &[]);
    learner.until(|| run_dir.join("metrics.jsonl").exists());
    let port = address.strip_prefix("http://").unwrap();
    let idle = (0..2 * FILES).map(|_| TcpStream::connect(port));
    let _idle: Vec<_> = idle.map(Result::unwrap).collect();
    let status = learner.0.wait().unwrap();
    let log = log.join().unwrap();
    assert!(status.success(), "{status}: {log}");
    assert!(run_dir.join("checkpoints/step_6").exists());
    // One line for all of them.
    assert_eq!(log.matches("closing further ones").count(), 1, "{log}");
}
