//! Runs the roles as processes. Each role binds its address or dials its peers, prints where it
//! serves, and runs until a signal.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use env::Environment;
use env_node::{EnvNode, Server};
use learner::{Learner, RunArguments, ServerCredentials, TrainEvent, ranks::RankOptions};
use policy::{Model, Placement};
use proto::{LearnerClient, RanksClient, v1::Question};
use report::{LearnerStepRecord, RunFolder, RunInfo, RunStatus, TrainingStage};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::{ActorArgs, EnvNodeArgs, LearnerArgs, RankArgs},
    config::{self, ActorRole, EnvNodeRole, LearnerRole, RankRole},
    local::{check_tokenizer, newest_model},
    openenv_variables::Variables,
    played_evaluation::PlayedEvaluations,
    progress::Progress,
    run_info::run_info,
    setup,
    shutdown::{Interrupted, unless_interrupted},
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
    let address = args.listen.map_or_else(|| variables.listen(), Ok)?;
    let listener = bind(address, "--listen").await?;
    let ready = admin::serve(args.admin).await?;
    let dataset = setup::open_dataset(&config.data, progress)?;
    fit_open_files(&mut config, dataset.databases.len(), progress);
    let environment = Environment::open(dataset, config.env).context("in [env]")?;
    if !environment.has_shared_key() {
        progress.say(
            "tokens are signed with a random key and end with this process; nodes that share \
             episodes need the same key: --set env.signing_key_file=FILE",
        );
    }
    let node = EnvNode::new(environment, config.env_node).context("in [env_node]")?;
    let server = Server::open(&node).context("in [env_node]")?;
    ready.set(true);
    progress.say(&format!("env-node serves on {}", listener.local_addr()?));
    server.serve(listener, stop(shutdown, ready)).await;
    Ok(())
}

/// Raises the soft limit of open files to the hard limit, and reduces the limits of the node to
/// fit.
fn fit_open_files(config: &mut EnvNodeRole, databases: usize, progress: &Progress) {
    let message = match rlimit::increase_nofile_limit(rlimit::INFINITY) {
        Ok(limit) => {
            let server = &mut config.env_node.server;
            env_node::fit_open_files(&mut config.env, server, limit, databases)
        }
        Err(error) => Some(format!(
            "cannot raise the limit of open files: {error}; raise it before the start (ulimit -n)"
        )),
    };
    if let Some(message) = message {
        progress.say(&message);
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
    let learner = setup::dial_learner("--learner", &args.learner, &args.learner_credentials)?;
    let learner = LearnerClient::new(learner);
    let ready = admin::serve(args.admin).await?;
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
        settings,
        Placement { device, dtype },
        stop(shutdown, ready),
    )
    .await?;
    Ok(())
}

/// `sqlenv rank`: computes a share of the steps of a learner.
pub(crate) async fn rank(
    args: &RankArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config: RankRole = config::resolve(&args.config)?;
    let leader = setup::dial_learner("--leader", &args.leader, &args.learner_credentials)?;
    let client = RanksClient::new(leader);
    let ready = admin::serve(args.admin).await?;
    ready.set(true);
    progress.say(&format!("rank of the run at {}", args.leader));
    let options = RankOptions {
        device: config.device.open()?,
        threads: threads::or_cores(config.threads),
        patience: Duration::from_secs(args.patience_seconds.into()),
    };
    let joined = unless_interrupted(&shutdown, learner::ranks::join(client, options)).await;
    ready.set(false);
    joined?.with_context(|| format!("--leader {}", args.leader))
}

async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve on {address}; choose another address with {flag}"))
}

/// Waits for the signal, and marks the role as not ready.
async fn stop(shutdown: CancellationToken, ready: Readiness) {
    shutdown.cancelled_owned().await;
    ready.set(false);
}

/// Returns host and process id, which are unique among machines and processes.
fn default_actor_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "host".to_owned());
    format!("{}-{}", host.trim(), std::process::id())
}

