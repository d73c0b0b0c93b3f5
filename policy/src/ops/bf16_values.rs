//! Values between bf16 and f32 on the CPU.
//!
//! Invariant: rounding is to the nearest value, ties to even, as `half` and torch round. Loops over
//! bits have no branch, so the compiler vectorises them.

use candle_core::{DType, Device, Result, Shape, Tensor};
use half::bf16;

use super::simd::{Kernel, Simd, dispatch};
use super::{read, tensor};

/// The bits of 2^-55, without the sign. Products take smaller values as zero (`matmul_bf16`).
const SMALLEST: u16 = (127 - 55) << 7;

/// Values that a loop makes in the first-level cache before they are appended to a vector: memory
/// that is filled with zeros first is written twice.
const CHUNK: usize = 1024;

/// Returns a bf16 tensor in f32, and an f32 tensor as it is.
pub(super) fn widened(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::F32 {
        return Ok(x.clone());
    }
    let mut wide = vec![0.0; x.elem_count()];
    read([x], |[x]| {
        widen(x, &mut wide);
        Ok(())
    })?;
    tensor(wide, x.shape())
}

/// Wraps the output of a kernel as a bf16 tensor.
pub(super) fn rounded_tensor(values: &[f32], shape: impl Into<Shape>) -> Result<Tensor> {
    let mut rounded = Vec::with_capacity(values.len());
    append_rounded(values, &mut rounded);
    Tensor::from_vec(rounded, shape.into(), &Device::Cpu)
}

/// Widens values to f32.
pub(super) fn widen(x: &[bf16], wide: &mut [f32]) {
    dispatch(WidenInto { x, wide });
}

/// Rounds values to bf16.
pub(super) fn round(x: &[f32], rounded: &mut [bf16]) {
    dispatch(RoundInto { x, rounded });
}

/// Rounds values to bf16 and appends them.
pub(super) fn append_rounded(x: &[f32], rounded: &mut Vec<bf16>) {
    dispatch(AppendRounded { x, rounded });
}

/// Returns a value in f32, or zero if a product takes it as zero.
#[inline(always)]
pub(super) fn factor(value: bf16) -> f32 {
    f32::from_bits(u32::from(factor_bits(value)) << 16)
}

/// Returns the bits of [`factor`] in bf16.
#[inline(always)]
pub(super) fn factor_bits(value: bf16) -> u16 {
    let bits = value.to_bits();
    let is_small = (bits & 0x7fff) < SMALLEST;
    if is_small { 0 } else { bits }
}

#[inline(always)]
fn wide(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

#[inline(always)]
fn nearest(value: f32) -> bf16 {
    let bits = value.to_bits();
    let is_nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
    // Half a step, less one bit if the value is even, carries into the bits that are kept.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A NaN keeps a bit of its payload.
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if is_nan { nan } else { nearest } as u16)
}

struct AppendRounded<'a> {
    x: &'a [f32],
    rounded: &'a mut Vec<bf16>,
}

impl Kernel for AppendRounded<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut chunk = [bf16::ZERO; CHUNK];
        for x in self.x.chunks(CHUNK) {
            for (y, &x) in chunk.iter_mut().zip(x) {
                *y = nearest(x);
            }
            self.rounded.extend_from_slice(&chunk[..x.len()]);
        }
    }
}

struct WidenInto<'a> {
    x: &'a [bf16],
    wide: &'a mut [f32],
}

impl Kernel for WidenInto<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (&x, wide_value) in self.x.iter().zip(self.wide) {
            *wide_value = wide(x);
        }
    }
}

struct RoundInto<'a> {
    x: &'a [f32],
    rounded: &'a mut [bf16],
}

impl Kernel for RoundInto<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (&x, rounded) in self.x.iter().zip(self.rounded) {
            *rounded = nearest(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_half() {
        let mut bits: Vec<u32> = (0..=u32::MAX).step_by(9_973).collect();
        // Ties, both neighbours of a tie, infinities, NaN.
        for high in [
            0x3f80_0000,
            0x3f81_0000,
            0x7f7f_0000,
            0xff80_0000,
            0x7fc0_0000,
        ] {
            bits.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| high | low));
        }
        let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let mut rounded = Vec::new();
        append_rounded(&values, &mut rounded);
        for (value, found) in values.iter().zip(rounded) {
            let expected = bf16::from_f32(*value);
            assert_eq!(found.to_bits(), expected.to_bits(), "{:x}", value.to_bits());
        }
    }

    #[test]
    fn widening_and_rounding_lose_nothing() {
        let values: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let x = Tensor::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap();
        let wide = widened(&x).unwrap();
        assert_eq!(wide.dtype(), DType::F32);
        let wide: Vec<f32> = wide.to_vec1().unwrap();
        let again = rounded_tensor(&wide, wide.len()).unwrap();
        let again: Vec<bf16> = again.to_vec1().unwrap();
        for (value, again) in values.iter().zip(again) {
            assert!(value.is_nan() && again.is_nan() || value.to_bits() == again.to_bits());
        }
    }

    #[test]
    fn small_factors_are_zero() {
        let smallest = 2f32.powi(-55);
        for (value, expected) in [
            (smallest, smallest),
            (-smallest, -smallest),
            (smallest * 0.99, 0.0),
            (-1e-30, 0.0),
            (f32::from_bits(1 << 16), 0.0),
            (1.5, 1.5),
        ] {
            assert_eq!(factor(bf16::from_f32(value)), expected, "{value}");
        }
        assert!(factor(bf16::NAN).is_nan());
    }
}
