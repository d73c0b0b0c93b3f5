//! Memory of a process as Linux tells it (on other systems nothing is told), and of a device as its driver does.

use std::fs;

use candle_core::Device;

/// Resident memory of a process in MiB.
pub(super) fn resident_mib(process_id: u32) -> Option<f64> {
    status_mib(&process_id.to_string(), "VmRSS:")
}

/// Does `work` on a device; answers with the most memory that it needed there, in MiB: on the CPU what this process had
/// resident. Unknown there where it never rose above what was there before: memory that earlier work left to the allocator
/// would be taken for this work's.
pub(super) fn peak_mib<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<f64>) {
    if device.is_cpu() {
        return resident_peak_mib(work);
    }
    let (done, peak) = policy::peak_memory(device, work);
    (done, peak.map(|bytes| bytes as f64 / f64::from(1 << 20)))
}

fn resident_peak_mib<T>(work: impl FnOnce() -> T) -> (T, Option<f64>) {
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
