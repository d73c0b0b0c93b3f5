//! Imitation of the oracle from the model from which GRPO started, for as many tokens: what GRPO is
//! compared with.

use anyhow::Result;
use baselines::DemonstratorMix;
use learner::sft::SftConfig;
use policy::Model;
use report::{RunFolder, TrainingStage};

use super::{SFT_CHECKPOINTS, Stages};
use crate::{
    demonstrations::{QuestionRange, demonstrations},
    setup::open_model,
    supervised::{ImitationTrainer, TrainingTotals, remove_checkpoints},
};

const FOLDER: &str = "oracle-imitation";
/// The title of the training, which also seeds random numbers.
const TITLE: &str = "imitating the oracle, to compare";
/// No demonstration has fewer tokens. The shortest one of the project's own questions has over 70.
const LEAST_TOKENS: u64 = 64;

impl Stages<'_> {
    /// Returns the model: the one in the run folder, or a newly trained one. Returns `None` if the
    /// settings want none.
    pub(super) async fn oracle_imitation(&self, start: &Model) -> Result<Option<Model>> {
        let (folder, evaluator) = (&self.folder, &self.evaluator);
        let config = evaluator.config;
        if !config.imitation.enabled {
            return Ok(None);
        }
        let dir = folder.path().join(FOLDER);
        let checkpoints = folder.path().join(SFT_CHECKPOINTS);
        if dir.is_dir() {
            // They are still there after a kill right behind the save.
            remove_checkpoints(&checkpoints, &[TITLE]);
            return Ok(Some(open_model(&dir, config.placement())?));
        }
        let budget_tokens = match config.imitation.sft.budget_tokens {
            0 => grpo_tokens(folder)? * config.learner.num_iterations,
            budget => budget,
        };
        if budget_tokens == 0 {
            let why = "GRPO trained on no tokens, so no imitation is compared with it";
            evaluator.progress.print(why);
            return Ok(None);
        }
        let mix = DemonstratorMix::default();
        // The warm start may have had fewer questions than GRPO. The budget has no room for more
        // demonstrations than these.
        let range = QuestionRange {
            skipped: 0,
            most: budget_tokens.div_ceil(LEAST_TOKENS) as usize,
        };
        let episodes = demonstrations(evaluator, "oracle", start, mix, range).await?;
        let trainer = ImitationTrainer::of(evaluator, checkpoints.clone());
        let sft = SftConfig {
            budget_tokens,
            ..config.imitation.sft.clone()
        };
        let before = TrainingTotals::default();
        let (model, _) = trainer.imitate(TITLE, start, &episodes, &sft, before)?;
        model.save(&dir)?;
        remove_checkpoints(&checkpoints, &[TITLE]);
        Ok(Some(model))
    }
}

/// The metrics that count the tokens that GRPO trained on.
const TOKENS: [&str; 2] = ["groups/kept_tokens", "demonstrations/tokens"];

/// Returns the number of tokens that GRPO trained on, demonstrations included. Groups that it only
/// sampled do not count.
fn grpo_tokens(folder: &RunFolder) -> Result<u64> {
    let steps = folder.read()?.steps;
    let grpo = steps
        .iter()
        .filter(|step| step.stage == TrainingStage::Grpo);
    let tokens = grpo.flat_map(|step| TOKENS.map(|name| step.metrics.get(name)));
    Ok(tokens.flatten().sum::<f64>() as u64)
}
