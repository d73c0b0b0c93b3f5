//! Samples laid end to end into micro-batches under a token budget.
//!
//! Pure. The order of the samples, the budget and the number of ranks decide everything, never that of threads. A long sample makes a
//! smaller micro-batch; one longer than the budget (which GRPO's configuration rules out) has one to itself. What lies behind a
//! sample's last scored token is not fed, since nothing is predicted from it. What neighbours begin with alike, such as the
//! prompt of a group, is fed once and continued by each.

mod pack;

use std::ops::Range;

pub(crate) use pack::shares;
use pack::{LEAST_TOKENS, pack};
use policy::{PackedRows, ScoredTokens};

/// Shorter common beginnings are not worth a row of their own.
const LEAST_PREFIX: usize = 16;

/// As the number of threads must not matter, micro-batches are cut as for two where there may be one.
pub const LEAST_WORKERS: usize = 2;

/// How the common beginning of neighbouring samples is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefixes {
    /// Once for all of them.
    Shared,
    /// With each of them.
    Repeated,
}

/// A token sequence and the positions whose tokens are scored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Ascending positions in `tokens`, each at least 1: a token is predicted from those before it.
    pub scored: Vec<usize>,
}

impl Sample {
    /// Tokens that must be fed to score all scored ones.
    #[must_use]
    pub fn forward_tokens(&self) -> usize {
        self.scored.last().copied().unwrap_or(0)
    }
}

/// One forward pass.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Which samples it holds, ascending.
    pub samples: Vec<usize>,
    /// Their tokens, laid end to end.
    pub packed: PackedRows,
    /// Scored tokens of each sample.
    pub scored: Vec<usize>,
    /// For each scored token: the packed position that predicts it.
    pub predictors: Vec<u32>,
    /// For each scored token: its id.
    pub targets: Vec<u32>,
}

/// Neighbouring samples, of which those without scored tokens do not count, and how many tokens the others begin with
/// alike; 0 for a sample by itself. The first has scored tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bundle {
    samples: Range<usize>,
    prefix: usize,
}

impl MicroBatch {
    fn new(all: &[Sample], bundles: &[&Bundle]) -> Self {
        let mut micro = Self {
            samples: Vec::new(),
            packed: PackedRows::default(),
            scored: Vec::new(),
            predictors: Vec::new(),
            targets: Vec::new(),
        };
        for bundle in bundles {
            micro.push(all, bundle);
        }
        micro
    }

    fn push(&mut self, all: &[Sample], bundle: &Bundle) {
        let prefix = bundle.prefix;
        let (prefix_row, prefix_start) = (self.packed.rows.len(), self.packed.tokens.len());
        if prefix > 0 {
            self.packed
                .push(&all[bundle.samples.start].tokens[..prefix]);
        }
        for index in bundle.samples.clone() {
            let sample = &all[index];
            if sample.forward_tokens() == 0 {
                continue;
            }
            let start = self.packed.tokens.len();
            let own = &sample.tokens[prefix..sample.forward_tokens()];
            self.packed.push_after(own, prefix, prefix_row);
            let place = |&at: &usize| match at - 1 {
                shared if shared < prefix => prefix_start + shared,
                own => start + own - prefix,
            };
            self.samples.push(index);
            self.scored.push(sample.scored.len());
            self.predictors
                .extend(sample.scored.iter().map(|at| place(at) as u32));
            self.targets
                .extend(sample.scored.iter().map(|&at| sample.tokens[at]));
        }
    }

    /// What a pass over [`Self::packed`] scores.
    #[must_use]
    pub fn scored_tokens(&self, temperature: f32) -> ScoredTokens<'_> {
        ScoredTokens {
            predictors: &self.predictors,
            targets: &self.targets,
            temperature,
        }
    }

    /// The values of this micro-batch's samples, laid end to end.
    pub fn gather<T: Copy>(&self, per_sample: &[Vec<T>]) -> Vec<T> {
        self.samples
            .iter()
            .flat_map(|&index| per_sample[index].iter().copied())
            .collect()
    }
}

/// Packs all samples that have scored tokens, for two workers.
#[must_use]
pub fn micro_batches(
    samples: &[Sample],
    budget_tokens: usize,
    prefixes: Prefixes,
) -> Vec<MicroBatch> {
    micro_batches_for(LEAST_WORKERS, samples, budget_tokens, prefixes)
}

/// Packs all samples that have scored tokens, evenly for this many workers if there is enough for them.
#[must_use]
pub fn micro_batches_for(
    workers: usize,
    samples: &[Sample],
    budget_tokens: usize,
    prefixes: Prefixes,
) -> Vec<MicroBatch> {
    let mut bundles = bundles(samples, budget_tokens, prefixes);
    if let [only] = bundles.as_slice() {
        bundles = only.halves(samples);
    }
    let tokens: Vec<usize> = bundles
        .iter()
        .map(|bundle| bundle.tokens(samples))
        .collect();
    let bins = pack(&tokens, budget_tokens, workers);
    bins.into_iter()
        .map(|chosen| {
            let chosen: Vec<&Bundle> = chosen.into_iter().map(|i| &bundles[i]).collect();
            MicroBatch::new(samples, &chosen)
        })
        .collect()
}

