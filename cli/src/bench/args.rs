//! What a person may type after `sqlenv bench`.

use std::{fmt, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use policy::{DTypeChoice, DeviceChoice};

use crate::args::ConfigArgs;

/// Commands that measure.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Steps per second, latency and memory of an environment with many live episodes.
    Env(BenchEnvArgs),
    /// Tokens per second of the sampler, the learner and whole GRPO steps, on random weights.
    Policy(BenchPolicyArgs),
}

/// A face of the env-node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Face {
    /// `sqlenv.v1.Env`; a session is a token in the client's hand.
    Grpc,
    /// OpenEnv's `/ws`; a session is a socket.
    WebSocket,
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "grpc",
            Self::WebSocket => "web-socket",
        })
    }
}

/// Arguments of `sqlenv bench env`.
#[derive(Clone, Debug, Parser)]
pub struct BenchEnvArgs {
    /// Settings; only `data` and `env` count.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Measure the server at this URL (http://HOST:PORT), which serves the same questions and asks for no token; without it
    /// an env-node is started beside.
    #[arg(long)]
    pub url: Option<String>,
    /// Process of the server at --url, whose memory is shown.
    #[arg(long, requires = "url")]
    pub pid: Option<u32>,
    /// Faces to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Face::Grpc, Face::WebSocket])]
    pub faces: Vec<Face>,
    /// Numbers of live episodes.
    #[arg(long, value_delimiter = ',', value_parser = at_least_one, default_values_t = [1, 64, 256, 1_024, 4_096])]
    pub episodes: Vec<usize>,
    /// Calls in flight at most; the other live episodes wait for their turn.
    #[arg(long, value_parser = at_least_one, default_value_t = 64)]
    pub in_flight: usize,
    /// Seconds before a measurement.
    #[arg(long, value_parser = seconds, default_value = "1")]
    pub warm_up_seconds: Duration,
    /// Seconds of a measurement.
    #[arg(long, value_parser = seconds, default_value = "5")]
    pub seconds: Duration,
    /// At most this many questions.
    #[arg(long, value_name = "N")]
    pub questions: Option<usize>,
}

/// A decoder's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Hidden 256, 4 layers, 4 heads of 64 on 2, feed-forward 768, vocabulary 4,096.
    Tiny,
    /// Hidden 512, 8 layers, 8 heads of 64 on 4, feed-forward 1,536, vocabulary 8,192.
    Small,
    /// Qwen3-0.6B's.
    #[value(name = "qwen3-0.6b")]
    Qwen3_06b,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Qwen3_06b => "qwen3-0.6b",
        })
    }
}

/// What `sqlenv bench policy` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Completions of prompts that are all different.
    Sampler,
    /// Completions of prompts that groups of 8 share.
    Groups,
    /// Forward, backward and update.
    Learner,
    /// The learner's step on a group whose members share a long prompt.
    Prefix,
    /// Whole GRPO steps: sample groups, train on them, hand the weights over.
    Grpo,
}

/// Arguments of `sqlenv bench policy`.
#[derive(Clone, Debug, Parser)]
pub struct BenchPolicyArgs {
    /// Shapes to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Shape::Tiny, Shape::Small])]
    pub shapes: Vec<Shape>,
    /// What to measure; without it everything, of qwen3-0.6b what 20 GiB are enough for: sampler, groups and learner.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Rows that the sampler completes at once; groups are measured where they are a multiple of 8.
    #[arg(long, value_delimiter = ',', value_parser = at_least_one, default_values_t = [1, 8, 64])]
    pub rows: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, value_parser = at_least_one, default_value_t = 128)]
    pub prompt_tokens: usize,
    /// Tokens of a completion.
    #[arg(long, value_parser = at_least_one, default_value_t = 128)]
    pub new_tokens: usize,
    /// Rows of a step of the learner; without it 32, of qwen3-0.6b 4.
    #[arg(long, value_parser = at_least_one)]
    pub learner_rows: Option<usize>,
    /// Tokens of each, all scored but the first; without it 192, of shapes larger than tiny 160.
    #[arg(long, value_parser = at_least_one)]
    pub learner_tokens: Option<usize>,
    /// Tokens of the long prompt, followed by 64 that are scored.
    #[arg(long, value_parser = at_least_one, default_value_t = 1_000)]
    pub prefix_tokens: usize,
    /// Tokens of a micro-batch; without it 2,048, of qwen3-0.6b 640.
    #[arg(long, value_parser = at_least_one)]
    pub micro_batch_tokens: Option<usize>,
    /// Engines of the sampler, and workers of the learner; of qwen3-0.6b the learner has one, for want of memory.
    #[arg(long, value_parser = at_least_one, default_value_t = 2)]
    pub threads: usize,
    /// Measurements of each, after one to warm up.
    #[arg(long, value_parser = at_least_one, default_value_t = 3)]
    pub repeats: usize,
    /// Where to compute: `auto`, `cpu`, `cuda` or `cuda:N`.
    #[arg(long, default_value_t = DeviceChoice::Cpu)]
    pub device: DeviceChoice,
    /// In which dtype: `auto`, f32 on the CPU and bf16 elsewhere, `f32` or `bf16`.
    #[arg(long, value_parser = dtype, default_value = "auto")]
    pub dtype: DTypeChoice,
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("give a whole number from 1 on".to_owned()),
    }
}

fn dtype(text: &str) -> Result<DTypeChoice, String> {
    serde_json::from_value(text.into()).map_err(|_| "give auto, f32 or bf16".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::try_from_secs_f64);
    match seconds {
        Ok(Ok(seconds)) if !seconds.is_zero() => Ok(seconds),
        _ => Err("give seconds, more than 0".to_owned()),
    }
}
