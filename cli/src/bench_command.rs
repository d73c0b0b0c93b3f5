//! `sqlenv bench` and `sqlenv gpu-check`: adds settings and data to the arguments of the crate
//! `bench`.

use anyhow::Result;
use bench::{
    BenchEnvArgs, BenchPolicyArgs,
    gpu_check::{GpuCheckArgs, GpuCheckOutcome},
};
use clap::{Parser, Subcommand, ValueEnum as _};

use crate::{
    args::{ConfigArgs, Preset},
    command_outcome::CommandOutcome,
    config::RunConfig,
    progress::Progress,
    setup, stdout,
};

/// The benchmarks.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Steps per second, latency and memory of an environment with many live episodes.
    Env(BenchEnvCommand),
    /// Tokens per second of the sampler, the learner and whole GRPO steps, with random weights.
    Policy(BenchPolicyArgs),
}

/// Arguments of `sqlenv bench env`.
#[derive(Clone, Debug, Parser)]
pub struct BenchEnvCommand {
    /// Settings; only `data` and `env` are used.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// What to measure.
    #[command(flatten)]
    pub bench: BenchEnvArgs,
}

/// Arguments of `sqlenv gpu-check`.
#[derive(Clone, Debug, Parser)]
pub struct GpuCheckCommand {
    /// What to check.
    #[command(flatten)]
    pub checks: GpuCheckArgs,
    /// Preset of the training run; `tiny` is what `sqlenv train` uses.
    #[arg(long, value_enum, default_value = "smoke")]
    pub preset: Preset,
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
pub(crate) async fn gpu_check(command: &GpuCheckCommand) -> Result<CommandOutcome> {
    let preset = command.preset.to_possible_value();
    let preset = preset.as_ref().map_or("", |preset| preset.get_name());
    let outcome = bench::gpu_check::gpu_check(&command.checks, preset, &mut stdout::lock()).await?;
    Ok(match outcome {
        GpuCheckOutcome::Passed => CommandOutcome::Done,
        GpuCheckOutcome::Failed => CommandOutcome::Failed,
        GpuCheckOutcome::NoDevice => CommandOutcome::NoDevice,
    })
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
