//! The roles of a distributed run.

use std::path::PathBuf;

use clap::Parser;

use super::{ConfigArgs, EnvCredentials, LearnerCredentials, socket_address};

#[derive(Clone, Debug, Parser)]
pub(crate) struct EnvNodeArgs {
    /// Settings; only the sections `data`, `env` and `env_node` are read.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Address to serve on; default: the environment variables HOST and PORT, or 127.0.0.1:8000.
    #[arg(long, value_name = "IP:PORT", env = "SQLENV_LISTEN", value_parser = socket_address)]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// OpenEnv routes to serve: simulation (all) or production (tools and sockets). Overrides
    /// `env_node.openenv.mode` and the environment variable OPENENV_MODE.
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<env_node::Mode>,
    /// Folder with run folders, whose episodes the page /web/ lists and replays, with their gold
    /// answers. Overrides `env_node.web.runs_dir`; default: none is served.
    #[arg(long, value_name = "DIR")]
    pub(crate) runs_dir: Option<PathBuf>,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "IP:PORT", value_parser = socket_address)]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct ActorArgs {
    /// Settings; only `device`, `dtype` and the section `actor` are read. The learner sends the
    /// others.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Env-node (http://HOST:PORT), or several separated by commas.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub(crate) env: String,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// Learner (http://HOST:PORT, or https).
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub(crate) learner: String,
    #[command(flatten)]
    pub(crate) learner_credentials: LearnerCredentials,
    /// Name that is unique among the run's actors; default: host and process id.
    #[arg(long, value_name = "NAME")]
    pub(crate) id: Option<String>,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "IP:PORT", value_parser = socket_address)]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct LearnerArgs {
    /// Settings; --model names the folder to start from. --data and --databases are read only with
    /// learner.demonstration_weight, and name the data of --env.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Address to serve on.
    #[arg(
        long, value_name = "IP:PORT", default_value = "127.0.0.1:8001", env = "SQLENV_LISTEN",
        value_parser = socket_address
    )]
    pub(crate) listen: std::net::SocketAddr,
    /// Env-node (http://HOST:PORT) whose questions are trained on.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_ENV")]
    pub(crate) env: String,
    #[command(flatten)]
    pub(crate) env_credentials: EnvCredentials,
    /// Run folder, or the address of a run in an object store (s3://BUCKET/PATH, gs://BUCKET/PATH,
    /// az://CONTAINER/PATH); an existing run is resumed.
    #[arg(long, value_name = "DIR|ADDRESS")]
    pub(crate) run_dir: String,
    /// Folder for the working copy of a run in an object store; default: the system's folder for
    /// temporary files.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Address of the live page, /status.json, /metrics, /livez and /readyz; default: none is
    /// served. Keep it private: it shows the run to everyone.
    #[arg(long, value_name = "IP:PORT", value_parser = socket_address)]
    pub(crate) admin: Option<std::net::SocketAddr>,
}

#[derive(Clone, Debug, Parser)]
pub(crate) struct RankArgs {
    /// Settings; only `threads` and `device` are read. The learner sends the others.
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Learner (http://HOST:PORT), which is rank 0.
    #[arg(long, value_name = "ADDRESS", env = "SQLENV_LEARNER")]
    pub(crate) learner: String,
    #[command(flatten)]
    pub(crate) learner_credentials: LearnerCredentials,
    /// Seconds to wait for a learner that does not answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) timeout_seconds: u32,
    /// Address of /metrics, /livez and /readyz; default: none is served.
    #[arg(long, value_name = "IP:PORT", value_parser = socket_address)]
    pub(crate) admin: Option<std::net::SocketAddr>,
}
