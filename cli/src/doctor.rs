//! `sqlenv doctor`: what this machine offers and what this binary can use.

use std::thread::available_parallelism;

/// Prints the findings, one a line.
pub fn doctor() {
    println!("sqlenv    {}", env!("CARGO_PKG_VERSION"));
    println!(
        "cores     {}",
        available_parallelism().map_or(1, usize::from)
    );
    println!("kernels   {}", kernels());
    println!("cuda      {}", cuda());
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
