//! Samples laid end to end into micro-batches under a token budget.
//!
//! Pure. The order of the samples and the budget decide everything, never the number of threads. A long sample makes a
//! smaller micro-batch; one longer than the budget (which configuration rules out) has one to itself. What lies behind a
//! sample's last scored token is not fed, since nothing is predicted from it.

use policy::{PackedRows, Row, Scored};

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
    pub fn fed_tokens(&self) -> usize {
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

impl MicroBatch {
    /// Packs the chosen samples.
    #[must_use]
    pub fn new(all: &[Sample], chosen: Vec<usize>) -> Self {
        let mut micro = Self {
            samples: chosen,
            packed: PackedRows {
                tokens: Vec::new(),
                rows: Vec::new(),
            },
            scored: Vec::new(),
            predictors: Vec::new(),
            targets: Vec::new(),
        };
        for &index in &micro.samples {
            let sample = &all[index];
            let start = micro.packed.tokens.len();
            let fed = &sample.tokens[..sample.fed_tokens()];
            micro.packed.tokens.extend_from_slice(fed);
            micro.packed.rows.push(Row {
                len: fed.len(),
                past: 0,
                slot: 0,
            });
            micro.scored.push(sample.scored.len());
            micro
                .predictors
                .extend(sample.scored.iter().map(|&at| (start + at - 1) as u32));
            micro
                .targets
                .extend(sample.scored.iter().map(|&at| sample.tokens[at]));
        }
        micro
    }

    /// What a pass over [`Self::packed`] scores.
    #[must_use]
    pub fn scored_tokens(&self, temperature: f32) -> Scored<'_> {
        Scored {
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

/// Packs all samples that have scored tokens.
#[must_use]
pub fn micro_batches(samples: &[Sample], budget_tokens: usize) -> Vec<MicroBatch> {
    let lengths: Vec<usize> = samples.iter().map(Sample::fed_tokens).collect();
    let bins = pack(&lengths, budget_tokens);
    bins.into_iter()
        .map(|chosen| MicroBatch::new(samples, chosen))
        .collect()
}

/// Spreads items over few bins within the budget, evenly filled; items of length 0 are left out, and one longer than the
/// budget has a bin to itself.
///
/// Longest first, each to the emptiest bin with room, ties to the lower index. Bins and their items come in index order.
#[must_use]
pub fn pack(lengths: &[usize], budget: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len())
        .filter(|&item| lengths[item] > 0)
        .collect();
    order.sort_by_key(|&item| std::cmp::Reverse(lengths[item]));
    let total: usize = lengths.iter().filter(|&&length| length <= budget).sum();
    let mut bins: Vec<(usize, Vec<usize>)> = vec![(0, Vec::new()); total.div_ceil(budget.max(1))];
    for item in order {
        let emptiest = bins.iter_mut().min_by_key(|(filled, _)| *filled);
        match emptiest {
            Some((filled, items)) if *filled + lengths[item] <= budget => {
                *filled += lengths[item];
                items.push(item);
            }
            _ => bins.push((lengths[item], vec![item])),
        }
    }
    let mut bins: Vec<Vec<usize>> = bins
        .into_iter()
        .map(|(_, items)| items)
        .filter(|items| !items.is_empty())
        .collect();
    bins.iter_mut().for_each(|items| items.sort_unstable());
    bins.sort_unstable();
    bins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bins_hold_every_item_once_within_the_budget(
            lengths in proptest::collection::vec(0_usize..50, 0..60),
            budget in 50_usize..300,
        ) {
            let bins = pack(&lengths, budget);
            let mut seen: Vec<usize> = bins.iter().flatten().copied().collect();
            seen.sort_unstable();
            let all: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
            prop_assert_eq!(seen, all);
            for bin in &bins {
                prop_assert!(bin.iter().map(|&i| lengths[i]).sum::<usize>() <= budget);
                prop_assert!(bin.is_sorted());
            }
            let total: usize = lengths.iter().sum();
            prop_assert!(bins.len() <= 2 * total.div_ceil(budget), "bins are at least half full");
        }
    }

    #[test]
    fn a_sample_beyond_the_budget_stands_alone() {
        assert_eq!(pack(&[30, 5, 5], 10), vec![vec![0], vec![1, 2]]);
        assert_eq!(pack(&[], 10), Vec::<Vec<usize>>::new());
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
        let micro = &micro_batches(&samples, 100)[0];
        assert_eq!(micro.samples, [0, 2]);
        assert_eq!(micro.packed.tokens, [10, 11, 12, 30]);
        assert_eq!(micro.predictors, [1, 2, 3]);
        assert_eq!(micro.targets, [12, 13, 31]);
        assert_eq!(micro.scored, [2, 1]);
        assert_eq!(micro.gather(&[vec![1, 2], vec![], vec![3]]), [1, 2, 3]);
    }
}
