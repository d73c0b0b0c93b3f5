//! RMSNorm over the last dimension (Zhang and Sennrich, arXiv:1910.07467).
//!
//! Invariant: a row's bits depend on that row and the weight alone.

use candle_core::{D, Result, Tensor, bail};

use super::bf16_values::widened;
use super::math::{combine, combine3, sum};
use super::simd::{Kernel, Simd, dispatch};
use super::{Backend, at_least_f32, autograd_backward, tensor};

impl Backend {
    /// Returns x `[.., W]` / sqrt(mean(x²) + eps) * weight `[W]`.
    pub fn rms_norm(self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        match self {
            Self::TensorOps => rms_norm_tensor_ops(x, weight, eps),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::rms_norm(x, weight, eps),
            _ => self.rms_norm_by_kernel(x, weight, eps),
        }
    }

    /// Returns x + y, and its [`Self::rms_norm`].
    pub fn add_and_norm(
        self,
        x: &Tensor,
        y: &Tensor,
        weight: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            return super::cuda::add_and_norm(x, y, weight, eps);
        }
        let sum = self.add(x, y)?;
        let normed = self.rms_norm(&sum, weight, eps)?;
        Ok((sum, normed))
    }

    /// Returns the gradients of x and of the weight. `residual`, the gradient of x through the
    /// residual connection, is added to the first.
    pub fn rms_norm_backward(
        self,
        x: &Tensor,
        weight: &Tensor,
        eps: f64,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        if self == Self::TensorOps {
            let tensor_ops = |[x, weight]: [&Tensor; 2]| rms_norm_tensor_ops(x, weight, eps);
            let [dx, dweight] = autograd_backward([x, weight], dy, tensor_ops)?;
            return Ok(match residual {
                Some(residual) => ((dx + residual)?, dweight),
                None => (dx, dweight),
            });
        }
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            return super::cuda::rms_norm_backward(x, weight, eps, dy, residual);
        }
        self.rms_norm_backward_by_kernel(x, weight, eps, dy, residual)
    }

    fn rms_norm_by_kernel(self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        let weight = weight_of(x, weight)?;
        let kernel = |_, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]| {
            dispatch(Forward {
                x,
                weight: &weight,
                eps: eps as f32,
                y,
            });
        };
        let [y] = self.rowwise(("rms-norm", weight.len()), [x], kernel)?;
        Ok(y)
    }

    fn rms_norm_backward_by_kernel(
        self,
        x: &Tensor,
        weight: &Tensor,
        eps: f64,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let weight = weight_of(x, weight)?;
        let mut dweight = vec![0.0; weight.len()];
        let mut kernel = |x: &[f32], dy: &[f32], residual: Option<&[f32]>, dx: &mut [f32]| {
            dispatch(Backward {
                x,
                weight: &weight,
                dy,
                residual,
                eps: eps as f32,
                dx,
                dweight: &mut dweight,
            });
        };
        let rows = ("rms-norm", weight.len());
        let [dx] = match residual {
            None => self.rowwise(rows, [x, dy], |_, [x, dy], [dx]| kernel(x, dy, None, dx))?,
            Some(residual) => {
                self.rowwise(rows, [x, dy, residual], |_, [x, dy, residual], [dx]| {
                    kernel(x, dy, Some(residual), dx);
                })?
            }
        };
        let width = dweight.len();
        Ok((dx, tensor(dweight, width)?))
    }
}

/// Returns the weight of a norm in f32.
fn weight_of(x: &Tensor, weight: &Tensor) -> Result<Vec<f32>> {
    if x.dims().last() != Some(&weight.elem_count()) {
        bail!("rms-norm: {x:?} against a weight {weight:?}");
    }
    widened(weight)?.to_vec1()
}

/// [`Backend::rms_norm`] by tensor operations; half precision is widened to f32 inside.
fn rms_norm_tensor_ops(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = at_least_f32(x)?;
    let mean = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean + eps)?.sqrt()?)?;
    let weight = weight.to_dtype(wide.dtype())?;
    normed.broadcast_mul(&weight)?.to_dtype(x.dtype())
}

/// Returns 1 / sqrt(mean(x²) + eps).
#[inline(always)]
fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    let squares = sum::<S>(x, x, |x, _| x.mul(x));
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

struct Forward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.weight.len();
        for (x, y) in self
            .x
            .chunks_exact(width)
            .zip(self.y.chunks_exact_mut(width))
        {
            let inverse = S::splat(inverse_rms::<S>(x, self.eps));
            combine::<S>(x, self.weight, y, |x, weight| x.mul(inverse).mul(weight));
        }
    }
}

struct Backward<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    dy: &'a [f32],
    residual: Option<&'a [f32]>,
    eps: f32,
    dx: &'a mut [f32],
    dweight: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    /// With n = x / rms and u = dy * weight: dx = (u - n mean(u n)) / rms, dweight = sum over rows
    /// of dy n, in order of rows.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.weight.len();
        let mut scaled = vec![0.0; width];
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for (i, ((x, dy), dx)) in rows.zip(self.dx.chunks_exact_mut(width)).enumerate() {
            let inverse = inverse_rms::<S>(x, self.eps);
            let lanes = S::splat(inverse);
            combine::<S>(dy, self.weight, &mut scaled, |dy, weight| dy.mul(weight));
            let dot = sum::<S>(&scaled, x, |u, x| u.mul(x.mul(lanes)));
            let mean = S::splat(dot / width as f32);
            combine::<S>(&scaled, x, dx, |u, x| {
                u.sub(x.mul(lanes).mul(mean)).mul(lanes)
            });
            if let Some(residual) = self.residual {
                let residual = &residual[i * width..][..width];
                combine3::<S>(residual, residual, dx, |residual, _, dx| dx.add(residual));
            }
            combine3::<S>(dy, x, self.dweight, |dy, x, sum| dy.fma(x.mul(lanes), sum));
        }
    }
}
