//! `sqlenv learner`: trains on the groups that actors submit, lets them play the evaluations, and
//! leaves the table, the model and the report in the run folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use learner::{Learner, RunArguments, ServerCredentials, TrainEvent};
use policy::{Model, Placement};
use proto::{EnvClient, v1::Question};
use report::{LearnerStepRecord, RunFolder, RunInfo, RunStatus, TrainingStage};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::LearnerArgs,
    config::{self, LearnerRole},
    live::LiveRun,
    local::{check_tokenizer, newest_model},
    played_evaluation::PlayedEvaluations,
    progress::Progress,
    roles::{bind, stop},
    run_info::run_info,
    setup,
    shutdown::{Interrupted, unless_interrupted},
    threads,
};

/// Trains until the last step or a signal. An existing run folder is resumed.
pub(crate) async fn learner(
    args: &LearnerArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config: LearnerRole = config::resolve(&args.config)?;
    let credentials = ServerCredentials::open(&config.learner.server)?;
    let listener = bind(args.listen, "--listen").await?;
    let live = LiveRun::default();
    let ready = admin::serve_with(args.admin, live.pages()).await?;
    let env = setup::dial_env(&args.env, &args.env_credentials)?;
    let questions = EnvQuestions::list(&env, args, &shutdown).await?;
    say_what_is_used(&config, progress);
    let placement = Placement {
        device: config.device,
        dtype: config.dtype,
    };
    let base = setup::base_model(&config.model, config.seed, placement)?;
    let folder = RunFolder::create(&args.run_dir)?;
    check_tokenizer(folder.path(), &base)?;
    let mut info = describe(args, &config, &base, &questions.all);
    let chat = base.chat.clone();
    let evaluations =
        PlayedEvaluations::plan(&config, &questions.all, chat.clone(), &folder, progress)?;
    let base = placement.place(&base)?;
    let learner = open_learner(&config, base, questions.training, &folder)?;
    learner.plan_evaluations(evaluations.for_learner(&config));
    // `Learner::open` has checked that an existing run has these settings.
    folder.write_config(&config::to_toml(&config)?)?;
    folder.write_info(&info)?;
    let described = (&info, &config.learner);
    live.begin(learner.clone(), described, chat, &questions.all, &folder);
    progress.say(&format!("learner serves on {}", listener.local_addr()?));
    ready.set(true);
    let serving = ServingLearner {
        learner,
        steps: config.learner.steps,
        folder: &folder,
        evaluations,
        progress,
        live: live.clone(),
    };
    let trained = serving
        .train((listener, credentials), &ready, shutdown)
        .await;
    let is_finished = trained.is_ok() && serving.learner.is_finished();
    info.status = match is_finished {
        true => RunStatus::Finished,
        false => RunStatus::Interrupted,
    };
    live.end(info.status);
    let written = folder.write_info(&info);
    trained?;
    written?;
    let report = report::write(folder.path())?;
    if !is_finished {
        bail!(Interrupted);
    }
    save_model(&folder, placement, (&report, &args.env), progress)?;
    live.linger().await;
    Ok(())
}

/// Saves the model of a finished run, and says where its results are.
fn save_model(
    folder: &RunFolder,
    placement: Placement,
    (report, env): (&Path, &str),
    progress: &Progress,
) -> Result<()> {
    let model = newest_model(folder.path(), placement)?
        .context("a finished run has no checkpoint: this is a bug")?;
    let path = folder.path().join("model");
    model.save(&path)?;
    let summary = report::summary(&folder.read()?);
    let (path, report) = (path.display(), report.display());
    progress.say(&format!(
        "{summary}model: {path}\nreport: {report}\n\
         evaluate it with: sqlenv eval --model {path} --env {env} --split eval"
    ));
    Ok(())
}

/// The questions of an env-node.
struct EnvQuestions {
    /// Those of the split `train`, in the order of env-node.
    training: Vec<Question>,
    all: Vec<Question>,
}

