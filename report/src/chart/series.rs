//! The data of a line in a chart. Pure.

/// Longer lines are shortened to this number of points.
const MAX_POINTS: usize = 300;

/// A line with its name; `class` gives its colour.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) class: &'static str,
    pub(crate) points: Vec<Point>,
    /// Whether a line joins the points. Points that lie far apart are drawn by themselves, because
    /// a line would show what was not measured.
    pub(crate) joined: bool,
}

/// One value of a line, with the band around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) band: Option<(f64, f64)>,
}

impl Point {
    pub(super) fn is_finite(&self) -> bool {
        let (low, high) = self.band.unwrap_or((0.0, 0.0));
        [self.x, self.y, low, high].iter().all(|v| v.is_finite())
    }
}

impl Series {
    /// Returns the points that can be drawn.
    pub(super) fn finite(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(|point| point.is_finite())
    }

    /// Returns at most [`MAX_POINTS`] points, each the mean of a run of points. Runs have equal
    /// lengths.
    pub(super) fn shortened(&self) -> Vec<Point> {
        let length = self.points.len().div_ceil(MAX_POINTS).max(1);
        if length == 1 {
            return self.points.clone();
        }
        let mean_point = |run: &[Point]| Point {
            x: mean(run.iter().map(|p| p.x)),
            y: mean(run.iter().map(|p| p.y)),
            band: run[0].band.map(|_| {
                let bands = || run.iter().filter_map(|p| p.band);
                (mean(bands().map(|b| b.0)), mean(bands().map(|b| b.1)))
            }),
        };
        self.points.chunks(length).map(mean_point).collect()
    }
}

/// Returns the mean of the finite values; NaN if there are none.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let finite = values.filter(|v| v.is_finite());
    let (sum, count) = finite.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
    sum / count
}

/// Returns the smallest and the largest finite value; an inverted range if there are none.
pub(super) fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_averaged() {
        let points: Vec<_> = (0..1000)
            .map(|i| Point {
                x: f64::from(i),
                y: f64::from(i % 2),
                band: None,
            })
            .collect();
        let series = Series {
            label: String::new(),
            class: "",
            points,
            joined: true,
        };
        let shortened = series.shortened();
        assert_eq!(shortened.len(), 250);
        assert!(shortened.iter().all(|p| p.y == 0.5));
    }
}
