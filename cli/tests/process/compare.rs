//! Tests `sqlenv compare`: scripted policies, the embedded one, and one behind a chat API.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Runtime};

use crate::{evaluation::evaluations, outcomes::succeed, program::sqlenv};

/// Runs `compare` and returns its exit code, its output and the JSON that it wrote.
fn compare(args: &[&str]) -> (Option<i32>, String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("comparison.json");
    let page = dir.path().join("comparison.html");
    let mut command = sqlenv(&["compare"]);
    command.args(args).arg("--json").arg(&file);
    let output = command.arg("--html").arg(&page).output().unwrap();
    let json = fs::read_to_string(&file).unwrap_or_default();
    let texts = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(!output.status.success() || page.exists());
    let json = serde_json::from_str(&json).unwrap_or_default();
    (output.status.code(), texts.concat(), json)
}

#[test]
fn policies_have_the_same_questions_and_the_results_of_eval() {
    let args = "random base oracle --split eval,eval-unseen --questions 20 --samples 2 --shots 0,1";
    let (code, printed, json) = compare(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(code, Some(0), "{printed}");
    let rows = json["rows"].as_array().unwrap();
    let of = |policy: &str, split: &str, shots: u32| {
        let is_it = |row: &&Value| {
            row["policy"] == policy && row["split"] == split && row["shots"] == shots
        };
        rows.iter().find(is_it).unwrap()
    };
    // Scripted policies have no examples.
    assert_eq!(rows.len(), 2 + 4 + 2);
    assert_eq!(of("oracle", "eval", 0)["greedy"]["correct"], 20);
    let gained = &of("oracle", "eval", 0)["against_first"]["gained"];
    assert_eq!(gained, 20, "random answers none");
    assert!(of("random", "eval", 0)["against_first"].is_null());
    let base = of("base", "eval-unseen", 0);
    let sampled = &base["sampled"];
    assert_eq!(sampled["samples"], 2);
    let mean = sampled["mean"].as_f64().unwrap();
    assert!(
        (sampled["pass_at"]["1"].as_f64().unwrap() - mean).abs() < 1e-12,
        "{sampled}"
    );
    assert!(printed.contains("p < 0.001"), "{printed}");

    let eval = "eval --policy base --split eval-unseen --questions 20";
    let eval = succeed(&mut sqlenv(&eval.split(' ').collect::<Vec<_>>()));
    let correct = base["greedy"]["correct"].as_u64().unwrap();
    assert!(
        eval.starts_with(&format!("{correct} of 20 correct")),
        "{eval}"
    );
}

/// The report's table has the last questions of the split and the examples of the run, and so has
/// the comparison.
#[test]
fn the_table_of_a_report_comes_out_of_a_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let runs_dir = dir.path().to_str().unwrap();
    let settings = [
        "learner.steps=1",
        "learner.groups_per_step=2",
        "learner.checkpoint.every_steps=1",
        "learner.rollout.shots=1",
        "evaluation.every_steps=0",
        "evaluation.questions=30",
        "evaluation.unseen_questions=20",
        "imitation.enabled=false",
    ];
    let mut train = sqlenv(&["train", "--runs-dir", runs_dir, "--name", "one"]);
    let settings = settings.iter().flat_map(|it| ["--set", it]);
    succeed(train.args(settings));
    let run = dir.path().join("one");
    let run_name = run.to_str().unwrap();

    for split in ["eval", "eval-unseen/domain"] {
        let args = ["random", "base", run_name, "oracle", "--split", split];
        let (code, printed, json) = compare(&args);
        assert_eq!(code, Some(0), "{printed}");
        assert!(!printed.contains("other data"), "{printed}");
        let table = evaluations(&run);
        for (policy, step, row) in [
            ("random", 0, 0),
            ("base", 0, 1),
            ("grpo", 1, 2),
            ("oracle", 0, 3),
        ] {
            let recorded = &table[&format!("\"{policy}\" {step} \"{split}\" \"greedy\"")];
            let row = &json["rows"][row];
            assert_eq!(row["shots"], u32::from(["base", "grpo"].contains(&policy)));
            let row = &row["greedy"];
            assert_eq!(row["correct"], recorded["correct"], "{row}");
            assert_eq!(row["mean_reward"], recorded["mean_reward"]);
        }
    }
    other_data_is_named(&run);
}

/// As if the data had been written again since the training.
fn other_data_is_named(run: &Path) {
    let file = run.join("run.json");
    let mut info: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    info["data_sha256"] = json!("0123456789abcdef");
    fs::write(&file, info.to_string()).unwrap();
    let run = run.to_str().unwrap();
    let eval = ["eval", "--questions", "1", "--model", run];
    let compare = ["compare", run, "--questions", "1"];
    let data: [(&[&str], bool); 3] = [
        (&[], true),
        (&["--data", "data/build"], true),
        (&["--databases", "all"], false),
    ];
    for (given, is_named) in data {
        for command in [&eval[..], &compare[..]] {
            let output = sqlenv(command).args(given).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{printed}");
            let warning = "was trained on (0123456789ab, now ";
            assert_eq!(printed.contains(warning), is_named, "{printed}");
        }
    }
}

