//! GRPO in one process: the same clients and services as over TCP, connected by the in-process
//! transport.

use std::path::Path;

use actor::ActorConfig;
use anyhow::{Context as _, Result, ensure};
use learner::{
    Learner, TrainEvent,
    checkpoint::{self, CHECKPOINTS, CheckpointState},
};
use policy::{Model, Placement, TEXT_FILES};
use proto::Transport;
use tokio::{runtime::Handle, sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::setup::open_model;

/// The number of events that may wait for their reader. The trainer waits when the channel is full.
const EVENTS: usize = 2;

/// A running learner with its actors.
pub(crate) struct LocalRun {
    events: mpsc::Receiver<TrainEvent>,
    learner: Learner,
    training: tokio::task::JoinHandle<learner::Result<u64>>,
    actors: JoinSet<Result<(), actor::ActorError>>,
}

impl LocalRun {
    /// Starts the training with `actors` actors, each on a thread of its own. Must be called inside
    /// a runtime.
    pub(crate) fn start(
        learner: Learner,
        env: &Transport,
        actors: usize,
        config: &ActorConfig,
        placement: Placement,
        shutdown: &CancellationToken,
    ) -> Self {
        let served = Transport::in_process(learner.service());
        let mut running = JoinSet::new();
        for number in 0..actors {
            let (env, served, config) = (env.clone(), served.clone(), config.clone());
            let stop = shutdown.clone().cancelled_owned();
            let runtime = Handle::current();
            running.spawn_blocking(move || {
                runtime.block_on(actor::run(
                    env,
                    served,
                    &format!("actor-{number}"),
                    config,
                    placement,
                    stop,
                ))
            });
        }
        let (sender, events) = mpsc::channel(EVENTS);
        let training = tokio::spawn({
            let (learner, stop) = (learner.clone(), shutdown.clone().cancelled_owned());
            async move { learner.train(sender, stop).await }
        });
        Self {
            events,
            learner,
            training,
            actors: running,
        }
    }

    /// Returns the next event, or `None` after the last one. Fails if an actor fails, because the
    /// learner would wait for its groups for ever.
    pub(crate) async fn next(&mut self) -> Result<Option<TrainEvent>> {
        loop {
            tokio::select! {
                biased;
                event = self.events.recv() => return Ok(event),
                Some(ended) = self.actors.join_next() => {
                    ended.context("an actor panicked")?.context("an actor failed")?;
                }
            }
        }
    }

    /// Waits for the end of the training and returns the number of learner steps.
    pub(crate) async fn finish(mut self) -> Result<u64> {
        let step = self.training.await.context("the trainer panicked")??;
        self.learner.close_streams();
        while let Some(ended) = self.actors.join_next().await {
            ended
                .context("an actor panicked")?
                .context("an actor failed")?;
        }
        Ok(step)
    }
}

/// Opens the model of a checkpoint.
pub(crate) fn checkpoint_model(path: &Path, placement: Placement) -> Result<Model> {
    open_model(&path.join(checkpoint::MODEL), placement)
}

/// Refuses to continue a run whose checkpoints have another tokenizer, chat template,
/// configuration or ends of text than `model`. Does not read the weights.
pub(crate) fn check_text_files(run_dir: &Path, model: &Model) -> Result<()> {
    let read = |state: CheckpointState, path: &Path| {
        let file = |name| state.read(path, &format!("{}/{name}", checkpoint::MODEL));
        let files = TEXT_FILES.into_iter().map(file);
        files.collect::<learner::Result<Vec<_>>>()
    };
    let Some(files) = checkpoint::newest(&run_dir.join(CHECKPOINTS), read)? else {
        return Ok(());
    };
    for (name, known) in TEXT_FILES.into_iter().zip(files) {
        ensure!(
            model.has_file(name, known.as_deref()),
            "{} was trained with another {name} than the model to start from has; continue it \
             with the model and the version of the program that started it, or start a new run",
            run_dir.display()
        );
    }
    Ok(())
}

/// Opens the model of the newest complete checkpoint of a run, if there is one.
pub(crate) fn newest_model(run_dir: &Path, placement: Placement) -> Result<Option<Model>> {
    let newest = checkpoint::load_latest(&run_dir.join(CHECKPOINTS))?;
    newest
        .map(|checkpoint| checkpoint_model(&checkpoint.path, placement))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use policy::embedded;
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Writes the newest checkpoint of a run, with these files of a model.
    fn write_checkpoint(run_dir: &Path, files: &[(String, Vec<u8>)]) {
        let folder = run_dir.join(CHECKPOINTS).join("step_1");
        fs::create_dir_all(folder.join(checkpoint::MODEL)).unwrap();
        let hash = |content: &[u8]| hex::encode(Sha256::digest(content));
        let mut state = CheckpointState {
            step: 1,
            ..CheckpointState::default()
        };
        let trainer = "trainer.safetensors".to_owned();
        state.files.insert(trainer, hash(b""));
        for (name, content) in files {
            let name = format!("{}/{name}", checkpoint::MODEL);
            fs::write(folder.join(&name), content).unwrap();
            state.files.insert(name, hash(content));
        }
        state.sha256 = hash(&serde_json::to_vec(&state).unwrap());
        let state = serde_json::to_vec(&state).unwrap();
        fs::write(folder.join("state.json"), state).unwrap();
    }

    /// A generation config, for example, lists the ends of text.
    #[test]
    fn a_run_continues_with_the_text_files_that_it_began_with() {
        let run = tempfile::tempdir().unwrap();
        let mut model = embedded::model(0).unwrap();
        check_text_files(run.path(), &model).unwrap();
        write_checkpoint(run.path(), &model.files);
        check_text_files(run.path(), &model).unwrap();
        let began_with = model.files.clone();
        for name in TEXT_FILES {
            model.files.retain(|(file, _)| file != name);
            model.files.push((name.to_owned(), b"{}".to_vec()));
            let fault = check_text_files(run.path(), &model).unwrap_err();
            let expected = format!("was trained with another {name} than the model");
            assert!(fault.to_string().contains(&expected), "{fault}");
            model.files.clone_from(&began_with);
        }
    }
}
