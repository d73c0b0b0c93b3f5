//! Memory of a process as Linux tells it; on other systems nothing is told.

use std::fs;

/// Resident memory of a process in MiB.
pub(super) fn resident_mib(process_id: u32) -> Option<f64> {
    status_mib(&process_id.to_string(), "VmRSS:")
}

/// Does `work`; answers with the most resident memory that this process had meanwhile, in MiB. Unknown where it never rose
/// above what was there before: memory that earlier work left to the allocator would be taken for this work's.
pub(super) fn peak_mib<T>(work: impl FnOnce() -> T) -> (T, Option<f64>) {
    // 5 means the peak, see proc_pid_clear_refs(5).
    let is_reset = fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = status_mib("self", "VmRSS:");
    let done = work();
    let peak = is_reset.then(|| status_mib("self", "VmHWM:")).flatten();
    let rose = |peak: &f64| before.is_some_and(|before| *peak > 1.05 * before);
    (done, peak.filter(rose))
}

fn status_mib(process: &str, field: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes / 1024.0)
}
