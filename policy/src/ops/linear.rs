//! Linear layers: y = x Wᵀ, with W [out, in] as Hugging Face stores it.
//!
//! Invariant: an output element has one order of sums (see `matmul` and `matmul_bf16`), the same
//! whether W is packed once for sampling or during the product for training.

use candle_core::{Device, Result, Tensor, bail};

use super::bf16_values::widened;
use super::fixed_shape::product_of_rows;
use super::matmul::{PackedMatrix, Right, View, WriteMode, multiply, product};
use super::matmul_bf16::{Bf16Matrix, multiply_bf16, rounded_products, rounded_sum_of_products};
use super::{Backend, at_least_f32, read, read_all, tensor};

/// A weight [out, in] as a backend holds it for training or for sampling.
pub enum LinearWeight {
    /// The tensor itself.
    Tensor(Tensor),
    /// Packed for sampling in f32.
    Packed(PackedMatrix),
    /// Packed for products of bf16.
    Bf16(Bf16Weight),
}

/// A weight packed for products of bf16.
pub struct Bf16Weight {
    /// Wᵀ, for y = x Wᵀ.
    forward: Bf16Matrix,
    /// W, for dx = dy W. Sampling needs none.
    backward: Option<Bf16Matrix>,
}

impl LinearWeight {
    /// Returns whether the weight has a backward pass.
    pub fn is_trainable(&self) -> bool {
        match self {
            Self::Tensor(_) => true,
            Self::Packed(_) => false,
            Self::Bf16(weight) => weight.backward.is_some(),
        }
    }

    /// Returns the weight that a backward pass reads as a tensor.
    pub(super) fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(weight) => Ok(weight),
            _ => bail!("linear: a packed weight is not a tensor: this is a bug"),
        }
    }

    /// Returns the packed weight [out, in] of dx = dy W in bf16.
    fn backward_bf16(&self) -> Result<&Bf16Matrix> {
        let packed = match self {
            Self::Bf16(weight) => weight.backward.as_ref(),
            _ => None,
        };
        match packed {
            Some(packed) => Ok(packed),
            None => bail!("linear: this weight has no backward pass in bf16: this is a bug"),
        }
    }

    /// Returns the shape [out, in].
    pub(super) fn shape(&self) -> Result<(usize, usize)> {
        Ok(match self {
            Self::Tensor(weight) => weight.dims2()?,
            Self::Packed(weight) => (weight.columns(), weight.rows()),
            Self::Bf16(weight) => (weight.forward.columns(), weight.forward.rows()),
        })
    }
}

impl Backend {
    /// Prepares a weight for training: both passes read it.
    pub fn training_weight(self, weight: &Tensor) -> Result<LinearWeight> {
        match self {
            Self::CpuBf16 => packed_bf16(weight, true),
            _ => Ok(LinearWeight::Tensor(weight.clone())),
        }
    }

    /// Prepares a weight for sampling: kernels read it packed.
    pub fn sampling_weight(self, weight: &Tensor) -> Result<LinearWeight> {
        match self {
            Self::CpuF32 => {
                let (n, k) = weight.dims2()?;
                let packed = read([weight], |[w]| {
                    Ok(PackedMatrix::new(View::new(w, n, k, k).transposed()))
                })?;
                Ok(LinearWeight::Packed(packed))
            }
            Self::CpuBf16 => packed_bf16(weight, false),
            _ => Ok(LinearWeight::Tensor(weight.clone())),
        }
    }

    /// Computes x Wᵀ for x [T, in] → [T, out], for each of the weights that read the same x.
    pub fn linears<const N: usize>(
        self,
        x: &Tensor,
        weights: [&LinearWeight; N],
    ) -> Result<[Tensor; N]> {
        let products = match self {
            Self::TensorOps => weights
                .iter()
                .map(|weight| linear_tensor_ops(x, weight.tensor()?))
                .collect::<Result<Vec<_>>>()?,
            Self::CpuF32 => weights
                .iter()
                .map(|weight| self.linear_unrounded(x, weight))
                .collect::<Result<Vec<_>>>()?,
            Self::CpuBf16 => linears_bf16(x, &weights)?,
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => {
                let tensors = weights.iter().map(|weight| weight.tensor());
                super::cuda::linears(x, &tensors.collect::<Result<Vec<_>>>()?)?
            }
        };
        Ok(products
            .try_into()
            .expect("each weight has one: this is a bug"))
    }

