//! Sums behind the loss metrics. They are merged over micro-batches in order, so that the metrics
//! cover the whole batch. Ranks send them as protobuf messages.

use std::{collections::BTreeMap, ops::Add as _};

/// Shares of clipped units (tokens, or rows at sequence level).
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClipStats {
    /// Units counted.
    #[prost(double, tag = "1")]
    pub units: f64,
    /// Units with a ratio below the range and a negative advantage.
    #[prost(double, tag = "2")]
    pub low: f64,
    /// Units with a ratio above the range and a positive advantage.
    #[prost(double, tag = "3")]
    pub high: f64,
    /// Smallest share of `low` over rows that have tokens.
    #[prost(double, optional, tag = "4")]
    pub low_min: Option<f64>,
    /// Largest share of `high` over rows that have tokens.
    #[prost(double, optional, tag = "5")]
    pub high_max: Option<f64>,
}

/// Units (tokens, or rows at sequence level) whose ratio CISPO caps.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CispoStats {
    /// Units capped.
    #[prost(double, tag = "1")]
    pub capped: f64,
    /// Units counted.
    #[prost(double, tag = "2")]
    pub units: f64,
}

/// Sums over the loss tokens of one or more micro-batches.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LossStats {
    /// Loss tokens.
    #[prost(double, tag = "1")]
    pub tokens: f64,
    /// Rows, empty ones included.
    #[prost(double, tag = "2")]
    pub rows: f64,
    /// Sum of the entropies, in nats.
    #[prost(double, tag = "3")]
    pub entropy: f64,
    /// Sum of the KL estimates; absent without a reference.
    #[prost(double, optional, tag = "4")]
    pub kl: Option<f64>,
    /// Clipping; absent for losses that do not clip.
    #[prost(message, optional, tag = "5")]
    pub clip: Option<ClipStats>,
    /// Capped importance weights of CISPO; absent for other losses.
    #[prost(message, optional, tag = "6")]
    pub cispo: Option<CispoStats>,
    /// Sum over rows of VESPO's mean weight; absent for other losses.
    #[prost(double, optional, tag = "7")]
    pub vespo_phi: Option<f64>,
    /// Loss without the entropy bonus; absent without one.
    #[prost(double, optional, tag = "8")]
    pub policy_loss: Option<f64>,
}

impl LossStats {
    /// Adds the sums of a later micro-batch.
    pub fn merge(&mut self, other: &Self) {
        let add = |a: &mut Option<f64>, b| *a = fold(*a, b, f64::add);
        self.tokens += other.tokens;
        self.rows += other.rows;
        self.entropy += other.entropy;
        add(&mut self.kl, other.kl);
        add(&mut self.vespo_phi, other.vespo_phi);
        add(&mut self.policy_loss, other.policy_loss);
        if let Some(cispo) = &other.cispo {
            let own = self.cispo.get_or_insert_default();
            own.capped += cispo.capped;
            own.units += cispo.units;
        }
        if let Some(clip) = &other.clip {
            self.clip.get_or_insert_default().merge(clip);
        }
    }

    /// Returns the metrics under TRL's names, without values that nothing was counted for: none if
    /// there was no token. TRL then reports 0, which reads like a collapsed policy.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let mut out = BTreeMap::new();
        if self.tokens == 0.0 {
            return out;
        }
        let mut put = |name: &str, value: Option<f64>| {
            value
                .filter(|v| !v.is_nan())
                .map(|value| out.insert(name.to_owned(), value));
        };
        let cispo = self.cispo.as_ref();
        let capped = cispo.map(|cispo| cispo.capped / cispo.units.max(1.0));
        put("entropy", Some(self.entropy / self.tokens));
        put("kl", self.kl.map(|kl| kl / self.tokens));
        put("cispo_clip_ratio", capped);
        put("vespo/phi_seq_mean", self.vespo_phi.map(|v| v / self.rows));
        put("policy_loss", self.policy_loss);
        if let Some(clip) = &self.clip {
            let units = clip.units.max(1.0);
            put("clip_ratio/low_mean", Some(clip.low / units));
            put("clip_ratio/high_mean", Some(clip.high / units));
            let clipped = clip.low + clip.high;
            put("clip_ratio/region_mean", Some(clipped / units));
            put("clip_ratio/low_min", clip.low_min);
            put("clip_ratio/high_max", clip.high_max);
        }
        out
    }
}

