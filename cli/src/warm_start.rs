//! The supervised warm start: imitates the oracle, then its corrections of the policy's own
//! episodes, then careful and hasty demonstrators. The last two are optional.
//!
//! The policy from which GRPO continues has seen careful and hasty demonstrations, as pretrained
//! models and real logs have.

use std::path::{Path, PathBuf};

use anyhow::Result;
use baselines::DemonstratorMix;
use policy::{Model, Placement};
use proto::v1::Segment;
use report::RunFolder;

use crate::{
    config::WarmStartConfig,
    demonstrations::{QuestionRange, corrected_episodes, demonstrations},
    evaluation::Evaluator,
    setup::open_model,
    supervised::{ImitationTrainer, TrainingTotals},
};

const FOLDER: &str = "warm-start";
// The titles of its trainings. They also seed random numbers, so other words would give other
// weights.
const ORACLE: &str = "imitating the oracle";
const CORRECTIONS: &str = "imitating corrections";
const DEMONSTRATORS: &str = "imitating mixed habits";
pub(crate) const TITLES: [&str; 3] = [ORACLE, CORRECTIONS, DEMONSTRATORS];

/// Trains the warm start, and records its steps in `folder` if one is given. It continues from the
/// checkpoints of an interrupted one.
pub(crate) async fn warm_start(
    evaluator: &Evaluator<'_>,
    base: &Model,
    folder: Option<&RunFolder>,
    checkpoints: PathBuf,
) -> Result<Model> {
    let config = &evaluator.config.warm_start;
    let trainer = ImitationTrainer {
        folder,
        ..ImitationTrainer::of(evaluator, checkpoints)
    };
    let careful = DemonstratorMix {
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    let range = QuestionRange {
        skipped: config.skip_questions,
        most: config.demonstrations,
    };
    let oracle = demonstrations(evaluator, "oracle", base, careful, range).await?;
    let before = TrainingTotals::default();
    let (mut warm, mut totals) = trainer.imitate(ORACLE, base, &oracle, &config.oracle, before)?;
    let corrected = match config.corrected_questions {
        0 => Vec::new(),
        questions => {
            let skipped = config.skip_questions;
            corrected_episodes(evaluator, "warm start", &warm, skipped, questions).await?
        }
    };
    if !corrected.is_empty() {
        let as_many = oracle.into_iter().take(corrected.len());
        let episodes: Vec<Segment> = corrected.into_iter().chain(as_many).collect();
        let settings = &config.corrections;
        (warm, totals) = trainer.imitate(CORRECTIONS, &warm, &episodes, settings, totals)?;
    }
    if config.demonstrators.budget_tokens == 0 {
        return Ok(warm);
    }
    let mixed = DemonstratorMix {
        hasty_share: config.hasty_share,
        wrong_query_share: config.wrong_query_share,
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    // This label also seeds random numbers.
    let mixed = demonstrations(evaluator, "mixed habits", base, mixed, range).await?;
    let settings = &config.demonstrators;
    let (warm, _) = trainer.imitate(DEMONSTRATORS, &warm, &mixed, settings, totals)?;
    Ok(warm)
}

/// Describes how the warm start is trained, as the end of a sentence. Returns `None` if there is
/// none.
pub(crate) fn description(config: &WarmStartConfig) -> Option<String> {
    if !config.enabled {
        return None;
    }
    let oracle = match config.corrected_questions {
        0 => "imitation of the oracle",
        _ => "imitation of the oracle and of its corrections",
    };
    Some(match config.demonstrators.budget_tokens {
        0 => oracle.to_owned(),
        _ => format!(
            "{oracle}, then of careful and hasty demonstrators: {:.0}\u{a0}% of them answer without \
             a query, on purpose, so that the policy has an error that GRPO can correct",
            100.0 * config.hasty_share
        ),
    })
}

/// Opens the warm start that an earlier part of the run wrote to `run_dir`, if there is one.
pub(crate) fn open_warm_start(run_dir: &Path, placement: Placement) -> Result<Option<Model>> {
    let dir = run_dir.join(FOLDER);
    dir.is_dir()
        .then(|| open_model(&dir, placement))
        .transpose()
}

/// Writes the warm start into `run_dir`.
pub(crate) fn save_warm_start(warm: &Model, run_dir: &Path) -> Result<()> {
    Ok(warm.save(&run_dir.join(FOLDER))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_hasty_demonstrators_as_a_purpose() {
        let mut config = WarmStartConfig {
            enabled: true,
            hasty_share: 0.5,
            ..WarmStartConfig::default()
        };
        config.demonstrators.budget_tokens = 5_000;
        let text = description(&config).unwrap();
        assert!(
            text.contains("50\u{a0}% of them answer without a query, on purpose"),
            "{text}"
        );
        config.demonstrators.budget_tokens = 0;
        assert_eq!(description(&config).unwrap(), "imitation of the oracle");
        config.corrected_questions = 8;
        let text = description(&config).unwrap();
        assert_eq!(text, "imitation of the oracle and of its corrections");
        config.enabled = false;
        assert_eq!(description(&config), None);
    }
}
