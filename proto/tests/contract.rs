//! The contract against its baseline: what clients were promised is not taken back.
//!
//! Needs `buf`: on the PATH, or named by `SQLENV_BUF`. A release that adds to the contract renews the baseline by
//! `buf build --exclude-source-info -o baseline.binpb`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_contract_keeps_what_the_baseline_promised() {
    let Some(buf) = buf() else { return };
    let output = breaking(&buf, Path::new(FOLDER));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_broken_promise_is_seen() {
    let Some(buf) = buf() else { return };
    for (promise, broken) in [
        ("uint64 seed = 3;", "string seed = 3;"),
        ("string split = 2;", "string part = 2;"),
        (
            "rpc Step(StepRequest) returns (StepResponse);",
            "rpc Act(StepRequest) returns (StepResponse);",
        ),
    ] {
        let copy = tempfile::tempdir().unwrap();
        let protos = copy.path().join("sqlenv/v1");
        fs::create_dir_all(&protos).unwrap();
        for file in ["buf.yaml", "sqlenv/v1/env.proto", "sqlenv/v1/learner.proto"] {
            fs::copy(Path::new(FOLDER).join(file), copy.path().join(file)).unwrap();
        }
        let env = protos.join("env.proto");
        let contract = fs::read_to_string(&env).unwrap();
        assert!(contract.contains(promise), "{promise}");
        fs::write(&env, contract.replace(promise, broken)).unwrap();
        assert!(!breaking(&buf, copy.path()).status.success(), "{broken}");
    }
}

fn breaking(buf: &Path, contract: &Path) -> Output {
    Command::new(buf)
        .arg("breaking")
        .arg("--against")
        .arg(Path::new(FOLDER).join("baseline.binpb"))
        .current_dir(contract)
        .output()
        .unwrap()
}

/// The tool, if it is there.
fn buf() -> Option<PathBuf> {
    let buf = env::var_os("SQLENV_BUF").map_or_else(|| PathBuf::from("buf"), PathBuf::from);
    if Command::new(&buf).arg("--version").output().is_ok() {
        return Some(buf);
    }
    // Not by `eprintln!`, of which a test that passes shows nothing.
    let skipped =
        b"SKIPPED: no buf on the PATH, nor named by SQLENV_BUF; npm has it as @bufbuild/buf\n";
    io::stderr().write_all(skipped).unwrap();
    None
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}
