//! `sqlenv gpu-check`: every check and benchmark of a device, on a machine that need not have a network.
//!
//! Invariant: a check that fails or panics is a finding and does not keep the others from running; without a device nothing
//! counts as checked.

pub(crate) mod args;
mod collectives;
mod parity;
mod programs;
pub mod report;
mod speed;
mod train;

use std::{fmt, fs, panic::AssertUnwindSafe, path::Path, time::Instant};

use anyhow::{Context as _, Result};
use candle_core::{DType, Device};
use clap::ValueEnum as _;
use futures::FutureExt as _;
use policy::DeviceChoice;

use self::{
    args::{Check, GpuCheckArgs},
    report::{Figure, Finding, Report, Status},
};
use crate::{args::Shape, commands::Outcome, doctor::Diagnosis, stdout};

/// What is checked.
struct Subject<'a> {
    args: &'a GpuCheckArgs,
    diagnosis: &'a Diagnosis,
    device: Device,
    shape: Shape,
}

impl Subject<'_> {
    /// The dtype that is compared with the CPU's f32. On the CPU itself f64, since f32 there is the reference and its kernels.
    fn exact(&self) -> DType {
        if self.device.is_cpu() {
            DType::F64
        } else {
            DType::F32
        }
    }

    /// The memory that a measurement's peak is of.
    fn memory(&self) -> &'static str {
        if self.device.is_cpu() {
            "main memory"
        } else {
            "the device's memory"
        }
    }
}

/// Why a check could not run; as an error it makes the finding [`Status::Skipped`].
#[derive(Debug)]
struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Runs the wanted checks and writes their findings.
///
/// # Errors
/// The findings cannot be written.
pub async fn gpu_check(args: &GpuCheckArgs) -> Result<Outcome> {
    let diagnosis = Diagnosis::of_this_machine();
    let args = &GpuCheckArgs {
        device: named(args.device, &diagnosis),
        ..args.clone()
    };
    let device = match open(args.device, &diagnosis) {
        Ok(device) => device,
        Err(reason) => {
            eprintln!(
                "error: nothing was checked: {reason}; `--device cpu` runs the same checks on the CPU"
            );
            return Ok(Outcome::NoDevice);
        }
    };
    let subject = Subject {
        args,
        diagnosis: &diagnosis,
        shape: args.shape.unwrap_or(if device.is_cpu() {
            Shape::Tiny
        } else {
            Shape::Qwen3_06b
        }),
        device,
    };
    if args.first_token {
        stdout::print(speed::first_token(&subject).await?)?;
        return Ok(Outcome::Done);
    }
    let mut checks = Vec::new();
    for &check in Check::value_variants() {
        if args.only.is_empty() || args.only.contains(&check) {
            stdout::print(format_args!("{:<10} ", check.name()))?;
            let finding = finding(check, &subject).await;
            // For programs that the next check may start.
            policy::release_memory(&subject.device);
            stdout::print(format_args!("{}\n", told(&finding)))?;
            checks.push(finding);
        }
    }
    let report = Report {
        device: args.device.to_string(),
        shape: subject.shape.to_string(),
        diagnosis: diagnosis.clone(),
        checks,
    };
    write(&report, &args.out)?;
    Ok(if report.failures() == 0 {
        Outcome::Done
    } else {
        Outcome::Failed
    })
}

/// `auto` by its name.
fn named(choice: DeviceChoice, diagnosis: &Diagnosis) -> DeviceChoice {
    let first = || diagnosis.cuda.as_ref()?.first_usable().ok();
    match choice {
        DeviceChoice::Auto => DeviceChoice::Cuda(first().unwrap_or(0)),
        choice => choice,
    }
}

/// The device, or why there is none; never another one.
fn open(choice: DeviceChoice, diagnosis: &Diagnosis) -> Result<Device, String> {
    if let Some(ordinal) = ordinal(choice) {
        diagnosis.device(ordinal)?;
    }
    choice.open().map_err(|error| error.to_string())
}

/// The device's number; none for the CPU, and for one that has no name yet.
fn ordinal(choice: DeviceChoice) -> Option<usize> {
    match choice {
        DeviceChoice::Cpu | DeviceChoice::Auto => None,
        DeviceChoice::Cuda(ordinal) => Some(ordinal),
    }
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
async fn finding(check: Check, subject: &Subject<'_>) -> Finding {
    let begun = Instant::now();
    let found = AssertUnwindSafe(run(check, subject)).catch_unwind().await;
    let (status, figures) = match found {
        Ok(Ok(figures)) => (Status::of(&figures), figures),
        Ok(Err(error)) => (ended(&error), Vec::new()),
        Err(panic) => (
            Status::Failed(format!("it panicked: {}", said(&*panic))),
            Vec::new(),
        ),
    };
    Finding {
        name: check.name(),
        status,
        figures,
        seconds: begun.elapsed().as_secs_f64(),
    }
}

async fn run(check: Check, subject: &Subject<'_>) -> Result<Vec<Figure>> {
    match check {
        Check::Device => device(subject),
        Check::Forward => parity::forward(subject),
        Check::Gradients => parity::gradients(subject),
        Check::Bf16 => parity::bf16(subject),
        Check::Cache => parity::cache(subject),
        Check::Engine => parity::engine(subject).await,
        Check::Update => parity::update(subject),
        Check::Nccl => collectives::nccl(subject),
        Check::Sanitizer => programs::sanitizer(subject),
        Check::StartUp => programs::start_up(subject),
        Check::Bandwidth => speed::bandwidth(subject),
        Check::Sampler => speed::sampler(subject).await,
        Check::Learner => speed::learner(subject),
        Check::Prefix => speed::prefix(subject),
        Check::Torch => programs::torch(subject, "sampler,learner"),
        Check::ContinuousBatching => programs::torch(subject, "continuous"),
        Check::Train => train::train(subject),
    }
}

/// What doctor says, as figures; that there is a device at all is asked before.
fn device(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    let Some(ordinal) = ordinal(subject.args.device) else {
        return Err(Skipped("the checks run on the CPU".to_owned()).into());
    };
    let devices = subject.diagnosis.cuda.as_ref().map(|cuda| &cuda.devices);
    let device = devices.and_then(|devices| devices.get(ordinal));
    let device = device.with_context(|| format!("the driver has no device {ordinal}"))?;
    let (major, minor) = device.compute_capability;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let mut figures = vec![
        Figure::of(
            "compute capability",
            f64::from(10 * major + minor) / 10.0,
            "",
        ),
        Figure::of("memory", gib(device.total_memory), "GiB"),
    ];
    figures.extend(
        device
            .free_memory
            .map(|free| Figure::of("free memory", gib(free), "GiB")),
    );
    Ok(figures)
}

fn ended(error: &anyhow::Error) -> Status {
    match error.downcast_ref::<Skipped>() {
        Some(Skipped(reason)) => Status::Skipped(reason.clone()),
        None => Status::Failed(format!("{error:#}")),
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

fn told(finding: &Finding) -> String {
    let seconds = finding.seconds;
    match &finding.status {
        Status::Passed => format!("passed  {seconds:.1} s"),
        Status::Failed(reason) => format!("FAILED  {seconds:.1} s: {reason}"),
        Status::Skipped(reason) => format!("skipped: {reason}"),
    }
}

fn write(report: &Report, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, content) in [("gpu-check.json", json), ("gpu-check.md", report.page())] {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        stdout::print(format_args!("{}\n", path.display()))?;
    }
    Ok(())
}
