//! What a person may type after `sqlenv gpu-check`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use policy::DeviceChoice;

use crate::{
    args::{Preset, Shape},
    bench::args::at_least_one,
};

/// Arguments of `sqlenv gpu-check`.
#[derive(Clone, Debug, Parser)]
pub struct GpuCheckArgs {
    /// Where to check: `cuda`, `cuda:N`, or `cpu`, where f64 runs through candle's operations and bf16 through kernels.
    #[arg(long, default_value = "cuda")]
    pub device: DeviceChoice,
    /// Only these checks; without it all.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Check>,
    /// Folder for gpu-check.json and gpu-check.md.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// The shape that speed is measured in; without it qwen3-0.6b, on the CPU tiny.
    #[arg(long, value_enum)]
    pub shape: Option<Shape>,
    /// Rows that the sampler completes at once.
    #[arg(long, value_parser = at_least_one, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    pub rows: Vec<usize>,
    /// Tokens of a prompt, and of a completion.
    #[arg(long, value_parser = at_least_one, default_value_t = 256)]
    pub tokens: usize,
    /// Rows of a step of the learner.
    #[arg(long, value_parser = at_least_one, default_value_t = 16)]
    pub learner_rows: usize,
    /// Tokens of each, and of the prompt that a group shares.
    #[arg(long, value_parser = at_least_one, default_value_t = 1_024)]
    pub learner_tokens: usize,
    /// Tokens of a micro-batch: more need more memory.
    #[arg(long, value_parser = at_least_one, default_value_t = 2_048)]
    pub micro_batch_tokens: usize,
    /// Measurements of each speed, after one to warm up.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub repeats: usize,
    /// The preset of the whole run; `tiny` is what `sqlenv train` does.
    #[arg(long, value_enum, default_value = "smoke")]
    pub preset: Preset,
    /// Only make the model, sample one token and print how long the parts took, as JSON: what `start-up` starts.
    #[arg(long, hide = true)]
    pub first_token: bool,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// There is a device, its libraries are there and the kernels are compiled for it.
    Device,
    /// Logits, log-probabilities and entropies against the CPU's in f32.
    Forward,
    /// Gradients against the CPU's in f32.
    Gradients,
    /// bf16 against f32.
    Bf16,
    /// A decoder that is fed in pieces through its KV cache against one forward pass.
    Cache,
    /// Log-probabilities that the engine records against those that the learner computes.
    Engine,
    /// An update of the learner against the CPU's.
    Update,
    /// NCCL in a world of this process alone.
    Nccl,
    /// The checks above but this under NVIDIA's compute-sanitizer, if it is there.
    Sanitizer,
    /// Seconds from the start of a process to its first token.
    StartUp,
    /// Bytes a second of a copy.
    Bandwidth,
    /// Output tokens a second of the sampler.
    Sampler,
    /// Tokens a second of the learner.
    Learner,
    /// Tokens a second of the learner on a group whose members share a long prompt.
    Prefix,
    /// The same in torch and transformers, if they are there.
    Torch,
    /// The sampler's part of it by transformers' continuous batching.
    ContinuousBatching,
    /// A whole GRPO run in bf16 on the project's own data.
    Train,
}

impl Check {
    /// Its name on the command line and in the report.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
