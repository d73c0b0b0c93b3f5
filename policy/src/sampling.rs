//! Sampling a token from a row of logits: temperature, top-k, top-p, min-p, inverse transform
//! sampling.
//!
//! Pure. Invariant: the result is a function of the logits, the settings and the coordinates. The
//! recorded log-probability is that of the temperature-scaled distribution before the filters, by
//! [`log_softmax_at`], so it equals the learner's bit for bit. Filters follow transformers:
//! temperature, top-k, top-p, min-p, each applied to the output of the one before.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use smart_default::SmartDefault;

use crate::error::{PolicyError, Result};
pub use crate::ops::Filters;
use crate::ops::{self, Backend, RowSampling, draw_token, log_softmax_at};
use crate::random::Coordinates;

/// How tokens are sampled. The default samples from the policy itself: temperature 1, no filter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSettings {
    /// Divides the logits; 0 means greedy decoding.
    #[default(1.0)]
    #[serde(serialize_with = "with_few_digits")]
    pub temperature: f32,
    /// Keeps only the `top_k` most probable tokens (and ties with the last of them); 0 means off.
    pub top_k: u32,
    /// Keeps only the most probable tokens that together reach this probability; 1 means off.
    #[default(1.0)]
    #[serde(serialize_with = "with_few_digits")]
    pub top_p: f32,
    /// Keeps only tokens at least this fraction as probable as the most probable one; 0 means off.
    #[serde(serialize_with = "with_few_digits")]
    pub min_p: f32,
}

/// Writes the shortest decimal number that is read as the same value: 1.3, where the nearest `f32`
/// has the `f64` value 1.2999999523162842.
fn with_few_digits<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    let shortest = value.to_string().parse();
    serializer.serialize_f64(shortest.unwrap_or(f64::from(*value)))
}

impl SamplingSettings {
    /// Returns settings that always take the most probable token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Returns whether decoding is greedy, so that no random number is used.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Returns the temperature of recorded log-probabilities, which the learner must use as well.
    /// Greedy decoding records at 1.
    pub fn logprob_temperature(&self) -> f32 {
        if self.is_greedy() {
            1.0
        } else {
            self.temperature
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`PolicyError::Setting`] names the first field out of range.
    pub fn validate(&self) -> Result<()> {
        // Beyond these a logit divided by the temperature overflows, or tokens that a constraint
        // excludes have weight.
        let is_temperature = self.is_greedy() || (1e-6..=1e6).contains(&self.temperature);
        let is_top_p = self.top_p > 0.0 && self.top_p <= 1.0;
        let is_min_p = (0.0..=1.0).contains(&self.min_p);
        for (is_valid, field, value, range) in [
            (
                is_temperature,
                "temperature",
                self.temperature,
                "0 (greedy), or 1e-6 to 1e6",
            ),
            (
                is_top_p,
                "top_p",
                self.top_p,
                "more than 0 and at most 1 (off)",
            ),
            (is_min_p, "min_p", self.min_p, "0 (off) to 1"),
        ] {
            if !is_valid {
                let reason = format!("{value} is out of range, need {range}");
                return Err(PolicyError::setting(format!("sampling.{field}"), reason));
            }
        }
        Ok(())
    }
}

/// One sampled token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// Its log-probability at [`SamplingSettings::logprob_temperature`], over all columns, before
    /// the filters. NaN if a logit is NaN or plus infinity, or if none is finite: the weights are
    /// broken and the token means nothing.
    pub logprob: f32,
}

/// Samples a token from one row of `logits` `[V]`. Columns from `vocabulary_size` on (padding of
/// the embedding) are never sampled.
pub fn sample(
    logits: &[f32],
    vocabulary_size: usize,
    settings: &SamplingSettings,
    coordinates: &Coordinates,
) -> Sampled {
    let drawable = &logits[..vocabulary_size.min(logits.len())];
    let token = if settings.is_greedy() {
        most_probable(drawable)
    } else {
        draw_from(drawable, settings, coordinates.uniform())
    };
    Sampled {
        token,
        logprob: log_softmax_at(logits, token as usize, settings.logprob_temperature()),
    }
}

