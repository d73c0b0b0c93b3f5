//! Commands that read runs, and conversions of models.

use std::path::PathBuf;

use clap::Parser;

#[derive(Clone, Debug, Parser)]
pub(crate) struct ReportArgs {
    /// The run's folder.
    pub(crate) run_dir: PathBuf,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct TrajectoriesArgs {
    /// The run's folder.
    pub(crate) run_dir: PathBuf,
    /// File to write; default: stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct FetchArgs {
    /// Address of the run: s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH.
    pub(crate) address: String,
    /// Run folder to make.
    pub(crate) out: PathBuf,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct ImportGgufArgs {
    /// GGUF file; quantized weights become f32.
    pub(crate) file: PathBuf,
    /// Model folder to write.
    pub(crate) out: PathBuf,
}

#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct WatchArgs {
    /// Admin port of the learner (HOST:PORT), or the folder of a run.
    #[arg(value_name = "ADDRESS|RUN")]
    pub(crate) run: String,
}

#[derive(Clone, Debug, Default, Parser)]
pub(crate) struct DoctorArgs {
    /// Admin port of the learner (HOST:PORT), or the folder of a run; default: this machine.
    #[arg(value_name = "ADDRESS|RUN")]
    pub(crate) run: Option<String>,
    /// Also write the findings as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct HealthArgs {
    /// The role's --admin (HOST:PORT).
    #[arg(default_value = "127.0.0.1:9000")]
    pub(crate) address: String,
}
