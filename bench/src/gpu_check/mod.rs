//! `sqlenv gpu-check`: all checks and benchmarks of a device, on a machine that need not have a
//! network.
//!
//! A check that fails or panics is a result and does not keep the others from running. Without the
//! device nothing counts as checked.

mod args;
mod collectives;
mod parity;
mod programs;
mod report;
mod sampling;
mod speed;
mod target;
mod train;

use std::{any::Any, fs, io::Write, panic::AssertUnwindSafe, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use futures::FutureExt as _;

pub use self::args::{Check, GpuCheckArgs};
use self::{
    report::{CheckResult, CheckStatus, GpuCheckReport, Measurement},
    target::{CheckTarget, Skipped, named, open, ordinal},
};
use crate::{ModelShape, diagnosis::Diagnosis, policy::throughput::now};

/// Runs the checks, prints a line for each to `out` and writes gpu-check.json and gpu-check.md.
///
/// Returns the exit code of the program: success if no check failed, and 2 if there is no device,
/// so that nothing was checked.
///
/// # Errors
/// The results cannot be written.
pub async fn gpu_check(args: &GpuCheckArgs, out: &mut impl Write) -> Result<ExitCode> {
    let diagnosis = Diagnosis::of_this_machine();
    let args = &GpuCheckArgs {
        device: named(args.device, &diagnosis),
        ..args.clone()
    };
    let device = match open(args.device, &diagnosis) {
        Ok(device) => device,
        Err(reason) => {
            let remedy = "`--device cpu` runs the same checks on the CPU";
            eprintln!("error: nothing was checked: {reason}; {remedy}");
            return Ok(ExitCode::from(2));
        }
    };
    let default_shape = if device.is_cpu() {
        ModelShape::Tiny
    } else {
        ModelShape::Qwen3_06b
    };
    let target = CheckTarget {
        args,
        diagnosis: &diagnosis,
        shape: args.shape.unwrap_or(default_shape),
        device,
    };
    if args.first_token {
        writeln!(out, "{}", speed::first_token(&target).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    try_folder(&args.out)?;
    let report = GpuCheckReport {
        device: args.device.to_string(),
        shape: target.shape.to_string(),
        checks: results(&target, out).await?,
        diagnosis: diagnosis.clone(),
    };
    write(&report, &args.out, out)?;
    Ok(if report.failures() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn results(target: &CheckTarget<'_>, out: &mut impl Write) -> Result<Vec<CheckResult>> {
    let mut results = Vec::new();
    for &check in Check::value_variants() {
        if target.args.only.is_empty() || target.args.only.contains(&check) {
            write!(out, "{:<10} ", check.name())?;
            out.flush()?;
            let result = result(check, target).await;
            // The next check may start a program that needs the device's memory.
            policy::release_memory(&target.device);
            writeln!(out, "{result}")?;
            results.push(result);
        }
    }
    Ok(results)
}

async fn result(check: Check, target: &CheckTarget<'_>) -> CheckResult {
    let start = now();
    let ended = AssertUnwindSafe(run(check, target)).catch_unwind().await;
    let (status, measurements) = match ended {
        Ok(Ok(measurements)) => (CheckStatus::of(&measurements), measurements),
        Ok(Err(error)) => match error.downcast_ref::<Skipped>() {
            Some(Skipped(reason)) => (CheckStatus::Skipped(reason.clone()), Vec::new()),
            None => (CheckStatus::Failed(format!("{error:#}")), Vec::new()),
        },
        Err(panic) => {
            let reason = format!("it panicked: {}", panic_message(&*panic));
            (CheckStatus::Failed(reason), Vec::new())
        }
    };
    CheckResult {
        name: check.name(),
        status,
        measurements,
        seconds: start.elapsed().as_secs_f64(),
    }
}

async fn run(check: Check, target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    match check {
        Check::Device => device(target),
        Check::Forward => parity::forward(target),
        Check::Gradients => parity::gradients(target),
        Check::Bf16 => parity::bf16(target),
        Check::Cache => parity::cache(target),
        Check::Engine => parity::engine(target).await,
        Check::Sampling => sampling::sampling(target),
        Check::Update => parity::update(target),
        Check::Nccl => collectives::nccl(target),
        Check::Sanitizer => programs::sanitizer(target),
        Check::StartUp => programs::start_up(target),
        Check::Bandwidth => speed::bandwidth(target),
        Check::Sampler => speed::sampler(target).await,
        Check::Learner => speed::learner(target),
        Check::Prefix => speed::prefix(target),
        Check::Torch => programs::torch(target, "sampler,learner"),
        Check::ContinuousBatching => programs::torch(target, "continuous"),
        Check::Train => train::train(target),
    }
}

/// Returns what `sqlenv doctor` knows of the device. Whether it can be used is checked before all
/// checks.
fn device(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    let Some(ordinal) = ordinal(target.args.device) else {
        return Err(Skipped("the checks run on the CPU".to_owned()).into());
    };
    let devices = target.diagnosis.cuda.as_ref().map(|cuda| &cuda.devices);
    let device = devices
        .and_then(|devices| devices.get(ordinal))
        .with_context(|| format!("the driver has no device {ordinal}"))?;
    let (major, minor) = device.compute_capability;
    let capability = f64::from(10 * major + minor) / 10.0;
    let memory =
        |name: &str, bytes: u64| Measurement::new(name, bytes as f64 / f64::from(1 << 30), "GiB");
    let mut measurements = vec![
        Measurement::new("compute capability", capability, ""),
        memory("memory", device.total_memory),
    ];
    measurements.extend(device.free_memory.map(|free| memory("free memory", free)));
    Ok(measurements)
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Checks that the results can be written, before the checks take minutes.
fn try_folder(folder: &Path) -> Result<()> {
    let path = folder.join(".gpu-check.partial");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, ""))
        .and_then(|()| fs::remove_file(&path))
        .with_context(|| format!("cannot write into --out {}", folder.display()))
}

fn write(report: &GpuCheckReport, folder: &Path, out: &mut impl Write) -> Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, content) in [("gpu-check.json", json), ("gpu-check.md", report.page())] {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}
