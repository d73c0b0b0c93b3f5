//! Learning-rate schedules, equal to those of transformers 5.23 (golden values in
//! `tests/golden/schedules.json`), where `linear` always ends at 0.
//!
//! Pure. A schedule maps the number of updates before this one to a factor of the base rate, so the
//! first update of a warm-up has factor 0. Past their end `linear` stays at its last factor and
//! `cosine` rises again, as in transformers.

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{bounds::range, error::Result};

/// The learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Constant.
    #[default]
    #[serde(alias = "constant_with_warmup")]
    Constant,
    /// Falls linearly to `min_factor`, which it would have after the last update.
    Linear,
    /// Half a cosine down to `min_factor`.
    Cosine,
}

/// A schedule without its length, which follows from the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSettings {
    /// The learning rate after the warm-up. transformers: `lr_scheduler_type`, whose default is
    /// `linear`.
    pub kind: ScheduleKind,
    /// Updates over which the rate rises from 0. In GRPO each learner step counts as
    /// `num_iterations` updates, also one without groups to train on.
    pub warmup_steps: u64,
    /// Where `linear` and `cosine` end, as a share of the base rate; `constant` does not fall.
    /// transformers: `min_lr_rate`.
    pub min_factor: f64,
}

impl ScheduleSettings {
    /// Checks every number; the error names the field and what it may be.
    pub fn validate(&self) -> Result<()> {
        range("schedule.min_factor", self.min_factor, 0.0, 1.0)
    }

    /// Returns the factor of the base rate for the update after `done` of `total` planned updates.
    pub fn factor(&self, done: u64, total: u64) -> f64 {
        if done < self.warmup_steps {
            return done as f64 / self.warmup_steps as f64;
        }
        let span = total.saturating_sub(self.warmup_steps).max(1) as f64;
        let falling = match self.kind {
            ScheduleKind::Constant => return 1.0,
            ScheduleKind::Linear => total.saturating_sub(done) as f64 / span,
            ScheduleKind::Cosine => {
                let progress = (done - self.warmup_steps) as f64 / span;
                0.5 * (1.0 + (PI * progress).cos())
            }
        };
        falling * (1.0 - self.min_factor) + self.min_factor
    }
}
