//! Operations that compute each element from the same element of their inputs.
//!
//! Invariant: bf16 is widened, computed in f32 and rounded once, so the result does not depend on
//! how the elements are cut into chunks.

use candle_core::{Result, Tensor, bail};
use half::bf16;

use super::bf16_values::{round, widen};
use super::math::combine;
use super::simd::{Kernel, Simd, dispatch};
use super::{Backend, read, tensor};

/// Elements that are widened, computed and rounded at a time, in the first-level cache.
const CHUNK: usize = 1024;

impl Backend {
    /// Returns the sum of two tensors of one shape. Its gradient is that of both.
    pub fn add(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        if !self.is_cpu() {
            return a + b;
        }
        let [sum] = self.elementwise("add", [a, b], |[a, b], [sum]| dispatch(Add { a, b, sum }))?;
        Ok(sum)
    }

    /// Computes tensors from inputs of one shape by a kernel of f32, which is called with chunks of
    /// the inputs and of the outputs.
    ///
    /// # Errors
    /// The shapes differ.
    pub(super) fn elementwise<const N: usize, const M: usize>(
        self,
        name: &str,
        inputs: [&Tensor; N],
        kernel: impl Fn([&[f32]; N], [&mut [f32]; M]),
    ) -> Result<[Tensor; M]> {
        let shape = inputs[0].shape();
        if let Some(other) = inputs.iter().find(|it| it.shape() != shape) {
            bail!("{name}: {:?} for {shape:?}", other.shape());
        }
        let mut outputs = Vec::with_capacity(M);
        if self == Self::CpuBf16 {
            let values = read(inputs, |inputs| Ok(in_chunks(inputs, kernel)))?;
            for values in values {
                outputs.push(Tensor::from_vec(values, shape, inputs[0].device())?);
            }
        } else {
            let mut values: [Vec<f32>; M] = std::array::from_fn(|_| vec![0.0; shape.elem_count()]);
            read(inputs, |inputs| {
                kernel(inputs, values.each_mut().map(Vec::as_mut_slice));
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

fn in_chunks<const N: usize, const M: usize>(
    inputs: [&[bf16]; N],
    kernel: impl Fn([&[f32]; N], [&mut [f32]; M]),
) -> [Vec<bf16>; M] {
    let len = inputs[0].len();
    let mut outputs: [Vec<bf16>; M] = std::array::from_fn(|_| Vec::with_capacity(len));
    let mut wide = [[0.0; CHUNK]; N];
    let mut results = [[0.0; CHUNK]; M];
    let mut rounded = [bf16::ZERO; CHUNK];
    for first in (0..len).step_by(CHUNK) {
        let count = CHUNK.min(len - first);
        for (wide, input) in wide.iter_mut().zip(inputs) {
            widen(&input[first..first + count], &mut wide[..count]);
        }
        kernel(
            wide.each_ref().map(|it| &it[..count]),
            results.each_mut().map(|it| &mut it[..count]),
        );
        for (result, output) in results.iter().zip(&mut outputs) {
            round(&result[..count], &mut rounded[..count]);
            output.extend_from_slice(&rounded[..count]);
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
    use candle_core::Device;

    use super::*;

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
        let zeros = |count: usize| Tensor::zeros(count, candle_core::DType::F32, &Device::Cpu);
        let error = Backend::CpuF32.add(&zeros(3).unwrap(), &zeros(4).unwrap());
        assert!(error.unwrap_err().to_string().contains("add: [4] for [3]"));
    }
}
