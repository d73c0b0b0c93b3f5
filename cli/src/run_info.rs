//! What `run.json` says about a run when it starts.

use std::{collections::BTreeMap, thread::available_parallelism};

use policy::Model;
use report::{RunInfo, RunStatus};

use crate::config::ModelConfig;

/// Returns the command line. Arguments that are not UTF-8 are shown as well as they can be.
fn command_line() -> String {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Describes a run that starts now, on this machine, with this command line. The dataset is left
/// empty.
pub(crate) fn run_info(name: &str, (seed, model): (u64, &ModelConfig), base: &Model) -> RunInfo {
    let model = model.name();
    let tensors = base.weights.iter();
    let cores = available_parallelism().map_or(1, usize::from);
    RunInfo {
        name: name.to_owned(),
        status: RunStatus::Running,
        model,
        parameters: tensors.map(|(_, tensor)| tensor.elem_count() as u64).sum(),
        dataset: String::new(),
        databases: 0,
        questions: BTreeMap::new(),
        eval_queries_in_train: None,
        run_seed: seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: format!("{cores} cores, CPU"),
        command: command_line(),
        refused_actors: Vec::new(),
    }
}
