//! Every kernel returns the bits of the definition.

use std::io::Write as _;

use half::bf16;

use super::instructions::Instructions;
use super::matrix::BLOCK;
use super::*;
use crate::ops::amx_permission::Permission;
use crate::ops::bf16_values::factor;
use crate::ops::simd::{InstructionSet, with_instruction_set};

/// Values of many sizes: ordinary ones, those around the smallest, and subnormal ones.
fn values(count: usize, seed: u64) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let value = |_| {
        let mantissa = (next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
        let exponent = match next() % 8 {
            0 => -(50 + (next() % 10) as i32),
            1 => -(120 + (next() % 12) as i32),
            2 => 20,
            _ => 0,
        };
        bf16::from_f32(mantissa * 2f32.powi(exponent.max(-126)))
    };
    (0..count).map(value).collect()
}

fn at(x: View<'_, bf16>, row: usize, col: usize) -> bf16 {
    x.data[row * x.row_stride + col * x.col_stride]
}

/// The definition, as Intel's manual gives it for AMX, with subnormal results as zero.
fn by_definition(a: View<'_, bf16>, b: View<'_, bf16>, i: usize, j: usize) -> f32 {
    let normal = |x: f32| if x.is_subnormal() { 0.0 } else { x };
    let mut sum = 0.0;
    for block in 0..a.cols.div_ceil(BLOCK) {
        let mut chains = [0.0_f32; 2];
        for k in block * BLOCK..a.cols.min((block + 1) * BLOCK) {
            let (a, b) = (factor(at(a, i, k)), factor(at(b, k, j)));
            let chain = &mut chains[k % 2];
            *chain = normal(a.mul_add(b, *chain));
        }
        sum = normal(sum + normal(chains[0] + chains[1]));
    }
    sum
}

fn one_product(a: View<'_, bf16>, b: &Bf16Matrix, c: &mut [f32]) -> Result<()> {
    multiply_bf16((a, b), c, WriteMode::Overwrite)
}

const SHAPES: [(usize, usize, usize); 9] = [
    (1, 32, 32),
    (1, 7, 5),
    (2, 600, 33),
    (6, 64, 32),
    (7, 513, 70),
    (13, 1030, 96),
    (5, 1, 1),
    (64, 576, 40),
    (3, 0, 4),
];

#[test]
fn every_instruction_set_returns_the_bits_of_the_definition() {
    for (m, k, n) in SHAPES {
        let (a_data, b_data) = (values(m * k, 1), values(k * n, 2));
        let a = View::new(&a_data, m, k, k);
        for transposed in [false, true] {
            let b = match transposed {
                false => View::new(&b_data, k, n, n),
                true => View::new(&b_data, n, k, k).transposed(),
            };
            let packed = Bf16Matrix::new(b);
            for set in InstructionSet::available() {
                let mut c = vec![f32::NAN; m * n];
                let run = || one_product(a, &packed, &mut c);
                with_instruction_set(set, run).unwrap().unwrap();
                for (at, &found) in c.iter().enumerate() {
                    let expected = by_definition(a, b, at / n, at % n);
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{set:?} {m}x{k}x{n} at {at}: {found} {expected}"
                    );
                }
            }
        }
    }
}

/// The rows are more than are multiplied at once.
#[test]
fn rounded_products_have_the_bits_of_products_that_are_rounded() {
    let (m, k, n) = (2 * ROWS + 44, 40, 33);
    let data = [1, 2].map(|seed| values(m * k, seed));
    let rows = [&data[0], &data[1]].map(|data| View::new(data, m, k, k));
    let weights = [3, 4].map(|seed| values(k * n, seed));
    let weights = [&weights[0], &weights[1]].map(|it| Bf16Matrix::new(View::new(it, k, n, n)));
    let product = |a, b| {
        let mut c = vec![f32::NAN; m * n];
        one_product(a, b, &mut c).unwrap();
        c
    };
    let bits = |x: &[bf16]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let rounded = |x: Vec<f32>| x.into_iter().map(bf16::from_f32).collect::<Vec<_>>();

    let found = rounded_products(rows[0], &[&weights[0], &weights[1]]).unwrap();
    for (found, weight) in found.iter().zip(&weights) {
        assert_eq!(bits(found), bits(&rounded(product(rows[0], weight))));
    }
    let factors = [(rows[0], &weights[0]), (rows[1], &weights[1])];
    let found = rounded_sum_of_products(&factors, (m, n)).unwrap();
    let [first, second] = factors.map(|(a, b)| product(a, b));
    let sum = first.iter().zip(second).map(|(a, b)| a + b).collect();
    assert_eq!(bits(&found), bits(&rounded(sum)));
}

