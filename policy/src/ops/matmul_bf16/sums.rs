//! The sums that a product adds to.

use super::matrix::PANEL;

/// Row-major sums in f32, the rows `stride` apart, of which a product changes 32 columns.
pub(crate) struct Sums<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Sums<'_> {
    /// Returns the sums from a row on.
    pub(super) fn rows_from(&mut self, row: usize) -> Sums<'_> {
        Sums {
            values: &mut self.values[row * self.stride..],
            stride: self.stride,
        }
    }

    /// Asserts that the sums have this many rows of 32 columns.
    #[inline(always)]
    pub(super) fn assert_rows(&self, rows: usize) {
        assert!(
            (rows - 1) * self.stride + PANEL <= self.values.len(),
            "a product has more rows than its sums: this is a bug"
        );
    }
}
