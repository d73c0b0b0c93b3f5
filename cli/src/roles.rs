//! The three roles as processes: each binds or dials, says where it is, and runs until a signal.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result};
use env_node::EnvNode;
use learner::{Event, Learner};
use proto::{EnvClient, LearnerClient, Transport};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Ready},
    args::{ActorArgs, EnvNodeArgs, LearnerArgs},
    commands::Outcome,
    config::RunConfig,
    progress::Progress,
    run::{RunFolder, Stage, StepRecord},
    setup,
};

/// How long the learner still answers claims after its last step: an actor that waits asks again within milliseconds.
const LAST_CLAIMS: Duration = Duration::from_secs(2);

/// `sqlenv env-node`: serves episodes.
///
/// # Errors
/// The data or an address cannot be used.
pub async fn env_node(
    args: &EnvNodeArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<()> {
    let config = RunConfig::resolve(&args.config)?;
    let listener = bind(args.listen, "--listen").await?;
    let ready = serve_admin(args.admin).await?;
    let dataset = setup::open_dataset(&config.data, progress)?;
    let node = EnvNode::open(dataset, config.env.clone()).context("in [env]")?;
    ready.set(true);
    progress.say(&format!("env-node serves on {}", listener.local_addr()?));
    env_node::serve(listener, node, shutdown.cancelled_owned()).await?;
    Ok(())
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
    let env = EnvClient::new(Transport::dial(&args.env).context("--env")?);
    let learner = LearnerClient::new(Transport::dial(&args.learner).context("--learner")?);
    let ready = serve_admin(args.admin).await?;
    let id = args.id.clone().unwrap_or_else(default_actor_id);
    ready.set(true);
    progress.say(&format!(
        "actor {id} samples for {} on {}",
        args.learner, args.env
    ));
    actor::run(env, learner, &id, config.actor, shutdown.cancelled_owned()).await?;
    Ok(())
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

/// Host and process number: unique among machines and processes.
fn default_actor_id() -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "host".to_owned());
    format!("{}-{}", host.trim(), std::process::id())
}

/// `sqlenv learner`: trains on what actors submit; a run folder that exists is resumed.
///
/// # Errors
/// The model, the run's folder or an address cannot be used, or a step failed.
pub async fn learner(
    args: &LearnerArgs,
    progress: &Progress,
    shutdown: CancellationToken,
) -> Result<Outcome> {
    let config = RunConfig::resolve(&args.config)?;
    let listener = bind(args.listen, "--listen").await?;
    let ready = serve_admin(args.admin).await?;
    let env = EnvClient::new(Transport::dial(&args.env).context("--env")?);
    let question_ids = actor::questions(&env, "train")
        .await
        .context("cannot list the questions of --env")?;
    let folder = RunFolder::create(&args.run_dir)?;
    folder.write_config(&toml::to_string(&config)?)?;
    let learner = Learner::open(
        config.learner_of_run(),
        setup::base_model(&config)?,
        question_ids
            .into_iter()
            .map(|question| question.question_id)
            .collect(),
        folder.path(),
        true,
    )?;
    let steps = config.learner.steps;
    progress.say(&format!("learner serves on {}", listener.local_addr()?));
    ready.set(true);
    let served = CancellationToken::new();
    let serving = tokio::spawn(learner::serve(
        listener,
        learner.clone(),
        served.clone().cancelled_owned(),
    ));
    let (sender, events) = mpsc::channel(2);
    let (trained, ()) = tokio::join!(
        learner.train(sender, shutdown.cancelled_owned()),
        record(events, &folder, steps, progress)
    );
    // Actors hear that the run is over before the port closes.
    tokio::time::sleep(LAST_CLAIMS).await;
    served.cancel();
    serving.await.context("the server panicked")??;
    Ok(if trained? < steps {
        Outcome::Interrupted
    } else {
        Outcome::Done
    })
}

/// Writes the steps into the run's folder and shows them.
async fn record(
    mut events: mpsc::Receiver<Event>,
    folder: &RunFolder,
    steps: u64,
    progress: &Progress,
) {
    let stage = progress.stage("GRPO", steps, "steps");
    while let Some(event) = events.recv().await {
        let Event::Step { step, metrics } = event else {
            continue;
        };
        stage.set(step);
        let written = folder.append_step(&StepRecord {
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
