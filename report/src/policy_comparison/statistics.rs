//! Statistics of two policies on the same questions, and of several samples for a question.
//!
//! Pure.

/// Returns the two-sided p-value of McNemar's exact test: how likely a difference as large as this
/// is between policies that are equally good. `gained` and `lost` count the questions that only the
/// one and only the other policy answered.
///
/// McNemar, "Note on the sampling error of the difference between correlated proportions or
/// percentages", Psychometrika 12 (1947); the exact form is the binomial test of the discordant
/// pairs.
pub(super) fn mcnemar(gained: u64, lost: u64) -> f64 {
    let trials = gained + lost;
    // Terms of the binomial distribution with probability 1/2, each from the one before, in log
    // space: 2^-trials underflows from 1,075 trials on.
    let mut log_term = -(trials as f64) * std::f64::consts::LN_2;
    let mut tail = log_term.exp();
    for successes in 1..=gained.min(lost) {
        log_term += ((trials - successes + 1) as f64).ln() - (successes as f64).ln();
        tail += log_term.exp();
    }
    (2.0 * tail).min(1.0)
}

/// Returns the chance that one of `k` samples is right, estimated without bias from `samples` of
/// which `correct` are right.
///
/// Chen et al., "Evaluating large language models trained on code", equation 1,
/// <https://arxiv.org/abs/2107.03374>.
pub(super) fn pass_at(k: u64, samples: u64, correct: u64) -> f64 {
    if samples - correct < k {
        return 1.0;
    }
    let missed = (samples - correct + 1..=samples).map(|n| 1.0 - k as f64 / n as f64);
    1.0 - missed.product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By scipy 1.17.1: `scipy.stats.binomtest(min(b, c), b + c).pvalue`.
    #[test]
    fn p_values_are_those_of_the_binomial_test() {
        for (gained, lost, expected) in [
            (0, 0, 1.0),
            (5, 5, 1.0),
            (0, 6, 0.03125),
            (2, 10, 0.03857421875),
            (30, 60, 0.0020602656809630745),
            (700, 900, 6.319484959450105e-7),
        ] {
            let p = mcnemar(gained, lost);
            assert!((p / expected - 1.0).abs() < 1e-6, "{gained} {lost}: {p:e}");
        }
    }

    /// Values of 1 - C(n - c, k) / C(n, k).
    #[test]
    fn pass_at_k_is_unbiased() {
        for (k, samples, correct, expected) in [
            (1, 4, 1, 0.25),
            (2, 4, 1, 0.5),
            (4, 4, 1, 1.0),
            (4, 4, 0, 0.0),
            (2, 4, 2, 1.0 - 1.0 / 6.0),
            (3, 10, 2, 1.0 - 56.0 / 120.0),
        ] {
            let estimate = pass_at(k, samples, correct);
            assert!(
                (estimate - expected).abs() < 1e-12,
                "{k} of {samples}, {correct}: {estimate}"
            );
        }
    }
}
