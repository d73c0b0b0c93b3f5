//! Packs samples into micro-batches under a token budget.
//!
//! Pure. The samples in their order, the budget, the number of ranks and whether a CPU computes
//! decide everything; the number of threads does not. A sample longer than the budget has a
//! micro-batch to itself; GRPO's settings rule that out. Tokens after a sample's last scored one
//! are left out, because nothing is predicted from them. Neighbours that begin with the same
//! tokens, such as the members of a group, share one forward pass over them.

mod pack;

use std::{borrow::Cow, ops::Range};

use candle_core::Device;
pub(crate) use pack::shares;
use pack::{MIN_TOKENS, pack};
use policy::{
    PackedRows, ScoredTokens,
    ops::{Targets, TokenSet},
};

/// Shorter common prefixes are not worth a row of their own.
const MIN_PREFIX_TOKENS: usize = 16;

/// On the CPU micro-batches are cut for two workers even if one thread computes them, so that the
/// number of threads does not change the result.
const MIN_WORKERS: usize = 2;

/// Returns for how many workers micro-batches are cut at least. A GPU computes one after the other,
/// and two would only compute a shared prompt twice.
pub(crate) fn min_workers(device: &Device) -> usize {
    match device.is_cpu() {
        true => MIN_WORKERS,
        false => 1,
    }
}

/// How often the common prefix of neighbouring samples is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefixes {
    /// Once for all of them.
    Shared,
    /// For each of them.
    Repeated,
}

/// A token sequence and the positions whose tokens are scored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Token ids, which a trajectory or an episode lends.
    pub tokens: Cow<'a, [u32]>,
    /// Ascending positions in `tokens`, each at least 1: a token is predicted from those before it.
    pub scored: Vec<usize>,
    /// What each scored token was chosen from, if completions are constrained.
    pub allowed: Vec<TokenSet>,
}

impl Sample<'_> {
    /// Returns the number of tokens in the forward pass that scores all scored ones.
    pub fn forward_tokens(&self) -> usize {
        self.scored.last().copied().unwrap_or(0)
    }
}

/// One forward pass.
#[derive(Clone, Debug, Default)]
pub struct MicroBatch {
    /// Indices of its samples, ascending.
    pub samples: Vec<usize>,
    /// Their tokens, end to end.
    pub packed: PackedRows,
    /// Number of scored tokens of each sample.
    pub scored: Vec<usize>,
    /// For each scored token the packed position that predicts it.
    pub predictors: Vec<u32>,
    /// For each scored token its id.
    pub targets: Vec<u32>,
    /// For each scored token what it was chosen from, if completions are constrained.
    pub allowed: Vec<TokenSet>,
}

/// Neighbouring samples and the length of the prefix that they share; 0 for a single sample.
///
/// Samples without scored tokens in the range do not count; the first one has some.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedPrefix {
    samples: Range<usize>,
    prefix: usize,
}

impl MicroBatch {
    fn new(all: &[Sample<'_>], runs: &[&SharedPrefix]) -> Self {
        let mut micro = Self::default();
        runs.iter().for_each(|run| micro.push(all, run));
        micro
    }

    fn push(&mut self, all: &[Sample<'_>], run: &SharedPrefix) {
        let prefix = run.prefix;
        let (prefix_row, prefix_start) = (self.packed.rows.len(), self.packed.tokens.len());
        if prefix > 0 {
            self.packed.push(&all[run.samples.start].tokens[..prefix]);
        }
        for index in run.samples.clone() {
            let sample = &all[index];
            if sample.forward_tokens() == 0 {
                continue;
            }
            let start = self.packed.tokens.len();
            let own = &sample.tokens[prefix..sample.forward_tokens()];
            self.packed.push_after(own, prefix, prefix_row);
            let predictor = |&at: &usize| match at - 1 {
                shared if shared < prefix => prefix_start + shared,
                own => start + own - prefix,
            };
            self.samples.push(index);
            self.scored.push(sample.scored.len());
            self.predictors
                .extend(sample.scored.iter().map(|at| predictor(at) as u32));
            self.targets
                .extend(sample.scored.iter().map(|&at| sample.tokens[at]));
            self.allowed.extend_from_slice(&sample.allowed);
        }
    }

    /// Returns the positions that a pass over [`Self::packed`] scores.
    pub fn scored_tokens(&self, temperature: f32) -> ScoredTokens<'_> {
        ScoredTokens {
            predictors: &self.predictors,
            targets: self.targets(),
            temperature,
        }
    }

    /// Returns the scored tokens, and what they were chosen from.
    pub fn targets(&self) -> Targets<'_> {
        Targets {
            ids: &self.targets,
            allowed: (!self.allowed.is_empty()).then_some(self.allowed.as_slice()),
        }
    }

    /// Returns the values of this micro-batch's samples, end to end.
    pub fn gather<T: Copy>(&self, per_sample: &[Vec<T>]) -> Vec<T> {
        self.samples
            .iter()
            .flat_map(|&index| per_sample[index].iter().copied())
            .collect()
    }
}

