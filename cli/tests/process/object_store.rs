//! Tests a run in an object store, over S3's protocol. A store that answers is moto's server (PyPI:
//! `moto[server]`): `SQLENV_TEST_S3` names the program `moto_server`.

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::unix::ffi::OsStrExt as _,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::{
    endings::signal,
    evaluation::{evaluations, weights},
    http::{free_address, request},
    outcomes::{fail, succeed},
    program::{Running, serve, serve_with, serve_with_log, sqlenv, start_actor},
    second_learner::{TRAINED_ALONE, learner_args},
};

/// A server of S3's protocol with the empty bucket `runs`.
struct S3 {
    _server: Running,
    address: String,
}

impl S3 {
    /// None where no server is named.
    #[expect(
        clippy::disallowed_methods,
        reason = "the variable names a program of the machine that runs the test"
    )]
    fn start() -> Option<Self> {
        let Ok(program) = std::env::var("SQLENV_TEST_S3") else {
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: runs in an object store, because SQLENV_TEST_S3 does not name a \
                 moto_server (pip install 'moto[server]')"
            );
            return None;
        };
        let address = free_address();
        let port = address.rsplit(':').next().unwrap();
        let mut server = Command::new(program);
        server.args(["-H", "127.0.0.1", "-p", port]);
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Running(server.unwrap());
        server.until(|| TcpStream::connect(&address).is_ok());
        let s3 = Self {
            _server: server,
            address,
        };
        let (head, _) = request(&s3.address, "PUT /runs").unwrap();
        assert_eq!(head.split(' ').nth(1), Some("200"), "{head}");
        Some(s3)
    }

    /// Returns whether the bucket has an object whose name contains `part`.
    fn has(&self, part: &str) -> bool {
        let (_, body) = request(&self.address, "GET /runs?list-type=2").unwrap();
        body.contains(part)
    }

    fn sqlenv(&self, args: &[&str]) -> Command {
        with_store(&self.address, args)
    }
}

