//! The roles as processes: each binds or dials, says where it is, and runs until a signal.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use env_node::{EnvConfig, EnvNode, Server};
use learner::{Learner, TrainEvent, ranks::RankOptions};
use proto::{LearnerClient, RanksClient, Transport, v1::Question};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Ready},
    args::{ActorArgs, EnvNodeArgs, LearnerArgs, RankArgs},
    commands::Outcome,
    config::RunConfig,
    openenv_variables::Variables,
    progress::Progress,
    run::{Asked, RunFolder, RunInfo, RunStatus, Stage, StepRecord},
    setup,
    shutdown::unless_interrupted,
    threads,
};

/// `sqlenv env-node`: serves episodes.
///
/// # Errors
/// The data or an address cannot be used.
pub async fn env_node(
    args: &EnvNodeArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let variables = Variables::of_process();
    let mut settings = args.config.clone();
    settings.set.splice(0..0, variables.settings()?);
    let mut config = RunConfig::resolve(&settings)?;
    config.env.openenv.mode = args.mode.unwrap_or(config.env.openenv.mode);
    let address = args.listen.map_or_else(|| variables.listen(), Ok)?;
    let listener = bind(address, "--listen").await?;
    let ready = serve_admin(args.admin).await?;
    let dataset = setup::open_dataset(&config.data, progress)?;
    fit_open_files(&mut config.env, dataset.databases.len(), progress);
    let node = EnvNode::open(dataset, config.env).context("in [env]")?;
    if !node.has_shared_key() {
        progress.say(
            "tokens are signed with a random key and end with this process; nodes that share episodes want one key: --set env.signing_key_file=FILE",
        );
    }
    let server = Server::open(&node).context("in [env]")?;
    ready.set(true);
    progress.say(&format!("env-node serves on {}", listener.local_addr()?));
    server.serve(listener, stop(shutdown, ready)).await;
    Ok(())
}

/// Raises the soft limit of open files, which is meant for programs that need few, as far as it goes, and fits the node in.
fn fit_open_files(env: &mut EnvConfig, databases: usize, progress: &Progress) {
    let told = match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => env.fit_open_files(limit, databases),
        Err(error) => Some(format!(
            "cannot raise the limit of open files: {error}; give the process enough by itself (ulimit -n)"
        )),
    };
    if let Some(told) = told {
        progress.say(&told);
    }
}

/// `sqlenv actor`: samples for a learner.
///
/// # Errors
/// An address is no address, or the learner stays away.
pub async fn actor(
    args: &ActorArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config = RunConfig::resolve(&args.config)?;
    let env = setup::dial_env(&args.env, &args.env_credentials)?;
    let learner = LearnerClient::new(Transport::dial(&args.learner).context("--learner")?);
    let ready = serve_admin(args.admin).await?;
    let id = args.id.clone().unwrap_or_else(default_actor_id);
    ready.set(true);
    progress.say(&format!(
        "actor {id} samples for {} on {}",
        args.learner, args.env
    ));
    actor::run(
        env,
        learner,
        &id,
        config.actor_of_run(),
        stop(shutdown, ready),
    )
    .await?;
    Ok(())
}

/// `sqlenv rank`: computes its share of a learner's steps.
///
/// # Errors
/// The address is no address, the learner refuses this rank or stays away, the rank cannot compute, or a signal came
/// ([`Interrupted`](crate::shutdown::Interrupted)).
pub async fn rank(args: &RankArgs, progress: &Progress, shutdown: CancellationToken) -> Result<()> {
    let config = RunConfig::resolve(&args.config)?;
    let client = RanksClient::new(Transport::dial(&args.leader).context("--leader")?);
    let ready = serve_admin(args.admin).await?;
    ready.set(true);
    progress.say(&format!("rank of the run at {}", args.leader));
    let options = RankOptions {
        device: config.device.open()?,
        threads: threads::or_cores(config.threads),
        patience: Duration::from_secs(args.patience_seconds.into()),
    };
    let taken = unless_interrupted(&shutdown, learner::ranks::join(client, options)).await;
    ready.set(false);
    taken?.with_context(|| format!("--leader {}", args.leader))
}

async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve on {address}; choose another address with {flag}"))
}

async fn serve_admin(address: Option<SocketAddr>) -> Result<Ready> {
    let ready = Ready::default();
    if let Some(address) = address {
        admin::serve(address, ready.clone()).await?;
    }
    Ok(ready)
}

/// The end of a role's work; from then on it is not ready.
async fn stop(shutdown: CancellationToken, ready: Ready) {
    shutdown.cancelled_owned().await;
    ready.set(false);
}

/// Host and process number: unique among machines and processes.
fn default_actor_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "host".to_owned());
    format!("{}-{}", host.trim(), std::process::id())
}

