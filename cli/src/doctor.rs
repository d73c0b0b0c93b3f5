//! `sqlenv doctor`: prints what this machine offers and what this binary can use of it.

use std::fs;

use anyhow::{Context as _, Result};
use bench::diagnosis::Diagnosis;

use crate::{args::DoctorArgs, stdout};

/// Prints the diagnosis; with `--json` also writes it to that file.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let diagnosis = Diagnosis::of_this_machine();
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&diagnosis)?;
        fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    stdout::print(diagnosis.text())
}
