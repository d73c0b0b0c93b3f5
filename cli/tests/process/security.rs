//! Tests a learner with TLS and a token: its actor trains, and others learn what they lack.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::program::{Running, serve, serve_with_log, smoke_learner, sqlenv};

const TOKEN: &str = "the token of all actors";

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path: PathBuf = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Starts an actor with the given flags, which logs all it can.
fn actor(env: &str, learner: &str, flags: &[&str]) -> Running {
    let args = ["actor", "--env", env, "--learner", learner];
    let mut command = sqlenv(&args);
    command.args(flags).env("SQLENV_LOG", "trace");
    Running(command.stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn an_actor_with_the_token_trains_over_tls_and_others_learn_what_they_lack() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| write(dir.path(), name, text);
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = file("certificate.pem", &signed.cert.pem());
    let key = file("key.pem", &signed.signing_key.serialize_pem());
    let token = file("token", TOKEN);
    let run_dir = dir.path().join("run");
    let settings = [
        format!("learner.server.tls.certificate_file={certificate}"),
        format!("learner.server.tls.key_file={key}"),
        format!("learner.server.actor_token_file={token}"),
    ];
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = smoke_learner(&env, run_dir.to_str().unwrap());
    args.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let (mut learner, address, learner_log) =
        serve_with_log(sqlenv(&args).env("SQLENV_LOG", "trace"));
    let address = address.replace("http://127.0.0.1", "https://localhost");

    let trusting = ["--learner-ca-file", &certificate];
    let mut stranger = actor(&env, &address, &trusting);
    let mut refusal = String::new();
    let mut stderr = stranger.0.stderr.take().unwrap();
    stderr.read_to_string(&mut refusal).unwrap();
    assert_eq!(stranger.0.wait().unwrap().code(), Some(1));
    assert!(refusal.contains("--learner-token-file"), "{refusal}");

    let flags = [&trusting[..], &["--learner-token-file", &token]].concat();
    let mut trusted = actor(&env, &address, &flags);
    let mut log = String::new();
    let mut stderr = trusted.0.stderr.take().unwrap();
    stderr.read_to_string(&mut log).unwrap();
    assert!(learner.0.wait().unwrap().success());
    assert!(trusted.0.wait().unwrap().success());
    log.push_str(&learner_log.join().unwrap());
    assert!(log.contains("TRACE"), "nothing was logged");
    assert!(!log.contains(TOKEN), "a log has the token");
    let config = fs::read_to_string(run_dir.join("config.toml")).unwrap();
    assert!(
        config.contains("actor_token_file") && !config.contains(TOKEN),
        "{config}"
    );
}
