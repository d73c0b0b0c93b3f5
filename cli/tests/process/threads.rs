//! Tests that a run computes on as many threads as its setting says, and that no library adds a
//! pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
    time::Duration,
};

use crate::program::{Running, sqlenv};

/// Returns the names of the threads of a process, by number. A thread without a name, or one that
/// has just started, has the name of the thread that started it.
fn threads(process: u32) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    let path = format!("/proc/{process}/comm");
    // Between fork and exec the process is this test.
    if fs::read_to_string(path).is_ok_and(|name| name.trim() != "sqlenv") {
        return names;
    }
    // Threads end while they are looked at.
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let number = task.file_name().to_string_lossy().parse();
        let name = fs::read_to_string(task.path().join("comm"));
        if let (Ok(number), Ok(name)) = (number, name) {
            names.insert(number, name.trim().to_owned());
        }
    }
    names
}

/// Returns the largest number of concurrent threads by name. A thread counts by its last name.
fn most_at_once(
    looks: &BTreeSet<Vec<u32>>,
    names: &BTreeMap<u32, String>,
) -> BTreeMap<String, usize> {
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    for look in looks {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for number in look {
            *counts.entry(&names[number]).or_default() += 1;
        }
        for (name, count) in counts {
            let most = most.entry(name.to_owned()).or_default();
            *most = count.max(*most);
        }
    }
    most
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn a_run_computes_on_no_more_threads_than_set() {
    let runs = tempfile::tempdir().unwrap();
    let folder = runs.path().to_str().unwrap();
    let args = [
        "train",
        "--preset",
        "smoke",
        "--set",
        "threads=1",
        "--runs-dir",
        folder,
    ];
    let child = sqlenv(&args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut run = Running(child);
    let (mut looks, mut names) = (BTreeSet::new(), BTreeMap::new());
    let status = loop {
        let seen = threads(run.0.id());
        looks.insert(seen.keys().copied().collect());
        names.extend(seen);
        if let Some(status) = run.0.try_wait().unwrap() {
            break status;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let most = most_at_once(&looks, &names);
    assert!(status.success());
    let count = |name: &str| most.get(name).copied().unwrap_or_default();
    // One that samples the episodes; at a checkpoint another that plays the evaluation's.
    assert!((1..=2).contains(&count("engine")), "{most:?}");
    // Who drives, one worker over micro-batches, and the one before it that is about to be gone: of
    // the trainer, and of the warm start in the main thread.
    assert!((1..=3).contains(&count("trainer")), "{most:?}");
    assert!((1..=3).contains(&count("sqlenv")), "{most:?}");
    // One waits for each: a template that is compiled.
    assert!(count("chat template") <= 8, "{most:?}");
    // What is left passes messages, or is SQLite's bounded pool.
    let known = |name: &str| {
        let others = [
            "sqlenv",
            "trainer",
            "engine",
            "tokio-rt-worker",
            "chat template",
        ];
        others.contains(&name) || name.starts_with("env-sql-")
    };
    assert!(most.keys().all(|name| known(name)), "{most:?}");
}
