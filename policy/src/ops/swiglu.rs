//! silu(gate) * up, the gated activation of all supported families (Shazeer, arXiv:2002.05202).
//!
//! Invariant: elementwise; silu(x) = x / (1 + e^-x) with the crate's own exponential.

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};

use super::math::{combine, combine3, sigmoid};
use super::simd::{Kernel, Simd, dispatch};
use super::{has_kernels, read, values};

/// gate [T, I], up [T, I] → [T, I].
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if has_kernels(gate) {
        gate.contiguous()?.apply_op2(&up.contiguous()?, SwiGlu)
    } else {
        swiglu_composed(gate, up)
    }
}

/// The same from candle's operations.
pub fn swiglu_composed(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.silu()? * up
}

struct SwiGlu;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (values(gate, gate_layout)?, values(up, up_layout)?);
        if gate.len() != up.len() {
            candle_core::bail!("swiglu: {} gates for {} values", gate.len(), up.len());
        }
        let mut out = vec![0.0; gate.len()];
        dispatch(Forward {
            gate,
            up,
            out: &mut out,
        });
        Ok((CpuStorage::F32(out), gate_layout.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _out: &Tensor,
        dout: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dgate, dup) = read([gate, up, dout], |[gate, up, dout]| {
            let mut dgate = dout.to_vec();
            let mut dup = dout.to_vec();
            dispatch(Backward {
                gate,
                up,
                dgate: &mut dgate,
                dup: &mut dup,
            });
            Ok((dgate, dup))
        })?;
        Ok((
            Some(Tensor::from_vec(dgate, gate.shape(), &Device::Cpu)?),
            Some(Tensor::from_vec(dup, up.shape(), &Device::Cpu)?),
        ))
    }
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

/// Turns two copies of the output's gradient into the gradients of gate and up.
struct Backward<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    dgate: &'a mut [f32],
    dup: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    /// silu'(x) = s + x s (1 - s) with s = sigmoid(x).
    #[inline(always)]
    fn run<S: Simd>(self) {
        let one = S::splat(1.0);
        combine3::<S>(self.gate, self.up, self.dgate, |gate, up, d| {
            let s = sigmoid(gate);
            let slope = gate.mul(s).fma(one.sub(s), s);
            d.mul(up).mul(slope)
        });
        combine3::<S>(self.gate, self.up, self.dup, |gate, _, d| {
            d.mul(gate.mul(sigmoid(gate)))
        });
    }
}
