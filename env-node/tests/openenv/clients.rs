//! Runs OpenEnv's own clients and validators from PyPI against a server.
//!
//! Each version has a virtual environment in cargo's target folder, which is created once. Without
//! Python or PyPI the tests print that they are skipped.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Mutex,
};

use env_node::{Mode, OpenEnvConfig};
use serde_json::{Value, json};

use crate::common::served::Served;

const CLIENTS_0_2: &str = "openenv-core==0.2.3";
const CLIENTS_0_10: &str = "openenv==0.10.0";
const OPENAPI_VALIDATOR: &str = "openapi-spec-validator==0.9.0";

/// Serializes installations: both versions would fetch the same wheels.
static INSTALL: Mutex<()> = Mutex::new(());

/// Returns the folder of the programs of a virtual environment with `package`, or `None` if it
/// cannot be installed.
fn programs_of(package: &str) -> Option<PathBuf> {
    let _guard = INSTALL.lock().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(package.replace("==", "-"));
    let programs = folder.join("bin");
    let complete = folder.join("complete");
    if complete.exists() {
        return Some(programs);
    }
    let venv = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder)
        .output();
    let installed = venv.and_then(|venv| {
        if !venv.status.success() {
            return Ok(venv);
        }
        Command::new(programs.join("pip"))
            .args([
                "install",
                "--quiet",
                "--retries",
                "1",
                "--timeout",
                "20",
                package,
            ])
            .output()
    });
    let why = match installed {
        Ok(output) if output.status.success() => {
            fs::write(complete, "").unwrap();
            return Some(programs);
        }
        Ok(output) => text(&output),
        Err(error) => error.to_string(),
    };
    // The test harness hides what a passing test prints with `eprintln!`.
    let skipped = format!(
        "SKIPPED: {package} cannot be installed here, so its clients are not tested: {why}\n"
    );
    io::stderr().write_all(skipped.as_bytes()).unwrap();
    None
}

fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Runs a program of `package` while the server runs. Returns what it printed.
async fn run(
    package: &'static str,
    program: &'static str,
    arguments: Vec<String>,
) -> Option<String> {
    let run = move || {
        let program = programs_of(package)?.join(program);
        let output = Command::new(program)
            .args(&arguments)
            .env_remove("OPENENV_CLIENT_MODE")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        Some(String::from_utf8(output.stdout).unwrap())
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn script(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openenv");
    folder.join(name).display().to_string()
}

async fn plays_episodes(package: &'static str, expected: &[&str]) {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let arguments = vec![script("clients.py"), server.url()];
    let Some(printed) = run(package, "python", arguments).await else {
        return;
    };
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    assert_no_session_is_left(&server).await;
}

/// Asserts that every client freed its session: as many new ones fit as the server allows.
async fn assert_no_session_is_left(server: &Served) {
    let create = json!({"jsonrpc": "2.0", "method": "openenv/session/create", "id": 1});
    for session in 0..OpenEnvConfig::default().max_sessions {
        let (_, reply) = server.ask("/mcp", &create).await;
        assert!(reply.get("result").is_some(), "session {session}: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_0_2_play_episodes() {
    let expected = [
        "EnvClient",
        "SyncEnvClient",
        "GenericEnvClient",
        "step before reset",
        "64 sessions",
        "MCPToolClient",
    ];
    plays_episodes(CLIENTS_0_2, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_0_10_play_episodes() {
    let expected = [
        "EnvClient",
        "SyncEnvClient",
        "GenericEnvClient",
        "step before reset",
        "64 sessions",
        "MCPToolClient",
        "MCPToolClient, production",
        "new_session",
    ];
    plays_episodes(CLIENTS_0_10, &expected).await;
}

/// Runs `openenv validate --url` in both modes; it checks six criteria.
async fn validates(package: &'static str, more: &[&str]) {
    for mode in [Mode::Simulation, Mode::Production] {
        let config = OpenEnvConfig {
            mode,
            ..OpenEnvConfig::default()
        };
        let server = Served::open_env(config).await;
        let mut arguments = vec!["validate".to_owned(), "--url".to_owned(), server.url()];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        let Some(printed) = run(package, "openenv", arguments).await else {
            return;
        };
        let report: Value = serde_json::from_str(&printed).unwrap();
        let criteria = report["criteria"].as_array().unwrap();
        assert_eq!(criteria.len(), 6, "{printed}");
        assert!(
            criteria.iter().all(|one| one["passed"] == true),
            "{printed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validator_0_2_passes() {
    validates(CLIENTS_0_2, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validator_0_10_passes() {
    validates(CLIENTS_0_10, &["--json"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openapi_document_is_valid() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let openapi = server.get("/openapi.json").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), openapi.bytes).unwrap();
    let arguments = vec![file.path().display().to_string()];
    let program = "openapi-spec-validator";
    let Some(printed) = run(OPENAPI_VALIDATOR, program, arguments).await else {
        return;
    };
    assert!(printed.trim_end().ends_with(": OK"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graders_0_10_pass() {
    let server = Served::open_env(OpenEnvConfig::default()).await;
    let arguments = vec![script("graders.py"), server.url()];
    let Some(printed) = run(CLIENTS_0_10, "python", arguments).await else {
        return;
    };
    assert_eq!(
        printed.lines().collect::<Vec<_>>(),
        [
            "runtime.reward_well_formed",
            "runtime.observation_schema",
            "runtime.state_contract"
        ]
    );
}