/// Returns a command whose object store is at this address.
fn with_store(address: &str, args: &[&str]) -> Command {
    let mut command = sqlenv(args);
    command
        .env("AWS_ENDPOINT", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test");
    command
}

/// The first learner is killed with its disk after a checkpoint. The second one is replaced by a
/// third one, which ends the run.
#[test]
fn a_run_in_an_object_store_survives_its_machine_and_has_one_learner() {
    let Some(s3) = S3::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let machines = ["1", "2", "3"].map(|name| dir.path().join(name));
    machines
        .iter()
        .for_each(|path| fs::create_dir(path).unwrap());
    let listen = free_address();
    let learner = |listen: &str, machine: usize| {
        let mut args = learner_args(listen, &env, "s3://runs/team/one");
        args.extend(["--work-dir", machines[machine].to_str().unwrap()]);
        s3.sqlenv(&args)
    };
    let (first, address) = serve_with(&mut learner(&listen, 0));
    let actor = start_actor(&env, &address, &[]);
    while !s3.has("checkpoints/step_1-") {
        sleep(Duration::from_millis(20));
    }
    drop(first);
    drop(actor);
    fs::remove_dir_all(&machines[0]).unwrap();

    let (mut second, second_address, log) = serve_with_log(&mut learner("127.0.0.1:0", 1));
    let (mut third, address) = serve_with(&mut learner(&listen, 2));
    let _lost = start_actor(&env, &second_address, &[]);
    assert!(!second.0.wait().unwrap().success());
    let text = log.join().unwrap();
    let replaced = "another learner has opened the run s3://runs/team/one";
    assert!(text.contains(replaced), "{text}");
    let _actor = start_actor(&env, &address, &[]);
    assert!(third.0.wait().unwrap().success());
    assert_eq!(
        fs::read_dir(&machines[2]).unwrap().count(),
        0,
        "the working copy is removed"
    );

    let copy = dir.path().join("copy");
    let above = ["fetch", "s3://runs/team", copy.to_str().unwrap()];
    fail(&mut s3.sqlenv(&above), 1);
    let fetch = ["fetch", "s3://runs/team/one", copy.to_str().unwrap()];
    succeed(&mut s3.sqlenv(&fetch));
    assert!(weights(&copy) == *TRAINED_ALONE);
    assert!(evaluations(&copy).keys().any(|key| key.contains("grpo")));
    assert!(copy.join("report.html").is_file() && copy.join("checkpoints/step_2").is_dir());
    let text = fail(&mut s3.sqlenv(&fetch), 1);
    assert!(text.contains("choose a folder that is new"), "{text}");
}

/// A folder in place of the metrics stands for a full disk.
#[test]
fn a_run_that_fails_is_recorded_in_its_object_store() {
    let Some(s3) = S3::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machine");
    fs::create_dir(&machine).unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = learner_args("127.0.0.1:0", &env, "s3://runs/team/two");
    args.extend(["--work-dir", machine.to_str().unwrap()]);
    let (mut learner, address) = serve_with(&mut s3.sqlenv(&args));
    let copy = fs::read_dir(&machine).unwrap().next().unwrap().unwrap();
    fs::create_dir(copy.path().join("two/metrics.jsonl")).unwrap();
    let _actor = start_actor(&env, &address, &[]);
    assert_eq!(learner.0.wait().unwrap().code(), Some(1));
    let left = fs::read_dir(&machine).unwrap().count();
    assert_eq!(left, 0, "the working copy is removed");

    let fetched = dir.path().join("fetched");
    let fetch = ["fetch", "s3://runs/team/two", fetched.to_str().unwrap()];
    succeed(&mut s3.sqlenv(&fetch));
    let info = fs::read_to_string(fetched.join("run.json")).unwrap();
    assert!(info.contains("\"interrupted\""), "{info}");
}

/// What the store has not got would be lost with its copy.
#[test]
fn a_working_copy_stays_if_its_store_is_away_at_the_end() {
    let Some(s3) = S3::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = dir.path().join("machine");
    fs::create_dir(&machine).unwrap();
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let mut args = learner_args("127.0.0.1:0", &env, "s3://runs/team/three");
    args.extend(["--work-dir", machine.to_str().unwrap()]);
    let (mut learner, address, log) = serve_with_log(&mut s3.sqlenv(&args));
    drop(s3);
    let _actor = start_actor(&env, &address, &[]);
    assert_eq!(learner.0.wait().unwrap().code(), Some(1));
    let copy = fs::read_dir(&machine).unwrap().next().unwrap().unwrap();
    let copy = copy.path().join("three");
    assert!(copy.join("config.toml").is_file());
    let text = log.join().unwrap();
    assert!(text.contains(copy.to_str().unwrap()), "{text}");
}

#[test]
fn a_store_that_cannot_be_used_is_named_with_the_remedy() {
    let Some(s3) = S3::start() else { return };
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let args = learner_args("127.0.0.1:0", &env, "s3://missing/run");
    let text = fail(&mut s3.sqlenv(&args), 1);
    for part in ["s3://missing/run", "NoSuchBucket", "check the address"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

/// The store takes the connection and never answers.
#[test]
fn a_learner_that_fetches_its_run_ends_at_a_signal() {
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    store.set_nonblocking(true).unwrap();
    let address = store.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let mut args = learner_args("127.0.0.1:0", "http://127.0.0.1:1", "s3://runs/one");
    args.extend(["--work-dir", dir.path().to_str().unwrap()]);
    let mut learner = with_store(&address, &args);
    let mut learner = Running(learner.stderr(Stdio::null()).spawn().unwrap());
    let _asked = loop {
        if let Ok(connection) = store.accept() {
            break connection;
        }
        assert!(learner.0.try_wait().unwrap().is_none(), "ended early");
        sleep(Duration::from_millis(20));
    };
    signal(&learner, "TERM");
    assert_eq!(learner.0.wait().unwrap().code(), Some(130));
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "the working copy is removed");
}

/// A variable that has nothing to do with the store need not be text.
#[test]
fn a_variable_that_is_no_text_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let mut fetch = sqlenv(&["fetch", "s3://bucket", copy.to_str().unwrap()]);
    let text = fail(fetch.env("SQLENV_NO_TEXT", OsStr::from_bytes(b"\xff")), 1);
    assert!(text.contains("names no folder for the run"), "{text}");
}
