//! The model folders of a run: `model` has the last policy and `model-best` the best one.

use std::path::PathBuf;

use anyhow::Result;
use policy::Model;
use report::{CURVE_SPLIT, DecodingMode, Evaluation, RunFolder};

use crate::config::ModelConfig;

pub(crate) use crate::model_source::LAST;

/// The folder of the policy with the highest greedy accuracy on the questions of the learning
/// curve.
pub(crate) const BEST: &str = "model-best";

const CARD: &str = "README.md";
/// The licence of this project, under which the embedded policies are.
const EMBEDDED_LICENCE: &str = "apache-2.0";

/// Writes the policy of `step` with its model card into the folder `name` of a run.
pub(crate) fn save(
    folder: &RunFolder,
    name: &str,
    (model, base): (&Model, &ModelConfig),
    step: u64,
) -> Result<PathBuf> {
    let licence = base.dir.is_none().then_some(EMBEDDED_LICENCE);
    let card = report::model_card(&folder.read()?, step, licence);
    let mut model = model.clone();
    // The base model's own card describes another model.
    model.files.retain(|(file, _)| file != CARD);
    model.files.push((CARD.to_owned(), card.into_bytes()));
    let path = folder.path().join(name);
    model.save(&path)?;
    Ok(path)
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