impl EnvQuestions {
    async fn list(
        env: &EnvClient,
        args: &LearnerArgs,
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let list = async |split: &str| {
            unless_interrupted(shutdown, actor::list_questions(env, split))
                .await?
                .with_context(|| format!("cannot list the questions of --env {}", args.env))
        };
        Ok(Self {
            training: list("train").await?,
            all: list("").await?,
        })
    }
}

/// Says what the run starts from, and what it waits for.
fn say_what_is_used(config: &LearnerRole, progress: &Progress) {
    if config.model.dir.is_none() {
        let name = config.model.name();
        progress.say(&format!("without --model: starts from {name}"));
    }
    if config.has_warm_start() {
        progress.say(
            "warm_start has no effect here: the learner starts GRPO from the model as it is; make \
             a warm start by `sqlenv sft`, and give its folder by --model",
        );
    }
    let ranks = config.learner.ranks.count;
    if ranks > 1 {
        progress.say(&format!("waiting for {} other ranks", ranks - 1));
    }
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
    live: LiveRun,
}

impl ServingLearner<'_> {
    /// Serves and trains until the last step or `shutdown`.
    ///
    /// # Errors
    /// The training or the server failed, or an evaluation cannot be recorded.
    async fn train(
        &self,
        (listener, credentials): (TcpListener, ServerCredentials),
        ready: &Readiness,
        shutdown: CancellationToken,
    ) -> Result<()> {
        let served = CancellationToken::new();
        let mut serving = tokio::spawn(learner::serve(
            listener,
            self.learner.clone(),
            credentials,
            served.clone().cancelled_owned(),
        ));
        let (sender, events) = mpsc::channel(2);
        // A signal and an evaluation that cannot be recorded stop the run in the same way.
        let stopped = shutdown.child_token();
        let work = async {
            tokio::join!(
                self.learner
                    .train(sender, stop(stopped.clone(), ready.clone())),
                self.record(events, &stopped)
            )
        };
        let (trained, recorded) = tokio::select! {
            worked = work => worked,
            ended = &mut serving => {
                ended.context("the server panicked")??;
                bail!("the server ended before the run; start the learner again to resume the run");
            }
        };
        ready.set(false);
        if self.learner.is_finished() && !self.learner.has_been_joined() {
            // The run was over when it was opened. Actors that wait for a learner learn that at
            // their next attempt.
            tokio::time::sleep(2 * actor::LONGEST_PAUSE).await;
        }
        // The server first sends every connected actor the end of the run.
        served.cancel();
        let ended = serving.await.context("the server panicked");
        trained?;
        ended??;
        recorded
    }

    /// Records the steps and the evaluations in the run folder and displays them. Stops the run if
    /// an evaluation cannot be recorded: a resumed run then repeats it.
    async fn record(
        &self,
        mut events: mpsc::Receiver<TrainEvent>,
        stopped: &CancellationToken,
    ) -> Result<()> {
        let mut fault = None;
        let stage = self.progress.stage("GRPO", self.steps, "steps");
        while let Some(event) = events.recv().await {
            match event {
                TrainEvent::Checkpoint { .. } => {}
                TrainEvent::Evaluation {
                    version,
                    name,
                    episodes,
                } => match self.evaluations.record(version, &name, &episodes) {
                    Ok(()) => {
                        self.live.evaluated(self.folder);
                        self.learner.evaluation_recorded();
                    }
                    Err(error) => {
                        fault = Some(error.context("an evaluation cannot be recorded"));
                        stopped.cancel();
                    }
                },
                TrainEvent::Step { step, metrics } => {
                    stage.set(step);
                    let record = LearnerStepRecord {
                        step,
                        stage: TrainingStage::Grpo,
                        policy_version: step,
                        metrics,
                    };
                    self.live.step(&record);
                    let written = self.folder.append_step(&record);
                    if let Err(error) = written {
                        tracing::error!("cannot record the metrics of step {step}: {error:#}");
                    }
                }
            }
        }
        stage.finish("");
        fault.map_or(Ok(()), Err)
    }
}