/// [`sample`] for each row of logits `[R, V]` on their device; only tokens and log-probabilities
/// leave it. On other devices than the CPU [`ops::draw_rows`] samples, or a kernel with sums as
/// exact; it documents how far the tokens may differ.
pub fn sample_rows(
    backend: Backend,
    logits: &Tensor,
    vocabulary_size: usize,
    rows: &[(SamplingSettings, Coordinates)],
) -> Result<Vec<Sampled>> {
    if backend.is_cpu() {
        let (_, columns) = logits.dims2()?;
        let sampled = ops::read([logits], |[logits]| {
            let pairs = logits.chunks(columns).zip(rows);
            let sampled = pairs.map(|(logits, (settings, coordinates))| {
                sample(logits, vocabulary_size, settings, coordinates)
            });
            Ok(sampled.collect())
        });
        return Ok(sampled?);
    }
    let draws: Vec<RowSampling> = rows.iter().map(row_draw).collect();
    #[cfg(feature = "cuda")]
    let draw_rows = match backend {
        Backend::CudaBf16 => ops::cuda::draw,
        _ => ops::draw_rows,
    };
    #[cfg(not(feature = "cuda"))]
    let draw_rows = ops::draw_rows;
    let drawn = draw_rows(logits, vocabulary_size, &draws)?.into_iter();
    Ok(drawn
        .map(|(token, logprob)| Sampled { token, logprob })
        .collect())
}

fn row_draw((settings, coordinates): &(SamplingSettings, Coordinates)) -> RowSampling {
    if settings.is_greedy() {
        // Min-p of 1 leaves the most probable tokens, and 0 takes the first of them.
        let filters = Filters {
            temperature: settings.logprob_temperature().into(),
            top_k: 0,
            top_p: 1.0,
            min_p: 1.0,
        };
        let uniform = 0.0;
        return RowSampling { uniform, filters };
    }
    RowSampling {
        uniform: coordinates.uniform(),
        filters: settings.into(),
    }
}

/// Samples without filters by the kernel, with filters in f64.
fn draw_from(logits: &[f32], settings: &SamplingSettings, uniform: f64) -> u32 {
    let filters = Filters::from(settings);
    let unfiltered = || draw_token(logits, settings.temperature, uniform);
    let filtered = || {
        let distribution = filters.apply(logits.iter().map(|&logit| f64::from(logit)));
        draw(&distribution, uniform)
    };
    let drawn = match filters.are_off() {
        true => unfiltered().or_else(filtered),
        false => filtered(),
    };
    drawn.unwrap_or_else(|| most_probable(logits))
}

