//! Benchmarks of the environment, the policy and a whole cluster, and the checks of a GPU.
//!
//! The numbers depend on the machine. `sqlenv doctor` shows the [`diagnosis`] of it.

mod args;
pub mod cluster;
pub mod diagnosis;
pub mod env;
pub mod gpu_check;
mod memory;
pub mod policy;
mod process;

pub use args::{
    BenchClusterArgs, BenchEnvArgs, BenchPolicyArgs, EnvProtocol, ModelShape, PolicyBenchmark,
    at_least_one,
};
