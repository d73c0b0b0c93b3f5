//! Rotary position embedding (RoPE) in the half-split layout of Hugging Face (Su et al.,
//! arXiv:2104.09864).
//!
//! Invariant: the angle is f32(position) * inverse frequency in f32, as transformers computes it.
//! Its sine and cosine come from a pure-Rust libm, so they are the same on every machine.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};
use parking_lot::RwLock;

use super::simd::{Kernel, Simd, dispatch};
use super::{Backend, at_least_f32, read};

/// The cos/sin table of the positions met so far. It grows on demand.
pub struct RopeTable {
    inverse_frequencies: Vec<f32>,
    /// Per position: D / 2 cosines, then D / 2 sines.
    cos_sin: RwLock<Arc<Vec<f32>>>,
}

impl RopeTable {
    /// Builds a table for these inverse frequencies, one for each pair of a head's D values.
    pub fn new(inverse_frequencies: Vec<f32>) -> Self {
        Self {
            inverse_frequencies,
            cos_sin: RwLock::default(),
        }
    }

    /// Returns the cosines, then the sines of each of the positions `[T]`: `[T, D]` in f32 on a
    /// device, for all layers of a pass.
    pub fn cos_sin(&self, positions: &[u32], device: &Device) -> Result<Tensor> {
        let width = 2 * self.inverse_frequencies.len();
        let count = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let cos_sin = self.table_up_to(count);
        let mut gathered = Vec::with_capacity(positions.len() * width);
        for &position in positions {
            gathered.extend_from_slice(&cos_sin[position as usize * width..][..width]);
        }
        Tensor::from_vec(gathered, (positions.len(), width), device)
    }

    fn table_up_to(&self, count: usize) -> Arc<Vec<f32>> {
        let width = 2 * self.inverse_frequencies.len();
        let known = Arc::clone(&self.cos_sin.read());
        if known.len() >= count * width {
            return known;
        }
        let mut cos_sin = Vec::with_capacity(count.next_power_of_two() * width);
        // Doubling keeps the cost of growing a table token by token linear.
        for position in 0..count.next_power_of_two() {
            let angles = self
                .inverse_frequencies
                .iter()
                .map(|frequency| f64::from(position as f32 * frequency));
            cos_sin.extend(angles.clone().map(|angle| libm::cos(angle) as f32));
            cos_sin.extend(angles.map(|angle| libm::sin(angle) as f32));
        }
        let cos_sin = Arc::new(cos_sin);
        *self.cos_sin.write() = Arc::clone(&cos_sin);
        cos_sin
    }
}

impl Backend {
    /// Rotates x `[T, H, D]` by the cos/sin rows `[T, D]` of its tokens' positions.
    pub fn rope(self, x: &Tensor, cos_sin: &Tensor) -> Result<Tensor> {
        self.rotate(x, cos_sin, false)
    }

    /// Norms the heads of q [T, H, D] and k [T, K, D] by [`Self::rms_norm`], if weights are given,
    /// and rotates both.
    pub fn norm_and_rope(
        self,
        q: &Tensor,
        k: &Tensor,
        norms: Option<(&Tensor, &Tensor)>,
        eps: f64,
        cos_sin: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        #[cfg(feature = "cuda")]
        if self == Self::CudaBf16 {
            return super::cuda::norm_and_rope(q, k, norms, eps, cos_sin);
        }
        let Some((of_q, of_k)) = norms else {
            return Ok((self.rope(q, cos_sin)?, self.rope(k, cos_sin)?));
        };
        let (q, k) = (self.rms_norm(q, of_q, eps)?, self.rms_norm(k, of_k, eps)?);
        Ok((self.rope(&q, cos_sin)?, self.rope(&k, cos_sin)?))
    }

    /// Returns the gradient of x: the inverse rotation of dy.
    pub fn rope_backward(self, dy: &Tensor, cos_sin: &Tensor) -> Result<Tensor> {
        self.rotate(dy, cos_sin, true)
    }

    fn rotate(self, x: &Tensor, cos_sin: &Tensor, inverse: bool) -> Result<Tensor> {
        match self {
            Self::TensorOps => rope_tensor_ops(x, cos_sin, inverse),
            #[cfg(feature = "cuda")]
            Self::CudaBf16 => super::cuda::rotate(x, cos_sin, inverse),
            _ => self.rotate_by_kernel(x, cos_sin, inverse),
        }
    }

    fn rotate_by_kernel(self, x: &Tensor, cos_sin: &Tensor, inverse: bool) -> Result<Tensor> {
        let (tokens, heads, width) = x.dims3()?;
        if cos_sin.dims() != [tokens, width] {
            bail!(
                "rope: {:?} against cos_sin {:?}",
                x.shape(),
                cos_sin.shape()
            );
        }
        read([cos_sin], |[cos_sin]: [&[f32]; 1]| {
            let kernel = |first: usize, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]| {
                dispatch(Rotate {
                    x,
                    cos_sin: &cos_sin[first * width..],
                    heads,
                    half: width / 2,
                    inverse,
                    y,
                });
            };
            let [y] = self.rowwise(("rope", heads * width), [x], kernel)?;
            Ok(y)
        })
    }
}

/// [`Backend::rope`], or its inverse, by tensor operations; half precision is widened to f32
/// inside.
fn rope_tensor_ops(x: &Tensor, cos_sin: &Tensor, inverse: bool) -> Result<Tensor> {
    let wide = at_least_f32(x)?;
    let half = x.dim(2)? / 2;
    let cos_sin = cos_sin.to_dtype(wide.dtype())?.unsqueeze(1)?;
    let cos = cos_sin.narrow(2, 0, half)?;
    let sin = cos_sin.narrow(2, half, half)?;
    let sin = if inverse { sin.neg()? } else { sin };
    let left = wide.narrow(2, 0, half)?;
    let right = wide.narrow(2, half, half)?;
    let rotated_left = (left.broadcast_mul(&cos)? - right.broadcast_mul(&sin)?)?;
    let rotated_right = (right.broadcast_mul(&cos)? + left.broadcast_mul(&sin)?)?;
    Tensor::cat(&[rotated_left, rotated_right], 2)?.to_dtype(x.dtype())
}

struct Rotate<'a> {
    x: &'a [f32],
    cos_sin: &'a [f32],
    heads: usize,
    half: usize,
    inverse: bool,
    y: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    /// Plain loops: the compiler vectorises them, and since it contracts no multiply-add their bits
    /// are the same at any width.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (half, width) = (self.half, 2 * self.half);
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let tokens = self.x.chunks_exact(self.heads * width);
        let tokens = tokens.zip(self.y.chunks_exact_mut(self.heads * width));
        for ((x, y), cos_sin) in tokens.zip(self.cos_sin.chunks_exact(width)) {
            let (cos, sin) = cos_sin.split_at(half);
            for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
                let (x_left, x_right) = x.split_at(half);
                let (y_left, y_right) = y.split_at_mut(half);
                for i in 0..half {
                    let (cos, sin) = (cos[i], sign * sin[i]);
                    y_left[i] = x_left[i] * cos - x_right[i] * sin;
                    y_right[i] = x_right[i] * cos + x_left[i] * sin;
                }
            }
        }
    }
}
