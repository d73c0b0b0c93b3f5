//! Matrix products of one shape, whatever the batch.
//!
//! A library chooses the order of a product's sums by its shape. A row's bits would then depend on
//! how many rows are around it, and a token sampled in a batch of 64 would have another
//! log-probability than the same token in training. Here a product is cut into pieces of one shape,
//! the last padded with zeros. The idea is that of batch-invariant kernels ("Defeating
//! Nondeterminism in LLM Inference", Thinking Machines, 2025), with a library's own kernels.
//!
//! Invariant: a row's bits depend on that row alone, as far as the library sums all rows of one
//! shape in one order.

use candle_core::{Result, Tensor};

/// Returns the rows of a piece: on a GPU few enough that the library puts them into one tile, whose
/// rows it cannot treat differently.
fn rows_of_a_piece(x: &Tensor) -> usize {
    if x.device().is_cpu() { 16 } else { 64 }
}

/// Returns the matrices of a piece. The CPU computes one after the other anyway; on a GPU a piece
/// is one launch.
fn matrices_of_a_piece(x: &Tensor) -> usize {
    if x.device().is_cpu() { 1 } else { 128 }
}

/// Returns x [T, K] times w [K, N] → [T, N].
pub(super) fn product_of_rows(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    in_pieces(x, rows_of_a_piece(x), |piece, _| piece.matmul(w))
}

/// Returns a [P, M, K] times b [P, K, N], matrix by matrix → [P, M, N]. M, K and N must be the same
/// at every call.
pub(super) fn product_of_matrices(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let at_once = matrices_of_a_piece(a);
    let b = padded(b, at_once)?;
    in_pieces(a, at_once, |a, first| {
        a.matmul(&b.narrow(0, first, at_once)?)
    })
}

/// Applies `work` to slices of `at_once` along x's first dimension, with the index of the slice's
/// first element, and joins the results.
fn in_pieces(
    x: &Tensor,
    at_once: usize,
    work: impl Fn(&Tensor, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let all = x.dim(0)?;
    let x = padded(x, at_once)?;
    let pieces = (0..x.dim(0)?).step_by(at_once);
    let pieces = pieces.map(|first| work(&x.narrow(0, first, at_once)?, first));
    let pieces = pieces.collect::<Result<Vec<_>>>()?;
    match &pieces[..] {
        [piece] => piece.narrow(0, 0, all),
        pieces => Tensor::cat(pieces, 0)?.narrow(0, 0, all),
    }
}

/// Pads x with zeros to a whole number of pieces, at least one.
fn padded(x: &Tensor, at_once: usize) -> Result<Tensor> {
    let all = x.dim(0)?;
    match all.max(1).next_multiple_of(at_once) - all {
        0 => Ok(x.clone()),
        missing => x.pad_with_zeros(0, 0, missing),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn values(shape: &[usize], dtype: DType) -> Tensor {
        let value = |at: usize| ((at * at * 13 + at) as f64).sin() as f32;
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        tensor.to_dtype(dtype).unwrap()
    }

    fn flat(x: &Tensor) -> Vec<f64> {
        let x = x.to_dtype(DType::F64).unwrap();
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_rows_bits_do_not_depend_on_the_batch() {
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let (x, w) = (values(&[45, 3072], dtype), values(&[3072, 33], dtype));
            let all = product_of_rows(&x, &w).unwrap();
            assert_eq!(all.dims(), [45, 33]);
            for (first, count) in [(0, 1), (7, 1), (44, 1), (3, 20), (16, 16), (0, 45)] {
                let some = product_of_rows(&x.narrow(0, first, count).unwrap(), &w).unwrap();
                assert_eq!(flat(&some), flat(&all.narrow(0, first, count).unwrap()));
            }
        }
    }

    #[test]
    fn pieces_make_the_product() {
        let (x, w) = (values(&[45, 70], DType::F64), values(&[70, 33], DType::F64));
        let found = flat(&product_of_rows(&x, &w).unwrap());
        let expected = flat(&x.matmul(&w).unwrap());
        let pairs = found.iter().zip(&expected);
        assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) < 1e-12);
        let (a, b) = (
            values(&[5, 4, 9], DType::F64),
            values(&[5, 9, 3], DType::F64),
        );
        let found = product_of_matrices(&a, &b).unwrap();
        assert_eq!(flat(&found), flat(&a.matmul(&b).unwrap()));
    }
}
