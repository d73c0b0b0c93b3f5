//! Command-line arguments of `sqlenv gpu-check`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use policy::DeviceChoice;

use crate::{
    ModelShape,
    args::{self, at_least_one},
};

/// Arguments of `sqlenv gpu-check`.
#[derive(Clone, Debug, Parser)]
pub struct GpuCheckArgs {
    /// Device to check: `cuda`, `cuda:N`, or `cpu`, where f64 runs through candle's operations and
    /// bf16 through kernels.
    #[arg(long, default_value = "cuda")]
    pub device: DeviceChoice,
    /// Checks to run. The default is all.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Check>,
    /// Folder for gpu-check.json and gpu-check.md.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Shape of the model in speed measurements. The default is qwen3-0.6b, or tiny on the CPU.
    #[arg(long, value_enum)]
    pub shape: Option<ModelShape>,
    /// Rows that the sampler completes at once.
    #[arg(
        long, value_parser = at_least_one, value_delimiter = ',',
        default_values_t = [1, 16, 64, 256]
    )]
    pub rows: Vec<usize>,
    /// Tokens of a prompt, and of a completion.
    #[arg(long, value_parser = at_least_one, default_value_t = 256)]
    pub tokens: usize,
    /// Rows of a learner step.
    #[arg(long, value_parser = at_least_one, default_value_t = 16)]
    pub learner_rows: usize,
    /// Tokens of each row of a learner step, and of the prompt that a group shares.
    #[arg(long, value_parser = at_least_one, default_value_t = 1_024)]
    pub learner_tokens: usize,
    /// Tokens of a micro-batch. More tokens need more memory.
    #[arg(long, value_parser = at_least_one, default_value_t = 2_048)]
    pub micro_batch_tokens: usize,
    /// Measurements of each speed, after one to warm up.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub repeats: usize,
    /// Only make the model, sample one token and print the times as JSON. The check `start-up`
    /// starts this.
    #[arg(long, hide = true)]
    pub first_token: bool,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// The device exists, its libraries are there, and the kernels are compiled for it.
    Device,
    /// Logits, log-probabilities and entropies against those of the CPU in f32.
    Forward,
    /// Gradients against those of the CPU in f32.
    Gradients,
    /// bf16 against f32.
    Bf16,
    /// Prefill and decode in pieces through the KV cache against one forward pass.
    Cache,
    /// Log-probabilities that the engine records against those that the learner computes.
    Engine,
    /// Sampled tokens against those of the CPU.
    Sampling,
    /// An update of the learner against that of the CPU.
    Update,
    /// NCCL with this process as the only rank.
    Nccl,
    /// Checks of the kernels under NVIDIA's compute-sanitizer, if it is installed.
    Sanitizer,
    /// Seconds from the start of a process to its first token.
    StartUp,
    /// Bytes per second of a copy.
    Bandwidth,
    /// Output tokens per second of the sampler.
    Sampler,
    /// Tokens per second of the learner.
    Learner,
    /// Tokens per second of the learner on a group whose members share a long prompt.
    Prefix,
    /// The speed of torch and transformers, if they are installed.
    Torch,
    /// The speed of sampling with transformers' continuous batching.
    ContinuousBatching,
    /// A whole GRPO run in bf16 on the project's own data.
    Train,
}

impl Check {
    /// Returns its name on the command line and in the report.
    pub fn name(self) -> String {
        args::name(&self)
    }
}
