//! Tests the program with CUDA on a machine without CUDA: it builds, reports what is missing,
//! refuses to check a GPU, and trains on the CPU.
//!
//! Enabled by `SQLENV_TEST_CUDA_BUILD=1`, because it compiles everything again and downloads 105 MB
//! (PyPI). It needs what `make cuda` needs.

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

/// Runs the program without any library of CUDA.
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
        // Written to stderr directly, because the harness hides what a passing test prints.
        let line = "SKIPPED: the program with CUDA was not built; SQLENV_TEST_CUDA_BUILD=1 builds and runs it\n";
        let _ = stderr().write_all(line.as_bytes());
        return;
    }
    // make checks that the program starts without a library of CUDA and is not too large.
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
