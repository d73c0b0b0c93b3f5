//! The end of a learner: what it leaves in the run's place, and what it says.

use anyhow::{Context as _, Result, bail};
use learner::{Learner, LearnerError, RefusedActor};
use report::{RefusedActorRecord, RunFolder, RunInfo, RunStatus};

use crate::{
    config::LearnerRole,
    doctor::problems_text,
    live::LiveRun,
    model_folder::{self, newest_model},
    progress::Progress,
    run_place::RunPlace,
    shutdown::{self, Interrupted, shell_quoted},
};

/// A run whose training has ended.
pub(super) struct EndingRun<'a> {
    pub(super) learner: &'a Learner,
    pub(super) config: &'a LearnerRole,
    pub(super) folder: &'a RunFolder,
    pub(super) place: RunPlace,
    /// The address of the env-node.
    pub(super) env: &'a str,
    pub(super) live: LiveRun,
    pub(super) progress: &'a Progress,
}

impl EndingRun<'_> {
    /// Records how the run ended. A finished run gets its model, its report and a message.
    ///
    /// # Errors
    /// That of the training; [`Interrupted`] if the run was stopped; or a file cannot be written.
    pub(super) async fn end(self, trained: Result<()>, mut info: RunInfo) -> Result<()> {
        let is_finished = self.learner.is_finished() && trained.is_ok();
        info.status = match is_finished {
            true => RunStatus::Finished,
            false => RunStatus::Interrupted,
        };
        self.live.end(info.status);
        let refused = self.learner.refused_actors();
        info.refused_actors = refused.iter().map(refused_record).collect();
        self.name_refused(&info.refused_actors);
        if let Err(fault) = trained.and_then(|()| self.write_results(&info)) {
            self.leave(&fault, info).await;
            return Err(fault);
        }
        let records = self.folder.read();
        let results = self.results();
        self.place.save().await?;
        let records = records?;
        let (table, problems) = (report::summary(&records), problems_text(&records));
        if !is_finished {
            let command = shutdown::this_command();
            let message = format!("interrupted; continue with: {command}");
            self.progress.print(&message);
            bail!(Interrupted);
        }
        self.progress.print(&format!("{table}{problems}{results}"));
        self.live.linger().await;
        Ok(())
    }

    fn write_results(&self, info: &RunInfo) -> Result<()> {
        if info.status == RunStatus::Finished {
            self.save_model()?;
        }
        self.folder.write_info(info)?;
        report::write(self.folder.path())?;
        Ok(())
    }

    /// Records that the run failed, as far as this is possible. A run that another learner has
    /// opened stays as it is.
    async fn leave(self, fault: &anyhow::Error, mut info: RunInfo) {
        let learner = self.learner.clone();
        // It may ask the object store.
        let newest = tokio::task::spawn_blocking(move || Ok(learner.check_newest()?)).await;
        match newest.unwrap_or_else(|panic| Err(panic.into())) {
            _ if is_replaced(fault) => return,
            Ok(()) => {}
            Err(newer) if is_replaced(&newer) => return,
            Err(unknown) => {
                tracing::error!("cannot see whether another learner has the run: {unknown:#}");
                if let Some(copy) = self.place.keep() {
                    let copy = copy.display();
                    tracing::error!("the last files of the run are in {copy} only");
                }
                return;
            }
        }
        info.status = RunStatus::Interrupted;
        if let Err(unwritten) = self.folder.write_info(&info) {
            tracing::error!("run.json does not say that the run has failed: {unwritten:#}");
        }
        if let Err(unsaved) = self.place.save().await {
            tracing::error!("{unsaved:#}");
        }
    }

    fn name_refused(&self, refused: &[RefusedActorRecord]) {
        for actor in refused {
            self.progress.print(&format!(
                "refused {} of the actor {:?}, the last because {}",
                match actor.count {
                    1 => "1 call".to_owned(),
                    count => format!("{count} calls"),
                },
                actor.id,
                report::safe_line(&actor.reason)
            ));
        }
    }

    fn save_model(&self) -> Result<()> {
        let model = newest_model(self.folder.path(), self.config.placement())?
            .context("a finished run has no checkpoint: this is a bug")?;
        let licences = model_folder::licence_of_base(&self.config.model);
        let (name, steps) = (model_folder::LAST, self.config.learner.steps);
        model_folder::save(self.folder, name, &model, &licences, steps, None)
    }

    /// Names the results of the run and the next command.
    fn results(&self) -> String {
        let model = self.place.display(model_folder::LAST);
        let report = self.place.display("report.html");
        let (fetch, local_model) = match self.place.fetch_command() {
            Some((command, folder)) => (
                format!("copy them with: {command}\n"),
                folder.join(model_folder::LAST).display().to_string(),
            ),
            None => (String::new(), model.clone()),
        };
        let evaluation = evaluation_command(&local_model, self.env);
        format!(
            "model: {model}\nreport: {report}\n{fetch}evaluate it with: {evaluation}\n\
             (add --data with the folder of the env-node's data, unless it is the project's own)"
        )
    }
}

/// Returns the command that evaluates a model on an env-node, for a shell.
fn evaluation_command(model: &str, env: &str) -> String {
    let [model, env] = [model, env].map(shell_quoted);
    format!("sqlenv eval --model {model} --env {env} --split eval")
}

fn refused_record(actor: &RefusedActor) -> RefusedActorRecord {
    RefusedActorRecord {
        id: actor.id.clone(),
        count: actor.count,
        reason: actor.reason.clone(),
    }
}

fn is_replaced(fault: &anyhow::Error) -> bool {
    let fault = fault.downcast_ref();
    matches!(fault, Some(LearnerError::Replaced { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_next_command_as_it_is_meant() {
        let command = evaluation_command("my runs/model", "http://a:1,http://b:1");
        let expected =
            "sqlenv eval --model 'my runs/model' --env http://a:1,http://b:1 --split eval";
        assert_eq!(command, expected);
    }
}
