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

/// The difference of two policies on the questions of one cluster.
pub(super) struct ClusterDifference {
    /// Number of questions.
    pub(super) questions: f64,
    /// Right answers of the policy less those of the first one.
    pub(super) gained: f64,
}

/// With fewer clusters the variance between them is not known well enough.
const FEWEST_CLUSTERS: usize = 10;

/// Returns the 95 % interval of the difference of two accuracies on the same questions. Questions
/// of one cluster may depend on each other, and clusters not.
///
/// Miller, "Adding error bars to evals", <https://arxiv.org/abs/2411.00640>, with the
/// usual factor C / (C − 1) for C clusters.
pub(super) fn difference_interval(clusters: &[ClusterDifference]) -> Option<(f64, f64)> {
    if clusters.len() < FEWEST_CLUSTERS {
        return None;
    }
    let count = clusters.len() as f64;
    let questions: f64 = clusters.iter().map(|it| it.questions).sum();
    let mean = clusters.iter().map(|it| it.gained).sum::<f64>() / questions;
    let deviation = |it: &ClusterDifference| (it.gained - mean * it.questions).powi(2);
    let variance = clusters.iter().map(deviation).sum::<f64>() * count / (count - 1.0);
    let half_width = students_t(count - 1.0) * variance.sqrt() / questions;
    Some((mean - half_width, mean + half_width))
}

/// Returns the 97.5 % quantile of Student's t. From nine degrees of freedom on it is right to three
/// decimal places.
///
/// Abramowitz and Stegun, "Handbook of mathematical functions", equation 26.7.5.
fn students_t(degrees: f64) -> f64 {
    let z: f64 = 1.959_964;
    z + (z.powi(3) + z) / (4.0 * degrees)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * degrees.powi(2))
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z)
            / (384.0 * degrees.powi(3))
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

    /// By statsmodels 0.15.0: `OLS(differences, ones).fit(cov_type="cluster", cov_kwds={"groups":
    /// clusters}, use_t=True).conf_int()`, of which each question's difference is −1, 0 or 1.
    #[test]
    fn an_interval_is_that_of_a_regression_with_clusters() {
        let questions = [3, 5, 2, 4, 6, 1, 3, 5, 4, 2, 7, 3];
        let gained = [1, 1, 1, 0, 2, -1, 1, 2, 0, 0, 2, 1];
        let cluster = |(questions, gained)| ClusterDifference {
            questions: f64::from(questions),
            gained: f64::from(gained),
        };
        let clusters: Vec<_> = questions.into_iter().zip(gained).map(cluster).collect();
        let (low, high) = difference_interval(&clusters).unwrap();
        assert!((low - 0.103_972_20).abs() < 1e-5, "{low}");
        assert!((high - 0.340_472_25).abs() < 1e-5, "{high}");
        assert_eq!(difference_interval(&clusters[3..]), None, "nine clusters");
    }

    /// By scipy 1.17.1: `scipy.stats.t.ppf(0.975, degrees)`.
    #[test]
    fn quantiles_are_those_of_students_t() {
        for (degrees, expected) in [
            (9.0, 2.262157162798205),
            (25.0, 2.0595385527532972),
            (1_000.0, 1.9623390808264083),
        ] {
            let t = students_t(degrees);
            assert!((t - expected).abs() < 5e-4, "{degrees}: {t}");
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
