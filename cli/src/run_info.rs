//! What `run.json` says about a run when it starts.

use std::{collections::BTreeMap, thread::available_parallelism};

use anyhow::{Result, ensure};
use candle_core::{Device, DeviceLocation};
use policy::{Model, Placement};
use report::{RunInfo, RunStatus};

use crate::config::ModelConfig;

/// Returns the command line. Arguments that are not UTF-8 are shown as well as they can be.
fn command_line() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Refuses to continue a run on other data than it began with, or by other rules of the
/// environment. Earlier versions did not record them.
pub(crate) fn check_data(earlier: Option<&RunInfo>, now: &RunInfo) -> Result<()> {
    let known = earlier.and_then(|info| info.data_sha256.as_ref());
    ensure!(
        known.is_none() || known == now.data_sha256.as_ref(),
        "the run {} began with other questions or databases ({}) than it would continue with \
         ({}); give it the same data and the same version of the program, or start a new run",
        now.name,
        shortened(known),
        shortened(now.data_sha256.as_ref())
    );
    let known = earlier.and_then(|info| info.environment.as_ref());
    ensure!(
        known.is_none() || known == now.environment.as_ref(),
        "the run {} began with an env-node of other rules ({}) than it would continue with ({}); \
         give the env-node the same [env] settings and the same version of the program, or start \
         a new run",
        now.name,
        known.map_or("unknown", String::as_str),
        now.environment.as_deref().unwrap_or("unknown")
    );
    Ok(())
}

/// Returns the beginning of a hash.
fn shortened(hash: Option<&String>) -> String {
    hash.map_or_else(
        || "unknown".to_owned(),
        |hash| hash.chars().take(12).collect(),
    )
}

/// Describes a run that starts now, on this machine, with this command line. The dataset is left
/// empty.
///
/// # Errors
/// There is no such device.
pub(crate) fn run_info(
    name: &str,
    (seed, model, placement): (u64, &ModelConfig, Placement),
    base: &Model,
) -> Result<RunInfo> {
    let model = model.name();
    let tensors = base.weights.iter();
    let (device, _) = placement.open(&base.config)?;
    Ok(RunInfo {
        name: name.to_owned(),
        status: RunStatus::Running,
        model,
        parameters: tensors.map(|(_, tensor)| tensor.elem_count() as u64).sum(),
        dataset: String::new(),
        data_sha256: None,
        environment: None,
        databases: 0,
        questions: BTreeMap::new(),
        eval_queries_in_train: None,
        warm_start: None,
        run_seed: seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine(&device),
        command: command_line(),
        refused_actors: Vec::new(),
    })
}

/// Describes this machine, and the device that the run computes on.
fn machine(device: &Device) -> String {
    let cores = available_parallelism().map_or(1, usize::from);
    let device = match device.location() {
        DeviceLocation::Cpu => "CPU".to_owned(),
        DeviceLocation::Cuda { gpu_id } => format!("CUDA device {gpu_id}"),
        DeviceLocation::Metal { gpu_id } => format!("Metal device {gpu_id}"),
    };
    format!("{cores} cores, {device}")
}
