//! What `run.json` says about a run when it starts.

use std::{collections::BTreeMap, path::Path, thread::available_parallelism};

use anyhow::{Result, ensure};
use candle_core::{Device, DeviceLocation};
use policy::{Model, Placement};
use report::{RunFolder, RunInfo, RunStatus};

use crate::{
    args::OWN_DATA_DIR,
    config::{DataConfig, ModelConfig},
    setup::Setup,
    shutdown::this_command,
};

/// Refuses to continue a run on other data than it began with, or by other rules of the
/// environment.
pub(crate) fn check_data(earlier: Option<&RunInfo>, now: &RunInfo) -> Result<()> {
    let Some(earlier) = earlier else {
        return Ok(());
    };
    ensure!(
        earlier.data_sha256 == now.data_sha256,
        "the run {} began with other questions or databases ({}) than it would continue with \
         ({}); give it the same data and the same version of the program, or start a new run",
        now.name,
        shortened(&earlier.data_sha256),
        shortened(&now.data_sha256)
    );
    // A run in one process has no env-node.
    let rules = earlier.environment.as_ref();
    ensure!(
        rules.is_none() || rules == now.environment.as_ref(),
        "the run {} began with an env-node of other rules ({}) than it would continue with ({}); \
         give the env-node the same [env] settings and the same version of the program, or start \
         a new run",
        now.name,
        rules.map_or("unknown", String::as_str),
        now.environment.as_deref().unwrap_or("unknown")
    );
    Ok(())
}

/// Returns the hash of the data that a run was trained on; none if its folder does not say.
pub(crate) fn trained_data(run_dir: &Path) -> Option<String> {
    let info = RunFolder::new(run_dir).info().ok()??;
    Some(info.data_sha256)
}

/// Returns whether both are the same folder and databases.
pub(crate) fn is_same_place(one: &DataConfig, other: &DataConfig) -> bool {
    let place = |data: &DataConfig| {
        let dir = folder_of(data);
        dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
    };
    place(one) == place(other) && one.databases == other.databases
}

fn folder_of(data: &DataConfig) -> &Path {
    data.dir.as_deref().unwrap_or(Path::new(OWN_DATA_DIR))
}

/// Returns a warning if the folder that a run was trained on has other data since then, for example
/// because it was drafted again. `trained` is the hash of the former, if it is known, and `data`
/// what is opened now: another folder gives no warning.
pub(crate) fn other_data(
    run: &str,
    trained: Option<&str>,
    trained_on: &DataConfig,
    data: &DataConfig,
    setup: &Setup,
) -> Option<String> {
    let trained = trained.filter(|hash| *hash != setup.data_sha256)?;
    is_same_place(trained_on, data).then_some(())?;
    Some(format!(
        "{} has other data than {run} was trained on ({}, now {}), so its `eval` may have \
         questions of that training; for a fair result name other data by --data",
        folder_of(data).display(),
        shortened(trained),
        shortened(&setup.data_sha256)
    ))
}

/// Returns the beginning of a hash.
fn shortened(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// Describes a run that starts now, on this machine, with this command line. The dataset is left
/// empty.
///
/// # Errors
/// There is no such device.
pub(crate) fn run_info(
    name: &str,
    seed: u64,
    model: &ModelConfig,
    placement: Placement,
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
        data_sha256: String::new(),
        environment: None,
        databases: 0,
        questions: BTreeMap::new(),
        eval_queries_in_train: None,
        warm_start: None,
        run_seed: seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: machine(&device),
        command: this_command(),
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
