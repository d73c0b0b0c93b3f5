//! Products of bf16 by AVX512-BF16.
//!
//! VDPBF16PS adds two products to a sum, first that of the high halves of two pairs, then that of
//! the low halves, each by a fused multiply-add (Intel's manual; felixcloutier.com/x86/vdpbf16ps).
//! So a pair of two even steps continues the chain of the even steps, and a pair of two odd steps
//! that of the odd ones. The panels of B have an even and an odd step in each pair, as AMX reads
//! them, so the kernel exchanges the halves of two pairs after it has loaded them.

use std::arch::x86_64::*;

use half::bf16;

use super::matrix::{BLOCK, BLOCK_ROWS, PANEL, transposed_block};
use super::sums::Sums;
use crate::ops::aligned::Aligned;
use crate::ops::bf16_values::factor_bits;
use crate::ops::matmul::View;
use crate::ops::simd::{InstructionSet, Kernel, LANES, Simd, dispatch};

/// Steps of k whose values the kernel multiplies at once: a pair of even and a pair of odd ones.
const STEPS: usize = 4;
/// The step of each place of four, and the place of each step.
const STEP_OF_PLACE: [usize; STEPS] = [2, 0, 3, 1];
const PLACE_OF_STEP: [usize; STEPS] = [1, 3, 0, 2];
/// Vectors of a row of a panel.
const VECTORS: usize = PANEL / LANES;
/// Rows of a tile, whose two chains fit the registers.
const TILE_ROWS: usize = 6;
/// The most steps of k of a panel of B that are read at once. They are 20 KiB, which fit the
/// first-level cache beside the rows of A.
pub(super) const DEPTH: usize = 320;

/// The CPU has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Permission(());

impl Permission {
    pub(super) fn of_cpu() -> Option<Self> {
        let sets = InstructionSet::available();
        sets.contains(&InstructionSet::Avx512Bf16)
            .then_some(Self(()))
    }
}

/// Packs the rows of A, each padded with zeros to `padded` values, as the pairs that the kernel
/// reads: of four steps the even ones, then the odd ones, each with the later step first.
pub(super) fn pack(a: View<'_, bf16>, padded: usize, packed: &mut Aligned<u16>) {
    packed.resize(a.rows * padded);
    let packed = packed.values();
    if a.cols < padded {
        packed.fill(0);
    }
    if !packed.is_empty() {
        dispatch(PackRows { a, padded, packed });
    }
}

/// Adds the products of all rows with a piece of a panel of B to the sums. The rows are packed,
/// `stride` values apart, and the piece begins at the step `first`.
pub(super) fn add(
    _: Permission,
    (packed, stride): (&[u16], usize),
    first: usize,
    pairs: &[u32],
    sums: &mut Sums<'_>,
) {
    let rows = packed.len() / stride;
    for row in (0..rows).step_by(TILE_ROWS) {
        let tile = Tile {
            a: &packed[row * stride + first..],
            a_stride: stride,
            pairs,
            sums: sums.rows_from(row),
        };
        // SAFETY: the permission says that the CPU has the instructions.
        unsafe { tile.run(TILE_ROWS.min(rows - row)) };
    }
}

struct PackRows<'a> {
    a: View<'a, bf16>,
    padded: usize,
    packed: &'a mut [u16],
}

impl Kernel for PackRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let a = self.a;
        if a.col_stride == 1 {
            for (row, packed) in self.packed.chunks_exact_mut(self.padded).enumerate() {
                let (values, rest) = a.data[row * a.row_stride..][..a.cols].as_chunks::<STEPS>();
                let (packed, _) = packed.as_chunks_mut::<STEPS>();
                for (packed, values) in packed.iter_mut().zip(values) {
                    *packed = STEP_OF_PLACE.map(|step| factor_bits(values[step]));
                }
                if let Some(packed) = packed.get_mut(values.len()) {
                    for (&value, place) in rest.iter().zip(PLACE_OF_STEP) {
                        packed[place] = factor_bits(value);
                    }
                }
            }
        } else {
            for row in (0..a.rows).step_by(BLOCK_ROWS) {
                for k in (0..a.cols).step_by(BLOCK) {
                    let (rows, steps) = (BLOCK_ROWS.min(a.rows - row), BLOCK.min(a.cols - k));
                    let block = transposed_block(a.part(row, rows, k, steps));
                    let packed = self.packed[row * self.padded..].chunks_exact_mut(self.padded);
                    for (packed, values) in packed.zip(&block[..rows]) {
                        let (packed, _) = packed[k..k + BLOCK].as_chunks_mut::<STEPS>();
                        let (values, _) = values.as_chunks::<STEPS>();
                        for (packed, values) in packed.iter_mut().zip(values) {
                            *packed = STEP_OF_PLACE.map(|step| values[step]);
                        }
                    }
                }
            }
        }
    }
}

