//! Reads the memory of a process. The tests of `learner`, `env-node` and `cli` use it.

#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;

/// Returns a number of a process in bytes. `process` is its id, or `self`.
pub(crate) fn measured(process: &str, field: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() << 10
}

/// Returns how far the memory of this process grows during `work`, at its peak.
pub(crate) async fn peak_growth(work: impl Future<Output = ()>) -> usize {
    // The peak begins again at what is resident now.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = measured("self", "VmRSS:");
    work.await;
    measured("self", "VmHWM:").saturating_sub(before)
}