    /// [`Self::linears`] of one weight, without the last rounding: half precision gives f32, as
    /// logits need.
    pub fn linear_unrounded(self, x: &Tensor, weight: &LinearWeight) -> Result<Tensor> {
        if let (Self::TensorOps, LinearWeight::Tensor(weight)) = (self, weight) {
            return linear_tensor_ops(&at_least_f32(x)?, &at_least_f32(weight)?);
        }
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            return super::cuda::linears_unrounded(x, weight.tensor()?);
        }
        let (m, n) = (x.dim(0)?, weight.shape()?.0);
        tensor(product_with(x, weight)?, (m, n))
    }

    /// Returns the gradient [T, in] of an x that went through several weights: the sum of dy [T,
    /// out] times W [out, in], in the order given.
    ///
    /// # Errors
    /// A weight is prepared for sampling.
    ///
    /// # Panics
    /// If `outputs` is empty.
    pub fn linear_input_gradient(self, outputs: &[(&Tensor, &LinearWeight)]) -> Result<Tensor> {
        assert!(!outputs.is_empty(), "no gradient is given: this is a bug");
        match self {
            Self::CpuF32 => input_gradient_f32(outputs),
            Self::CpuBf16 => input_gradient_bf16(outputs),
            _ => input_gradient_tensor_ops(outputs),
        }
    }

    /// Returns the gradients [out, in] of weights that read the same x: dyᵀ x for each dy [T, out],
    /// and x [T, in].
    pub fn linear_weight_gradients(self, x: &Tensor, dys: &[&Tensor]) -> Result<Vec<Tensor>> {
        if !self.is_cpu() {
            return dys.iter().map(|dy| dy.t()?.matmul(x)).collect();
        }
        let right = self.right_factor(x)?;
        let gradient = |dy: &&Tensor| {
            let shape = (dy.dim(1)?, x.dim(1)?);
            let mut dw = vec![0.0; shape.0 * shape.1];
            right.add_weight_gradient(dy, &mut dw)?;
            tensor(dw, shape)
        };
        dys.iter().map(gradient).collect()
    }

    /// Adds dyᵀ x to `sum` [out, in], by kernels.
    pub(super) fn add_weight_gradient(
        self,
        x: &Tensor,
        dy: &Tensor,
        sum: &mut [f32],
    ) -> Result<()> {
        self.right_factor(x)?.add_weight_gradient(dy, sum)
    }

    /// Prepares x as the right-hand matrix of products by kernels.
    fn right_factor(self, x: &Tensor) -> Result<RightFactor> {
        let (m, k) = x.dims2()?;
        match self {
            Self::CpuBf16 => read([x], |[x]| {
                Ok(RightFactor::Bf16(Bf16Matrix::new(View::new(x, m, k, k))))
            }),
            _ => Ok(RightFactor::F32(x.clone())),
        }
    }

    /// Returns the gradient `[out]` of a bias: the sum of dy [T, out] over its rows.
    pub fn bias_gradient(self, dy: &Tensor) -> Result<Tensor> {
        match self {
            Self::CpuBf16 => widened(dy)?.sum(0),
            _ => dy.sum(0),
        }
    }
}

/// The right-hand matrix [T, in] of several products.
enum RightFactor {
    F32(Tensor),
    Bf16(Bf16Matrix),
}

impl RightFactor {
    /// Adds the product of dyᵀ and this matrix to `sum` [out, in].
    fn add_weight_gradient(&self, dy: &Tensor, sum: &mut [f32]) -> Result<()> {
        let (m, n) = dy.dims2()?;
        let rows = match self {
            Self::F32(x) => x.dim(0)?,
            Self::Bf16(x) => x.rows(),
        };
        if rows != m {
            bail!("linear: {m} rows of gradients for {rows} rows");
        }
        match self {
            Self::Bf16(x) => read([dy], |[dy]| {
                let dy = View::new(dy, m, n, n).transposed();
                multiply_bf16((dy, x), sum, WriteMode::Accumulate)
            }),
            Self::F32(x) => read([x, dy], |[values, dy]| {
                let (dy, k) = (View::new(dy, m, n, n).transposed(), x.dim(1)?);
                let x = Right::Plain(View::new(values, m, k, k));
                multiply(dy, x, sum, k, WriteMode::Accumulate);
                Ok(())
            }),
        }
    }
}

/// [`Backend::linears`] of one weight, by tensor operations.
pub(super) fn linear_tensor_ops(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    product_of_rows(x, &weight.t()?)
}

