//! Tests how people follow a run, distributed or in one process: the live page, `sqlenv watch` and
//! `sqlenv doctor`.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::Path,
    process::Stdio,
    sync::mpsc,
    thread::{self, sleep},
    time::Duration,
};

use proto::{
    EnvClient, LearnerClient, Transport,
    v1::{InfoRequest, JoinRequest},
};
use serde_json::Value;

use crate::{
    http::{free_address, get, request},
    outcomes::{fail, succeed},
    program::{Running, serve, smoke_learner, sqlenv, start_actor},
};

const HOSTILE: &str = "<script>\u{1b}]0;stolen\u{7}</script>";
/// What the page and the doctor say of the record that is cut short.
const CUT: &str = "One line of evaluations.jsonl could not be read.";

/// Waits until the status satisfies a condition.
fn status_with(address: &str, condition: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..6_000 {
        let body = get(address, "/status.json");
        let status: Option<Value> = body.and_then(|body| serde_json::from_str(&body).ok());
        if let Some(status) = status.filter(&condition) {
            return status;
        }
        sleep(Duration::from_millis(50));
    }
    panic!(
        "the status did not change in time: {:?}",
        get(address, "/status.json")
    );
}

/// Joins as an actor with a hostile name.
fn join_as_stranger(env: &str, learner_address: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let join = async {
        let mut client = LearnerClient::new(Transport::dial(learner_address).unwrap());
        let mut env = EnvClient::new(Transport::dial(env).unwrap());
        let info = env.info(InfoRequest {}).await.unwrap();
        let request = JoinRequest {
            actor_id: HOSTILE.to_owned(),
            identity: Some(learner::expected_identity(info.get_ref(), "")),
        };
        client.join(request).await.unwrap();
    };
    runtime.block_on(join);
}

#[test]
fn a_run_is_followed_on_its_page_in_a_terminal_and_by_the_doctor() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let (_env_node, env) = serve(&["env-node", "--listen", "127.0.0.1:0"]);
    let admin = free_address();
    let address = format!("http://{admin}");
    // Before the learner: it is away, and the lines go on when it comes.
    let mut watching = Running(
        sqlenv(&["watch", &address])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let errors = BufReader::new(watching.0.stderr.take().unwrap());
    let (sender, said) = mpsc::channel();
    thread::spawn(move || {
        errors
            .lines()
            .try_for_each(|line| sender.send(line.unwrap()))
    });
    let away = said.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(away.contains("does not answer"), "{away}");
    // An earlier process crashed while it recorded an evaluation.
    fs::create_dir(&run_dir).unwrap();
    fs::write(run_dir.join(".lock"), "").unwrap();
    fs::write(run_dir.join("evaluations.jsonl"), "{\"policy\": ").unwrap();
    let mut args = smoke_learner(&env, run_dir.to_str().unwrap());
    args.extend(["--admin", &admin, "--set", "learner.steps=6"]);
    let (mut learner, learner_address) = serve(&args);
    join_as_stranger(&env, &learner_address);
    // No actor has played the evaluation of the base policy.
    let before = status_with(&admin, |status| {
        !status["actors"].as_array().unwrap().is_empty() && status["is_evaluating"] == true
    });
    assert_eq!(
        (&before["step"], &before["is_live"]),
        (&Value::from(0), &Value::from(true))
    );
    assert_eq!(before["actors"][0]["id"], HOSTILE);
    let _actor = start_actor(&env, &learner_address, &["--id", "first"]);
    let status = status_with(&admin, |status| status["step"].as_u64() >= Some(2));
    check_status(&status, &env);
    check_page(&admin);
    check_doctor(&address);
    assert!(learner.0.wait().unwrap().success());
    check_lines(&mut watching);
    check_folder(&run_dir);
}

