//! What `run.json` says of a run when it begins.

use std::{collections::BTreeMap, thread::available_parallelism};

use policy::Model;

use super::records::{RunInfo, RunStatus};
use crate::config::ModelConfig;

/// The questions of a run in numbers.
pub struct Asked {
    /// The dataset in words.
    pub dataset: String,
    /// Databases the questions are asked of.
    pub databases: u64,
    /// Questions by split.
    pub questions: BTreeMap<String, u64>,
    /// Questions of `eval` whose SQL a training question has too, where it is known.
    pub eval_queries_in_train: Option<u64>,
}

impl RunInfo {
    /// A run that begins now, on this machine, by this command line.
    #[must_use]
    pub fn begun(name: &str, seed: u64, config: &ModelConfig, base: &Model, asked: Asked) -> Self {
        let model = match &config.dir {
            Some(dir) => dir.display().to_string(),
            None => "the embedded policy".to_owned(),
        };
        Self {
            name: name.to_owned(),
            status: RunStatus::Running,
            model,
            parameters: base
                .weights
                .iter()
                .map(|(_, tensor)| tensor.elem_count() as u64)
                .sum(),
            dataset: asked.dataset,
            databases: asked.databases,
            questions: asked.questions,
            eval_queries_in_train: asked.eval_queries_in_train,
            run_seed: seed,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: format!(
                "{} cores, CPU",
                available_parallelism().map_or(1, usize::from)
            ),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        }
    }
}
