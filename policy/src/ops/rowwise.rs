//! Operations that compute each row from the same row of their inputs.
//!
//! Invariant: bf16 is widened, computed in f32 and rounded once, so the result does not depend on
//! how many rows are computed at once.

use candle_core::{Result, Tensor, bail};
use half::bf16;

use super::bf16_values::{append_rounded, widen};
use super::math::combine;
use super::simd::{Kernel, Simd, dispatch};
use super::{Backend, read, tensor};

/// About how many values are widened, computed and rounded at once. They stay in the first-level
/// cache.
const CHUNK: usize = 1024;

impl Backend {
    /// Returns the sum of two tensors of one shape. Its gradient is that of both.
    pub fn add(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        if !self.is_cpu() {
            return a + b;
        }
        let add = |_, [a, b]: [&[f32]; 2], [sum]: [&mut [f32]; 1]| dispatch(Add { a, b, sum });
        let [sum] = self.rowwise(("add", 1), [a, b], add)?;
        Ok(sum)
    }

    /// Computes M tensors of the shape of the inputs by a kernel of f32, which gets some rows of
    /// `width` values at once, and the number of the first one.
    ///
    /// # Errors
    /// The shapes differ, or have no rows of `width` values.
    pub(super) fn rowwise<const N: usize, const M: usize>(
        self,
        (name, width): (&str, usize),
        inputs: [&Tensor; N],
        mut kernel: impl FnMut(usize, [&[f32]; N], [&mut [f32]; M]),
    ) -> Result<[Tensor; M]> {
        let shape = inputs[0].shape();
        if let Some(other) = inputs.iter().find(|it| it.shape() != shape) {
            bail!("{name}: {:?} for {shape:?}", other.shape());
        }
        if width == 0 || !shape.elem_count().is_multiple_of(width) {
            bail!("{name}: {shape:?} for rows of {width}");
        }
        let mut outputs = Vec::with_capacity(M);
        if self == Self::CpuBf16 {
            let values = read(inputs, |inputs| Ok(in_chunks(width, inputs, kernel)))?;
            for values in values {
                outputs.push(Tensor::from_vec(values, shape, inputs[0].device())?);
            }
        } else {
            let mut values: [Vec<f32>; M] = std::array::from_fn(|_| vec![0.0; shape.elem_count()]);
            read(inputs, |inputs| {
                kernel(0, inputs, values.each_mut().map(Vec::as_mut_slice));
                Ok(())
            })?;
            for values in values {
                outputs.push(tensor(values, shape)?);
            }
        }
        Ok(outputs
            .try_into()
            .expect("each output has a tensor: this is a bug"))
    }
}

/// Runs a kernel of f32 on whole rows of bf16, some at once.
fn in_chunks<const N: usize, const M: usize>(
    width: usize,
    inputs: [&[bf16]; N],
    mut kernel: impl FnMut(usize, [&[f32]; N], [&mut [f32]; M]),
) -> [Vec<bf16>; M] {
    let len = inputs[0].len();
    let chunk = (CHUNK / width).max(1) * width;
    let buffer = vec![0.0; chunk.min(len)];
    let mut outputs: [Vec<bf16>; M] = std::array::from_fn(|_| Vec::with_capacity(len));
    let mut wide: [Vec<f32>; N] = std::array::from_fn(|_| buffer.clone());
    let mut results: [Vec<f32>; M] = std::array::from_fn(|_| buffer.clone());
    for first in (0..len).step_by(chunk) {
        let count = chunk.min(len - first);
        for (wide, input) in wide.iter_mut().zip(inputs) {
            widen(&input[first..first + count], &mut wide[..count]);
        }
        kernel(
            first / width,
            wide.each_ref().map(|it| &it[..count]),
            results.each_mut().map(|it| &mut it[..count]),
        );
        for (result, output) in results.iter().zip(&mut outputs) {
            append_rounded(&result[..count], output);
        }
    }
    outputs
}

