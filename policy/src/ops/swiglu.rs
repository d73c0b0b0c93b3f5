//! SwiGLU, the activation of all supported families: silu(gate) * up (Shazeer, arXiv:2002.05202).
//!
//! Invariant: elementwise; silu(x) = x / (1 + e^-x) with the crate's own exponential.

use candle_core::{Result, Tensor};

use super::math::{combine, sigmoid};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::{Backend, at_least_f32, autograd_backward};

impl Backend {
    /// Returns silu(gate) * up for gate and up [T, I] → [T, I].
    pub fn swiglu(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Self::TensorOps => swiglu_tensor_ops(gate, up),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::swiglu(gate, up),
            _ => {
                let kernel = |_, [gate, up]: [&[f32]; 2], [out]: [&mut [f32]; 1]| {
                    dispatch(Forward { gate, up, out });
                };
                let [out] = self.rowwise(("swiglu", 1), [gate, up], kernel)?;
                Ok(out)
            }
        }
    }

    /// Returns the gradients of gate and up.
    pub fn swiglu_backward(
        self,
        gate: &Tensor,
        up: &Tensor,
        dout: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let tensor_ops = |[gate, up]: [&Tensor; 2]| swiglu_tensor_ops(gate, up);
        let [dgate, dup] = match self {
            Self::TensorOps => autograd_backward([gate, up], dout, tensor_ops)?,
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::swiglu_backward(gate, up, dout)?,
            _ => {
                let kernel = |_, [gate, up, dout]: [&[f32]; 3], [dgate, dup]: [&mut [f32]; 2]| {
                    dispatch(Backward {
                        gate,
                        up,
                        dout,
                        dgate,
                        dup,
                    });
                };
                self.rowwise(("swiglu", 1), [gate, up, dout], kernel)?
            }
        };
        Ok((dgate, dup))
    }
}

/// [`Backend::swiglu`] by tensor operations; half precision is widened to f32 inside.
fn swiglu_tensor_ops(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    (at_least_f32(gate)?.silu()? * at_least_f32(up)?)?.to_dtype(gate.dtype())
}

struct Forward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        combine::<S>(self.gate, self.up, self.out, |gate, up| {
            gate.mul(sigmoid(gate)).mul(up)
        });
    }
}

struct Backward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    dout: &'a [f32],
    dgate: &'a mut [f32],
    dup: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    /// silu'(x) = s + x s (1 - s) with s = sigmoid(x).
    #[inline(always)]
    fn run<S: Simd>(self) {
        let one = S::splat(1.0);
        let inputs = self.gate.chunks(LANES).zip(self.up.chunks(LANES));
        let inputs = inputs.zip(self.dout.chunks(LANES));
        let outputs = self.dgate.chunks_mut(LANES).zip(self.dup.chunks_mut(LANES));
        for (((gate, up), dout), (dgate, dup)) in inputs.zip(outputs) {
            let [gate, up, dout] = [gate, up, dout].map(|x| S::load_some(x, 0.0));
            let s = sigmoid(gate);
            let slope = gate.mul(s).fma(one.sub(s), s);
            dout.mul(up).mul(slope).store_some(dgate);
            dout.mul(gate.mul(s)).store_some(dup);
        }
    }
}
