//! Command-line arguments of `sqlenv bench env`, `sqlenv bench policy` and `sqlenv bench cluster`.

use std::{fmt, time::Duration};

use clap::{Parser, ValueEnum};
use policy::{DTypeChoice, DeviceChoice};

/// A protocol that the env-node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EnvProtocol {
    /// gRPC `sqlenv.v1.Env`; the client holds the episode token.
    Grpc,
    /// OpenEnv's `/ws`; the episode belongs to the socket.
    WebSocket,
}

impl fmt::Display for EnvProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self))
    }
}

/// Arguments of `sqlenv bench env`, without the settings.
#[derive(Clone, Debug, Parser)]
pub struct BenchEnvArgs {
    /// Measure the server at this URL (http://HOST:PORT). It must serve the same questions and ask
    /// for no token. Without this flag an env-node is started.
    #[arg(long)]
    pub url: Option<String>,
    /// Process id of the server at --url, to show its memory.
    #[arg(long, requires = "url")]
    pub pid: Option<u32>,
    /// Protocols to measure.
    #[arg(
        long, value_enum, value_delimiter = ',',
        default_values_t = [EnvProtocol::Grpc, EnvProtocol::WebSocket]
    )]
    pub protocols: Vec<EnvProtocol>,
    /// Numbers of live episodes.
    #[arg(
        long, value_delimiter = ',', value_parser = at_least_one,
        default_values_t = [1, 64, 256, 1_024, 4_096]
    )]
    pub episodes: Vec<usize>,
    /// Maximum number of calls in flight; the other live episodes wait.
    #[arg(long, value_parser = at_least_one, default_value_t = 64)]
    pub in_flight: usize,
    /// Seconds before a measurement.
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub warm_up_seconds: Duration,
    /// Seconds of a measurement.
    #[arg(long, value_parser = seconds, default_value = "5")]
    pub seconds: Duration,
    /// Maximum number of questions.
    #[arg(long, value_name = "N")]
    pub questions: Option<usize>,
}

/// The shape of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelShape {
    /// Hidden 256, 4 layers, 4 heads of 64 (2 KV heads), feed-forward 768, vocabulary 4,096.
    Tiny,
    /// Hidden 512, 8 layers, 8 heads of 64 (4 KV heads), feed-forward 1,536, vocabulary 8,192.
    Small,
    /// The shape of SmolLM2-135M, with Qwen3's norms of queries and keys.
    #[value(name = "smollm2-135m")]
    SmolLm2_135m,
    /// The shape of Qwen3-0.6B.
    #[value(name = "qwen3-0.6b")]
    Qwen3_06b,
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name(self))
    }
}

/// A benchmark of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyBenchmark {
    /// Completions of prompts that are all different.
    Sampler,
    /// Completions of prompts that groups of 8 share.
    Groups,
    /// Forward pass, backward pass and update.
    Learner,
    /// A learner step on one group whose members share a long prompt.
    Prefix,
    /// Whole GRPO steps: sample groups, train on them, publish the weights.
    Grpo,
}

/// Arguments of `sqlenv bench policy`.
#[derive(Clone, Debug, Parser)]
pub struct BenchPolicyArgs {
    /// Shapes to measure.
    #[arg(
        long, value_enum, value_delimiter = ',',
        default_values_t = [ModelShape::Tiny, ModelShape::Small]
    )]
    pub shapes: Vec<ModelShape>,
    /// Benchmarks to run. The default is all; for qwen3-0.6b it is those that fit in 20 GiB:
    /// sampler, groups and learner.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub parts: Vec<PolicyBenchmark>,
    /// Rows that the sampler completes at once. Groups are measured for multiples of 8.
    #[arg(
        long, value_delimiter = ',', value_parser = at_least_one, default_values_t = [1, 8, 64]
    )]
    pub rows: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, value_parser = at_least_one, default_value_t = 128)]
    pub prompt_tokens: usize,
    /// Tokens of a completion.
    #[arg(long, value_parser = at_least_one, default_value_t = 128)]
    pub new_tokens: usize,
    /// Rows of a learner step. The default is 32, 8 for smollm2-135m, or 4 for qwen3-0.6b.
    #[arg(long, value_parser = at_least_one)]
    pub learner_rows: Option<usize>,
    /// Tokens of each row of a learner step; all but the first are scored. The default is 192, or
    /// 160 for shapes larger than tiny.
    #[arg(long, value_parser = at_least_one)]
    pub learner_tokens: Option<usize>,
    /// Tokens of the long prompt; 64 scored tokens follow it.
    #[arg(long, value_parser = at_least_one, default_value_t = 1_000)]
    pub prefix_tokens: usize,
    /// Tokens of a micro-batch. The default is 2,048, or 640 for smollm2-135m and qwen3-0.6b.
    #[arg(long, value_parser = at_least_one)]
    pub micro_batch_tokens: Option<usize>,
    /// Number of the sampler's engines and of the learner's workers. The learner has one worker for
    /// qwen3-0.6b, to save memory.
    #[arg(long, value_parser = at_least_one, default_value_t = 2)]
    pub threads: usize,
    /// Measurements of each benchmark, after one to warm up.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub repeats: usize,
    /// Device to compute on: `auto`, `cpu`, `cuda` or `cuda:N`.
    #[arg(long, default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// Dtype to compute in: `f32`, `bf16`, or `auto`, as the setting `dtype`.
    #[arg(long, value_parser = dtype, default_value = "auto")]
    pub dtype: DTypeChoice,
}

/// Arguments of `sqlenv bench cluster`, without the settings.
#[derive(Clone, Debug, Parser)]
pub struct BenchClusterArgs {
    /// Env-nodes, each a process.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub env_nodes: usize,
    /// Actors, each a process.
    #[arg(long, value_parser = at_least_one, default_value_t = 1)]
    pub actors: usize,
    /// Numbers of concurrent episodes of an actor, which are whole groups.
    #[arg(
        long, value_delimiter = ',', value_parser = at_least_one, default_values_t = [64, 256]
    )]
    pub episodes: Vec<usize>,
    /// Milliseconds that each exchange with an env-node takes longer, half of them on each way.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 50])]
    pub latencies_ms: Vec<u64>,
    /// Learner steps of a measurement, after one to warm up.
    #[arg(long, value_parser = at_least_one, default_value_t = 8)]
    pub steps: usize,
    /// Measurements of each row. Rows alternate.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub repeats: usize,
}

/// Returns the name of a value on the command line.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Reads a number of things of which there must be one.
///
/// # Errors
/// The text is no such number.
pub fn at_least_one(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(0) | Err(_) => Err("give a whole number of 1 or more"),
        Ok(count) => Ok(count),
    }
}

fn dtype(text: &str) -> Result<DTypeChoice, String> {
    serde_json::from_value(text.into()).map_err(|_| "give auto, f32 or bf16".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    const DAY: Duration = Duration::from_secs(86_400);
    let seconds = text.parse().map(Duration::try_from_secs_f64);
    match seconds {
        Ok(Ok(seconds)) if !seconds.is_zero() && seconds <= DAY => Ok(seconds),
        _ => Err("give seconds, more than 0 and at most 86400".to_owned()),
    }
}
