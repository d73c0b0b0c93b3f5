//! Tests processes with a low limit of open files, or of the size of a file.

use std::{fs::File, net::TcpStream, process::Command};

use crate::{
    outcomes::fail,
    program::{serve, serve_with_log, smoke_learner, sqlenv, start_actor},
};

const FILES: usize = 256;

/// Returns a command under a limit of the shell, such as `-n 256`.
fn limited(limit: &str, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(command.get_current_dir().unwrap());
    limited
}

/// The soft limit is raised. Below a hard limit that is too low, threads keep fewer databases open.
#[test]
fn an_environment_in_the_process_has_files_for_its_databases() {
    let eval = "eval --policy oracle --split eval --questions 200 --set env.sql_threads=16";
    let eval = sqlenv(&eval.split(' ').collect::<Vec<_>>());
    // 2 lanes of 16 threads, and 64 files for anything else.
    for (limit, told) in [
        ("-Sn 64", ""),
        ("-n 200", "keeps 4 databases open per thread"),
    ] {
        let output = limited(limit, &eval).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("200 of 200 correct"), "{limit}: {text}");
        assert!(text.contains(told), "{limit}: {text}");
    }
}

/// The signal of this limit ends a process that does not handle it.
#[test]
fn a_file_beyond_the_limit_of_its_size_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("settings.md")).unwrap();
    let mut settings = limited("-f 1", &sqlenv(&["settings"]));
    let text = fail(settings.stdout(file), 1);
    assert!(text.contains("ulimit -f"), "{text}");
}

/// Silent connections take no files from the checkpoints.
#[test]
fn idle_connections_leave_files_for_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let learner = sqlenv(&smoke_learner(&env, run_dir.to_str().unwrap()));
    let mut limited = limited(&format!("-n {FILES}"), &learner);
    limited
        .args(["--set", "learner.steps=6"])
        .args(["--set", "learner.checkpoint.every_steps=1"]);
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
