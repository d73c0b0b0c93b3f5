//! A trial product, by which a process learns whether the instructions of its CPU add in the order
//! of the lanes. Intel's manual and its guide to intrinsics describe different orders, so a CPU
//! shows which one it has.

use half::bf16;

use super::lanes;
use super::matrix::{BLOCK, Bf16Matrix, Bf16View, PANEL};
use crate::ops::matmul::WriteMode;

/// Compares a kernel's product of `A B` with that of the lanes, bit for bit, and logs a warning
/// with the name of the `instructions` if they differ.
pub(super) fn agrees_with_lanes(
    instructions: &str,
    multiply: impl FnOnce(Bf16View<'_>, &Bf16Matrix, &mut [f32]),
) -> bool {
    let (m, k, n) = (48, 3 * BLOCK, 2 * PANEL);
    // Values of four magnitudes, whose sums depend on their order.
    let value = |at: usize| {
        let mixed = (at as u32).wrapping_mul(2_654_435_761) >> 8;
        let size = [1.0, 64.0, 0.01, 3.0][at % 4];
        bf16::from_f32((mixed as f32 / (1 << 23) as f32 - 1.0) * size)
    };
    let values: Vec<bf16> = (0..m * k + k * n).map(value).collect();
    let (a, b) = values.split_at(m * k);
    let (a, b) = (Bf16View::new(a, m, k), Bf16View::new(b, k, n));
    let b = Bf16Matrix::new(b);
    let (mut tried, mut expected) = (vec![0.0; m * n], vec![0.0; m * n]);
    multiply(a, &b, &mut tried);
    lanes::multiply(a, &b, &mut expected, WriteMode::Overwrite);
    let mut both = tried.iter().zip(&expected);
    let agrees = both.all(|(tried, expected)| tried.to_bits() == expected.to_bits());
    if !agrees {
        tracing::warn!(
            "the {instructions} instructions of this CPU add in another order than Intel's manual \
             describes, so products of bf16 do without them"
        );
    }
    agrees
}
