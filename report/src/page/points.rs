//! The values of a line: which can be drawn, their range, and long lines made short. Pure.

/// Lines longer than this are averaged in runs.
const MOST_POINTS: usize = 300;
/// One value of a line, with the band around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) band: Option<(f64, f64)>,
}

/// At most [`MOST_POINTS`] points: the means of runs of equal length.
pub(super) fn thin(points: &[Point]) -> Vec<Point> {
    let run = points.len().div_ceil(MOST_POINTS).max(1);
    if run == 1 {
        return points.to_vec();
    }
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    points
        .chunks(run)
        .map(|chunk| Point {
            x: mean(&mut chunk.iter().map(|p| p.x)),
            y: mean(&mut chunk.iter().map(|p| p.y)),
            band: chunk[0].band.map(|_| {
                (
                    mean(&mut chunk.iter().filter_map(|p| Some(p.band?.0))),
                    mean(&mut chunk.iter().filter_map(|p| Some(p.band?.1))),
                )
            }),
        })
        .collect()
}

/// The smallest and largest value; an inverted range where there is none.
pub(super) fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .filter(|v| v.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
            (low.min(v), high.max(v))
        })
}

/// Points that can be drawn.
pub(super) fn finite(points: &[Point]) -> impl Iterator<Item = &Point> {
    points.iter().filter(|p| is_finite(p))
}

pub(super) fn is_finite(point: &Point) -> bool {
    let band = point.band.unwrap_or((0.0, 0.0));
    [point.x, point.y, band.0, band.1]
        .iter()
        .all(|v| v.is_finite())
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
        let thinned = thin(&points);
        assert_eq!(thinned.len(), 250);
        assert!(thinned.iter().all(|p| p.y == 0.5));
    }
}
