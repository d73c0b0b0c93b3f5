//! Checks the contract against its baseline: no change may break existing clients.
//!
//! Needs `buf`: on the PATH, or named by `SQLENV_BUF`. A release that adds to the contract renews
//! the baseline by `buf build --exclude-source-info -o baseline.binpb`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_contract_is_compatible_with_its_baseline() {
    let Some(buf) = buf() else { return };
    let output = breaking(&buf, Path::new(FOLDER));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn an_incompatible_change_is_detected() {
    let Some(buf) = buf() else { return };
    for (original, broken) in [
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
        assert!(contract.contains(original), "{original}");
        fs::write(&env, contract.replace(original, broken)).unwrap();
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

/// Returns the path of `buf`, if it is installed.
fn buf() -> Option<PathBuf> {
    let buf = env::var_os("SQLENV_BUF").map_or_else(|| PathBuf::from("buf"), PathBuf::from);
    if Command::new(&buf).arg("--version").output().is_ok() {
        return Some(buf);
    }
    // Not by `eprintln!`, whose output the test harness hides when a test passes.
    let skipped =
        b"SKIPPED: no buf on the PATH, nor named by SQLENV_BUF; npm has it as @bufbuild/buf\n";
    io::stderr().write_all(skipped).unwrap();
    None
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&all).into_owned()
}
