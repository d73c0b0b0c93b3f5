//! Tests that the benchmarks run and print their tables. No test checks a speed.

use std::{fs, path::Path, process::Stdio};

use crate::{
    endings::signal,
    outcomes::succeed,
    program::{Running, sqlenv},
};

/// Runs a benchmark and returns the cells of its table.
fn table(args: &[&str]) -> Vec<Vec<String>> {
    let text = succeed(&mut sqlenv(args));
    let cells = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    text.lines().skip(2).map(cells).collect()
}

#[test]
fn an_environment_is_measured_over_both_protocols() {
    let rows = table(&[
        "bench",
        "env",
        "--episodes=2",
        "--questions=20",
        "--warm-up-seconds=0.1",
        "--seconds=3",
        "--seed=3",
    ]);
    let protocols: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(protocols, ["grpc", "web-socket"]);
    for row in rows {
        let [steps, episodes, wrong] =
            [2, 6, 7].map(|column: usize| row[column].parse::<u64>().unwrap());
        assert!(steps > 0 && episodes > 0 && wrong == 0, "{row:?}");
    }
}

#[test]
fn a_policy_is_measured_sampling_and_learning() {
    let rows = table(&[
        "bench",
        "policy",
        "--shapes=tiny",
        "--rows=3,8",
        "--prompt-tokens=4",
        "--new-tokens=2",
        "--learner-rows=2",
        "--learner-tokens=8",
        "--prefix-tokens=40",
        "--repeats=1",
    ]);
    let measured: Vec<[&str; 3]> = rows
        .iter()
        .map(|row| [2, 3, 4].map(|column: usize| row[column].as_str()))
        .collect();
    assert_eq!(
        measured,
        [
            ["sampler", "3", "6"],
            ["sampler", "8", "6"],
            ["sampler, groups of 8", "8", "6"],
            ["learner", "2", "8"],
            ["learner, prompt shared, checkpointed", "8", "104"],
            ["learner, prompt shared", "8", "104"],
            ["learner, prompt repeated", "8", "104"],
            ["grpo", "8", "6"],
        ]
    );
    assert!(
        rows.iter().all(|row| row[5].parse::<u64>().unwrap() > 0),
        "{rows:?}"
    );
    if cfg!(target_os = "linux") {
        assert!(rows[3][6].parse::<u64>().unwrap() > 0, "{rows:?}");
    }
}

#[test]
fn a_cluster_is_measured() {
    let rows = table(&[
        "bench",
        "cluster",
        "--preset=smoke",
        "--env-nodes=1",
        "--episodes=4",
        "--latencies-ms=0",
        "--steps=3",
        "--repeats=1",
        "--seed=3",
        "--set=learner.max_staleness=1",
    ]);
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!(row[..2], ["4", "0 ms"]);
    assert!(row[2].parse::<u64>().unwrap() > 0, "{row:?}");
}

/// Returns the processes that a process has started.
pub(crate) fn children(process: u32) -> Vec<String> {
    let line = format!("PPid:\t{process}");
    let is_child = |id: &String| {
        let status = fs::read_to_string(format!("/proc/{id}/status"));
        status.is_ok_and(|it| it.lines().any(|it| it == line))
    };
    let entries = fs::read_dir("/proc").unwrap().map(Result::unwrap);
    let names = entries.map(|it| it.file_name().display().to_string());
    names.filter(is_child).collect()
}

/// A supervisor sends its signal to one process.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn a_signal_ends_the_processes_of_a_benchmark() {
    let mut command = sqlenv(&["bench", "env", "--episodes=2", "--seconds=3600"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = Running(command.spawn().unwrap());
    let id = bench.0.id();
    bench.until(|| !children(id).is_empty());
    let nodes = children(id);
    assert_eq!(nodes.len(), 1);
    signal(&bench, "TERM");
    assert_eq!(bench.0.wait().unwrap().code(), Some(130));
    assert!(!Path::new("/proc").join(&nodes[0]).exists());
}
