//! Root-mean-square norm over the last dimension (Zhang and Sennrich, arXiv:1910.07467).
//!
//! Invariant: a row's bits depend on that row and the weight alone.

use candle_core::{CpuStorage, CustomOp2, D, Device, Layout, Result, Shape, Tensor};

use super::math::{combine, combine3, sums};
use super::simd::{Kernel, Simd, dispatch};
use super::{at_least_f32, has_kernels, read, values};

/// x `[.., H]` / sqrt(mean(x²) + eps) * weight `[H]`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if has_kernels(x) {
        let op = RmsNorm { eps: eps as f32 };
        x.contiguous()?.apply_op2(&weight.contiguous()?, op)
    } else {
        rms_norm_composed(x, weight, eps)
    }
}

/// The same from candle's operations; half precision is widened to f32 inside.
pub fn rms_norm_composed(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = at_least_f32(x)?;
    let mean = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean + eps)?.sqrt()?)?;
    normed.to_dtype(x.dtype())?.broadcast_mul(weight)
}

struct RmsNorm {
    eps: f32,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let x = values(x, x_layout)?;
        let weight = values(weight, weight_layout)?;
        if x_layout.dims().last() != Some(&weight.len()) {
            candle_core::bail!(
                "rms-norm: {:?} against a weight of {}",
                x_layout.dims(),
                weight.len()
            );
        }
        let mut y = vec![0.0; x.len()];
        dispatch(Forward {
            x,
            weight,
            eps: self.eps,
            y: &mut y,
        });
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (shape, width) = (x.shape(), weight.elem_count());
        let (dx, dweight) = read([x, weight, dy], |[x, weight, dy]| {
            let mut dx = vec![0.0; x.len()];
            let mut dweight = vec![0.0; width];
            dispatch(Backward {
                x,
                weight,
                dy,
                eps: self.eps,
                dx: &mut dx,
                dweight: &mut dweight,
            });
            Ok((dx, dweight))
        })?;
        Ok((
            Some(Tensor::from_vec(dx, shape, &Device::Cpu)?),
            Some(Tensor::from_vec(dweight, weight.shape(), &Device::Cpu)?),
        ))
    }
}

/// 1 / sqrt(mean(x²) + eps).
#[inline(always)]
fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    let [squares, _] = sums::<S>(x, x, |x, _| [x.mul(x), S::splat(0.0)]);
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
    eps: f32,
    dx: &'a mut [f32],
    dweight: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    /// With n = x / rms and u = dy * weight: dx = (u - n mean(u n)) / rms, dweight = sum over rows of dy n.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.weight.len();
        let mut scaled = vec![0.0; width];
        let rows = self.x.chunks_exact(width).zip(self.dy.chunks_exact(width));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(width)) {
            let inverse = inverse_rms::<S>(x, self.eps);
            let lanes = S::splat(inverse);
            combine::<S>(dy, self.weight, &mut scaled, |dy, weight| dy.mul(weight));
            let [dot, _] = sums::<S>(&scaled, x, |u, x| [u.mul(x.mul(lanes)), S::splat(0.0)]);
            let mean = S::splat(dot / width as f32);
            combine::<S>(&scaled, x, dx, |u, x| {
                u.sub(x.mul(lanes).mul(mean)).mul(lanes)
            });
            combine3::<S>(dy, x, self.dweight, |dy, x, sum| dy.fma(x.mul(lanes), sum));
        }
    }
}