/// Packs all samples that have scored tokens, for two workers.
pub fn micro_batches(
    samples: &[Sample<'_>],
    budget_tokens: usize,
    prefixes: Prefixes,
) -> Vec<MicroBatch> {
    micro_batches_for(MIN_WORKERS, samples, budget_tokens, prefixes)
}

/// Packs all samples that have scored tokens, evenly for `workers` if there are enough tokens for
/// them.
pub(crate) fn micro_batches_for(
    workers: usize,
    samples: &[Sample<'_>],
    budget_tokens: usize,
    prefixes: Prefixes,
) -> Vec<MicroBatch> {
    let mut runs = shared_prefixes(samples, budget_tokens, prefixes);
    if let ([only], true) = (runs.as_slice(), workers > 1) {
        runs = only.split(samples);
    }
    let tokens: Vec<usize> = runs.iter().map(|run| run.tokens(samples)).collect();
    let bins = pack(&tokens, budget_tokens, workers);
    bins.into_iter()
        .map(|chosen| {
            let chosen: Vec<&SharedPrefix> = chosen.into_iter().map(|i| &runs[i]).collect();
            MicroBatch::new(samples, &chosen)
        })
        .collect()
}

/// Cuts the samples into runs with a shared prefix, each within the budget unless it is a single
/// sample.
///
/// A sample joins the run before it if the run then saves no fewer tokens than without it.
fn shared_prefixes(samples: &[Sample<'_>], budget: usize, prefixes: Prefixes) -> Vec<SharedPrefix> {
    let mut runs: Vec<SharedPrefix> = Vec::new();
    for index in (0..samples.len()).filter(|&index| samples[index].forward_tokens() > 0) {
        let joined = match (runs.last(), prefixes) {
            (Some(last), Prefixes::Shared) => last.with_next(samples, index),
            _ => None,
        };
        match joined {
            Some(joined) if joined.tokens(samples) <= budget => {
                *runs
                    .last_mut()
                    .expect("a joined run is the last: this is a bug") = joined;
            }
            _ => runs.push(SharedPrefix {
                samples: index..index + 1,
                prefix: 0,
            }),
        }
    }
    runs
}

impl SharedPrefix {
    /// Returns the tokens of its forward pass.
    fn tokens(&self, all: &[Sample<'_>]) -> usize {
        let own = |sample: &Sample<'_>| sample.forward_tokens().saturating_sub(self.prefix);
        self.prefix + all[self.samples.clone()].iter().map(own).sum::<usize>()
    }

    /// Returns this run with the next sample, if that saves tokens.
    fn with_next(&self, all: &[Sample<'_>], index: usize) -> Option<Self> {
        let (first, sample) = (&all[self.samples.start], &all[index]);
        let count = self.samples.len();
        let (most, before) = match self.prefix {
            0 => (first.forward_tokens().saturating_sub(1), 0),
            prefix => (prefix, (count - 1) * prefix),
        };
        let most = most.min(sample.forward_tokens().saturating_sub(1));
        let pairs = first.tokens[..most].iter().zip(sample.tokens.iter());
        let prefix = pairs.take_while(|(a, b)| a == b).count();
        (prefix >= MIN_PREFIX_TOKENS && count * prefix >= before).then(|| Self {
            samples: self.samples.start..index + 1,
            prefix,
        })
    }

    /// Returns two runs in its place, each with the prefix, if both keep a worker busy.
    fn split(&self, all: &[Sample<'_>]) -> Vec<Self> {
        let indices = self.samples.clone();
        let scored: Vec<usize> = indices
            .filter(|&index| all[index].forward_tokens() > 0)
            .collect();
        let middle = scored[scored.len() / 2];
        let halves = [self.samples.start..middle, middle..self.samples.end].map(|samples| Self {
            samples,
            prefix: self.prefix,
        });
        let busy = |half: &Self| !half.samples.is_empty() && half.tokens(all) >= MIN_TOKENS;
        match halves.iter().all(busy) {
            true => halves.into(),
            false => vec![self.clone()],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_single_group_is_cut_in_two_where_both_halves_keep_a_worker_busy() {
        let group = |prompt: usize| -> Vec<Sample<'static>> {
            let sample = |member: usize| sample(prompt, 20, member as u32);
            (0..8).map(sample).collect()
        };
        let forward_tokens = |samples: &[Sample<'_>]| -> Vec<usize> {
            let batches = micro_batches(samples, 2_048, Prefixes::Shared);
            batches
                .iter()
                .map(|micro| micro.packed.tokens.len())
                .collect()
        };
        assert_eq!(forward_tokens(&group(1_000)), [1_000 + 4 * 19; 2]);
        assert_eq!(forward_tokens(&group(100)), [100 + 8 * 19]);
        let (samples, workers) = (group(1_000), 1);
        let whole = micro_batches_for(workers, &samples, 2_048, Prefixes::Shared);
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].packed.tokens.len(), 1_000 + 8 * 19);
    }

    #[test]
    fn a_sample_without_scored_tokens_does_not_part_its_group() {
        let mut samples: Vec<Sample<'static>> = (0..4).map(|seed| sample(30, 3, seed)).collect();
        samples[1].scored.clear();
        let micro = &micro_batches(&samples, 100, Prefixes::Shared)[0];
        assert_eq!(micro.samples, [0, 2, 3]);
        assert_eq!(micro.packed.tokens.len(), 30 + 3 * 2);
    }

    #[test]
    fn tokens_predict_their_successors() {
        let samples = [
            Sample {
                tokens: vec![10, 11, 12, 13, 14].into(),
                scored: vec![2, 3],
                ..Sample::default()
            },
            Sample {
                tokens: vec![20, 21].into(),
                scored: vec![],
                ..Sample::default()
            },
            Sample {
                tokens: vec![30, 31].into(),
                scored: vec![1],
                ..Sample::default()
            },
        ];
        let micro = &micro_batches(&samples, 100, Prefixes::Shared)[0];
        assert_eq!(micro.samples, [0, 2]);
        assert_eq!(micro.packed.tokens, [10, 11, 12, 30]);
        assert_eq!(micro.predictors, [1, 2, 3]);
        assert_eq!(micro.targets, [12, 13, 31]);
        assert_eq!(micro.scored, [2, 1]);
        assert_eq!(micro.gather(&[vec![1, 2], vec![], vec![3]]), [1, 2, 3]);
    }

    /// Samples that begin with the first `shared` of one fixed row of tokens, `own` more behind
    /// them, the last scored.
    fn sample(shared: usize, own: usize, seed: u32) -> Sample<'static> {
        let beginning = (0..shared as u32).map(|token| 1_000 + token);
        let rest = (0..own as u32).map(|at| 1 + seed * 7 + at);
        let tokens: Vec<u32> = beginning.chain(rest).collect();
        Sample {
            scored: (tokens.len().saturating_sub(own).max(1)..tokens.len()).collect(),
            tokens: tokens.into(),
            ..Sample::default()
        }
    }

    #[test]
    fn a_shared_prefix_is_computed_once() {
        let samples = [
            sample(20, 3, 1),
            sample(20, 2, 2),
            // The first sample holds the whole shared prefix; the others share one token less.
            sample(20, 1, 3),
            sample(5, 4, 4),
        ];
        let batches = micro_batches(&samples, 100, Prefixes::Shared);
        let [micro] = batches.as_slice() else {
            panic!("{batches:?}")
        };
        let lens: Vec<_> = micro
            .packed
            .rows
            .iter()
            .map(|r| (r.len, r.past, r.slot))
            .collect();
        assert_eq!(
            lens,
            [(19, 0, 0), (3, 19, 0), (2, 19, 0), (1, 19, 0), (8, 0, 4)]
        );
        assert_eq!(micro.samples, [0, 1, 2, 3]);
        assert_eq!(micro.predictors, [19, 20, 21, 22, 23, 24, 29, 30, 31, 32]);
        let repeated = micro_batches(&samples, 100, Prefixes::Repeated);
        assert_eq!(repeated[0].packed.rows.len(), 4);
        assert_eq!(repeated[0].targets, micro.targets);
    }

    proptest! {
        /// Whatever is shared: the budget holds, every scored token is there once, in order, and
        /// what precedes it in its row (the other row's beginning included) is what precedes it in
        /// its sample.
        #[test]
        fn sharing_changes_no_sample(
            rows in proptest::collection::vec((0_usize..60, 0_usize..40), 1..30),
            budget in 100_usize..400,
        ) {
            let samples: Vec<Sample<'static>> = rows
                .iter()
                .enumerate()
                .map(|(i, &(shared, own))| sample(shared, own, i as u32))
                .collect();
            let mut seen = Vec::new();
            for micro in micro_batches(&samples, budget, Prefixes::Shared) {
                prop_assert!(micro.packed.tokens.len() <= budget);
                let starts: Vec<usize> = micro.packed.rows.iter().scan(0, |next, row| {
                    *next += row.len;
                    Some(*next - row.len)
                }).collect();
                let mut scored = micro.predictors.iter().zip(&micro.targets);
                for (&index, &count) in micro.samples.iter().zip(&micro.scored) {
                    seen.push(index);
                    for &at in &samples[index].scored[..count] {
                        let (&predictor, &target) = scored.next().unwrap();
                        prop_assert_eq!(target, samples[index].tokens[at]);
                        let row = starts.partition_point(|&start| start <= predictor as usize) - 1;
                        let (start, row) = (starts[row], micro.packed.rows[row]);
                        let own = &micro.packed.tokens[start..=predictor as usize];
                        let past = if row.past > 0 { starts[row.slot] } else { 0 };
                        let past = &micro.packed.tokens[past..past + row.past];
                        prop_assert_eq!([past, own].concat(), &samples[index].tokens[..at]);
                    }
                }
                prop_assert!(scored.next().is_none());
            }
            seen.sort_unstable();
            let is_scored = |&i: &usize| samples[i].forward_tokens() > 0;
            let all: Vec<usize> = (0..samples.len()).filter(is_scored).collect();
            prop_assert_eq!(seen, all);
        }
    }
}
