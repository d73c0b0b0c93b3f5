//! `sqlenv bench` and `sqlenv gpu-check`: adds settings and data to the arguments of the crate
//! `bench`.

use std::process::ExitCode;

use anyhow::Result;
use bench::{BenchEnvArgs, BenchPolicyArgs, gpu_check::GpuCheckArgs};
use clap::{Parser, Subcommand, ValueEnum as _};

use crate::{
    args::{ConfigArgs, Preset},
    config::RunConfig,
    progress::Progress,
    setup, stdout,
};

/// The benchmarks.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Steps per second, latency and memory of an environment with many live episodes.
    Env(BenchEnvCommand),
    /// Tokens per second of the sampler, the learner and whole GRPO steps, with random weights.
    Policy(BenchPolicyArgs),
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct BenchEnvCommand {
    /// Settings; only `data` and `env` are used.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(flatten)]
    pub(crate) bench: BenchEnvArgs,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct GpuCheckCommand {
    #[command(flatten)]
    pub(crate) checks: GpuCheckArgs,
    /// Preset of the training run; `tiny` is what `sqlenv train` uses.
    #[arg(long, value_enum, default_value = "smoke")]
    pub(crate) preset: Preset,
}

/// Runs a benchmark and prints its table.
pub(crate) async fn bench(command: &BenchCommand, progress: &Progress) -> Result<()> {
    let mut out = stdout::lock();
    match command {
        BenchCommand::Env(BenchEnvCommand { config, bench }) => {
            let settings = RunConfig::resolve(config)?;
            let dataset = setup::open_dataset(&settings.data, progress)?;
            bench::env::bench_env(bench, &dataset, &node_arguments(config), &mut out).await
        }
        BenchCommand::Policy(args) => bench::policy::bench_policy(args, &mut out).await,
    }
}

/// Checks a device.
pub(crate) async fn gpu_check(command: &GpuCheckCommand) -> Result<ExitCode> {
    let preset = command.preset.to_possible_value();
    let preset = preset.as_ref().map_or("", |preset| preset.get_name());
    bench::gpu_check::gpu_check(&command.checks, preset, &mut stdout::lock()).await
}

/// Returns the arguments of an env-node process that serves the same data with the same settings.
fn node_arguments(config: &ConfigArgs) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut flag = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if let Some(data) = &config.data {
        flag("--data", data.display().to_string());
    }
    if let Some(databases) = &config.databases {
        flag("--databases", databases.join(","));
    }
    if let Some(file) = &config.config {
        flag("--config", file.display().to_string());
    }
    for setting in &config.set {
        flag("--set", setting.clone());
    }
    arguments
}