fn input_gradient_tensor_ops(outputs: &[(&Tensor, &LinearWeight)]) -> Result<Tensor> {
    let mut sum: Option<Tensor> = None;
    for (dy, weight) in outputs {
        let dx = dy.matmul(weight.tensor()?)?;
        sum = Some(match sum {
            Some(before) => (before + dx)?,
            None => dx,
        });
    }
    Ok(sum.expect("there is a gradient: this is a bug"))
}

fn input_gradient_f32(outputs: &[(&Tensor, &LinearWeight)]) -> Result<Tensor> {
    let (dy, (_, k)) = (outputs[0].0, outputs[0].1.shape()?);
    let m = dy.dim(0)?;
    let mut dx = vec![0.0; m * k];
    for (number, (dy, weight)) in outputs.iter().enumerate() {
        let (n, _) = weight.shape()?;
        let write_mode = match number {
            0 => WriteMode::Overwrite,
            _ => WriteMode::Accumulate,
        };
        read([dy, weight.tensor()?], |[dy, w]| {
            let (dy, w) = (View::new(dy, m, n, n), View::new(w, n, k, k));
            multiply(dy, Right::Plain(w), &mut dx, k, write_mode);
            Ok(())
        })?;
    }
    tensor(dx, (m, k))
}

fn input_gradient_bf16(outputs: &[(&Tensor, &LinearWeight)]) -> Result<Tensor> {
    let (m, (_, k)) = (outputs[0].0.dim(0)?, outputs[0].1.shape()?);
    let dys: Vec<&Tensor> = outputs.iter().map(|(dy, _)| *dy).collect();
    let sum = read_all(&dys, |values| {
        let mut products = Vec::with_capacity(outputs.len());
        for ((dy, weight), values) in outputs.iter().zip(values) {
            let (rows, n) = dy.dims2()?;
            products.push((View::new(values, rows, n, n), weight.backward_bf16()?));
        }
        rounded_sum_of_products(&products, (m, k))
    })?;
    Tensor::from_vec(sum, (m, k), &Device::Cpu)
}

fn packed_bf16(weight: &Tensor, is_trained: bool) -> Result<LinearWeight> {
    let (n, k) = weight.dims2()?;
    let packed = read([weight], |[w]| {
        let w = View::new(w, n, k, k);
        Ok(Bf16Weight {
            forward: Bf16Matrix::new(w.transposed()),
            backward: is_trained.then(|| Bf16Matrix::new(w)),
        })
    })?;
    Ok(LinearWeight::Bf16(packed))
}

/// Returns x Wᵀ [T, out] by kernels, unrounded.
pub(super) fn product_with(x: &Tensor, weight: &LinearWeight) -> Result<Vec<f32>> {
    let (m, k) = x.dims2()?;
    let (n, in_features) = weight.shape()?;
    if k != in_features {
        bail!("linear: x is [{m}, {k}] but the weight is [{n}, {in_features}]");
    }
    match weight {
        LinearWeight::Tensor(weight) => read([x, weight], |[x, w]| {
            let w = View::new(w, n, k, k).transposed();
            Ok(product(View::new(x, m, k, k), Right::Plain(w)))
        }),
        LinearWeight::Packed(weight) => read([x], |[x]| {
            Ok(product(View::new(x, m, k, k), Right::Packed(weight)))
        }),
        LinearWeight::Bf16(weight) => read([x], |[x]| {
            let (mut y, x) = (vec![0.0; m * n], View::new(x, m, k, k));
            multiply_bf16((x, &weight.forward), &mut y, WriteMode::Overwrite)?;
            Ok(y)
        }),
    }
}

/// [`Backend::linears`] in bf16.
fn linears_bf16(x: &Tensor, weights: &[&LinearWeight]) -> Result<Vec<Tensor>> {
    let (m, k) = x.dims2()?;
    let mut packed = Vec::with_capacity(weights.len());
    for weight in weights {
        match weight {
            LinearWeight::Bf16(weight) => packed.push(&weight.forward),
            _ => bail!("linear: a weight is not packed for bf16: this is a bug"),
        }
    }
    let products = read([x], |[x]| rounded_products(View::new(x, m, k, k), &packed))?;
    let products = products.into_iter().zip(&packed);
    products
        .map(|(y, packed)| Tensor::from_vec(y, (m, packed.columns()), x.device()))
        .collect()
}
