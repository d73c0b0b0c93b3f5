//! Memory of a process, as Linux reports it in `/proc`, and of a device, as its driver does. On
//! other systems than Linux the memory of a process is unknown.

use std::fs;

use candle_core::Device;

/// Returns the resident memory of a process in MiB.
pub(crate) fn resident_mib(process_id: u32) -> Option<f64> {
    status_mib(&process_id.to_string(), "VmRSS:")
}

/// Runs `work` and returns the peak memory on the device in MiB. On the CPU this is the peak of
/// this process's resident memory. It is unknown if it never rose above the memory before: the
/// allocator then still had enough from earlier work.
pub(crate) fn peak_mib<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<f64>) {
    if device.is_cpu() {
        return resident_peak_mib(work);
    }
    let (done, peak) = policy::peak_memory(device, work);
    (done, peak.map(|bytes| bytes as f64 / f64::from(1 << 20)))
}

fn resident_peak_mib<T>(work: impl FnOnce() -> T) -> (T, Option<f64>) {
    // Writing 5 resets the peak, see proc_pid_clear_refs(5).
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