/// Returns the lowest index among the largest logits.
fn most_probable(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

/// Returns the token whose share of the cumulative distribution, in index order, contains
/// `uniform`; `None` for an empty distribution.
fn draw(distribution: &[(u32, f64)], uniform: f64) -> Option<u32> {
    let mut cumulative = 0.0;
    for &(token, probability) in distribution {
        cumulative += probability;
        if uniform < cumulative {
            return Some(token);
        }
    }
    // Rounding can leave the sum a few ulp below `uniform`.
    distribution
        .iter()
        .rev()
        .find(|(_, probability)| *probability > 0.0)
        .map(|&(token, _)| token)
}

impl From<&SamplingSettings> for Filters {
    fn from(settings: &SamplingSettings) -> Self {
        Self {
            temperature: settings.temperature.into(),
            top_k: settings.top_k as usize,
            top_p: settings.top_p.into(),
            min_p: settings.min_p.into(),
        }
    }
}

impl Filters {
    /// Returns the filtered distribution over `logits`: (token, probability) of the tokens kept, in
    /// index order, summing to 1. It is empty if no logit is finite. Nothing is sorted unless a
    /// filter needs it.
    pub fn apply(&self, logits: impl Iterator<Item = f64>) -> Vec<(u32, f64)> {
        let mut kept: Vec<(u32, f64)> = (0..)
            .zip(logits.map(|logit| logit / self.temperature))
            .filter(|(_, logit)| logit.is_finite())
            .collect();
        if self.top_k > 0 && self.top_k < kept.len() {
            keep_top_k(&mut kept, self.top_k);
        }
        to_probabilities(&mut kept);
        if self.top_p < 1.0 {
            keep_top_p(&mut kept, self.top_p);
            normalise(&mut kept);
        }
        if self.min_p > 0.0 {
            let threshold = self.min_p * largest(&kept);
            kept.retain(|&(_, probability)| probability >= threshold);
            normalise(&mut kept);
        }
        kept
    }
}

/// Keeps the logits that are not below the k-th largest, so all ties with it.
fn keep_top_k(logits: &mut Vec<(u32, f64)>, k: usize) {
    let mut values: Vec<f64> = logits.iter().map(|&(_, logit)| logit).collect();
    let (_, &mut threshold, _) = values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    logits.retain(|&(_, logit)| logit >= threshold);
}

/// Drops the least probable tokens while their sum stays within 1 - `top_p`; of equals the lower
/// index stays.
fn keep_top_p(probabilities: &mut Vec<(u32, f64)>, top_p: f64) {
    probabilities.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    let mut cumulative = 0.0;
    let dropped = probabilities
        .iter()
        .take_while(|(_, probability)| {
            cumulative += probability;
            cumulative <= 1.0 - top_p
        })
        .count();
    probabilities.drain(..dropped.min(probabilities.len().saturating_sub(1)));
    probabilities.sort_unstable_by_key(|&(token, _)| token);
}

fn to_probabilities(logits: &mut [(u32, f64)]) {
    let max = largest(logits);
    for (_, value) in logits.iter_mut() {
        *value = libm::exp(*value - max);
    }
    normalise(logits);
}

fn normalise(weights: &mut [(u32, f64)]) {
    let total: f64 = weights.iter().map(|&(_, weight)| weight).sum();
    for (_, weight) in weights.iter_mut() {
        *weight /= total;
    }
}

fn largest(values: &[(u32, f64)]) -> f64 {
    values
        .iter()
        .map(|&(_, value)| value)
        .fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logit_wins_and_the_lower_index_breaks_ties() {
        let settings = SamplingSettings::greedy();
        let token =
            |logits: &[f32]| sample(logits, logits.len(), &settings, &Coordinates::default()).token;
        assert_eq!(token(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(token(&[-1.0]), 0);
        assert_eq!(token(&[f32::NEG_INFINITY, -5.0]), 1);
    }

    #[test]
    fn settings_are_written_as_users_write_them() {
        for number in ["0.0", "0.000001", "0.1", "0.95", "1.3", "123456.7"] {
            let given = format!(r#"{{"temperature":{number},"top_p":0.9}}"#);
            let settings: SamplingSettings = serde_json::from_str(&given).unwrap();
            let written: serde_json::Value = serde_json::to_value(settings).unwrap();
            assert_eq!(
                written["temperature"].to_string().parse(),
                number.parse::<f64>()
            );
            assert_eq!(written["top_p"].to_string(), "0.9");
            assert_eq!(
                serde_json::from_value::<SamplingSettings>(written).unwrap(),
                settings
            );
        }
    }

    /// Broken weights give a token of the vocabulary with a NaN log-probability.
    #[test]
    fn logits_that_are_no_numbers_show_in_the_logprob() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        for logits in [
            [nan; 4],
            [-infinite; 4],
            [nan, 1.0, 2.0, 3.0],
            [1.0, 2.0, 3.0, nan],
            [1.0, infinite, 2.0, 3.0],
        ] {
            for settings in [SamplingSettings::greedy(), SamplingSettings::default()] {
                let sampled = sample(&logits, 3, &settings, &Coordinates::default());
                assert!(sampled.token < 3, "{logits:?}");
                assert!(sampled.logprob.is_nan(), "{logits:?}: {sampled:?}");
            }
        }
    }

    #[test]
    fn a_draw_takes_the_token_that_holds_the_number() {
        let distribution = [(3, 0.25), (5, 0.5), (9, 0.25)];
        for (uniform, token) in [
            (0.0, 3),
            (0.2499, 3),
            (0.25, 5),
            (0.7499, 5),
            (0.75, 9),
            (0.9999, 9),
        ] {
            assert_eq!(draw(&distribution, uniform), Some(token));
        }
        // A sum that rounding left below the number, and a tail without probability.
        assert_eq!(draw(&[(1, 0.999), (2, 0.0)], 0.9995), Some(1));
        assert_eq!(draw(&[], 0.5), None);
    }

    #[test]
    fn validation_names_the_field() {
        let default = SamplingSettings::default();
        let bad = |settings: SamplingSettings| settings.validate().unwrap_err().to_string();
        for temperature in [-0.1, 1e-39, 1e7, f32::NAN, f32::INFINITY] {
            let message = bad(SamplingSettings {
                temperature,
                ..default
            });
            assert!(message.contains("sampling.temperature"), "{message}");
        }
        for temperature in [1e-6, 1e6] {
            let settings = SamplingSettings {
                temperature,
                ..default
            };
            settings.validate().unwrap();
        }
        for top_p in [0.0, 1.1, f32::NAN] {
            assert!(bad(SamplingSettings { top_p, ..default }).contains("sampling.top_p"));
        }
        assert!(
            bad(SamplingSettings {
                min_p: 1.5,
                ..default
            })
            .contains("sampling.min_p")
        );
        assert!(default.validate().is_ok() && SamplingSettings::greedy().validate().is_ok());
    }
}
