//! Bin packing. Pure.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Fewer tokens do not keep a worker busy.
pub(super) const MIN_TOKENS: usize = 512;

/// Distributes items evenly over few bins. Items of length 0 are left out; one longer than the
/// budget has a bin to itself.
///
/// The longest item comes first. Each goes to the emptiest bin, and ties go to the lower index.
/// Bins and their items are returned in index order. The number of bins is a multiple of `workers`,
/// so that all workers finish at about the same time, unless the bins would then hold less than
/// [`MIN_TOKENS`] each.
pub(super) fn pack(lengths: &[usize], budget: usize, workers: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len())
        .filter(|&item| lengths[item] > 0)
        .collect();
    order.sort_by_key(|&item| Reverse(lengths[item]));
    let fits = order.partition_point(|&item| lengths[item] > budget);
    let (long, short) = order.split_at(fits);
    let total: usize = short.iter().map(|&item| lengths[item]).sum();
    let fewest = total.div_ceil(budget.max(1));
    let even = fewest.next_multiple_of(workers).min(short.len());
    let least = even.min(total / MIN_TOKENS).max(fewest);
    // Each item above half of the budget needs a bin of its own.
    let large = short.partition_point(|&item| 2 * lengths[item] > budget);
    let mut bins = (least.max(large)..=short.len())
        .find_map(|count| spread(short, lengths, budget, count))
        .unwrap_or_default();
    bins.extend(long.iter().map(|&item| vec![item]));
    bins.retain(|items| !items.is_empty());
    bins.iter_mut().for_each(|items| items.sort_unstable());
    bins.sort_unstable();
    bins
}

/// Distributes the items over exactly `count` bins of about the same length. Bins may be empty, but
/// not the first one if there are items of some length.
pub(crate) fn shares(lengths: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&item| Reverse(lengths[item]));
    let mut shares = spread(&order, lengths, usize::MAX, count).unwrap_or_default();
    shares.iter_mut().for_each(|items| items.sort_unstable());
    shares
}

/// Distributes the items over `count` bins; returns none if a bin would exceed the budget.
fn spread(
    items: &[usize],
    lengths: &[usize],
    budget: usize,
    count: usize,
) -> Option<Vec<Vec<usize>>> {
    let mut bins = vec![Vec::new(); count];
    let mut emptiest: BinaryHeap<_> = (0..count).map(|bin| Reverse((0, bin))).collect();
    for &item in items {
        let Reverse((filled, bin)) = emptiest.pop()?;
        let filled = filled + lengths[item];
        if filled > budget {
            return None;
        }
        bins[bin].push(item);
        emptiest.push(Reverse((filled, bin)));
    }
    Some(bins)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bins_hold_every_item_once_within_the_budget(
            (lengths, budget) in (50_usize..3_000).prop_flat_map(|budget| {
                (proptest::collection::vec(0..budget.min(400), 0..60), Just(budget))
            }),
        ) {
            let bins = pack(&lengths, budget, 2);
            let mut seen: Vec<usize> = bins.iter().flatten().copied().collect();
            seen.sort_unstable();
            let all: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
            prop_assert_eq!(seen, all);
            for bin in &bins {
                prop_assert!(bin.iter().map(|&i| lengths[i]).sum::<usize>() <= budget);
                prop_assert!(bin.is_sorted());
            }
            let total: usize = lengths.iter().sum();
            let most = 2 * total.div_ceil(budget) + 1;
            prop_assert!(bins.len() <= most, "bins are at least half full");
        }
    }

    proptest! {
        #[test]
        fn shares_hold_every_item_once_and_differ_by_no_more_than_the_longest(
            lengths in proptest::collection::vec(1_usize..500, 0..40),
            count in 1_usize..9,
        ) {
            let shares = shares(&lengths, count);
            prop_assert_eq!(shares.len(), count);
            let mut seen = shares.concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            let total = |share: &Vec<usize>| share.iter().map(|&i| lengths[i]).sum::<usize>();
            let totals: Vec<usize> = shares.iter().map(total).collect();
            let least = totals.iter().copied().min().unwrap_or(usize::MAX);
            let most = totals.iter().copied().max().unwrap_or(0);
            prop_assert!(most - least <= lengths.iter().copied().max().unwrap_or(0));
            prop_assert!(shares.iter().all(|share| share.is_sorted()));
        }
    }

    #[test]
    fn bins_are_filled_evenly() {
        let sizes = |lengths: &[usize], budget, workers| -> Vec<usize> {
            let bins = pack(lengths, budget, workers);
            bins.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[10; 8], 32, 2), [3, 3, 2]);
        assert_eq!(sizes(&[160; 32], 2048, 2), [8; 4]);
        assert_eq!(sizes(&[160; 7], 2048, 2), [4, 3]);
        assert_eq!(sizes(&[160; 32], 4096, 2), [16; 2]);
        assert_eq!(sizes(&[160; 32], 4096, 4), [8; 4]);
        assert_eq!(sizes(&[160; 32], 4096, 16).len(), 10, "512 tokens each");
    }

    #[test]
    fn a_sample_beyond_the_budget_stands_alone() {
        assert_eq!(pack(&[30, 5, 5], 10, 2), vec![vec![0], vec![1, 2]]);
        assert_eq!(pack(&[], 10, 2), Vec::<Vec<usize>>::new());
    }
}
