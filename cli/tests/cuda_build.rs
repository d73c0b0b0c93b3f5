//! The program with CUDA on a machine without: it builds, says what it misses, refuses to check a GPU, and trains on the CPU.
//!
//! Opt-in by `SQLENV_TEST_CUDA_BUILD=1`, since it compiles everything once more and fetches 105 MB (PyPI). Needs what
//! `make cuda` needs.

#![expect(clippy::unwrap_used, reason = "what a test needs may fail it")]

use std::{
    env,
    io::{Write as _, stderr},
    path::Path,
    process::{Command, Output},
};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// What the program answers; no library of CUDA is found.
fn answer(args: &[&str]) -> Output {
    let mut command = Command::new(root().join("target/cuda/sqlenv"));
    command
        .args(args)
        .current_dir(root())
        .env_remove("LD_LIBRARY_PATH");
    command.output().unwrap()
}

#[test]
fn the_program_with_cuda_works_without() {
    if env::var_os("SQLENV_TEST_CUDA_BUILD").is_none() {
        // Past the test harness, which keeps what a passing test prints.
        let line = "SKIPPED: the program with CUDA was not built; SQLENV_TEST_CUDA_BUILD=1 builds and runs it\n";
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    // make's own checks: no library of CUDA is needed to start, and the program is not too large.
    let status = Command::new("make")
        .arg("cuda")
        .current_dir(root())
        .status()
        .unwrap();
    assert!(status.success(), "make cuda: {status}");

    let doctor = answer(&["doctor"]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        doctor.status.success() && text.contains("compute capability 90"),
        "{text}"
    );
    if text.contains("cuda      ready") {
        let _ = stderr().write_all(b"SKIPPED: there is a GPU, so its absence was not tried\n");
        return;
    }
    assert!(text.contains("libcuda.so.1"), "{text}");
    assert_eq!(answer(&["gpu-check"]).status.code(), Some(2));

    let runs = tempfile::tempdir().unwrap();
    let folder = runs.path().to_str().unwrap();
    let train = answer(&["train", "--preset=smoke", "--runs-dir", folder]);
    let errors = String::from_utf8_lossy(&train.stderr);
    assert!(train.status.success(), "{errors}");
    assert!(
        runs.path().join("run-001/report.html").is_file(),
        "{errors}"
    );
}
