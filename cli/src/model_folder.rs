//! The model folders of a run: `model` has the last policy and `model-best` the best one. Those in
//! checkpoints have the policies in between.

use std::path::Path;

use anyhow::{Result, anyhow};
use learner::checkpoint::{self, CHECKPOINTS, CheckpointState};
use policy::{Chat, Model, Placement, TEXT_FILES};
use report::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyLicences, RunFolder};

use crate::{
    config::{ModelConfig, RunConfig, WrongSettings},
    setup::{data_licence, open_model},
};

pub(crate) use crate::model_source::LAST;

/// The folder of the policy with the highest greedy accuracy on the questions of the learning
/// curve.
pub(crate) const BEST: &str = "model-best";

const CARD: &str = "README.md";
/// The licence of this project, under which the embedded policies are.
const EMBEDDED_LICENCE: &str = "apache-2.0";

/// Returns the licences of what `sqlenv train` makes policies of.
pub(crate) fn licences(config: &RunConfig) -> PolicyLicences {
    PolicyLicences {
        data: data_licence(&config.data),
        ..licence_of_base(&config.model)
    }
}

/// Returns the same for a learner, whose env-node does not name the licence of its data.
pub(crate) fn licence_of_base(base: &ModelConfig) -> PolicyLicences {
    PolicyLicences {
        base: base.dir.is_none().then(|| EMBEDDED_LICENCE.to_owned()),
        data: None,
    }
}

/// Writes the policy of `step` with its model card into the folder `name` of a run. The card also
/// has the evaluation `new`, which the run does not have yet.
pub(crate) fn save(
    folder: &RunFolder,
    name: &str,
    model: &Model,
    licences: &PolicyLicences,
    step: u64,
    new: Option<&Evaluation>,
) -> Result<()> {
    let mut records = folder.read()?;
    if let Some(new) = new {
        records.add(new.clone());
    }
    let card = report::model_card(&records, step, licences, name == BEST);
    let mut model = model.clone();
    model.files.push((CARD.to_owned(), card.into_bytes()));
    model.replace(&folder.path().join(name))?;
    Ok(())
}

/// Opens the model of a checkpoint.
pub(crate) fn checkpoint_model(path: &Path, placement: Placement) -> Result<Model> {
    open_model(&path.join(checkpoint::MODEL), placement)
}

/// Refuses to continue a run whose checkpoints have another tokenizer, chat template,
/// configuration or ends of text than `model`. Does not read the weights.
///
/// # Errors
/// [`WrongSettings`] for another model; or a checkpoint cannot be read.
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
        if !model.has_file(name, known.as_deref()) {
            return Err(WrongSettings(anyhow!(
                "{} was trained with another {name} than the model to start from has; continue it \
                 with the model and the version of the program that started it, or start a new run",
                run_dir.display()
            ))
            .into());
        }
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

/// Reads the chat of a run in its newest checkpoint, if there is one. The weights, which are much
/// larger, are not read.
pub(crate) fn newest_chat(run_dir: &Path) -> Result<Option<Chat>> {
    let newest = checkpoint::newest(&run_dir.join(CHECKPOINTS), |state, path| {
        // A damaged tokenizer would give other texts.
        for name in state
            .files
            .keys()
            .filter(|it| !it.ends_with(".safetensors"))
        {
            state.read(path, name)?;
        }
        Ok(Chat::open(&path.join(checkpoint::MODEL))?)
    });
    Ok(newest?)
}

/// Tells whether a policy with this evaluation is the best trained one of the run so far.
pub(crate) fn is_best(known: &[Evaluation], new: &Evaluation) -> bool {
    let counts = |it: &&Evaluation| {
        it.split == CURVE_SPLIT && it.mode == DecodingMode::Greedy && it.step > 0
    };
    let rate = |it: &Evaluation| it.metrics.success.success_rate;
    let mut earlier = known.iter().filter(counts).filter(|it| it.step < new.step);
    counts(&new) && earlier.all(|it| rate(it) < rate(new))
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
            assert!(fault.is::<WrongSettings>());
            let expected = format!("was trained with another {name} than the model");
            assert!(fault.to_string().contains(&expected), "{fault}");
            model.files.clone_from(&began_with);
        }
    }
}