struct Add<'a> {
    a: &'a [f32],
    b: &'a [f32],
    sum: &'a mut [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        combine::<S>(self.a, self.b, self.sum, |a, b| a.add(b));
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    /// Returns values that bf16 holds, [rows, heads, width].
    fn values(rows: usize, heads: usize, width: usize, factor: usize) -> Tensor {
        let value = |at: usize| bf16::from_f32((at * factor % 997) as f32 / 499.0 - 1.0);
        let values: Vec<bf16> = (0..rows * heads * width).map(value).collect();
        Tensor::from_vec(values, (rows, heads, width), &Device::Cpu).unwrap()
    }

    fn wide(x: &Tensor) -> Tensor {
        x.to_dtype(DType::F32).unwrap()
    }

    #[track_caller]
    fn assert_rounded(found: &Tensor, unrounded: &Tensor) {
        let bits = |x: &Tensor| -> Vec<u16> {
            let values: Vec<bf16> = x.flatten_all().unwrap().to_vec1().unwrap();
            values.into_iter().map(bf16::to_bits).collect()
        };
        assert_eq!(found.dims(), unrounded.dims());
        assert_eq!(bits(found), bits(&unrounded.to_dtype(DType::BF16).unwrap()));
    }

    /// Rows of many, of one and of no chunk, and rows that are longer than a chunk.
    const SHAPES: [[usize; 3]; 5] = [
        [40, 1, 192],
        [70, 2, 32],
        [3, 1, 1504],
        [1, 1, 8],
        [0, 1, 8],
    ];

    #[test]
    fn norms_of_bf16_are_those_of_f32_rounded_once() {
        let (narrow, f32, eps) = (Backend::CpuBf16, Backend::CpuF32, 1e-6);
        for [rows, heads, width] in SHAPES {
            let [x, dy, residual] = [7, 11, 13].map(|it| values(rows, heads, width, it));
            let weight = values(1, 1, width, 17).flatten_all().unwrap();
            let y = narrow.rms_norm(&x, &weight, eps).unwrap();
            assert_rounded(&y, &f32.rms_norm(&wide(&x), &wide(&weight), eps).unwrap());
            for residual in [None, Some(&residual)] {
                let (dx, dweight) = narrow
                    .rms_norm_backward(&x, &weight, eps, &dy, residual)
                    .unwrap();
                let [x, weight, dy] = [&x, &weight, &dy].map(wide);
                let (dx_wide, dweight_wide) = f32
                    .rms_norm_backward(&x, &weight, eps, &dy, residual.map(wide).as_ref())
                    .unwrap();
                assert_rounded(&dx, &dx_wide);
                let [found, expected] = [dweight, dweight_wide].map(|it| it.to_vec1::<f32>());
                assert_eq!(found.unwrap(), expected.unwrap());
            }
        }
    }

    #[test]
    fn rotations_of_bf16_are_those_of_f32_rounded_once() {
        for [rows, heads, width] in SHAPES {
            let x = values(rows, heads, width, 7);
            let angles = wide(&values(rows, 1, width, 11)).squeeze(1).unwrap();
            let y = Backend::CpuBf16.rope(&x, &angles).unwrap();
            assert_rounded(&y, &Backend::CpuF32.rope(&wide(&x), &angles).unwrap());
        }
    }

    #[test]
    fn sums_in_bf16_are_rounded_once() {
        let values = |factor: usize| -> Vec<bf16> {
            let bits = (0..3 * CHUNK).map(|at| (at * factor) as u16);
            let values = bits.map(bf16::from_bits);
            values.filter(|it| it.is_finite()).collect()
        };
        let (a, b) = (values(40_503), values(30_011));
        let len = a.len().min(b.len());
        assert!(len > 2 * CHUNK && !len.is_multiple_of(CHUNK));
        let tensor = |x: &[bf16]| Tensor::from_slice(&x[..len], len, &Device::Cpu).unwrap();
        let sum = Backend::CpuBf16.add(&tensor(&a), &tensor(&b)).unwrap();
        let sums = sum.to_vec1::<bf16>().unwrap();
        for ((a, b), sum) in a.iter().zip(&b).zip(sums) {
            assert_eq!(sum.to_bits(), (*a + *b).to_bits(), "{a} + {b}");
        }
    }

    #[test]
    fn other_shapes_are_refused() {
        let zeros = |count: usize| Tensor::zeros(count, DType::F32, &Device::Cpu);
        let error = Backend::CpuF32.add(&zeros(3).unwrap(), &zeros(4).unwrap());
        assert!(error.unwrap_err().to_string().contains("add: [4] for [3]"));
    }
}