/// `sqlenv learner`: trains on the groups that actors submit. An existing run folder is resumed.
pub(crate) async fn learner(
    args: &LearnerArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config: LearnerRole = config::resolve(&args.config)?;
    let credentials = ServerCredentials::open(&config.learner.server)?;
    let listener = bind(args.listen, "--listen").await?;
    let ready = admin::serve(args.admin).await?;
    let env = setup::dial_env(&args.env, &args.env_credentials)?;
    let questions = unless_interrupted(&shutdown, actor::list_questions(&env, "train"))
        .await?
        .with_context(|| format!("cannot list the questions of --env {}", args.env))?;
    let all_questions = unless_interrupted(&shutdown, actor::list_questions(&env, ""))
        .await?
        .with_context(|| format!("cannot list the questions of --env {}", args.env))?;
    if config.model.dir.is_none() {
        let name = config.model.name();
        progress.say(&format!("without --model: starts from {name}"));
    }
    let placement = Placement {
        device: config.device,
        dtype: config.dtype,
    };
    let base = setup::base_model(&config.model, config.seed, placement)?;
    let folder = RunFolder::create(&args.run_dir)?;
    check_tokenizer(folder.path(), &base)?;
    let mut info = describe(args, &config, &base, &all_questions);
    let evaluations = PlayedEvaluations::plan(
        &config,
        &all_questions,
        base.chat.clone(),
        &folder,
        progress,
    )?;
    let learner = open_learner(&config, placement.place(&base)?, questions, &folder)?;
    learner.plan_evaluations(evaluations.for_learner(&config));
    // `Learner::open` has checked that an existing run has these settings.
    folder.write_config(&config::to_toml(&config)?)?;
    folder.write_info(&info)?;
    progress.say(&format!("learner serves on {}", listener.local_addr()?));
    let ranks = config.learner.ranks.count;
    if ranks > 1 {
        progress.say(&format!("waiting for {} other ranks", ranks - 1));
    }
    ready.set(true);
    let steps = config.learner.steps;
    let serving = ServingLearner {
        learner,
        steps,
        folder: &folder,
        evaluations,
        progress,
    };
    let trained = serving
        .train((listener, credentials), &ready, shutdown)
        .await;
    let is_finished = matches!(trained, Ok(step) if step >= steps);
    info.status = if is_finished {
        RunStatus::Finished
    } else {
        RunStatus::Interrupted
    };
    let written = folder.write_info(&info);
    trained?;
    written?;
    let (summary, report) = (
        report::summary(&folder.read()?),
        report::write(folder.path())?,
    );
    if !is_finished {
        bail!(Interrupted);
    }
    let trained = newest_model(folder.path(), placement)?
        .context("a finished run has no checkpoint: this is a bug")?;
    let model = folder.path().join("model");
    trained.save(&model)?;
    let (model, report, env) = (model.display(), report.display(), &args.env);
    progress.say(&format!(
        "{summary}model: {model}\nreport: {report}\n\
         evaluate it with: sqlenv eval --model {model} --env {env} --split eval"
    ));
    Ok(())
}

/// Opens the run in the folder, or resumes it.
fn open_learner(
    config: &LearnerRole,
    base: Model,
    questions: Vec<Question>,
    folder: &RunFolder,
) -> Result<Learner> {
    let learner = Learner::open(
        config.learner.clone(),
        RunArguments {
            seed: config.seed,
            threads: threads::or_cores(config.threads),
        },
        base,
        questions
            .into_iter()
            .map(|question| question.question_id)
            .collect(),
        folder.path(),
    )?;
    Ok(learner)
}

/// Describes the run, with the questions of its env-node as dataset.
fn describe(
    args: &LearnerArgs,
    config: &LearnerRole,
    base: &Model,
    questions: &[Question],
) -> RunInfo {
    let name = args.run_dir.file_name().unwrap_or_default();
    let databases = questions.iter().map(|question| &question.database_name);
    let databases: BTreeSet<&String> = databases.collect();
    let mut of_split = BTreeMap::new();
    for question in questions {
        *of_split.entry(question.split.clone()).or_insert(0) += 1;
    }
    RunInfo {
        dataset: format!("the questions of {}", args.env),
        databases: databases.len() as u64,
        questions: of_split,
        ..run_info(&name.to_string_lossy(), (config.seed, &config.model), base)
    }
}

/// A learner that trains and serves at the same time.
struct ServingLearner<'a> {
    learner: Learner,
    steps: u64,
    folder: &'a RunFolder,
    evaluations: PlayedEvaluations<'a>,
    progress: &'a Progress,
}

impl ServingLearner<'_> {
    /// Serves and trains until the last step or `shutdown`. Returns the number of learner steps.
    async fn train(
        &self,
        (listener, credentials): (TcpListener, ServerCredentials),
        ready: &Readiness,
        shutdown: CancellationToken,
    ) -> Result<u64> {
        let served = CancellationToken::new();
        let mut serving = tokio::spawn(learner::serve(
            listener,
            self.learner.clone(),
            credentials,
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
                bail!("the server ended before the run; start the learner again to resume the run");
            }
        };
        ready.set(false);
        let is_finished = matches!(trained, Ok(step) if step >= self.steps);
        if is_finished && !self.learner.has_been_joined() {
            // The run was over when it was opened. Actors that wait for a learner learn that at
            // their next attempt.
            tokio::time::sleep(2 * actor::LONGEST_PAUSE).await;
        }
        // The server first sends every connected actor the end of the run.
        served.cancel();
        let ended = serving.await.context("the server panicked");
        let step = trained?;
        ended??;
        Ok(step)
    }

    /// Records the steps in the run folder and displays them.
    async fn record(&self, mut events: mpsc::Receiver<TrainEvent>) {
        let stage = self.progress.stage("GRPO", self.steps, "steps");
        while let Some(event) = events.recv().await {
            let written = match event {
                TrainEvent::Checkpoint { .. } => Ok(()),
                TrainEvent::Evaluation {
                    version,
                    name,
                    episodes,
                } => {
                    let recorded = self.evaluations.record(version, &name, &episodes);
                    self.learner.evaluation_recorded();
                    recorded
                }
                TrainEvent::Step { step, metrics } => {
                    stage.set(step);
                    let record = LearnerStepRecord {
                        step,
                        stage: TrainingStage::Grpo,
                        policy_version: step,
                        metrics,
                    };
                    self.folder.append_step(&record).map_err(Into::into)
                }
            };
            if let Err(error) = written {
                tracing::error!("cannot record a result of the run: {error:#}");
            }
        }
        stage.finish("");
    }
}