#[test]
fn factors_that_do_not_fit_are_refused() {
    let (a, b) = (values(6, 1), values(8, 2));
    let (a, b) = (
        View::new(&a, 2, 3, 3),
        Bf16Matrix::new(View::new(&b, 2, 4, 4)),
    );
    for error in [
        one_product(a, &b, &mut [0.0; 8]).unwrap_err(),
        rounded_products(a, &[&b]).unwrap_err(),
        rounded_sum_of_products(&[(a, &b)], (2, 4)).unwrap_err(),
    ] {
        assert!(error.to_string().contains("[2, 3] and [2, 4]"), "{error}");
    }
}

#[test]
fn infinite_values_and_nan_stay_visible() {
    let one = bf16::ONE;
    let a = [bf16::INFINITY, one, bf16::NAN, one];
    let b = [one, one];
    let mut c = [0.0; 2];
    let packed = Bf16Matrix::new(View::new(&b, 2, 1, 1));
    let a = View::new(&a, 2, 2, 2);
    one_product(a, &packed, &mut c).unwrap();
    assert_eq!(c[0], f32::INFINITY);
    assert!(c[1].is_nan());
}

/// On a CPU with AMX this runs its instructions, elsewhere a loop in their place.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_return_the_bits_of_the_definition() {
    let tiles = Instructions::Tiles(Permission::of_test());
    assert!(trial::agrees_with_lanes("AMX", tiles));
    returns_the_bits_of_the_definition(tiles);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn pairs_return_the_bits_of_the_definition() {
    if !InstructionSet::available().contains(&InstructionSet::Avx512Bf16) {
        let _ = writeln!(std::io::stderr(), "SKIPPED: this CPU has no AVX512-BF16");
        return;
    }
    let permission = instructions::pairs().expect("the trial failed");
    returns_the_bits_of_the_definition(Instructions::Pairs(permission));
}

/// Tries a kernel on matrices of many shapes, row-major and transposed, in both write modes.
fn returns_the_bits_of_the_definition(instructions: Instructions) {
    let mut rows = Bf16Rows::default();
    let shapes = SHAPES.into_iter().chain([(17, 96, 64), (40, 1312, 33)]);
    for (m, k, n) in shapes {
        let (a_data, b_data) = (values(m * k, 3), values(k * n, 4));
        for transposed in [false, true] {
            let (a, b) = match transposed {
                false => (View::new(&a_data, m, k, k), View::new(&b_data, k, n, n)),
                true => (
                    View::new(&a_data, k, m, m).transposed(),
                    View::new(&b_data, n, k, k).transposed(),
                ),
            };
            let packed = Bf16Matrix::new(b);
            // The memory of the rows of another shape is used again.
            rows.pack_for(instructions, a);
            for write_mode in [WriteMode::Overwrite, WriteMode::Accumulate] {
                let mut c = vec![0.5; m * n];
                multiply_rows(&rows, &packed, &mut c, write_mode);
                for (at, &found) in c.iter().enumerate() {
                    let sum = by_definition(a, b, at / n, at % n);
                    let expected = match write_mode {
                        WriteMode::Overwrite => sum,
                        WriteMode::Accumulate => 0.5 + sum,
                    };
                    assert_eq!(
                        found.to_bits(),
                        expected.to_bits(),
                        "{m}x{k}x{n} at {at}: {found} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn more_rows_than_a_block_have_the_bits_of_their_blocks() {
    let (m, k, n) = (ROWS + 3, 40, 33);
    let (a_data, b_data) = (values(m * k, 5), values(k * n, 6));
    let (a, b) = (View::new(&a_data, m, k, k), View::new(&b_data, k, n, n));
    let mut c = vec![f32::NAN; m * n];
    one_product(a, &Bf16Matrix::new(b), &mut c).unwrap();
    for (at, found) in c.iter().enumerate() {
        assert_eq!(
            found.to_bits(),
            by_definition(a, b, at / n, at % n).to_bits()
        );
    }
}
