//! Elementary functions and sums over SIMD lanes.
//!
//! Invariant: they use additions, multiplications and roundings only, in one order, and no libm of
//! the platform. So the bits are the same everywhere. A sum runs in 16 chains (element i in chain i
//! mod 16) that are joined as a tree.

use super::simd::{LANES, Simd};

/// Below this, [`exp`] returns zero: the smallest normal f32 is exp(-87.34).
const EXP_LOWEST: f32 = -87.0;
/// Above this, [`exp`] stays at exp(88).
const EXP_HIGHEST: f32 = 88.0;
/// Adding it rounds to an integer, which is then in the low bits of the sum: 1.5 * 2^23.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts (Cody and Waite). The product of the first with a small integer is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// 1/7!, 1/6!, ... 1/2!: for |r| <= ln(2)/2 the rest of the series is below 2^-27.
const EXP_SERIES: [f32; 6] = [
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
];

/// Returns e^x within 2 ulp for -87 <= x <= 88; zero below, exp(88) above, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: S) -> S {
    let lowest = S::splat(EXP_LOWEST);
    let bounded = S::splat(EXP_HIGHEST).min(lowest.max(x));
    // e^x = 2^n e^r with n = round(x / ln 2), so that |r| <= ln(2) / 2.
    let rounded = bounded.fma(S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
    let n = rounded.sub(S::splat(ROUND));
    let r = n.fma(S::splat(-LN2_LOW), n.fma(S::splat(-LN2_HIGH), bounded));
    let mut series = S::splat(EXP_SERIES[0]);
    for &term in &EXP_SERIES[1..] {
        series = series.fma(r, S::splat(term));
    }
    let one = S::splat(1.0);
    let fraction = series.fma(r, one).fma(r, one);
    fraction.add_exponent(rounded).zero_where_below(x, lowest)
}

/// Returns 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(x: S) -> S {
    let one = S::splat(1.0);
    one.div(one.add(exp(S::splat(0.0).sub(x))))
}

/// Returns the sum of `f` over the elements of `x` and `y`. `f` of zeros must be zero, since the
/// last lanes are filled up with zeros.
#[inline(always)]
pub(crate) fn sum<S: Simd>(x: &[f32], y: &[f32], f: impl Fn(S, S) -> S) -> f32 {
    debug_assert_eq!(x.len(), y.len());
    let mut sum = S::splat(0.0);
    for (x, y) in x.chunks(LANES).zip(y.chunks(LANES)) {
        sum = sum.add(f(S::load_some(x, 0.0), S::load_some(y, 0.0)));
    }
    sum.sum_lanes()
}

/// Sets `out[i] = f(x[i], y[i])`.
#[inline(always)]
pub(crate) fn combine<S: Simd>(x: &[f32], y: &[f32], out: &mut [f32], f: impl Fn(S, S) -> S) {
    combine3::<S>(x, y, out, |x, y, _| f(x, y));
}

/// Sets `out[i] = f(x[i], y[i], out[i])`.
#[inline(always)]
pub(crate) fn combine3<S: Simd>(x: &[f32], y: &[f32], out: &mut [f32], f: impl Fn(S, S, S) -> S) {
    debug_assert!(x.len() == out.len() && y.len() == out.len());
    let inputs = x.chunks(LANES).zip(y.chunks(LANES));
    for ((x, y), out) in inputs.zip(out.chunks_mut(LANES)) {
        let before = S::load_some(out, 0.0);
        f(S::load_some(x, 0.0), S::load_some(y, 0.0), before).store_some(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::simd::{InstructionSet, Kernel, dispatch, with_instruction_set};

    struct Exp<'a>(&'a [f32; LANES]);

    impl Kernel for Exp<'_> {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self) -> [f32; LANES] {
            exp(S::load(self.0)).lanes()
        }
    }

    /// Steps of one unit in the last place between two positive numbers.
    fn ulps(a: f32, b: f32) -> u32 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn exp_is_within_two_ulp_on_every_instruction_set() {
        let (mut worst, steps) = (0, 200_000);
        for step in 0..steps {
            let x: [f32; LANES] = std::array::from_fn(|lane| {
                -87.0 + 175.0 * (step * LANES + lane) as f32 / (steps * LANES) as f32
            });
            let found = dispatch(Exp(&x));
            for (x, found) in x.iter().zip(found) {
                worst = worst.max(ulps(found, libm::exp(f64::from(*x)) as f32));
            }
            if step % 1000 == 0 {
                for set in InstructionSet::available() {
                    let same = with_instruction_set(set, || dispatch(Exp(&x)));
                    assert_eq!(
                        same.map(|y| y.map(f32::to_bits)),
                        Some(found.map(f32::to_bits))
                    );
                }
            }
        }
        assert!(worst <= 2, "{worst} ulp");
    }

    #[test]
    fn exp_at_its_edges() {
        for set in InstructionSet::available() {
            let at = |x: f32| with_instruction_set(set, || dispatch(Exp(&[x; LANES]))).unwrap()[7];
            assert_eq!(at(0.0), 1.0);
            assert_eq!(at(f32::NEG_INFINITY), 0.0);
            assert_eq!(at(-100.0), 0.0);
            assert!(at(f32::INFINITY).is_finite() && at(f32::INFINITY) > 1e38);
            assert!(at(f32::NAN).is_nan());
        }
    }

    struct Sum<'a>(&'a [f32]);

    impl Kernel for Sum<'_> {
        type Output = f32;

        #[inline(always)]
        fn run<S: Simd>(self) -> f32 {
            sum::<S>(self.0, self.0, |x, _| x)
        }
    }

    /// The definition in the file's head, element by element.
    #[test]
    fn a_sum_is_sixteen_chains_and_a_tree() {
        for len in [1, 15, 16, 17, 100, 193] {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).fract() - 0.4).collect();
            let mut chains = [0.0_f32; LANES];
            for (i, x) in x.iter().enumerate() {
                chains[i % LANES] += x;
            }
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    chains[i] += chains[i + half];
                }
            }
            for set in InstructionSet::available() {
                let found = with_instruction_set(set, || dispatch(Sum(&x))).unwrap();
                assert_eq!(found.to_bits(), chains[0].to_bits(), "{set:?}, {len}");
            }
        }
    }
}
