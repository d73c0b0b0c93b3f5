//! The demonstrations of a distributed run. The learner knows the solutions from the data that its
//! env-node serves, and plays them there.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use learner::demonstrations::Demonstrate;
use policy::Chat;
use proto::{EnvClient, v1::ActorIdentity};
use tokio_util::sync::CancellationToken;

use crate::{
    args::LearnerArgs,
    config::{self, LearnerRole, WrongSettings},
    demonstrations::demonstrate_by_oracle,
    evaluation::served_episode_settings,
    progress::Progress,
    setup::open_dataset,
    shutdown::read_unless_interrupted,
};

/// Refuses a command line that names data, unless the run has demonstrations: the questions are
/// those of the env-node.
///
/// # Errors
/// [`WrongSettings`].
pub(super) fn check_data_is_read(args: &LearnerArgs, config: &LearnerRole) -> Result<()> {
    if config.learner.demonstration_weight == 0.0 && config::gives(&args.config, "data")? {
        return Err(WrongSettings(anyhow!(
            "a learner reads --data, --databases and the section data only with \
             learner.demonstration_weight, since a run trains on the questions of --env; leave \
             them out, or set the weight"
        ))
        .into());
    }
    Ok(())
}

/// Returns what solves the questions of the run on `env`; none if the settings want no
/// demonstrations.
///
/// # Errors
/// The data cannot be read, or are not those of the env-node.
pub(super) async fn of_run(
    args: &LearnerArgs,
    config: &LearnerRole,
    chat: &Chat,
    (env, identity): (&EnvClient, &ActorIdentity),
    progress: &Progress,
    shutdown: &CancellationToken,
) -> Result<Option<Box<Demonstrate>>> {
    if config.learner.demonstration_weight == 0.0 {
        return Ok(None);
    }
    let (data, shown) = (config.data.clone(), progress.clone());
    let open = move || {
        let dataset = open_dataset(&data, &shown)?;
        Ok((env::data_sha256(&dataset), dataset))
    };
    let (data_sha256, dataset) = read_unless_interrupted(shutdown, open).await?;
    ensure!(
        data_sha256 == identity.data_sha256,
        "--env {} serves other data than those whose solutions are to be demonstrated \
         (learner.demonstration_weight); give the folder of its data by --data, and its databases \
         by --databases",
        args.env
    );
    let rollout = &config.learner.rollout;
    let settings = served_episode_settings(env, identity, &Arc::new(chat.clone()), rollout);
    let solutions = Arc::new(dataset.questions.iter().collect());
    Ok(Some(demonstrate_by_oracle(
        solutions,
        settings,
        config.evaluation.concurrency,
        shutdown.clone(),
    )))
}