/// Cuts the samples into runs of neighbours, each within the budget unless it is a single sample.
///
/// A sample joins its predecessors where that saves no fewer tokens than they save without it.
fn bundles(samples: &[Sample], budget: usize, prefixes: Prefixes) -> Vec<Bundle> {
    let mut bundles: Vec<Bundle> = Vec::new();
    for index in (0..samples.len()).filter(|&index| samples[index].forward_tokens() > 0) {
        let joined = match (bundles.last(), prefixes) {
            (Some(last), Prefixes::Shared) => last.joined_by(samples, index),
            _ => None,
        };
        match joined {
            Some(joined) if joined.tokens(samples) <= budget => {
                *bundles.last_mut().expect("it was joined: this is a bug") = joined;
            }
            _ => bundles.push(Bundle {
                samples: index..index + 1,
                prefix: 0,
            }),
        }
    }
    bundles
}

impl Bundle {
    /// Tokens fed.
    fn tokens(&self, all: &[Sample]) -> usize {
        let own = |sample: &Sample| sample.forward_tokens().saturating_sub(self.prefix);
        self.prefix + all[self.samples.clone()].iter().map(own).sum::<usize>()
    }

    /// This bundle with the next sample, if that is worth it.
    fn joined_by(&self, all: &[Sample], index: usize) -> Option<Self> {
        let (first, sample) = (&all[self.samples.start], &all[index]);
        let count = self.samples.len();
        let (most, before) = match self.prefix {
            0 => (first.forward_tokens().saturating_sub(1), 0),
            prefix => (prefix, (count - 1) * prefix),
        };
        let most = most.min(sample.forward_tokens().saturating_sub(1));
        let pairs = first.tokens[..most].iter().zip(&sample.tokens);
        let prefix = pairs.take_while(|(a, b)| a == b).count();
        (prefix >= LEAST_PREFIX && count * prefix >= before).then(|| Self {
            samples: self.samples.start..index + 1,
            prefix,
        })
    }

    /// Two bundles in its place, each with the prefix, where both keep a worker busy.
    fn halves(&self, all: &[Sample]) -> Vec<Self> {
        let scored = self
            .samples
            .clone()
            .filter(|&index| all[index].forward_tokens() > 0);
        let scored: Vec<usize> = scored.collect();
        let middle = scored[scored.len() / 2];
        let halves = [self.samples.start..middle, middle..self.samples.end].map(|samples| Self {
            samples,
            prefix: self.prefix,
        });
        let busy = |half: &Self| !half.samples.is_empty() && half.tokens(all) >= LEAST_TOKENS;
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
        let group = |prompt: usize| -> Vec<Sample> {
            let sample = |member: usize| sample(prompt, 20, member as u32);
            (0..8).map(sample).collect()
        };
        let fed = |samples: &[Sample]| -> Vec<usize> {
            let batches = micro_batches(samples, 2_048, Prefixes::Shared);
            batches
                .iter()
                .map(|micro| micro.packed.tokens.len())
                .collect()
        };
        assert_eq!(fed(&group(1_000)), [1_000 + 4 * 19; 2]);
        assert_eq!(fed(&group(100)), [100 + 8 * 19]);
    }

    #[test]
    fn a_sample_without_scored_tokens_does_not_part_its_group() {
        let mut samples: Vec<Sample> = (0..4).map(|seed| sample(30, 3, seed)).collect();
        samples[1].scored.clear();
        let micro = &micro_batches(&samples, 100, Prefixes::Shared)[0];
        assert_eq!(micro.samples, [0, 2, 3]);
        assert_eq!(micro.packed.tokens.len(), 30 + 3 * 2);
    }

    #[test]
    fn tokens_predict_their_successors() {
        let samples = [
            Sample {
                tokens: vec![10, 11, 12, 13, 14],
                scored: vec![2, 3],
            },
            Sample {
                tokens: vec![20, 21],
                scored: vec![],
            },
            Sample {
                tokens: vec![30, 31],
                scored: vec![1],
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

    /// Samples that begin with the first `shared` of one fixed row of tokens, `own` more behind them, the last scored.
    fn sample(shared: usize, own: usize, seed: u32) -> Sample {
        let beginning = (0..shared as u32).map(|token| 1_000 + token);
        let rest = (0..own as u32).map(|at| 1 + seed * 7 + at);
        let tokens: Vec<u32> = beginning.chain(rest).collect();
        Sample {
            scored: (tokens.len().saturating_sub(own).max(1)..tokens.len()).collect(),
            tokens,
        }
    }

    #[test]
    fn a_shared_beginning_is_fed_once() {
        let samples = [
            sample(20, 3, 1),
            sample(20, 2, 2),
            // Fed up to the end of the beginning: the others share one token less.
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
        /// Whatever is shared: the budget holds, every scored token is there once, in order, and what precedes it in its
        /// row (the other row's beginning included) is what precedes it in its sample.
        #[test]
        fn sharing_changes_no_sample(
            rows in proptest::collection::vec((0_usize..60, 0_usize..40), 1..30),
            budget in 100_usize..400,
        ) {
            let samples: Vec<Sample> = rows
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
            let all: Vec<usize> = (0..samples.len()).filter(|&i| samples[i].forward_tokens() > 0).collect();
            prop_assert_eq!(seen, all);
        }
    }
}
