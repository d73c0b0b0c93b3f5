//! Maps data to drawing units and chooses the ticks of an axis. Pure.
//!
//! Invariant: a scale always spans a finite, positive range, whatever the data are, so that no
//! coordinate is NaN.

/// A linear map of a data range onto a drawing range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// Maps `low..high` to `start..end`. A range that is empty, inverted or not finite is replaced
    /// by one that can be drawn.
    pub(super) fn new((low, high): (f64, f64), (start, end): (f64, f64)) -> Self {
        let size = low.abs().max(high.abs());
        let (low, high) = if !low.is_finite() || !high.is_finite() || size > 1e300 {
            (0.0, 1.0)
        } else if high - low > size * 1e-9 && high - low > 1e-300 {
            (low, high)
        } else {
            let margin = (size * 0.1).max(1e-6);
            (low - margin, low + margin)
        };
        Self {
            low,
            high,
            start,
            end,
        }
    }

    /// Is like [`Self::new`], with the range widened to whole ticks, about `ticks` of them.
    pub(super) fn nice(range: (f64, f64), drawing: (f64, f64), ticks: usize) -> Self {
        let scale = Self::new(range, drawing);
        let step = scale.step(ticks);
        Self {
            low: (scale.low / step + 1e-9).floor() * step,
            high: (scale.high / step - 1e-9).ceil() * step,
            ..scale
        }
    }

    /// Returns the coordinate of `value`. Values beyond the range are on the edge, NaN is at the
    /// start.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        let share = if share.is_nan() { 0.0 } else { share };
        self.start + share * (self.end - self.start)
    }

    /// Returns round values inside the range, about `wanted` of them.
    pub(super) fn ticks(&self, wanted: usize) -> Vec<f64> {
        let step = self.step(wanted);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }

    /// Returns the distance of ticks: 1, 2 or 5 times a power of ten.
    fn step(&self, wanted: usize) -> f64 {
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let factor = match rough / power {
            f if f <= 1.0 + 1e-9 => 1.0,
            f if f <= 2.0 + 1e-9 => 2.0,
            f if f <= 5.0 + 1e-9 => 5.0,
            _ => 10.0,
        };
        factor * power
    }
}

/// Formats a tick with as many decimals as the distance of ticks needs.
pub(super) fn tick_label(tick: f64, step: f64) -> String {
    if tick.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    if step < 1e-3 {
        return crate::number::power(tick);
    }
    if tick.abs() >= 1e4 {
        return crate::number::value(tick);
    }
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 3.0) as usize;
    format!("{tick:.decimals$}").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round_and_labelled_alike() {
        for (range, labels) in [
            ((0.0, 1.0), &["0", "0.2", "0.4", "0.6", "0.8", "1.0"][..]),
            ((0.0, 47.0), &["0", "10", "20", "30", "40"]),
            ((-0.3, 1.1), &["0", "0.5", "1.0"]),
            (
                (0.0, 1e-4),
                &["0", "2·10⁻⁵", "4·10⁻⁵", "6·10⁻⁵", "8·10⁻⁵", "10⁻⁴"],
            ),
        ] {
            let ticks = Scale::new(range, (0.0, 100.0)).ticks(5);
            let step = ticks[1] - ticks[0];
            let found: Vec<_> = ticks.iter().map(|t| tick_label(*t, step)).collect();
            assert_eq!(found, labels, "{range:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_data_drawing_stays_inside(
            low in any::<f64>(), high in any::<f64>(), v in any::<f64>()
        ) {
            let data = (low, high);
            for scale in [Scale::new(data, (10.0, 90.0)), Scale::nice(data, (90.0, 10.0), 5)] {
                let at = scale.at(v);
                prop_assert!((10.0 - 1e-6..=90.0 + 1e-6).contains(&at), "{at}");
                prop_assert!(scale.ticks(5).len() <= 12);
            }
        }
    }
}
