//! Benchmarks of the environment and the policy, and the checks of a GPU.
//!
//! The numbers depend on the machine; no other crate uses them.

mod args;
pub mod diagnosis;
pub mod env;
pub mod gpu_check;
mod memory;
pub mod policy;

pub use args::{BenchEnvArgs, BenchPolicyArgs, EnvProtocol, ModelShape, PolicyBenchmark};