/// Some rows of A against a piece of a panel of B.
struct Tile<'a> {
    a: &'a [u16],
    /// Values from a row of A to the next one.
    a_stride: usize,
    pairs: &'a [u32],
    /// The sums so far.
    sums: Sums<'a>,
}

impl Tile<'_> {
    /// Runs the tile with a constant number of rows, so that the chains stay in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn run(self, rows: usize) {
        match rows {
            6 => self.rows::<6>(),
            5 => self.rows::<5>(),
            4 => self.rows::<4>(),
            3 => self.rows::<3>(),
            2 => self.rows::<2>(),
            1 => self.rows::<1>(),
            _ => unreachable!("a tile of pairs has 1 to 6 rows: this is a bug"),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn rows<const ROWS: usize>(self) {
        let blocks = self.pairs.len() / (BLOCK / 2 * PANEL);
        assert!((ROWS - 1) * self.a_stride + blocks * BLOCK <= self.a.len());
        self.sums.assert_rows(ROWS);
        for block in 0..blocks {
            let mut even = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            let mut odd = even;
            for step in 0..BLOCK / STEPS {
                let k = block * BLOCK + step * STEPS;
                // SAFETY: a row of `pairs` has two vectors, and `pairs` holds `blocks` blocks; the
                // first assertion bounds the offsets into `a`.
                unsafe {
                    let b: [_; VECTORS] = std::array::from_fn(|v| {
                        let first = self.pairs.as_ptr().add(k / 2 * PANEL + v * LANES);
                        exchange_halves(
                            _mm512_loadu_si512(first.cast()),
                            _mm512_loadu_si512(first.add(PANEL).cast()),
                        )
                    });
                    for i in 0..ROWS {
                        let a = self.a.as_ptr().add(i * self.a_stride + k).cast::<u32>();
                        let a_even = splat(a.read_unaligned());
                        let a_odd = splat(a.add(1).read_unaligned());
                        for v in 0..VECTORS {
                            even[i][v] = _mm512_dpbf16_ps(even[i][v], a_even, b[v].0);
                            odd[i][v] = _mm512_dpbf16_ps(odd[i][v], a_odd, b[v].1);
                        }
                    }
                }
            }
            for i in 0..ROWS {
                for v in 0..VECTORS {
                    let at = i * self.sums.stride + v * LANES;
                    let sums = &mut self.sums.values[at..at + LANES];
                    let block = _mm512_add_ps(even[i][v], odd[i][v]);
                    // SAFETY: `sums` has 16 values.
                    unsafe {
                        let before = _mm512_loadu_ps(sums.as_ptr());
                        _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(before, block));
                    }
                }
            }
        }
    }
}

/// Returns the pairs of the even steps and those of the odd steps of two rows of pairs, with the
/// earlier step in the high half.
#[inline]
#[target_feature(enable = "avx512f")]
fn exchange_halves(first: __m512i, second: __m512i) -> (__m512bh, __m512bh) {
    let high_half = _mm512_set1_epi32(-65_536);
    // 0xca: where the mask has a bit, the first operand's, else the second's.
    let even = _mm512_ternarylogic_epi32::<0xca>(high_half, _mm512_slli_epi32::<16>(first), second);
    let odd = _mm512_ternarylogic_epi32::<0xca>(high_half, first, _mm512_srli_epi32::<16>(second));
    (pairs(even), pairs(odd))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn splat(pair: u32) -> __m512bh {
    pairs(_mm512_set1_epi32(pair.cast_signed()))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of any value.
    unsafe { std::mem::transmute(bits) }
}
