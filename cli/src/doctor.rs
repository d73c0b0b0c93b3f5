//! `sqlenv doctor`: what this machine offers and what this binary can use.

mod cuda;

use std::{fs, thread::available_parallelism};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{args::DoctorArgs, stdout};

/// What doctor found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// This program's version.
    pub version: &'static str,
    /// Cores that it may use.
    pub cores: usize,
    /// The instruction sets of the CPU that its kernels can use, the best first.
    pub kernels: Vec<String>,
    /// CUDA; absent where it is not compiled in.
    pub cuda: Option<policy::cuda::Findings>,
}

impl Diagnosis {
    /// Looks at this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let sets = policy::ops::InstructionSet::available();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cores: available_parallelism().map_or(1, usize::from),
            kernels: sets.iter().map(|set| format!("{set:?}")).collect(),
            cuda: policy::cuda::findings(),
        }
    }

    /// Whether the device of this number can be computed on, and if not, why and what to do about it.
    ///
    /// # Errors
    /// The reasons.
    pub fn device(&self, ordinal: usize) -> Result<(), String> {
        cuda::usable(self.cuda.as_ref(), ordinal)
    }

    /// The findings, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![
            ("sqlenv", self.version.to_owned()),
            ("cores", self.cores.to_string()),
            ("kernels", self.kernels.first().cloned().unwrap_or_default()),
        ];
        lines.extend(cuda::lines(self.cuda.as_ref()));
        let line = |(name, finding)| format!("{name:<9} {finding}\n");
        lines.into_iter().map(line).collect()
    }
}

/// Prints the findings, and with `--json` writes them to that file too.
///
/// # Errors
/// Standard output or the file cannot be written.
pub fn doctor(args: &DoctorArgs) -> Result<()> {
    let diagnosis = Diagnosis::of_this_machine();
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&diagnosis)?;
        fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    stdout::print(diagnosis.text())
}
