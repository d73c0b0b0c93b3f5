//! What the tokens of constrained completions were chosen from.
//!
//! Invariant: the sets are computed from a row's tokens alone, as the sampler computed them, so the
//! log-probabilities are over the same tokens.

use std::{collections::HashSet, sync::atomic::Ordering};

use policy::{Constrainer, PolicyError, ops::TokenSet};

use super::{LossRows, Trainer};
use crate::{
    batch::Sample,
    error::{LearnerError, Result},
    group::{RefusalReason, RefusedGroup},
};

impl Trainer {
    /// Adds to each row what its scored tokens were chosen from, if completions are constrained.
    /// Leaves out demonstrations that the constraint excludes, and keeps their places. They are the
    /// last rows, each in one.
    ///
    /// # Errors
    /// [`LearnerError::Refused`] names the groups with tokens that the constraint excludes.
    /// [`LearnerError::Stopped`] if the run is to end.
    pub(super) fn constrain(&mut self, rows: &mut LossRows<'_>) -> Result<()> {
        let Some(constrainer) = &self.constrainer else {
            return Ok(());
        };
        let mut refused: Vec<RefusedGroup> = Vec::new();
        let (mut known, stopping) = (HashSet::new(), self.network.stopping());
        let sampled = rows.group_of.iter().flatten().count();
        let all = rows.samples.iter_mut().zip(&rows.group_of);
        for (row, (sample, &number)) in all.enumerate() {
            if stopping.load(Ordering::Relaxed) {
                return Err(LearnerError::Stopped);
            }
            let error = match sets(constrainer, sample) {
                Ok(allowed) => {
                    sample.allowed = shared(allowed, &mut known);
                    continue;
                }
                Err(error) => error,
            };
            let Some(number) = number else {
                // A demonstration that the policy cannot sample teaches it nothing.
                sample.scored.clear();
                rows.completions -= 1;
                self.excluded_demonstrations.push(row - sampled);
                continue;
            };
            let group = &rows.groups[number];
            if refused.iter().all(|known| known.index != group.head.number) {
                let problem = format!("{error}; run the same version of the program");
                let refusal = RefusedGroup::new(group, RefusalReason::Constraint, problem);
                refused.push(refusal);
            }
        }
        match refused.is_empty() {
            true => Ok(()),
            false => Err(LearnerError::Refused(refused)),
        }
    }
}

/// Replaces sets by equal ones that are known: one has as many bits as the vocabulary has tokens.
fn shared(mut sets: Vec<TokenSet>, known: &mut HashSet<TokenSet>) -> Vec<TokenSet> {
    for set in &mut sets {
        match known.get(set) {
            Some(same) => *set = same.clone(),
            None => drop(known.insert(set.clone())),
        }
    }
    sets
}

/// Returns the sets of a row's scored tokens. Those of one completion follow each other, and what
/// comes before them is its context.
fn sets(constrainer: &Constrainer, sample: &Sample<'_>) -> Result<Vec<TokenSet>, PolicyError> {
    let mut sets = Vec::with_capacity(sample.scored.len());
    for completion in sample.scored.chunk_by(|before, after| before + 1 == *after) {
        let (start, end) = (completion[0], completion[0] + completion.len());
        let (context, tokens) = (&sample.tokens[..start], &sample.tokens[start..end]);
        sets.extend(constrainer.sets(context, tokens)?);
    }
    Ok(sets)
}
