//! The model folders of a run: `model` has the last policy and `model-best` the best one. Those in
//! checkpoints have the policies in between.

use std::path::Path;

use anyhow::Result;
use learner::checkpoint::{self, CHECKPOINTS};
use policy::{Chat, Model};
use report::{CURVE_SPLIT, DecodingMode, Evaluation, PolicyLicences, RunFolder};

use crate::{
    config::{ModelConfig, RunConfig},
    setup::data_licence,
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

/// Writes the policy of `step` with its model card into the folder `name` of a run.
pub(crate) fn save(
    folder: &RunFolder,
    name: &str,
    model: &Model,
    licences: &PolicyLicences,
    step: u64,
) -> Result<()> {
    let card = report::model_card(&folder.read()?, step, licences);
    let mut model = model.clone();
    model.files.push((CARD.to_owned(), card.into_bytes()));
    model.replace(&folder.path().join(name))?;
    Ok(())
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
