//! The supervised warm start: imitates the oracle, then careful and hasty demonstrators.
//!
//! The policy from which GRPO continues has seen careful and hasty demonstrations, as pretrained
//! models and real logs have.

use std::path::{Path, PathBuf};

use anyhow::Result;
use baselines::DemonstratorMix;
use policy::{Model, Placement};
use report::RunFolder;

use crate::{
    config::WarmStartConfig,
    demonstrations::demonstrations,
    evaluation::Evaluator,
    imitation::{ImitationTrainer, TrainingTotals},
    setup::open_model,
};

const FOLDER: &str = "warm-start";
/// The titles of its trainings. They also seed random numbers, so other words would give other
/// weights.
pub(crate) const TITLES: [&str; 2] = ["imitating the oracle", "imitating mixed habits"];

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
        ..ImitationTrainer::of(evaluator, Some(checkpoints))
    };
    let careful = DemonstratorMix {
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    let oracle = demonstrations(evaluator, "oracle", base, careful).await?;
    let (first, totals) = trainer.imitate(
        TITLES[0],
        base,
        &oracle,
        &config.oracle,
        Some(TrainingTotals::default()),
    )?;
    if config.demonstrators.budget_tokens == 0 {
        return Ok(first);
    }
    let mixed = DemonstratorMix {
        hasty_share: config.hasty_share,
        wrong_query_share: config.wrong_query_share,
        error_share: config.recovery_share,
        ..DemonstratorMix::default()
    };
    // This label also seeds random numbers.
    let mixed = demonstrations(evaluator, "mixed habits", base, mixed).await?;
    let (warm, _) = trainer.imitate(
        TITLES[1],
        &first,
        &mixed,
        &config.demonstrators,
        Some(totals),
    )?;
    Ok(warm)
}

/// Says how the warm start is trained, as the end of a sentence. Returns `None` if there is none.
pub(crate) fn description(config: &WarmStartConfig) -> Option<String> {
    if !config.enabled {
        return None;
    }
    let oracle = "imitation of the oracle";
    Some(match config.demonstrators.budget_tokens {
        0 => oracle.to_owned(),
        _ => format!(
            "{oracle}, then of demonstrators of mixed habits: {:.0}\u{a0}% of them answer without a \
             query, on purpose, so that it knows a habit that GRPO can unlearn",
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
    fn the_description_says_that_mixed_habits_are_meant() {
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
        config.enabled = false;
        assert_eq!(description(&config), None);
    }
}
