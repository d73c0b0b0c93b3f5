//! `sqlenv learner`: trains on the groups that actors submit, lets them play the evaluations, and
//! leaves the table, the model and the report in the run folder.

mod demonstrations;
mod ending;
mod serving;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use learner::{Learner, RunArguments, RunStorage, ServerCredentials, TrainingQuestion};
use policy::Model;
use proto::{
    EnvClient, env_client,
    v1::{ActorIdentity, Question},
};
use report::{RunFolder, RunInfo, RunRecords};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    args::LearnerArgs,
    config::{self, LearnerRole, WrongSettings},
    live::LiveRun,
    model_folder::check_text_files,
    played_evaluation::PlayedEvaluations,
    progress::Progress,
    roles::{bind, fit_open_files},
    run_info::{check_data, run_info},
    run_place::RunPlace,
    setup,
    shutdown::{read_unless_interrupted, unless_interrupted},
    threads,
};
use ending::EndingRun;
use serving::ServingLearner;

/// Trains until the last step or a signal. An existing run folder is resumed.
pub(crate) async fn learner(
    args: &LearnerArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config = settings(args)?;
    let env = env_client(setup::dial_env(&args.env, &args.env_credentials)?);
    let credentials = ServerCredentials::open(&config.learner.server)?;
    let listener = bind(args.listen).await?;
    let live = LiveRun::default();
    let ready = open_admin_port(args, &live).await?;
    let opened = RunPlace::open(&args.run_dir, args.work_dir.as_deref());
    let mut place = unless_interrupted(&shutdown, opened).await??;
    let folder = RunFolder::create(place.folder())?;
    check_is_of_learner(&folder, &args.run_dir)?;
    progress.print(&format!("reading the questions of --env {}", args.env));
    let profile = &config.learner.rollout.reward_profile;
    let questions = EnvQuestions::list(&env, args, profile, &shutdown).await?;
    print_what_is_used(&config, progress);
    let base = open_base(&config, &folder, &shutdown).await?;
    let info = describe(args, place.folder(), &config, &base, &questions)?;
    check_begun(&folder.read()?, &info, &config)?;
    let chat = base.chat.clone();
    let served = (&env, &questions.identity);
    let oracle = demonstrations::of_run(args, &config, &chat, served, progress, &shutdown).await?;
    let base = config.placement().place(&base)?;
    let storage = place.storage();
    let learner = open_learner(&config, base, questions.training, storage, progress).await?;
    // `Learner::open` has checked that an existing run has these settings. They are recorded before
    // the first evaluation, whose record a run with other settings must not take for its own.
    folder.write_config(&config::to_toml(&config)?)?;
    let evaluations =
        PlayedEvaluations::new(&config, &questions.all, chat.clone(), &folder, progress);
    let random = evaluations.play_random(&env, &questions.identity);
    unless_interrupted(&shutdown, random).await??;
    if let Some(oracle) = oracle {
        learner.demonstrate_by(oracle);
    }
    learner.guard(questions.identity, env.clone());
    learner.plan_evaluations(evaluations.for_learner()?);
    folder.write_info(&info)?;
    let (settings, all) = (&config.learner, &questions.all);
    live.begin(learner.clone(), &info, settings, chat, all, &folder);
    progress.print(&format!("learner serves on {}", listener.local_addr()?));
    ready.set(true);
    let serving = ServingLearner {
        learner,
        steps: config.learner.steps,
        base: &config.model,
        folder: &folder,
        evaluations,
        progress,
        live: live.clone(),
    };
    let trained = serving.train(listener, credentials, &ready, shutdown).await;
    let run = EndingRun {
        learner: &serving.learner,
        config: &config,
        folder: &folder,
        place,
        env: &args.env,
        live,
        progress,
    };
    run.end(trained, info).await
}

fn settings(args: &LearnerArgs) -> Result<LearnerRole> {
    let config: LearnerRole = config::resolve(&args.config)?;
    demonstrations::check_data_is_read(args, &config)?;
    config.check_paths()?;
    Ok(config)
}

/// Refuses a run of `sqlenv train`: its rules and its other stages are unknown here, and its
/// records and settings would be replaced.
///
/// # Errors
/// [`WrongSettings`] if it is one; or a file cannot be used.
fn check_is_of_learner(folder: &RunFolder, run_dir: &str) -> Result<()> {
    // Only a run over several processes has an env-node, whose rules are recorded.
    let is_of_learner = |info: RunInfo| info.environment.is_some();
    ensure!(
        folder.info()?.is_none_or(is_of_learner),
        WrongSettings(anyhow!(
            "{run_dir} is a run of `sqlenv train`; continue it by `sqlenv train --resume`, or \
             choose another --run-dir"
        ))
    );
    Ok(())
}

/// Checks that a run which is resumed goes on with its own data and settings. `Learner::open`
/// checks what they name, such as the base model.
fn check_begun(begun: &RunRecords, info: &RunInfo, config: &LearnerRole) -> Result<()> {
    check_data(begun.info.as_ref(), info)?;
    let Some(begun) = &begun.config else {
        return Ok(());
    };
    let begun = LearnerRole::of_run(begun).context("in the config.toml of the run")?;
    config.check_resumes(&begun)
}

