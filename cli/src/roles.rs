//! Runs env-node, actor and rank as processes; `learner_role` runs the learner. Each role binds its
//! address or dials its peers, prints where it serves, and runs until a signal.

use std::{net::SocketAddr, pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail};
use env_node::Server;
use learner::{LearnerError, ranks::RankOptions};
use policy::Placement;
use proto::RanksClient;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::{ActorArgs, EnvNodeArgs, RankArgs},
    config::{self, ActorRole, EnvNodeRole, RankRole},
    openenv_variables::Variables,
    progress::Progress,
    setup,
    shutdown::{Interrupted, read_unless_interrupted, unless_interrupted},
    threads,
};

/// `sqlenv env-node`: serves episodes.
pub(crate) async fn env_node(
    args: &EnvNodeArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let variables = Variables::of_process();
    let mut settings = args.config.clone();
    settings.set.splice(0..0, variables.settings()?);
    let mut config: EnvNodeRole = config::resolve(&settings)?;
    let mode = &mut config.env_node.openenv.mode;
    *mode = args.mode.unwrap_or(*mode);
    let runs_dir = &mut config.env_node.web.runs_dir;
    *runs_dir = args.runs_dir.clone().or_else(|| runs_dir.take());
    let address = args.listen.map_or_else(|| variables.listen(), Ok)?;
    let listener = bind(address).await?;
    let describe = || {
        env::metrics::describe();
        env_node::metrics::describe();
    };
    let ready = admin::serve(args.admin, describe).await?;
    let (data, shown) = (config.data.clone(), progress.clone());
    let open = move || setup::open_dataset(&data, &shown);
    let dataset = read_unless_interrupted(&shutdown, open).await?;
    let (env, server) = (&mut config.env, &mut config.env_node.server);
    let databases = dataset.databases.len();
    let fit = |limit| env_node::fit_open_files(env, server, limit, databases);
    fit_open_files(fit, progress);
    let environment = setup::open_environment(dataset, config.env).context("in [env]")?;
    if !environment.has_shared_key() {
        progress.print(
            "tokens are signed with a random key and end with this process; nodes that share \
             episodes need the same key: --set env.signing_key_file=FILE",
        );
    }
    let node = setup::open_node(environment, config.env_node).context("in [env_node]")?;
    let server = Server::open(&node).context("in [env_node]")?;
    ready.set(true);
    progress.print(&format!("env-node serves on {}", listener.local_addr()?));
    server.serve(listener, stop(shutdown, ready)).await;
    Ok(())
}

/// Raises the soft limit of open files to the hard limit, and reduces the limits of the role, or of
/// the environment in this process, to fit by `fit`, which says what it reduced.
pub(crate) fn fit_open_files(fit: impl FnOnce(u64) -> Option<String>, progress: &Progress) {
    let message = match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => fit(limit),
        Err(error) => Some(format!(
            "cannot raise the limit of open files: {error}; raise it before the start (ulimit -n)"
        )),
    };
    if let Some(message) = message {
        progress.print(&message);
    }
}

/// `sqlenv actor`: samples trajectories for a learner.
pub(crate) async fn actor(
    args: &ActorArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let ActorRole {
        device,
        dtype,
        actor: settings,
    } = config::resolve(&args.config)?;
    let env = setup::dial_env(&args.env, &args.env_credentials)?;
    let learner = setup::dial_learner(&args.learner, &args.learner_credentials)?;
    let ready = admin::serve(args.admin, actor::metrics::describe).await?;
    let id = args.id.clone().unwrap_or_else(default_actor_id);
    ready.set(true);
    progress.print(&format!(
        "actor {id} samples for {} on {}",
        args.learner, args.env
    ));
    let signal = shutdown.clone();
    actor::run(
        env,
        learner,
        &id,
        settings,
        Placement { device, dtype },
        stop(shutdown, ready),
    )
    .await?;
    // Kubernetes takes a pod that ends with 0 for one whose work is done, also if it was evicted.
    match signal.is_cancelled() {
        true => bail!(Interrupted),
        false => Ok(()),
    }
}

/// Less than the 120 s that a learner has to write its checkpoint in the manifests of deploy/.
const UNTIL_LEARNER_ENDS: Duration = Duration::from_secs(110);

/// `sqlenv rank`: computes a share of the steps of a learner.
pub(crate) async fn rank(
    args: &RankArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config: RankRole = config::resolve(&args.config)?;
    // A rank takes no connections but those of its admin port.
    fit_open_files(|_| None, progress);
    let leader = setup::dial_learner(&args.learner, &args.learner_credentials)?;
    let client = RanksClient::new(leader);
    let ready = admin::serve(args.admin, learner::metrics::describe_rank).await?;
    ready.set(true);
    progress.print(&format!("rank of the run at {}", args.learner));
    let options = RankOptions {
        device: config.device.open()?,
        threads: threads::or_cores(config.threads),
        timeout: Duration::from_secs(args.timeout_seconds.into()),
        stopping: shutdown.clone(),
    };
    let mut joined = pin!(learner::ranks::join(client, options));
    let ended = unless_interrupted(&shutdown, &mut joined).await;
    ready.set(false);
    let Ok(ended) = ended else {
        // The learner may have got the signal as well. Without this rank it could not end its step,
        // and would write no checkpoint.
        match timeout(UNTIL_LEARNER_ENDS, joined).await {
            Ok(Err(fault)) if !matches!(fault, LearnerError::Stopped) => {
                progress.print(&fault.to_string());
            }
            _ => {}
        }
        bail!(Interrupted);
    };
    ended.with_context(|| format!("--learner {}", args.learner))
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve on {address}; choose another address with --listen"))
}

/// Waits for the signal, and marks the role as not ready.
pub(crate) async fn stop(shutdown: CancellationToken, ready: Readiness) {
    shutdown.cancelled_owned().await;
    ready.set(false);
}

/// Returns host and process id, which are unique among machines and processes.
fn default_actor_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "host".to_owned());
    format!("{}-{}", host.trim(), std::process::id())
}