#[test]
fn a_run_in_one_process_has_the_live_page_and_the_metrics_of_all_roles() {
    let dir = tempfile::tempdir().unwrap();
    let admin = free_address();
    let runs = dir.path().to_str().unwrap();
    let mut args = vec!["train", "--preset", "smoke", "--runs-dir", runs];
    args.extend(["--name", "one", "--admin", &admin]);
    args.extend(["--set", "learner.steps=12"]);
    let mut train = Running(sqlenv(&args).stderr(Stdio::null()).spawn().unwrap());
    let status = status_with(&admin, |status| status["step"].as_u64() >= Some(2));
    assert_eq!(status["is_live"], true);
    assert_eq!(status["actors"][0]["is_connected"], true);
    assert!(!status["evaluations"].as_array().unwrap().is_empty());
    let stages: BTreeSet<&str> = status["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["stage"].as_str().unwrap())
        .collect();
    assert_eq!(stages, ["grpo", "sft"].into());
    assert!(get(&admin, "/readyz").is_some());
    let metrics = get(&admin, "/metrics").unwrap();
    for name in [
        "learner_step",
        "learner_evaluation_accuracy_ratio{set=\"base on eval",
        "actor_turns_total",
        "env_steps_total",
    ] {
        assert!(metrics.contains(&format!("\n{name}")), "{name}: {metrics}");
    }
    let ended = status_with(&admin, |status| status["state"] == "finished");
    // Otherwise the doctor would miss the actors, which have nothing to do after GRPO.
    assert_eq!(ended["is_live"], false);
    let names: BTreeSet<&str> = ended["evaluations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["policy"].as_str().unwrap())
        .collect();
    assert!(
        names.contains("grpo") && names.contains("oracle imitation"),
        "{names:?}"
    );
    assert!(train.0.wait().unwrap().success());
}

/// Its table looks like that of any other run. So cold a policy plays all episodes of a group
/// alike.
#[test]
fn a_run_that_trains_on_nothing_says_so_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().to_str().unwrap();
    let settings = [
        "learner.steps=2",
        "learner.groups_per_step=1",
        "learner.max_groups_per_step=1",
        "learner.rollout.sampling.temperature=0.001",
        "learner.checkpoint.every_steps=1",
        "evaluation.every_steps=0",
        "evaluation.questions=2",
        "evaluation.unseen_questions=0",
        "imitation.enabled=false",
    ];
    let mut train = sqlenv(&["train", "--runs-dir", runs, "--name", "cold"]);
    let train = train.args(settings.iter().flat_map(|it| ["--set", it]));
    let trained = train.output().unwrap();
    let printed = String::from_utf8_lossy(&trained.stderr);
    assert!(trained.status.success(), "{printed}");
    let run = dir.path().join("cold");
    let examined = sqlenv(&["doctor"]).arg(run).output().unwrap();
    let diagnosis = String::from_utf8_lossy(&examined.stdout);
    assert_eq!(examined.status.code(), Some(1), "{diagnosis}");
    for text in [printed, diagnosis] {
        assert!(text.contains("\nproblem (zero-variance)\n"), "{text}");
        assert!(text.contains("weights are those of the start"), "{text}");
    }
}

#[test]
fn the_admin_port_of_a_run_in_one_process_must_be_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let args = [
        "train",
        "--admin",
        &admin,
        "--runs-dir",
        runs.to_str().unwrap(),
    ];
    let text = fail(&mut sqlenv(&args), 1);
    assert!(text.contains("choose another with --admin"), "{text}");
    assert!(!runs.exists(), "a run that cannot start left a folder");
}

