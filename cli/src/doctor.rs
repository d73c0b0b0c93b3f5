//! `sqlenv doctor`: what this machine offers and what this binary can use.

use std::thread::available_parallelism;

use anyhow::Result;

use crate::stdout;

/// Prints the findings, one a line.
///
/// # Errors
/// Standard output cannot be written.
pub fn doctor() -> Result<()> {
    let cores = available_parallelism().map_or(1, usize::from).to_string();
    let findings = [
        ("sqlenv", env!("CARGO_PKG_VERSION").to_owned()),
        ("cores", cores),
        ("kernels", kernels()),
        ("cuda", cuda()),
    ];
    let lines = findings.map(|(name, finding)| format!("{name:<9} {finding}\n"));
    stdout::print(lines.concat())
}

fn kernels() -> String {
    let sets = policy::ops::InstructionSet::available();
    sets.first()
        .map_or_else(String::new, |set| format!("{set:?}"))
}

fn cuda() -> String {
    if candle_core::utils::cuda_is_available() {
        "compiled in".to_owned()
    } else {
        "not compiled in; the policy runs on the CPU".to_owned()
    }
}
