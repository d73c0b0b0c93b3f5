//! A trial product, by which a process learns whether the instructions of its CPU add in the order
//! of the lanes. Intel's manual and its guide to intrinsics describe different orders, so a CPU
//! shows which one it has.

use half::bf16;

use super::instructions::Instructions;
use super::matrix::{BLOCK, Bf16Matrix, PANEL};
use super::{Bf16Rows, multiply_rows};
use crate::ops::matmul::{View, WriteMode};

/// Compares a product by `instructions` with that of the lanes, bit for bit, and logs a warning
/// with their `name` if the two differ.
pub(super) fn agrees_with_lanes(name: &str, instructions: Instructions) -> bool {
    let (m, k, n) = (48, 3 * BLOCK, 2 * PANEL);
    // Values of four magnitudes, whose sums depend on their order.
    let value = |at: usize| {
        let mixed = (at as u32).wrapping_mul(2_654_435_761) >> 8;
        let size = [1.0, 64.0, 0.01, 3.0][at % 4];
        bf16::from_f32((mixed as f32 / (1 << 23) as f32 - 1.0) * size)
    };
    let values: Vec<bf16> = (0..m * k + k * n).map(value).collect();
    let (a, b) = values.split_at(m * k);
    let (a, b) = (View::new(a, m, k, k), View::new(b, k, n, n));
    let b = Bf16Matrix::new(b);
    let product = |instructions| {
        let (mut rows, mut c) = (Bf16Rows::default(), vec![0.0; m * n]);
        rows.pack_for(instructions, a);
        multiply_rows(&rows, &b, &mut c, WriteMode::Overwrite);
        c
    };
    let (tried, expected) = (product(instructions), product(Instructions::Lanes));
    let mut both = tried.iter().zip(&expected);
    let agrees = both.all(|(tried, expected)| tried.to_bits() == expected.to_bits());
    if !agrees {
        tracing::warn!(
            "the {name} instructions of this CPU add in another order than Intel's manual \
             describes, so products of bf16 do without them"
        );
    }
    agrees
}