impl ClipStats {
    /// Adds a row of `units` of which `low` and `high` are clipped; `has_tokens` is false for an
    /// empty row.
    pub(super) fn add_row(&mut self, units: f64, low: f64, high: f64, has_tokens: bool) {
        let share = |part: f64| has_tokens.then_some(part / units);
        let row = Self {
            units,
            low,
            high,
            low_min: share(low),
            high_max: share(high),
        };
        self.merge(&row);
    }

    fn merge(&mut self, other: &Self) {
        self.units += other.units;
        self.low += other.low;
        self.high += other.high;
        self.low_min = fold(self.low_min, other.low_min, f64::min);
        self.high_max = fold(self.high_max, other.high_max, f64::max);
    }
}

/// The gap between the log-probabilities of learner and sampler, and the ratios after the
/// correction.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SamplingStats {
    #[prost(double, tag = "1")]
    tokens: f64,
    #[prost(double, tag = "2")]
    difference_sum: f64,
    #[prost(double, tag = "3")]
    difference_max: f64,
    #[prost(double, tag = "4")]
    ratios: f64,
    #[prost(double, tag = "5")]
    ratio_sum: f64,
    #[prost(double, optional, tag = "6")]
    ratio_min: Option<f64>,
    #[prost(double, optional, tag = "7")]
    ratio_max: Option<f64>,
    #[prost(double, tag = "8")]
    k3_sum: f64,
}

impl SamplingStats {
    /// Adds a token whose log-probability under the learner is greater than the sampler's by
    /// `value`.
    pub(super) fn add_difference(&mut self, value: f64) {
        self.tokens += 1.0;
        self.difference_sum += value.abs();
        self.difference_max = self.difference_max.max(value.abs());
        self.k3_sum += value.exp_m1() - value;
    }

    pub(super) fn add_ratio(&mut self, value: f64) {
        self.ratios += 1.0;
        self.ratio_sum += value;
        self.ratio_min = fold(self.ratio_min, Some(value), f64::min);
        self.ratio_max = fold(self.ratio_max, Some(value), f64::max);
    }

    /// Adds the sums of a later micro-batch.
    pub fn merge(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.difference_sum += other.difference_sum;
        self.difference_max = self.difference_max.max(other.difference_max);
        self.k3_sum += other.k3_sum;
        self.ratios += other.ratios;
        self.ratio_sum += other.ratio_sum;
        self.ratio_min = fold(self.ratio_min, other.ratio_min, f64::min);
        self.ratio_max = fold(self.ratio_max, other.ratio_max, f64::max);
    }

    /// Returns the metrics under TRL's names, and the KL divergence between learner and sampler by
    /// the estimator k3 (<http://joschu.net/blog/kl-approx.html>). There are none if no token was
    /// counted.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        if self.tokens == 0.0 {
            return BTreeMap::new();
        }
        let mean = |sum: f64, count: f64| sum / count.max(1.0);
        let differences = mean(self.difference_sum, self.tokens);
        let ratio = |name: &str| format!("sampling/importance_sampling_ratio/{name}");
        let difference = |name: &str| format!("sampling/sampling_logp_difference/{name}");
        BTreeMap::from([
            (difference("mean"), differences),
            (difference("max"), self.difference_max),
            ("sampling/kl_k3".to_owned(), mean(self.k3_sum, self.tokens)),
            (ratio("min"), self.ratio_min.unwrap_or(0.0)),
            (ratio("mean"), mean(self.ratio_sum, self.ratios)),
            (ratio("max"), self.ratio_max.unwrap_or(0.0)),
        ])
    }
}

fn fold(a: Option<f64>, b: Option<f64>, pick: fn(f64, f64) -> f64) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    }
}
