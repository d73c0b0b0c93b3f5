//! `sqlenv bench` and `sqlenv gpu-check`: adds settings and data to the arguments of the crate
//! `bench`.

use std::{io::Write as _, process::ExitCode};

use anyhow::Result;
use bench::{
    BenchClusterArgs, BenchEnvArgs, BenchPolicyArgs, cluster::ClusterSettings,
    gpu_check::GpuCheckArgs,
};
use clap::{Parser, Subcommand};
use data::Dataset;
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

use crate::{
    args::ConfigArgs,
    config::{self, DataConfig, RunConfig},
    progress::Progress,
    setup,
    shutdown::{read_unless_interrupted, unless_interrupted},
    stdout,
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

impl BenchCommand {
    /// Returns whether the benchmark starts processes, which a signal must end as well.
    pub(crate) fn has_processes(&self) -> bool {
        matches!(self, Self::Env(_) | Self::Cluster(_))
    }
}

/// Runs a benchmark and prints its table. A signal ends it and its processes.
pub(crate) async fn bench(
    command: &BenchCommand,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<()> {
    let mut out = stdout::lock();
    match command {
        BenchCommand::Env(BenchEnvCommand { config, bench }) => {
            let settings: RunConfig = config::resolve(config)?;
            let dataset = open_dataset(&settings.data, progress, shutdown).await?;
            let (_file, arguments) = role_arguments(&settings)?;
            let measured = bench::env::bench_env(bench, &dataset, &arguments, &mut out);
            unless_interrupted(shutdown, measured).await?
        }
        BenchCommand::Policy(args) => bench::policy::bench_policy(args, &mut out).await,
        BenchCommand::Cluster(BenchClusterCommand { config, bench }) => {
            let mut run: RunConfig = config::resolve(config)?;
            // The env-nodes would each build missing data.
            open_dataset(&run.data, progress, shutdown).await?;
            // The default of the CPU may have room for fewer episodes than are measured.
            if run.actor.engine.kv_cache_bytes == 0 && run.device.open()?.is_cpu() {
                run.actor.engine.kv_cache_bytes = i64::MAX as u64;
            }
            let (_file, arguments) = role_arguments(&run)?;
            let settings = ClusterSettings {
                arguments,
                group_size: run.learner.group_size,
            };
            let measured = bench::cluster::bench_cluster(bench, &settings, &mut out);
            unless_interrupted(shutdown, measured).await?
        }
    }
}

async fn open_dataset(
    data: &DataConfig,
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<Dataset> {
    let (data, progress) = (data.clone(), progress.clone());
    let open = move || setup::open_dataset(&data, &progress);
    read_unless_interrupted(shutdown, open).await
}

/// Checks a device.
pub(crate) async fn gpu_check(args: &GpuCheckArgs) -> Result<ExitCode> {
    bench::gpu_check::gpu_check(args, &mut stdout::lock()).await
}

/// Writes the settings to a file, and returns it with the arguments that give them to a role. On
/// its command line a role takes its own settings only.
fn role_arguments(settings: &RunConfig) -> Result<(NamedTempFile, Vec<String>)> {
    let mut file = NamedTempFile::with_suffix(".toml")?;
    file.write_all(config::to_toml(settings)?.as_bytes())?;
    let path = file.path().display().to_string();
    Ok((file, vec!["--config".to_owned(), path]))
}
