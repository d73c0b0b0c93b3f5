//! `sqlenv bench` and `sqlenv gpu-check`: adds settings and data to the arguments of the crate
//! `bench`.

use std::process::ExitCode;

use anyhow::Result;
use bench::{
    BenchClusterArgs, BenchEnvArgs, BenchPolicyArgs, cluster::ClusterSettings,
    gpu_check::GpuCheckArgs,
};
use clap::{Parser, Subcommand, ValueEnum as _};

use crate::{
    args::ConfigArgs,
    config::{self, RunConfig},
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
    /// Steps per second and idle shares of a run over processes, with latency to its env-nodes.
    Cluster(BenchClusterCommand),
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
pub(crate) struct BenchClusterCommand {
    /// Settings of the run. The numbers of groups, episodes and steps come from the other flags.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(flatten)]
    pub(crate) bench: BenchClusterArgs,
}

/// Runs a benchmark and prints its table.
pub(crate) async fn bench(command: &BenchCommand, progress: &Progress) -> Result<()> {
    let mut out = stdout::lock();
    match command {
        BenchCommand::Env(BenchEnvCommand { config, bench }) => {
            let settings: RunConfig = config::resolve(config)?;
            let dataset = setup::open_dataset(&settings.data, progress)?;
            bench::env::bench_env(bench, &dataset, &role_arguments(config), &mut out).await
        }
        BenchCommand::Policy(args) => bench::policy::bench_policy(args, &mut out).await,
        BenchCommand::Cluster(BenchClusterCommand { config, bench }) => {
            let run: RunConfig = config::resolve(config)?;
            // The env-nodes would each build missing data.
            setup::open_dataset(&run.data, progress)?;
            let settings = ClusterSettings {
                arguments: role_arguments(config),
                group_size: run.learner.group_size,
                is_cache_unbounded: run.actor.engine.kv_cache_bytes == 0
                    && run.device.open()?.is_cpu(),
            };
            bench::cluster::bench_cluster(bench, &settings, &mut out).await
        }
    }
}

/// Checks a device.
pub(crate) async fn gpu_check(args: &GpuCheckArgs) -> Result<ExitCode> {
    bench::gpu_check::gpu_check(args, &mut stdout::lock()).await
}

/// Returns the arguments that give a process the same settings and data.
fn role_arguments(config: &ConfigArgs) -> Vec<String> {
    let ConfigArgs {
        preset,
        config: file,
        set,
        seed,
        data,
        databases,
        model,
    } = config;
    let mut arguments = Vec::new();
    let mut flag = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    if let Some(preset) = preset.and_then(|preset| preset.to_possible_value()) {
        flag("--preset", preset.get_name().to_owned());
    }
    if let Some(seed) = seed {
        flag("--seed", seed.to_string());
    }
    if let Some(model) = model {
        flag("--model", model.display().to_string());
    }
    if let Some(data) = data {
        flag("--data", data.display().to_string());
    }
    if let Some(databases) = databases {
        flag("--databases", databases.join(","));
    }
    if let Some(file) = file {
        flag("--config", file.display().to_string());
    }
    for setting in set {
        flag("--set", setting.clone());
    }
    arguments
}
