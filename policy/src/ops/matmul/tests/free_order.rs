//! Measures the cost of the fixed order of sums: the same tiles with several chains for each
//! element, beside it.
//!
//! `cargo test --release --workspace --lib -- cost_of_the_order --ignored --nocapture` prints it.

use super::super::*;
use super::values;
use crate::ops::simd::LANES;

/// A row tile against all strips with a free order: each element is the sum of several chains over
/// k.
struct FreeOrder<'a, const ROWS: usize, const CHAINS: usize> {
    a: &'a [f32],
    b: &'a PackedMatrix,
    c: &'a mut [f32],
}

impl<const ROWS: usize, const CHAINS: usize> Kernel for FreeOrder<'_, ROWS, CHAINS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (k, n) = (self.b.k, self.b.n);
        for (panel, strip) in self.b.data.chunks_exact(k * PANEL).enumerate() {
            let mut sums = [[[S::splat(0.0); 2]; ROWS]; CHAINS];
            for k0 in (0..k).step_by(CHAINS) {
                for (chain, sums) in sums.iter_mut().enumerate() {
                    let b = &strip[(k0 + chain) * PANEL..][..PANEL];
                    let low = S::load(b.first_chunk().expect("32 values"));
                    let high = S::load(b.last_chunk().expect("32 values"));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: A holds ROWS rows of k values, and k is a multiple of CHAINS.
                        let a = S::splat(unsafe { *self.a.get_unchecked(i * k + k0 + chain) });
                        *sum = [a.fma(low, sum[0]), a.fma(high, sum[1])];
                    }
                }
            }
            let (first, rest) = sums.split_first_mut().expect("a chain");
            for (i, sum) in first.iter_mut().enumerate() {
                for (half, sum) in sum.iter_mut().enumerate() {
                    let total = rest.iter().fold(*sum, |sum, other| sum.add(other[i][half]));
                    let at = i * n + panel * PANEL + half * LANES;
                    total.store(self.c[at..].first_chunk_mut().expect("16 values"));
                }
            }
        }
    }
}

/// Measures small tiles. A larger tile has enough chains either way.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn cost_of_the_order() {
    fn measure<const ROWS: usize, const CHAINS: usize>(k: usize, n: usize) {
        let (a, b) = (values(ROWS * k, 1), values(k * n, 2));
        let b = PackedMatrix::new(View::new(&b, k, n, n));
        let mut c = vec![0.0; ROWS * n];
        let mut ratios = Vec::new();
        let mut speeds = Vec::new();
        for _ in 0..21 {
            let mut seconds = [0.0; 2];
            for (free, seconds) in seconds.iter_mut().enumerate() {
                let begun = std::time::Instant::now();
                for _ in 0..400 {
                    if free == 1 {
                        let (a, c) = (a.as_slice(), c.as_mut_slice());
                        dispatch(FreeOrder::<ROWS, CHAINS> { a, b: &b, c });
                    } else {
                        let a = View::new(&a, ROWS, k, k);
                        multiply(a, Right::Packed(&b), &mut c, n, WriteMode::Overwrite);
                    }
                    std::hint::black_box(&c);
                }
                *seconds = begun.elapsed().as_secs_f64();
            }
            ratios.push(seconds[0] / seconds[1]);
            speeds.push(800e-9 * (ROWS * k * n) as f64 / seconds[0]);
        }
        ratios.sort_by(f64::total_cmp);
        speeds.sort_by(f64::total_cmp);
        let (ratio, speed) = (ratios[10], speeds[10]);
        println!(
            "{ROWS:2} x {k} x {n}: {speed:5.1} GFLOP/s in order, {ratio:.2} times as long as {CHAINS} chains"
        );
    }
    for (k, n) in [(256, 768), (512, 512), (512, 1536)] {
        measure::<1, 4>(k, n);
        measure::<1, 8>(k, n);
        measure::<2, 4>(k, n);
        measure::<3, 2>(k, n);
        measure::<4, 2>(k, n);
        measure::<6, 2>(k, n);
        measure::<8, 1>(k, n);
        measure::<12, 1>(k, n);
    }
}