fn check_status(status: &Value, env: &str) {
    let actors = status["actors"].as_array().unwrap();
    let first = actors.iter().find(|actor| actor["id"] == "first").unwrap();
    assert_eq!(first["is_connected"], true, "{first}");
    assert!(first["groups_done"].as_u64() > Some(0), "{first}");
    assert!(first["tokens_per_second"].as_f64() > Some(0.0), "{first}");
    assert!(first["version_lag"].as_u64() <= Some(1), "{first}");
    let node = &status["env_nodes"][0];
    assert_eq!(format!("http://{}", node["address"].as_str().unwrap()), env);
    assert!(node["calls"].as_u64() > Some(10), "{node}");
    assert!(node["p95_latency_seconds"].as_f64() > Some(0.0), "{node}");
    let episode = &status["episodes"][0];
    assert!(
        !episode["question"].as_str().unwrap().is_empty(),
        "{episode}"
    );
    assert!(
        !episode["steps"].as_array().unwrap().is_empty(),
        "{episode}"
    );
    assert!(status["steps"][0]["reward"].is_number(), "{status}");
}

fn check_page(admin: &str) {
    let (head, page) = request(admin, "GET /").unwrap();
    let head = head.to_lowercase();
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(head.contains("cache-control: no-store"), "{head}");
    for part in [
        "of 6",
        "first",
        "Env-nodes",
        "The newest episodes",
        "&lt;script&gt;",
        CUT,
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<script>").count(), 1);
    let fragment = get(admin, "/fragment").unwrap();
    assert!(
        fragment.starts_with("<main") && !fragment.contains("<script>"),
        "{fragment}"
    );
    assert!(get(admin, "/metrics").is_some());
    let (head, _) = request(admin, "GET /nothing").unwrap();
    assert!(head.contains("404"), "{head}");
}

/// The stranger is away, but not for long enough, and a run this short has no other finding than
/// the record that is cut short.
fn check_doctor(address: &str) {
    let output = sqlenv(&["doctor", address]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("run, step "), "{text}");
    assert!(text.contains(" of 6"), "{text}");
    let hint = format!("\nhint (records-damaged)\n  {CUT}\n");
    assert!(text.contains(&hint), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let problems = text.matches("\nproblem (").count();
    assert_eq!(
        output.status.code(),
        Some(i32::from(problems > 0)),
        "{text}"
    );
    for (address, code, remedy) in [
        (address.replace("http", "https"), 2, "http only"),
        ("127.0.0.1:1".to_owned(), 1, "refused"),
    ] {
        let text = fail(&mut sqlenv(&["doctor", &address]), code);
        assert!(text.contains(remedy), "{text}");
    }
}

/// The lines name the absence, each step and the end.
fn check_lines(watching: &mut Running) {
    assert!(watching.0.wait().unwrap().success());
    let mut lines = String::new();
    watching
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut lines)
        .unwrap();
    assert!(lines.contains("the learner answers again"), "{lines}");
    for step in 2..=6 {
        assert!(
            lines.contains(&format!("step {step}/6  reward ")),
            "{lines}"
        );
    }
    assert!(
        lines.ends_with("the run has finished: step 6/6\n"),
        "{lines}"
    );
}

/// The folder shows the same, and what is wrong with a run that is made to be wrong.
fn check_folder(run_dir: &Path) {
    let path = run_dir.to_str().unwrap();
    let text = succeed(&mut sqlenv(&["watch", path]));
    assert!(
        text.contains("step 6/6") && text.contains("has finished"),
        "{text}"
    );
    let metrics = run_dir.join("metrics.jsonl");
    let lines: Vec<String> = fs::read_to_string(&metrics)
        .unwrap()
        .lines()
        .map(|line| {
            let mut step: Value = serde_json::from_str(line).unwrap();
            step["tools/malformed_frequency"] = 0.75.into();
            step.to_string()
        })
        .collect();
    fs::write(&metrics, lines.join("\n") + "\n").unwrap();
    let json = run_dir.join("findings.json");
    let output = sqlenv(&["doctor", path, "--json", json.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("problem (malformed-calls)") && text.contains("75.0 %"),
        "{text}"
    );
    assert!(text.contains(CUT), "{text}");
    let findings: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(findings[0]["severity"], "problem", "{findings}");
}
