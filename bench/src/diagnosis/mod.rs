//! What this machine offers and what this binary can use of it: the content of `sqlenv doctor`.

mod cuda;

use std::thread::available_parallelism;

use serde::Serialize;

/// Facts about this machine and this binary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Version of this program.
    pub version: &'static str,
    /// CPU cores that the process may use.
    pub cores: usize,
    /// The instruction sets of the CPU that the kernels can use, the best first.
    pub kernels: Vec<String>,
    /// CUDA; `None` if the binary is built without it.
    pub cuda: Option<policy::cuda::Findings>,
}

impl Diagnosis {
    /// Examines this machine.
    pub fn of_this_machine() -> Self {
        let sets = policy::ops::InstructionSet::available();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cores: available_parallelism().map_or(1, usize::from),
            kernels: sets.iter().map(|set| format!("{set:?}")).collect(),
            cuda: policy::cuda::findings(),
        }
    }

    /// Checks that the CUDA device of this number can be used.
    ///
    /// # Errors
    /// Returns the reason and the remedy.
    pub fn device(&self, ordinal: usize) -> Result<(), String> {
        cuda::usable(self.cuda.as_ref(), ordinal)
    }

    /// Returns the facts, one per line.
    pub fn text(&self) -> String {
        let mut lines = vec![
            ("sqlenv", self.version.to_owned()),
            ("cores", self.cores.to_string()),
            ("kernels", self.kernels.first().cloned().unwrap_or_default()),
        ];
        lines.extend(cuda::facts(self.cuda.as_ref()));
        let line = |(name, fact)| format!("{name:<9} {fact}\n");
        lines.into_iter().map(line).collect()
    }
}
