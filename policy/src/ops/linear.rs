//! y = x Wᵀ, with W as Hugging Face stores it: [out, in].
//!
//! Invariant: an output element is one chain of fused multiply-adds (see `matmul`), the same whether W is packed once for
//! sampling or on the way for training.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor};

use super::matmul::{Packed, Right, Store, View, multiply};
use super::{has_kernels, read, values};

/// A weight of shape [out, in], as training or sampling holds it.
#[derive(Clone)]
pub enum LinearWeight {
    /// The tensor itself: gradients flow to it, and a change of it is seen.
    Tensor(Tensor),
    /// A copy laid out for the kernels; no gradient.
    Packed(Arc<PackedWeight>),
}

/// A weight laid out for the kernels.
pub struct PackedWeight(Packed);

impl LinearWeight {
    /// The weight packed where the kernels serve it; the detached tensor elsewhere.
    pub fn packed(weight: &Tensor) -> Result<Self> {
        if !has_kernels(weight) {
            return Ok(Self::Tensor(weight.detach()));
        }
        let (n, k) = weight.dims2()?;
        let packed = read([weight], |[w]| {
            Ok(Packed::new(View::new(w, n, k, k).transposed()))
        })?;
        Ok(Self::Packed(Arc::new(PackedWeight(packed))))
    }
}

/// x [T, in] → [T, out].
pub fn linear(x: &Tensor, weight: &LinearWeight) -> Result<Tensor> {
    match weight {
        LinearWeight::Tensor(weight) if has_kernels(x) => {
            x.contiguous()?.apply_op2(&weight.contiguous()?, Linear)
        }
        LinearWeight::Tensor(weight) => linear_composed(x, weight),
        LinearWeight::Packed(packed) => {
            let (m, k) = x.dims2()?;
            let n = packed.0.columns();
            let y = read([x], |[x]| {
                Ok(product(View::new(x, m, k, k), Right::Packed(&packed.0), n))
            })?;
            Tensor::from_vec(y, (m, n), &Device::Cpu)
        }
    }
}

/// The same from candle's operations.
pub fn linear_composed(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(&weight.t()?)
}

/// A B as a new row-major matrix of `n` columns.
fn product(a: View<'_>, b: Right<'_>, n: usize) -> Vec<f32> {
    let mut c = vec![0.0; a.shape().0 * n];
    multiply(a, b, &mut c, n, Store::Overwrite);
    c
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (m, k) = x_layout.shape().dims2()?;
        let (n, in_features) = w_layout.shape().dims2()?;
        if k != in_features {
            candle_core::bail!("linear: x is [{m}, {k}] but the weight is [{n}, {in_features}]");
        }
        let x = View::new(values(x, x_layout)?, m, k, k);
        let w = View::new(values(w, w_layout)?, n, k, k);
        let y = product(x, Right::Plain(w.transposed()), n);
        Ok((CpuStorage::F32(y), (m, n).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let ((m, k), n) = (x.dims2()?, w.dim(0)?);
        read([x, w, dy], |[x, w, dy]| {
            let (x, w) = (View::new(x, m, k, k), View::new(w, n, k, k));
            let dy = View::new(dy, m, n, n);
            let dx = product(dy, Right::Plain(w), k);
            let dw = product(dy.transposed(), Right::Plain(x), k);
            Ok((
                Some(Tensor::from_vec(dx, (m, k), &Device::Cpu)?),
                Some(Tensor::from_vec(dw, (n, k), &Device::Cpu)?),
            ))
        })
    }
}