async fn open_admin_port(args: &LearnerArgs, live: &LiveRun) -> Result<Readiness> {
    let describe = || {
        learner::metrics::describe();
        actor::metrics::describe_of_learner();
    };
    admin::serve_with(args.admin, describe, live.pages()).await
}

/// Half an hour. An env-node that starts with the learner first reads all its data.
const UNTIL_ENV_NODE_SERVES: actor::Retry = actor::Retry {
    call_timeout_seconds: 60,
    attempts: 900,
};

/// The questions of an env-node.
struct EnvQuestions {
    /// Those of the split `train`, in the order of env-node.
    training: Vec<Question>,
    all: Vec<Question>,
    /// What actors must play on.
    identity: ActorIdentity,
}

impl EnvQuestions {
    async fn list(
        env: &EnvClient,
        args: &LearnerArgs,
        profile: &str,
        shutdown: &CancellationToken,
    ) -> Result<Self> {
        let listed = actor::list_questions(env, "", &UNTIL_ENV_NODE_SERVES);
        let listed = unless_interrupted(shutdown, listed).await?;
        let all: Vec<Question> =
            listed.with_context(|| format!("cannot list the questions of --env {}", args.env))?;
        let is_of_training = |it: &&Question| setup::is_training_split(&it.split);
        let training: Vec<Question> = all.iter().filter(is_of_training).cloned().collect();
        ensure!(
            !training.is_empty(),
            "--env {} serves no question of the split `train`, on which a run trains; serve data \
             that has some (docs/data.md)",
            args.env
        );
        let info = actor::env_info(env, &UNTIL_ENV_NODE_SERVES);
        let info = unless_interrupted(shutdown, info).await?;
        let info = info.with_context(|| format!("cannot ask --env {} what it serves", args.env))?;
        Ok(Self {
            training,
            all,
            identity: learner::expected_identity(&info, profile),
        })
    }
}

/// Says what the run starts from, and what it waits for.
fn print_what_is_used(config: &LearnerRole, progress: &Progress) {
    if config.model.dir.is_none() {
        let name = config.model.name();
        progress.print(&format!("without --model: starts from {name}"));
    }
    if config.has_warm_start() {
        progress.print(
            "warm_start has no effect here: the learner starts GRPO from the model as it is; make \
             a warm start by `sqlenv sft`, and give its folder by --model",
        );
    }
    let ranks = config.learner.ranks.count;
    if ranks > 1 {
        progress.print(&format!("waiting for {} other ranks", ranks - 1));
    }
}

/// Opens the model to start from, and checks that the run in the folder can go on with it.
///
/// # Errors
/// [`config::WrongSettings`] if it cannot; or a file cannot be used.
async fn open_base(
    config: &LearnerRole,
    folder: &RunFolder,
    shutdown: &CancellationToken,
) -> Result<Model> {
    let (model, seed, placement) = (config.model.clone(), config.seed, config.placement());
    let open = move || setup::base_model(&model, seed, placement);
    let base = read_unless_interrupted(shutdown, open).await?;
    setup::check_context(&base.config, &config.model, &config.learner)?;
    check_text_files(folder.path(), &base)?;
    Ok(base)
}

/// Opens the run, or resumes it.
///
/// # Errors
/// [`config::WrongSettings`], also if the run in the folder has others; or a file cannot be used.
async fn open_learner(
    config: &LearnerRole,
    base: Model,
    questions: Vec<Question>,
    storage: RunStorage,
    progress: &Progress,
) -> Result<Learner> {
    let arguments = RunArguments {
        seed: config.seed,
        threads: threads::or_cores(config.threads),
    };
    let question = |it: &Question| TrainingQuestion::new(&it.question_id, &it.difficulty);
    let questions = questions.iter().map(question).collect();
    let mut settings = config.learner.clone();
    // Not written to the run's folder: another machine may allow more.
    fit_open_files(|limit| settings.server.fit_open_files(limit), progress);
    let open = move || Learner::open(settings, arguments, base, questions, storage);
    let opened = tokio::task::spawn_blocking(open).await;
    let opened = opened.context("opening the run panicked")?;
    opened.map_err(setup::opening_fault)
}

/// Names the rules by which an env-node plays, and its default reward profile where it counts.
fn rules(identity: &ActorIdentity) -> String {
    let ActorIdentity {
        environment_version,
        reward_profile,
        ..
    } = identity;
    format!("{environment_version} {reward_profile}")
        .trim()
        .to_owned()
}

/// Describes the run, with the questions of its env-node as dataset.
fn describe(
    args: &LearnerArgs,
    run_dir: &Path,
    config: &LearnerRole,
    base: &Model,
    questions: &EnvQuestions,
) -> Result<RunInfo> {
    let all = &questions.all;
    let databases = all.iter().map(|question| &question.database_name);
    let databases: BTreeSet<&String> = databases.collect();
    let mut of_split = BTreeMap::new();
    for question in all {
        *of_split.entry(question.split.clone()).or_insert(0) += 1;
    }
    let (name, placement) = (learner::run_name(run_dir)?, config.placement());
    let started = run_info(&name, config.seed, &config.model, placement, base)?;
    Ok(RunInfo {
        dataset: format!("the questions of {}", args.env),
        data_sha256: questions.identity.data_sha256.clone(),
        environment: Some(rules(&questions.identity)),
        databases: databases.len() as u64,
        questions: of_split,
        ..started
    })
}