/// `sqlenv learner`: trains on what actors submit; a run folder that exists is resumed.
///
/// # Errors
/// The model, the run's folder or an address cannot be used, a step failed, the server ended before the run did, or a
/// signal came before the run was open ([`Interrupted`](crate::shutdown::Interrupted)).
pub async fn learner(
    args: &LearnerArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<Outcome> {
    let config = RunConfig::resolve(&args.config)?;
    let listener = bind(args.listen, "--listen").await?;
    let ready = serve_admin(args.admin).await?;
    let env = setup::dial_env(&args.env, &args.env_credentials)?;
    let questions = unless_interrupted(&shutdown, actor::questions(&env, "train"))
        .await?
        .with_context(|| format!("cannot list the questions of --env {}", args.env))?;
    if config.model.dir.is_none() {
        progress.say("without --model: starts from the embedded policy with random weights");
    }
    let base = setup::base_model(&config)?;
    let folder = RunFolder::create(&args.run_dir)?;
    let name = folder.path().file_name().unwrap_or_default();
    let mut info = RunInfo::begun(
        &name.to_string_lossy(),
        &config,
        &base,
        asked(&args.env, &questions),
    );
    let learner = Learner::open(
        config.learner_of_run(),
        config.placed(&base)?,
        questions
            .into_iter()
            .map(|question| question.question_id)
            .collect(),
        folder.path(),
        true,
    )?;
    // Only now is it known that the folder's run has these settings.
    folder.write_config(&config.to_toml()?)?;
    folder.write_info(&info)?;
    progress.say(&format!("learner serves on {}", listener.local_addr()?));
    let ranks = config.learner.ranks.count;
    if ranks > 1 {
        progress.say(&format!("waits for its other ranks, {} in all", ranks - 1));
    }
    ready.set(true);
    let steps = config.learner.steps;
    let grpo = Grpo {
        learner,
        steps,
        folder: &folder,
        progress,
    };
    let trained = grpo.train(listener, &ready, shutdown).await;
    let is_finished = matches!(trained, Ok(step) if step >= steps);
    info.status = if is_finished {
        RunStatus::Finished
    } else {
        RunStatus::Interrupted
    };
    let written = folder.write_info(&info);
    trained?;
    written?;
    Ok(if is_finished {
        Outcome::Done
    } else {
        Outcome::Interrupted
    })
}

/// The questions of an env-node, as the run's folder describes them.
fn asked(env: &str, questions: &[Question]) -> Asked {
    let databases: BTreeSet<&str> = questions
        .iter()
        .map(|question| question.database_name.as_str())
        .collect();
    Asked {
        dataset: format!("the questions of {env}"),
        databases: databases.len() as u64,
        questions: BTreeMap::from([("train".to_owned(), questions.len() as u64)]),
        eval_queries_in_train: None,
    }
}

/// The learner's work while it serves.
struct Grpo<'a> {
    learner: Learner,
    steps: u64,
    folder: &'a RunFolder,
    progress: &'a Progress,
}

impl Grpo<'_> {
    /// Serves and trains until the last step or `shutdown`; answers with the number of steps made.
    async fn train(
        &self,
        listener: TcpListener,
        ready: &Ready,
        shutdown: CancellationToken,
    ) -> Result<u64> {
        let served = CancellationToken::new();
        let mut serving = tokio::spawn(learner::serve(
            listener,
            self.learner.clone(),
            served.clone().cancelled_owned(),
        ));
        let (sender, events) = mpsc::channel(2);
        let work = async {
            tokio::join!(
                self.learner.train(sender, stop(shutdown, ready.clone())),
                self.record(events)
            )
        };
        let (trained, ()) = tokio::select! {
            worked = work => worked,
            ended = &mut serving => {
                ended.context("the server panicked")??;
                bail!("the server ended before the run did; start the learner again, it resumes");
            }
        };
        ready.set(false);
        // The server first sends every connected actor the end of the run.
        served.cancel();
        let ended = serving.await.context("the server panicked");
        let step = trained?;
        ended??;
        Ok(step)
    }

    /// Writes the steps into the run's folder and shows them.
    async fn record(&self, mut events: mpsc::Receiver<TrainEvent>) {
        let stage = self.progress.stage("GRPO", self.steps, "steps");
        while let Some(event) = events.recv().await {
            let TrainEvent::Step { step, metrics } = event else {
                continue;
            };
            stage.set(step);
            let written = self.folder.append_step(&StepRecord {
                step,
                stage: Stage::Grpo,
                policy_version: step,
                metrics,
            });
            if let Err(error) = written {
                tracing::error!("step {step} is not in the metrics: {error:#}");
            }
        }
        stage.finish("");
    }
}
