//! Linear layers: y = x Wᵀ, with W [out, in] as Hugging Face stores it.
//!
//! Invariant: an output element is one chain of fused multiply-adds (see `matmul`), the same
//! whether W is packed once for sampling or during the product for training.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use super::fixed_shape::product_of_rows;
use super::matmul::{PackedMatrix, Right, View, WriteMode, multiply, product};
use super::{at_least_f32, kernels_support, read, tensor, uses_kernels, widens_for_kernels};

/// A weight [out, in] as training or sampling holds it.
#[derive(Clone)]
pub enum LinearWeight {
    /// The tensor itself, which the backward pass needs.
    Tensor(Tensor),
    /// A copy packed for the kernels.
    Packed(Arc<PackedWeight>),
}

/// A weight packed for the kernels.
pub struct PackedWeight(PackedMatrix);

impl LinearWeight {
    /// Prepares the weight for [`linear_unrounded`]: widened once, and packed where kernels take
    /// it.
    pub fn packed_unrounded(weight: &Tensor) -> Result<Self> {
        Self::packed(&at_least_f32(weight)?)
    }

    /// Packs the weight where kernels take it; elsewhere keeps the tensor.
    pub fn packed(weight: &Tensor) -> Result<Self> {
        if !kernels_support(weight.device(), weight.dtype()) {
            return Ok(Self::Tensor(weight.clone()));
        }
        let (n, k) = weight.dims2()?;
        let packed = read([&at_least_f32(weight)?], |[w]| {
            Ok(PackedMatrix::new(View::new(w, n, k, k).transposed()))
        })?;
        Ok(Self::Packed(Arc::new(PackedWeight(packed))))
    }

    fn widened(&self) -> Result<Self> {
        Ok(match self {
            Self::Tensor(weight) => Self::Tensor(at_least_f32(weight)?),
            Self::Packed(packed) => Self::Packed(packed.clone()),
        })
    }
}

/// Computes x Wᵀ for x [T, in] → [T, out].
pub fn linear(x: &Tensor, weight: &LinearWeight) -> Result<Tensor> {
    if widens_for_kernels(x) {
        return linear(&at_least_f32(x)?, &weight.widened()?)?.to_dtype(x.dtype());
    }
    let (m, k) = x.dims2()?;
    match weight {
        LinearWeight::Tensor(weight) if uses_kernels(x) => {
            let (n, in_features) = weight.dims2()?;
            if k != in_features {
                bail!("linear: x is [{m}, {k}] but the weight is [{n}, {in_features}]");
            }
            let y = read([x, weight], |[x, w]| {
                let w = View::new(w, n, k, k).transposed();
                Ok(product(View::new(x, m, k, k), Right::Plain(w)))
            })?;
            tensor(y, (m, n))
        }
        LinearWeight::Tensor(weight) => linear_tensor_ops(x, weight),
        LinearWeight::Packed(packed) => {
            let n = packed.0.columns();
            let y = read([x], |[x]| {
                Ok(product(View::new(x, m, k, k), Right::Packed(&packed.0)))
            })?;
            tensor(y, (m, n))
        }
    }
}

/// [`linear`] without the last rounding: half precision gives f32, as logits need.
pub fn linear_unrounded(x: &Tensor, weight: &LinearWeight) -> Result<Tensor> {
    linear(&at_least_f32(x)?, &weight.widened()?)
}

/// [`linear`] by tensor operations.
pub fn linear_tensor_ops(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    product_of_rows(x, &weight.t()?)
}

/// Returns the gradient [T, in] of an x that went through several weights: the sum of dy [T, out]
/// times W [out, in], in the order given.
///
/// # Panics
/// If `outputs` is empty.
pub fn linear_input_gradient(outputs: &[(&Tensor, &Tensor)]) -> Result<Tensor> {
    let ((dy, weight), rest) = outputs.split_first().expect("a gradient: this is a bug");
    if !uses_kernels(dy) {
        let mut dx = dy.matmul(weight)?;
        for (dy, weight) in rest {
            dx = (dx + dy.matmul(weight)?)?;
        }
        return Ok(dx);
    }
    let (m, k) = (dy.dim(0)?, weight.dim(1)?);
    let n = weight.dim(0)?;
    let mut dx = read([dy, weight], |[dy, w]| {
        let w = View::new(w, n, k, k);
        Ok(product(View::new(dy, m, n, n), Right::Plain(w)))
    })?;
    for (dy, weight) in rest {
        let n = weight.dim(0)?;
        read([dy, weight], |[dy, w]| {
            let (dy, w) = (View::new(dy, m, n, n), View::new(w, n, k, k));
            multiply(dy, Right::Plain(w), &mut dx, k, WriteMode::Accumulate);
            Ok(())
        })?;
    }
    tensor(dx, (m, k))
}

/// Returns the gradient [out, in] of a weight: dyᵀ x, for dy [T, out] and x [T, in].
pub fn linear_weight_gradient(x: &Tensor, dy: &Tensor) -> Result<Tensor> {
    if !uses_kernels(x) {
        return dy.t()?.matmul(x);
    }
    let ((m, k), (rows, n)) = (x.dims2()?, dy.dims2()?);
    if rows != m {
        bail!("linear: {rows} rows of gradients for {m} rows");
    }
    let dw = read([x, dy], |[x, dy]| {
        let dy = View::new(dy, m, n, n).transposed();
        Ok(product(dy, Right::Plain(View::new(x, m, k, k))))
    })?;
    tensor(dw, (n, k))
}
