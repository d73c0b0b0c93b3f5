//! Groups that a step cannot train on: their recorded log-probabilities are not those of the
//! policy, or they have no finite gradient.
//!
//! Invariant: the result is a function of the groups and of the weights before the step, so a
//! resumed run refuses the same groups.

use std::collections::BTreeMap;

use super::{LossRows, RankShare, Trainer, micro_batch_loss};
use crate::{
    batch::{MicroBatch, micro_batches_for, min_workers},
    error::{LearnerError, Result},
    group::{RefusalReason, RefusedGroup},
    loss::LossDivisors,
    optimizer::global_norm,
    ranks::{LogprobDifference, MicroBatchStatistics},
};

/// Returns the groups of a micro-batch with a log-probability that differs from the learner's `own`
/// by more than `bound`, for each version that lies between them.
pub(super) fn differences(
    rows: &LossRows<'_>,
    micro: &MicroBatch,
    own: &[f64],
    bound: f64,
) -> Vec<LogprobDifference> {
    let mut worst: BTreeMap<usize, LogprobDifference> = BTreeMap::new();
    let mut own = own.iter();
    for &sample in &micro.samples {
        let versions = rows.versions[sample];
        let Some(group) = rows.group_of[sample] else {
            // Nobody recorded log-probabilities of a demonstration.
            own.by_ref().take(rows.sampler[sample].len()).for_each(drop);
            continue;
        };
        for (recorded, &own) in rows.sampler[sample].iter().zip(&mut own) {
            let difference = (own - recorded).abs();
            let most = worst.get(&group).map_or(0.0, |it| it.difference);
            if difference > most.max(bound * versions) {
                let group_place = group as u64;
                let found = LogprobDifference {
                    group: group_place,
                    difference,
                    own,
                };
                worst.insert(group, found);
            }
        }
    }
    worst.into_values().collect()
}

impl Trainer {
    /// Compares the recorded log-probabilities with those of the policy before the first update.
    ///
    /// # Errors
    /// [`LearnerError::Refused`] if the settings refuse groups with a difference. With several
    /// ranks such groups are only counted: the other ranks cannot take back their part of a step.
    pub(super) fn check_logprobs(
        &mut self,
        rows: &LossRows<'_>,
        statistics: &[MicroBatchStatistics],
    ) -> Result<()> {
        let differing = self.differing_groups(rows, statistics);
        if differing.is_empty() {
            return Ok(());
        }
        if self.config.trust.refuse_logprob_differences && self.ranks.count() == 1 {
            return Err(LearnerError::Refused(differing));
        }
        self.suspects = differing;
        Ok(())
    }

    /// Returns the groups with a log-probability that differs from the learner's by more than the
    /// settings allow.
    fn differing_groups(
        &self,
        rows: &LossRows<'_>,
        statistics: &[MicroBatchStatistics],
    ) -> Vec<RefusedGroup> {
        let bound = self.config.trust.max_logprob_difference;
        let all = statistics.iter().flat_map(|it| &it.differences);
        let mut worst = BTreeMap::new();
        for &found in all {
            let group = worst.entry(found.group).or_insert(found);
            if found.difference > group.difference {
                *group = found;
            }
        }
        // What another rank says is looked up, not trusted.
        let differing = worst
            .into_values()
            .filter_map(|it| Some((it.difference, it.own, rows.groups.get(it.group as usize)?)));
        differing
            .map(|(difference, own, group)| {
                let problem = format!(
                    "a recorded log-probability differs by {difference:.2} nats from the \
                     learner's {own:.2} for the same token, more than \
                     learner.trust.max_logprob_difference ({bound}) allows; run the same version \
                     of the program, the same dtype and the weights of the learner"
                );
                RefusedGroup::new(group, RefusalReason::Logprobs, problem)
            })
            .collect()
    }

    /// Returns the error of a step whose first sum of gradients is not finite. Rank 0 decides: the
    /// others wait for what it does next, so that ranks never disagree.
    pub(super) fn why_not_finite(&self, rows: &LossRows<'_>) -> Result<LearnerError> {
        if self.ranks.rank() > 0 {
            return Ok(LearnerError::Refused(Vec::new()));
        }
        let (refused, tried) = self.groups_without_gradient(rows)?;
        // A policy that is not finite leaves no group a finite gradient.
        let is_of_policy = tried > 1 && refused.len() == tried;
        if !is_of_policy && !refused.is_empty() {
            return Ok(LearnerError::Refused(refused));
        }
        // This comes before a rank is blamed, which may have had the demonstrations in its share.
        if !is_of_policy && self.has_finite_gradient(&rows.of(None))? == Some(false) {
            let update = self.network.optimizer.updates.saturating_add(1);
            return Ok(LearnerError::DemonstrationsDiverged { update });
        }
        let fault = self.ranks.without_finite_gradient();
        Ok(fault.unwrap_or_else(|| self.network.diverged()))
    }

    /// Returns the groups that have no finite gradient by themselves, and how many have tokens to
    /// score.
    fn groups_without_gradient(&self, rows: &LossRows<'_>) -> Result<(Vec<RefusedGroup>, usize)> {
        let mut refused = Vec::new();
        let mut tried = 0;
        for (number, group) in rows.groups.iter().enumerate() {
            let Some(is_finite) = self.has_finite_gradient(&rows.of(Some(number)))? else {
                continue;
            };
            tried += 1;
            if !is_finite {
                let problem = "its gradient is not finite";
                let refusal = RefusedGroup::new(group, RefusalReason::NotFinite, problem);
                refused.push(refusal);
            }
        }
        Ok((refused, tried))
    }

    /// Returns whether rows have a finite gradient; none if they have no tokens to score.
    fn has_finite_gradient(&self, rows: &LossRows<'_>) -> Result<Option<bool>> {
        let budget = self.config.micro_batch_tokens;
        let prefixes = self.prefixes();
        let workers = min_workers(self.network.device());
        let micro_batches = micro_batches_for(workers, &rows.samples, budget, prefixes);
        if micro_batches.is_empty() {
            return Ok(None);
        }
        let step_tokens: usize = micro_batches.iter().map(|micro| micro.targets.len()).sum();
        let share = RankShare {
            reference: self.reference_logprobs(&micro_batches)?,
            numbers: (0..micro_batches.len()).collect(),
            micro_batches,
            step_tokens: step_tokens as f64,
            old: None,
        };
        let divisors = LossDivisors {
            policy: self.divisor(rows, share.step_tokens),
            entropy_share: 1.0,
        };
        let config = &self.config;
        let (gradients, _) = self.network.gradients(
            &share.micro_batches,
            self.pass_settings(),
            |index, _, scores| micro_batch_loss(config, rows, &share, index, scores, divisors),
        )?;
        Ok(Some(global_norm(&gradients)?.is_finite()))
    }
}
