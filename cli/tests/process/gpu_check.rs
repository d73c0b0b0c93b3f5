//! Tests gpu-check on the CPU, where f64 runs through candle's operations and bf16 through kernels,
//! and its error without a device.

use std::{fs, process::Stdio, thread::sleep, time::Duration};

use serde_json::Value;

use crate::{
    bench::children,
    endings::signal,
    outcomes::{fail, succeed},
    program::{Running, sqlenv},
};

#[test]
fn the_checks_pass_on_the_cpu_and_are_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let output = sqlenv(&["gpu-check", "--device=cpu", "--rows=2", "--tokens=3"])
        .args(["--learner-rows=2", "--learner-tokens=40", "--repeats=1"])
        .arg("--out")
        .arg(folder.path())
        // Without a PATH there is no Python, so torch is not measured.
        .env("PATH", "")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{errors}{printed}");

    let json = fs::read(folder.path().join("gpu-check.json")).unwrap();
    let report: Value = serde_json::from_slice(&json).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let with = |status: &str| -> Vec<&str> {
        let checks = checks.iter().filter(|check| check["status"] == status);
        checks
            .map(|check| check["name"].as_str().unwrap())
            .collect()
    };
    assert_eq!(
        with("skipped"),
        [
            "device",
            "nccl",
            "sanitizer",
            "torch",
            "continuous-batching"
        ]
    );
    assert_eq!(
        with("passed"),
        [
            "forward",
            "gradients",
            "bf16",
            "cache",
            "engine",
            "sampling",
            "update",
            "start-up",
            "bandwidth",
            "sampler",
            "learner",
            "prefix",
            "train"
        ]
    );
    for check in checks.iter().filter(|check| check["status"] == "passed") {
        let measurements = check["measurements"].as_array().unwrap();
        assert!(!measurements.is_empty(), "{check} measures nothing");
    }
    let page = fs::read_to_string(folder.path().join("gpu-check.md")).unwrap();
    assert!(
        page.starts_with("# gpu-check on cpu\n\n0 of 18 checks failed, 5 were skipped."),
        "{page}"
    );
}

/// A supervisor sends its signal to one process.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn a_signal_ends_the_programs_of_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = sqlenv(&["gpu-check", "--device=cpu", "--only=train", "--out"]);
    command.arg(folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut check = Running(command.spawn().unwrap());
    let id = check.0.id();
    // The training, and the shell that leads its process group.
    check.until(|| children(id).len() == 2);
    let programs = children(id);
    signal(&check, "TERM");
    assert_eq!(check.0.wait().unwrap().code(), Some(130));
    // A container may have no process that removes them when they have ended.
    let works = |id: &String| {
        let status = fs::read_to_string(format!("/proc/{id}/status"));
        status.is_ok_and(|it| !it.contains("State:\tZ"))
    };
    while programs.iter().any(works) {
        sleep(Duration::from_millis(5));
    }
    // The training did not come to its end.
    let run = folder.path().join("gpu-check-train/run-001/run.json");
    let info = fs::read_to_string(run).unwrap_or_default();
    assert!(!info.contains("\"finished\""), "{info}");
}

#[test]
fn without_a_device_nothing_counts_as_checked() {
    // No machine has that many devices, with CUDA or without.
    let folder = tempfile::tempdir().unwrap();
    let mut command = sqlenv(&["gpu-check", "--device=cuda:4000", "--out"]);
    let errors = fail(command.arg(folder.path()), 2);
    assert!(
        errors.contains("nothing was checked") && errors.contains("--device cpu"),
        "{errors}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn doctor_reports_what_it_finds_in_words_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doctor.json");
    let text = succeed(sqlenv(&["doctor", "--json"]).arg(&file));
    assert!(text.contains("\ncuda      "), "{text}");
    let json: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert!(json["cores"].as_u64().unwrap() > 0);
    let is_built_in = candle_core::utils::cuda_is_available();
    assert_eq!(json["cuda"].is_object(), is_built_in);
    assert_eq!(text.contains("make cuda"), !is_built_in, "{text}");
}