/// What a served model was asked.
#[derive(Clone, Default)]
struct Served(Arc<Mutex<Vec<(HeaderMap, Value)>>>);

/// Fails once, then queries by a call of the API, then answers in its text.
async fn complete(
    State(served): State<Served>,
    headers: HeaderMap,
    Json(request): Json<Value>,
) -> Result<Json<Value>, StatusCode> {
    let mut asked = served.0.lock().unwrap();
    asked.push((headers, request.clone()));
    if asked.len() == 1 {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let turns = request["messages"].as_array().unwrap().len();
    let message = match turns {
        2 => {
            let function = json!({"name": "query", "arguments": "{\"sql\": \"SELECT 7\"}"});
            let call = json!({"id": "call_1", "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
        _ => json!({"role": "assistant", "content":
            "<tool_call>{\"name\": \"answer\", \"arguments\": {\"value\": \"7\"}}</tool_call>"}),
    };
    Ok(Json(json!({"choices": [{"message": message}]})))
}

fn serve(runtime: &Runtime, served: &Served) -> SocketAddr {
    let routes = Router::new()
        .route("/v1/chat/completions", post(complete))
        .with_state(served.clone());
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async { axum::serve(listener, routes).await });
    address
}

#[test]
fn a_served_model_plays_by_messages() {
    let runtime = Runtime::new().unwrap();
    let served = Served::default();
    let address = serve(&runtime, &served);
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, "secret\n").unwrap();
    let policy = format!("openai:http://{address}/v1,small");
    let key = key.to_str().unwrap();
    let mut args = vec!["oracle", &policy, "--questions", "3", "--api-key-file", key];
    args.extend(["--samples", "1", "--temperature", "0.7"]);
    let (code, printed, json) = compare(&args);
    assert_eq!(code, Some(0), "{printed}");
    assert!(!printed.contains("secret"), "{printed}");
    let row = &json["rows"][1];
    assert_eq!(row["policy"], policy.as_str());
    assert_eq!(row["greedy"]["mean_steps"], 2.0);
    assert_eq!(row["greedy"]["malformed_rate"], 0.0);
    assert!(row["greedy"]["failed"].is_null(), "the 503 was repeated");

    let asked = served.0.lock().unwrap();
    assert_eq!(asked.len(), 1 + 2 * 3 * 2);
    let sampled = asked.iter().filter(|(_, it)| it["temperature"] == 0.7);
    assert_eq!(sampled.count(), 3 * 2);
    for (headers, request) in asked.iter() {
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(request["model"], "small");
        assert!([0.0, 0.7].contains(&request["temperature"].as_f64().unwrap()));
        assert_eq!(request["tools"].as_array().unwrap().len(), 4);
    }
    let (_, last) = asked
        .iter()
        .find(|(_, it)| it["messages"][3].is_object())
        .unwrap();
    let roles = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["role"].as_str().unwrap());
    assert_eq!(
        roles.collect::<Vec<_>>(),
        ["system", "user", "assistant", "tool"]
    );
    assert_eq!(last["messages"][3]["tool_call_id"], "call_1");
    assert_eq!(last["messages"][3]["content"], "1. 7");
}

#[track_caller]
fn is_refused(args: &[&str], expected: i32, named: &str) {
    let (code, printed, _) = compare(args);
    assert_eq!(code, Some(expected), "{args:?}: {printed}");
    assert!(printed.contains(named), "{args:?}: {printed}");
}

#[test]
fn what_cannot_be_compared_is_named() {
    let runtime = Runtime::new().unwrap();
    let address = serve(&runtime, &Served::default());
    let elsewhere = format!("openai:http://{address}/v2,small");
    let table: [(&[&str], &str); 6] = [
        (&["openai:http://127.0.0.1:9/v1"], "names no model"),
        (&["openai:127.0.0.1:9,m"], "give http://HOST:PORT/v1"),
        (
            &["base", "openai:http://127.0.0.1:9/v1,m"],
            "no server can be reached",
        ),
        (&["no/such-model"], "hf download no/such-model"),
        (&["docs"], "docs is no policy"),
        (&[&elsewhere, "--questions", "2"], "answers 404"),
    ];
    let wrong_flags: [(&[&str], &str); 6] = [
        (&["base", "random", "base"], "POLICY base is given twice"),
        (
            &["base", "--split", "eval,eval"],
            "--split eval is given twice",
        ),
        (&["base", "--shots", "0,2"], "give 0, 1 or 3"),
        (&["base", "--questions", "0"], "1 or more"),
        (&["base", "--samples", "257"], "..=256"),
        (
            &["base", "--temperature", "0"],
            "greedy decoding is always in the table",
        ),
    ];
    for (args, named) in wrong_flags {
        is_refused(args, 2, named);
    }
    for (args, named) in table {
        is_refused(args, 1, named);
    }
}
